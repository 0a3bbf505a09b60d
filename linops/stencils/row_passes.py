"""Compiled passes over the rows of a grid of three axes: the inner loops of the row engine.

A pass adds up to eight rows, each shifted and with its weight, to a row of the result, which stays
in the first cache from pass to pass. A row that is read with shifts along itself is copied once
with what is beyond its ends. Loads promise not to alias stores, so that loops vectorise with any
number of rows. Sums are taken tap after tap and nothing is contracted: the bits are those of the
slice engine. Importing this module imports Numba; callers do so on first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linops.compiled.caching import kept_njit
from linops.compiled.noalias import load, own, store

__all__ = ["stencil_rows"]

_BLOCK = 1 << 14
# Bytes of the result that passes go over together: they stay in the first cache.

_jit = kept_njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)


@_jit
def stencil_rows(
    x: Any,
    out: Any,
    taps: Any,
    weights: Any,
    tables: Any,
    signs: Any,
    plain: Any,
    sizes: Any,
    inner: Any,
    moves: Any,
    whole: Any,
    ends: Any,
    part: Any,
    update: Any,
    u: Any,
    v: Any,
    d: Any,
) -> None:
    """Rows of a stencil, forward or adjoint.

    `taps`, (T, 3), numbers the shift of each tap along every axis; `moves[a]` are the shifts in
    planes. `tables[a]`, (shifts, planes, readings), holds the planes that a plane of the result
    takes, -1 for none, and `signs[a]` with which sign; `plain[a]` says of which planes all shifts
    are single and positive. `whole` says which shifts along a row are plain in all of it; the
    others read a copy whose entries come from `ends[0]` with the signs `ends[1]`, or, where that
    is empty, take their first and last entries from the tables. `sizes` are the input's rows a
    plane, its entries a row, and the same of the result; `inner` the entries of a row that are
    plain. `part` is the range of planes and of rows to be done. With `update[0]` the result is
    added to; with `update[1]` it becomes `2 u + d * result + update[2] * v`, d an array or one
    number.
    """
    n1, n2, m1, m2 = sizes
    table0, table1, table2 = tables
    sign0, sign1, sign2 = signs
    plain0, plain1, _ = plain
    move0, move1, move2 = moves
    source, sign_of = ends
    added, updated, beta = update
    count = taps.shape[0]
    depth0, depth1 = table0.shape[2], table1.shape[2]
    most = count * depth0 * depth1
    rows, factors, shifts = (
        np.empty(most, np.int64),
        np.empty(most, x.dtype),
        np.empty(most, np.int64),
    )
    bases = np.empty(most, np.int64)
    near, along = np.empty(count, np.int64), np.empty(count, np.int64)
    for t in range(count):
        near[t] = (move0[taps[t, 0]] * n1 + move1[taps[t, 1]]) * n2
        along[t] = taps[t, 2]
    most_rows = max(1, _BLOCK // max(m2 * x.itemsize, 1))
    copy = np.empty(max(source.shape[0], 1) * most_rows, x.dtype)
    for i in range(part[0], part[1]):
        j = part[2]
        while j < part[3]:
            at = (i * m1 + j) * m2
            # What each tap reads: a list of rows with weights; plain rows are done several at once.
            used = count * 0  # no literal, for which all would be compiled again
            block = used + 1
            if plain0[i] and plain1[j]:
                while j + block < part[3] and block < most_rows and plain1[j + block]:
                    block += 1
                row = (i * n1 + j) * n2
                for t in range(count):
                    rows[t] = row + near[t]
                    factors[t] = weights[t]
                    shifts[t] = along[t]
                used = count
            else:
                for t in range(count):
                    for r in range(depth0):
                        p = table0[taps[t, 0], i, r]
                        if p < 0:
                            continue
                        for s in range(depth1):
                            q = table1[taps[t, 1], j, s]
                            if q < 0:
                                continue
                            alike = sign0[taps[t, 0], i, r] * sign1[taps[t, 1], j, s] > 0
                            rows[used] = (p * n1 + q) * n2
                            factors[used] = weights[t] if alike else -weights[t]
                            shifts[used] = along[t]
                            used += 1
            _rows(
                x,
                rows,
                factors,
                shifts,
                used,
                block,
                n2,
                m2,
                bases,
                move2,
                whole,
                source,
                sign_of,
                copy,
                table2,
                sign2,
                inner,
                out,
                at,
                not added,
            )
            if updated:
                _update(out, u, v, d, beta, at, block * m2)
            j += block


@_jit
def _rows(
    x: Any,
    rows: Any,
    factors: Any,
    shifts: Any,
    used: Any,
    block: Any,
    n2: Any,
    m2: Any,
    bases: Any,
    moves: Any,
    whole: Any,
    source: Any,
    sign_of: Any,
    copy: Any,
    table: Any,
    signs: Any,
    inner: Any,
    out: Any,
    at: Any,
    fresh: Any,
) -> None:
    """A block of rows of the result: runs of taps of one kind, in the order of the taps."""
    if used == 0 and fresh:
        for k in range(block * m2):
            out[at + k] = x.dtype.type(0)
    lowest, span = moves[0], source.shape[0]
    first = 0
    while first < used:
        last = first
        if whole[shifts[first]]:
            while last < used and whole[shifts[last]]:
                bases[last] = rows[last] + moves[shifts[last]]
                last += 1
            _passes(x, factors, bases, first, last, block, n2, m2, m2, out, at, fresh)
        elif span > 0:
            row = rows[first]
            while last < used and rows[last] == row and not whole[shifts[last]]:
                bases[last] = moves[shifts[last]] - lowest
                last += 1
            _copy(x, row, block, n2, lowest, source, sign_of, copy)
            _passes(copy, factors, bases, first, last, block, span, m2, m2, out, at, fresh)
        else:
            begin, end = inner
            while last < used and not whole[shifts[last]]:
                bases[last] = rows[last] + moves[shifts[last]] + begin
                last += 1
            _passes(
                x, factors, bases, first, last, block, n2, end - begin, m2, out, at + begin, fresh
            )
            for edge in range(block * (m2 - (end - begin))):
                line, place = divmod(edge, m2 - (end - begin))
                k = place if place < begin else place + end - begin
                to = at + line * m2 + k
                total = x.dtype.type(0) if fresh else out[to]
                for t in range(first, last):
                    for r in range(table.shape[2]):
                        p = table[shifts[t], k, r]
                        if p >= 0 and signs[shifts[t], k, r] > 0:
                            total += x[rows[t] + line * n2 + p] * factors[t]
                        elif p >= 0:
                            total -= x[rows[t] + line * n2 + p] * factors[t]
                out[to] = total
        fresh = False
        first = last


@_jit
def _copy(
    x: Any, row: Any, block: Any, n: Any, lowest: Any, source: Any, sign: Any, copy: Any
) -> None:
    """Rows with what is beyond their ends; entry e of one stands at place `e + lowest`."""
    size = source.shape[0]
    begin = min(max(-lowest, 0), size)
    end = max(min(n - lowest, size), begin)
    for line in range(block):
        here, at = row + line * n, line * size
        for e in range(begin, end):
            store(copy, at + e, load(x, here + lowest + e))
        for outside in range(size - (end - begin)):
            e = outside if outside < begin else outside + end - begin
            value = x[here + source[e]] if sign[e] != 0 else x.dtype.type(0)
            copy[at + e] = value if sign[e] >= 0 else -value
        if end > begin:
            # Faces on a wall may be read as zero.
            if sign[begin] == 0:
                copy[at + begin] = x.dtype.type(0)
            if sign[end - 1] == 0:
                copy[at + end - 1] = x.dtype.type(0)


@_jit
def _passes(
    x: Any,
    factors: Any,
    bases: Any,
    first: Any,
    last: Any,
    block: Any,
    apart: Any,
    n: Any,
    pitch: Any,
    out: Any,
    at: Any,
    fresh: Any,
) -> None:
    """Taps `first` to `last` of a block of rows, `apart` entries apart in x and `pitch` in out."""
    if n <= 0:
        return
    while first < last:
        left = last - first
        if left >= 8:
            _pass8(x, factors, bases, first, block, apart, n, pitch, out, at, fresh)
            first += 8
        elif left >= 4:
            _pass4(x, factors, bases, first, block, apart, n, pitch, out, at, fresh)
            first += 4
        elif left >= 2:
            _pass2(x, factors, bases, first, block, apart, n, pitch, out, at, fresh)
            first += 2
        else:
            _pass1(x, factors, bases, first, block, apart, n, pitch, out, at, fresh)
            first += 1
        fresh = False


@_jit
def _update(out: Any, u: Any, v: Any, d: Any, beta: Any, at: Any, n: Any) -> None:
    two = out.dtype.type(2)
    if d.size == 1:
        factor = d[0]
        for k in range(n):
            new = load(u, at + k) * two + own(out, at + k) * factor
            store(out, at + k, new + load(v, at + k) * beta)
    else:
        for k in range(n):
            new = load(u, at + k) * two + load(d, at + k) * own(out, at + k)
            store(out, at + k, new + load(v, at + k) * beta)


@_jit
def _pass1(
    x: Any,
    factors: Any,
    bases: Any,
    first: Any,
    block: Any,
    apart: Any,
    n: Any,
    pitch: Any,
    out: Any,
    at: Any,
    fresh: Any,
) -> None:
    w0 = factors[first]
    for row in range(block):
        to, move = at + row * pitch, row * apart
        b0 = bases[first] + move
        if fresh:
            for k in range(n):
                s = load(x, b0 + k) * w0
                store(out, to + k, s)
        else:
            for k in range(n):
                s = own(out, to + k) + load(x, b0 + k) * w0
                store(out, to + k, s)


@_jit
def _pass2(
    x: Any,
    factors: Any,
    bases: Any,
    first: Any,
    block: Any,
    apart: Any,
    n: Any,
    pitch: Any,
    out: Any,
    at: Any,
    fresh: Any,
) -> None:
    w0 = factors[first]
    w1 = factors[first + 1]
    for row in range(block):
        to, move = at + row * pitch, row * apart
        b0 = bases[first] + move
        b1 = bases[first + 1] + move
        if fresh:
            for k in range(n):
                s = load(x, b0 + k) * w0
                s += load(x, b1 + k) * w1
                store(out, to + k, s)
        else:
            for k in range(n):
                s = own(out, to + k) + load(x, b0 + k) * w0
                s += load(x, b1 + k) * w1
                store(out, to + k, s)


@_jit
def _pass4(
    x: Any,
    factors: Any,
    bases: Any,
    first: Any,
    block: Any,
    apart: Any,
    n: Any,
    pitch: Any,
    out: Any,
    at: Any,
    fresh: Any,
) -> None:
    w0 = factors[first]
    w1 = factors[first + 1]
    w2 = factors[first + 2]
    w3 = factors[first + 3]
    for row in range(block):
        to, move = at + row * pitch, row * apart
        b0 = bases[first] + move
        b1 = bases[first + 1] + move
        b2 = bases[first + 2] + move
        b3 = bases[first + 3] + move
        if fresh:
            for k in range(n):
                s = load(x, b0 + k) * w0
                s += load(x, b1 + k) * w1
                s += load(x, b2 + k) * w2
                s += load(x, b3 + k) * w3
                store(out, to + k, s)
        else:
            for k in range(n):
                s = own(out, to + k) + load(x, b0 + k) * w0
                s += load(x, b1 + k) * w1
                s += load(x, b2 + k) * w2
                s += load(x, b3 + k) * w3
                store(out, to + k, s)


@_jit
def _pass8(
    x: Any,
    factors: Any,
    bases: Any,
    first: Any,
    block: Any,
    apart: Any,
    n: Any,
    pitch: Any,
    out: Any,
    at: Any,
    fresh: Any,
) -> None:
    w0 = factors[first]
    w1 = factors[first + 1]
    w2 = factors[first + 2]
    w3 = factors[first + 3]
    w4 = factors[first + 4]
    w5 = factors[first + 5]
    w6 = factors[first + 6]
    w7 = factors[first + 7]
    for row in range(block):
        to, move = at + row * pitch, row * apart
        b0 = bases[first] + move
        b1 = bases[first + 1] + move
        b2 = bases[first + 2] + move
        b3 = bases[first + 3] + move
        b4 = bases[first + 4] + move
        b5 = bases[first + 5] + move
        b6 = bases[first + 6] + move
        b7 = bases[first + 7] + move
        if fresh:
            for k in range(n):
                s = load(x, b0 + k) * w0
                s += load(x, b1 + k) * w1
                s += load(x, b2 + k) * w2
                s += load(x, b3 + k) * w3
                s += load(x, b4 + k) * w4
                s += load(x, b5 + k) * w5
                s += load(x, b6 + k) * w6
                s += load(x, b7 + k) * w7
                store(out, to + k, s)
        else:
            for k in range(n):
                s = own(out, to + k) + load(x, b0 + k) * w0
                s += load(x, b1 + k) * w1
                s += load(x, b2 + k) * w2
                s += load(x, b3 + k) * w3
                s += load(x, b4 + k) * w4
                s += load(x, b5 + k) * w5
                s += load(x, b6 + k) * w6
                s += load(x, b7 + k) * w7
                store(out, to + k, s)
