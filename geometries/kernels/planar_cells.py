"""Planar kernels for a list of cells: the weights of `planar_exact`, at a cost in proportion.

For each cell and view the bins whose rays may cross the cell are found from the shadow of its
corners, a little too many rather than one too few; the weight of each comes from `split`.
Forward: a call owns views. Adjoint: a call owns cells.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .planar_rays import ray, split, tabulate

__all__ = ["adjoint_cells", "forward_cells"]

MARGIN = 1e-6  # bins


@njit(nogil=True, cache=True, error_model="numpy")
def forward_cells(
    parallel: bool,
    frames: Any,
    points: Any,
    begin: int,
    end: int,
    lengths: Any,
    shape: Any,
    index: Any,
    values: Any,
    out: Any,
) -> None:
    """Write the views `begin:end` of `out` (B, V, columns) from `values` (B, n) at `index` (n,)."""
    batch, _, columns = out.shape
    line = np.empty((batch, columns))
    shadow = np.empty(8)
    box = np.array([0, shape[0], 0, shape[1]])
    tabled = 3 * len(index) > columns
    rays = np.empty((6, columns if tabled else 0))
    ranges = np.empty((3, columns if tabled else 0), np.int32)
    has_points = points.shape[1] > 0
    for v in range(begin, end):
        seen = points[v] if has_points else points[0]
        frame = frames[v]
        if tabled:
            tabulate(
                parallel, frame, seen, has_points, 0, columns, lengths, shape, box, rays, ranges
            )
        line[:] = 0.0
        kind = _view(parallel, frame, seen, has_points, columns, lengths, shape, shadow)
        for c in range(len(index)):
            if index[c] < 0:
                continue
            j, i = index[c] // shape[0], index[c] % shape[0]
            first, last = _bins(kind, parallel, frame, seen, columns, lengths, shape, shadow, i, j)
            for k in range(first, last):
                weight = _weight(
                    parallel, frame, seen, has_points, k, lengths, shape, tabled, rays, ranges, i, j
                )
                if weight > 0.0:
                    for b in range(batch):
                        line[b, k] += weight * values[b, c]
        for b in range(batch):
            for k in range(columns):
                out[b, v, k] = line[b, k]


@njit(nogil=True, cache=True, error_model="numpy")
def adjoint_cells(
    parallel: bool,
    frames: Any,
    points: Any,
    begin: int,
    end: int,
    lengths: Any,
    shape: Any,
    index: Any,
    sinogram: Any,
    out: Any,
) -> None:
    """Write `out` (B, begin:end) at `index` (n,) from `sinogram` (B, V, columns)."""
    batch, views, columns = sinogram.shape
    shadow = np.empty(8)
    box = np.array([0, shape[0], 0, shape[1]])
    tabled = 3 * (end - begin) > columns
    rays = np.empty((6, columns if tabled else 0))
    ranges = np.empty((3, columns if tabled else 0), np.int32)
    sums = np.zeros((batch, end - begin))
    has_points = points.shape[1] > 0
    for v in range(views):
        seen = points[v] if has_points else points[0]
        frame = frames[v]
        if tabled:
            tabulate(
                parallel, frame, seen, has_points, 0, columns, lengths, shape, box, rays, ranges
            )
        kind = _view(parallel, frame, seen, has_points, columns, lengths, shape, shadow)
        for c in range(begin, end):
            if index[c] < 0:
                continue
            j, i = index[c] // shape[0], index[c] % shape[0]
            first, last = _bins(kind, parallel, frame, seen, columns, lengths, shape, shadow, i, j)
            for k in range(first, last):
                weight = _weight(
                    parallel, frame, seen, has_points, k, lengths, shape, tabled, rays, ranges, i, j
                )
                if weight > 0.0:
                    for b in range(batch):
                        sums[b, c - begin] += weight * sinogram[b, v, k]
    for b in range(batch):
        for c in range(begin, end):
            out[b, c] = sums[b, c - begin]


@njit(nogil=True, cache=True, error_model="numpy")
def _weight(
    parallel: bool,
    frame: Any,
    points: Any,
    has_points: bool,
    k: int,
    lengths: Any,
    shape: Any,
    tabled: bool,
    rays: Any,
    ranges: Any,
    i: int,
    j: int,
) -> float:
    """Length of ray k in cell (j, i): from the table, or set up on the spot, with the same bits."""
    if tabled:
        axis = np.int64(ranges[0, k])
        back, slope, step = rays[0, k], rays[1, k], rays[2, k]
        spread, low, high = rays[3, k], rays[4, k], rays[5, k]
    else:
        axis, back, slope, step, spread, low, high = ray(
            parallel, frame, points, has_points, k, lengths, shape
        )
    slab, cell, slabs = (j, i, shape[1]) if axis == 0 else (i, j, shape[0])
    first, one, two = split(back, slope, step, spread, low, high, float(slab), slabs * 0.5)
    if first == cell:
        return one
    return two if first + 1.0 == cell else 0.0


# Kinds of views: how the bins of a cell are found.
_LINEAR, _PROJECTIVE, _SEARCH, _ALL = 0, 1, 2, 3


@njit(nogil=True, cache=True, error_model="numpy")
def _view(
    parallel: bool,
    frame: Any,
    points: Any,
    has_points: bool,
    columns: int,
    lengths: Any,
    shape: Any,
    shadow: Any,
) -> int:
    """The kind of a view, and in `shadow` what turns a point (x, y), in cells, into a bin.

    Linear: 1, x, y coefficients and half a cell's shadow. Projective: 1, x, y coefficients of
    numerator and denominator, positive on the detector's side. Search: the sense of turning.
    """
    nx, ny = float(shape[0]), float(shape[1])
    if has_points:
        sense = 0.0
        for k in range(columns - 1):
            if parallel:
                ax, ay = frame[0], frame[1]
                bx, by = points[k + 1, 0] - points[k, 0], points[k + 1, 1] - points[k, 1]
            else:
                ax, ay = points[k, 0] - frame[0], points[k, 1] - frame[1]
                bx, by = points[k + 1, 0] - frame[0], points[k + 1, 1] - frame[1]
                if ax * bx + ay * by <= 0.0:
                    return _ALL
            turn = ax * by - ay * bx
            if turn == 0.0 or turn * sense < 0.0:
                return _ALL
            sense = turn
        shadow[0] = sense
        if not parallel and columns > 1:
            # Less than half a turn in all, so that a side of a ray is a side of the fan.
            ax, ay = points[0, 0] - frame[0], points[0, 1] - frame[1]
            bx, by = points[columns - 1, 0] - frame[0], points[columns - 1, 1] - frame[1]
            if (ax * by - ay * bx) * sense <= 0.0:
                return _ALL
        return _SEARCH if columns > 1 else _ALL
    if parallel:
        axis, back, slope, _, _, _, _ = ray(True, frame, points, False, 0, lengths, shape)
        _, other, _, _, _, _, _ = ray(True, frame, points, False, columns, lengths, shape)
        pace = (other - back) / columns
        if not abs(pace) > 1e-9:
            return _ALL
        middle = (ny if axis == 0 else nx) * 0.5
        shadow[0] = (middle * slope - back) / pace
        shadow[1] = 1.0 / pace if axis == 0 else -slope / pace
        shadow[2] = -slope / pace if axis == 0 else 1.0 / pace
        shadow[3] = (1.0 + abs(slope)) / (2.0 * abs(pace))
        return _LINEAR
    sx, sy = frame[0] / lengths[0] + nx * 0.5, frame[1] / lengths[1] + ny * 0.5
    ux, uy = lengths[2] * frame[4] / lengths[0], lengths[2] * frame[5] / lengths[1]
    a = lengths[3] - lengths[4] * lengths[2]
    ex = (frame[2] + a * frame[4]) / lengths[0] + nx * 0.5 - sx
    ey = (frame[3] + a * frame[5]) / lengths[1] + ny * 0.5 - sy
    sign = 1.0 if ux * ey - uy * ex > 0.0 else -1.0
    shadow[0] = sign * (sy * ex - sx * ey)
    shadow[1] = sign * ey
    shadow[2] = -sign * ex
    shadow[3] = sign * (uy * sx - ux * sy)
    shadow[4] = -sign * uy
    shadow[5] = sign * ux
    return _PROJECTIVE


@njit(nogil=True, cache=True, error_model="numpy")
def _bins(
    kind: int,
    parallel: bool,
    frame: Any,
    points: Any,
    columns: int,
    lengths: Any,
    shape: Any,
    shadow: Any,
    i: int,
    j: int,
) -> Any:
    """Bins [first, last) whose rays may cross cell (j, i)."""
    if kind == _ALL:
        return 0, columns
    if kind == _LINEAR:
        place = shadow[0] + shadow[1] * (i + 0.5) + shadow[2] * (j + 0.5)
        low, high = place - shadow[3], place + shadow[3]
    elif kind == _PROJECTIVE:
        low, high = 1e300, -1e300
        before = 0
        for p in range(4):
            x, y = float(i + p % 2), float(j + p // 2)
            m = shadow[3] + shadow[4] * x + shadow[5] * y
            if m > 1e-9 * (abs(shadow[4]) + abs(shadow[5])):
                before += 1
                t = (shadow[0] + shadow[1] * x + shadow[2] * y) / m
                low, high = min(low, t), max(high, t)
        if before < 4:
            # The cell reaches to the source, or lies behind it: the segments decide.
            return 0, columns
    else:
        first, last = columns, 0
        for p in range(4):
            x = (i + p % 2 - shape[0] * 0.5) * lengths[0]
            y = (j + p // 2 - shape[1] * 0.5) * lengths[1]
            if not parallel:
                # Only points within half a turn before the fan have a place in it.
                cx = points[columns // 2, 0] - frame[0]
                cy = points[columns // 2, 1] - frame[1]
                if (x - frame[0]) * cx + (y - frame[1]) * cy <= 0.0:
                    return 0, columns
            a, b = 0, columns  # the first ray that leaves the point behind
            while a < b:
                k = (a + b) // 2
                if parallel:
                    dx, dy = frame[0], frame[1]
                else:
                    dx, dy = points[k, 0] - frame[0], points[k, 1] - frame[1]
                side = dx * (y - points[k, 1]) - dy * (x - points[k, 0])
                if side * shadow[0] > 0.0:
                    a = k + 1
                else:
                    b = k
            first, last = min(first, a), max(last, a)
        return max(first - 1, 0), min(last + 1, columns)
    low = min(max(np.ceil(low - MARGIN), 0.0), float(columns))
    high = min(max(np.floor(high + MARGIN) + 1.0, 0.0), float(columns))
    return np.int64(low), np.int64(high)
