"""Planar kernels with weights and sums in float64, data as given, of Siddon's and Joseph's models.

Forward: a call owns some views. Adjoint and diagonal: a call owns some slabs, rows of the image
for the rays driven by y and columns for those driven by x. Rays are taken in runs; the weights of
a run in a few slabs are computed once for all images (`planar_models`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linops.compiled.noalias import add, load

from .compiling import compiled
from .planar_crossings import add_pairs, spread
from .planar_models import PAD, RUN, SLABS, SPARE, TAIL, weights
from .planar_rays import Beam, ray, tabulate

__all__ = [
    "Scratch",
    "driven",
    "forward_views",
    "list_runs",
    "march_exact",
    "run_of",
    "scatter_slabs",
    "scratch",
    "tabulate_views",
]

BLOCK = 16  # slabs a partial sum: equal weights on a ray would else add up their rounding


class Scratch(NamedTuple):
    """What a march of a run needs; `total` is its result."""

    place: Any  # (SLABS, RUN) int32
    one: Any  # (SLABS, RUN)
    two: Any  # (SLABS, RUN)
    part: Any  # (B, RUN)
    total: Any  # (B, RUN)


@compiled
def scratch(batch: int) -> Scratch:
    """Scratch for a batch of images."""
    return Scratch(
        np.empty((SLABS, RUN), np.int32),
        np.empty((SLABS, RUN)),
        np.empty((SLABS, RUN)),
        np.empty((batch, RUN)),
        np.empty((batch, RUN)),
    )


@compiled
def forward_views(
    joseph: bool,
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
    """Project the views `views[begin:end]` into `out` (B, v, c), real columns alone.

    `views` (v,) int64 picks frames, -1 is skipped. `box` (4,) int64: the cells x0, x1, y0, y1
    of the whole grid whose values stand in `rows` (B, y1 - y0, PAD + x1 - x0 + TAIL) and,
    transposed, in `cols` (B, x1 - x0, PAD + y1 - y0 + TAIL), zeros around them. `columns`
    (2,): first of the columns, and how many.
    """
    count = columns[1]
    rays = np.empty((6, count + SPARE))
    ranges = np.empty((4, count), np.int32)
    room = scratch(rows.shape[0])
    for w in range(begin, end):
        v = views[w]
        if v < 0:
            continue
        _tabulate(joseph, beam, v, box, columns, rays, ranges)
        ka = np.int64(0)
        while ka < count:
            run = run_of(ranges, ka, count)
            room.total[:] = 0.0
            march_exact(joseph, beam.shape, box, rows, cols, rays, run, room)
            kb = run[1]
            for b in range(out.shape[0]):
                for r in range(kb - ka):
                    out[b, w, ka + r] = room.total[b, r]
            ka = kb


@compiled
def march_exact(
    joseph: bool, shape: Any, box: Any, rows: Any, cols: Any, rays: Any, run: Any, room: Scratch
) -> None:
    """Add to `room.total` what a run of rays meets in its slabs."""
    ka, kb, start, stop, axis, through = run
    many = kb - ka
    image = rows if axis == 0 else cols
    edge, lateral = (box[2], box[0]) if axis == 0 else (box[0], box[2])
    middle = shape[1 - axis] * 0.5
    width = image.shape[2]
    part, total = room.part, room.total
    part[:] = 0.0
    j = start
    while j < stop:
        slabs = min(SLABS - j % SLABS, stop - j)
        weights(
            joseph, rays, ka, many, through == 1, j, slabs, middle, lateral, width,
            room.place, room.one, room.two,
        )  # fmt: skip
        for b in range(image.shape[0]):
            sums = part[b]
            for s in range(slabs):
                line = image[b, j - edge + s]
                place, one, two = room.place[s], room.one[s], room.two[s]
                for r in range(many):
                    i = load(place, r)
                    left, right = load(one, r), load(two, r)
                    first, second = float(load(line, i)), float(load(line, i + 1))
                    first = first if left > 0.0 else 0.0
                    second = second if right > 0.0 else 0.0
                    add(sums, r, left * first + right * second)
        j += slabs
        if j % BLOCK == 0 or j == stop:
            for b in range(image.shape[0]):
                for r in range(many):
                    total[b, r] += part[b, r]
                    part[b, r] = 0.0


@compiled
def driven(beam: Beam, views: Any, columns: Any, by: Any) -> None:
    """In `by` (v, 2) whether any ray of `views` is driven by y, by x."""
    for w in range(len(views)):
        by[w, :] = False
        if views[w] >= 0:
            for k in range(columns[0], columns[0] + columns[1]):
                by[w, ray(beam, views[w], k)[0]] = True


@compiled
def tabulate_views(
    joseph: bool,
    beam: Beam,
    views: Any,
    begin: int,
    end: int,
    box: Any,
    columns: Any,
    rays: Any,
    ranges: Any,
    runs: Any,
) -> None:
    """Fill `rays` (v, 6, c + SPARE), `ranges` (v, 4, c), `runs` (v, c + 1, 6) for some views."""
    for w in range(begin, end):
        _tabulate(joseph, beam, views[w], box, columns, rays[w], ranges[w])
        list_runs(ranges[w], runs[w])


@compiled
def scatter_slabs(
    joseph: bool,
    axis: int,
    begin: int,
    end: int,
    rays: Any,
    ranges: Any,
    runs: Any,
    shape: Any,
    box: Any,
    chosen: Any,
    sinogram: Any,
    squared: bool,
    image: Any,
) -> None:
    """Add what the rays driven by `axis` (0: y) give to the slabs `begin:end` of `image`.

    The tables' views are `chosen` of `sinogram` (B, v, c); `begin`, `end` count from the box;
    `squared` takes weights squared. `image` (B, slabs, 2 (PAD + cells + TAIL)) float64 has two
    numbers a cell, what rays add to the first of their cells and, one cell early, to the second:
    neighboring rays then seldom wait for each other's sum.
    """
    place = np.empty((SLABS, RUN), np.int32)
    one = np.empty((SLABS, RUN))
    two = np.empty((SLABS, RUN))
    edge, lateral = (box[2], box[0]) if axis == 0 else (box[0], box[2])
    middle = shape[1 - axis] * 0.5
    width = image.shape[2] // 2
    for c in range(len(chosen)):
        w = chosen[c]
        for n in range(runs[c, -1, 0]):
            if runs[c, n, 4] != axis:
                continue
            ka, many = runs[c, n, 0], runs[c, n, 1] - runs[c, n, 0]
            start, stop = max(runs[c, n, 2], begin + edge), min(runs[c, n, 3], end + edge)
            through = runs[c, n, 5] == 1
            if start >= stop:
                continue
            if through and not (joseph or squared):
                fours = many // 4 * 4
                spread(
                    rays[c], ka, fours, float(start), stop - start, middle, float(lateral - PAD),
                    float(width - TAIL), ranges[c], sinogram, w, image, start - edge,
                )  # fmt: skip
                ka += fours
                many -= fours
                if many == 0:
                    continue
            for j in range(start, stop, SLABS):
                slabs = min(SLABS, stop - j)
                weights(
                    joseph, rays[c], ka, many, through, j, slabs, middle, lateral, width,
                    place, one, two,
                )  # fmt: skip
                for s in range(slabs):
                    if squared:
                        for r in range(many):
                            one[s, r] *= one[s, r]
                            two[s, r] *= two[s, r]
                    for b in range(image.shape[0]):
                        line = image[b, j - edge + s]
                        add_pairs(line, place[s], one[s], two[s], sinogram[b, w], ka, many)


@compiled
def list_runs(ranges: Any, runs: Any) -> None:
    """The runs (`run_of`) of rays that meet slabs; in the last row of `runs` how many."""
    n, ka, count = 0, np.int64(0), ranges.shape[1]
    while ka < count:
        run = run_of(ranges, ka, count)
        if run[2] < run[3]:
            for i in range(6):
                runs[n, i] = run[i]
            n += 1
        ka = run[1]
    runs[-1, 0] = n


@compiled
def run_of(ranges: Any, ka: int, count: int) -> Any:
    """The run of rays from ka on: (ka, kb, first slab, one past the last, axis, through).

    Rays of a run share their axis, and either all meet slabs or none does. `through`: all
    pass right through the grid.
    """
    axis = np.int64(ranges[0, ka])
    meets = ranges[1, ka] < ranges[2, ka]
    start, stop, through = np.int64(ranges[1, ka]), np.int64(ranges[2, ka]), np.int64(ranges[3, ka])
    kb = ka + 1
    while kb < count and kb < ka + RUN and ranges[0, kb] == axis:
        if (ranges[1, kb] < ranges[2, kb]) != meets:
            break
        start = min(start, np.int64(ranges[1, kb]))
        stop = max(stop, np.int64(ranges[2, kb]))
        through = min(through, np.int64(ranges[3, kb]))
        kb += 1
    return ka, kb, start, stop if meets else start, axis, through


@compiled
def _tabulate(
    joseph: bool, beam: Beam, v: int, box: Any, columns: Any, rays: Any, ranges: Any
) -> None:
    # Of a ray half a cell beside the box Joseph's model still counts the outermost center.
    tabulate(beam, v, columns[0], columns[1], box, 1 if joseph else 0, rays, ranges)
