"""Tiles of the footprint where row i sees slice i + shift alone, with row weight 1.

A voxel column and a detector column then share one weight, and the inner loops run over slices,
contiguous in memory. Both directions list the partners of what a task owns and add eight at a time,
in the order of voxels (forward) or of views (adjoint). Weights are float64, rounded once to the
dtype of the data, the same in both directions and in all precisions.
"""

from __future__ import annotations

import numpy as np

from geometries.kernels.compiling import compiled, fused
from geometries.kernels.footprint_profile import (
    FOUND,
    LINE,
    cell_weights,
    line_profiles,
    meets,
)

__all__ = ["adjoint_subset", "adjoint_tile", "forward_subset", "forward_tile"]

_LISTED = 8
_LINES = 8  # of voxels, whose columns stay in the cache until they are added


@compiled
def forward_tile(table, part, source, out, cut, work):
    diverging, curved, box, views, _, spacing, cells = table
    numbers, _, _, _, plane, origin, local, first, common, _, _ = part
    view, left, right = cut
    number = numbers[view]
    out[:, view, left:right] = 0
    j0, j1 = max(left + first[0], 0), min(right + first[0], cells[1])
    row, slice_, count = common
    if number < 0 or number >= views.shape[0] or j0 >= j1 or count == 0:
        return
    t, lx = views[number], local[1]
    volume = source.reshape(source.shape[0], local[0] * lx, local[2])
    found = np.empty((FOUND, LINE))
    firsts = np.empty(LINE)
    weights = np.empty((j1 - j0, LINE))
    listed = np.zeros(j1 - j0, np.int64)
    lines = np.empty((j1 - j0, _LISTED), np.int64)
    shares = np.empty((j1 - j0, _LISTED), out.dtype)
    for y0 in range(plane[2], plane[3], _LINES):
        y1 = min(y0 + _LINES, plane[3])
        for x in range(plane[0], plane[1], LINE):
            m = min(LINE, plane[1] - x)
            if not meets(diverging, curved, t, x, x + m, y0, y1, j0, j1):
                continue
            for y in range(y0, y1):
                line_profiles(diverging, curved, box, t, spacing, x, m, y, found)
                cells_met = cell_weights(found, m, j0, j1, firsts, weights)
                cell = (y - origin[1]) * lx + x - origin[0]
                for i in range(m):
                    start = int(firsts[i])
                    for j in range(start, start + cells_met):
                        weight = weights[j - start, i]
                        if weight == 0.0:
                            continue
                        c = j - j0
                        n = listed[c]
                        lines[c, n] = cell + i
                        shares[c, n] = weight
                        listed[c] = n + 1
                        if n + 1 == _LISTED:
                            for b in range(out.shape[0]):
                                total = out[b, view, j - first[0], row : row + count]
                                _add_listed(total, volume[b], slice_, count, lines[c], shares[c],
                                            _LISTED)  # fmt: skip
                            listed[c] = 0
    for c in range(j1 - j0):
        for b in range(out.shape[0]):
            total = out[b, view, c + j0 - first[0], row : row + count]
            _add_listed(total, volume[b], slice_, count, lines[c], shares[c], listed[c])


@compiled
def adjoint_tile(table, part, projections, out, cut, work):
    diverging, curved, box, views, _, spacing, cells = table
    numbers, _, _, _, plane, origin, _, first, common, squared, fresh = part
    b, y0, y1, x0, x1 = cut
    if fresh:
        out[b, y0:y1, x0:x1] = 0
    row, slice_, count = common
    lc = projections.shape[2]
    j0, j1 = max(first[0], 0), min(first[0] + lc, cells[1])
    bx0, bx1 = max(x0 + origin[0], plane[0]), min(x1 + origin[0], plane[1])
    by0, by1 = max(y0 + origin[1], plane[2]), min(y1 + origin[1], plane[3])
    if bx0 >= bx1 or by0 >= by1 or j0 >= j1 or count == 0:
        return
    nx = bx1 - bx0
    found = np.empty((FOUND, LINE))
    firsts = np.empty(LINE)
    weights = np.empty((j1 - j0, LINE))
    listed = np.zeros((by1 - by0) * nx, np.int64)
    lines = np.empty(((by1 - by0) * nx, _LISTED), np.int64)
    shares = np.empty(((by1 - by0) * nx, _LISTED), out.dtype)
    data = projections[b].reshape(numbers.shape[0] * lc, projections.shape[3])
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if number < 0 or number >= views.shape[0]:
            continue
        t = views[number]
        if not meets(diverging, curved, t, bx0, bx1, by0, by1, j0, j1):
            continue
        for y in range(by0, by1):
            for x in range(bx0, bx1, LINE):
                m = min(LINE, bx1 - x)
                line_profiles(diverging, curved, box, t, spacing, x, m, y, found)
                cells_met = cell_weights(found, m, j0, j1, firsts, weights)
                for i in range(m):
                    start = int(firsts[i])
                    cell = (y - by0) * nx + x + i - bx0
                    for j in range(start, start + cells_met):
                        weight = weights[j - start, i]
                        if weight == 0.0:
                            continue
                        n = listed[cell]
                        lines[cell, n] = view * lc + j - first[0]
                        shares[cell, n] = weight * weight if squared else weight
                        listed[cell] = n + 1
                        if n + 1 == _LISTED:
                            total = out[
                                b, y - origin[1], x + i - origin[0], slice_ : slice_ + count
                            ]
                            _add_listed(total, data, row, count, lines[cell], shares[cell],
                                        _LISTED)  # fmt: skip
                            listed[cell] = 0
    for cell in range((by1 - by0) * nx):
        y, x = by0 + cell // nx - origin[1], bx0 + cell % nx - origin[0]
        total = out[b, y, x, slice_ : slice_ + count]
        _add_listed(total, data, row, count, lines[cell], shares[cell], listed[cell])


@compiled
def forward_subset(table, part, values, out, cut, work):
    diverging, curved, box, views, _, spacing, cells = table
    numbers, _, _, positions, _, _, local, first, common, _, _ = part
    view, left, right = cut
    number, width = numbers[view], local[1]
    out[:, view, left:right] = 0
    j0, j1 = max(left + first[0], 0), min(right + first[0], cells[1])
    row, slice_, count = common
    if number < 0 or number >= views.shape[0] or j0 >= j1 or count == 0:
        return
    t = views[number]
    found = np.empty((FOUND, LINE))
    firsts = np.empty(LINE)
    weights = np.empty((j1 - j0, LINE))
    for p in range(positions.shape[0]):
        if positions[p] < 0:
            continue
        y, x = positions[p] // width, positions[p] % width
        line_profiles(diverging, curved, box, t, spacing, x, 1, y, found)
        start, stop = _cells(found, j0, j1, firsts, weights)
        for j in range(start, stop):
            weight = out.dtype.type(weights[j - start, 0])
            for b in range(out.shape[0]):
                total = out[b, view, j - first[0], row : row + count]
                _add(total, weight, values[b, p, slice_ : slice_ + count])


@compiled
def adjoint_subset(table, part, projections, out, cut, work):
    diverging, curved, box, views, _, spacing, cells = table
    numbers, _, _, positions, _, _, local, first, common, _, fresh = part
    p0, p1 = cut
    width = local[1]
    if fresh:
        out[:, p0:p1] = 0
    row, slice_, count = common
    j0 = max(first[0], 0)
    j1 = min(first[0] + projections.shape[2], cells[1])
    if j0 >= j1 or count == 0:
        return
    found = np.empty((FOUND, LINE))
    firsts = np.empty(LINE)
    weights = np.empty((j1 - j0, LINE))
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if number < 0 or number >= views.shape[0]:
            continue
        t = views[number]
        for p in range(p0, p1):
            if positions[p] < 0:
                continue
            y, x = positions[p] // width, positions[p] % width
            line_profiles(diverging, curved, box, t, spacing, x, 1, y, found)
            start, stop = _cells(found, j0, j1, firsts, weights)
            for j in range(start, stop):
                weight = out.dtype.type(weights[j - start, 0])
                for b in range(out.shape[0]):
                    total = out[b, p, slice_ : slice_ + count]
                    _add(total, weight, projections[b, view, j - first[0], row : row + count])


@compiled
def _cells(found, j0, j1, firsts, weights):
    """First and last cell of the single voxel found; its weights are `weights[:, 0]`."""
    cells_met = cell_weights(found, 1, j0, j1, firsts, weights)
    return int(firsts[0]), int(firsts[0]) + cells_met


@fused
def _add(total, weight, source):
    for k in range(total.shape[0]):
        total[k] += weight * source[k]


@fused
def _add_listed(total, source, start, count, lines, shares, listed):
    """Add the listed lines of `source`, from `start` on."""
    if listed == _LISTED:
        w0, w1, w2, w3 = shares[0], shares[1], shares[2], shares[3]
        w4, w5, w6, w7 = shares[4], shares[5], shares[6], shares[7]
        p0 = source[lines[0], start : start + count]
        p1 = source[lines[1], start : start + count]
        p2 = source[lines[2], start : start + count]
        p3 = source[lines[3], start : start + count]
        p4 = source[lines[4], start : start + count]
        p5 = source[lines[5], start : start + count]
        p6 = source[lines[6], start : start + count]
        p7 = source[lines[7], start : start + count]
        for k in range(count):
            total[k] += ((w0 * p0[k] + w1 * p1[k]) + (w2 * p2[k] + w3 * p3[k])) + (
                (w4 * p4[k] + w5 * p5[k]) + (w6 * p6[k] + w7 * p7[k])
            )
        return
    for m in range(listed):
        _add(total, shares[m], source[lines[m], start : start + count])
