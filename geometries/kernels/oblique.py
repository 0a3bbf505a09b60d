"""Exact 3-D Siddon for any frames: every ray is walked by itself, cell after cell.

The general path, right for any orientation of source, detector and axes; `columns` and `aligned`
are faster where their conditions hold. The forward task owns detector cells and gathers along
each ray; the adjoint task owns a box of voxels and walks, in one fixed order, the rays that can
meet it. Both take their weights from `rays3d.walk`, in float64, and sum in float64, for every
precision.

Arrays: volumes (batch, y, x, z), projections (batch, view, column, row), C-contiguous, float32 or
float64. `first_cell` (z, y, x), `first_row`, `first_column` place local arrays in the whole grid
and detector; planes outside are never read, and written as zeros. `views` selects views of the
scan.

Scratch a thread: 128 KiB for a box of the adjoint, and 16 bytes a cell along each axis.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from geometries.kernels.rays3d import columns_of_box, ray, rows_of_box, walk
from geometries.kernels.volume_scan import VolumeScan, pack
from geometries.kernels.volume_tiles import (
    blocks,
    boxes,
    check,
    detector_tiles,
    overlap,
    real_box,
    view_numbers,
)
from linops.compiled import pool

__all__ = ["adjoint", "adjoint_columns", "forward", "forward_columns", "gram_diagonal"]

Real = NDArray[np.floating]
_compiled = njit(nogil=True, cache=True, error_model="numpy")
_TILE = (16, 16, 64)
_COLUMNS = 64


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
    """Line integrals of `volume` (B, ly, lx, lz) into `out` (B, views, columns, rows).

    `precision` changes nothing here but the dtype of the arrays that the caller chose.
    """
    numbers = view_numbers(scan, views)
    check("volume", volume, (None, None, None, None))
    batch, ly, lx, lz = volume.shape
    check("out", out, (batch, numbers.size, None, None))
    packed, origin = pack(scan), _origin(first_cell)
    box = real_box(scan, first_cell, (lz, ly, lx))
    flat = volume.reshape(batch, ly * lx * lz)
    tiles = detector_tiles(numbers.size, out.shape[2], pool.workers())

    def task(i: int) -> None:
        _forward(*packed, numbers, flat, (ly, lx, lz), origin, box, out, first_column, first_row,
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
    first = (first_column, first_row)
    _back(scan, numbers, projections, out, first_cell, first, squared=False, ones=False)


def gram_diagonal(
    scan: VolumeScan,
    weights: Real | None,
    out: Real,
    *,
    first_cell: tuple[int, int, int] = (0, 0, 0),
    first_row: int = 0,
    first_column: int = 0,
    views: ArrayLike | None = None,
) -> None:
    """Sum over rays of w a^2 for each cell, `out` (B, y, x, z); `weights` as projections, or None.

    None means ones on the whole detector.
    """
    numbers = view_numbers(scan, views)
    ones = weights is None
    if weights is None:
        cols, rows = scan.shape[1], scan.shape[0]
        weights = np.broadcast_to(np.ones(1, out.dtype), (out.shape[0], 1, 1, 1)).copy()
        first = (0, 0)
        extent = (cols, rows)
    else:
        check("weights", weights, (None, numbers.size, None, None))
        first = (first_column, first_row)
        extent = (weights.shape[2], weights.shape[3])
    check("out", out, (weights.shape[0], None, None, None))
    _back(scan, numbers, weights, out, first_cell, first, squared=True, ones=ones, extent=extent)


def forward_columns(
    scan: VolumeScan,
    values: Real,
    index: ArrayLike,
    out: Real,
    *,
    first_slice: int = 0,
    first_row: int = 0,
    first_column: int = 0,
    views: ArrayLike | None = None,
    precision: str = "fast",
) -> None:
    """`forward` of a volume that is zero but for `values` (B, n, lz) at in-plane positions `index`.

    `index` (n,) holds ``iy * nx + ix`` of the whole grid, -1 for inert entries; positions may
    repeat. Costs what the rays through these positions cost.
    """
    numbers = view_numbers(scan, views)
    positions = np.ascontiguousarray(index, dtype=np.int64).reshape(-1)
    check("values", values, (None, positions.size, None))
    check("out", out, (values.shape[0], numbers.size, None, None))
    packed = pack(scan)
    slices = overlap(first_slice, values.shape[2], scan.grid_shape[0])
    tiles = detector_tiles(numbers.size, out.shape[2], pool.workers(), most=_COLUMNS)

    def task(i: int) -> None:
        _forward_columns(*packed, numbers, values, positions, first_slice, slices, out,
                         first_column, first_row, tiles[i])  # fmt: skip

    pool.run(task, len(tiles))


def adjoint_columns(
    scan: VolumeScan,
    projections: Real,
    index: ArrayLike,
    out: Real,
    *,
    first_slice: int = 0,
    first_row: int = 0,
    first_column: int = 0,
    views: ArrayLike | None = None,
    precision: str = "fast",
) -> None:
    """The transpose of `forward_columns`, into `out` (B, n, lz)."""
    numbers = view_numbers(scan, views)
    positions = np.ascontiguousarray(index, dtype=np.int64).reshape(-1)
    check("projections", projections, (None, numbers.size, None, None))
    check("out", out, (projections.shape[0], positions.size, None))
    packed = pack(scan)
    slices = overlap(first_slice, out.shape[2], scan.grid_shape[0])
    tiles = blocks(positions.size, max(1, positions.size // (8 * pool.workers())))

    def task(i: int) -> None:
        _adjoint_columns(*packed, numbers, projections, positions, first_slice, slices, out,
                         first_column, first_row, tiles[i])  # fmt: skip

    pool.run(task, len(tiles))


def _back(
    scan: VolumeScan,
    numbers: NDArray[np.int64],
    projections: Real,
    out: Real,
    first_cell: tuple[int, int, int],
    first: tuple[int, int],
    *,
    squared: bool,
    ones: bool,
    extent: tuple[int, int] | None = None,
) -> None:
    packed, origin = pack(scan), _origin(first_cell)
    batch, ly, lx, lz = out.shape
    box = real_box(scan, first_cell, (lz, ly, lx))
    if extent is None:
        extent = (projections.shape[2], projections.shape[3])
    tiles = boxes(batch, ly, lx, lz, _TILE)

    def task(i: int) -> None:
        _adjoint(*packed, numbers, projections, first, extent, out, origin, box, tiles[i],
                 squared, ones)  # fmt: skip

    pool.run(task, len(tiles))


def _origin(first_cell: tuple[int, int, int]) -> tuple[int, int, int]:
    return first_cell[2], first_cell[1], first_cell[0]


@_compiled
def _forward(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
             numbers, volume, local, origin, box, out, first_column, first_row, tile):  # fmt: skip
    batch, lr = out.shape[0], out.shape[3]
    cols, rows = along.shape[0], heights.shape[0]
    room = max(1, box[1] - box[0] + box[3] - box[2] + box[5] - box[4])
    cells = np.empty(room, np.int64)
    pieces = np.empty(room, np.float64)
    for view in range(tile[0], tile[1]):
        number = numbers[view]
        for c in range(tile[2], tile[3]):
            j = c + first_column
            for r in range(lr):
                i = r + first_row
                count = 0
                if 0 <= number < frames.shape[0] and 0 <= j < cols and 0 <= i < rows:
                    line = ray(
                        cone, frames, number, along[j], normal[j], heights[i], spacing, counts
                    )
                    count = walk(line, box[0], box[1], box[2], box[3], box[4], box[5],
                                 origin[0], origin[1], origin[2], local[0], local[1], local[2],
                                 cells, pieces)  # fmt: skip
                for b in range(batch):
                    total = 0.0
                    for m in range(count):
                        total += pieces[m] * volume[b, cells[m]]
                    out[b, view, c, r] = total


@_compiled
def _adjoint(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
             numbers, projections, first, extent, out, origin, box, tile,
             squared, ones):  # fmt: skip
    b, y0, y1, x0, x1, z0, z1 = tile
    ny, nx, nz = y1 - y0, x1 - x0, z1 - z0
    total = np.zeros(ny * nx * nz, np.float64)
    fx, fy, fz = x0 + origin[0], y0 + origin[1], z0 + origin[2]
    bx0, bx1 = max(fx, box[0]), min(fx + nx, box[1])
    by0, by1 = max(fy, box[2]), min(fy + ny, box[3])
    bz0, bz1 = max(fz, box[4]), min(fz + nz, box[5])
    if bx0 < bx1 and by0 < by1 and bz0 < bz1:
        cols, rows = along.shape[0], heights.shape[0]
        bounds = (float(bx0), float(bx1), float(by0), float(by1), float(bz0), float(bz1))
        cells = np.empty(nx + ny + nz, np.int64)
        pieces = np.empty(nx + ny + nz, np.float64)
        for view in range(numbers.shape[0]):
            number = numbers[view]
            if number < 0 or number >= frames.shape[0]:
                continue
            j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                    counts, bounds)  # fmt: skip
            for j in range(max(j0, first[0]), min(j1, first[0] + extent[0])):
                i0, i1 = rows_of_box(cone, frames, number, along[j], normal[j], sampling, rows,
                                     spacing, counts, bounds)  # fmt: skip
                for i in range(max(i0, first[1]), min(i1, first[1] + extent[1])):
                    line = ray(
                        cone, frames, number, along[j], normal[j], heights[i], spacing, counts
                    )
                    count = walk(line, bx0, bx1, by0, by1, bz0, bz1, fx, fy, fz, ny, nx, nz,
                                 cells, pieces)  # fmt: skip
                    value = 1.0
                    if not ones:
                        value = float(projections[b, view, j - first[0], i - first[1]])
                    for m in range(count):
                        weight = pieces[m]
                        if squared:
                            weight *= weight
                        total[cells[m]] += weight * value
    m = 0
    for y in range(y0, y1):
        for x in range(x0, x1):
            for z in range(z0, z1):
                out[b, y, x, z] = total[m]
                m += 1


@_compiled
def _forward_columns(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
                     numbers, values, positions, first_slice, slices, out, first_column, first_row,
                     tile):  # fmt: skip
    cols, rows = along.shape[0], heights.shape[0]
    lr, lz = out.shape[3], values.shape[2]
    room = max(1, slices[1] - slices[0] + 2)
    cells = np.empty(room, np.int64)
    pieces = np.empty(room, np.float64)
    total = np.empty((tile[3] - tile[2], lr), np.float64)
    for b in range(out.shape[0]):
        for view in range(tile[0], tile[1]):
            number = numbers[view]
            total[:] = 0.0
            for s in range(positions.shape[0]):
                if positions[s] < 0 or number < 0 or number >= frames.shape[0]:
                    continue
                y, x = positions[s] // counts[0], positions[s] % counts[0]
                bounds = (float(x), float(x + 1), float(y), float(y + 1),
                          float(slices[0]), float(slices[1]))  # fmt: skip
                j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols,
                                        spacing, counts, bounds)  # fmt: skip
                for j in range(max(j0, first_column + tile[2]), min(j1, first_column + tile[3])):
                    i0, i1 = rows_of_box(cone, frames, number, along[j], normal[j], sampling, rows,
                                         spacing, counts, bounds)  # fmt: skip
                    for i in range(max(i0, first_row), min(i1, first_row + lr)):
                        line = ray(
                            cone, frames, number, along[j], normal[j], heights[i], spacing, counts
                        )
                        count = walk(line, x, x + 1, y, y + 1, slices[0], slices[1],
                                     x, y, first_slice, 1, 1, lz, cells, pieces)  # fmt: skip
                        for m in range(count):
                            total[j - first_column - tile[2], i - first_row] += (
                                pieces[m] * values[b, s, cells[m]]
                            )
            for c in range(tile[2], tile[3]):
                for r in range(lr):
                    out[b, view, c, r] = total[c - tile[2], r]


@_compiled
def _adjoint_columns(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
                     numbers, projections, positions, first_slice, slices, out, first_column,
                     first_row, tile):  # fmt: skip
    cols, rows = along.shape[0], heights.shape[0]
    lc, lr, lz = projections.shape[2], projections.shape[3], out.shape[2]
    room = max(1, slices[1] - slices[0] + 2)
    cells = np.empty(room, np.int64)
    pieces = np.empty(room, np.float64)
    total = np.empty(lz, np.float64)
    for b in range(out.shape[0]):
        for s in range(tile[0], tile[1]):
            total[:] = 0.0
            for view in range(numbers.shape[0]):
                number = numbers[view]
                if positions[s] < 0 or number < 0 or number >= frames.shape[0]:
                    continue
                y, x = positions[s] // counts[0], positions[s] % counts[0]
                bounds = (float(x), float(x + 1), float(y), float(y + 1),
                          float(slices[0]), float(slices[1]))  # fmt: skip
                j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols,
                                        spacing, counts, bounds)  # fmt: skip
                for j in range(max(j0, first_column), min(j1, first_column + lc)):
                    i0, i1 = rows_of_box(cone, frames, number, along[j], normal[j], sampling, rows,
                                         spacing, counts, bounds)  # fmt: skip
                    for i in range(max(i0, first_row), min(i1, first_row + lr)):
                        line = ray(
                            cone, frames, number, along[j], normal[j], heights[i], spacing, counts
                        )
                        count = walk(line, x, x + 1, y, y + 1, slices[0], slices[1],
                                     x, y, first_slice, 1, 1, lz, cells, pieces)  # fmt: skip
                        value = float(projections[b, view, j - first_column, i - first_row])
                        for m in range(count):
                            total[cells[m]] += pieces[m] * value
            for z in range(lz):
                out[b, s, z] = total[z]
