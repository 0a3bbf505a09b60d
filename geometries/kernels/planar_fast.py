"""Planar forward kernel of precision "fast": float32, eight lanes, geometry from float64.

Groups of eight neighboring rays are marched together. They start at whole multiples of eight of
the whole detector, and slabs are counted from multiples of CHUNK, so that blocks round as the
whole does. Rays almost along an axis and rays that end inside the grid are left to
`planar_exact`; the adjoint is `planar_gather`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .compiling import compiled
from .planar_exact import march_exact, run_of, scratch
from .planar_lanes import march
from .planar_models import PAD, SPARE
from .planar_rays import Beam, tabulate

__all__ = ["MARGIN", "STEEP", "forward_fast"]

STEEP = 0.0125  # slopes below are exact: positions are right to 1e-6, shares to 1e-6 / slope / 2
CHUNK = 128  # slabs for which one set of lanes holds
SPREAD = 6.9  # cells between the window's place and a lane, at most
MARGIN = 15  # windows beyond the data by more than this are moved into the zeros


@compiled
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
    """As `planar_exact.forward_views`, float32, Siddon's model, of one image or two."""
    shape = beam.shape
    first = columns[0] // 8 * 8
    skipped = columns[0] - first
    count = (skipped + columns[1] + 7) // 8 * 8
    batch = rows.shape[0]
    rays = np.empty((6, count + SPARE))
    ranges = np.empty((4, count), np.int32)
    room = scratch(batch)
    total = room.total
    lanes = np.empty((6, 8), np.float32)
    flat_rows, flat_cols = rows.reshape(rows.size), cols.reshape(cols.size)
    for w in range(begin, end):
        if views[w] < 0:
            continue
        tabulate(beam, views[w], first, count, box, 0, rays, ranges)
        for g in range(0, count, 8):
            fast = _alike(rays, ranges, g)
            ka = g
            while ka < g + 8:
                run = run_of(ranges, ka, g + 8)
                kb, axis = run[1], run[4]
                total[:] = 0.0
                if fast:
                    kb, start, stop = g + 8, 2147483647, 0
                    for k in range(g, kb):
                        if ranges[1, k] < ranges[2, k]:
                            start, stop = min(start, ranges[1, k]), max(stop, ranges[2, k])
                    middle = shape[1 - axis] * 0.5
                    slabs = shape[1 - axis]
                    edge, lateral = (box[2], box[0]) if axis == 0 else (box[0], box[2])
                    image = flat_rows if axis == 0 else flat_cols
                    stride = rows.shape[2] if axis == 0 else cols.shape[2]
                    cells = box[1] - box[0] if axis == 0 else box[3] - box[2]
                    for j in range(start // CHUNK * CHUNK, stop, CHUNK):
                        last = min(j + CHUNK, slabs)
                        near, x, slope = _lanes(rays, g, j, last - j, middle, lanes)
                        low, high = max(start, j), min(stop, last)
                        if not near:
                            part = g, g + 8, low, high, axis, np.int64(1)
                            march_exact(False, shape, box, rows, cols, rays, part, room)
                            continue
                        at = (j - edge) * stride + PAD - lateral
                        least = float(lateral - MARGIN)
                        most = float(lateral + cells + MARGIN)
                        lanes[4:] = np.float32(0)
                        low, high = low - j, high - j
                        if batch == 1:
                            march(image, at, None, stride, low, high, x, slope, least, most, lanes)
                        else:
                            twin = image.size // 2
                            march(image, at, twin, stride, low, high, x, slope, least, most, lanes)
                        for b in range(batch):
                            for r in range(8):
                                total[b, r] += rays[2, g + r] * lanes[4 + b, r]
                elif run[2] < run[3]:
                    march_exact(False, shape, box, rows, cols, rays, run, room)
                for r in range(kb - ka):
                    k = ka + r - skipped
                    if 0 <= k < columns[1]:
                        for b in range(batch):
                            out[b, w, k] = total[b, r]
                ka = kb


@compiled
def _alike(rays: Any, ranges: Any, g: int) -> bool:
    """Whether the eight rays from g on share their axis, pass right through, and are not steep."""
    axis = ranges[0, g]
    for k in range(g, g + 8):
        if ranges[0, k] != axis or ranges[3, k] == 0 or not abs(rays[1, k]) >= STEEP:
            return False
    return True


@compiled
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
