"""The float64 tiles of `columns`, and the straight lines that its "fast" tiles start from.

All rays of one detector column share the walk through (x, y); per piece of it only the split in z
differs from row to row. Pieces are cut until no row crosses more than one face of slices in a
piece; then a row's piece lies in one or two cells, and the split is one formula, `_split`, of the
row's straight line and the two ends of the piece. Forward and adjoint run the same loop over
rows; forward gathers, the adjoint scatters into a patch of voxel columns that one task owns.
Weights and sums are float64; the data may be float32.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from geometries.kernels.rays3d import columns_of_box, plane_ray, plane_walk

__all__ = [
    "adjoint_subset",
    "adjoint_tile",
    "forward_subset",
    "forward_tile",
    "level_rows",
    "parts_of",
    "reach",
]

_compiled = njit(nogil=True, cache=True, error_model="numpy")


@_compiled
def level_rows(cone, frames, view, along, normal, heights, spacing, counts, line, i0, i1,
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
def reach(level, slope, start, stop, rows, k0, k1):
    """The rows [r0, r1) that can be within slices [k0, k1) between two parameters.

    Heights rise or fall evenly from row to row, so what is left out stands at the ends.
    """
    middle = 0.5 * (start + stop)
    rising = _height(level, slope, rows - 1, middle) >= _height(level, slope, 0, middle)
    first, last = 0, rows
    while first < last:
        r = (first + last) // 2
        one, two = _height(level, slope, r, start), _height(level, slope, r, stop)
        if max(one, two) < k0 if rising else min(one, two) >= k1:
            first = r + 1
        else:
            last = r
    r0, last = first, rows
    while first < last:
        r = (first + last) // 2
        one, two = _height(level, slope, r, start), _height(level, slope, r, stop)
        if min(one, two) >= k1 if rising else max(one, two) < k0:
            last = r
        else:
            first = r + 1
    return r0, first


@_compiled
def _height(level, slope, row, t):
    return level[row] + slope[row] * t


@_compiled
def _gather(total, column, k0, count, level, slope, inverse, start, stop, r0, r1):
    """Add a padded voxel column along one piece of every row."""
    for r in range(r0, r1):
        low, high, below, above = _split(level[r], slope[r], inverse[r], start, stop)
        total[r] += below * column[_place(low, k0, count)] + above * column[_place(high, k0, count)]


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
def parts_of(steepest, length):
    """Into how many parts a piece is cut so that no row crosses two faces in one."""
    return max(1, int(math.ceil(steepest * length / 0.999)))


@_compiled
def forward_tile(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
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
            steepest = level_rows(
                cone,
                frames,
                number,
                along[j],
                normal[j],
                heights,
                spacing,
                counts,
                line,
                i0,
                i1,
                level,
                slope,
                inverse,
                factor,
            )
            total[:] = 0.0
            for m in range(met):
                start, stop = starts[m], stops[m]
                r0, r1 = reach(level, slope, start, stop, n, k0, k0 + count)
                if r0 == r1:
                    continue
                parts = parts_of(steepest, stop - start)
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
def adjoint_tile(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
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
            steepest = level_rows(
                cone,
                frames,
                number,
                along[j],
                normal[j],
                heights,
                spacing,
                counts,
                line,
                i0,
                i1,
                level,
                slope,
                inverse,
                factor,
            )
            for r in range(n):
                values[r] = projections[b, view, j - first_column, i0 - first_row + r]
                if not squared:
                    values[r] *= factor[r]
            for m in range(met):
                start, stop = starts[m], stops[m]
                r0, r1 = reach(level, slope, start, stop, n, k0, k0 + count)
                if r0 == r1:
                    continue
                parts = parts_of(steepest, stop - start)
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
def forward_subset(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
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
                    steepest = level_rows(
                        cone,
                        frames,
                        number,
                        along[j],
                        normal[j],
                        heights,
                        spacing,
                        counts,
                        line,
                        i0,
                        i1,
                        level,
                        slope,
                        inverse,
                        factor,
                    )
                    r0, r1 = reach(level, slope, start, stop, n, k0, k0 + count)
                    parts = parts_of(steepest, stop - start)
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
                level_rows(
                    cone,
                    frames,
                    number,
                    along[j],
                    normal[j],
                    heights,
                    spacing,
                    counts,
                    line,
                    i0,
                    i1,
                    level,
                    slope,
                    inverse,
                    factor,
                )
                for r in range(n):
                    out[b, view, c, i0 - first_row + r] = total[c - tile[2], r] * factor[r]


@_compiled
def adjoint_subset(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
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
                    steepest = level_rows(
                        cone,
                        frames,
                        number,
                        along[j],
                        normal[j],
                        heights,
                        spacing,
                        counts,
                        line,
                        i0,
                        i1,
                        level,
                        slope,
                        inverse,
                        factor,
                    )
                    r0, r1 = reach(level, slope, start, stop, n, k0, k0 + count)
                    for r in range(r0, r1):
                        values[r] = (
                            projections[b, view, j - first_column, i0 - first_row + r] * factor[r]
                        )
                    parts = parts_of(steepest, stop - start)
                    for part in range(parts):
                        one = start + (stop - start) * (part / parts)
                        two = start + (stop - start) * ((part + 1) / parts)
                        if part + 1 == parts:
                            two = stop
                        _scatter(column, values, k0, count, level, slope, inverse, one, two,
                                 r0, r1)  # fmt: skip
            for k in range(count):
                out[b, s, k0 - first_slice + k] = column[k + 1]
