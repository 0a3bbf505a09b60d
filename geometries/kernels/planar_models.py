"""Weights of runs of planar rays, of Siddon's model and of Joseph's, in float64.

Neighboring rays with one driving axis are a run; its weights are computed for a few slabs at a
time: where the first of the two cells lies in a padded slab, and the weights of the first and
the second. Siddon's are the exact lengths of `planar_rays`. In Joseph's model a ray's part in a
slab counts with its length, and the value there is interpolated between the two cells whose
centers enclose the middle of the part (Joseph 1982).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linops.compiled.noalias import load, store

from .compiling import compiled
from .planar_crossings import cross
from .planar_rays import split

__all__ = ["PAD", "RUN", "SLABS", "SPARE", "TAIL", "weights"]

RUN = 64  # rays a run: their table and weights stay in L1
SLABS = 8  # slabs whose weights are computed at a time
SPARE = 3  # numbers that may be read beyond a table of rays
# Empty cells before and after each slab: rays beside the box, and windows of the fast kernels
# that reach over its ends, read zeros.
PAD, TAIL = 24, 40


@compiled
def weights(
    joseph: bool,
    rays: Any,
    ka: int,
    many: int,
    through: bool,
    j: int,
    slabs: int,
    middle: float,
    lateral: int,
    width: int,
    place: Any,
    one: Any,
    two: Any,
) -> None:
    """Fill `place` (SLABS, RUN) int32, `one`, `two` for the rays ka .. ka + many, slabs from j on.

    `through`: all rays pass right through the grid; `middle`: half the slabs of the grid;
    `lateral`: first cell of padded slabs of `width` numbers.
    """
    shift = float(lateral - PAD)
    top = float(width - TAIL)
    if through and not joseph:
        cross(rays, ka, many, float(j), slabs, middle, shift, top, place, one, two)
        return
    for s in range(slabs):
        if joseph:
            _joseph(rays, ka, many, float(j + s), middle, shift, top, place[s], one[s], two[s])
        else:
            _siddon(rays, ka, many, float(j + s), middle, shift, top, place[s], one[s], two[s])


@compiled
def _siddon(
    rays: Any,
    ka: int,
    many: int,
    slab: float,
    middle: float,
    shift: float,
    top: float,
    place: Any,
    one: Any,
    two: Any,
) -> None:
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


@compiled
def _joseph(
    rays: Any,
    ka: int,
    many: int,
    slab: float,
    middle: float,
    shift: float,
    top: float,
    place: Any,
    one: Any,
    two: Any,
) -> None:
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
