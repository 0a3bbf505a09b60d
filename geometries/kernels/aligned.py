"""Exact 3-D Siddon for parallel beams whose detector rows coincide with slices.

Row i sees slice i + shift alone, so one walk in the (x, y) plane serves all rows, and with z
fastest in memory the inner loops are contiguous. The forward task owns detector columns; the
adjoint task owns a patch of voxel columns, walks the rays that cross it and sums, for each voxel
column, the detector columns in the order of views. `structure.aligned_shift` says whether a scan
is of this kind; other scans belong to `columns` and `oblique`.

Arrays: volumes (batch, y, x, z), projections (batch, view, column, row), C-contiguous, float32 or
float64. `first_cell` (z, y, x), `first_row`, `first_column` place local arrays in the whole grid
and detector; planes outside are never read, and written as zeros. `views` selects views of the
scan. Weights are set up in float64 and rounded once to the dtype of the data, the same in both
directions, so all precisions run the same code.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from geometries.kernels.rays3d import columns_of_box, plane_ray, plane_walk
from geometries.kernels.structure import aligned_shift
from geometries.kernels.volume_scan import VolumeScan, pack
from geometries.kernels.volume_tiles import (
    blocks,
    check,
    common_rows,
    detector_tiles,
    patches,
    plane_of,
    view_numbers,
)
from linops.compiled import pool
from linops.errors import GeometryError

__all__ = [
    "adjoint",
    "adjoint_columns",
    "forward",
    "forward_columns",
    "gram_diagonal",
]

Real = NDArray[np.floating]
_compiled = njit(nogil=True, cache=True, error_model="numpy")
_PATCH = 16
_LISTED = 8
_COLUMNS = 256


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
    packed = pack(scan)
    plane, origin = plane_of(scan, first_cell, ly, lx)
    common = _common_rows(scan, first_row, out.shape[3], first_cell[0], lz)
    flat = volume.reshape(batch, ly * lx, lz)
    tiles = detector_tiles(numbers.size, out.shape[2], pool.workers())

    def task(i: int) -> None:
        _forward(*packed, numbers, flat, lx, origin, plane, out, first_column, common, tiles[i])

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
    _back(scan, numbers, projections, out, first_cell, first_row, first_column, squared=False)


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
    if weights is None:
        first_row, first_column = 0, 0
        rows, cols = scan.shape
        weights = np.ones((out.shape[0], numbers.size, cols, rows), out.dtype)
    check("weights", weights, (None, numbers.size, None, None))
    check("out", out, (weights.shape[0], None, None, None))
    _back(scan, numbers, weights, out, first_cell, first_row, first_column, squared=True)


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
    common = _common_rows(scan, first_row, out.shape[3], first_slice, values.shape[2])
    tiles = detector_tiles(numbers.size, out.shape[2], pool.workers(), most=_COLUMNS)

    def task(i: int) -> None:
        _forward_columns(*packed, numbers, values, positions, out, first_column, common, tiles[i])

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
    common = _common_rows(scan, first_row, projections.shape[3], first_slice, out.shape[2])
    tiles = blocks(positions.size, -(-positions.size // (4 * pool.workers())))

    def task(i: int) -> None:
        _adjoint_columns(
            *packed, numbers, projections, positions, out, first_column, common, tiles[i]
        )

    pool.run(task, len(tiles))


def _back(
    scan: VolumeScan,
    numbers: NDArray[np.int64],
    projections: Real,
    out: Real,
    first_cell: tuple[int, int, int],
    first_row: int,
    first_column: int,
    *,
    squared: bool,
) -> None:
    batch, ly, lx, lz = out.shape
    packed = pack(scan)
    plane, origin = plane_of(scan, first_cell, ly, lx)
    common = _common_rows(scan, first_row, projections.shape[3], first_cell[0], lz)
    lines = projections.reshape(batch, numbers.size * projections.shape[2], projections.shape[3])
    tiles = patches(ly, lx, _PATCH) if batch else []

    def task(i: int) -> None:
        _adjoint(*packed, numbers, lines, projections.shape[2], first_column, out, origin, plane,
                 common, tiles[i], squared)  # fmt: skip

    pool.run(task, len(tiles))


def _common_rows(
    scan: VolumeScan, first_row: int, local_rows: int, first_slice: int, local_slices: int
) -> tuple[int, int, int]:
    """(first local row, first local slice, count) of the planes that rows and slices share."""
    shift = aligned_shift(scan)
    if shift is None:
        raise GeometryError("the detector's rows are not aligned with slices; use kernel columns")
    return common_rows(scan, shift, first_row, local_rows, first_slice, local_slices)


@_compiled
def _forward(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
             numbers, volume, lx, origin, plane, out, first_column, common, tile):  # fmt: skip
    cols = along.shape[0]
    row, slice_, count = common
    room = max(1, plane[1] - plane[0] + plane[3] - plane[2])
    cells = np.empty(room, np.int64)
    starts = np.empty(room, np.float64)
    stops = np.empty(room, np.float64)
    weights = np.empty(room + 3, out.dtype)
    for view in range(tile[0], tile[1]):
        number = numbers[view]
        for c in range(tile[2], tile[3]):
            j = c + first_column
            met = 0
            if 0 <= number < frames.shape[0] and 0 <= j < cols and count > 0:
                line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
                met = plane_walk(line, plane[0], plane[1], plane[2], plane[3],
                                 origin[0], origin[1], lx, cells, starts, stops)  # fmt: skip
                for m in range(met):
                    weights[m] = (stops[m] - starts[m]) * line[6]
            for b in range(out.shape[0]):
                out[b, view, c, :] = 0
                total = out[b, view, c, row : row + count]
                m = 0
                while m + 4 <= met:
                    w0, w1, w2, w3 = weights[m], weights[m + 1], weights[m + 2], weights[m + 3]
                    p0 = volume[b, cells[m], slice_ : slice_ + count]
                    p1 = volume[b, cells[m + 1], slice_ : slice_ + count]
                    p2 = volume[b, cells[m + 2], slice_ : slice_ + count]
                    p3 = volume[b, cells[m + 3], slice_ : slice_ + count]
                    for k in range(count):
                        total[k] += (w0 * p0[k] + w1 * p1[k]) + (w2 * p2[k] + w3 * p3[k])
                    m += 4
                while m < met:
                    w0 = weights[m]
                    p0 = volume[b, cells[m], slice_ : slice_ + count]
                    for k in range(count):
                        total[k] += w0 * p0[k]
                    m += 1


@_compiled
def _adjoint(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
             numbers, projections, lc, first_column, out, origin, plane, common, tile,
             squared):  # fmt: skip
    y0, y1, x0, x1 = tile
    ny, nx = y1 - y0, x1 - x0
    out[:, y0:y1, x0:x1] = 0
    row, slice_, count = common
    fx, fy = x0 + origin[0], y0 + origin[1]
    bx0, bx1 = max(fx, plane[0]), min(fx + nx, plane[1])
    by0, by1 = max(fy, plane[2]), min(fy + ny, plane[3])
    if bx0 >= bx1 or by0 >= by1 or count == 0:
        return
    cols = along.shape[0]
    bounds = (float(bx0), float(bx1), float(by0), float(by1), 0.0, float(counts[2]))
    cells = np.empty(nx + ny, np.int64)
    starts = np.empty(nx + ny, np.float64)
    stops = np.empty(nx + ny, np.float64)
    listed = np.zeros(ny * nx, np.int64)
    lines = np.empty((ny * nx, _LISTED), np.int64)
    weights = np.empty((ny * nx, _LISTED), out.dtype)
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if number < 0 or number >= frames.shape[0]:
            continue
        j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                counts, bounds)  # fmt: skip
        for j in range(max(j0, first_column), min(j1, first_column + lc)):
            line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
            met = plane_walk(line, bx0, bx1, by0, by1, fx, fy, nx, cells, starts, stops)
            for m in range(met):
                cell = cells[m]
                n = listed[cell]
                weight = (stops[m] - starts[m]) * line[6]
                weights[cell, n] = weight * weight if squared else weight
                lines[cell, n] = view * lc + j - first_column
                listed[cell] = n + 1
                if n + 1 == _LISTED:
                    listed[cell] = 0
                    for b in range(out.shape[0]):
                        total = out[b, y0 + cell // nx, x0 + cell % nx, slice_ : slice_ + count]
                        _add(total, projections, b, row, count, lines, weights, cell, _LISTED)
    for cell in range(ny * nx):
        for b in range(out.shape[0]):
            total = out[b, y0 + cell // nx, x0 + cell % nx, slice_ : slice_ + count]
            _add(total, projections, b, row, count, lines, weights, cell, listed[cell])


@_compiled
def _add(total, projections, b, row, count, lines, weights, cell, listed):
    """Add the listed detector columns to one voxel column."""
    m = 0
    while m + 4 <= listed:
        w0, w1 = weights[cell, m], weights[cell, m + 1]
        w2, w3 = weights[cell, m + 2], weights[cell, m + 3]
        p0 = projections[b, lines[cell, m], row : row + count]
        p1 = projections[b, lines[cell, m + 1], row : row + count]
        p2 = projections[b, lines[cell, m + 2], row : row + count]
        p3 = projections[b, lines[cell, m + 3], row : row + count]
        for k in range(count):
            total[k] += (w0 * p0[k] + w1 * p1[k]) + (w2 * p2[k] + w3 * p3[k])
        m += 4
    while m < listed:
        w0 = weights[cell, m]
        p0 = projections[b, lines[cell, m], row : row + count]
        for k in range(count):
            total[k] += w0 * p0[k]
        m += 1


@_compiled
def _forward_columns(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
                     numbers, values, positions, out, first_column, common, tile):  # fmt: skip
    cols = along.shape[0]
    row, slice_, count = common
    start, stop = first_column + tile[2], first_column + tile[3]
    cells = np.empty(2, np.int64)
    starts = np.empty(2, np.float64)
    stops = np.empty(2, np.float64)
    for view in range(tile[0], tile[1]):
        number = numbers[view]
        out[:, view, tile[2] : tile[3]] = 0
        if number < 0 or number >= frames.shape[0]:
            continue
        for s in range(positions.shape[0]):
            if positions[s] < 0:
                continue
            y, x = positions[s] // counts[0], positions[s] % counts[0]
            bounds = (float(x), float(x + 1), float(y), float(y + 1), 0.0, float(counts[2]))
            j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                    counts, bounds)  # fmt: skip
            for j in range(max(j0, start), min(j1, stop)):
                line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
                if plane_walk(line, x, x + 1, y, y + 1, x, y, 1, cells, starts, stops) == 0:
                    continue
                weight = values.dtype.type((stops[0] - starts[0]) * line[6])
                for b in range(out.shape[0]):
                    total = out[b, view, j - first_column, row : row + count]
                    p = values[b, s, slice_ : slice_ + count]
                    for k in range(count):
                        total[k] += weight * p[k]


@_compiled
def _adjoint_columns(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
                     numbers, projections, positions, out, first_column, common,
                     tile):  # fmt: skip
    cols = along.shape[0]
    row, slice_, count = common
    lc = projections.shape[2]
    cells = np.empty(2, np.int64)
    starts = np.empty(2, np.float64)
    stops = np.empty(2, np.float64)
    out[:, tile[0] : tile[1]] = 0
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if number < 0 or number >= frames.shape[0]:
            continue
        for s in range(tile[0], tile[1]):
            if positions[s] < 0:
                continue
            y, x = positions[s] // counts[0], positions[s] % counts[0]
            bounds = (float(x), float(x + 1), float(y), float(y + 1), 0.0, float(counts[2]))
            j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                    counts, bounds)  # fmt: skip
            for j in range(max(j0, first_column), min(j1, first_column + lc)):
                line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
                if plane_walk(line, x, x + 1, y, y + 1, x, y, 1, cells, starts, stops) == 0:
                    continue
                weight = out.dtype.type((stops[0] - starts[0]) * line[6])
                for b in range(out.shape[0]):
                    total = out[b, s, slice_ : slice_ + count]
                    p = projections[b, view, j - first_column, row : row + count]
                    for k in range(count):
                        total[k] += weight * p[k]
