"""Projection by array code: one implementation for NumPy, JAX, torch and their devices.

A reference for the compiled kernels and the way to accelerators, in all models and precisions, in
2-D and 3-D. Rays are set up and cut in float64 where the library has it; data, weights and sums are
in the operator's dtype. Forward gathers, adjoint scatters, with the same weights, one batch of rays
in one tile of the grid at a time, tiles that a batch misses left out, so memory is bounded whatever
the size of a scan (`geometries/kernels/portable_memory.py`). Which cells a ray meets is in
`geometries/kernels/portable_models.py`; the arrays of a scan are in
`geometries/kernels/portable_scan.py`, derivatives in the geometry in
`geometries/kernels/portable_gradient.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from geometries.kernels import portable_footprint
from geometries.kernels.portable_calls import run
from geometries.kernels.portable_models import MODELS, Pieces
from geometries.kernels.portable_rays import CellBox, Rays, arange, meets, rays_of
from geometries.kernels.portable_scan import ScanArrays, Setup, scan_of, setup_of
from linops import arrays
from linops.arrays import Array
from linops.transforms.torch_function import recording

if TYPE_CHECKING:
    from geometries.projector import Projector

__all__ = [
    "batches",
    "forward",
    "gram_diagonal",
    "numbered",
    "over_tiles",
    "project",
    "project_with",
    "rays_at",
    "run",
    "scattered",
    "squares",
]


def project(projector: Projector, x: Array, adjoint: bool = False) -> Array:
    """`projector @ x`, or its adjoint, by array code; `x` is validated, batch axes in front."""
    ends = projector.domain.shape, projector.codomain.shape
    source, target = ends[::-1] if adjoint else ends
    batch = tuple(x.shape)[: x.ndim - len(source)]
    if 0 in (*batch, *source, *target):
        return _nothing(projector, x, (*batch, *target))
    parts = (projector.frames, projector.offsets, projector.heights)
    traced = [part for part in parts if arrays.is_traced(part)]
    if traced and arrays.is_numpy(x):
        x = arrays.convert(x, traced[0])
    if projector.model == "footprint":
        return portable_footprint.project(projector, x, adjoint)
    if any(_follows(part, x) for part in parts if part is not None):
        from geometries.geometry_gradient import project_followed

        return project_followed(projector, x, adjoint)
    return project_with(setup_of(projector, x), scan_of(projector, x), x, adjoint)


def project_with(setup: Setup, scan: ScanArrays, x: Array, adjoint: bool) -> Array:
    """The projection of `x`, batch axes in front, or its adjoint, along the rays of a scan."""
    xp = arrays.namespace(x)
    source, target = (setup.cells, setup.voxels) if adjoint else (setup.voxels, setup.cells)
    batch = tuple(x.shape)[: x.ndim - len(source)]
    flat = xp.reshape(x, (math.prod(batch), *source))
    found = run(_adjoint if adjoint else forward, setup, x, scan, flat)
    return xp.reshape(found, (*batch, *target))


def gram_diagonal(projector: Projector, weights: Array | None) -> Array:
    """`sum_i w_i a_ij^2` for every voxel."""
    if weights is None:
        weights = projector.codomain.zeros() + 1
    weights = arrays.cast(weights, projector.dtype)
    if 0 in (*weights.shape, *projector.domain.shape):
        return arrays.zeros(projector.domain.shape, projector.dtype, weights)
    if projector.model == "footprint":
        return portable_footprint.gram_diagonal(projector, weights)
    setup = setup_of(projector, weights)
    found = run(squares, setup, weights, scan_of(projector, weights), weights[None, ...])
    return found[0, ...]


def forward(setup: Setup, scan: ScanArrays, x: Array) -> Array:
    """Line integrals of `x` `(n, *voxels)`, shape `(n, *cells)`."""
    xp = arrays.namespace(x)
    flat = xp.reshape(x, (x.shape[0], math.prod(setup.voxels)))
    total = math.prod(setup.cells)

    def one(number: Any) -> Array:
        rays, inside = rays_at(setup, scan, number)

        def add(pieces: Pieces, used: Array, sums: Array) -> Array:
            weights, where = _kept(pieces.weights, pieces.index, used, x)
            return sums + arrays.mapped(
                x.shape[0],
                lambda k: xp.sum(
                    weights * xp.reshape(arrays.take_last(flat[k, :], where), weights.shape), axis=1
                ),
                x,
            )

        start = arrays.zeros((x.shape[0], setup.batch), arrays.dtype_of(x), x)
        return over_tiles(setup, scan.box, rays, inside, add, start + _lost(rays, inside, x))

    parts = arrays.mapped(batches(setup), one, x)  # (batches, n, rays)
    sums = xp.reshape(xp.permute_dims(parts, (1, 0, 2)), (x.shape[0], -1))
    return xp.reshape(sums[:, :total], (x.shape[0], *setup.cells))


def _adjoint(setup: Setup, scan: ScanArrays, y: Array) -> Array:
    """The transpose of `forward`."""
    return scattered(setup, scan, y, lambda number, pieces: pieces.weights)


def squares(setup: Setup, scan: ScanArrays, y: Array) -> Array:
    """`sum_i y_i a_ij^2`: the adjoint with squared weights."""
    return scattered(setup, scan, y, lambda number, pieces: pieces.weights * pieces.weights)


def batches(setup: Setup) -> int:
    """Number of batches of rays."""
    return math.ceil(math.prod(setup.cells) / setup.batch)


def numbered(setup: Setup, number: Any, like: Array) -> tuple[Array, Array, Array, Array]:
    """View, row and column of a batch of rays, and which of its rays are in the scan."""
    xp = arrays.namespace(like)
    total = math.prod(setup.cells)
    ray = arange(setup.batch, like) + number * setup.batch
    inside = ray < total
    ray = xp.minimum(ray, 0 * ray + (total - 1))
    cols = setup.cells[-1]
    row = ray // cols
    return row // setup.rows, row % setup.rows, ray % cols, inside


def rays_at(setup: Setup, scan: ScanArrays, number: Any) -> tuple[Rays, Array]:
    """The rays of one batch, and which of them exist."""
    xp = arrays.namespace(scan.heights)
    view, row, col, inside = numbered(setup, number, scan.box.first)
    rays = rays_of(scan.lines, scan.heights, view, row, col, setup.spacing[::-1])
    for mask, place in ((scan.real, view), (scan.real_rows, row), (scan.real_cols, col)):
        inside = inside & xp.take(mask, place, axis=0)
    return rays, inside


def over_tiles(
    setup: Setup,
    box: CellBox,
    rays: Rays,
    inside: Array,
    add: Callable[[Pieces, Array, Any], Any],
    state: Any,
) -> Any:
    """`state = add(pieces, used, state)` for each tile that the rays may meet.

    `used`, `(rays, pieces)`, says which of the pieces count.
    """
    count = math.prod(setup.tiles)
    shape = setup.voxels[::-1]

    def visited(part: CellBox, state: Any) -> Any:
        pieces = MODELS[setup.model](rays, part, shape, setup.edge)
        return add(pieces, inside[:, None] & (pieces.weights > 0), state)

    if count == 1:
        return visited(box, state)
    xp = arrays.namespace(rays.origin)
    steps = [math.prod(setup.tiles[:a]) for a in range(len(setup.tiles))]

    def tile(number: Any, state: Any) -> Any:
        places = [number // step % n for step, n in zip(steps, setup.tiles, strict=True)]
        begin = xp.stack([box.first[a] + place * setup.edge for a, place in enumerate(places)])
        part = box._replace(
            low=xp.maximum(box.low, begin), high=xp.minimum(box.high, begin + setup.edge)
        )
        met = xp.any(meets(rays, part) & inside)
        return arrays.when(met, lambda state: visited(part, state), state)

    return arrays.loop(count, tile, state)


def _lost(rays: Rays, inside: Array, like: Array) -> Array:
    """For each ray 0, or NaN where its frame is no frame."""
    xp = arrays.namespace(like)
    lost = rays.norm + xp.sum(rays.origin, axis=1)
    return arrays.cast(xp.where(inside, 0.0 * lost, xp.zeros_like(lost)), arrays.dtype_of(like))


def _kept(values: Array, index: Array, used: Array, like: Array) -> tuple[Array, Array]:
    """Values in the dtype of `like` and flat positions, pieces that do not count at -1."""
    xp = arrays.namespace(like)
    values = arrays.cast(values, arrays.dtype_of(like))
    return (
        xp.where(used, values, xp.zeros_like(values)),
        xp.reshape(xp.where(used, index, xp.full_like(index, -1)), (-1,)),
    )


def scattered(
    setup: Setup,
    scan: ScanArrays,
    y: Array,
    of: Callable[[Any, Pieces], Array],
) -> Array:
    """Volumes `(n, *voxels)`: what rays with values `y` `(n, *cells)` add where they go.

    `of(number, pieces)`: what a batch's pieces count with.
    """
    xp = arrays.namespace(y)
    total = math.prod(setup.cells)
    padded = arrays.widen(
        xp.reshape(y, (y.shape[0], total)), -1, 0, batches(setup) * setup.batch - total
    )
    parts = xp.reshape(padded, (y.shape[0], batches(setup), setup.batch))

    def one(number: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        rays, inside = rays_at(setup, scan, number)

        def add(pieces: Pieces, used: Array, sums: Array) -> Array:
            values, where = _kept(of(number, pieces), pieces.index, used, y)

            def row(k: Any, sums: Array) -> Array:
                return arrays.add_at(
                    sums, k, xp.reshape(values * parts[k, number, :][:, None], (-1,)), where
                )

            return arrays.loop(y.shape[0], row, sums)

        sums, lost = state
        sums = over_tiles(setup, scan.box, rays, inside, add, sums)
        return sums, lost + xp.sum(_lost(rays, inside, y))

    dtype = arrays.dtype_of(y)
    start = arrays.zeros((y.shape[0], math.prod(setup.voxels)), dtype, y)
    sums, lost = arrays.loop(batches(setup), one, (start, arrays.zeros((), dtype, y)))
    if not arrays.is_numpy(y):  # whose frames are known to be frames
        sums += lost
    return xp.reshape(sums, (y.shape[0], *setup.voxels))


def _nothing(projector: Projector, x: Array, shape: tuple[int, ...]) -> Array:
    """Zeros of a call with an empty axis, with whatever graph its operands have."""
    zero = arrays.zeros(shape, arrays.dtype_of(x), x)
    for part in (x, projector.frames):
        if type(part) is type(x) and arrays.requires_gradient(part):
            xp = arrays.namespace(x)
            # A sum of nothing, or of what is selected away.
            zero = zero + arrays.cast(xp.sum(xp.zeros_like(part) * part), arrays.dtype_of(x))
    return zero


def _follows(part: Array, x: Array) -> bool:
    # What JAX carries as bits is no number to differentiate in.
    traced = arrays.is_traced(part) and arrays.dtype_of(part).kind == "f"
    return traced or (arrays.is_torch(x) and recording(part))
