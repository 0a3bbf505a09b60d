"""Tiles of the separable footprint where rows are no slices: a task owns what it writes.

Forward: one view and some of its columns, summed in a tile of its own from the voxel columns in
their order; adjoint: a patch of voxel columns, or some positions, summed in the order of views.
Column weights are found once for all slices. Signature and arrays are those of `volume_driver`;
sums have the dtype of `work`, float32 only for "fast", which alone takes the vectorised row rule.
"""

from __future__ import annotations

import math

import numpy as np

from geometries.kernels.affine_lanes import MARGIN, STEEPEST, spans, spread_of
from geometries.kernels.compiling import compiled, fused
from geometries.kernels.footprint_profile import (
    FOUND,
    LINE,
    cell_weights,
    cells_of,
    line_profiles,
    meets,
)
from geometries.kernels.footprint_rows import (
    collect_exact,
    rows_of,
    slant,
    slices_of,
    spread_exact,
)
from linops.compiled.noalias import add, load, store

__all__ = ["adjoint_subset", "adjoint_tile", "forward_subset", "forward_tile"]

_LINES = 16  # lines of voxels between two additions of partial sums


@compiled
def forward_tile(table, part, source, out, cut, work):
    diverging, curved, _, views, _, _, _ = table
    plane, origin, local = part[4], part[5], part[6]
    view, left, right = cut
    out[:, view, left:right] = 0
    window = _window(table, part, out.shape[3], part[0][view], left, right)
    if window[9]:
        return
    j0, j1 = window[3], window[4]
    volume = source.reshape(source.shape[0], local[0] * local[1], local[2])
    sums, scratch = _sums(out.shape[0], window, work), _scratch(window, work)
    for y in range(plane[2], plane[3]):
        for x in range(plane[0], plane[1], LINE):
            m = min(LINE, plane[1] - x)
            if meets(diverging, curved, views[window[7]], x, x + m, y, y + 1, j0, j1):
                cell = (y - origin[1]) * local[1] + x - origin[0]
                _spread_line(table, window, x, m, y, volume, cell, origin[2], sums[1], scratch,
                             work)  # fmt: skip
        if y % _LINES == _LINES - 1:
            _settle(sums)
    _finish(sums, window, part[7], view, out)


@compiled
def forward_subset(table, part, values, out, cut, work):
    positions, origin = part[3], part[5]
    width = part[6][1]
    view, left, right = cut
    out[:, view, left:right] = 0
    window = _window(table, part, out.shape[3], part[0][view], left, right)
    if window[9]:
        return
    sums, scratch = _sums(out.shape[0], window, work), _scratch(window, work)
    for p in range(positions.shape[0]):
        if positions[p] >= 0:
            y, x = positions[p] // width, positions[p] % width
            _spread_line(table, window, x, 1, y, values, p, origin[2], sums[1], scratch, work)
        if p % (LINE * _LINES) == LINE * _LINES - 1:
            _settle(sums)
    _finish(sums, window, part[7], view, out)


@compiled
def adjoint_tile(table, part, projections, out, cut, work):
    diverging, curved, _, views, _, _, _ = table
    numbers, _, _, _, plane, origin, _, first, _, squared, fresh = part
    b, y0, y1, x0, x1 = cut
    if fresh:
        out[b, y0:y1, x0:x1] = 0
    bx0, bx1 = max(x0 + origin[0], plane[0]), min(x1 + origin[0], plane[1])
    by0, by1 = max(y0 + origin[1], plane[2]), min(y1 + origin[1], plane[3])
    if bx0 >= bx1 or by0 >= by1:
        return
    nx, k0, count = bx1 - bx0, plane[4], plane[5] - plane[4]
    total = np.zeros(((by1 - by0) * nx, count), work.dtype)
    left, right, rows = np.int64(0), projections.shape[2], projections.shape[3]
    scratch = _scratch(_window(table, part, rows, np.int64(-1), left, right), work)
    for view in range(numbers.shape[0]):
        window = _window(table, part, rows, numbers[view], left, right)
        if window[9] or not meets(diverging, curved, views[window[7]], bx0, bx1, by0, by1,
                                  window[3], window[4]):  # fmt: skip
            continue
        for y in range(by0, by1):
            for x in range(bx0, bx1, LINE):
                _collect_line(table, window, x, min(LINE, bx1 - x), y, projections[b, view], first,
                              squared, total, (y - by0) * nx + x - bx0, scratch, work)  # fmt: skip
    for cell in range(total.shape[0]):
        y, x = by0 + cell // nx - origin[1], bx0 + cell % nx - origin[0]
        _put(out[b, y, x][k0 - origin[2] :], total[cell], count)


@compiled
def adjoint_subset(table, part, projections, out, cut, work):
    numbers, _, _, positions, plane, origin, local, first, _, _, fresh = part
    p0, p1 = cut
    if fresh:
        out[:, p0:p1] = 0
    k0, count = plane[4], plane[5] - plane[4]
    total = np.zeros((out.shape[0], p1 - p0, count), work.dtype)
    left, right, rows = np.int64(0), projections.shape[2], projections.shape[3]
    scratch = _scratch(_window(table, part, rows, np.int64(-1), left, right), work)
    for view in range(numbers.shape[0]):
        window = _window(table, part, rows, numbers[view], left, right)
        if window[9]:
            continue
        for p in range(p0, p1):
            if positions[p] >= 0:
                y, x = positions[p] // local[1], positions[p] % local[1]
                for b in range(out.shape[0]):
                    _collect_line(table, window, x, 1, y, projections[b, view], first, False,
                                  total[b], p - p0, scratch, work)  # fmt: skip
    for b in range(out.shape[0]):
        for p in range(p0, p1):
            _put(out[b, p][k0 - origin[2] :], total[b, p - p0], count)


@compiled
def _window(table, part, rows, number, left, right):
    """(first row, rows, first as counted, column, stop, slice, stop, view, flipped, none).

    Of the whole detector and grid, as far as local rows and columns [left, right) have them; rows
    of a flipped view are counted from the last. `none` where nothing is left.
    """
    views, flipped, cells = table[3], table[4], table[6]
    first, k0, k1 = part[7], part[4][4], part[4][5]
    i0 = min(max(first[1], 0), cells[0])
    n = max(0, min(first[1] + rows, cells[0]) - i0)
    j0, j1 = max(left + first[0], 0), min(right + first[0], cells[1])
    none = number < 0 or number >= views.shape[0] or j0 >= j1 or n == 0 or k0 >= k1
    flip = not none and flipped[number]
    return i0, n, cells[0] - i0 - n if flip else i0, j0, j1, k0, k1, number, flip, none


@compiled
def _scratch(window, work):
    """Profiles, first cells and weights of a line; factors and slices, and rows of a column."""
    n, count = window[1], max(0, window[6] - window[5])
    found, firsts = np.empty((FOUND, LINE)), np.empty(LINE)
    weights = np.empty((max(1, window[4] - window[3]), LINE))
    factors = np.ones(count + 16, work.dtype)
    slices = np.zeros((1, count + 2 * MARGIN), work.dtype)
    rows = np.zeros((1, n + 2 * MARGIN), work.dtype)
    return found, firsts, weights, factors, slices, rows


@compiled
def _sums(batch, window, work):
    """All sums of a forward tile, and those since the last `_settle`."""
    shape = (batch, window[4] - window[3], window[1])
    return np.zeros(shape, work.dtype), np.zeros(shape, work.dtype)


@compiled
def _settle(sums):
    total, recent = sums
    total += recent
    recent[:] = 0


@compiled
def _finish(sums, window, first, view, out):
    _settle(sums)
    i0, n, _, j0, j1, _, _, _, flip, _ = window
    for b in range(out.shape[0]):
        for c in range(j1 - j0):
            line, total = out[b, view, c + j0 - first[0]][i0 - first[1] :], sums[0][b, c]
            for r in range(n):
                line[r] = total[n - 1 - r if flip else r]


@compiled
def _put(out, total, count):
    for k in range(count):
        add(out, k, out.dtype.type(load(total, k)))


@compiled
def _spread_line(table, window, x, m, y, source, item, first_slice, sums, scratch, work):
    """Add voxel columns x to x + m of line y, which are `source[:, item:]`, to `sums`."""
    diverging, curved, box, views, _, spacing, _ = table
    _, n, top, j0, j1, k0, k1, number, _, _ = window
    found, firsts, weights, factors, slices, rows = scratch
    t = views[number]
    line_profiles(diverging, curved, box, t, spacing, x, m, y, found)
    met = cell_weights(found, m, j0, j1, firsts, weights)
    for i in range(m):
        start, stop = cells_of(weights, met, i)
        if start >= stop:
            continue
        shape = _rows(diverging, t, found, i, x + i, y)
        r0, r1 = rows_of(shape[0], shape[1], shape[2], k0, k1, top, top + n)
        if r0 >= r1:
            continue
        quick = _quick(shape, work)
        ka, kb = k0, k1
        long = 1.0 / shape[1]
        low = 0.5 - (shape[0] + 0.5) * long
        if quick:
            # All slices that whole groups of rows look at.
            ka = max(k0, int(math.floor(low + long * (r0 & -8))) - 1)
            kb = min(k1, int(math.floor(low + long * (((r1 + 7) & -8) + 1))) + 2)
        _slants(diverging, t, spacing, found, i, ka, factors[: kb - ka])
        for b in range(source.shape[0]):
            _weigh(slices[0][MARGIN + ka - k0 :], factors, source[b, item + i][ka - first_slice :],
                   kb - ka)  # fmt: skip
            if quick:
                spans(slices, MARGIN - k0, rows, top & -8, r0 - (top & -8), r1 - (top & -8), low,
                      long, long, shape[1] * shape[3], int(math.ceil(long)) + 1,
                      spread_of(long))  # fmt: skip
            else:
                rows[0, r0 - (top & -8) : r1 - (top & -8)] = 0
                spread_exact(shape[0], shape[1], shape[2], shape[3], k0, k1 - k0,
                             slices[0, MARGIN:], top & -8, r0, r1, rows[0])  # fmt: skip
            for c in range(start, stop):
                _add(sums[b, int(firsts[i]) - j0 + c][r0 - top :], work.dtype.type(weights[c, i]),
                     rows[0][r0 - (top & -8) :], r1 - r0)  # fmt: skip


@compiled
def _collect_line(table, window, x, m, y, data, first, squared, total, item, scratch, work):
    """Add what voxel columns x to x + m of line y collect of `data` to `total[item:]`."""
    diverging, curved, box, views, _, spacing, _ = table
    i0, n, top, j0, j1, k0, k1, number, flip, _ = window
    found, firsts, weights, factors, slices, rows = scratch
    t = views[number]
    line_profiles(diverging, curved, box, t, spacing, x, m, y, found)
    met = cell_weights(found, m, j0, j1, firsts, weights)
    for i in range(m):
        start, stop = cells_of(weights, met, i)
        if start >= stop:
            continue
        shape = _rows(diverging, t, found, i, x + i, y)
        r0, r1 = rows_of(shape[0], shape[1], shape[2], k0, k1, top, top + n)
        if r0 >= r1:
            continue
        target = rows[0][MARGIN + r0 - top :]
        rows[0, MARGIN + r0 - top - 8 : MARGIN + r0 - top] = 0
        rows[0, MARGIN + r1 - top : MARGIN + r1 - top + 8] = 0
        for c in range(start, stop):
            w = work.dtype.type(weights[c, i])
            w = w * w if squared else w
            line = data[int(firsts[i]) - first[0] + c][i0 - first[1] :]
            if flip:
                for r in range(r1 - r0):
                    old = target[r] if c > start else work.dtype.type(0)
                    target[r] = old + w * line[top + n - 1 - r0 - r]
            elif c > start:
                _add(target, w, line[r0 - top :], r1 - r0)
            else:
                _weigh_all(target, w, line[r0 - top :], r1 - r0)
        step = shape[1]
        ka, kb, shift = k0, k1, k0 & -8
        if _quick(shape, work) and not squared:
            ka, kb = slices_of(shape[0], step, k0, k1, r0, r1)
            spans(rows, MARGIN - top, slices, shift, ka - shift, kb - shift,
                  shape[0] - 0.5 * step + 0.5, step, step, shape[3], int(math.ceil(step)) + 1,
                  spread_of(step))  # fmt: skip
        else:
            collect_exact(shape[0], step, shape[2], shape[3], k0, k1 - k0, slices[0, k0 - shift :],
                          top, r0, r1, rows[0, MARGIN:], squared)  # fmt: skip
        _slants(diverging, t, spacing, found, i, ka, factors[: kb - ka])
        sums = total[item + i][ka - k0 :]
        if squared:
            factors[: kb - ka] *= factors[: kb - ka]
        _add_product(sums, factors, slices[0][ka - shift :], kb - ka)


@compiled
def _rows(diverging, t, found, i, x, y):
    """(m, s, G, height) of the row rule of voxel column (x, y)."""
    if diverging:
        step = t[14] * found[5, i]
        return t[11] - step * t[15], step, step, 1.0
    return t[11] + t[12] * x + t[13] * y, t[14], t[15], t[6]


@compiled
def _slants(diverging, t, spacing, found, i, k0, factors):
    if diverging:
        step = spacing[2] * found[6, i]
        slant(-step * t[15], step, k0, factors)


@compiled
def _quick(shape, work):
    """Whether the vectorised row rule takes this voxel column."""
    step = shape[1]
    even = abs(shape[2] - step) <= 1e-12 * step
    return work.itemsize == 4 and even and step <= STEEPEST and step * STEEPEST >= 1.0


@fused
def _weigh(out, factors, source, count):
    for k in range(count):
        store(out, k, load(factors, k) * out.dtype.type(load(source, k)))


@fused
def _weigh_all(out, weight, source, count):
    for k in range(count):
        store(out, k, weight * out.dtype.type(load(source, k)))


@fused
def _add(out, weight, source, count):
    for k in range(count):
        add(out, k, weight * out.dtype.type(load(source, k)))


@fused
def _add_product(out, one, two, count):
    for k in range(count):
        add(out, k, load(one, k) * load(two, k))
