"""Planar adjoint kernel of precision "fast": float32, eight lanes, geometry from float64.

Groups of eight neighbouring cells gather the two to four bins whose rays cross a cell: the chord
through a cell is a trapezoid in the distance of the ray, so no transposed image is needed. Groups
start at whole multiples of eight of the whole grid, so that blocks round as the whole does.

Rays almost along an axis (their trapezoid is too steep for float32), rays that end inside the
grid, and curved detectors are left to `planar_exact`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from linops.compiled.noalias import load, store

from .planar_exact import list_runs
from .planar_fast import MARGIN, STEEP, passes
from .planar_lanes import gather_fan, gather_parallel
from .planar_models import PAD
from .planar_rays import Beam, fan_places, parallel_places, ray, tabulate

__all__ = ["classify", "gather", "leave", "prepare"]

WIDEST = 1.9999  # bins that a cell's shadow may reach to both sides; more is left to be exact
TIGHT = 0.997  # bins a cell up to which 3.5 cells and half a bin keep within 4 bins to each side
WINDOW = 10.0  # bins between the window's place and a bin of its lanes, at most


@njit(nogil=True, cache=True, error_model="numpy")
def classify(beam: Beam, views: Any, gathers: Any, lines: Any, shapes: Any) -> None:
    """How each of `views` is gathered, in `gathers` (v,) whether it can be.

    Detectors are flat. Rows 0 to 2 of `lines` (11, v): the place of a point (x, y), in cells, on
    the detector, in bins, as coefficients of 1, x, y; of a fan those of its numerator, 3 to 5 of
    its denominator, 6 to 9 the way to bin 0 and its change a bin (x, change, y, change), 10 by
    how much the denominator varies within eight cells. `shapes` (4, v) of a parallel beam:
    change of the place along x, slope and top of the trapezoid, and whether that reaches over 4
    bins; of a fan: the denominator's change along x.
    """
    for w in range(len(views)):
        v = views[w]
        gathers[w] = False
        if v < 0:
            continue
        if beam.parallel:
            at, by_x, by_y, pace, slope = parallel_places(beam, v)
            s = abs(slope)
            if not (abs(pace) > 0.55 and abs(pace) < 1e6 and s >= STEEP):
                # Too fine for the window (3.5 cells reach over 6.4 bins), edge-on, or steep.
                continue
            lines[0, w], lines[1, w], lines[2, w] = at, by_x, by_y
            half = (1.0 + s) / (2.0 * abs(pace))
            shapes[0, w] = by_x
            shapes[1, w] = abs(pace) / s
            shapes[2, w] = (1.0 + s) / (2.0 * s)
            shapes[3, w] = 1.0 if half > 0.9999 else 0.0
            gathers[w] = half <= WIDEST
            continue
        numerator, denominator, way = fan_places(beam, v)
        for i in range(3):
            lines[i, w] = numerator[i]
            lines[3 + i, w] = denominator[i]
        for i in range(4):
            lines[6 + i, w] = way[i]
        # The depth 4 cells away, and half the sides of a ray WINDOW bins away.
        lines[10, w] = 4.0 * abs(lines[4, w]) + 0.5 * WINDOW * (abs(way[1]) + abs(way[3]))
        shapes[0, w] = lines[4, w]
        gathers[w] = _gathers(lines[:, w], float(beam.shape[0]), float(beam.shape[1]))


@njit(nogil=True, cache=True, error_model="numpy")
def _gathers(line: Any, nx: float, ny: float) -> bool:
    """Whether all cells lie well before the source, and eight of them within the window."""
    for p in range(9):
        for x in (0.0, nx):
            y = ny * p / 8.0
            m = line[3] + line[4] * x + line[5] * y
            n = line[0] + line[1] * x + line[2] * y
            if not m > 1e-9 * (abs(line[4]) * nx + abs(line[5]) * ny):
                return False
            if not abs(line[1] - n / m * line[4]) <= 1.85 * m:
                return False
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def prepare(
    beam: Beam,
    views: Any,
    chosen: Any,
    begin: int,
    end: int,
    columns: Any,
    sinogram: Any,
    lines: Any,
    data: Any,
    left: Any,
) -> None:
    """Fill `data` (B, n, PAD + c + TAIL) from the gathered views `chosen[begin:end]`.

    Values times lengths a slab, of a fan's rays over the lesser of their two sides, which
    `gather` makes up for; zeros for rays that are left to `scatter_slabs`, and in `left` (v, 2)
    whether there are such, driven by y, by x.
    """
    gain = 0.0
    for c in range(begin, end):
        w = chosen[c]
        for r in range(columns[1]):
            if r == 0 or not beam.parallel:
                k = columns[0] + r
                axis, _, slope, gain, _, low, high = ray(beam, views[w], k)
            if not beam.parallel:
                if passes(slope, low, high, beam.shape[1 - axis]) and _fits(lines[:, w], k, beam):
                    gain /= min(*_sides(lines[:, w], k))
                else:
                    gain = 0.0
                    left[w, axis] = True
            for b in range(data.shape[0]):
                data[b, c, PAD + r] = sinogram[b, w, r] * gain if gain > 0.0 else 0.0


@njit(nogil=True, cache=True, error_model="numpy")
def _sides(line: Any, k: int) -> Any:
    """How far ray k of a fan goes along x and along y, in cells, from source to detector."""
    return abs(line[6] + k * line[7]), abs(line[8] + k * line[9])


@njit(nogil=True, cache=True, error_model="numpy")
def _fits(line: Any, k: int, beam: Beam) -> bool:
    """Whether the window of ray k turns nowhere, and no shadow of it reaches beyond its bins."""
    e, f = _sides(line, k)
    least = line[3] + min(line[4] * beam.shape[0], 0.0) + min(line[5] * beam.shape[1], 0.0)
    turns = e <= WINDOW * abs(line[7]) or f <= WINDOW * abs(line[9])
    return not turns and 0.5 * (e + f) <= WIDEST * least


@njit(nogil=True, cache=True, error_model="numpy")
def leave(
    beam: Beam,
    views: Any,
    begin: int,
    end: int,
    box: Any,
    columns: Any,
    gathers: Any,
    lines: Any,
    rays: Any,
    ranges: Any,
    runs: Any,
) -> None:
    """As `planar_exact.tabulate_views`, but for the rays alone that `prepare` leaves out.

    `gathers` (v,) and `lines` (11, v) of the same views, as in `classify`.
    """
    for w in range(begin, end):
        tabulate(beam, views[w], columns[0], columns[1], box, 0, rays[w], ranges[w])
        for r in range(columns[1] if gathers[w] else 0):
            slabs = beam.shape[1 - ranges[w, 0, r]]
            through = passes(rays[w, 1, r], rays[w, 4, r], rays[w, 5, r], slabs)
            if through and _fits(lines[:, w], columns[0] + r, beam):
                ranges[w, 2, r] = ranges[w, 1, r]
        list_runs(ranges[w], runs[w])


@njit(nogil=True, cache=True, error_model="numpy")
def gather(
    beam: Beam,
    begin: int,
    end: int,
    lines: Any,
    shapes: Any,
    data: Any,
    box: Any,
    columns: Any,
    image: Any,
) -> None:
    """Add the views of `data` (B, n, PAD + c + TAIL) to rows `begin:end` of `image` (B, ly, lx).

    B is 1 or 2.
    `lines` (11, n) and `shapes` (4, n) as in `classify`.
    """
    views = lines.shape[1]
    width = data.shape[2]
    flat = data.reshape(data.size)
    cells = np.empty(views, np.int32)
    numbers = np.empty((9, views), np.float32)
    total = np.zeros(16, np.float32)
    batch, base, twin = image.shape[0], PAD - columns[0], data.shape[1] * width
    for j in range(begin, end):
        y = box[2] + j + 0.5
        for g in range(box[0] // 8 * 8, box[1], 8):
            _aim(beam.parallel, lines, g + 4.0, y, columns, cells, numbers)
            start, stop = max(g, box[0]), min(g + 8, box[1])
            for b in range(batch):
                for i in range(start, stop):
                    total[8 * b + i - g] = image[b, j, i - box[0]]
            if beam.parallel and batch == 1:
                gather_parallel(flat, base, None, width, cells, numbers, shapes, total)
            elif beam.parallel:
                gather_parallel(flat, base, twin, width, cells, numbers, shapes, total)
            elif batch == 1:
                gather_fan(flat, base, None, width, cells, numbers, shapes, total)
            else:
                gather_fan(flat, base, twin, width, cells, numbers, shapes, total)
            for b in range(batch):
                for i in range(start, stop):
                    image[b, j, i - box[0]] = total[8 * b + i - g]


@njit(nogil=True, cache=True, error_model="numpy")
def _aim(
    parallel: bool, lines: Any, x: float, y: float, columns: Any, cells: Any, numbers: Any
) -> None:
    """Where the middle (x, y) of 8 cells falls in each view, as `planar_lanes` wants it."""
    low = float(columns[0] - MARGIN)
    high = float(columns[0] + columns[1] + MARGIN)
    if parallel:
        for v in range(len(cells)):
            place = load(lines[0], v) + load(lines[1], v) * x + load(lines[2], v) * y
            place = min(max(place, low), high)
            whole = np.floor(place)
            store(cells, v, np.int32(whole))
            store(numbers[0], v, np.float32(place - whole))
        return
    for v in range(len(cells)):
        dn, dm = load(lines[1], v), load(lines[4], v)
        n = load(lines[0], v) + dn * x + load(lines[2], v) * y
        m = load(lines[3], v) + dm * x + load(lines[5], v) * y
        place = n / m
        pace = dn - place * dm
        place = min(max(place + 0.5, low), high)
        whole = np.floor(place)
        e = load(lines[6], v) + whole * load(lines[7], v)
        f = load(lines[8], v) + whole * load(lines[9], v)
        near = m - load(lines[10], v)
        store(cells, v, np.int32(whole))
        store(numbers[0], v, np.float32(place - whole - 0.5))
        store(numbers[1], v, np.float32(pace))
        store(numbers[2], v, np.float32(m))
        store(numbers[3], v, np.float32(abs(e)))
        store(numbers[4], v, np.float32(abs(f)))
        store(numbers[5], v, np.float32(np.copysign(1.0, e) * load(lines[7], v)))
        store(numbers[6], v, np.float32(np.copysign(1.0, f) * load(lines[9], v)))
        store(numbers[7], v, np.float32(TIGHT * near - abs(pace)))
        store(numbers[8], v, np.float32(abs(e) + abs(f) - 2.0 * near))
