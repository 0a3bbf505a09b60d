"""Joseph's model on planar rays: weights and sums in float64, data as given, in every precision.

A ray is marched slab by slab, as in `planar_rays`. Its part in a slab counts with its length, and
the value there is interpolated between the two cells whose centres enclose the middle of the part
(Joseph 1982). Cutting work into tiles, padding and transposing are `planar`'s; these functions
stand in for those of `planar_exact` and have their signatures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from linops.compiled.noalias import add, load, store

from .planar_exact import BLOCK, PAD, RUN, TAIL, list_runs, run_of
from .planar_lanes import add_pairs
from .planar_rays import tabulate

__all__ = ["forward_views", "scatter_slabs", "tabulate_views"]


@njit(nogil=True, cache=True, error_model="numpy")
def forward_views(
    parallel: bool,
    frames: Any,
    points: Any,
    views: Any,
    begin: int,
    end: int,
    lengths: Any,
    shape: Any,
    box: Any,
    columns: Any,
    rows: Any,
    cols: Any,
    out: Any,
) -> None:
    """Project the views `views[begin:end]` into `out` (B, v, c); see `planar_exact`."""
    count = columns[1]
    rays = np.empty((6, count))
    ranges = np.empty((3, count), np.int32)
    place = np.empty(RUN, np.int32)
    one = np.empty(RUN)
    two = np.empty(RUN)
    total = np.empty((rows.shape[0], RUN))
    part = np.empty((rows.shape[0], RUN))
    for w in range(begin, end):
        v = views[w]
        if v < 0:
            continue
        _tabulate(parallel, frames[v], points, v, lengths, shape, box, columns, rays, ranges)
        ka = 0
        while ka < count:
            kb, start, stop = run_of(ranges, ka, count)
            many, axis = kb - ka, ranges[0, ka]
            image = rows if axis == 0 else cols
            edge, lateral = (box[2], box[0]) if axis == 0 else (box[0], box[2])
            middle = (shape[1] if axis == 0 else shape[0]) * 0.5
            total[:] = 0.0
            part[:] = 0.0
            for j in range(start, stop):
                _weights(rays, ka, many, j, middle, lateral, image.shape[2], place, one, two)
                for b in range(image.shape[0]):
                    line = image[b, j - edge]
                    sums = part[b]
                    for r in range(many):
                        i = load(place, r)
                        left, right = load(one, r), load(two, r)
                        first, second = float(load(line, i)), float(load(line, i + 1))
                        first = first if left > 0.0 else 0.0
                        second = second if right > 0.0 else 0.0
                        add(sums, r, left * first + right * second)
                if j % BLOCK == BLOCK - 1 or j == stop - 1:
                    for b in range(image.shape[0]):
                        for r in range(many):
                            total[b, r] += part[b, r]
                            part[b, r] = 0.0
            for b in range(out.shape[0]):
                for r in range(many):
                    out[b, w, ka + r] = total[b, r]
            ka = kb


@njit(nogil=True, cache=True, error_model="numpy")
def tabulate_views(
    parallel: bool,
    frames: Any,
    points: Any,
    views: Any,
    begin: int,
    end: int,
    lengths: Any,
    shape: Any,
    box: Any,
    columns: Any,
    rays: Any,
    ranges: Any,
    runs: Any,
) -> None:
    """Fill tables (v, 6, c), (v, 3, c), (v, c + 1, 5) for `views[begin:end]`; -1 has no runs."""
    for w in range(begin, end):
        v = views[w]
        if v < 0:
            runs[w, -1, 0] = 0
        else:
            _tabulate(
                parallel, frames[v], points, v, lengths, shape, box, columns, rays[w], ranges[w]
            )
            list_runs(ranges[w], runs[w])


@njit(nogil=True, cache=True, error_model="numpy")
def scatter_slabs(
    axis: int,
    begin: int,
    end: int,
    rays: Any,
    runs: Any,
    shape: Any,
    box: Any,
    sinogram: Any,
    squared: bool,
    image: Any,
) -> None:
    """Add what the rays driven by `axis` give to slabs `begin:end` of `image`.

    Arguments as in `planar_exact.scatter_slabs`.
    """
    place = np.empty(RUN, np.int32)
    one = np.empty(RUN)
    two = np.empty(RUN)
    edge, lateral = (box[2], box[0]) if axis == 0 else (box[0], box[2])
    middle = (shape[1] if axis == 0 else shape[0]) * 0.5
    width = image.shape[2] // 2
    for w in range(runs.shape[0]):
        for n in range(runs[w, -1, 0]):
            ka, many = runs[w, n, 0], runs[w, n, 1] - runs[w, n, 0]
            if runs[w, n, 4] != axis:
                continue
            for j in range(max(runs[w, n, 2], begin + edge), min(runs[w, n, 3], end + edge)):
                _weights(rays[w], ka, many, j, middle, lateral, width, place, one, two)
                if squared:
                    for r in range(many):
                        one[r] *= one[r]
                        two[r] *= two[r]
                for b in range(image.shape[0]):
                    add_pairs(image[b, j - edge], place, one, two, sinogram[b, w], ka, many)


@njit(nogil=True, cache=True, error_model="numpy")
def _tabulate(
    parallel: bool,
    frame: Any,
    points: Any,
    view: int,
    lengths: Any,
    shape: Any,
    box: Any,
    columns: Any,
    rays: Any,
    ranges: Any,
) -> None:
    """Rays and the slabs of `box` in which one of their two cells may lie in it."""
    has_points = points.shape[1] > 0
    seen = points[view] if has_points else points[0]
    # Half a cell beside the box the outermost centre still counts.
    wide = np.array((box[0] - 1, box[1] + 1, box[2] - 1, box[3] + 1))
    tabulate(
        parallel, frame, seen, has_points, columns[0], columns[1], lengths, shape, wide, rays,
        ranges,
    )  # fmt: skip
    for r in range(columns[1]):
        near, far = (box[2], box[3]) if ranges[0, r] == 0 else (box[0], box[1])
        ranges[1, r] = max(ranges[1, r], near)
        ranges[2, r] = max(min(ranges[2, r], far), ranges[1, r])


@njit(nogil=True, cache=True, error_model="numpy")
def _weights(
    rays: Any,
    ka: int,
    many: int,
    j: int,
    middle: float,
    lateral: int,
    width: int,
    place: Any,
    one: Any,
    two: Any,
) -> None:
    """Position in the padded slab and the two weights, for the rays ka .. ka + many."""
    slab = float(j)
    shift = float(lateral - PAD)
    top = float(width - TAIL)
    back, slope, step, low, high = rays[0], rays[1], rays[2], rays[4], rays[5]
    for r in range(many):
        k = ka + r
        begin = max(slab, load(low, k))
        end = min(slab + 1.0, load(high, k))
        whole = load(step, k) * max(end - begin, 0.0)
        at = load(back, k) + (0.5 * (begin + end) - middle) * load(slope, k) - 0.5
        first = np.floor(at)
        share = at - first
        at = min(max(first - shift, 0.0), top)
        store(place, r, np.int32(at) if whole > 0.0 else np.int32(0))
        store(one, r, whole * (1.0 - share))
        store(two, r, whole * share)
