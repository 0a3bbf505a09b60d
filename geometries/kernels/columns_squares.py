"""The tile of `columns` for the diagonal of a Gram operator: sums of w a^2, in float64.

A cell that a row meets in two parts of a piece gets the square of their sum, so that the lengths
must be put together first; this is a loop of scalars, over the same lines as everything else.
"""

from __future__ import annotations

import math

import numpy as np

from geometries.kernels.columns_rows import parts_of, rows_met, set_rows
from geometries.kernels.columns_tiles import part_of, real_rows
from geometries.kernels.compiling import compiled
from geometries.kernels.rays3d import columns_of_box, plane_ray, plane_walk

__all__ = ["gram_tile"]


@compiled
def gram_tile(table, part, weights, out, cut, work):
    cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys = table
    numbers, _, _, _, box, origin, _, first, _, _, fresh = part
    b, y0, y1, x0, x1 = cut
    ny, nx = y1 - y0, x1 - x0
    lc = weights.shape[2]
    i0, n = real_rows(first[1], weights.shape[3], heights.shape[0])
    k0, count = box[4], box[5] - box[4]
    fx, fy = x0 + origin[0], y0 + origin[1]
    bx0, bx1 = max(fx, box[0]), min(fx + nx, box[1])
    by0, by1 = max(fy, box[2]), min(fy + ny, box[3])
    if fresh:
        out[b, y0:y1, x0:x1] = 0
    if bx0 >= bx1 or by0 >= by1 or n * count == 0:
        return
    bounds = (float(bx0), float(bx1), float(by0), float(by1), 0.0, float(counts[2]))
    total = np.zeros((ny * nx, count + 2), np.float64)
    cells = np.empty(nx + ny, np.int64)
    starts = np.empty(nx + ny, np.float64)
    stops = np.empty(nx + ny, np.float64)
    level, slope, share, factor = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    lines = np.empty(5)
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if number < 0 or number >= frames.shape[0]:
            continue
        j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, along.shape[0],
                                spacing, counts, bounds)  # fmt: skip
        for j in range(max(j0, first[0]), min(j1, first[0] + lc)):
            line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
            met = plane_walk(line, bx0, bx1, by0, by1, fx, fy, nx, cells, starts, stops)
            if met == 0:
                continue
            rising, _ = set_rows(
                cone, frames, number, along[j], normal[j], heights, spacing, counts, sampling,
                line, 0.5 * (starts[0] + stops[met - 1]), i0, n, k0 - 2, level, slope, share,
                factor, lines)  # fmt: skip
            seen = weights[b, view, j - first[0]]
            for m in range(met):
                r0, r1, _ = rows_met(lines, starts[m], stops[m], n, k0, k0 + count)
                parts = parts_of(lines[4], stops[m] - starts[m])
                for q in range(r0, r1):
                    value = float(seen[i0 - first[1] + (q if rising else n - 1 - q)])
                    _add_squares(total[cells[m]], value, factor[q], k0, count, level[q], slope[q],
                                 share[q], starts[m], stops[m], parts)  # fmt: skip
    for cell in range(ny * nx):
        for k in range(count):
            out[b, y0 + cell // nx, x0 + cell % nx, k0 - origin[2] + k] += total[cell, k + 1]


@compiled
def _add_squares(column, value, factor, k0, count, level, slope, share, start, stop, parts):
    """Add value a^2, where a is the length of all parts of one row's piece within a cell.

    The length that earlier parts left in the cell at hand is carried along.
    """
    cell, length = -1, 0.0
    for part in range(parts):
        one, two = part_of(start, stop, part, parts)
        low, high, below, above = _split(level, slope, share, one, two)
        entered, left = _place(low, k0, count), _place(high, k0, count)
        before, after = below, above
        if slope < 0.0 and high > low:
            entered, left, before, after = left, entered, above, below
        if entered != cell:
            if cell >= 0:
                column[cell] += value * (length * factor) ** 2
            cell, length = entered, 0.0
        length += before
        if high > low:
            column[cell] += value * (length * factor) ** 2
            cell, length = left, after
    column[cell] += value * (length * factor) ** 2


@compiled
def _split(level, slope, share, start, stop):
    """(lower cell, upper cell, length in the lower, length in the upper) of a row's piece."""
    one, two = level + slope * start, level + slope * stop
    low, high = math.floor(min(one, two)), math.floor(max(one, two))
    whole = stop - start
    upper = min((max(one, two) - high) * share, whole)
    if not high > low:
        upper = 0.0
    return low, high, whole - upper, upper


@compiled
def _place(face, first, count):
    """The slot of a cell in a padded column: 0 below, 1 to count inside, count + 1 above."""
    return int(min(max(face - first + 1.0, 0.0), count + 1.0))
