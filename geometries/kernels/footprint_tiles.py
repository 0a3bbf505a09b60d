"""Tiles of the separable footprint where rows are no slices: a task owns what it writes.

Forward: one view and some of its columns, summed in a tile of its own from the voxel columns in the
order of y and x; adjoint: a patch of voxel columns, summed in the order of views. Column weights
are found once for all slices. Arrays, windows and views as in `footprint`; `zero` (1,) carries the
dtype of sums, float32 only for "fast", which alone takes the vectorised row functions.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from geometries.kernels.footprint_profile import (
    FOUND,
    LINE,
    cell_weights,
    cells_of,
    line_profiles,
    meets,
)
from geometries.kernels.footprint_rows import (
    PAD,
    WIDEST,
    collect_exact,
    collect_fast,
    rows_of,
    slant,
    slices_of,
    spread_exact,
    spread_fast,
)

__all__ = ["adjoint_subset", "adjoint_tile", "forward_subset", "forward_tile"]

_compiled = njit(nogil=True, cache=True, error_model="numpy")
_fused = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
_LINES = 16  # lines of voxels between two additions of partial sums


@_compiled
def forward_tile(diverging, curved, box, table, flipped, spacing, cells, numbers, volume, first,
                 plane, slices, out, first_column, first_row, tile, fast, zero):  # fmt: skip
    view, c0, c1 = tile
    number = numbers[view]
    out[:, view, c0:c1] = 0
    i0, i1 = _window(first_row, out.shape[3], cells[0])
    j0, j1 = max(c0 + first_column, 0), min(c1 + first_column, cells[1])
    k0, count, n = slices[0], slices[1] - slices[0], i1 - i0
    if number < 0 or number >= table.shape[0] or j0 >= j1 or n * count <= 0:
        return
    t, top = table[number], cells[0] - i1 if flipped[number] else i0
    lx = plane[4]
    total = np.zeros((out.shape[0], j1 - j0, n), zero.dtype)
    part = np.zeros((out.shape[0], j1 - j0, n), zero.dtype)
    found = np.empty((FOUND, LINE))
    firsts = np.empty(LINE)
    weights = np.empty((j1 - j0, LINE))
    buffers = _buffers(count, n, zero)
    factors, rows = buffers[0], buffers[2]
    for y in range(plane[2], plane[3]):
        for x in range(plane[0], plane[1], LINE):
            m = min(LINE, plane[1] - x)
            if not meets(diverging, curved, t, x, x + m, y, y + 1, j0, j1):
                continue
            line_profiles(diverging, curved, box, t, spacing, x, m, y, found)
            cells_met = cell_weights(found, m, j0, j1, firsts, weights)
            for i in range(m):
                start, stop = cells_of(weights, cells_met, i)
                if start >= stop:
                    continue
                shift = int(firsts[i]) - j0
                shape = _rows(diverging, t, found, i, x + i, y)
                r0, r1 = rows_of(shape[0], shape[1], shape[2], k0, k0 + count, top, top + n)
                if r0 >= r1:
                    continue
                _slants(diverging, t, spacing, found, i, k0, factors)
                for b in range(out.shape[0]):
                    source = volume[b, (y - first[1]) * lx + x + i - first[2]]
                    _spread(shape, fast, k0, source[k0 - first[0] : k0 - first[0] + count],
                            top, r0, r1, buffers)  # fmt: skip
                    for c in range(start, stop):
                        _add(part[b, shift + c], zero.dtype.type(weights[c, i]), rows,
                             r0 - top, r1 - top)  # fmt: skip
        if y % _LINES == _LINES - 1 or y == plane[3] - 1:
            total += part
            part[:] = 0
    for b in range(out.shape[0]):
        for c in range(j1 - j0):
            line = out[b, view, c + j0 - first_column, i0 - first_row : i1 - first_row]
            for r in range(n):
                line[r] = total[b, c, n - 1 - r if flipped[number] else r]


@_compiled
def adjoint_tile(diverging, curved, box, table, flipped, spacing, cells, numbers, projections,
                 first_column, first_row, out, first, plane, slices, tile, squared, fast,
                 zero):  # fmt: skip
    b, y0, y1, x0, x1 = tile
    out[b, y0:y1, x0:x1] = 0
    i0, i1 = _window(first_row, projections.shape[3], cells[0])
    j0 = max(first_column, 0)
    j1 = min(first_column + projections.shape[2], cells[1])
    k0, count, n = slices[0], slices[1] - slices[0], i1 - i0
    bx0, bx1 = max(x0 + first[2], plane[0]), min(x1 + first[2], plane[1])
    by0, by1 = max(y0 + first[1], plane[2]), min(y1 + first[1], plane[3])
    if bx0 >= bx1 or by0 >= by1 or j0 >= j1 or n * count <= 0:
        return
    total = np.zeros((by1 - by0, bx1 - bx0, count), zero.dtype)
    found = np.empty((FOUND, LINE))
    firsts = np.empty(LINE)
    weights = np.empty((j1 - j0, LINE))
    buffers = _buffers(count, n, zero)
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if number < 0 or number >= table.shape[0]:
            continue
        t, flip = table[number], flipped[number]
        if not meets(diverging, curved, t, bx0, bx1, by0, by1, j0, j1):
            continue
        top = cells[0] - i1 if flip else i0
        data = projections[b, view]
        for y in range(by0, by1):
            for x in range(bx0, bx1, LINE):
                m = min(LINE, bx1 - x)
                line_profiles(diverging, curved, box, t, spacing, x, m, y, found)
                cells_met = cell_weights(found, m, j0, j1, firsts, weights)
                for i in range(m):
                    start, stop = cells_of(weights, cells_met, i)
                    if start < stop:
                        shape = _rows(diverging, t, found, i, x + i, y)
                        r0, r1 = rows_of(shape[0], shape[1], shape[2], k0, k0 + count, top, top + n)
                        if r0 < r1:
                            _slants(diverging, t, spacing, found, i, k0, buffers[0])
                            column = int(firsts[i]) - first_column
                            _collect(shape, fast, k0, data, column, start, stop, weights[:, i],
                                     i0 - first_row, n, flip, top, r0, r1, squared,
                                     buffers, total[y - by0, x + i - bx0])  # fmt: skip
    for y in range(by0, by1):
        for x in range(bx0, bx1):
            line = out[b, y - first[1], x - first[2], k0 - first[0] : k0 - first[0] + count]
            line[:] = total[y - by0, x - bx0]


@_compiled
def forward_subset(diverging, curved, box, table, flipped, spacing, cells, numbers, values,
                   positions, width, first_slice, slices, out, first_column, first_row, tile, fast,
                   zero):  # fmt: skip
    view, c0, c1 = tile
    number = numbers[view]
    out[:, view, c0:c1] = 0
    i0, i1 = _window(first_row, out.shape[3], cells[0])
    j0, j1 = max(c0 + first_column, 0), min(c1 + first_column, cells[1])
    k0, count, n = slices[0], slices[1] - slices[0], i1 - i0
    if number < 0 or number >= table.shape[0] or j0 >= j1 or n * count <= 0:
        return
    t, flip = table[number], flipped[number]
    top = cells[0] - i1 if flip else i0
    found = np.empty((FOUND, LINE))
    firsts = np.empty(LINE)
    weights = np.empty((j1 - j0, LINE))
    buffers = _buffers(count, n, zero)
    rows = buffers[2]
    for p in range(positions.shape[0]):
        if positions[p] < 0:
            continue
        y, x = positions[p] // width, positions[p] % width
        line_profiles(diverging, curved, box, t, spacing, x, 1, y, found)
        start, stop = cells_of(weights, cell_weights(found, 1, j0, j1, firsts, weights), 0)
        if start >= stop:
            continue
        shape = _rows(diverging, t, found, 0, x, y)
        r0, r1 = rows_of(shape[0], shape[1], shape[2], k0, k0 + count, top, top + n)
        if r0 >= r1:
            continue
        _slants(diverging, t, spacing, found, 0, k0, buffers[0])
        for b in range(out.shape[0]):
            _spread(shape, fast, k0, values[b, p, k0 - first_slice : k0 - first_slice + count],
                    top, r0, r1, buffers)  # fmt: skip
            for c in range(start, stop):
                j = int(firsts[0]) + c - first_column
                line = out[b, view, j, i0 - first_row : i1 - first_row]
                w = zero.dtype.type(weights[c, 0])
                if flip:
                    for r in range(r0 - top, r1 - top):
                        line[n - 1 - r] += w * rows[r]
                else:
                    _add(line, w, rows, r0 - top, r1 - top)


@_compiled
def adjoint_subset(diverging, curved, box, table, flipped, spacing, cells, numbers, projections,
                   first_column, first_row, positions, width, first_slice, slices, out, tile, fast,
                   zero):  # fmt: skip
    p0, p1 = tile
    out[:, p0:p1] = 0
    i0, i1 = _window(first_row, projections.shape[3], cells[0])
    j0 = max(first_column, 0)
    j1 = min(first_column + projections.shape[2], cells[1])
    k0, count, n = slices[0], slices[1] - slices[0], i1 - i0
    if j0 >= j1 or n * count <= 0:
        return
    total = np.zeros((out.shape[0], p1 - p0, count), zero.dtype)
    found = np.empty((FOUND, LINE))
    firsts = np.empty(LINE)
    weights = np.empty((j1 - j0, LINE))
    buffers = _buffers(count, n, zero)
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if number < 0 or number >= table.shape[0]:
            continue
        t, flip = table[number], flipped[number]
        top = cells[0] - i1 if flip else i0
        for p in range(p0, p1):
            if positions[p] < 0:
                continue
            y, x = positions[p] // width, positions[p] % width
            line_profiles(diverging, curved, box, t, spacing, x, 1, y, found)
            start, stop = cells_of(weights, cell_weights(found, 1, j0, j1, firsts, weights), 0)
            if start >= stop:
                continue
            shape = _rows(diverging, t, found, 0, x, y)
            r0, r1 = rows_of(shape[0], shape[1], shape[2], k0, k0 + count, top, top + n)
            if r0 >= r1:
                continue
            _slants(diverging, t, spacing, found, 0, k0, buffers[0])
            column = int(firsts[0]) - first_column
            for b in range(out.shape[0]):
                _collect(shape, fast, k0, projections[b, view], column, start, stop,
                         weights[:, 0], i0 - first_row, n, flip, top, r0, r1, False, buffers,
                         total[b, p - p0])  # fmt: skip
    out[:, p0:p1, k0 - first_slice : k0 - first_slice + count] = total


@_compiled
def _window(first, local, whole):
    start = min(max(first, 0), whole)
    return start, max(start, min(first + local, whole))


@_compiled
def _buffers(count, n, zero):
    """Factors of slices, slices and rows between zeros, and cells and shares for either."""
    factors = np.ones(count, zero.dtype)
    slices = np.zeros(count + 2 * PAD, zero.dtype)
    rows = np.zeros(n + 2 * PAD, zero.dtype)
    most = max(count, n)
    return factors, slices, rows, np.empty(most, np.int32), np.empty(most, np.float32)


@_compiled
def _rows(diverging, t, found, i, x, y):
    """(m, s, G, height) of the row rule of voxel column (x, y)."""
    if diverging:
        step = t[14] * found[5, i]
        return t[11] - step * t[15], step, step, 1.0
    return t[11] + t[12] * x + t[13] * y, t[14], t[15], t[6]


@_compiled
def _slants(diverging, t, spacing, found, i, k0, factors):
    if diverging:
        step = spacing[2] * found[6, i]
        slant(-step * t[15], step, k0, factors)


@_compiled
def _quick(shape, fast):
    """Whether the vectorised row functions take this voxel column."""
    step = shape[1]
    gap = abs(shape[2] - step) > 1e-12 * step
    return fast and not gap and step <= WIDEST and step * WIDEST >= 1.0


@_compiled
def _spread(shape, fast, k0, source, top, r0, r1, buffers):
    """Rows [r0, r1) of one voxel column, into the buffer of rows."""
    factors, values, rows, place, part = buffers
    count = factors.shape[0]
    for k in range(count):
        values[PAD + k] = factors[k] * source[k]
    m, step, g, height = shape
    if _quick(shape, fast):
        spread_fast(m, step, height, k0, values, top, r0, r1, place, part, rows)
        return
    rows[r0 - top : r1 - top] = 0
    spread_exact(m, step, g, height, k0, count, values[PAD:], top, r0, r1, rows)


@_compiled
def _collect(shape, fast, k0, data, column, start, stop, weights, row, n, flip, top, r0, r1,
             squared, buffers, total):  # fmt: skip
    """Add to `total` what a voxel column collects of columns `column + c`, start <= c < stop."""
    factors, values, rows, place, part = buffers
    count = factors.shape[0]
    rows[r0 - top : r0 - top + PAD] = 0
    rows[PAD + r1 - top : 2 * PAD + r1 - top] = 0
    for c in range(start, stop):
        w = rows.dtype.type(weights[c])
        w = w * w if squared else w
        line, target = data[column + c, row : row + n], rows[PAD:]
        if flip:
            for r in range(r0 - top, r1 - top):
                old = target[r] if c > start else rows.dtype.type(0)
                target[r] = old + w * line[n - 1 - r]
        elif c > start:
            _add(target, w, line, r0 - top, r1 - top)
        else:
            for r in range(r0 - top, r1 - top):
                target[r] = w * line[r]
    m, step, g, height = shape
    if _quick(shape, fast):
        k1, k2 = slices_of(m, step, k0, k0 + count, r0, r1)
        collect_fast(m, step, height, k1, k2, k0, top, rows, place, part, values)
    else:
        k1, k2 = k0, k0 + count
        collect_exact(m, step, g, height, k0, count, values, top, r0, r1, rows[PAD:], squared)
    for k in range(k1 - k0, k2 - k0):
        factor = factors[k] * factors[k] if squared else factors[k]
        total[k] += factor * values[k]


@_fused
def _add(out, weight, source, start, stop):
    for r in range(start, stop):
        out[r] += weight * source[r]
