"""The single-precision, vectorised tiles of `columns`, for precision "fast".

The walk in the plane stays float64. Heights along z are fixed-point int32 numbers, as fine as the
grid allows (a range of 2 (nz + 4) slices, so 2^-22 of a slice for 256), because a float32 height
of a few hundred slices would spoil the split of flat rays; a row's cell is a shift, the part of
its piece above a face a mask, and the loops over rows vectorise. Forward gathers two cells a row
and piece; the adjoint computes the same numbers and then adds them one by one to the patch its
task owns.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from geometries.kernels.columns_exact import level_rows, parts_of, reach
from geometries.kernels.rays3d import columns_of_box, plane_ray, plane_walk
from linops.compiled.noalias import add, load, store

__all__ = ["adjoint_tile", "forward_tile"]

_compiled = njit(nogil=True, cache=True, error_model="numpy")
_fast = njit(nogil=True, cache=True, error_model="numpy", fastmath=True)


@_compiled
def forward_tile(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
                 numbers, volume, lx, origin, plane, first_slice, slices, out, first_column,
                 first_row, tile):  # fmt: skip
    cols, rows = along.shape[0], heights.shape[0]
    lr = out.shape[3]
    i0 = min(max(first_row, 0), rows)
    i1 = max(i0, min(first_row + lr, rows))
    n = i1 - i0
    k0, count = slices[0], slices[1] - slices[0]
    room = max(1, plane[1] - plane[0] + plane[3] - plane[2])
    cells = np.empty(room, np.int64)
    starts = np.empty(room, np.float64)
    stops = np.empty(room, np.float64)
    level = np.empty(n, np.float64)
    slope = np.empty(n, np.float64)
    inverse = np.empty(n, np.float64)
    factor = np.empty(n, np.float64)
    fixed = np.empty(n, np.int32)
    climb = np.empty(n, np.float32)
    share = np.empty(n, np.float32)
    values = np.ones(n, np.float32)
    lower = np.empty(n, np.int32)
    upper = np.empty(n, np.int32)
    below = np.empty(n, np.float32)
    above = np.empty(n, np.float32)
    total = np.zeros((out.shape[0], n), np.float32)
    column = np.zeros(count + 2, np.float32)
    for view in range(tile[0], tile[1]):
        number = numbers[view]
        for c in range(tile[2], tile[3]):
            out[:, view, c] = 0
            j = c + first_column
            if number < 0 or number >= frames.shape[0] or j < 0 or j >= cols or n * count == 0:
                continue
            line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
            met = plane_walk(line, plane[0], plane[1], plane[2], plane[3], origin[0], origin[1],
                             lx, cells, starts, stops)  # fmt: skip
            if met == 0:
                continue
            steepest = level_rows(cone, frames, number, along[j], normal[j], heights, spacing,
                                  counts, line, i0, i1, level, slope, inverse, factor)  # fmt: skip
            bits = _fixed(level, slope, inverse, steepest, counts, k0, fixed, climb, share)
            total[:] = 0
            for m in range(met):
                start, stop = starts[m], stops[m]
                r0, r1 = reach(level, slope, start, stop, n, k0, k0 + count)
                if r0 >= r1:
                    continue
                parts = parts_of(steepest, stop - start)
                for part in range(parts):
                    one = start + (stop - start) * (part / parts)
                    two = start + (stop - start) * ((part + 1) / parts)
                    _split(values, count, fixed, climb, share, np.int32(bits), np.float32(one),
                           np.float32(two), np.float32(two - one), r0, r1,
                           lower, upper, below, above)  # fmt: skip
                    for b in range(out.shape[0]):
                        source = volume[b, cells[m]]
                        for k in range(count):
                            column[k + 1] = source[k + k0 - first_slice]
                        _gather(total[b], column, lower, upper, below, above, r0, r1)
            for b in range(out.shape[0]):
                for r in range(n):
                    out[b, view, c, i0 - first_row + r] = total[b, r] * np.float32(factor[r])


@_compiled
def adjoint_tile(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
                 numbers, projections, first_column, first_row, out, origin, plane, first_slice,
                 slices, tile):  # fmt: skip
    b, y0, y1, x0, x1 = tile
    ny, nx = y1 - y0, x1 - x0
    cols, rows = along.shape[0], heights.shape[0]
    lc, lr = projections.shape[2], projections.shape[3]
    i0 = min(max(first_row, 0), rows)
    i1 = max(i0, min(first_row + lr, rows))
    n = i1 - i0
    k0, count = slices[0], slices[1] - slices[0]
    fx, fy = x0 + origin[0], y0 + origin[1]
    bx0, bx1 = max(fx, plane[0]), min(fx + nx, plane[1])
    by0, by1 = max(fy, plane[2]), min(fy + ny, plane[3])
    out[b, y0:y1, x0:x1] = 0
    if bx0 >= bx1 or by0 >= by1 or n * count == 0:
        return
    bounds = (float(bx0), float(bx1), float(by0), float(by1), 0.0, float(counts[2]))
    total = np.zeros((ny * nx, 4 * (count + 2)), np.float32)
    cells = np.empty(nx + ny, np.int64)
    starts = np.empty(nx + ny, np.float64)
    stops = np.empty(nx + ny, np.float64)
    level = np.empty(n, np.float64)
    slope = np.empty(n, np.float64)
    inverse = np.empty(n, np.float64)
    factor = np.empty(n, np.float64)
    fixed = np.empty(n, np.int32)
    climb = np.empty(n, np.float32)
    share = np.empty(n, np.float32)
    values = np.empty(n, np.float32)
    lower = np.empty(n, np.int32)
    upper = np.empty(n, np.int32)
    below = np.empty(n, np.float32)
    above = np.empty(n, np.float32)
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if number < 0 or number >= frames.shape[0]:
            continue
        j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                counts, bounds)  # fmt: skip
        for j in range(max(j0, first_column), min(j1, first_column + lc)):
            line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
            met = plane_walk(line, bx0, bx1, by0, by1, fx, fy, nx, cells, starts, stops)
            if met == 0:
                continue
            steepest = level_rows(cone, frames, number, along[j], normal[j], heights, spacing,
                                  counts, line, i0, i1, level, slope, inverse, factor)  # fmt: skip
            bits = _fixed(level, slope, inverse, steepest, counts, k0, fixed, climb, share)
            for r in range(n):
                values[r] = projections[b, view, j - first_column, i0 - first_row + r] * np.float32(
                    factor[r]
                )
            for m in range(met):
                start, stop = starts[m], stops[m]
                r0, r1 = reach(level, slope, start, stop, n, k0, k0 + count)
                if r0 >= r1:
                    continue
                parts = parts_of(steepest, stop - start)
                for part in range(parts):
                    one = start + (stop - start) * (part / parts)
                    two = start + (stop - start) * ((part + 1) / parts)
                    _split(values, count, fixed, climb, share, np.int32(bits), np.float32(one),
                           np.float32(two), np.float32(two - one), r0, r1,
                           lower, upper, below, above)  # fmt: skip
                    _scatter(total[cells[m]], lower, upper, below, above, r0, r1)
    for cell in range(ny * nx):
        for k in range(count):
            m = 4 * (k + 1)
            even = total[cell, m] + total[cell, m + 1]
            odd = total[cell, m + 2] + total[cell, m + 3]
            out[b, y0 + cell // nx, x0 + cell % nx, k0 - first_slice + k] = even + odd


@_compiled
def _fixed(level, slope, inverse, steepest, counts, k0, fixed, climb, share):
    """Rows as fixed-point numbers, from one slice below k0; returns the bits of the fraction."""
    across = math.sqrt(float(counts[0] * counts[0] + counts[1] * counts[1]))
    most = max(counts[2] + 4.0, steepest * across)
    bits = max(0, 30 - int(math.ceil(math.log2(most))))
    unit = float(1 << bits)
    for r in range(level.shape[0]):
        fixed[r] = np.int32(np.int64(math.floor(level[r] * unit)) - ((k0 - 1) << bits))
        climb[r] = slope[r] * unit
        share[r] = min(inverse[r] / unit, 1e30)
    return bits


@_fast
def _split(values, count, fixed, climb, share, bits, start, stop, whole, r0, r1,
           lower, upper, below, above):  # fmt: skip
    """Where pieces of the rows [r0, r1) lie: two slots of a padded column, and value x length."""
    mask = np.int32((1 << bits) - 1)
    top = np.int32(count + 1)
    zero = np.int32(0)
    for r in range(r0, r1):
        steps, base = load(climb, r), load(fixed, r)
        one = np.int32(base + np.int32(steps * start))
        two = np.int32(base + np.int32(steps * stop))
        high = max(one, two)
        low = np.int32(min(one, two) >> bits)
        up = np.int32(high >> bits)
        part = min(np.float32(np.int32(high & mask)) * load(share, r), whole)
        part = part if up > low else np.float32(0)
        value = load(values, r)
        store(lower, r, min(max(low, zero), top))
        store(upper, r, min(max(up, zero), top))
        store(below, r, (whole - part) * value)
        store(above, r, part * value)


@_fast
def _gather(total, column, lower, upper, below, above, r0, r1):
    """Add what the rows' pieces see of a padded voxel column."""
    for r in range(r0, r1):
        seen = load(below, r) * load(column, load(lower, r))
        add(total, r, seen + load(above, r) * load(column, load(upper, r)))


@_compiled
def _scatter(column, lower, upper, below, above, r0, r1):
    """The transpose of `_gather`, into four sums a slot.

    Neighbouring rows often meet the same voxel; lower and upper parts of even and odd rows go to
    sums of their own, so that no addition waits for the one before it.
    """
    for r in range(r0, r1):
        odd = 2 * (r & 1)
        column[4 * lower[r] + odd] += below[r]
        column[4 * upper[r] + odd + 1] += above[r]
