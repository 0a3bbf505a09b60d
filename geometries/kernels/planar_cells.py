"""Planar kernels for a list of cells: the weights of `planar_exact`, at a cost in proportion.

What cells need of a view is tabulated once a scan (`tabulate_scan`): how a point is projected, and
a cache line a ray. For each cell and view the bins whose rays may cross the cell are found from
the shadow of its corners, a little too many rather than one too few; the weight of each comes
from `split`. Forward: a call owns views. Adjoint: a call owns cells.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linops.compiled.noalias import load, store

from .compiling import compiled
from .planar_rays import Beam, fan_places, parallel_places, ray, split

__all__ = ["RAY", "SHADOW", "adjoint_cells", "forward_cells", "tabulate_scan"]

MARGIN = 1e-6  # bins
BLOCK = 64  # cells whose bins are found at a time: the divisions fill vector registers
RAY = 8  # numbers a ray: as `ray` gives them from back to high, then the axis
SHADOW = 8  # numbers a view: the kind, then what `_view` says


@compiled
def tabulate_scan(
    beam: Beam,
    begin: int,
    end: int,
    columns: int,
    shadows: Any,
    rays: Any,
) -> None:
    """Fill `shadows` (V, SHADOW), and `rays` (V, columns * RAY) if not empty, for some views."""
    for v in range(begin, end):
        shadows[v, 0] = _view(beam, v, columns, shadows[v, 1:])
        if rays.size > 0:
            _table(beam, v, np.int64(0), columns, rays[v])


@compiled
def forward_cells(
    beam: Beam,
    begin: int,
    end: int,
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
    half_x, half_y = beam.shape[0] * 0.5, beam.shape[1] * 0.5
    fresh = table.size == 0
    tabled = 3 * len(xs) > columns
    for v in range(begin, end):
        rays = spare if fresh else table[v]
        if fresh and tabled:
            _table(beam, v, np.int64(0), columns, rays)
        line[:] = 0.0
        for c in range(0, len(xs), BLOCK):
            many = min(BLOCK, len(xs) - c)
            near = slice(c, c + many)
            _bins(beam, v, columns, shadows[v], xs[near], ys[near], first, last)
            for r in range(many):
                ka, kb = load(first, r), load(last, r)
                if fresh and not tabled:
                    _table(beam, v, ka, kb, rays)
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


@compiled
def adjoint_cells(
    beam: Beam,
    begin: int,
    end: int,
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
    half_x, half_y = beam.shape[0] * 0.5, beam.shape[1] * 0.5
    fresh = table.size == 0
    tabled = 3 * (end - begin) > columns
    for v in range(views):
        rays = spare if fresh else table[v]
        if fresh and tabled:
            _table(beam, v, np.int64(0), columns, rays)
        for c in range(begin, end, BLOCK):
            many = min(BLOCK, end - c)
            near = slice(c, c + many)
            _bins(beam, v, columns, shadows[v], xs[near], ys[near], first, last)
            for r in range(many):
                ka, kb = load(first, r), load(last, r)
                if fresh and not tabled:
                    _table(beam, v, ka, kb, rays)
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


@compiled
def _table(beam: Beam, v: int, begin: int, end: int, rays: Any) -> None:
    """Set up the rays `begin:end` of one view in `rays` (columns * RAY,)."""
    for k in range(begin, end):
        axis, back, slope, step, spread, low, high = ray(beam, v, k)
        at = k * RAY
        rays[at] = back
        rays[at + 1] = slope
        rays[at + 2] = step
        rays[at + 3] = spread
        rays[at + 4] = low
        rays[at + 5] = high
        rays[at + 6] = float(axis)


@compiled
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


@compiled
def _view(beam: Beam, v: int, columns: int, shadow: Any) -> int:
    """The kind of a view, and in `shadow` what turns a point (x, y), in cells, into a bin.

    Projective: 1, x, y coefficients of numerator and denominator, positive on the detector's
    side (of a parallel beam 1 everywhere). Search: the sense of turning.
    """
    if beam.points.shape[1] > 0:
        shadow[0] = _turning(beam, v, columns)
        return _SEARCH if shadow[0] != 0.0 else _ALL
    if beam.parallel:
        at, by_x, by_y, pace, _ = parallel_places(beam, v)
        if not abs(pace) > 1e-9:
            return _ALL
        shadow[0] = at
        shadow[1] = by_x
        shadow[2] = by_y
        shadow[3] = 1.0
        shadow[4] = 0.0
        shadow[5] = 0.0
        return _PROJECTIVE
    numerator, denominator, _ = fan_places(beam, v)
    for i in range(3):
        shadow[i] = numerator[i]
        shadow[3 + i] = denominator[i]
    return _PROJECTIVE


@compiled
def _turning(beam: Beam, v: int, columns: int) -> float:
    """The sense in which the rays to a curved detector turn; 0 where it is not one sense."""
    frame, points = beam.frames[v], beam.points[v]
    sense = 0.0
    for k in range(columns - 1):
        if beam.parallel:
            ax, ay = frame[0], frame[1]
            bx, by = points[k + 1, 0] - points[k, 0], points[k + 1, 1] - points[k, 1]
        else:
            ax, ay = points[k, 0] - frame[0], points[k, 1] - frame[1]
            bx, by = points[k + 1, 0] - frame[0], points[k + 1, 1] - frame[1]
            if ax * bx + ay * by <= 0.0:
                return 0.0
        turn = ax * by - ay * bx
        if turn == 0.0 or turn * sense < 0.0:
            return 0.0
        sense = turn
    if not beam.parallel and columns > 1:
        # Less than half a turn in all, so that a side of a ray is a side of the fan.
        ax, ay = points[0, 0] - frame[0], points[0, 1] - frame[1]
        bx, by = points[columns - 1, 0] - frame[0], points[columns - 1, 1] - frame[1]
        if (ax * by - ay * bx) * sense <= 0.0:
            return 0.0
    return sense


@compiled
def _bins(
    beam: Beam,
    v: int,
    columns: int,
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
            first[r], last[r] = _search(beam, v, columns, shadow[1], xs[r], ys[r])
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


@compiled
def _search(beam: Beam, v: int, columns: int, sense: float, i: float, j: float) -> Any:
    """Bins [first, last) of cell (j, i) on a detector whose rays turn in one sense."""
    frame, points, lengths, shape = beam.frames[v], beam.points[v], beam.lengths, beam.shape
    first, last = columns, 0
    for p in range(4):
        x = (i + p % 2 - shape[0] * 0.5) * lengths[0]
        y = (j + p // 2 - shape[1] * 0.5) * lengths[1]
        if not beam.parallel:
            # Only points within half a turn before the fan have a place in it.
            cx = points[columns // 2, 0] - frame[0]
            cy = points[columns // 2, 1] - frame[1]
            if (x - frame[0]) * cx + (y - frame[1]) * cy <= 0.0:
                return 0, columns
        a, b = 0, columns  # the first ray that leaves the point behind
        while a < b:
            k = (a + b) // 2
            if beam.parallel:
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
