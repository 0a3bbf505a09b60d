"""Rays of a planar scan and the weight of a cell on a ray, in float64, for all planar kernels.

A ray is driven by the axis along which it crosses more cells. It is marched slab by slab
(a slab is one row of cells across that axis); within a slab it moves sideways by at most one
cell, so it meets at most two cells, and their chords are one split. Forward, adjoint, the
subsets and the diagonal all take their weights from `split`, so they hold the same bits.

Lengths here are in cells: faces of the grid at 0, 1, ..., n on each axis. Memory, tiles and
sums belong to the kernels that call this.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["ray", "split", "tabulate"]

# Rows of a table of rays (float64): 0 back, lateral position at the middle of the driving axis;
# 1 slope, lateral move a slab; 2 step, length a slab; 3 spread, length per cell of lateral move;
# 4 low and 5 high, the part of the driving axis that the ray covers.
# Rows of a table of ranges (int32): 0 driving axis (0: y, 1: x), 1 first slab, 2 one past the last.


@njit(nogil=True, cache=True, error_model="numpy")
def ray(
    parallel: bool, frame: Any, points: Any, has_points: bool, k: int, lengths: Any, shape: Any
) -> Any:
    """Ray k of one view, as (axis, back, slope, step, spread, low, high).

    `frame` (6,): source (fan) or direction (parallel), detector centre, u; `points` (columns, 2);
    both world lengths from the grid's centre, x first. `lengths`: dx, dy, pitch, offset,
    (columns - 1) / 2; `shape`: nx, ny. Beyond a flat detector k goes on, points repeat the last.
    """
    if has_points:
        at = min(max(k, 0), points.shape[0] - 1)
        px = points[at, 0] / lengths[0]
        py = points[at, 1] / lengths[1]
    else:
        a = (k - lengths[4]) * lengths[2] + lengths[3]
        px = (frame[2] + a * frame[4]) / lengths[0]
        py = (frame[3] + a * frame[5]) / lengths[1]
    qx = frame[0] / lengths[0]
    qy = frame[1] / lengths[1]
    if parallel:
        ex, ey, bx, by = qx, qy, px, py
    else:
        ex = px - qx
        ey = py - qy
        bx, by = px, py
        if qx * qx + qy * qy < px * px + py * py:
            bx, by = qx, qy
    axis = 0
    size, across = lengths[1], lengths[0]
    n, m = shape[1], shape[0]
    begin, end = qy, py
    if abs(ex) > abs(ey):
        axis = 1
        size, across = across, size
        n, m = m, n
        ex, ey = ey, ex
        bx, by = by, bx
        begin, end = qx, px
    low, high = 0.0, 0.0
    slope = 0.0
    if ey != 0.0:
        high = float(n)
        slope = ex / ey
        if abs(slope) <= 1e-20:
            slope = 0.0
        if not parallel:
            low = max(low, min(begin, end) + n * 0.5)
            high = min(high, max(begin, end) + n * 0.5)
    back = bx - by * slope + m * 0.5
    step = np.sqrt((slope * across) * (slope * across) + size * size)
    spread = step / abs(slope) if slope != 0.0 else 0.0
    return axis, back, slope, step, spread, low, high


@njit(nogil=True, cache=True, error_model="numpy")
def split(
    back: float,
    slope: float,
    step: float,
    spread: float,
    low: float,
    high: float,
    slab: float,
    middle: float,
) -> Any:
    """Where a ray crosses a slab: (first cell, length in it, length in the next one).

    The first cell is a float, whole, of any size; lengths are 0 where the ray does not reach
    the slab. A ray in a face belongs to the higher cell, since the floor of its place is it.
    """
    begin = max(slab, low)
    end = min(slab + 1.0, high)
    whole = step * max(end - begin, 0.0)
    one = back + (begin - middle) * slope
    two = back + (end - middle) * slope
    first = np.floor(min(one, two))
    second = max(min((max(one, two) - (first + 1.0)) * spread, whole), 0.0)
    return first, whole - second, second


@njit(nogil=True, cache=True, error_model="numpy")
def tabulate(
    parallel: bool,
    frame: Any,
    points: Any,
    has_points: bool,
    first: int,
    count: int,
    lengths: Any,
    shape: Any,
    box: Any,
    rays: Any,
    ranges: Any,
) -> None:
    """Fill `rays` (6, count) and `ranges` (3, count) for the columns from `first` on.

    Slab ranges are limited to where the ray may meet `box` (x0, x1, y0, y1; whole-grid cells),
    one slab wider than needed at both ends.
    """
    for r in range(count):
        axis, back, slope, step, spread, low, high = ray(
            parallel, frame, points, has_points, first + r, lengths, shape
        )
        rays[0, r] = back
        rays[1, r] = slope
        rays[2, r] = step
        rays[3, r] = spread
        rays[4, r] = low
        rays[5, r] = high
        if axis == 0:
            near, far, left, right, n = box[2], box[3], box[0], box[1], shape[1]
        else:
            near, far, left, right, n = box[0], box[1], box[2], box[3], shape[0]
        begin = max(float(near), low)
        end = min(float(far), high)
        if slope != 0.0:
            # A margin, since positions are rounded: what is taken in vain meets empty cells.
            one = (left - 1e-6 - back) / slope + n * 0.5
            two = (right + 1e-6 - back) / slope + n * 0.5
            begin = max(begin, min(one, two))
            end = min(end, max(one, two))
        elif back < left or back > right:
            end = begin
        if begin < end:
            ranges[1, r] = max(int(np.floor(begin)) - 1, near)
            ranges[2, r] = min(int(np.ceil(end)) + 1, far)
        else:
            ranges[1, r] = near
            ranges[2, r] = near
        ranges[0, r] = axis
