"""Exact Siddon projection of images by parallel and fan beams: NumPy arrays in and out.

The entry points of the planar kernels. They cut work into tiles for the pool, pad and
transpose, and leave weights to `planar_rays` and loops to `planar_exact` and `planar_fast`.
They trust their arguments: shapes, dtypes and frames are checked by the projector.

Positions always follow from the whole grid and the whole detector, so blocks and tiles change
no weight. Every sum has one owner and one order: results do not depend on threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from linops.compiled import pool

from . import planar_exact as exact

__all__ = ["PlanarScan", "adjoint", "forward", "gram_diagonal"]

Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class PlanarScan:
    """Frames, detector and grid of a planar scan, float64, world lengths.

    Points are (x, y), the grid's tuples (y, x). The whole detector and the whole grid stand
    here, whatever block is computed.
    """

    kind: Literal["parallel", "fan"]
    origins: Array  # (V, 2): sources of a fan
    directions: Array  # (V, 2): unit directions of a parallel beam
    centers: Array  # (V, 2)
    u: Array  # (V, 2)
    columns: int
    pitch: float
    offset: float
    points: Array | None  # (V, columns, 2): detector cells of a curved detector
    grid_shape: Pair
    spacing: tuple[float, float]
    center: tuple[float, float]
    _frames: Array = field(init=False, repr=False)
    _points: Array = field(init=False, repr=False)
    _lengths: Array = field(init=False, repr=False)
    _shape: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        middle = np.array(self.center[::-1], np.float64)
        views = len(self.centers)
        frames = np.empty((views, 6))
        frames[:, :2] = self.directions if self.parallel else self.origins - middle
        frames[:, 2:4] = self.centers - middle
        frames[:, 4:] = self.u
        points = np.zeros((1, 0, 2)) if self.points is None else self.points - middle
        dy, dx = self.spacing
        lengths = (dx, dy, self.pitch, self.offset, (self.columns - 1) / 2)
        object.__setattr__(self, "_frames", frames)
        object.__setattr__(self, "_points", np.ascontiguousarray(points, np.float64))
        object.__setattr__(self, "_lengths", np.array(lengths, np.float64))
        object.__setattr__(self, "_shape", np.array(self.grid_shape[::-1], np.int64))

    @property
    def parallel(self) -> bool:
        """Whether rays are infinite lines."""
        return self.kind == "parallel"


def forward(
    scan: PlanarScan,
    image: Array,
    out: Array,
    *,
    first_cell: Pair = (0, 0),
    first_column: int = 0,
    views: Array | None = None,
    precision: str = "fast",
    real_cells: tuple[Pair, Pair] | None = None,
    real_columns: Pair | None = None,
) -> None:
    """Line integrals of the cells given, along the rays asked for.

    Parameters
    ----------
    scan
        The whole scan.
    image
        (B, ly, lx), contiguous, float32 or float64: the cells from `first_cell` (y, x) on. Cells
        outside the grid, or outside `real_cells`, are never read.
    out
        (B, v, lc), same dtype, overwritten: the columns from `first_column` on of the views.
        Views, columns that do not exist are written as zeros.
    views
        Positions of the v views in the scan, all by default; -1 stands for none.
    real_cells
        ((y0, y1), (x0, x1)), counted in the whole grid: cells that exist.
    real_columns
        (start, stop), counted in the whole detector: columns that exist.
    """
    job = _Job(scan, image.shape[1:], out.shape[2], first_cell, first_column, views,
               real_cells, real_columns)
    out[...] = 0
    if job.empty or image.shape[0] == 0:
        return
    rows, cols = _padded(image[:, job.ys, job.xs])
    target = out[:, :, job.ks]
    tiles = _cut(len(job.views), 4 * pool.workers())

    def task(i: int) -> None:
        exact.forward_views(
            scan.parallel, scan._frames, scan._points, job.views, tiles[i], tiles[i + 1],
            scan._lengths, scan._shape, job.box, job.columns, rows, cols, target,
        )

    pool.run(task, len(tiles) - 1)


def adjoint(
    scan: PlanarScan,
    sinogram: Array,
    out: Array,
    *,
    first_cell: Pair = (0, 0),
    first_column: int = 0,
    views: Array | None = None,
    precision: str = "fast",
    real_cells: tuple[Pair, Pair] | None = None,
    real_columns: Pair | None = None,
) -> None:
    """The transpose of `forward`, same arguments: `sinogram` (B, v, lc) to `out` (B, ly, lx)."""
    job = _Job(scan, out.shape[1:], sinogram.shape[2], first_cell, first_column, views,
               real_cells, real_columns)
    out[...] = 0
    if job.empty or out.shape[0] == 0:
        return
    target = out[:, job.ys, job.xs]
    _gather_exact(scan, job, sinogram[:, :, job.ks], target, squared=False)


def gram_diagonal(scan: PlanarScan, weights: Array | None, out: Array) -> None:
    """Diagonal of A.H W A: `out` (ny, nx) = sum over rays of w * length ** 2.

    `weights` (V, columns), one by default. Weights of cells are those of "float64".
    """
    job = _Job(scan, out.shape, scan.columns, (0, 0), 0, None, None, None)
    out[...] = 0
    if job.empty:
        return
    if weights is None:
        weights = np.broadcast_to(np.ones((), out.dtype), (len(scan.centers), scan.columns))
    _gather_exact(scan, job, np.asarray(weights)[None], out[None], squared=True)


class _Job:
    """What of a call is real: views, cells and columns, as slices and in whole-scan counts."""

    def __init__(
        self, scan: PlanarScan, cells: tuple[int, ...], columns: int, first_cell: Pair,
        first_column: int, views: Array | None, real_cells: tuple[Pair, Pair] | None,
        real_columns: Pair | None,
    ) -> None:
        ny, nx = scan.grid_shape
        (y0, y1), (x0, x1) = real_cells or ((0, ny), (0, nx))
        k0, k1 = real_columns or (0, scan.columns)
        y0, y1 = _meet(first_cell[0], cells[0], max(y0, 0), min(y1, ny))
        x0, x1 = _meet(first_cell[1], cells[1], max(x0, 0), min(x1, nx))
        k0, k1 = _meet(first_column, columns, max(k0, 0), min(k1, scan.columns))
        self.ys = slice(y0 - first_cell[0], y1 - first_cell[0])
        self.xs = slice(x0 - first_cell[1], x1 - first_cell[1])
        self.ks = slice(k0 - first_column, k1 - first_column)
        self.box = np.array((x0, x1, y0, y1), np.int64)
        self.columns = np.array((k0, k1 - k0), np.int64)
        if views is None:
            views = np.arange(len(scan.centers))
        self.views = np.ascontiguousarray(views, np.int64)
        self.empty = y0 >= y1 or x0 >= x1 or k0 >= k1 or not np.any(self.views >= 0)


def _meet(first: int, count: int, start: int, stop: int) -> Pair:
    low = max(first, start)
    return low, max(low, min(first + count, stop))


def _padded(cells: Array) -> tuple[Array, Array]:
    """The cells with PAD zeros at both ends of rows, and the same of their transpose."""
    batch, ny, nx = cells.shape
    pad = exact.PAD
    rows = np.zeros((batch, ny, nx + 2 * pad), cells.dtype)
    cols = np.zeros((batch, nx, ny + 2 * pad), cells.dtype)
    rows[:, :, pad:-pad] = cells
    cols[:, :, pad:-pad] = cells.transpose(0, 2, 1)
    return rows, cols


def _cut(count: int, parts: int) -> list[int]:
    """Bounds of at most `parts` nearly equal pieces."""
    parts = max(1, min(count, parts))
    return [count * i // parts for i in range(parts + 1)]


# Bytes of ray tables held at a time by an adjoint. Sums do not depend on it: accumulators stay.
_TABLE = 1 << 21


def _gather_exact(
    scan: PlanarScan, job: _Job, sinogram: Array, out: Array, *, squared: bool
) -> None:
    """Adjoint of the exact weights (squared, on demand) into `out` (B, ly, lx), overwritten."""
    batch, ny, nx = out.shape
    pad = exact.PAD
    rows = np.zeros((batch, ny, nx + 2 * pad))
    cols = np.zeros((batch, nx, ny + 2 * pad))
    count = int(job.columns[1])
    block = max(1, _TABLE // (60 * count))
    block = min(block, len(job.views))
    rays = np.empty((block, 6, count))
    ranges = np.empty((block, 3, count), np.int32)
    bounds = _cut(ny, max(4 * pool.workers(), ny // 8))
    sides = _cut(nx, max(4 * pool.workers(), nx // 8))
    tiles = [(0, a, b, rows) for a, b in zip(bounds, bounds[1:], strict=False)]
    tiles += [(1, a, b, cols) for a, b in zip(sides, sides[1:], strict=False)]
    for w in range(0, len(job.views), block):
        views = job.views[w : w + block]
        part = sinogram[:, w : w + block]
        pieces = _cut(len(views), 4 * pool.workers())

        def tabulate(i: int, views: Array = views, pieces: list[int] = pieces) -> None:
            exact.tabulate_views(
                scan.parallel, scan._frames, scan._points, views, pieces[i], pieces[i + 1],
                scan._lengths, scan._shape, job.box, job.columns, rays, ranges,
            )

        def scatter(i: int, part: Array = part) -> None:
            axis, begin, end, image = tiles[i]
            exact.scatter_slabs(
                axis, begin, end, rays[: part.shape[1]], ranges[: part.shape[1]], scan._shape,
                job.box, part, squared, image,
            )

        pool.run(tabulate, len(pieces) - 1)
        pool.run(scatter, len(tiles))
    np.add(rows[:, :, pad:-pad], cols[:, :, pad:-pad].transpose(0, 2, 1), out=out,
           casting="same_kind")
