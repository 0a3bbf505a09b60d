"""Planar forward kernel of precision "fast": float32, eight lanes, geometry from float64.

Groups of eight neighbouring rays are marched together. They start at whole multiples of eight of
the whole detector, and slabs are counted from multiples of CHUNK, so that blocks round as the
whole does. Rays almost along an axis and rays that end inside the grid are left to
`planar_exact`; the adjoint is `planar_gather`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .planar_exact import Scratch, march_exact, run_of, scratch
from .planar_lanes import march
from .planar_models import PAD, SPARE
from .planar_rays import Beam, tabulate

__all__ = ["MARGIN", "STEEP", "forward_fast", "passes"]

STEEP = 0.0125  # slopes below are exact: positions are right to 1e-6, shares to 1e-6 / slope / 2
CHUNK = 128  # slabs for which one set of lanes holds
SPREAD = 6.9  # cells between the window's place and a lane, at most
MARGIN = 15  # windows beyond the data by more than this are moved into the zeros


@njit(nogil=True, cache=True, error_model="numpy")
def forward_fast(
    beam: Beam,
    views: Any,
    begin: int,
    end: int,
    box: Any,
    columns: Any,
    rows: Any,
    cols: Any,
    out: Any,
) -> None:
    """As `planar_exact.forward_views`, float32, Siddon's model."""
    shape = beam.shape
    first = columns[0] // 8 * 8
    skipped = columns[0] - first
    count = (skipped + columns[1] + 7) // 8 * 8
    batch = rows.shape[0]
    rays = np.empty((6, count + SPARE))
    ranges = np.empty((4, count), np.int32)
    room = scratch(batch)
    total = np.empty((batch, count))
    parts = (max(shape[0], shape[1]) + CHUNK - 1) // CHUNK
    lanes = np.empty((count // 8, parts, 5, 8), np.float32)
    places = np.empty((count // 8, parts, 2))
    spans = np.empty((count // 8, parts, 2), np.int64)
    flat_rows = rows.reshape((batch, rows.shape[1] * rows.shape[2]))
    flat_cols = cols.reshape((batch, cols.shape[1] * cols.shape[2]))
    for w in range(begin, end):
        if views[w] < 0:
            continue
        tabulate(beam, views[w], first, count, box, 0, rays, ranges)
        total[:] = 0.0
        for g in range(0, count, 8):
            spans[g // 8] = 0
            ka = g
            if _alike(rays, ranges, g, shape[1 - ranges[0, g]]):
                ka = g + 8
                _set_up(rays, ranges, g, shape, lanes[g // 8], places[g // 8], spans[g // 8])
                for c in range(parts):
                    low, high = spans[g // 8, c]
                    if low < 0:  # lanes that part too far
                        run = g, g + 8, -low - 1, high, np.int64(ranges[0, g]), 1
                        _march_exactly(shape, box, rows, cols, rays, run, room, total)
                        spans[g // 8, c] = 0
            while ka < g + 8:
                run = run_of(ranges, ka, g + 8)
                if run[2] < run[3]:
                    _march_exactly(shape, box, rows, cols, rays, run, room, total)
                ka = run[1]
        for b in range(batch):
            for g in range(0, count, 8):
                axis = ranges[0, g]
                edge, lateral = (box[2], box[0]) if axis == 0 else (box[0], box[2])
                image = flat_rows[b] if axis == 0 else flat_cols[b]
                stride = rows.shape[2] if axis == 0 else cols.shape[2]
                least = float(lateral - MARGIN)
                most = float(box[1] if axis == 0 else box[3]) + MARGIN
                for c in range(parts):
                    low, high = spans[g // 8, c]
                    if low < high:
                        table = lanes[g // 8, c]
                        table[4] = np.float32(0)
                        j = c * CHUNK
                        at = (j - edge) * stride + PAD - lateral
                        x, slope = places[g // 8, c]
                        march(image, at, stride, low - j, high - j, x, slope, least, most, table)
                        for r in range(8):
                            total[b, g + r] += rays[2, g + r] * table[4, r]
            for k in range(columns[1]):
                out[b, w, k] = total[b, skipped + k]


@njit(nogil=True, cache=True, error_model="numpy")
def _march_exactly(
    shape: Any, box: Any, rows: Any, cols: Any, rays: Any, run: Any, room: Scratch, total: Any
) -> None:
    room.total[:] = 0.0
    march_exact(False, shape, box, rows, cols, rays, run, room)
    for b in range(total.shape[0]):
        for k in range(run[0], run[1]):
            total[b, k] += room.total[b, k - run[0]]


@njit(nogil=True, cache=True, error_model="numpy")
def _alike(rays: Any, ranges: Any, g: int, slabs: int) -> bool:
    """Whether the eight rays from g on share their axis, pass right through, and are not steep."""
    axis = ranges[0, g]
    for k in range(g, g + 8):
        if ranges[0, k] != axis or not passes(rays[1, k], rays[4, k], rays[5, k], slabs):
            return False
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def passes(slope: float, low: float, high: float, slabs: int) -> bool:
    """Whether a ray of that slope and range passes right through all slabs, and is not steep."""
    return abs(slope) >= STEEP and low <= 0.0 and high >= slabs


@njit(nogil=True, cache=True, error_model="numpy")
def _set_up(
    rays: Any, ranges: Any, g: int, shape: Any, lanes: Any, places: Any, spans: Any
) -> None:
    """Set up the eight rays from g on, a row of the tables for each CHUNK of slabs they meet.

    `lanes` as `march` wants them, `places` x and slope, `spans` first slab and one past the
    last; where the lanes part too far for a window, -1 - first.
    """
    slabs = shape[1 - ranges[0, g]]
    middle = slabs * 0.5
    start, stop = slabs, 0
    for k in range(g, g + 8):
        if ranges[1, k] < ranges[2, k]:
            start, stop = min(start, ranges[1, k]), max(stop, ranges[2, k])
    for c in range(start // CHUNK, (stop + CHUNK - 1) // CHUNK):
        j = c * CHUNK
        last = min(j + CHUNK, slabs)
        near, places[c, 0], places[c, 1] = _lanes(rays, g, j, last - j, middle, lanes[c])
        low = max(start, j)
        spans[c, 0] = low if near else -1 - low
        spans[c, 1] = min(stop, last)


@njit(nogil=True, cache=True, error_model="numpy")
def _lanes(rays: Any, g: int, j: int, length: int, middle: float, lanes: Any) -> Any:
    """Set up `lanes` for the slabs from j on: (whether they stay near x, x, slope)."""
    slope = 0.5 * (rays[1, g + 3] + rays[1, g + 4])
    x = 0.0
    for r in (3, 4):
        s = rays[1, g + r]
        x += 0.5 * (rays[0, g + r] + (j - middle) * s + min(s, 0.0))
    near = True
    for r in range(8):
        s = rays[1, g + r]
        off = rays[0, g + r] + (j - middle) * s + min(s, 0.0) - x
        move = s - slope
        near = near and abs(off) <= SPREAD and abs(off + length * move) <= SPREAD
        lanes[0, r] = off
        lanes[1, r] = move
        lanes[2, r] = 1.0 / abs(s)
        lanes[3, r] = 1.0 - 1.0 / abs(s)
    return near, x, slope
