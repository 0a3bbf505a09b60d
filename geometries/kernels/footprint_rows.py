"""The row rule of the footprint: each slice of a voxel column is an interval of detector rows.

Slice k covers `[c_k - G / 2, c_k + G / 2]` with `c_k = m + s k` in rows, row i covers
`[i - 1/2, i + 1/2]`; a weight is the length of their overlap. Diverging beams have G = s, so the
slices follow each other without a gap, and their values are first divided by
`cos phi = 1 / sqrt(1 + (Z' / h)^2)` of the ray to each slice.

`spread_exact` and `collect_exact` are one walk over the same overlaps in float64; `spread_fast` and
`collect_fast` (G = s alone) find cells and shares by an affine map, in float64, and then work in
float32 along vectors: a gather of the slices of each row, and of the rows of each slice.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from linops.compiled.noalias import load, store

__all__ = [
    "PAD",
    "WIDEST",
    "collect_exact",
    "collect_fast",
    "rows_of",
    "slant",
    "slices_of",
    "spread_exact",
    "spread_fast",
]

_compiled = njit(nogil=True, cache=True, error_model="numpy")
_fused = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
PAD = 12  # zeros on both sides of what the fast functions gather from
WIDEST = 8.0  # the most slices a row, or rows a slice, that they take


@_compiled
def rows_of(m, s, g, k0, k1, i0, i1):
    """The rows of [i0, i1) that slices [k0, k1) reach."""
    low = m + s * k0 - 0.5 * g
    high = m + s * (k1 - 1) + 0.5 * g
    if not (high > i0 - 0.5 and low < i1 - 0.5):
        return i0, i0
    start = max(i0, int(math.floor(low + 0.5)))
    return start, max(start, min(i1, int(math.ceil(high - 0.5)) + 1))


@_compiled
def slices_of(m, s, k0, k1, r0, r1):
    """The slices of [k0, k1) that reach rows [r0, r1), where G = s."""
    start = max(float(k0), math.floor((r0 - 0.5 - m) / s + 0.5))
    stop = min(float(k1), math.ceil((r1 - 0.5 - m) / s + 0.5))
    return int(start), int(max(start, stop))


@_fused
def slant(first, step, k0, factors):
    """1 / cos phi of the slices from k0 on, with `Z' / h = first + step k`."""
    first, step = factors.dtype.type(first), factors.dtype.type(step)
    one = factors.dtype.type(1.0)
    for k in range(factors.shape[0]):
        slope = first + step * factors.dtype.type(np.int32(k0 + k))
        factors[k] = np.sqrt(one + slope * slope)


@_compiled
def spread_exact(m, s, g, height, k0, count, values, i0, r0, r1, rows):
    """Add to `rows[i - i0]`, r0 <= i < r1, the slices `values` (count) from k0 on."""
    for k in range(count):
        middle = m + s * (k0 + k)
        low, high = middle - 0.5 * g, middle + 0.5 * g
        start = max(r0, int(math.floor(low + 0.5)))
        stop = min(r1, int(math.ceil(high - 0.5)) + 1)
        value = height * values[k]
        for i in range(start, stop):
            overlap = min(high, i + 0.5) - max(low, i - 0.5)
            if overlap > 0.0:
                rows[i - i0] += overlap * value


@_compiled
def collect_exact(m, s, g, height, k0, count, values, i0, r0, r1, rows, squared):
    """The transpose: into `values`; with `squared` the weights are squared."""
    for k in range(count):
        middle = m + s * (k0 + k)
        low, high = middle - 0.5 * g, middle + 0.5 * g
        start = max(r0, int(math.floor(low + 0.5)))
        stop = min(r1, int(math.ceil(high - 0.5)) + 1)
        total = 0.0
        for i in range(start, stop):
            overlap = min(high, i + 0.5) - max(low, i - 0.5)
            if overlap > 0.0:
                weight = height * overlap
                total += (weight * weight if squared else weight) * rows[i - i0]
        values[k] = total


@_fused
def spread_fast(m, s, height, k0, values, i0, r0, r1, place, part, rows):
    """Write to `rows[i - i0]`, r0 <= i < r1, the slices `values`, which start at `values[PAD]`."""
    long = 1.0 / s
    offset = 0.5 - k0 - (m + 0.5) * long + PAD
    first = np.int32(r0 - i0)
    count = np.int32(r1 - r0)
    for i in range(count):
        p = offset + (r0 + i) * long
        whole = math.floor(p)
        place[i] = np.int32(whole)
        part[i] = np.float32(p - whole)
    _gather(count, np.float32(long), np.float32(s * height), values, place, part, first, rows)


@_fused
def collect_fast(m, s, height, k0, k1, first, i0, rows, place, part, values):
    """The transpose for slices [k0, k1), into `values[k - first]`; `rows` start at `rows[PAD]`."""
    offset = m - 0.5 * s + 0.5 - i0 + PAD
    count = np.int32(k1 - k0)
    for k in range(count):
        p = offset + (k0 + k) * s
        whole = math.floor(p)
        place[k] = np.int32(whole)
        part[k] = np.float32(p - whole)
    _gather(
        count, np.float32(s), np.float32(height), rows, place, part, np.int32(k0 - first), values
    )


@_fused
def _gather(count, long, scale, source, place, part, first, out):
    """`out[first + i]`: what an interval of length `long` from `place[i] + part[i]` on covers."""
    zero, one = np.float32(0.0), np.float32(1.0)
    taps = np.int32(math.ceil(long)) + np.int32(1)
    if taps == 2:
        for i in range(count):
            r, n = load(part, i), load(place, i)
            head = one - r
            head = head if head < long else long
            tail = r + long - one
            tail = tail if tail > zero else zero
            value = head * load(source, n) + tail * load(source, n + np.int32(1))
            store(out, first + i, scale * value)
        return
    for i in range(count):
        r, n = load(part, i), load(place, i)
        head = one - r
        head = head if head < long else long
        tail = r + long - one
        tail = tail if tail > zero else zero
        tail = tail if tail < one else one
        last = r + (long - np.float32(2.0))
        last = last if last > zero else zero
        last = last if last < one else one
        value = head * load(source, n) + tail * load(source, n + np.int32(1))
        value += last * load(source, n + np.int32(2))
        store(out, first + i, scale * value)
    for t in range(3, taps):
        for i in range(count):
            last = load(part, i) + (long - np.float32(t))
            last = last if last > zero else zero
            last = last if last < one else one
            out[first + i] += scale * last * load(source, load(place, i) + np.int32(t))
