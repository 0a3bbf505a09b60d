"""Planar adjoint kernel of precision "fast": float32, eight lanes, geometry from float64.

Groups of eight neighboring cells gather the two to four bins whose rays cross a cell: the chord
through a cell is a trapezoid in the distance of the ray, so no transposed image is needed. Groups
start at whole multiples of eight of the whole grid, so that blocks round as the whole does.

Rays almost along an axis (their trapezoid is too steep for float32), rays that end inside the
grid, and curved detectors are left to `planar_exact`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linops.compiled.noalias import load, store

from .compiling import compiled
from .planar_exact import list_runs
from .planar_fast import MARGIN, STEEP
from .planar_lanes import gather_fan, gather_parallel
from .planar_models import PAD
from .planar_rays import Beam, enter, fan_places, parallel_places, ray

__all__ = ["classify", "gather", "leave", "prepare"]

WIDEST = 1.9999  # bins that a cell's shadow may reach to both sides; more is left to be exact
TIGHT = 0.997  # bins a cell up to which 3.5 cells and half a bin keep within 4 bins to each side
WINDOW = 10.0  # bins between the window's place and a bin of its lanes, at most


@compiled
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


@compiled
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


@compiled
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
    by: Any,
) -> None:
    """Fill `data` (B, n, PAD + c + TAIL) from the gathered views `chosen[begin:end]`.

    Values times lengths a slab, of a fan's rays over the lesser of their two sides, which
    `gather` makes up for; zeros for rays that are left to `scatter_slabs`. These are told in
    `left` (v, c), and in `by` (v, 2) whether a view has such, driven by y, by x.
    """
    gains = np.empty(columns[1])
    for c in range(begin, end):
        w = chosen[c]
        if beam.parallel:
            gains[:] = ray(beam, views[w], columns[0])[3]
        else:
            _gains(beam, views[w], lines[:, w], columns[0], gains)
            for r in range(columns[1]):
                if gains[r] == 0.0:
                    left[w, r] = True
                    by[w, ray(beam, views[w], columns[0] + r)[0]] = True
        for b in range(data.shape[0]):
            for r in range(columns[1]):
                value = sinogram[b, w, r] * gains[r]
                data[b, c, PAD + r] = value if gains[r] > 0.0 else 0.0


@compiled
def _gains(beam: Beam, v: int, line: Any, first: int, gains: Any) -> None:
    """Length of the rays of a fan from `first` on over both their sides; 0 for rays to be left.

    Left are rays that are steep or end in the grid, whose sides turn within the window, or whose
    shadows reach over its bins.
    """
    dx, dy = beam.lengths[0], beam.lengths[1]
    nx, ny = float(beam.shape[0]), float(beam.shape[1])
    sx, sy = beam.frames[v, 0] / dx + nx * 0.5, beam.frames[v, 1] / dy + ny * 0.5
    least = line[3] + min(line[4] * nx, 0.0) + min(line[5] * ny, 0.0)
    for r in range(len(gains)):
        e, f = line[6] + (first + r) * line[7], line[8] + (first + r) * line[9]
        x, y = sx + e, sy + f
        across_x = (min(sx, x) <= 0.0) & (max(sx, x) >= nx)
        across_y = (min(sy, y) <= 0.0) & (max(sy, y) >= ny)
        e, f = abs(e), abs(f)
        fits = across_x if e > f else across_y
        fits &= min(e, f) >= STEEP * max(e, f)
        fits &= (e > WINDOW * abs(line[7])) & (f > WINDOW * abs(line[9]))
        fits &= 0.5 * (e + f) <= WIDEST * least
        length = np.sqrt((e * dx) * (e * dx) + (f * dy) * (f * dy))
        gains[r] = length / (e * f) if fits else 0.0


@compiled
def leave(
    beam: Beam,
    views: Any,
    begin: int,
    end: int,
    box: Any,
    columns: Any,
    left: Any,
    rays: Any,
    ranges: Any,
    runs: Any,
) -> None:
    """As `planar_exact.tabulate_views`, but for the rays alone that are `left` (v, c)."""
    for w in range(begin, end):
        for r in range(columns[1]):
            if left[w, r]:
                enter(beam, views[w], columns[0] + r, box, 0, rays[w], ranges[w], r)
            else:
                ranges[w, :, r] = 0
        list_runs(ranges[w], runs[w])


@compiled
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


@compiled
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
