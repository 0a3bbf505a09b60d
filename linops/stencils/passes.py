"""Compiled passes over a volume for compositions of stencils: nothing between is ever stored.

Each walks rows of a C-contiguous volume of three axes, flat, without the GIL; rows are shared out
over the pool by the caller. Importing this module imports Numba; callers do so on first use.
"""

from __future__ import annotations

from typing import Any

from linops.compiled.caching import kept_njit
from linops.compiled.noalias import add, load, store

__all__ = ["gram_rows"]

# No contraction: the sums are those of the factors one by one, bit for bit.
_jit = kept_njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)


@_jit
def gram_rows(
    x: Any, w: Any, weighted: Any, scales: Any, shape: Any, offsets: Any, rows: Any, out: Any
) -> None:
    """`out = D.H W D x` in rows `rows[0]` to `rows[1]`, with forward differences D.

    `scales` are the inverse spacings, `offsets` the starts of the weights of each axis in the flat
    `w`, which is read only where `weighted`. Terms are added in the order of the axes, the
    difference below before the one above.
    """
    n1, n2 = shape[1], shape[2]
    zero = x.dtype.type(0)
    for r in range(rows[0], rows[1]):
        i, j, at = r // n1, r % n1, r * n2
        fresh = True
        if 0 < i < shape[0] - 1:
            _both(x, w, weighted, scales[0], n2, n1 * n2, offsets[0], out, at, fresh)
            fresh = False
        elif shape[0] > 1:
            for k in range(n2):
                store(out, at + k, zero)
            fresh = False
            low = at if i == 0 else at - n1 * n2
            high = low + n1 * n2
            _add(x, w, weighted, scales[0], n2, low, high, offsets[0], out, at, i == 0)
        if 0 < j < n1 - 1:
            _both(x, w, weighted, scales[1], n2, n2, offsets[1], out, at, fresh)
            fresh = False
        elif n1 > 1:
            if fresh:
                for k in range(n2):
                    store(out, at + k, zero)
                fresh = False
            low = at if j == 0 else at - n2
            _add(x, w, weighted, scales[1], n2, low, low + n2, offsets[1], out, at, j == 0)
        if fresh:
            for k in range(n2):
                store(out, at + k, zero)
        if n2 > 1:
            _add(x, w, weighted, scales[2], 1, at, at + 1, offsets[2], out, at, True)
            _both(x, w, weighted, scales[2], n2 - 2, 1, offsets[2], out, at + 1, False)
            end = at + n2 - 1
            _add(x, w, weighted, scales[2], 1, end - 1, end, offsets[2], out, end, False)


@_jit
def _both(
    x: Any,
    w: Any,
    weighted: Any,
    scale: Any,
    n: Any,
    stride: Any,
    offset: Any,
    out: Any,
    at: Any,
    fresh: Any,
) -> None:
    """The difference below, less the one above, of `n` entries that have both neighbors."""
    below = offset + at - stride
    above = offset + at
    for k in range(n):
        c = load(x, at + k)
        under = (c - load(x, at + k - stride)) * scale
        over = (load(x, at + k + stride) - c) * scale
        if weighted:
            under *= load(w, below + k)
            over *= load(w, above + k)
        if fresh:
            store(out, at + k, under * scale - over * scale)
        else:
            add(out, at + k, under * scale)
            add(out, at + k, -(over * scale))


@_jit
def _add(
    x: Any,
    w: Any,
    weighted: Any,
    scale: Any,
    n: Any,
    low: Any,
    high: Any,
    offset: Any,
    out: Any,
    at: Any,
    negative: Any,
) -> None:
    """Weighted differences of `n` entries from `high` and from `low` on, added to the result."""
    sign = -scale if negative else scale
    if weighted:
        for k in range(n):
            difference = (load(x, high + k) - load(x, low + k)) * scale
            add(out, at + k, difference * load(w, offset + low + k) * sign)
    else:
        for k in range(n):
            difference = (load(x, high + k) - load(x, low + k)) * scale
            add(out, at + k, difference * sign)
