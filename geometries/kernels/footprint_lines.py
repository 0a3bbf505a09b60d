"""Tiles of the footprint of images in precision "fast": whole lines of pixels, in float32.

The shadows of the corners of pixels are found in float64, each once for the pixels that share it.
A trapezoid is then kept as offsets from the first cell that it meets, which float32 resolves to
some 1e-7 of a cell wherever the cell is; areas and weights are those of `footprint_profile`.
Forward scatters to the columns of the whole detector, along the axis of the image on which the
shadow moves faster, so that neighbors rarely meet in a cell; adjoint gathers. A batch shares the
weights, and sums are cleared into a longer one now and then. Exact precisions are
`footprint_planar`'s.
"""

from __future__ import annotations

import math

import numpy as np

from geometries.kernels.compiling import compiled
from geometries.kernels.footprint_planar import turned_view
from geometries.kernels.footprint_profile import meets
from linops.compiled.noalias import add, load, store

__all__ = ["adjoint_tile", "forward_tile"]

_LINE = 256
_LINES = 16  # lines between two additions of a forward tile's partial sums
_VIEWS = 32  # views between those of an adjoint
_ZERO, _HALF = np.float32(0.0), np.float32(0.5)


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
    total = np.zeros((batch, cols + 2))
    recent = np.zeros((batch, cols + 2), np.float32)
    below, above = np.empty(x1 - x0 + 1), np.empty(x1 - x0 + 1)
    firsts, shape, areas, place, vertices = _empty()
    values = np.empty(_LINE, np.float32)
    _corners(diverging, curved, t, x0, y0 - 0.5, below)
    for y in range(y0, y1):
        _corners(diverging, curved, t, x0, y + 0.5, above)
        for x in range(x0, x1, _LINE):
            m = min(_LINE, x1 - x)
            if not meets(diverging, curved, t, x, x + m, y, y + 1, j0, j1):
                continue
            count = _shapes(diverging, curved, box, t, sides, x, m, y, below,
                            above, x - x0, cols, firsts, shape, vertices)  # fmt: skip
            for n in range(count):
                _weigh(shape, m, n, areas)
                _places(firsts, m, n, cols, place)
                for b in range(batch):
                    _multiply(areas, lines[b, y - dy, x - dx :], m, values)
                    _scatter(recent[b], place, values, m)
        below, above = above, below
        if y % _LINES == _LINES - 1 or y == y1 - 1:
            total += recent
            recent[:] = 0
    for b in range(batch):
        for j in range(j0, j1):
            out[b, view, j - first_column, 0] = total[b, j + 1]


@compiled
def adjoint_tile(diverging, curved, box, table, flipped, spacing, cells, numbers, sinograms,
                 first_column, out, first, plane, tile):  # fmt: skip
    """`sinograms` (B, views, columns, 1); the task owns lines [y0, y1) of `out` (B, ly, lx, 1)."""
    out[:, tile[0] : tile[1]] = 0
    columns, cols, batch = sinograms.shape[2], cells[1], out.shape[0]
    j0, j1 = max(first_column, 0), min(first_column + columns, cols)
    x0, x1 = plane[0], plane[1]
    y0, y1 = max(tile[0] + first[1], plane[2]), min(tile[1] + first[1], plane[3])
    if j0 >= j1 or x0 >= x1 or y0 >= y1:
        return
    image = out.reshape(batch, out.shape[1], out.shape[2])
    below, above = np.empty(x1 - x0 + 1), np.empty(x1 - x0 + 1)
    firsts, shape, areas, place, vertices = _empty()
    data = np.zeros((batch, cols + 2), np.float32)
    sums = np.zeros((batch, y1 - y0, x1 - x0), np.float32)
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if 0 <= number < table.shape[0]:
            t = table[number]
            for b in range(batch):
                for j in range(j0, j1):
                    data[b, j + 1] = sinograms[b, view, j - first_column, 0]
            _corners(diverging, curved, t, x0, y0 - 0.5, below)
            for y in range(y0, y1):
                _corners(diverging, curved, t, x0, y + 0.5, above)
                for x in range(x0, x1, _LINE):
                    m = min(_LINE, x1 - x)
                    if not meets(diverging, curved, t, x, x + m, y, y + 1, j0, j1):
                        continue
                    count = _shapes(diverging, curved, box, t, spacing, x, m, y, below,
                                    above, x - x0, cols, firsts, shape, vertices)  # fmt: skip
                    for n in range(count):
                        _weigh(shape, m, n, areas)
                        _places(firsts, m, n, cols, place)
                        for b in range(batch):
                            _gather(sums[b, y - y0, x - x0 :], areas, data[b], place, m)
                below, above = above, below
        if view % _VIEWS == _VIEWS - 1 or view == numbers.shape[0] - 1:
            for b in range(batch):
                for y in range(y0, y1):
                    for x in range(x0, x1):
                        image[b, y - first[1], x - first[2]] += sums[b, y - y0, x - x0]
            sums[:] = 0


@compiled
def _empty():
    """Room for the pixels of a line: first cells; nine lines of numbers of their profiles; areas
    up to two edges and weights; places of cells; four vertices. Lines follow each other in flat
    arrays, because a view of an array costs as much as ten pixels.
    """
    return (np.empty(_LINE, np.int32), np.empty(9 * _LINE, np.float32),
            np.empty(3 * _LINE, np.float32), np.empty(_LINE, np.int32),
            np.empty(4 * _LINE))  # fmt: skip


@compiled
def _corners(diverging, curved, t, x0, y, line):
    """Where the corners x0 - 1/2, x0 + 1/2, ... at height y have their shadows, in cells."""
    for i in range(line.shape[0]):
        x = x0 - 0.5 + np.int32(i)
        a = t[0] + t[1] * x + t[2] * y
        if diverging:
            b = t[3] + t[4] * x + t[5] * y
            a = t[7] + t[6] * (math.atan2(a, b) if curved else a / b)
        store(line, i, a)


@compiled
def _shapes(diverging, curved, box, t, spacing, x0, m, y, below, above, at, cols, firsts, shape,
            vertices):  # fmt: skip
    """The first cell of each pixel, and from there its profile; the cells that the widest has.

    Lines of `shape`: c0, c1, c2, the widths of the three parts, half the inverse of the first and
    the last, and the height. `below[at]`, `above[at]` are the first corners.
    """
    if box:
        _ends(diverging, curved, t, spacing, x0, m, y, vertices)
    else:
        _sort(below, above, at, m, vertices)
    _relate(vertices, m, firsts, shape)
    most = _widest(firsts, shape, m, cols)
    _parts(shape, m)
    _heights(diverging, curved, t, x0, m, y, shape)
    return most + 1


@compiled
def _sort(below, above, at, m, vertices):
    """The shadows of four corners in rising order."""
    for i in range(m):
        p, q = load(below, at + i), load(above, at + i)
        r, s = load(below, at + 1 + i), load(above, at + 1 + i)
        low, high = (p if p < q else q), (q if p < q else p)
        left, right = (r if r < s else s), (s if r < s else r)
        least, inner = (low if low < left else left), (left if low < left else low)
        outer, most = (high if high < right else right), (right if high < right else high)
        store(vertices, i, least)
        store(vertices, _LINE + i, inner if inner < outer else outer)
        store(vertices, 2 * _LINE + i, outer if inner < outer else inner)
        store(vertices, 3 * _LINE + i, most)


@compiled
def _ends(diverging, curved, t, spacing, x0, m, y, vertices):
    """The two ends of profiles of constant height, twice each."""
    a0, a1 = t[0] + t[2] * y + t[1] * x0, t[1]
    b0, b1 = t[3] + t[5] * y + t[4] * x0, t[4]
    first, dx, dy, fixed = t[8] + spacing[0] * x0, spacing[0], spacing[1], t[5]
    scale, shift, along = t[6], t[7], abs(t[9] + spacing[1] * y) * spacing[0]
    for i in range(m):
        step = float(np.int32(i))
        a, half = a0 + a1 * step, fixed
        if diverging:
            b = b0 + b1 * step
            across = abs(first + dx * step) * dy
            widest = across if across > along else along
            half = 0.5 * scale * widest / (a * a + b * b if curved else b * b)
            a = shift + scale * (math.atan2(a, b) if curved else a / b)
        store(vertices, i, a - half)
        store(vertices, _LINE + i, a - half)
        store(vertices, 2 * _LINE + i, a + half)
        store(vertices, 3 * _LINE + i, a + half)


@compiled
def _relate(vertices, m, firsts, shape):
    """The cell in which a profile begins, and its vertices from there (in 0, 1, 2 and 8)."""
    for i in range(m):
        c0 = load(vertices, i)
        cell = np.floor(c0 + 0.5)
        cell = cell if cell > -1e9 else -1e9
        cell = cell if cell < 1e9 else 1e9
        store(firsts, i, np.int32(cell))
        store(shape, i, np.float32(c0 - cell))
        store(shape, _LINE + i, np.float32(load(vertices, _LINE + i) - cell))
        store(shape, 2 * _LINE + i, np.float32(load(vertices, 2 * _LINE + i) - cell))
        store(shape, 8 * _LINE + i, np.float32(load(vertices, 3 * _LINE + i) - cell))


@compiled
def _widest(firsts, shape, m, cols):
    """How far beyond its first cell any profile reaches, of those that reach the detector."""
    most, none, last = np.int32(-1), np.int32(-1), np.int32(cols)
    for i in range(m):
        here, first = np.int32(np.ceil(load(shape, 8 * _LINE + i) - _HALF)), load(firsts, i)
        here = here if first < last else none
        here = here if first + here >= np.int32(0) else none
        most = here if here > most else most
    return most


@compiled
def _parts(shape, m):
    """Widths of the parts of profiles, and half the inverse of the first and the last."""
    for i in range(m):
        c1, c2 = load(shape, _LINE + i), load(shape, 2 * _LINE + i)
        left, right = c1 - load(shape, i), load(shape, 8 * _LINE + i) - c2
        store(shape, 3 * _LINE + i, left)
        store(shape, 4 * _LINE + i, c2 - c1)
        store(shape, 5 * _LINE + i, right)
        store(shape, 6 * _LINE + i, _HALF / left if left > _ZERO else _ZERO)
        store(shape, 7 * _LINE + i, _HALF / right if right > _ZERO else _ZERO)


@compiled
def _heights(diverging, curved, t, x0, m, y, shape):
    mass = np.float32(t[10])
    a0, a1 = t[0] + t[2] * y + t[1] * x0, t[1]
    b0, b1 = t[3] + t[5] * y + t[4] * x0, t[4]
    for i in range(m):
        area = _HALF * (load(shape, 3 * _LINE + i) + load(shape, 5 * _LINE + i))
        area += load(shape, 4 * _LINE + i)
        if diverging:
            step = float(np.int32(i))
            a, b = np.float32(a0 + a1 * step), np.float32(b0 + b1 * step)
            h = np.sqrt(a * a + b * b)
            area = area * h if curved else area * (b * b) / h
        store(shape, 8 * _LINE + i, mass / area)


@compiled
def _weigh(shape, m, n, areas):
    """Weights of the cells `firsts + n`, into the last line of `areas`; n rises from 0."""
    if n == 0:
        areas[:] = 0
    before, after = (n % 2) * _LINE, (1 - n % 2) * _LINE
    edge = np.float32(n) + _HALF
    for i in range(m):
        rise, flat = load(shape, 3 * _LINE + i), load(shape, 4 * _LINE + i)
        fall = load(shape, 5 * _LINE + i)
        one, two = edge - load(shape, i), edge - load(shape, _LINE + i)
        three = edge - load(shape, 2 * _LINE + i)
        one = one if one > _ZERO else _ZERO
        one = one if one < rise else rise
        two = two if two > _ZERO else _ZERO
        two = two if two < flat else flat
        three = three if three > _ZERO else _ZERO
        three = three if three < fall else fall
        area = one * one * load(shape, 6 * _LINE + i) + two
        area += three - three * three * load(shape, 7 * _LINE + i)
        store(areas, after + i, area)
        weight = load(shape, 8 * _LINE + i) * (area - load(areas, before + i))
        store(areas, 2 * _LINE + i, weight)


@compiled
def _places(firsts, m, n, cols, place):
    """Where cells `firsts + n` stand between one number before the first column and one after."""
    shift, last = np.int32(n + 1), np.int32(cols + 1)
    for i in range(m):
        cell = load(firsts, i) + shift
        cell = cell if cell > np.int32(0) else np.int32(0)
        store(place, i, cell if cell < last else last)


@compiled
def _multiply(areas, source, m, values):
    for i in range(m):
        w = load(areas, 2 * _LINE + i)
        value = w * np.float32(load(source, i))
        store(values, i, value if w != _ZERO else _ZERO)


@compiled
def _scatter(total, place, values, m):
    for i in range(m):
        add(total, load(place, i), load(values, i))


@compiled
def _gather(total, areas, data, place, m):
    for i in range(m):
        w = load(areas, 2 * _LINE + i)
        value = w * load(data, load(place, i))
        add(total, i, value if w != _ZERO else _ZERO)
