"""Tiles of the footprint of images in the exact precisions: lines of pixels, vectorised.

A line's weights are found for all its pixels at once, as many cells of each as the widest has.
Forward adds them to the columns that a task owns, along the axis of the image on which the shadow
moves faster, so that neighbors rarely meet in a cell; adjoint gathers. Sums are float64. A batch
shares the weights.
"""

from __future__ import annotations

import numpy as np

from geometries.kernels.compiling import compiled
from geometries.kernels.footprint_profile import FOUND, cell_weights, line_profiles, meets
from linops.compiled.noalias import add, load

__all__ = ["adjoint_tile", "forward_tile", "turned_view"]

_LINE = 64


@compiled
def forward_tile(diverging, curved, box, table, flipped, spacing, cells, numbers, images, turned,
                 first, plane, out, first_column, tile):  # fmt: skip
    """`images` (B, ly, lx), `turned` the same transposed; `out` (B, views, columns, 1)."""
    view, c0, c1 = tile
    number = numbers[view]
    out[:, view, c0:c1] = 0
    cols, j0, j1 = cells[1], max(c0 + first_column, 0), min(c1 + first_column, cells[1])
    if number < 0 or number >= table.shape[0] or j0 >= j1:
        return
    turn, t, sides, x0, x1, y0, y1 = turned_view(diverging, table[number], spacing, plane)
    if x0 >= x1 or y0 >= y1:
        return
    lines, dx, dy = (turned, first[1], first[2]) if turn else (images, first[2], first[1])
    batch = out.shape[0]
    # Of the whole detector, so that the order of sums does not depend on the columns asked for.
    total = np.zeros((batch, 2 * cols + 1))
    found = np.empty((FOUND, _LINE))
    firsts = np.empty(_LINE)
    place = np.empty(_LINE, np.int32)
    weights = np.empty((cols, _LINE))
    for y in range(y0, y1):
        for x in range(x0, x1, _LINE):
            m = min(_LINE, x1 - x)
            if not meets(diverging, curved, t, x, x + m, y, y + 1, j0, j1):
                continue
            line_profiles(diverging, curved, box, t, sides, x, m, y, found)
            count = cell_weights(found, m, np.int64(0), cols, firsts, weights)
            for i in range(m):
                place[i] = np.int32(firsts[i])
            for b in range(batch):
                source = lines[b, y - dy, x - dx : x - dx + m]
                for n in range(count):
                    _scatter(total[b, n:], place, weights[n], source)
    for b in range(batch):
        for j in range(j0, j1):
            out[b, view, j - first_column, 0] = total[b, j]


@compiled
def adjoint_tile(diverging, curved, box, table, flipped, spacing, cells, numbers, sinograms,
                 first_column, out, first, plane, tile, squared):  # fmt: skip
    """`sinograms` (B, views, columns, 1); the task owns lines [y0, y1) of `out` (B, ly, lx, 1)."""
    y0, y1 = tile
    out[:, y0:y1] = 0
    columns = sinograms.shape[2]
    j0, j1 = max(first_column, 0), min(first_column + columns, cells[1])
    if j0 >= j1:
        return
    batch = out.shape[0]
    data = sinograms.reshape(batch, sinograms.shape[1], columns)
    found = np.empty((FOUND, _LINE))
    firsts = np.empty(_LINE)
    place = np.empty(_LINE, np.int32)
    weights = np.empty((j1 - j0, _LINE))
    total = np.empty((batch, _LINE))
    last = np.int32(j1 - 1 - first_column)
    for y in range(max(y0 + first[1], plane[2]), min(y1 + first[1], plane[3])):
        for x in range(plane[0], plane[1], _LINE):
            m = min(_LINE, plane[1] - x)
            total[:] = 0
            for view in range(numbers.shape[0]):
                number = numbers[view]
                if number < 0 or number >= table.shape[0]:
                    continue
                t = table[number]
                if not meets(diverging, curved, t, x, x + m, y, y + 1, j0, j1):
                    continue
                line_profiles(diverging, curved, box, t, spacing, x, m, y, found)
                count = cell_weights(found, m, j0, j1, firsts, weights)
                for n in range(count):
                    line = weights[n]
                    for i in range(m):
                        cell = np.int32(firsts[i] + n - first_column)
                        place[i] = cell if cell < last else last
                    if squared:
                        for i in range(m):
                            line[i] = line[i] * line[i]
                    for b in range(batch):
                        _gather(total[b], place, line, data[b, view], m)
            for b in range(batch):
                for i in range(m):
                    out[b, y - first[1], x - first[2] + i, 0] = total[b, i]


@compiled
def turned_view(diverging, numbers, spacing, plane):
    """Whether x and y change places so that the shadow moves faster along lines, and what follows.

    Then come the numbers of the view, (dx, dy) and the plane (x0, x1, y0, y1) in the new order.
    """
    t, sides = numbers.copy(), spacing.copy()
    x0, x1, y0, y1 = plane[0], plane[1], plane[2], plane[3]
    turn = _turn(diverging, t, plane)
    if turn:
        t[1], t[2] = t[2], t[1]
        if diverging:
            t[4], t[5] = t[5], t[4]
            t[8], t[9] = t[9], t[8]
        sides[0], sides[1] = sides[1], sides[0]
        x0, x1, y0, y1 = y0, y1, x0, x1
    return turn, t, sides, x0, x1, y0, y1


@compiled
def _turn(diverging, t, plane):
    """Whether the shadow moves faster along y than along x, in the middle of the image."""
    along_x, along_y = abs(t[1]), abs(t[2])
    if diverging:
        x, y = 0.5 * (plane[0] + plane[1]), 0.5 * (plane[2] + plane[3])
        a = t[0] + t[1] * x + t[2] * y
        b = t[3] + t[4] * x + t[5] * y
        along_x, along_y = abs(t[1] * b - a * t[4]), abs(t[2] * b - a * t[5])
    return along_y > along_x


@compiled
def _scatter(total, place, weights, source):
    for i in range(source.shape[0]):
        w = weights[i]
        total[place[i]] += w * source[i] if w != 0.0 else 0.0


@compiled
def _gather(total, place, weights, source, m):
    for i in range(np.int32(m)):
        w = load(weights, i)
        value = w * load(source, load(place, i))
        add(total, i, value if w != 0.0 else 0.0)
