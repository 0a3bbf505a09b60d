"""The tiles of `columns` for a list of in-plane positions, all their slices at once.

The work of one position is one piece of the walk for each detector column that crosses it. What a
column needs beside that, its ray and its table of rows, is made when a position first asks for
it and kept for the next: forward tiles own detector columns and keep all of theirs; adjoint tiles
own positions and keep as many columns as fit `_KEPT` bytes.
"""

from __future__ import annotations

import numpy as np

from geometries.kernels.columns_lanes import BACK, FRONT, march, scatter, split
from geometries.kernels.columns_rows import parts_of, rows_met, set_rows
from geometries.kernels.columns_tiles import (
    all_finite,
    clear,
    empty_tables,
    groups_of,
    part_of,
    real_rows,
    scatter_met,
)
from geometries.kernels.compiling import compiled
from geometries.kernels.rays3d import columns_of_box, plane_ray, plane_walk
from linops.compiled.noalias import load, store

__all__ = ["adjoint_subset", "forward_subset"]

_KEPT = 1 << 20
_ROW = np.int64(1)  # cells in memory a line, where a walk visits a single cell
_VIEWS = 64  # views after which an adjoint clears its sums


@compiled
def forward_subset(table, part, values, out, cut, work):
    cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys = table
    numbers, _, _, positions, box, origin, _, first, _, _, _ = part
    view, begin, end = cut
    number = numbers[view]
    i0, n = real_rows(first[1], out.shape[3], heights.shape[0])
    k0, count = box[4], box[5] - box[4]
    left = first[0] + max(begin, -first[0])
    right = first[0] + end
    cells = np.empty(2, np.int64)
    starts = np.empty(2, np.float64)
    stops = np.empty(2, np.float64)
    groups = groups_of(n, work)
    kept = end - begin
    level, slope, share, factor, _ = empty_tables(groups * kept, work)
    size = level.shape[0] // max(kept, 1)
    lines = np.empty((kept, 5))
    rays = np.empty((kept, 10))
    bits = np.zeros(kept, np.int64)
    rising = np.zeros(kept, np.bool_)
    made = np.zeros(kept, np.bool_)
    total = np.zeros((kept, out.shape[0], size), work.dtype)
    column = np.zeros((out.shape[0], FRONT + count + 2 + BACK), work.dtype)
    out[:, view, begin:end] = 0
    if number < 0 or number >= frames.shape[0] or n * count == 0:
        return
    for s in range(positions.shape[0]):
        if positions[s] < 0:
            continue
        y, x = positions[s] // counts[0], positions[s] % counts[0]
        bounds = (float(x), float(x + 1), float(y), float(y + 1), 0.0, float(counts[2]))
        j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys,
                                along.shape[0], spacing, counts, bounds)  # fmt: skip
        empty = True
        for j in range(max(j0, left), min(j1, right)):
            c = j - first[0] - begin
            rows = slice(c * size, (c + 1) * size)
            if not made[c]:
                rays[c] = np.array(
                    plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
                )
            line = _line(rays[c])
            if plane_walk(line, x, x + 1, y, y + 1, x, y, _ROW, cells, starts, stops) == 0:
                continue
            start, stop = starts[0], stops[0]
            if not made[c]:
                made[c] = True
                rising[c], bits[c] = set_rows(
                    cone, frames, number, along[j], normal[j], heights, spacing, counts,
                    sampling, line, 0.5 * (start + stop), i0, n, k0 - 2, level[rows],
                    slope[rows], share[rows], factor[rows], lines[c])  # fmt: skip
            r0, r1, spread = rows_met(lines[c], start, stop, n, k0, k0 + count)
            if r0 >= r1:
                continue
            if empty:
                empty = False
                for b in range(out.shape[0]):
                    source = values[b, s][k0 - origin[2] :]
                    target = column[b][FRONT + 2 :]
                    for k in range(count):
                        store(target, k, work.dtype.type(load(source, k)))
            parts = parts_of(lines[c, 4], stop - start)
            for piece in range(parts):
                one, two = part_of(start, stop, piece, parts)
                march(column, column.shape[1], total[c], level[rows], slope[rows],
                      share[rows], r0, r1, k0 - 2, count + 2, bits[c], one, two,
                      spread)  # fmt: skip
    for c in range(kept):
        if made[c]:
            for b in range(out.shape[0]):
                seen = out[b, view, begin + c][i0 - first[1] :]
                for q in range(n):
                    r = q if rising[c] else n - 1 - q
                    seen[r] = total[c, b, q] * factor[c * size + q]


@compiled
def adjoint_subset(table, part, projections, out, cut, work):
    cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys = table
    numbers, _, _, positions, box, origin, _, first, _, _, fresh = part
    b0, b1, s0, s1 = cut
    nb = b1 - b0
    lc = projections.shape[2]
    i0, n = real_rows(first[1], projections.shape[3], heights.shape[0])
    k0, count = box[4], box[5] - box[4]
    if fresh:
        out[b0:b1, s0:s1] = 0
    if n * count == 0:
        return
    cells = np.empty(2, np.int64)
    starts = np.empty(2, np.float64)
    stops = np.empty(2, np.float64)
    groups = groups_of(n, work)
    kept = max(1, min(lc, _KEPT // (128 * groups * (1 + nb // 4))))
    level, slope, share, factor, _ = empty_tables(groups * kept, work)
    size = level.shape[0] // kept
    lines = np.empty((kept, 5))
    rays = np.empty((kept, 10))
    bits = np.zeros(kept, np.int64)
    ready = np.full(kept, -1, np.int64)
    values = np.zeros((kept, nb, size), work.dtype)
    finite = np.ones((kept, nb), np.bool_)
    places = np.zeros(size, np.int32)
    pairs = np.zeros(2 * size, work.dtype)
    width = 4 * (count + 4)
    slots = np.zeros(nb * (s1 - s0) * width, work.dtype)
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if 0 <= number < frames.shape[0]:
            for s in range(s0, s1):
                if positions[s] < 0:
                    continue
                y, x = positions[s] // counts[0], positions[s] % counts[0]
                bounds = (float(x), float(x + 1), float(y), float(y + 1), 0.0, float(counts[2]))
                j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys,
                                        along.shape[0], spacing, counts, bounds)  # fmt: skip
                for j in range(max(j0, first[0]), min(j1, first[0] + lc)):
                    c = (j - first[0]) % kept
                    rows = slice(c * size, (c + 1) * size)
                    ticket = view * lc + j - first[0]
                    if ready[c] != ticket:
                        rays[c] = np.array(
                            plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
                        )
                    line = _line(rays[c])
                    if plane_walk(line, x, x + 1, y, y + 1, x, y, _ROW, cells, starts, stops) == 0:
                        # The ray in the slot is this one, its rows are not.
                        if ready[c] != ticket:
                            ready[c] = -1
                        continue
                    start, stop = starts[0], stops[0]
                    if ready[c] != ticket:
                        ready[c] = ticket
                        up, bits[c] = set_rows(
                            cone, frames, number, along[j], normal[j], heights, spacing, counts,
                            sampling, line, 0.5 * (start + stop), i0, n, k0 - 2, level[rows],
                            slope[rows], share[rows], factor[rows], lines[c])  # fmt: skip
                        for b in range(nb):
                            seen = projections[b0 + b, view, j - first[0]][i0 - first[1] :]
                            for q in range(n):
                                r = q if up else n - 1 - q
                                values[c, b, q] = seen[r] * factor[c * size + q]
                            finite[c, b] = all_finite(values[c, b])
                    r0, r1, _ = rows_met(lines[c], start, stop, n, k0, k0 + count)
                    if r0 >= r1:
                        continue
                    parts = parts_of(lines[c, 4], stop - start)
                    for piece in range(parts):
                        one, two = part_of(start, stop, piece, parts)
                        split(places, pairs, level[rows], slope[rows], share[rows], r0, r1,
                              k0 - 2, count + 2, bits[c], one, two)  # fmt: skip
                        for b in range(nb):
                            at = (b * (s1 - s0) + s - s0) * width
                            if finite[c, b]:
                                scatter(slots, at, places, pairs, values[c, b], r0, r1)
                            else:
                                scatter_met(slots, at, places, pairs, values[c, b], r0, r1)
        if view % _VIEWS == _VIEWS - 1 or view == numbers.shape[0] - 1:
            for b in range(nb):
                for s in range(s0, s1):
                    at = (b * (s1 - s0) + s - s0) * width
                    clear(slots[at : at + width], out[b0 + b, s][k0 - origin[2] :], count)


@compiled
def _line(ray):
    """A ray of `plane_ray` from a table."""
    return (ray[0], ray[1], ray[2], ray[3], ray[4], ray[5], ray[6], ray[7], ray[8], ray[9])
