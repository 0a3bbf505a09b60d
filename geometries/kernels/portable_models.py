"""What a ray collects in each model: weights and cells, from array code of any namespace.

`siddon`: the length of the ray in each cell. `joseph`: one sample a slab. Each takes rays, a box of
at most `edge` cells a side within an array of `shape`, and gives pieces: weights (physical
lengths), flat positions, and how the weights change where the rays move. With faces x_a = const
crossed at the parameter s of `P + s E` (s in [-1, 0] from source to cell, or any for a direction E)
that is

    ds = -(dP_a + s dE_a) / E_a
    w = |E| (s2 - s1),   dw = |E| (ds2 - ds1) + w E.dE / |E|^2

while the ends of a segment stand at fixed s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise, product
from operator import mul
from typing import NamedTuple

from geometries.kernels.portable_rays import CellBox, Marched, Rays, Slabs, clipped, march, slabs_of
from linops import arrays
from linops.arrays import Array

__all__ = ["MODELS", "Pieces", "joseph", "siddon"]

Change = Callable[[Array, Array], Array]


class Pieces(NamedTuple):
    """What R rays collect: K pieces each."""

    weights: Array  # (R, K)
    index: Array  # (R, K): flat positions; -1 for none
    change: Change  # of the weights, (R, K), from dP and dE, physical, (R, dims) each


def siddon(rays: Rays, box: CellBox, shape: tuple[int, ...], edge: int) -> Pieces:
    """Exact lengths of each ray within each cell (Siddon 1985)."""
    xp = arrays.namespace(rays.origin)
    slabs = slabs_of(rays, box, shape, edge)
    found = march(slabs)
    lengths = (found.bounds[..., 1:] - found.bounds[..., :-1]) * rays.metre[:, None, None]
    flat = (lengths.shape[0], lengths.shape[1] * lengths.shape[2])

    def change(point: Array, way: Array) -> Array:
        moved = _moved(rays, slabs, found, point, way)
        steps = xp.stack([two - one for one, two in pairwise(moved)], axis=-1)
        whole, stretch = _stretch(rays, way)
        return xp.reshape(whole[..., None] * steps + lengths * stretch[..., None], flat)

    return Pieces(xp.reshape(lengths, flat), xp.reshape(found.index, flat), change)


def joseph(rays: Rays, box: CellBox, shape: tuple[int, ...], edge: int) -> Pieces:
    """Linear interpolation across the longest axis of the ray, slab by slab (Joseph 1982).

    The ray's part in a slab, one cell thick, counts with its length; the value there is that of the
    field which interpolates (bi)linearly between cell centers across the slab, taken at the middle
    of the part. Beyond the outermost centers the field falls to zero within one cell.
    """
    xp = arrays.namespace(rays.origin)
    slabs = slabs_of(rays, box, shape, edge)
    lengths = (slabs.end - slabs.begin) * rays.metre[:, None]
    middle = 0.5 * (slabs.begin + slabs.end)
    sides = []
    for side in slabs.lateral:
        place = side.origin + middle * side.direction - 0.5
        lower = xp.floor(place)
        top = arrays.cast(side.high, arrays.dtype_of(place))
        cell = arrays.cast(clipped(lower, 0.0 * top - 2.0, top), arrays.dtype_of(slabs.flat))
        part = place - lower
        corners = []
        for shift, share, sign in ((0, 1.0 - part, -1.0), (1, part, 1.0)):
            inside = (cell + shift >= side.low) & (cell + shift < side.high)
            corners.append((share, sign, (cell + shift - side.first) * side.stride, inside))
        sides.append(corners)
    weights, index = [], []
    for chosen in product(*sides):
        inside = reduce(lambda a, b: a & b, [corner[3] for corner in chosen], slabs.exists)
        flat = sum((corner[2] for corner in chosen), slabs.flat)
        weights.append(reduce(mul, [corner[0] for corner in chosen], lengths))
        index.append(xp.where(inside, flat, xp.full_like(flat, -1)))

    def change(point: Array, way: Array) -> Array:
        begin, end = _ends_moved(rays, slabs, point, way)
        whole, stretch = _stretch(rays, way)
        longer = whole * (end - begin) + lengths * stretch
        s = _parameter(rays, middle)
        drifts = []
        for side, mask in zip(slabs.lateral, slabs.axes[1:], strict=True):
            dp, de, e = (_along(v, mask) for v in (point, way, rays.way))
            drifts.append((dp + s * de + e * 0.5 * (begin + end)) / side.size)
        out = []
        for chosen in product(*sides):
            shares = [corner[0] for corner in chosen]
            total = reduce(mul, shares, longer)
            for k, drift in enumerate(drifts):
                others = shares[:k] + shares[k + 1 :]
                total = total + reduce(mul, others, lengths * drift * chosen[k][1])
            out.append(total)
        return xp.concat(out, axis=1)

    return Pieces(xp.concat(weights, axis=1), xp.concat(index, axis=1), change)


MODELS: dict[str, Callable[[Rays, CellBox, tuple[int, ...], int], Pieces]] = {
    "siddon": siddon,
    "joseph": joseph,
}
"""Models by name."""


def _moved(rays: Rays, slabs: Slabs, found: Marched, point: Array, way: Array) -> Sequence[Array]:
    """How the bounds of the pieces of each slab move, `(R, N)` each."""
    xp = arrays.namespace(point)
    begin, end = _ends_moved(rays, slabs, point, way)
    inner = []
    for crossing, mask in zip(found.crossings, slabs.axes[1:], strict=True):
        own = _rate(rays, mask, crossing, point, way)
        held = xp.where(crossing <= slabs.begin, begin, end)
        inside = (crossing > slabs.begin) & (crossing < slabs.end)
        inner.append(xp.where(inside, own, held))
    if len(inner) == 2:
        ordered = found.crossings[0] <= found.crossings[1]
        inner = [xp.where(ordered, *inner), xp.where(ordered, *inner[::-1])]
    return [begin, *inner, end]


def _ends_moved(rays: Rays, slabs: Slabs, point: Array, way: Array) -> tuple[Array, Array]:
    """How the faces between slabs move along the ray; ends of segments do not."""
    xp = arrays.namespace(point)
    moved = []
    for t in (slabs.begin, slabs.end):
        free = (t > rays.start[:, None]) & (t < rays.stop[:, None])
        rate = _rate(rays, slabs.axes[0], t, point, way)
        moved.append(xp.where(free, rate, xp.zeros_like(rate)))
    return moved[0], moved[1]


def _rate(rays: Rays, mask: Array, t: Array, point: Array, way: Array) -> Array:
    xp = arrays.namespace(point)
    e = _along(rays.way, mask)
    crossed = e != 0
    rate = -(_along(point, mask) + _parameter(rays, t) * _along(way, mask))
    return xp.where(crossed, rate / xp.where(crossed, e, xp.ones_like(e)), xp.zeros_like(rate))


def _parameter(rays: Rays, t: Array) -> Array:
    return (t - rays.foot[:, None]) / rays.norm[:, None]


def _stretch(rays: Rays, way: Array) -> tuple[Array, Array]:
    """|E| and E.dE / |E|^2, `(R, 1)` each."""
    xp = arrays.namespace(way)
    whole = (rays.metre * rays.norm)[:, None]
    return whole, xp.sum(rays.way * way, axis=-1)[:, None] / (whole * whole)


def _along(vectors: Array, mask: Array) -> Array:
    return arrays.namespace(vectors).sum(mask * vectors, axis=-1)[:, None]
