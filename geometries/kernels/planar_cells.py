"""Planar kernels for a list of cells: the weights of `planar_exact`, at a cost in proportion.

What cells need of a view is tabulated once a scan (`tabulate_scan`): how a point is projected, and
a cache line a ray. For each cell and view the bins whose rays may cross the cell are found from
the shadow of its corners, a little too many rather than one too few; the weight of each comes
from `split`. Forward: a call owns views. Adjoint: a call owns cells.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from linops.compiled.noalias import load, store

from .planar_rays import ray, split

__all__ = ["RAY", "SHADOW", "adjoint_cells", "forward_cells", "tabulate_scan"]

MARGIN = 1e-6  # bins
BLOCK = 64  # cells whose bins are found at a time: the divisions fill vector registers
RAY = 8  # numbers a ray: as `ray` gives them from back to high, then the axis
SHADOW = 8  # numbers a view: the kind, then what `_view` says


@njit(nogil=True, cache=True, error_model="numpy")
def tabulate_scan(
    parallel: bool,
    frames: Any,
    points: Any,
    begin: int,
    end: int,
    lengths: Any,
    shape: Any,
    columns: int,
    shadows: Any,
    rays: Any,
) -> None:
    """Fill `shadows` (V, SHADOW), and `rays` (V, columns * RAY) if not empty, for some views."""
    has_points = points.shape[1] > 0
    for v in range(begin, end):
        seen = points[v] if has_points else points[0]
        shadows[v, 0] = _view(
            parallel, frames[v], seen, has_points, columns, lengths, shape, shadows[v, 1:]
        )
        if rays.size > 0:
            _table(parallel, frames[v], seen, has_points, 0, columns, lengths, shape, rays[v])


@njit(nogil=True, cache=True, error_model="numpy")
def forward_cells(
    parallel: bool,
    frames: Any,
    points: Any,
    begin: int,
    end: int,
    lengths: Any,
    shape: Any,
    shadows: Any,
    table: Any,
    xs: Any,
    ys: Any,
    values: Any,
    out: Any,
) -> None:
    """Write the views `begin:end` of `out` (B, V, columns) from `values` (B, n) of cells.

    `xs`, `ys` (n,) float64: cells, whole numbers. `table`: rays of all views, or empty.
    """
    batch, _, columns = out.shape
    line = np.empty((batch, columns))
    spare = np.empty(columns * RAY if table.size == 0 else 0)
    first = np.empty(BLOCK, np.int32)
    last = np.empty(BLOCK, np.int32)
    half_x, half_y = shape[0] * 0.5, shape[1] * 0.5
    has_points = points.shape[1] > 0
    fresh = table.size == 0
    tabled = 3 * len(xs) > columns
    for v in range(begin, end):
        seen = points[v] if has_points else points[0]
        rays = spare if fresh else table[v]
        if fresh and tabled:
            _table(parallel, frames[v], seen, has_points, 0, columns, lengths, shape, rays)
        line[:] = 0.0
        for c in range(0, len(xs), BLOCK):
            many = min(BLOCK, len(xs) - c)
            _bins(
                parallel,
                frames[v],
                seen,
                columns,
                lengths,
                shape,
                shadows[v],
                xs[c : c + many],
                ys[c : c + many],
                first,
                last,
            )
            for r in range(many):
                ka, kb = load(first, r), load(last, r)
                if fresh and not tabled:
                    _table(parallel, frames[v], seen, has_points, ka, kb, lengths, shape, rays)
                for k in range(ka, kb):
                    weight = _weight(rays, k, xs[c + r], ys[c + r], half_x, half_y)
                    if batch == 1:
                        value = float(values[0, c + r])
                        line[0, k] += weight * value if weight > 0.0 else 0.0
                    elif weight > 0.0:
                        for b in range(batch):
                            line[b, k] += weight * values[b, c + r]
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
    shadows: Any,
    table: Any,
    xs: Any,
    ys: Any,
    sinogram: Any,
    out: Any,
) -> None:
    """Write `out` (B, begin:end) of cells from `sinogram` (B, V, columns), as in the forward."""
    batch, views, columns = sinogram.shape
    sums = np.zeros((batch, end - begin))
    spare = np.empty(columns * RAY if table.size == 0 else 0)
    first = np.empty(BLOCK, np.int32)
    last = np.empty(BLOCK, np.int32)
    half_x, half_y = shape[0] * 0.5, shape[1] * 0.5
    has_points = points.shape[1] > 0
    fresh = table.size == 0
    tabled = 3 * (end - begin) > columns
    for v in range(views):
        seen = points[v] if has_points else points[0]
        rays = spare if fresh else table[v]
        if fresh and tabled:
            _table(parallel, frames[v], seen, has_points, 0, columns, lengths, shape, rays)
        for c in range(begin, end, BLOCK):
            many = min(BLOCK, end - c)
            _bins(
                parallel,
                frames[v],
                seen,
                columns,
                lengths,
                shape,
                shadows[v],
                xs[c : c + many],
                ys[c : c + many],
                first,
                last,
            )
            for r in range(many):
                ka, kb = load(first, r), load(last, r)
                if fresh and not tabled:
                    _table(parallel, frames[v], seen, has_points, ka, kb, lengths, shape, rays)
                for k in range(ka, kb):
                    weight = _weight(rays, k, xs[c + r], ys[c + r], half_x, half_y)
                    if batch == 1:
                        value = float(sinogram[0, v, k])
                        sums[0, c + r - begin] += weight * value if weight > 0.0 else 0.0
                    elif weight > 0.0:
                        for b in range(batch):
                            sums[b, c + r - begin] += weight * sinogram[b, v, k]
    for b in range(batch):
        for c in range(begin, end):
            out[b, c] = sums[b, c - begin]


@njit(nogil=True, cache=True, error_model="numpy")
def _table(
    parallel: bool,
    frame: Any,
    points: Any,
    has_points: bool,
    begin: int,
    end: int,
    lengths: Any,
    shape: Any,
    rays: Any,
) -> None:
    """Set up the rays `begin:end` of one view in `rays` (columns * RAY,)."""
    for k in range(begin, end):
        axis, back, slope, step, spread, low, high = ray(
            parallel, frame, points, has_points, k, lengths, shape
        )
        at = k * RAY
        rays[at] = back
        rays[at + 1] = slope
        rays[at + 2] = step
        rays[at + 3] = spread
        rays[at + 4] = low
        rays[at + 5] = high
        rays[at + 6] = float(axis)


@njit(nogil=True, cache=True, error_model="numpy")
def _weight(rays: Any, k: int, x: float, y: float, half_x: float, half_y: float) -> float:
    """Length of ray k in the cell (x, y)."""
    at = k * RAY
    turned = load(rays, at + 6) > 0.5
    slab = x if turned else y
    cell = y if turned else x
    first, one, two = split(
        load(rays, at),
        load(rays, at + 1),
        load(rays, at + 2),
        load(rays, at + 3),
        load(rays, at + 4),
        load(rays, at + 5),
        slab,
        half_x if turned else half_y,
    )
    two = two if first + 1.0 == cell else 0.0
    return one if first == cell else two


# Kinds of views: how the bins of a cell are found.
_PROJECTIVE, _SEARCH, _ALL = 0, 1, 2


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

    Projective: 1, x, y coefficients of numerator and denominator, positive on the detector's
    side (of a parallel beam 1 everywhere). Search: the sense of turning.
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
        shadow[3] = 1.0
        shadow[4] = 0.0
        shadow[5] = 0.0
        return _PROJECTIVE
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
    parallel: bool,
    frame: Any,
    points: Any,
    columns: int,
    lengths: Any,
    shape: Any,
    shadow: Any,
    xs: Any,
    ys: Any,
    first: Any,
    last: Any,
) -> None:
    """Bins [first, last) whose rays may cross each of the cells `xs`, `ys`."""
    kind = shadow[0]
    if kind == _SEARCH:
        for r in range(len(xs)):
            first[r], last[r] = _search(
                parallel, frame, points, columns, lengths, shape, shadow[1], xs[r], ys[r]
            )
        return
    if kind == _ALL:
        first[:] = 0
        last[:] = columns
        return
    n, nx, ny = shadow[1], shadow[2], shadow[3]
    m, mx, my = shadow[4], shadow[5], shadow[6]
    most = float(columns)
    reach = abs(mx) + abs(my)  # from corner to corner
    for r in range(len(xs)):
        x, y = load(xs, r) + 0.5, load(ys, r) + 0.5
        depth = m + mx * x + my * y
        inverse = 1.0 / depth
        place = (n + nx * x + ny * y) * inverse
        # Corners are half a cell away: (n + dn) / (m + dm) - n / m = (dn - place dm) / (m + dm),
        # and 1 / (1 - z) <= 1 + 2 z up to z = 1 / 2.
        half = 0.5 * (abs(nx - place * mx) + abs(ny - place * my)) * inverse
        half = half * (1.0 + reach * inverse) + MARGIN
        low = min(max(-np.floor(half - place), 0.0), most)
        high = min(max(np.floor(place + half) + 1.0, 0.0), most)
        # Cells behind the source have no rays; where one reaches to it the segments decide.
        near = depth < reach
        high = most if near else high
        high = 0.0 if depth < -reach else high
        store(first, r, np.int32(0.0 if near else low))
        store(last, r, np.int32(high))


@njit(nogil=True, cache=True, error_model="numpy")
def _search(
    parallel: bool,
    frame: Any,
    points: Any,
    columns: int,
    lengths: Any,
    shape: Any,
    sense: float,
    i: float,
    j: float,
) -> Any:
    """Bins [first, last) of cell (j, i) on a detector whose rays turn in one sense."""
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
            if side * sense > 0.0:
                a = k + 1
            else:
                b = k
        first, last = min(first, a), max(last, a)
    return max(first - 1, 0), min(last + 1, columns)
