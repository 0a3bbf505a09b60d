"""Rays of a planar scan and the weight of a cell on a ray, in float64, for all planar kernels.

A ray is driven by the axis along which it crosses more cells, as `ties` has it, and marched slab by
slab (a slab is one row of cells across that axis); within a slab it moves sideways by at most one
cell, so it meets at most two cells, and their chords are one split. Forward, adjoint, the subsets
and the diagonal all take their weights from `split`, so they hold the same bits.

Lengths here are in cells: faces of the grid at 0, 1, ..., n on each axis. Memory, tiles and
sums belong to the kernels that call this.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from geometries.kernels.compiling import compiled
from geometries.kernels.rays3d import leads

__all__ = ["Beam", "enter", "fan_places", "parallel_places", "ray", "split", "tabulate"]

# Rows of a table of rays (float64): 0 back, lateral position at the middle of the driving axis;
# 1 slope, lateral move a slab; 2 step, length a slab; 3 spread, length per cell of lateral move;
# 4 low and 5 high, the part of the driving axis that the ray covers.
# Rows of a table of ranges (int32): 0 driving axis (0: y, 1: x), 1 first slab, 2 one past the last,
# 3 whether the ray passes right through the grid.


class Beam(NamedTuple):
    """What rays follow from: a scan as kernels take it, float64, world lengths, x first."""

    parallel: bool
    frames: Any  # (V, 6): source (fan) or direction (parallel), detector center, u
    points: Any  # (V, columns, 2): detector cells of a curved detector, else (1, 0, 2)
    lengths: Any  # (5,): dx, dy, pitch, offset, (columns - 1) / 2
    shape: Any  # (2,) int64: nx, ny


@compiled
def ray(beam: Beam, v: int, k: int) -> Any:
    """Ray k of view v, as (axis, back, slope, step, spread, low, high).

    Points are measured from the grid's center. Beyond a flat detector k goes on, points repeat
    the last.
    """
    frame, lengths = beam.frames[v], beam.lengths
    if beam.points.shape[1] > 0:
        at = min(max(k, 0), beam.points.shape[1] - 1)
        px = beam.points[v, at, 0] / lengths[0]
        py = beam.points[v, at, 1] / lengths[1]
    else:
        a = (k - lengths[4]) * lengths[2] + lengths[3]
        px = (frame[2] + a * frame[4]) / lengths[0]
        py = (frame[3] + a * frame[5]) / lengths[1]
    qx = frame[0] / lengths[0]
    qy = frame[1] / lengths[1]
    if beam.parallel:
        ex, ey, bx, by = qx, qy, px, py
    else:
        ex = px - qx
        ey = py - qy
        bx, by = px, py
        if qx * qx + qy * qy < px * px + py * py:
            bx, by = qx, qy
    axis = 0
    size, across = lengths[1], lengths[0]
    n, m = beam.shape[1], beam.shape[0]
    begin, end = qy, py
    if leads(abs(ex), abs(ey)):
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
        if not beam.parallel:
            low = max(low, min(begin, end) + n * 0.5)
            high = min(high, max(begin, end) + n * 0.5)
    back = bx - by * slope + m * 0.5
    step = np.sqrt((slope * across) * (slope * across) + size * size)
    spread = step / abs(slope) if slope != 0.0 else 0.0
    return axis, back, slope, step, spread, low, high


@compiled
def parallel_places(beam: Beam, v: int) -> Any:
    """Where (x, y), in cells, falls on a flat detector, in bins: coefficients of 1, x and y.

    Then the cells that a ray moves sideways a bin, and its slope. Without such a move the
    coefficients mean nothing.
    """
    axis, back, slope, _, _, _, _ = ray(beam, v, np.int64(0))
    _, other, _, _, _, _, _ = ray(beam, v, np.int64(64))
    pace = (other - back) / 64.0
    middle = beam.shape[1 - axis] * 0.5
    at, along, across = (middle * slope - back) / pace, -slope / pace, 1.0 / pace
    if axis == 0:
        return at, across, along, pace, slope
    return at, along, across, pace, slope


@compiled
def fan_places(beam: Beam, v: int) -> Any:
    """As `parallel_places` for a fan: 1, x, y coefficients of a numerator and a denominator.

    The denominator is positive on the detector's side of the source. Then the way from the
    source to bin 0 and its change a bin: x, change, y, change.
    """
    frame, lengths = beam.frames[v], beam.lengths
    nx, ny = float(beam.shape[0]), float(beam.shape[1])
    sx, sy = frame[0] / lengths[0] + nx * 0.5, frame[1] / lengths[1] + ny * 0.5
    ux, uy = lengths[2] * frame[4] / lengths[0], lengths[2] * frame[5] / lengths[1]
    a = lengths[3] - lengths[4] * lengths[2]
    ex = (frame[2] + a * frame[4]) / lengths[0] + nx * 0.5 - sx
    ey = (frame[3] + a * frame[5]) / lengths[1] + ny * 0.5 - sy
    sign = 1.0 if ux * ey - uy * ex > 0.0 else -1.0
    numerator = sign * (sy * ex - sx * ey), sign * ey, -sign * ex
    denominator = sign * (uy * sx - ux * sy), -sign * uy, sign * ux
    return numerator, denominator, (ex, ux, ey, uy)


@compiled
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


@compiled
def tabulate(
    beam: Beam, v: int, first: int, count: int, box: Any, beside: int, rays: Any, ranges: Any
) -> None:
    """`enter` the columns from `first` on of view v in `rays` (6, count), `ranges` (4, count)."""
    for r in range(count):
        enter(beam, v, first + r, box, beside, rays, ranges, r)


@compiled
def enter(
    beam: Beam, v: int, k: int, box: Any, beside: int, rays: Any, ranges: Any, r: int
) -> None:
    """Fill column r of tables of rays and of ranges for ray k of view v.

    Slab ranges are limited to where the ray may come within `beside` cells of `box` (x0, x1, y0,
    y1; whole-grid cells), one slab wider than needed at both ends.
    """
    axis, back, slope, step, spread, low, high = ray(beam, v, k)
    rays[0, r] = back
    rays[1, r] = slope
    rays[2, r] = step
    rays[3, r] = spread
    rays[4, r] = low
    rays[5, r] = high
    n = beam.shape[1 - axis]
    if axis == 0:
        near, far, left, right = box[2], box[3], box[0] - beside, box[1] + beside
    else:
        near, far, left, right = box[0], box[1], box[2] - beside, box[3] + beside
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
    ranges[3, r] = low <= 0.0 and high >= n
