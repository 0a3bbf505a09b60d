"""The tiles of `columns`: walks in the plane, rows set up, and one piece after the other.

A forward tile owns detector columns, an adjoint tile a patch of voxel columns; the tiles of
subsets own detector columns and positions. `work` (2,) gives the dtype of arithmetic: float32
with fixed-point heights ("fast"), or float64. Sums are of that dtype too; an adjoint clears its
float32 sums into the result every few views.
"""

from __future__ import annotations

import numpy as np
from numba.extending import overload

from geometries.kernels.columns_lanes import BACK, FRONT, march, scatter, split
from geometries.kernels.columns_rows import parts_of, rows_met, set_rows
from geometries.kernels.compiling import compiled
from geometries.kernels.rays3d import columns_of_box, plane_ray, plane_walk
from linops.compiled.noalias import add, load, store

__all__ = [
    "adjoint_tile",
    "all_finite",
    "clear",
    "empty_tables",
    "forward_tile",
    "groups_of",
    "part_of",
    "real_rows",
    "scatter_met",
]

_VIEWS = 64  # views after which an adjoint clears its sums


@compiled
def forward_tile(table, part, source, out, cut, work):
    cone, frames, along, normal, heights, spacing, counts, sampling, _, _ = table
    numbers, _, _, _, box, origin, local, first, _, _, _ = part
    view, left, right = cut
    number, cols, lx = numbers[view], along.shape[0], local[1]
    i0, n = real_rows(first[1], out.shape[3], heights.shape[0])
    k0, count = box[4], box[5] - box[4]
    volume = source.reshape(source.shape[0], local[0] * lx, local[2])
    room = max(1, box[1] - box[0] + box[3] - box[2])
    cells = np.empty(room, np.int64)
    starts = np.empty(room, np.float64)
    stops = np.empty(room, np.float64)
    groups = groups_of(n, work)
    level, slope, share, factor, lines = empty_tables(groups, work)
    total = np.zeros((out.shape[0], level.shape[0]), work.dtype)
    column = np.zeros((out.shape[0], FRONT + count + 2 + BACK), work.dtype)
    for c in range(left, right):
        out[:, view, c] = 0
        j = c + first[0]
        if number < 0 or number >= frames.shape[0] or j < 0 or j >= cols or n * count == 0:
            continue
        line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
        met = plane_walk(line, box[0], box[1], box[2], box[3], origin[0], origin[1], lx,
                         cells, starts, stops)  # fmt: skip
        if met == 0:
            continue
        rising, bits = set_rows(
            cone, frames, number, along[j], normal[j], heights, spacing, counts, sampling, line,
            0.5 * (starts[0] + stops[met - 1]), i0, n, k0 - 2, level, slope, share, factor,
            lines)  # fmt: skip
        total[:] = 0
        for m in range(met):
            start, stop = starts[m], stops[m]
            r0, r1, spread = rows_met(lines, start, stop, n, k0, k0 + count)
            if r0 >= r1:
                continue
            for b in range(out.shape[0]):
                seen = volume[b, cells[m]][k0 - origin[2] :]
                target = column[b][FRONT + 2 :]
                for k in range(count):
                    store(target, k, work.dtype.type(load(seen, k)))
            parts = parts_of(lines[4], stop - start)
            for piece in range(parts):
                one, two = part_of(start, stop, piece, parts)
                march(column, column.shape[1], total, level, slope, share, r0, r1, k0 - 2,
                      count + 2, bits, one, two, spread)  # fmt: skip
        for b in range(out.shape[0]):
            seen = out[b, view, c][i0 - first[1] :]
            for q in range(n):
                r = q if rising else n - 1 - q
                store(seen, r, out.dtype.type(load(total[b], q) * load(factor, q)))


@compiled
def adjoint_tile(table, part, projections, out, cut, work):
    cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys = table
    numbers, _, _, _, box, origin, _, first, _, _, fresh = part
    b0, b1, y0, y1, x0, x1 = cut
    ny, nx, nb = y1 - y0, x1 - x0, b1 - b0
    cols, lc = along.shape[0], projections.shape[2]
    i0, n = real_rows(first[1], projections.shape[3], heights.shape[0])
    k0, count = box[4], box[5] - box[4]
    fx, fy = x0 + origin[0], y0 + origin[1]
    bx0, bx1 = max(fx, box[0]), min(fx + nx, box[1])
    by0, by1 = max(fy, box[2]), min(fy + ny, box[3])
    if fresh:
        out[b0:b1, y0:y1, x0:x1] = 0
    if bx0 >= bx1 or by0 >= by1 or n * count == 0:
        return
    bounds = (float(bx0), float(bx1), float(by0), float(by1), 0.0, float(counts[2]))
    cells = np.empty(nx + ny, np.int64)
    starts = np.empty(nx + ny, np.float64)
    stops = np.empty(nx + ny, np.float64)
    groups = groups_of(n, work)
    level, slope, share, factor, lines = empty_tables(groups, work)
    places = np.zeros(level.shape[0], np.int32)
    pairs = np.zeros(2 * level.shape[0], work.dtype)
    values = np.zeros((nb, level.shape[0]), work.dtype)
    finite = np.ones(nb, np.bool_)
    width = 4 * (count + 4)
    slots = np.zeros(nb * ny * nx * width, work.dtype)
    dirty = False
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if 0 <= number < frames.shape[0]:
            j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                    counts, bounds)  # fmt: skip
            for j in range(max(j0, first[0]), min(j1, first[0] + lc)):
                line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
                met = plane_walk(line, bx0, bx1, by0, by1, fx, fy, nx, cells, starts, stops)
                if met == 0:
                    continue
                rising, bits = set_rows(
                    cone, frames, number, along[j], normal[j], heights, spacing, counts, sampling,
                    line, 0.5 * (starts[0] + stops[met - 1]), i0, n, k0 - 2, level, slope, share,
                    factor, lines)  # fmt: skip
                dirty = True
                for b in range(nb):
                    seen = projections[b0 + b, view, j - first[0]][i0 - first[1] :]
                    if rising:
                        for q in range(n):
                            store(values[b], q, load(seen, q) * load(factor, q))
                    else:
                        for q in range(n):
                            store(values[b], q, load(seen, n - 1 - q) * load(factor, q))
                    finite[b] = all_finite(values[b])
                for m in range(met):
                    start, stop = starts[m], stops[m]
                    r0, r1, _ = rows_met(lines, start, stop, n, k0, k0 + count)
                    if r0 >= r1:
                        continue
                    parts = parts_of(lines[4], stop - start)
                    for piece in range(parts):
                        one, two = part_of(start, stop, piece, parts)
                        split(places, pairs, level, slope, share, r0, r1, k0 - 2, count + 2,
                              bits, one, two)  # fmt: skip
                        for b in range(nb):
                            at = (b * ny * nx + cells[m]) * width
                            if finite[b]:
                                scatter(slots, at, places, pairs, values[b], r0, r1)
                            else:
                                scatter_met(slots, at, places, pairs, values[b], r0, r1)
        if dirty and (view % _VIEWS == _VIEWS - 1 or view == numbers.shape[0] - 1):
            dirty = False
            for b in range(nb):
                for cell in range(ny * nx):
                    at = (b * ny * nx + cell) * width
                    target = out[b0 + b, y0 + cell // nx, x0 + cell % nx]
                    clear(slots[at : at + width], target[k0 - origin[2] :], count)


@compiled
def all_finite(values):
    """Whether no number is NaN or infinite."""
    zero, bad = values.dtype.type(0), np.int32(0)
    for q in range(values.shape[0]):
        bad |= np.int32(load(values, q) * zero != zero)
    return bad == 0


@compiled
def scatter_met(slots, at, places, pairs, values, r0, r1):
    """`scatter` where a value may be NaN or infinite: a cell that a row does not reach stays."""
    for r in range(r0, r1):
        slot = at + 4 * places[r] + 2 * (r & 1)
        for upper in range(2):
            if pairs[2 * r + upper] > 0:
                slots[slot + upper] += pairs[2 * r + upper] * values[r]


@compiled
def clear(slots, target, count):
    """Add the sums of a voxel column to `target` and set them to zero."""
    for k in range(count):
        above = load(slots, 4 * k + 5) + load(slots, 4 * k + 7)
        own = load(slots, 4 * k + 8) + load(slots, 4 * k + 10)
        add(target, k, target.dtype.type(own + above))
    slots[:] = 0


@compiled
def real_rows(first_row, local, rows):
    """The first real row of a local detector, and their number."""
    i0 = min(max(first_row, 0), rows)
    return i0, max(0, min(first_row + local, rows) - i0)


@compiled
def part_of(start, stop, part, parts):
    """Both ends of a part of a piece."""
    one = start + (stop - start) * (part / parts)
    two = stop if part + 1 == parts else start + (stop - start) * ((part + 1) / parts)
    return one, two


def empty_tables(groups, work):
    """Empty tables of rows for a dtype of arithmetic: level, slope, share, factor, lines."""
    raise NotImplementedError


@overload(empty_tables)
def _empty_tables(groups, work):
    if work.dtype.bitwidth == 32:

        def fixed(groups, work):
            size = 8 * groups
            zeros = np.zeros(size, np.float32)
            return np.zeros(size, np.int32), zeros, zeros.copy(), zeros.copy(), np.zeros(5)

        return fixed

    def plain(groups, work):
        size = 4 * groups
        return np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(5)

    return plain


@compiled
def groups_of(n, work):
    """Groups of lanes that n rows fill."""
    lanes = 32 // work.itemsize
    return (n + lanes - 1) // lanes
