"""What array code knows of a scan: sizes, and the arrays of a part of it.

The loops over its rays are in `geometries/kernels/portable.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from geometries.kernels.portable_memory import division
from geometries.kernels.portable_rays import CellBox, Lines, arange, lines_of
from linops import arrays
from linops.arrays import Array
from linops.transforms.pytree import decode

if TYPE_CHECKING:
    from geometries.detector import Detector
    from geometries.projector import Projector
    from geometries.trajectory import Trajectory

__all__ = [
    "ScanArrays",
    "Setup",
    "cell_offsets",
    "part_of",
    "scan_of",
    "setup_of",
    "surface_offsets",
    "windowed",
]


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


class ScanArrays(NamedTuple):
    """What of a projection is an array."""

    lines: Lines
    heights: Array  # (rows,): of the part's rows along v
    box: CellBox
    real: Array  # (views,), (rows,), (cols,): which of them exist
    real_rows: Array
    real_cols: Array


def setup_of(projector: Projector, like: Array, slopes: bool = False) -> Setup:
    """The static part of a projector; tiles and batches fit the device of `like`.

    `slopes`: whether weights are differentiated in the geometry.
    """
    grid, voxels = projector.grid, projector.domain.shape
    rays = projector.codomain.size
    return Setup(
        projector._seen.kind == "parallel",
        projector.model,
        grid.shape,
        grid.spacing,
        grid.center,
        projector._seen.detector.shape,
        voxels,
        projector.codomain.shape,
        *division(rays, projector.model, voxels, like, projector.memory, slopes),
    )


def scan_of(projector: Projector, like: Array) -> ScanArrays:
    """The arrays of a projector's scan in the namespace and on the device of `like`."""
    cells = projector.offsets, projector.heights
    if cells[0] is None and "host" not in projector.__dict__.get("_cache_scan", {}):
        cells = _host_offsets(projector)
    parts = (projector.frames, *cells, projector.window)
    dtype = np.dtype("float64" if arrays.has_float64(like) else "float32")
    if not all(part is None or arrays.is_numpy(part) for part in parts):
        real = [_wide(decode(part), dtype, like) for part in parts[:3]]
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
    """Offsets of the cells of a scan from the center along u, v and n, and heights of the rows.

    `(1, 1, cols, 3)` and `(rows,)`, a row's height not being in its offsets; of a surface
    `(views, rows, cols, 3)` and zeros.
    """
    detector = trajectory.detector
    if detector.surface is not None:
        offsets = surface_offsets(detector, trajectory.views)
        return offsets, np.zeros((1, *detector.shape)[-2])
    return _plain_offsets(detector)


def _plain_offsets(detector: Detector) -> tuple[Array, Array]:
    along, depth = arrays.unify(*detector.column_offsets())
    xp = arrays.namespace(along)
    offsets = xp.stack([along, xp.zeros_like(along), depth], axis=-1)
    return offsets[None, None, ...], detector.rows()


def surface_offsets(detector: Detector, views: int) -> Array:
    """Offsets of the cells of a surface along u, v and n, `(views, rows, cols, 3)`."""
    assert detector.surface is not None
    return _with_rows(detector.surface.offsets(detector, range(views), views))


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
) -> ScanArrays:
    """The arrays of a part of a scan, in the namespace of the frames.

    Parameters
    ----------
    setup
        Sizes.
    frames
        Source or direction, center, u[, v] of the part's views, `(views, dims)`.
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
    return ScanArrays(
        lines,
        heights,
        CellBox(planes, xp.maximum(planes, 0 * planes), xp.minimum(planes + sizes, counts)),
        (view >= window[0]) & (view < window[1]),
        rows,
        cols,
    )


def _host_offsets(projector: Projector) -> tuple[np.ndarray, np.ndarray]:
    detector = projector._seen.detector.host
    if detector.surface is None:
        return _plain_offsets(detector)
    frames = np.asarray(projector.frames)
    count = int(frames[0, -1, 1]) if len(frames) else 0
    offsets = detector.surface.on_host(detector, frames[:, -1, 0].astype(np.int64), count)
    return _with_rows(offsets), np.zeros((1, *detector.shape)[-2])


def _with_rows(offsets: Array) -> Array:
    return offsets[:, None, ...] if offsets.ndim == 3 else offsets


def _scan(projector: Projector, parts: Sequence[Array], window: Array) -> ScanArrays:
    frames, offsets, heights = parts
    split = tuple(frames[:, k, :] for k in range(projector.grid.dims + 1))
    setup = setup_of(projector, frames)
    offsets, heights, *real = part_of(setup, offsets, heights, window)
    return windowed(setup, split, offsets, heights, window, *real)


def _wide(part: Array, dtype: np.dtype, like: Array) -> Array:
    if arrays.is_numpy(part):
        return arrays.convert(part.astype(dtype, copy=False), like)
    return arrays.convert(arrays.cast(part, dtype), like)


def _flattened(scan: ScanArrays) -> tuple[list[Array], Callable[[list[Array]], ScanArrays]]:
    n = len(Lines._fields)
    flat = [*scan.lines, scan.heights, *scan.box, *scan[3:]]

    def build(parts: list[Array]) -> ScanArrays:
        box = CellBox(*parts[n + 1 : n + 4])
        return ScanArrays(Lines(*parts[:n]), parts[n], box, *parts[n + 4 :])

    return flat, build
