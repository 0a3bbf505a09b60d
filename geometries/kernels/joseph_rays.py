"""Joseph's weights along a ray of `rays3d`: four cells a slab, in float64.

A ray is driven by the axis along which it crosses most cells (`ties` has the rule). Its
part in a slab, one layer of cells across that axis, counts with its length; the value there is
interpolated between the four cells whose centers enclose the middle of the part (Joseph 1982). Of
the outermost centers half a cell remains. `plane_samples` are the slabs of all rays of a detector
column, where it is parallel to z and its rays are driven by x or y. A weight follows from the ray
and the number of the slab alone, so it has the same bits forward and adjoint, whole or of any part.
Sums belong to the kernels.
"""

from __future__ import annotations

import math

import numpy as np

from geometries.kernels.compiling import compiled
from geometries.kernels.rays3d import crossing_range, inverse, leads

__all__ = ["SIDES", "plane_samples", "samples"]

SIDES = 4  # cells a slab


@compiled
def samples(line, box, first, local, cells, weights):
    """List the cells of `box` = (x0, x1, y0, y1, z0, z1) that a ray takes values from.

    Writes flat positions in a C-contiguous array of `local` = (ly, lx, lz) cells whose first cell
    is `first` = (fx, fy, fz), and physical weights; returns their number, at most `SIDES` times
    the longest extent of the box.
    """
    ox, oy, oz, dx, dy, dz, start, stop, metre = line
    x = (ox, dx, box[0], box[1], first[0], local[2])
    y = (oy, dy, box[2], box[3], first[1], local[1] * local[2])
    z = (oz, dz, box[4], box[5], first[2], np.int64(1))
    ax, ay, az = abs(dx), abs(dy), abs(dz)
    if not leads(max(ax, ay), az):
        return _march(z, x, y, start, stop, metre, cells, weights)
    if leads(ax, ay):
        return _march(x, y, z, start, stop, metre, cells, weights)
    return _march(y, z, x, start, stop, metre, cells, weights)


@compiled
def plane_samples(line, x0, x1, y0, y1, fx, fy, lx, cells, shares, middles):
    """List the slabs of [x0, x1) x [y0, y1) in which a column's ray has values, in rising order.

    Writes for each the middle of its part, flat positions (2, slabs) in a C-contiguous (ly, lx)
    array whose first cell is (fx, fy), -1 outside the box, and their shares of the part's length,
    in units of `rays3d.plane_ray`; returns the number of slabs, at most the longer extent.
    """
    x = (line[0], line[2], x0, x1, fx, np.int64(1))
    y = (line[1], line[3], y0, y1, fy, lx)
    if leads(abs(line[2]), abs(line[3])):
        return _plane_march(x, y, line[4], line[5], cells, shares, middles)
    return _plane_march(y, x, line[4], line[5], cells, shares, middles)


@compiled
def _plane_march(drive, one, start, stop, cells, shares, middles):
    o, d, low, high, first, stride = drive
    o1, d1, low1, high1, first1, stride1 = one
    inv = inverse(d)[0]
    begin, end = _range(o, d, low, high)
    begin1, end1 = _range(o1, d1, low1 - 1, high1 + 1)
    here, last = max(start, max(begin, begin1)), min(stop, min(end, end1))
    if not here < last:
        return 0
    near, far = o + here * d, o + last * d
    if near > far:
        near, far = far, near
    count = 0
    for j in range(max(low, int(math.floor(near)) - 1), min(high, int(math.floor(far)) + 2)):
        t1, t2 = (j - o) * inv, (j + 1 - o) * inv
        if t1 > t2:
            t1, t2 = t2, t1
        t1, t2 = max(t1, start), min(t2, stop)
        if not t1 < t2:
            continue
        middle = 0.5 * (t1 + t2)
        p = o1 + middle * d1 - 0.5
        below = math.floor(p)
        share = p - below
        i = int(min(max(below, low1 - 2.0), float(high1)))
        left, right = low1 <= i < high1, low1 <= i + 1 < high1 and share > 0.0
        if not (left or right):
            continue
        place = (j - first) * stride + (i - first1) * stride1
        shares[0, count] = (t2 - t1) * (1.0 - share)
        shares[1, count] = (t2 - t1) * share
        cells[0, count] = place if left else -1
        cells[1, count] = place + stride1 if right else -1
        middles[count] = middle
        count += 1
    return count


@compiled
def _march(drive, one, two, start, stop, metre, cells, weights):
    """`samples` where each axis is (origin, direction, low, high, first, stride)."""
    o, d, low, high, first, stride = drive
    o1, d1, low1, high1, first1, stride1 = one
    o2, d2, low2, high2, first2, stride2 = two
    inv = inverse(d)[0]
    begin, end = _range(o, d, low, high)
    # Half a cell beside the box the outermost center still counts; a whole one is generous.
    begin1, end1 = _range(o1, d1, low1 - 1, high1 + 1)
    begin2, end2 = _range(o2, d2, low2 - 1, high2 + 1)
    here = max(max(start, begin), max(begin1, begin2))
    last = min(min(stop, end), min(end1, end2))
    if not here < last:
        return 0
    near, far = o + here * d, o + last * d
    if near > far:
        near, far = far, near
    count = 0
    for j in range(max(low, int(math.floor(near)) - 1), min(high, int(math.floor(far)) + 2)):
        t1, t2 = (j - o) * inv, (j + 1 - o) * inv
        if t1 > t2:
            t1, t2 = t2, t1
        t1, t2 = max(t1, start), min(t2, stop)
        if not t1 < t2:
            continue
        length = (t2 - t1) * metre
        middle = 0.5 * (t1 + t2)
        p, q = o1 + middle * d1 - 0.5, o2 + middle * d2 - 0.5
        below, left = math.floor(p), math.floor(q)
        if not (below >= low1 - 1 and below < high1 and left >= low2 - 1 and left < high2):
            continue
        share1, share2 = p - below, q - left
        i, k = int(below), int(left)
        place = (j - first) * stride + (i - first1) * stride1 + (k - first2) * stride2
        for a in range(2):
            if i + a < low1 or i + a >= high1:
                continue
            across = length * (share1 if a else 1.0 - share1)
            for b in range(2):
                weight = across * (share2 if b else 1.0 - share2)
                if k + b >= low2 and k + b < high2 and weight > 0.0:
                    cells[count] = place + a * stride1 + b * stride2
                    weights[count] = weight
                    count += 1
    return count


@compiled
def _range(origin, direction, low, high):
    return crossing_range(origin, direction, inverse(direction)[0], float(low), float(high))
