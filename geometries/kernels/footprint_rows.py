"""The row rule of the footprint: each slice of a voxel column is an interval of detector rows.

Slice k covers `[c_k - G / 2, c_k + G / 2]` with `c_k = m + s k` in rows, row i covers
`[i - 1/2, i + 1/2]`; a weight is the length of their overlap. Diverging beams have G = s, so the
slices follow each other without a gap, and their values are first divided by
`cos phi = 1 / sqrt(1 + (Z' / h)^2)` of the ray to each slice.

`spread_exact` and `collect_exact` are one walk over the same overlaps in float64. Where G = s,
`affine_lanes.spans` has the same weights as an affine map of rows or slices.
"""

from __future__ import annotations

import math

import numpy as np

from geometries.kernels.compiling import compiled, fused

__all__ = [
    "collect_exact",
    "rows_of",
    "slant",
    "slices_of",
    "spread_exact",
]


@compiled
def rows_of(m, s, g, k0, k1, i0, i1):
    """The rows of [i0, i1) that slices [k0, k1) reach."""
    low = m + s * k0 - 0.5 * g
    high = m + s * (k1 - 1) + 0.5 * g
    if not (high > i0 - 0.5 and low < i1 - 0.5):
        return i0, i0
    start = max(i0, int(math.floor(low + 0.5)))
    return start, max(start, min(i1, int(math.ceil(high - 0.5)) + 1))


@compiled
def slices_of(m, s, k0, k1, r0, r1):
    """The slices of [k0, k1) that reach rows [r0, r1), where G = s."""
    start = max(float(k0), math.floor((r0 - 0.5 - m) / s + 0.5))
    stop = min(float(k1), math.ceil((r1 - 0.5 - m) / s + 0.5))
    return int(start), int(max(start, stop))


@fused
def slant(first, step, k0, factors):
    """1 / cos phi of the slices from k0 on, with `Z' / h = first + step k`."""
    first, step = factors.dtype.type(first), factors.dtype.type(step)
    one = factors.dtype.type(1.0)
    for k in range(factors.shape[0]):
        slope = first + step * factors.dtype.type(np.int32(k0 + k))
        factors[k] = np.sqrt(one + slope * slope)


@compiled
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


@compiled
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
