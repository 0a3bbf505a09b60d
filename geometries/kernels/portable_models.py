"""What a ray collects in each model: weights and cells, from array code of any namespace.

`siddon`: the length of the ray in each cell. `joseph`: one sample a slab. Each takes rays and the
part of the grid that an array covers, and gives weights (physical lengths) and flat positions,
`(rays, pieces)` each, with -1 where there is no cell.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from geometries.kernels.portable_rays import Box, Rays, clipped, march, slabs_of
from linops import arrays
from linops.arrays import Array

__all__ = ["MODELS", "joseph", "pieces_of", "siddon"]


def siddon(rays: Rays, box: Box, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Exact lengths of each ray within each cell (Siddon 1985)."""
    xp = arrays.namespace(rays.origin)
    found = march(rays, box, shape)
    lengths = (found.bounds[..., 1:] - found.bounds[..., :-1]) * rays.metre[:, None, None]
    count = lengths.shape[1] * lengths.shape[2]
    flat = (rays.origin.shape[0], count)
    return xp.reshape(lengths, flat), xp.reshape(found.index, flat)


def joseph(rays: Rays, box: Box, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Linear interpolation across the longest axis of the ray, slab by slab (Joseph 1982).

    The ray's part in a slab, one cell thick, counts with its length; the value there is that of the
    field which interpolates (bi)linearly between cell centres across the slab, taken at the middle
    of the part. Beyond the outermost centres the field falls to zero within one cell.
    """
    xp = arrays.namespace(rays.origin)
    slabs = slabs_of(rays, box, shape)
    lengths = (slabs.end - slabs.begin) * rays.metre[:, None]
    middle = 0.5 * (slabs.begin + slabs.end)
    sides = []
    for side in slabs.lateral:
        place = side.origin + middle * side.direction - 0.5
        lower = xp.floor(place)
        held = clipped(lower, -2.0 + 0.0 * lower, arrays.cast(side.high, lower.dtype) + 0.0 * lower)
        cell = arrays.cast(held, arrays.dtype_of(slabs.flat))
        part = place - lower
        corner = []
        for shift, share in ((0, 1.0 - part), (1, part)):
            inside = (cell + shift >= side.low) & (cell + shift < side.high)
            corner.append((share, (cell + shift - side.first) * side.stride, inside))
        sides.append(corner)
    weights, index = [], []
    for corners in product(*sides):
        weight, flat, inside = lengths, slabs.flat, slabs.exists
        for share, step, held in corners:
            weight, flat, inside = weight * share, flat + step, inside & held
        weights.append(weight)
        index.append(xp.where(inside, flat, xp.full_like(flat, -1)))
    return xp.concat(weights, axis=1), xp.concat(index, axis=1)


MODELS: dict[str, Callable[[Rays, Box, tuple[int, ...]], tuple[Array, Array]]] = {
    "siddon": siddon,
    "joseph": joseph,
}
"""Models by name."""


def pieces_of(model: str, shape: tuple[int, ...]) -> int:
    """How many pieces a ray has in an array of `shape`."""
    dims = len(shape)
    return max(shape, default=0) * (dims if model == "siddon" else 2 ** (dims - 1))
