"""Projection by array code: one implementation for NumPy, JAX, torch and their devices.

A reference for the compiled kernels and the way to accelerators, in all models and precisions, in
2-D and 3-D. Rays are set up and cut in float64 where the library has it; data, weights and sums are
in the operator's dtype. Forward gathers, adjoint scatters, with the same weights, one batch of rays
in one tile of the grid at a time, tiles that a batch misses left out, so memory is bounded whatever
the size of a scan (`geometries/kernels/portable_memory.py`). Which cells a ray meets is in
`geometries/kernels/portable_models.py`; derivatives in the geometry are in
`geometries/kernels/portable_gradient.py`.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from geometries.kernels import portable_footprint
from geometries.kernels.portable_memory import division
from geometries.kernels.portable_models import MODELS, Pieces
from geometries.kernels.portable_rays import Box, Lines, Rays, arange, lines_of, meets, rays_of
from linops import arrays
from linops.arrays import Array
from linops.transforms.pytree import decoded
from linops.transforms.torch_function import recording

if TYPE_CHECKING:
    from geometries.detector import Detector
    from geometries.projector import Projector
    from geometries.trajectory import Trajectory

__all__ = [
    "Scan",
    "Setup",
    "batches",
    "cell_offsets",
    "forward",
    "gram_diagonal",
    "part_of",
    "project",
    "project_with",
    "run",
    "scan_of",
    "setup_of",
    "squares",
    "surface_offsets",
    "windowed",
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


def project_with(setup: Setup, scan: Scan, x: Array, adjoint: bool) -> Array:
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


def setup_of(projector: Projector, like: Array, slopes: bool = False) -> Setup:
    """The static part of a projector; tiles and batches fit the device of `like`.

    `slopes`: whether weights are differentiated in the geometry.
    """
    grid, voxels = projector.grid, projector.domain.shape
    rays = projector.codomain.size
    return Setup(
        projector.geometry.kind == "parallel",
        projector.model,
        grid.shape,
        grid.spacing,
        grid.center,
        projector.geometry.detector.shape,
        voxels,
        projector.codomain.shape,
        *division(rays, projector.model, voxels, like, projector.memory, slopes),
    )


def scan_of(projector: Projector, like: Array) -> Scan:
    """The arrays of a projector's scan in the namespace and on the device of `like`."""
    cells = projector.offsets, projector.heights
    if cells[0] is None and "host" not in projector.__dict__.get("_cache_scan", {}):
        cells = _host_offsets(projector)
    parts = (projector.frames, *cells, projector.window)
    dtype = np.dtype("float64" if arrays.has_float64(like) else "float32")
    if not all(part is None or arrays.is_numpy(part) for part in parts):
        real = [_wide(decoded(part), dtype, like) for part in parts[:3]]
        return _scan(projector, real, parts[3])
    cache = projector.__dict__.setdefault("_cache_scan", {})
    if "host" not in cache:
        cache["host"] = _scan(projector, parts[:3], parts[3])

    def there(name: str, part: Array) -> Array:
        if part.dtype.kind == "f":
            name, part = f"{name} {dtype}", part.astype(dtype, copy=False)
        return arrays.resident(cache, name, part, like)

    flat, build = _flattened(cache["host"])
    return build([there(str(k), part) for k, part in enumerate(flat)])


def cell_offsets(trajectory: Trajectory) -> tuple[Array, Array]:
    """Offsets of the cells of a scan from the centre along u, v and n, and heights of the rows.

    `(1, 1, cols, 3)` and `(rows,)`, a row's height not being in its offsets; of a surface
    `(views, rows, cols, 3)` and zeros.
    """
    detector = trajectory.detector
    surface = detector.surface
    if surface is not None:
        offsets = surface_offsets(detector, trajectory.views)
        return offsets, np.zeros((1, *detector.shape)[-2])
    along, depth = arrays.unify(*detector.column_offsets())
    xp = arrays.namespace(along)
    offsets = xp.stack([along, xp.zeros_like(along), depth], axis=-1)
    return offsets[None, None, ...], detector.rows()


def surface_offsets(detector: Detector, views: int) -> Array:
    """Offsets of the cells of a surface along u, v and n, `(views, rows, cols, 3)`."""
    assert detector.surface is not None
    return _with_rows(detector.surface.offsets(detector, range(views), views))


def _host_offsets(projector: Projector) -> tuple[np.ndarray, np.ndarray]:
    detector = projector.geometry.detector.host
    if detector.surface is None:
        return cell_offsets(projector.geometry.trajectory.host)
    frames = np.asarray(projector.frames)
    count = int(frames[0, -1, 1]) if len(frames) else 0
    offsets = detector.surface.on_host(detector, frames[:, -1, 0].astype(np.int64), count)
    return _with_rows(offsets), np.zeros((1, *detector.shape)[-2])


def _with_rows(offsets: Array) -> Array:
    return offsets[:, None, ...] if offsets.ndim == 3 else offsets


@dataclass(frozen=True)
class Setup:
    """What is static of a projection: sizes, all in array order; equal ones share one program."""

    parallel: bool
    model: str
    grid: tuple[int, ...]
    spacing: tuple[float, ...]
    center: tuple[float, ...]
    detector: tuple[int, ...]  # of the whole detector
    voxels: tuple[int, ...]  # of the array
    cells: tuple[int, ...]  # of the array: views, [rows,] columns
    edge: int  # cells along a side of a tile
    batch: int  # rays

    @property
    def tiles(self) -> tuple[int, ...]:
        """Tiles along each axis of the array, in the order x, y[, z]."""
        return tuple(math.ceil(n / self.edge) for n in self.voxels[::-1])

    @property
    def rows(self) -> int:
        """Rows of the projections; 1 in 2-D."""
        return self.cells[1] if len(self.cells) == 3 else 1


class Scan(NamedTuple):
    """What of a projection is an array."""

    lines: Lines
    heights: Array  # (rows,): of the part's rows along v
    box: Box
    real: Array  # (views,), (rows,), (cols,): which of them exist
    real_rows: Array
    real_cols: Array


def part_of(
    setup: Setup, offsets: Array, heights: Array, window: Array
) -> tuple[Array, Array, Array, Array]:
    """Offsets and heights of the part of the detector in the window, and which rows, columns exist.

    `offsets`, `heights` are those of the whole detector; see `lines_of`.
    """
    xp = arrays.namespace(offsets)
    window = arrays.convert(window, offsets)
    detector = (1, *setup.detector)[-2:]
    first = [0 * window[0], *(window[2 + k] for k in range(len(setup.detector)))][-2:]
    number = [
        arange(count, window) + start
        for count, start in zip((setup.rows, setup.cells[-1]), first, strict=True)
    ]
    held = [
        xp.minimum(xp.maximum(n, 0 * n), 0 * n + (count - 1))
        for n, count in zip(number, detector, strict=True)
    ]
    real = [(n >= 0) & (n < count) for n, count in zip(number, detector, strict=True)]
    offsets = xp.take(offsets, held[1], axis=2)
    if offsets.shape[1] > 1:
        offsets = xp.take(offsets, held[0], axis=1)
    return offsets, xp.take(heights, held[0], axis=0), real[0], real[1]


def windowed(
    setup: Setup,
    frames: tuple[Array, ...],
    offsets: Array,
    heights: Array,
    window: Array,
    rows: Array | None = None,
    cols: Array | None = None,
) -> Scan:
    """The arrays of a part of a scan, in the namespace of the frames.

    Parameters
    ----------
    setup
        Sizes.
    frames
        Source or direction, centre, u[, v] of the part's views, `(views, dims)`.
    offsets, heights
        Of the part's cells.
    window
        First and last real view, first row and column, first plane of each axis: whole numbers.
    rows, cols
        Which of the part's rows and columns exist; found from the window if left out.
    """
    xp = arrays.namespace(frames[0])
    window = arrays.convert(window, frames[0])
    if rows is None or cols is None:
        whole = xp.zeros_like(frames[0][:1, :1])
        shape = (1, *setup.detector)[-2:]
        spread = xp.broadcast_to(whole, (1, shape[1])), xp.broadcast_to(whole[:, 0], (shape[0],))
        _, _, rows, cols = part_of(setup, spread[0][None, ..., None], spread[1], window)
    view = arange(setup.cells[0], window)
    planes = xp.flip(window[2 + len(setup.detector) :])
    counts = arrays.convert(np.asarray(setup.grid[::-1], np.int32), window)
    sizes = arrays.convert(np.asarray(setup.voxels[::-1], np.int32), window)
    lines = lines_of(
        setup.parallel, frames, offsets, setup.spacing[::-1], setup.center[::-1], setup.grid[::-1]
    )
    return Scan(
        lines,
        heights,
        Box(planes, xp.maximum(planes, 0 * planes), xp.minimum(planes + sizes, counts)),
        (view >= window[0]) & (view < window[1]),
        rows,
        cols,
    )


def forward(setup: Setup, scan: Scan, x: Array) -> Array:
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


def _adjoint(setup: Setup, scan: Scan, y: Array) -> Array:
    """The transpose of `forward`."""
    return scattered(setup, scan, y, lambda number, pieces: pieces.weights)


def squares(setup: Setup, scan: Scan, y: Array) -> Array:
    """`sum_i y_i a_ij^2`: the adjoint with squared weights."""
    return scattered(setup, scan, y, lambda number, pieces: pieces.weights * pieces.weights)


def run(function: Callable[..., Any], setup: Setup, like: Array, *operands: Any) -> Any:
    """`function(setup, *operands)`; in JAX compiled, once for each setup and shape."""
    if arrays.is_jax(like):
        return _jitted(function, setup)(*operands)
    return function(setup, *operands)


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


def rays_at(setup: Setup, scan: Scan, number: Any) -> tuple[Rays, Array]:
    """The rays of one batch, and which of them exist."""
    xp = arrays.namespace(scan.heights)
    view, row, col, inside = numbered(setup, number, scan.box.first)
    rays = rays_of(scan.lines, scan.heights, view, row, col, setup.spacing[::-1])
    for mask, place in ((scan.real, view), (scan.real_rows, row), (scan.real_cols, col)):
        inside = inside & xp.take(mask, place, axis=0)
    return rays, inside


def over_tiles(
    setup: Setup,
    box: Box,
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

    def visited(part: Box, state: Any) -> Any:
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
    scan: Scan,
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


def _scan(projector: Projector, parts: Sequence[Array], window: Array) -> Scan:
    frames, offsets, heights = parts
    split = tuple(frames[:, k, :] for k in range(projector.grid.dims + 1))
    setup = setup_of(projector, frames)
    offsets, heights, *real = part_of(setup, offsets, heights, window)
    return windowed(setup, split, offsets, heights, window, *real)


def _wide(part: Array, dtype: np.dtype, like: Array) -> Array:
    if arrays.is_numpy(part):
        return arrays.convert(part.astype(dtype, copy=False), like)
    return arrays.convert(arrays.cast(part, dtype), like)


def _flattened(scan: Scan) -> tuple[list[Array], Callable[[list[Array]], Scan]]:
    n = len(Lines._fields)
    flat = [*scan.lines, scan.heights, *scan.box, *scan[3:]]

    def build(parts: list[Array]) -> Scan:
        box = Box(*parts[n + 1 : n + 4])
        return Scan(Lines(*parts[:n]), parts[n], box, *parts[n + 4 :])

    return flat, build


@functools.cache
def _jitted(function: Callable[..., Any], setup: Setup) -> Callable[..., Any]:
    compiled: Callable[..., Any] = sys.modules["jax"].jit(functools.partial(function, setup))
    return compiled
