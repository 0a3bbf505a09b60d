"""The rows of one detector column as straight lines over the slices, for the kernels of `columns`.

All rays of a detector column share the walk in the plane; along it the ray of row i is
``z(t) = level + slope t``, in slices from the lowest face. `set_rows` tabulates these lines in
rising order of z, `rows_met` says which of them can be within the slices in a piece of the walk,
`parts_of` into how many parts a piece is cut so that no row crosses two faces in one.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types
from numba.extending import overload

from geometries.kernels.compiling import compiled
from linops.compiled.noalias import store

__all__ = ["parts_of", "rows_met", "set_rows"]


@compiled
def set_rows(cone, frames, view, along, normal, heights, spacing, counts, sampling, line, middle,
             i0, n,             first, level, slope, share, factor, lines):  # fmt: skip
    """Tabulate the rows [i0, i0 + n) of a column, as `columns_lanes` wants them.

    `level` int32 makes fixed-point tables, float64 plain ones; `factor` is the physical length of
    t = 1. Tables longer than n repeat the last row. `middle` is a parameter of the walk, by which
    rows are ordered. Fills `lines`: level and slope of the lowest row, their steps from row to
    row, the steepest slope of the whole detector. Returns (whether rows rise with i, bits).
    """
    metre, rise, fall = line[6], line[8], line[9]
    rows = heights.shape[0]
    anchor = line[7]
    base, pitch = frames[view, 2] / spacing[2], 0.0
    if not (cone and anchor == line[4]):
        base = (frames[view, 5] + along * frames[view, 8] + normal * frames[view, 11]) / spacing[2]
        pitch = frames[view, 14] / spacing[2]
    half = 0.5 * counts[2]
    one, two = heights[i0], heights[i0 + n - 1]
    slope_one, slope_two = rise + fall * one, rise + fall * two
    level_one = base + pitch * one - slope_one * anchor + half
    level_two = base + pitch * two - slope_two * anchor + half
    rising = level_one + slope_one * middle <= level_two + slope_two * middle
    if not rising:
        level_one, level_two = level_two, level_one
        slope_one, slope_two = slope_two, slope_one
    lines[0], lines[1] = level_one, slope_one
    lines[2], lines[3] = 0.0, 0.0
    if n > 1:
        lines[2], lines[3] = (level_two - level_one) / (n - 1), (slope_two - slope_one) / (n - 1)
    steepest = max(abs(rise + fall * heights[0]), abs(rise + fall * heights[rows - 1]))
    lines[4] = steepest
    bits = _fixed_bits(steepest, counts)
    _set(rise, fall, base, pitch, anchor, half, sampling, rows, i0, n, rising, steepest, counts,
         metre, spacing[2], bits, first, level, slope, share, factor)  # fmt: skip
    return rising, bits


@compiled
def _fixed_bits(steepest, counts):
    """Bits of fraction: all that 32 leave for the heights that rows which meet the grid reach."""
    across = math.sqrt(float(counts[0] * counts[0] + counts[1] * counts[1]))
    return max(0, 31 - int(math.ceil(math.log2(counts[2] + steepest * across + 12.0))))


@compiled
def _set_fixed(rise, fall, base, pitch, anchor, half, sampling, rows, i0, n, rising, steepest,
               counts, metre, tall, bits, first, level, slope, share, factor):  # fmt: skip
    unit = float(1 << bits)
    shift = first * unit
    # Rows beyond these heights at t = 0 meet no slice anywhere in the grid.
    reach = 4.0 + 0.5 * steepest * math.sqrt(float(counts[0] * counts[0] + counts[1] * counts[1]))
    low, high = -reach, counts[2] + reach
    one, tiny = np.float32(1.0), np.float32(1e-30)
    sign = 1.0 if rising else -1.0
    begin = (i0 if rising else i0 + n - 1) - 0.5 * (rows - 1)
    most = n - 1.0
    for q in range(level.shape[0]):
        h = (begin + sign * min(float(np.int32(q)), most)) * sampling[3] + sampling[2]
        s = rise + fall * h
        z = base + pitch * h - s * anchor + half
        store(level, q, np.int32(np.floor(min(max(z, low), high) * unit) - shift))
        climb = np.float32(s * unit)
        store(slope, q, climb)
        store(share, q, one / max(abs(climb), tiny))
        store(factor, q, np.sqrt(np.float32(metre * metre + (s * tall) * (s * tall))))


@compiled
def _set_plain(rise, fall, base, pitch, anchor, half, sampling, rows, i0, n, rising, steepest,
               counts, metre, tall, bits, first, level, slope, share, factor):  # fmt: skip
    sign = 1.0 if rising else -1.0
    begin = (i0 if rising else i0 + n - 1) - 0.5 * (rows - 1)
    most = n - 1.0
    for q in range(level.shape[0]):
        h = (begin + sign * min(float(np.int32(q)), most)) * sampling[3] + sampling[2]
        s = rise + fall * h
        store(level, q, base + pitch * h - s * anchor + half)
        store(slope, q, s)
        store(share, q, 1.0 / max(abs(s), 1e-300))
        store(factor, q, math.sqrt(metre * metre + (s * tall) * (s * tall)))


def _set(*arguments):
    """`_set_fixed` or `_set_plain`, by the dtype of the tables."""
    raise NotImplementedError


@overload(_set)
def _set_of(rise, fall, base, pitch, anchor, half, sampling, rows, i0, n, rising, steepest, counts,
            metre, tall, bits, first, level, slope, share, factor):  # fmt: skip
    setter = _set_fixed if level.dtype == types.int32 else _set_plain

    def chosen(rise, fall, base, pitch, anchor, half, sampling, rows, i0, n, rising, steepest,
               counts, metre, tall, bits, first, level, slope, share, factor):  # fmt: skip
        setter(rise, fall, base, pitch, anchor, half, sampling, rows, i0, n, rising, steepest,
               counts, metre, tall, bits, first, level, slope, share, factor)  # fmt: skip

    return chosen


@compiled
def rows_met(lines, start, stop, n, k0, k1):
    """(first row, row after the last, 0 / 1 / 2) within slices [k0, k1) in a piece; generous.

    The last number says how far apart rows are: less than one slice, less than two, or more.
    """
    z1, z2 = lines[0] + lines[1] * start, lines[0] + lines[1] * stop
    d1, d2 = lines[2] + lines[3] * start, lines[2] + lines[3] * stop
    least, most = min(d1, d2), max(d1, d2)
    spread = 0 if most < 0.999 else (1 if most < 1.999 else 2)
    if not least > 1e-9:
        return 0, n, spread
    r0 = min((k0 - z1) / d1, (k0 - z2) / d2) - 1e-3
    r1 = max((k1 - z1) / d1, (k1 - z2) / d2) + 1e-3
    first = int(math.ceil(min(max(r0, 0.0), float(n))))
    last = int(math.floor(min(max(r1, -1.0), n - 1.0)))
    return first, max(first, last + 1), spread


@compiled
def parts_of(steepest, length):
    """Into how many parts a piece is cut so that no row crosses two faces in one."""
    return max(1, int(math.ceil(steepest * length / 0.999)))
