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

from numba import njit

__all__ = ["LINE", "cell_weights", "line_profiles", "meets"]

_compiled = njit(nogil=True, cache=True, error_model="numpy")
LINE = 16


@_compiled
def line_profiles(diverging, curved, box, t, spacing, x0, count, y, found):
    """Profiles of `count` voxels of line y from x0 on, into `found` (7, >= count).

    Its lines: vertices c0 <= c1 <= c2 <= c3, height, and for diverging beams the factor of rows
    (1 / b, or 1 / h where curved) and 1 / h.
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
    ax, ay, bx, by = 0.5 * t[1], 0.5 * t[2], 0.5 * t[4], 0.5 * t[5]
    for i in range(count):
        a = t[0] + t[1] * (x0 + i) + t[2] * y
        b = t[3] + t[4] * (x0 + i) + t[5] * y
        squared = a * a + b * b
        h = math.sqrt(squared)
        if curved:
            mass = t[10] / h
            found[5, i] = 1.0 / h
        else:
            mass = t[10] * h / (b * b)
            found[5, i] = 1.0 / b
        found[6, i] = 1.0 / h
        if box:
            across = abs(t[8] + spacing[0] * (x0 + i)) * spacing[1]
            along = abs(t[9] + spacing[1] * y) * spacing[0]
            widest = across if across > along else along
            half = 0.5 * t[6] * widest / (squared if curved else b * b)
            middle = t[7] + t[6] * (math.atan2(a, b) if curved else a / b)
            found[0, i] = found[1, i] = middle - half
            found[2, i] = found[3, i] = middle + half
            found[4, i] = mass / (2.0 * half)
            continue
        if curved:
            p = math.atan2(a - ax - ay, b - bx - by)
            q = math.atan2(a - ax + ay, b - bx + by)
            r = math.atan2(a + ax - ay, b + bx - by)
            s = math.atan2(a + ax + ay, b + bx + by)
        else:
            p = (a - ax - ay) / (b - bx - by)
            q = (a - ax + ay) / (b - bx + by)
            r = (a + ax - ay) / (b + bx - by)
            s = (a + ax + ay) / (b + bx + by)
        p, q = (p, q) if p < q else (q, p)
        r, s = (r, s) if r < s else (s, r)
        least, q2 = (p, r) if p < r else (r, p)
        r2, most = (q, s) if q < s else (s, q)
        q, r = (q2, r2) if q2 < r2 else (r2, q2)
        found[0, i] = t[6] * least + t[7]
        found[1, i] = t[6] * q + t[7]
        found[2, i] = t[6] * r + t[7]
        found[3, i] = t[6] * most + t[7]
        found[4, i] = 2.0 * mass / (t[6] * (most - least + r - q))


@_compiled
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


@_compiled
def cell_weights(found, i, start, stop, weights):
    """Weights of voxel i of a line in cells [first, last) of [start, stop); first and last.

    `weights[j - first]` is the weight of cell j. The cumulative area of the trapezoid is the sum of
    three clamped pieces, so upright sides need no case of their own.
    """
    c0, c1, c2, c3 = found[0, i], found[1, i], found[2, i], found[3, i]
    first = max(start, int(math.floor(c0 + 0.5)))
    last = min(stop, int(math.ceil(c3 - 0.5)) + 1)
    if first >= last:
        return first, first
    left, flat, right = c1 - c0, c2 - c1, c3 - c2
    rise = 0.5 / left if left > 0.0 else 0.0
    fall = 0.5 / right if right > 0.0 else 0.0
    before = 0.0
    for n in range(last - first + 1):
        edge = first + n - 0.5
        z = min(max(edge - c0, 0.0), left)
        area = z * z * rise + min(max(edge - c1, 0.0), flat)
        z = min(max(edge - c2, 0.0), right)
        area += z - z * z * fall
        if n > 0:
            weights[n - 1] = found[4, i] * (area - before)
        before = area
    return first, last
