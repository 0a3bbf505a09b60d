"""Planar kernels of precision "fast": float32, eight lanes at a time, geometry from float64.

Forward marches groups of eight neighbouring rays. The adjoint gathers, into groups of eight
neighbouring cells, the few bins whose rays cross a cell: the chord through a cell is a trapezoid
in the distance of the ray, so no transposed image is needed. Groups start at whole multiples of
eight of the whole detector or grid, and slabs are counted from multiples of CHUNK, so that blocks
round as the whole does.

Rays almost along an axis (their trapezoid is too steep for float32), rays that end inside the
grid, and curved detectors in the adjoint are left to `planar_exact`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from linops.compiled.noalias import load, store

from .planar_exact import PAD, RUN, list_runs, march_exact, run_of
from .planar_lanes import gather_fan, gather_parallel, march
from .planar_rays import ray, tabulate

__all__ = ["classify", "forward_fast", "gather", "prepare"]

STEEP = 0.0125  # slopes below are exact: positions are right to 1e-6, shares to 1e-6 / slope / 2
CHUNK = 128  # slabs for which one set of lanes holds
SPREAD = 6.9  # cells between the window's place and a lane, at most
WIDEST = 1.9999  # bins that a cell's shadow may reach to both sides; more is left to be exact
TIGHT = 0.997  # bins a cell up to which 3.5 cells and half a bin keep within 4 bins to each side
WINDOW = 10.0  # bins between the window's place and a bin of its lanes, at most
MARGIN = 15  # windows beyond the data by more than this are moved into the zeros


@njit(nogil=True, cache=True, error_model="numpy")
def forward_fast(
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
    """As `planar_exact.forward_views`, float32."""
    first = columns[0] // 8 * 8
    skipped = columns[0] - first
    count = (skipped + columns[1] + 7) // 8 * 8
    batch = rows.shape[0]
    rays = np.empty((6, count))
    ranges = np.empty((3, count), np.int32)
    place = np.empty(RUN, np.int32)
    one = np.empty(RUN)
    two = np.empty(RUN)
    total = np.empty((batch, RUN))
    part = np.empty((batch, RUN))
    lanes = np.empty((5, 8), np.float32)
    flat_rows = rows.reshape((batch, rows.shape[1] * rows.shape[2]))
    flat_cols = cols.reshape((batch, cols.shape[1] * cols.shape[2]))
    has_points = points.shape[1] > 0
    for w in range(begin, end):
        v = views[w]
        if v < 0:
            continue
        seen = points[v] if has_points else points[0]
        tabulate(
            parallel, frames[v], seen, has_points, first, count, lengths, shape, box, rays, ranges
        )
        for g in range(0, count, 8):
            fast = _alike(rays, ranges, g, shape)
            ka = g
            while ka < g + 8:
                if fast:
                    kb, start, stop = g + 8, 2147483647, 0
                    for k in range(g, kb):
                        if ranges[1, k] < ranges[2, k]:
                            start, stop = min(start, ranges[1, k]), max(stop, ranges[2, k])
                else:
                    kb, start, stop = run_of(ranges, ka, g + 8)
                axis = ranges[0, ka]
                total[:] = 0.0
                if start >= stop:
                    pass
                elif not fast:
                    march_exact(
                        rays,
                        ka,
                        kb - ka,
                        axis,
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
                else:
                    middle = (shape[1] if axis == 0 else shape[0]) * 0.5
                    slabs = shape[1] if axis == 0 else shape[0]
                    edge, lateral = (box[2], box[0]) if axis == 0 else (box[0], box[2])
                    image = flat_rows if axis == 0 else flat_cols
                    stride = rows.shape[2] if axis == 0 else cols.shape[2]
                    cells = box[1] - box[0] if axis == 0 else box[3] - box[2]
                    for j in range(start // CHUNK * CHUNK, stop, CHUNK):
                        last = min(j + CHUNK, slabs)
                        near, x, slope = _lanes(rays, g, j, last - j, middle, lanes)
                        low, high = max(start, j), min(stop, last)
                        if near:
                            at = (j - edge) * stride + PAD - lateral
                            for b in range(batch):
                                lanes[4] = np.float32(0)
                                march(
                                    image[b],
                                    at,
                                    stride,
                                    low - j,
                                    high - j,
                                    x,
                                    slope,
                                    float(lateral - MARGIN),
                                    float(lateral + cells + MARGIN),
                                    lanes,
                                )
                                for r in range(8):
                                    total[b, r] += rays[2, g + r] * lanes[4, r]
                        else:
                            march_exact(
                                rays,
                                g,
                                8,
                                axis,
                                low,
                                high,
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
                for r in range(kb - ka):
                    k = ka + r - skipped
                    if 0 <= k < columns[1]:
                        for b in range(batch):
                            out[b, w, k] = total[b, r]
                ka = kb


@njit(nogil=True, cache=True, error_model="numpy")
def _alike(rays: Any, ranges: Any, g: int, shape: Any) -> bool:
    """Whether the eight rays from g on share their axis, pass right through, and are not steep."""
    axis = ranges[0, g]
    slabs = shape[1] if axis == 0 else shape[0]
    for k in range(g, g + 8):
        if ranges[0, k] != axis or not abs(rays[1, k]) >= STEEP:
            return False
        if rays[4, k] > 0.0 or rays[5, k] < slabs:
            return False
    return True


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


@njit(nogil=True, cache=True, error_model="numpy")
def classify(
    parallel: bool,
    frames: Any,
    views: Any,
    begin: int,
    end: int,
    lengths: Any,
    shape: Any,
    gathers: Any,
    lines: Any,
    shapes: Any,
) -> None:
    """How each of `views[begin:end]` is gathered, in `gathers` (v,) whether it can be.

    Detectors are flat. The place of a point (x, y), in cells, on the detector, in bins:
    parallel: `lines` (v, 9) holds 1, x, y coefficients of it, and `shapes` (v, 4) its change
    along x, slope and top of the trapezoid, and whether that reaches over 4 bins; fan: of its
    numerator and its denominator, then the source and half the detector's distance in the
    denominator's units, and `shapes` the denominator's change along x.
    """
    nx, ny = float(shape[0]), float(shape[1])
    none = np.empty((0, 2))
    for w in range(begin, end):
        v = views[w]
        gathers[w] = False
        if v < 0:
            continue
        frame = frames[v]
        if parallel:
            axis, back, slope, _, _spread, _, _ = ray(True, frame, none, False, 0, lengths, shape)
            _, other, _, _, _, _, _ = ray(True, frame, none, False, 64, lengths, shape)
            pace = (other - back) / 64.0
            s = abs(slope)
            if not (abs(pace) > 0.55 and abs(pace) < 1e6 and s >= STEEP):
                # Too fine for the window (3.5 cells reach over 6.4 bins), edge-on, or steep.
                continue
            middle = (ny if axis == 0 else nx) * 0.5
            lines[0, w] = (middle * slope - back) / pace
            lines[1, w] = 1.0 / pace if axis == 0 else -slope / pace
            lines[2, w] = -slope / pace if axis == 0 else 1.0 / pace
            shapes[0, w] = lines[1, w]
            shapes[1, w] = abs(pace) / s
            shapes[2, w] = (1.0 + s) / (2.0 * s)
            half = (1.0 + s) / (2.0 * abs(pace))
            shapes[3, w] = 1.0 if half > 0.9999 else 0.0
            gathers[w] = half <= WIDEST
            continue
        sx, sy = frame[0] / lengths[0] + nx * 0.5, frame[1] / lengths[1] + ny * 0.5
        ux, uy = lengths[2] * frame[4] / lengths[0], lengths[2] * frame[5] / lengths[1]
        a = lengths[3] - lengths[4] * lengths[2]
        ex = (frame[2] + a * frame[4]) / lengths[0] + nx * 0.5 - sx
        ey = (frame[3] + a * frame[5]) / lengths[1] + ny * 0.5 - sy
        sign = 1.0 if ux * (ny * 0.5 - sy) - uy * (nx * 0.5 - sx) > 0.0 else -1.0
        lines[0, w] = sign * (sy * ex - sx * ey)
        lines[1, w] = sign * ey
        lines[2, w] = -sign * ex
        lines[3, w] = sign * (uy * sx - ux * sy)
        lines[4, w] = -sign * uy
        lines[5, w] = sign * ux
        lines[6, w] = ex
        lines[7, w] = ux
        lines[8, w] = ey
        lines[9, w] = uy
        shapes[0, w] = lines[4, w]
        # The depth 4 cells away, and half the sides of a ray WINDOW bins away.
        lines[10, w] = 4.0 * abs(lines[4, w]) + 0.5 * WINDOW * (abs(ux) + abs(uy))
        gathers[w] = _gathers(lines[:, w], nx, ny)


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
    parallel: bool,
    frames: Any,
    points: Any,
    views: Any,
    chosen: Any,
    begin: int,
    end: int,
    lengths: Any,
    shape: Any,
    box: Any,
    columns: Any,
    sinogram: Any,
    gathers: Any,
    lines: Any,
    data: Any,
    rays: Any,
    ranges: Any,
    runs: Any,
    rest: Any,
) -> int:
    """Split the views `chosen[begin:end]` of a sinogram into what is gathered and the rest.

    `data` (B, n, PAD + c + TAIL) gets values times lengths a slab, `slopes`, `tops` (n, same)
    the trapezoids of a fan's rays; rays left to `scatter_slabs` go to `rays` (n, 6, c),
    `ranges` (n, 3, c), `runs`
    (n, c + 1, 5), `rest` (B, n, c). Returns how many rays are left.
    """
    count = columns[1]
    left = 0
    has_points = points.shape[1] > 0
    for c in range(begin, end):
        w = chosen[c]
        v = views[w]
        seen = points[v] if has_points else points[0]
        frame = frames[v]
        if parallel and gathers[w]:
            _, _, _, step, _, _, _ = ray(True, frame, seen, False, 0, lengths, shape)
            runs[c, -1, 0] = 0
            for b in range(data.shape[0]):
                for r in range(count):
                    data[b, c, PAD + r] = sinogram[b, w, r] * step
                    rest[b, c, r] = 0.0
            continue
        tabulate(
            parallel,
            frame,
            seen,
            has_points,
            columns[0],
            count,
            lengths,
            shape,
            box,
            rays[c],
            ranges[c],
        )
        line = lines[:, w]
        least = line[3] + min(line[4] * shape[0], 0.0) + min(line[5] * shape[1], 0.0)
        for r in range(count):
            s = abs(rays[c, 1, r])
            axis = ranges[c, 0, r]
            slabs = shape[1] if axis == 0 else shape[0]
            fast = gathers[w] and s >= STEEP and rays[c, 4, r] <= 0.0 and rays[c, 5, r] >= slabs
            gain = 0.0
            if fast:
                k = columns[0] + r
                e, f = abs(line[6] + k * line[7]), abs(line[8] + k * line[9])
                # No other sign within the window, nor a shadow that reaches over its bins.
                fast = e > WINDOW * abs(line[7]) and f > WINDOW * abs(line[9])
                fast = fast and 0.5 * (e + f) <= WIDEST * least
                gain = rays[c, 2, r] / min(e, f)
            for b in range(data.shape[0]):
                value = sinogram[b, w, r]
                data[b, c, PAD + r] = value * gain if fast else 0.0
                rest[b, c, r] = 0.0 if fast else value
            if fast:
                ranges[c, 2, r] = ranges[c, 1, r]
            else:
                left += 1
        list_runs(ranges[c], runs[c])
    return left


@njit(nogil=True, cache=True, error_model="numpy")
def gather(
    parallel: bool,
    begin: int,
    end: int,
    lines: Any,
    shapes: Any,
    data: Any,
    box: Any,
    columns: Any,
    image: Any,
) -> None:
    """Add the views of `data` (B, n, PAD + c + TAIL) to the rows `begin:end` of `image`
    (B, ly, lx).

    `lines` (n, 9) and `shapes` (n, 4) as in `classify`.
    """
    views = lines.shape[1]
    width = data.shape[2]
    flat = data.reshape(data.size)
    cells = np.empty(views, np.int32)
    numbers = np.empty((9, views), np.float32)
    total = np.empty(8, np.float32)
    for j in range(begin, end):
        y = box[2] + j + 0.5
        for g in range(box[0] // 8 * 8, box[1], 8):
            _aim(parallel, lines, g + 4.0, y, columns, cells, numbers)
            start, stop = max(g, box[0]), min(g + 8, box[1])
            for b in range(image.shape[0]):
                total[:] = np.float32(0)
                for i in range(start, stop):
                    total[i - g] = image[b, j, i - box[0]]
                at = b * data.shape[1] * width + PAD - columns[0]
                if parallel:
                    gather_parallel(flat, at, width, cells, numbers, shapes, total)
                else:
                    gather_fan(flat, at, width, cells, numbers, shapes, total)
                for i in range(start, stop):
                    image[b, j, i - box[0]] = total[i - g]


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
