"""Exact 3-D Siddon where detector columns are parallel to z: cone, helical, unaligned parallel.

All rays of one detector column lie in one vertical plane, so they share the walk through (x, y); per
piece of it only the split in z differs from row to row. Pieces are cut until no row crosses more than
one face of slices in a piece; then a row's piece lies in one or two cells, and the split is one
formula, `_split`, of the row's straight line and the two ends of the piece. Forward and adjoint run
the same loop over rows; forward gathers, the adjoint scatters into a patch of voxel columns that
one task owns. `supports` says which scans are of this kind; `oblique` takes the others.

Arrays: volumes (batch, y, x, z), projections (batch, view, column, row), C-contiguous, float32 or
float64. `first_cell` (z, y, x), `first_row`, `first_column` place local arrays in the whole grid and
detector; planes outside are never read, and written as zeros. `views` selects views of the scan.
Weights and sums are float64 for every precision.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from geometries.kernels.rays3d import columns_of_box, plane_ray, plane_walk
from geometries.kernels.volume_scan import VolumeScan, pack
from geometries.kernels.volume_tiles import blocks, check, detector_tiles, overlap, view_numbers
from linops.compiled import pool

__all__ = ["adjoint", "adjoint_columns", "forward", "forward_columns", "gram_diagonal", "supports"]

Real = NDArray[np.floating]
_compiled = njit(nogil=True, cache=True, error_model="numpy")
_PATCH = 8
_COLUMNS = 64


def supports(scan: VolumeScan) -> bool:
    """Whether every detector column is parallel to z and no ray nearly so.

    Wanted: v across z moves no ray by more than 1e-12 of a cell; parallel directions and the way
    from source to pixel have an in-plane part of at least 1e-3 of their length (so rays may be steep,
    u may lean, and v may point down).
    """
    rows, cols = scan.shape
    heights = (np.array([0, rows - 1]) - 0.5 * (rows - 1)) * scan.pitch[0] + scan.offset[0]
    reach = np.abs(scan.v[:, :2]).max() * np.abs(heights).max()
    if reach > 1e-12 * min(scan.spacing[1:]) or not np.all(np.abs(scan.v[:, 2]) > 0.5):
        return False
    if scan.kind == "parallel":
        return bool(np.all(np.hypot(scan.directions[:, 0], scan.directions[:, 1]) >= 1e-3))
    packed = pack(scan)
    u, n = packed.frames[:, 6:9], packed.frames[:, 9:12]
    ways = packed.frames[:, None, 3:6] - packed.frames[:, None, 0:3]
    ways = ways + packed.along[:, None] * u[:, None] + packed.normal[:, None] * n[:, None]
    level = np.hypot(ways[..., 0], ways[..., 1])
    rise = np.abs(ways[..., 2]) + np.abs(packed.heights).max()
    return bool(np.all(level >= 1e-3 * rise) and np.all(level > 0))


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
    plane, origin = _plane(scan, first_cell, ly, lx)
    slices = overlap(first_cell[0], lz, scan.grid_shape[0])
    flat = volume.reshape(batch, ly * lx, lz)
    tiles = detector_tiles(numbers.size, out.shape[2], pool.workers())

    def task(i: int) -> None:
        _forward(*packed, numbers, flat, lx, origin, plane, first_cell[0], slices, out,
                 first_column, first_row, tiles[i])  # fmt: skip

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
    tiles = blocks(positions.size, -(-positions.size // (4 * pool.workers())))

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
    first_row: int,
    first_column: int,
    *,
    squared: bool,
) -> None:
    batch, ly, lx, lz = out.shape
    packed = pack(scan)
    plane, origin = _plane(scan, first_cell, ly, lx)
    slices = overlap(first_cell[0], lz, scan.grid_shape[0])
    tiles = [
        (b, y0, y1, x0, x1)
        for b in range(batch)
        for y0, y1 in blocks(ly, _PATCH)
        for x0, x1 in blocks(lx, _PATCH)
    ]

    def task(i: int) -> None:
        _adjoint(*packed, numbers, projections, first_column, first_row, out, origin, plane,
                 first_cell[0], slices, tiles[i], squared)  # fmt: skip

    pool.run(task, len(tiles))


def _plane(
    scan: VolumeScan, first_cell: tuple[int, int, int], ly: int, lx: int
) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
    """The real cells (x0, x1, y0, y1) of a local plane in the whole grid, and its first (x, y)."""
    return (
        *overlap(first_cell[2], lx, scan.grid_shape[2]),
        *overlap(first_cell[1], ly, scan.grid_shape[1]),
    ), (first_cell[2], first_cell[1])


@_compiled
def _rows(cone, frames, view, along, normal, heights, spacing, counts, line, i0, i1,
          level, slope, inverse, factor):  # fmt: skip
    """The straight lines z(t) = level + slope t of the rows [i0, i1) of a column, in faces.

    Also 1 / |slope| and the physical length of t = 1; returns the steepest of the whole detector.
    """
    start, metre, anchor, rise, fall = line[4], line[6], line[7], line[8], line[9]
    base = frames[view, 2] / spacing[2]
    from_source = cone and anchor == start
    for i in range(i0, i1):
        m = i - i0
        s = rise + fall * heights[i]
        z = base
        if not from_source:
            z = (
                frames[view, 5]
                + along * frames[view, 8]
                + normal * frames[view, 11]
                + heights[i] * frames[view, 14]
            ) / spacing[2]
        level[m] = z - s * anchor + 0.5 * counts[2]
        slope[m] = s
        inverse[m] = 1.0 / abs(s) if s != 0.0 else 0.0
        factor[m] = math.sqrt(metre * metre + (s * spacing[2]) ** 2)
    first, last = rise + fall * heights[0], rise + fall * heights[heights.shape[0] - 1]
    return max(abs(first), abs(last))


@_compiled
def _split(level, slope, inverse, start, stop):
    """(lower cell, upper cell, length in the lower, length in the upper) of a row's piece."""
    one, two = level + slope * start, level + slope * stop
    low, high = math.floor(min(one, two)), math.floor(max(one, two))
    whole = stop - start
    upper = min((max(one, two) - high) * inverse, whole)
    if not high > low:
        upper = 0.0
    return low, high, whole - upper, upper


@_compiled
def _place(face, first, count):
    """The slot of a cell in a padded column: 0 below, 1 to count inside, count + 1 above."""
    return int(min(max(face - first + 1.0, 0.0), count + 1.0))


@_compiled
def _reach(level, slope, start, stop, rows, k0, k1):
    """The rows [r0, r1) that can be within slices [k0, k1) between two parameters.

    Heights rise or fall evenly from row to row, so what is left out stands at the ends.
    """
    r0, r1 = 0, rows
    while r0 < r1 and _outside(level[r0], slope[r0], start, stop, k0, k1):
        r0 += 1
    while r1 > r0 and _outside(level[r1 - 1], slope[r1 - 1], start, stop, k0, k1):
        r1 -= 1
    return r0, r1


@_compiled
def _outside(level, slope, start, stop, k0, k1):
    one, two = level + slope * start, level + slope * stop
    return max(one, two) < k0 or min(one, two) >= k1


@_compiled
def _gather(total, column, k0, count, level, slope, inverse, start, stop, r0, r1):
    """Add a padded voxel column along one piece of every row."""
    for r in range(r0, r1):
        low, high, below, above = _split(level[r], slope[r], inverse[r], start, stop)
        total[r] += (
            below * column[_place(low, k0, count)] + above * column[_place(high, k0, count)]
        )


@_compiled
def _scatter(column, values, k0, count, level, slope, inverse, start, stop, r0, r1):
    """The transpose of `_gather`."""
    for r in range(r0, r1):
        low, high, below, above = _split(level[r], slope[r], inverse[r], start, stop)
        column[_place(low, k0, count)] += below * values[r]
        column[_place(high, k0, count)] += above * values[r]


@_compiled
def _scatter_squares(column, values, factor, k0, count, level, slope, inverse, start, stop,
                     parts, r0, r1):  # fmt: skip
    """Add w a^2, where a is the length of all parts of a piece within a cell.

    A cell that a row meets in two parts gets the square of their sum: the length that earlier
    parts left in the cell at hand is carried along.
    """
    for r in range(r0, r1):
        cell, length = -1, 0.0
        for part in range(parts):
            one = start + (stop - start) * (part / parts)
            two = start + (stop - start) * ((part + 1) / parts) if part + 1 < parts else stop
            low, high, below, above = _split(level[r], slope[r], inverse[r], one, two)
            entered, left = _place(low, k0, count), _place(high, k0, count)
            before, after = below, above
            if slope[r] < 0.0 and high > low:
                entered, left, before, after = left, entered, above, below
            if entered != cell:
                if cell >= 0:
                    column[cell] += values[r] * (length * factor[r]) ** 2
                cell, length = entered, 0.0
            length += before
            if high > low:
                column[cell] += values[r] * (length * factor[r]) ** 2
                cell, length = left, after
        column[cell] += values[r] * (length * factor[r]) ** 2


@_compiled
def _parts(steepest, length):
    """Into how many parts a piece is cut so that no row crosses two faces in one."""
    return max(1, int(math.ceil(steepest * length / 0.999)))


@_compiled
def _forward(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
             numbers, volume, lx, origin, plane, first_slice, slices, out, first_column, first_row,
             tile):  # fmt: skip
    cols, rows = along.shape[0], heights.shape[0]
    lr = out.shape[3]
    i0 = min(max(first_row, 0), rows)
    i1 = max(i0, min(first_row + lr, rows))
    n = i1 - i0
    k0, count = slices[0], slices[1] - slices[0]
    room = max(1, plane[1] - plane[0] + plane[3] - plane[2])
    cells = np.empty(room, np.int64)
    starts = np.empty(room, np.float64)
    stops = np.empty(room, np.float64)
    level = np.empty(n, np.float64)
    slope = np.empty(n, np.float64)
    inverse = np.empty(n, np.float64)
    factor = np.empty(n, np.float64)
    total = np.zeros((out.shape[0], n), np.float64)
    column = np.zeros(count + 2, np.float64)
    for view in range(tile[0], tile[1]):
        number = numbers[view]
        for c in range(tile[2], tile[3]):
            out[:, view, c] = 0
            j = c + first_column
            if number < 0 or number >= frames.shape[0] or j < 0 or j >= cols or n * count == 0:
                continue
            line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
            met = plane_walk(line, plane[0], plane[1], plane[2], plane[3], origin[0], origin[1],
                             lx, cells, starts, stops)  # fmt: skip
            if met == 0:
                continue
            steepest = _rows(cone, frames, number, along[j], normal[j], heights, spacing, counts,
                             line, i0, i1, level, slope, inverse, factor)  # fmt: skip
            total[:] = 0.0
            for m in range(met):
                start, stop = starts[m], stops[m]
                r0, r1 = _reach(level, slope, start, stop, n, k0, k0 + count)
                if r0 == r1:
                    continue
                parts = _parts(steepest, stop - start)
                for b in range(out.shape[0]):
                    for k in range(count):
                        column[k + 1] = volume[b, cells[m], k0 - first_slice + k]
                    for part in range(parts):
                        one = start + (stop - start) * (part / parts)
                        two = start + (stop - start) * ((part + 1) / parts)
                        if part + 1 == parts:
                            two = stop
                        _gather(total[b], column, k0, count, level, slope, inverse, one, two,
                                r0, r1)  # fmt: skip
            for b in range(out.shape[0]):
                for r in range(n):
                    out[b, view, c, i0 - first_row + r] = total[b, r] * factor[r]


@_compiled
def _adjoint(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
             numbers, projections, first_column, first_row, out, origin, plane, first_slice,
             slices, tile, squared):  # fmt: skip
    b, y0, y1, x0, x1 = tile
    ny, nx = y1 - y0, x1 - x0
    cols, rows = along.shape[0], heights.shape[0]
    lc, lr = projections.shape[2], projections.shape[3]
    i0 = min(max(first_row, 0), rows)
    i1 = max(i0, min(first_row + lr, rows))
    n = i1 - i0
    k0, count = slices[0], slices[1] - slices[0]
    fx, fy = x0 + origin[0], y0 + origin[1]
    bx0, bx1 = max(fx, plane[0]), min(fx + nx, plane[1])
    by0, by1 = max(fy, plane[2]), min(fy + ny, plane[3])
    out[b, y0:y1, x0:x1] = 0
    if bx0 >= bx1 or by0 >= by1 or n * count == 0:
        return
    bounds = (float(bx0), float(bx1), float(by0), float(by1), 0.0, float(counts[2]))
    total = np.zeros((ny * nx, count + 2), np.float64)
    cells = np.empty(nx + ny, np.int64)
    starts = np.empty(nx + ny, np.float64)
    stops = np.empty(nx + ny, np.float64)
    level = np.empty(n, np.float64)
    slope = np.empty(n, np.float64)
    inverse = np.empty(n, np.float64)
    factor = np.empty(n, np.float64)
    values = np.empty(n, np.float64)
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if number < 0 or number >= frames.shape[0]:
            continue
        j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                counts, bounds)  # fmt: skip
        for j in range(max(j0, first_column), min(j1, first_column + lc)):
            line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
            met = plane_walk(line, bx0, bx1, by0, by1, fx, fy, nx, cells, starts, stops)
            if met == 0:
                continue
            steepest = _rows(cone, frames, number, along[j], normal[j], heights, spacing, counts,
                             line, i0, i1, level, slope, inverse, factor)  # fmt: skip
            for r in range(n):
                values[r] = projections[b, view, j - first_column, i0 - first_row + r]
                if not squared:
                    values[r] *= factor[r]
            for m in range(met):
                start, stop = starts[m], stops[m]
                r0, r1 = _reach(level, slope, start, stop, n, k0, k0 + count)
                if r0 == r1:
                    continue
                parts = _parts(steepest, stop - start)
                if squared:
                    _scatter_squares(total[cells[m]], values, factor, k0, count, level, slope,
                                     inverse, start, stop, parts, r0, r1)  # fmt: skip
                    continue
                for part in range(parts):
                    one = start + (stop - start) * (part / parts)
                    two = start + (stop - start) * ((part + 1) / parts)
                    if part + 1 == parts:
                        two = stop
                    _scatter(total[cells[m]], values, k0, count, level, slope, inverse, one, two,
                             r0, r1)  # fmt: skip
    for cell in range(ny * nx):
        for k in range(count):
            out[b, y0 + cell // nx, x0 + cell % nx, k0 - first_slice + k] = total[cell, k + 1]


@_compiled
def _forward_columns(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
                     numbers, values, positions, first_slice, slices, out, first_column, first_row,
                     tile):  # fmt: skip
    cols, rows = along.shape[0], heights.shape[0]
    lr = out.shape[3]
    i0 = min(max(first_row, 0), rows)
    i1 = max(i0, min(first_row + lr, rows))
    n = i1 - i0
    k0, count = slices[0], slices[1] - slices[0]
    left, right = first_column + tile[2], first_column + tile[3]
    cells = np.empty(2, np.int64)
    starts = np.empty(2, np.float64)
    stops = np.empty(2, np.float64)
    level = np.empty(n, np.float64)
    slope = np.empty(n, np.float64)
    inverse = np.empty(n, np.float64)
    factor = np.empty(n, np.float64)
    total = np.zeros((tile[3] - tile[2], n), np.float64)
    column = np.zeros(count + 2, np.float64)
    for view in range(tile[0], tile[1]):
        number = numbers[view]
        out[:, view, tile[2] : tile[3]] = 0
        if number < 0 or number >= frames.shape[0] or n * count == 0:
            continue
        for b in range(out.shape[0]):
            total[:] = 0.0
            for s in range(positions.shape[0]):
                if positions[s] < 0:
                    continue
                y, x = positions[s] // counts[0], positions[s] % counts[0]
                bounds = (float(x), float(x + 1), float(y), float(y + 1), 0.0, float(counts[2]))
                j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols,
                                        spacing, counts, bounds)  # fmt: skip
                for k in range(count):
                    column[k + 1] = values[b, s, k0 - first_slice + k]
                for j in range(max(j0, left), min(j1, right)):
                    line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
                    if plane_walk(line, x, x + 1, y, y + 1, x, y, 1, cells, starts, stops) == 0:
                        continue
                    start, stop = starts[0], stops[0]
                    steepest = _rows(cone, frames, number, along[j], normal[j], heights, spacing,
                                     counts, line, i0, i1, level, slope, inverse,
                                     factor)  # fmt: skip
                    r0, r1 = _reach(level, slope, start, stop, n, k0, k0 + count)
                    parts = _parts(steepest, stop - start)
                    for part in range(parts):
                        one = start + (stop - start) * (part / parts)
                        two = start + (stop - start) * ((part + 1) / parts)
                        if part + 1 == parts:
                            two = stop
                        _gather(total[j - left], column, k0, count, level, slope, inverse,
                                one, two, r0, r1)  # fmt: skip
            for c in range(tile[2], tile[3]):
                j = c + first_column
                if j < 0 or j >= cols:
                    continue
                line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
                _rows(cone, frames, number, along[j], normal[j], heights, spacing, counts, line,
                      i0, i1, level, slope, inverse, factor)  # fmt: skip
                for r in range(n):
                    out[b, view, c, i0 - first_row + r] = total[c - tile[2], r] * factor[r]


@_compiled
def _adjoint_columns(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
                     numbers, projections, positions, first_slice, slices, out, first_column,
                     first_row, tile):  # fmt: skip
    cols, rows = along.shape[0], heights.shape[0]
    lc, lr = projections.shape[2], projections.shape[3]
    i0 = min(max(first_row, 0), rows)
    i1 = max(i0, min(first_row + lr, rows))
    n = i1 - i0
    k0, count = slices[0], slices[1] - slices[0]
    cells = np.empty(2, np.int64)
    starts = np.empty(2, np.float64)
    stops = np.empty(2, np.float64)
    level = np.empty(n, np.float64)
    slope = np.empty(n, np.float64)
    inverse = np.empty(n, np.float64)
    factor = np.empty(n, np.float64)
    values = np.empty(n, np.float64)
    column = np.zeros(count + 2, np.float64)
    out[:, tile[0] : tile[1]] = 0
    for b in range(out.shape[0]):
        for s in range(tile[0], tile[1]):
            if positions[s] < 0 or n * count == 0:
                continue
            y, x = positions[s] // counts[0], positions[s] % counts[0]
            bounds = (float(x), float(x + 1), float(y), float(y + 1), 0.0, float(counts[2]))
            column[:] = 0.0
            for view in range(numbers.shape[0]):
                number = numbers[view]
                if number < 0 or number >= frames.shape[0]:
                    continue
                j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols,
                                        spacing, counts, bounds)  # fmt: skip
                for j in range(max(j0, first_column), min(j1, first_column + lc)):
                    line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
                    if plane_walk(line, x, x + 1, y, y + 1, x, y, 1, cells, starts, stops) == 0:
                        continue
                    start, stop = starts[0], stops[0]
                    steepest = _rows(cone, frames, number, along[j], normal[j], heights, spacing,
                                     counts, line, i0, i1, level, slope, inverse,
                                     factor)  # fmt: skip
                    r0, r1 = _reach(level, slope, start, stop, n, k0, k0 + count)
                    for r in range(r0, r1):
                        values[r] = (
                            projections[b, view, j - first_column, i0 - first_row + r] * factor[r]
                        )
                    parts = _parts(steepest, stop - start)
                    for part in range(parts):
                        one = start + (stop - start) * (part / parts)
                        two = start + (stop - start) * ((part + 1) / parts)
                        if part + 1 == parts:
                            two = stop
                        _scatter(column, values, k0, count, level, slope, inverse, one, two,
                                 r0, r1)  # fmt: skip
            for k in range(count):
                out[b, s, k0 - first_slice + k] = column[k + 1]
