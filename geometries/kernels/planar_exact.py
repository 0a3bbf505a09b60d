"""Planar kernels of precision "float32" and "float64": weights and sums in float64, data as given.

Forward: a call owns some views. Adjoint and diagonal: a call owns some slabs, rows of the image
for the rays driven by y and columns for those driven by x, which two accumulators collect.
Rays are taken in runs; the weights of a run in a slab are computed once for all images.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from linops.compiled.noalias import add, load, store

from .planar_lanes import add_pairs
from .planar_rays import split, tabulate

__all__ = [
    "PAD",
    "RUN",
    "TAIL",
    "forward_views",
    "list_runs",
    "march_exact",
    "run_of",
    "scatter_slabs",
    "tabulate_views",
]

RUN = 64  # rays a run: their table and weights stay in L1
BLOCK = 16  # slabs a partial sum: equal weights on a ray would else add up their rounding
# Empty cells before and after each slab: rays beside the box, and windows of the fast kernels
# that reach over its ends, read zeros.
PAD, TAIL = 24, 40


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
    """Project the views `views[begin:end]` into `out` (B, v, c), real columns alone.

    `rows` (B, ly, PAD + lx + TAIL) and `cols` (B, lx, PAD + ly + TAIL): the real cells and their
    transpose between zeros; `box` (4,): x0, x1, y0, y1 of them; `columns` (2,): first and count.
    A view -1 is left alone.
    """
    count = columns[1]
    rays = np.empty((6, count))
    ranges = np.empty((3, count), np.int32)
    place = np.empty(RUN, np.int32)
    one = np.empty(RUN)
    two = np.empty(RUN)
    total = np.empty((rows.shape[0], RUN))
    part = np.empty((rows.shape[0], RUN))
    has_points = points.shape[1] > 0
    for w in range(begin, end):
        v = views[w]
        if v < 0:
            continue
        seen = points[v] if has_points else points[0]
        tabulate(
            parallel,
            frames[v],
            seen,
            has_points,
            columns[0],
            count,
            lengths,
            shape,
            box,
            rays,
            ranges,
        )
        ka = 0
        while ka < count:
            kb, start, stop = run_of(ranges, ka, count)
            total[:] = 0.0
            march_exact(
                rays,
                ka,
                kb - ka,
                ranges[0, ka],
                start,
                stop,
                shape,
                box,
                rows,
                cols,
                place,
                one,
                two,
                part,
                total,
            )
            for b in range(out.shape[0]):
                for r in range(kb - ka):
                    out[b, w, ka + r] = total[b, r]
            ka = kb


@njit(nogil=True, cache=True, error_model="numpy")
def march_exact(
    rays: Any,
    ka: int,
    many: int,
    axis: int,
    start: int,
    stop: int,
    shape: Any,
    box: Any,
    rows: Any,
    cols: Any,
    place: Any,
    one: Any,
    two: Any,
    part: Any,
    total: Any,
) -> None:
    """Add to `total` (B, many) what the rays from ka on, all driven by `axis`, meet in the slabs.

    `place`, `one`, `two` (RUN,) and `part` (B, RUN) are scratch.
    """
    image = rows if axis == 0 else cols
    edge, lateral = (box[2], box[0]) if axis == 0 else (box[0], box[2])
    middle = (shape[1] if axis == 0 else shape[0]) * 0.5
    part[:] = 0.0
    for j in range(start, stop):
        _weights(rays, ka, many, j, middle, lateral, image.shape[2], place, one, two)
        for b in range(image.shape[0]):
            line = image[b, j - edge]
            sums = part[b]
            for r in range(many):
                i = load(place, r)
                first = float(load(line, i))
                share = load(two, r)
                second = float(load(line, i + 1))
                second = second if share > 0.0 else 0.0
                add(sums, r, load(one, r) * first + share * second)
        if j % BLOCK == BLOCK - 1 or j == stop - 1:
            for b in range(image.shape[0]):
                for r in range(many):
                    total[b, r] += part[b, r]
                    part[b, r] = 0.0


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
    has_points = points.shape[1] > 0
    for w in range(begin, end):
        v = views[w]
        if v < 0:
            runs[w, -1, 0] = 0
        else:
            seen = points[v] if has_points else points[0]
            tabulate(
                parallel,
                frames[v],
                seen,
                has_points,
                columns[0],
                columns[1],
                lengths,
                shape,
                box,
                rays[w],
                ranges[w],
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
    """Add what the rays driven by `axis` (0: y) give to the slabs `begin:end` of `image`.

    `sinogram` (B, v, c), views as in the tables; `begin`, `end` count from the box; `squared`
    takes weights squared. `image` (B, slabs, 2 (PAD + cells + TAIL)) float64 has two numbers a
    cell, what rays add to the first of their cells and, one cell early, to the second:
    neighbouring rays then seldom wait for each other's sum.
    """
    place = np.empty(RUN, np.int32)
    one = np.empty(RUN)
    two = np.empty(RUN)
    edge, lateral = (box[2], box[0]) if axis == 0 else (box[0], box[2])
    middle = (shape[1] if axis == 0 else shape[0]) * 0.5
    for w in range(runs.shape[0]):
        for n in range(runs[w, -1, 0]):
            ka, kb, start, stop = runs[w, n, 0], runs[w, n, 1], runs[w, n, 2], runs[w, n, 3]
            if runs[w, n, 4] == axis:
                for j in range(max(start, begin + edge), min(stop, end + edge)):
                    _weights(
                        rays[w],
                        ka,
                        kb - ka,
                        j,
                        middle,
                        lateral,
                        image.shape[2] // 2,
                        place,
                        one,
                        two,
                    )
                    if squared:
                        for r in range(kb - ka):
                            one[r] *= one[r]
                            two[r] *= two[r]
                    for b in range(image.shape[0]):
                        line = image[b, j - edge]
                        values = sinogram[b, w]
                        add_pairs(line, place, one, two, values, ka, kb - ka)


@njit(nogil=True, cache=True, error_model="numpy")
def list_runs(ranges: Any, runs: Any) -> None:
    """Runs of rays that meet slabs: first, end, slabs from, to, axis; in the last row how many."""
    n, ka = 0, 0
    while ka < ranges.shape[1]:
        kb, start, stop = run_of(ranges, ka, ranges.shape[1])
        if start < stop:
            runs[n, 0] = ka
            runs[n, 1] = kb
            runs[n, 2] = start
            runs[n, 3] = stop
            runs[n, 4] = ranges[0, ka]
            n += 1
        ka = kb
    runs[-1, 0] = n


@njit(nogil=True, cache=True, error_model="numpy")
def run_of(ranges: Any, ka: int, count: int) -> Any:
    """The end of the run of rays that starts at ka, and the slabs that any of them meets.

    Rays of a run share their axis, and either all meet slabs or none does.
    """
    axis = ranges[0, ka]
    meets = ranges[1, ka] < ranges[2, ka]
    start, stop = ranges[1, ka], ranges[2, ka]
    kb = ka + 1
    while kb < count and kb < ka + RUN and ranges[0, kb] == axis:
        if (ranges[1, kb] < ranges[2, kb]) != meets:
            break
        start = min(start, ranges[1, kb])
        stop = max(stop, ranges[2, kb])
        kb += 1
    if not meets:
        stop = start
    return kb, start, stop


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
    """Position in the padded slab and the two lengths, for the rays ka .. ka + many."""
    slab = float(j)
    shift = float(lateral - PAD)
    top = float(width - TAIL)
    back, slope, step = rays[0], rays[1], rays[2]
    spread, low, high = rays[3], rays[4], rays[5]
    for r in range(many):
        k = ka + r
        first, a, b = split(
            load(back, k),
            load(slope, k),
            load(step, k),
            load(spread, k),
            load(low, k),
            load(high, k),
            slab,
            middle,
        )
        at = min(max(first - shift, 0.0), top)
        store(place, r, np.int32(at) if a + b > 0.0 else np.int32(0))
        store(one, r, a)
        store(two, r, b)
