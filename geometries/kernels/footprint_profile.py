"""The column profile of a voxel: a trapezoid whose integral over each detector cell is a weight.

Device functions for the footprint kernels. Positions are real numbers of cells, cell j covers
[j - 1/2, j + 1/2]; everything here is float64 and no code is fast-math, so that every kernel finds
the same cells and weights. A box is a trapezoid with upright sides.

A weight is `mass * (share of the trapezoid's area in cell j)`. With `h` the distance from source to
voxel in the plane, `b` its part along the detector's normal and D that of the detector, the mass is
`amplitude * w_u / du` of the models in docs/models.md, where the `f` of both cancels:

    parallel    dx dy / du
    flat        dx dy D h / (b^2 du)        (/ cos phi: footprint_rows)
    curved      dx dy D / (h du)
"""

from __future__ import annotations

import math

from geometries.kernels.compiling import compiled

__all__ = ["FOUND", "LINE", "cell_weights", "cells_of", "line_profiles", "meets"]

FOUND = 10
LINE = 16


@compiled
def line_profiles(diverging, curved, box, t, spacing, x0, count, y, found):
    """Profiles of `count` voxels of line y from x0 on, into `found` (FOUND, >= count).

    Its lines: vertices c0 <= c1 <= c2 <= c3, height, and for diverging beams the factor of rows
    (1 / b, or 1 / h where curved) and 1 / h; the rest is scratch of `cell_weights`.
    """
    if not diverging:
        half, flat = (t[5], t[5]) if box else (t[3], t[4])
        height = t[10] / (half + flat)
        for i in range(count):
            middle = t[0] + t[1] * (x0 + i) + t[2] * y
            found[0, i] = middle - half
            found[1, i] = middle - flat
            found[2, i] = middle + flat
            found[3, i] = middle + half
            found[4, i] = height
        return
    if curved:
        for i in range(count):
            a = t[0] + t[1] * (x0 + i) + t[2] * y
            b = t[3] + t[4] * (x0 + i) + t[5] * y
            found[5, i] = found[6, i] = 1.0 / math.sqrt(a * a + b * b)
            found[4, i] = t[10] * found[5, i]
    else:
        for i in range(count):
            a = t[0] + t[1] * (x0 + i) + t[2] * y
            b = t[3] + t[4] * (x0 + i) + t[5] * y
            h = math.sqrt(a * a + b * b)
            found[5, i] = 1.0 / b
            found[6, i] = 1.0 / h
            found[4, i] = t[10] * h * found[5, i] * found[5, i]
    if box:
        _box_vertices(curved, t, spacing, x0, count, y, found)
    elif curved:
        _curved_vertices(t, x0, count, y, found)
    else:
        _flat_vertices(t, x0, count, y, found)


@compiled
def _flat_vertices(t, x0, count, y, found):
    """The shadows of four corners in order, and the mass in line 4 divided by their trapezoid."""
    ax, ay, bx, by = 0.5 * t[1], 0.5 * t[2], 0.5 * t[4], 0.5 * t[5]
    for i in range(count):
        a = t[0] + t[1] * (x0 + i) + t[2] * y
        b = t[3] + t[4] * (x0 + i) + t[5] * y
        p = (a - ax - ay) / (b - bx - by)
        q = (a - ax + ay) / (b - bx + by)
        r = (a + ax - ay) / (b + bx - by)
        s = (a + ax + ay) / (b + bx + by)
        low, high = (p if p < q else q), (q if p < q else p)
        left, right = (r if r < s else s), (s if r < s else r)
        least, inner = (low if low < left else left), (left if low < left else low)
        outer, most = (high if high < right else right), (right if high < right else high)
        second, third = (inner if inner < outer else outer), (outer if inner < outer else inner)
        found[0, i] = t[6] * least + t[7]
        found[1, i] = t[6] * second + t[7]
        found[2, i] = t[6] * third + t[7]
        found[3, i] = t[6] * most + t[7]
        found[4, i] = 2.0 * found[4, i] / (t[6] * (most - least + third - second))


@compiled
def _curved_vertices(t, x0, count, y, found):
    """As `_flat_vertices`, by angles about the source."""
    ax, ay, bx, by = 0.5 * t[1], 0.5 * t[2], 0.5 * t[4], 0.5 * t[5]
    for i in range(count):
        a = t[0] + t[1] * (x0 + i) + t[2] * y
        b = t[3] + t[4] * (x0 + i) + t[5] * y
        p = math.atan2(a - ax - ay, b - bx - by)
        q = math.atan2(a - ax + ay, b - bx + by)
        r = math.atan2(a + ax - ay, b + bx - by)
        s = math.atan2(a + ax + ay, b + bx + by)
        low, high = min(p, q), max(p, q)
        left, right = min(r, s), max(r, s)
        inner, outer = max(low, left), min(high, right)
        least, most = min(low, left), max(high, right)
        second, third = min(inner, outer), max(inner, outer)
        found[0, i] = t[6] * least + t[7]
        found[1, i] = t[6] * second + t[7]
        found[2, i] = t[6] * third + t[7]
        found[3, i] = t[6] * most + t[7]
        found[4, i] = 2.0 * found[4, i] / (t[6] * (most - least + third - second))


@compiled
def _box_vertices(curved, t, spacing, x0, count, y, found):
    """The width `w_u` about the voxel's center."""
    for i in range(count):
        a = t[0] + t[1] * (x0 + i) + t[2] * y
        b = t[3] + t[4] * (x0 + i) + t[5] * y
        across = abs(t[8] + spacing[0] * (x0 + i)) * spacing[1]
        along = abs(t[9] + spacing[1] * y) * spacing[0]
        widest = across if across > along else along
        half = 0.5 * t[6] * widest * found[5, i] * found[5, i]
        middle = t[7] + t[6] * (math.atan2(a, b) if curved else a / b)
        found[0, i] = found[1, i] = middle - half
        found[2, i] = found[3, i] = middle + half
        found[4, i] = found[4, i] / (2.0 * half)


@compiled
def meets(diverging, curved, t, x0, x1, y0, y1, start, stop):
    """Whether profiles of voxels [x0, x1) of lines [y0, y1) may reach cells [start, stop).

    Their base is convex, so the shadows of its corners bound them; one cell is left on each side.
    """
    low, high = math.inf, -math.inf
    for i in range(4):
        x = (x1 if i % 2 else x0) - 0.5
        line = (y1 if i < 2 else y0) - 0.5
        a = t[0] + t[1] * x + t[2] * line
        if diverging:
            b = t[3] + t[4] * x + t[5] * line
            a = t[7] + t[6] * (math.atan2(a, b) if curved else a / b)
        low = min(low, a)
        high = max(high, a)
    slack = 1.0 + t[5] if not diverging else 1.0 + 0.5 * (high - low)
    return low - slack < stop and high + slack > start - 1


@compiled
def cell_weights(found, count, start, stop, firsts, weights):
    """Weights of `count` voxels of a line in the cells of [start, stop).

    `weights[n, i]` is the weight of voxel i in cell `firsts[i] + n`, 0 where the voxel has no such
    cell; returns how many n there are. The cumulative area of the trapezoid is the sum of three
    clamped pieces, so upright sides need no case of their own.
    """
    most = -1.0
    first, last = float(start), float(stop - 1)
    for i in range(count):
        low = math.floor(found[0, i] + 0.5)
        low = low if low > first else first
        high = math.ceil(found[3, i] - 0.5)
        high = high if high < last else last
        firsts[i] = low if high >= low else first
        most = most if most > high - low else high - low
        left, right = found[1, i] - found[0, i], found[3, i] - found[2, i]
        found[7, i] = 0.5 / left if left > 0.0 else 0.0
        found[8, i] = 0.5 / right if right > 0.0 else 0.0
    cells = int(most) + 1
    if cells > 0:
        before = found[9]
        _areas(found, count, -0.5, firsts, before)
        for n in range(cells):
            line = weights[n]
            _areas(found, count, n + 0.5, firsts, line)
            for i in range(count):
                area = line[i]
                weight = found[4, i] * (area - before[i])
                line[i] = weight if firsts[i] + n <= last else 0.0
                before[i] = area
    return cells


@compiled
def cells_of(weights, cells, i):
    """The range of n in which voxel i has weights."""
    stop = cells
    while stop > 0 and weights[stop - 1, i] == 0.0:
        stop -= 1
    start = 0
    while start < stop and weights[start, i] == 0.0:
        start += 1
    return start, stop


@compiled
def _areas(found, count, shift, firsts, areas):
    """The area of each unit trapezoid below `firsts[i] + shift`."""
    for i in range(count):
        c0, c1, c2, c3 = found[0, i], found[1, i], found[2, i], found[3, i]
        edge = firsts[i] + shift
        rising, flat, falling = edge - c0, edge - c1, edge - c2
        rising = rising if rising > 0.0 else 0.0
        rising = rising if rising < c1 - c0 else c1 - c0
        flat = flat if flat > 0.0 else 0.0
        flat = flat if flat < c2 - c1 else c2 - c1
        falling = falling if falling > 0.0 else 0.0
        falling = falling if falling < c3 - c2 else c3 - c2
        areas[i] = (
            rising * rising * found[7, i] + flat + (falling - falling * falling * found[8, i])
        )
