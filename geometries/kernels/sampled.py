"""Exact 3-D Siddon for detectors of any shape: a ray for each cell's place, walked by itself.

For scans whose detector is a surface: positions of cells come from `scan.points`, for a bounded
block of views at a time, and everything else is that of `oblique`: weights from `rays3d`, float64
sums, the forward task owns detector cells, the adjoint task a box of voxels. Nothing is known of
where a cell's neighbours stand, so an adjoint box looks at every ray; those of a detector column
that all pass it are left out together. Subsets of voxels have no kernel here.

Arrays and their places as in `oblique`. The sums of an adjoint are closed after each block of
views, whose size follows from the detector alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from geometries.kernels.rays3d import ray, walk
from geometries.kernels.volume_scan import VolumeScan
from geometries.kernels.volume_tiles import (
    boxes,
    check,
    detector_tiles,
    real_box,
    view_numbers,
)
from geometries.surfaces import view_blocks
from linops.compiled import pool

__all__ = ["adjoint", "forward", "gram_diagonal"]

Real = NDArray[np.floating]
_compiled = njit(nogil=True, cache=True, error_model="numpy")
_TILE = (64, 64, 128)  # y, x, z: 4 MiB of float64 sums


def forward(
    scan: VolumeScan,
    volume: Real,
    out: Real,
    *,
    first_cell: tuple[int, int, int] = (0, 0, 0),
    first_row: int = 0,
    first_column: int = 0,
    views: ArrayLike | None = None,
    precision: str = "fast",
) -> None:
    """Line integrals of `volume` (B, ly, lx, lz) into `out` (B, views, columns, rows)."""
    numbers = view_numbers(scan, views)
    check("volume", volume, (None, None, None, None))
    batch, ly, lx, lz = volume.shape
    check("out", out, (batch, numbers.size, None, None))
    origin, box = first_cell[::-1], real_box(scan, first_cell, (lz, ly, lx))
    flat = volume.reshape(batch, ly * lx * lz)
    for start, stop in view_blocks(scan.shape, numbers.size):
        block = (scan.kind == "cone", *_rays_of(scan, numbers[start:stop]), start)
        tiles = detector_tiles(stop - start, out.shape[2], pool.workers())

        def task(i: int, block: Any = block, tiles: Any = tiles) -> None:
            _forward(*block, flat, (ly, lx, lz), origin, box, out, first_column, first_row,
                     tiles[i])  # fmt: skip

        pool.run(task, len(tiles))


def adjoint(
    scan: VolumeScan,
    projections: Real,
    out: Real,
    *,
    first_cell: tuple[int, int, int] = (0, 0, 0),
    first_row: int = 0,
    first_column: int = 0,
    views: ArrayLike | None = None,
    precision: str = "fast",
) -> None:
    """The transpose of `forward`: `projections` (B, views, columns, rows) to `out` (B, y, x, z)."""
    numbers = view_numbers(scan, views)
    check("projections", projections, (None, numbers.size, None, None))
    check("out", out, (projections.shape[0], None, None, None))
    _back(scan, numbers, projections, out, first_cell, (first_column, first_row), squared=False)


def gram_diagonal(scan: VolumeScan, weights: Real | None, out: Real) -> None:
    """Sum over rays of w a^2 for each cell, `out` (B, y, x, z); None stands for ones."""
    rows, cols = scan.shape
    numbers = view_numbers(scan, None)
    if weights is None:
        weights = np.ones((out.shape[0], numbers.size, cols, rows), out.dtype)
    check("weights", weights, (out.shape[0], numbers.size, cols, rows))
    _back(scan, numbers, weights, out, (0, 0, 0), (0, 0), squared=True)


def _back(
    scan: VolumeScan,
    numbers: NDArray[np.int64],
    projections: Real,
    out: Real,
    first_cell: tuple[int, int, int],
    first: tuple[int, int],
    *,
    squared: bool,
) -> None:
    batch, ly, lx, lz = out.shape
    origin, box = first_cell[::-1], real_box(scan, first_cell, (lz, ly, lx))
    tiles = boxes(batch, ly, lx, lz, (_share(ly, _TILE[0]), *_TILE[1:]))
    out[...] = 0
    for start, stop in view_blocks(scan.shape, numbers.size):
        block = (scan.kind == "cone", *_rays_of(scan, numbers[start:stop]), start)

        def task(i: int, block: Any = block) -> None:
            _adjoint(*block, projections, first, out, origin, box, tiles[i], squared)

        pool.run(task, len(tiles))


def _share(planes: int, most: int) -> int:
    """Planes of y a tile, so that every worker has some."""
    return max(1, min(most, -(-planes // (2 * pool.workers()))))


def _rays_of(scan: VolumeScan, numbers: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
    """Sources or directions (n, 3), cells (n, cols, rows, 3), real views, spacing, counts.

    Points are relative to the grid's centre; spacing and counts are in (x, y, z) order.
    """
    real = (numbers >= 0) & (numbers < scan.views)
    local = np.where(real, numbers, 0)
    middle = np.asarray(scan.center[::-1], np.float64)
    points = scan.places(numbers)
    ends = scan.origins[local] - middle if scan.kind == "cone" else scan.directions[local]
    spacing = np.asarray(scan.spacing[::-1], np.float64)
    counts = np.asarray(scan.grid_shape[::-1], np.int64)
    return np.ascontiguousarray(ends), points, real, spacing, counts


@_compiled
def _forward(cone, ends, points, real, spacing, counts, start, volume, local, origin, box, out,
             first_column, first_row, tile):  # fmt: skip
    batch, lr = out.shape[0], out.shape[3]
    cols, rows = points.shape[1], points.shape[2]
    room = max(1, box[1] - box[0] + box[3] - box[2] + box[5] - box[4])
    cells = np.empty(room, np.int64)
    pieces = np.empty(room, np.float64)
    frame = np.zeros((1, 24))
    for view in range(tile[0], tile[1]):
        for c in range(tile[2], tile[3]):
            j = c + first_column
            for r in range(lr):
                i = r + first_row
                count = 0
                if real[view] and 0 <= j < cols and 0 <= i < rows:
                    for a in range(3):
                        frame[0, a] = ends[view, a]
                        frame[0, 3 + a] = points[view, j, i, a]
                    line = ray(cone, frame, 0, 0.0, 0.0, 0.0, spacing, counts)
                    count = walk(line, box[0], box[1], box[2], box[3], box[4], box[5],
                                 origin[0], origin[1], origin[2], local[0], local[1], local[2],
                                 cells, pieces)  # fmt: skip
                for b in range(batch):
                    total = 0.0
                    for m in range(count):
                        total += pieces[m] * volume[b, cells[m]]
                    out[b, start + view, c, r] = total


@_compiled
def _adjoint(cone, ends, points, real, spacing, counts, start, projections, first, out, origin,
             box, tile, squared):  # fmt: skip
    b, y0, y1, x0, x1, z0, z1 = tile
    ny, nx, nz = y1 - y0, x1 - x0, z1 - z0
    fx, fy, fz = x0 + origin[0], y0 + origin[1], z0 + origin[2]
    bx0, bx1 = max(fx, box[0]), min(fx + nx, box[1])
    by0, by1 = max(fy, box[2]), min(fy + ny, box[3])
    bz0, bz1 = max(fz, box[4]), min(fz + nz, box[5])
    if not (bx0 < bx1 and by0 < by1 and bz0 < bz1):
        return
    low = np.array([float(bx0), float(by0), float(bz0)])
    high = np.array([float(bx1), float(by1), float(bz1)])
    total = np.zeros(ny * nx * nz, np.float64)
    cols, rows = points.shape[1], points.shape[2]
    extent_c, extent_r = projections.shape[2], projections.shape[3]
    cells = np.empty(nx + ny + nz, np.int64)
    pieces = np.empty(nx + ny + nz, np.float64)
    frame = np.zeros((1, 24))
    for view in range(points.shape[0]):
        if not real[view]:
            continue
        for j in range(max(0, first[0]), min(cols, first[0] + extent_c)):
            if cone and _passes(ends, points, view, j, spacing, counts, low, high):
                continue
            for i in range(max(0, first[1]), min(rows, first[1] + extent_r)):
                for a in range(3):
                    frame[0, a] = ends[view, a]
                    frame[0, 3 + a] = points[view, j, i, a]
                line = ray(cone, frame, 0, 0.0, 0.0, 0.0, spacing, counts)
                count = walk(line, bx0, bx1, by0, by1, bz0, bz1, fx, fy, fz, ny, nx, nz,
                             cells, pieces)  # fmt: skip
                value = float(projections[b, start + view, j - first[0], i - first[1]])
                for m in range(count):
                    weight = pieces[m]
                    if squared:
                        weight *= weight
                    total[cells[m]] += weight * value
    m = 0
    for y in range(y0, y1):
        for x in range(x0, x1):
            for z in range(z0, z1):
                out[b, y, x, z] += total[m]
                m += 1


@_compiled
def _passes(ends, points, view, j, spacing, counts, low, high):
    """Whether all segments of a detector column lie beside a box, on one side of it."""
    for a in range(3):
        least = ends[view, a]
        most = least
        for i in range(points.shape[2]):
            least = min(least, points[view, j, i, a])
            most = max(most, points[view, j, i, a])
        slack = 1e-6 * (abs(least) + abs(most)) / spacing[a]
        if least / spacing[a] + 0.5 * counts[a] - slack > high[a]:
            return True
        if most / spacing[a] + 0.5 * counts[a] + slack < low[a]:
            return True
    return False
