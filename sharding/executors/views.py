"""Ranges of planes of whole arrays: views where they lie side by side, copies around a ring."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from linops import arrays
from linops.arrays import Array
from sharding.states import Sharded, Windowed, overlaps, real_range
from sharding.steps import (
    Ranges,
    Value,
)

__all__ = [
    "added",
    "along",
    "among_zeros",
    "index_of",
    "spread_out",
    "transformed",
    "view",
]


def transformed(x: Array) -> bool:
    """Whether `torch.func` maps over or differentiates `x`: nothing is written into then."""
    return arrays.is_torch(x) and sys.modules["torch"]._C._functorch.is_functorch_wrapped_tensor(x)


def among_zeros(piece: Array, value: Value, place: Ranges) -> Array:
    """The piece of a device with zeros where the others' planes lie."""
    for axis, (lo, hi) in enumerate(place):
        n = value.space.shape[axis]
        piece = arrays.widen(piece, axis - value.space.ndim, lo, n - hi)
    return piece


def index_of(ranges: Sequence[tuple[int, int]]) -> tuple[Any, ...]:
    """The index of these ranges, batch axes in front."""
    return (..., *(slice(lo, hi) for lo, hi in ranges)) if ranges else (...,)


def view(x: Array, value: Value, ranges: Ranges) -> Array:
    """The planes `ranges` of a whole array; around a ring a copy."""
    ndim = value.space.ndim
    for a, (lo, hi) in enumerate(ranges):
        n = value.space.shape[a]
        if lo != 0 or hi != n:
            x = planes(x, a - ndim, lo, hi, n)
    return x


def along(x: Array, value: Value, m: int, i: int, mesh: tuple[int, ...]) -> Array:
    """The range of device `i` of a line, from an array that is whole along that axis."""
    state = value.states[m]
    if not isinstance(state, (Sharded, Windowed)):
        return x
    n = value.space.shape[state.axis]
    lo, hi = state.planes(i, n) if isinstance(state, Windowed) else real_range(n, mesh[m], i)
    return planes(x, state.axis - value.space.ndim, lo, hi, n)


def planes(x: Array, axis: int, lo: int, hi: int, n: int) -> Array:
    if lo >= 0 and hi <= n:
        return arrays.narrow(x, axis, lo, hi)
    parts = []
    while lo < hi:
        start = lo % n
        stop = min(n, start + hi - lo)
        parts.append(arrays.narrow(x, axis, start, stop))
        lo += stop - start
    return arrays.namespace(x).concat(parts, axis=axis)


def spread_out(
    wide: Array, piece: Array, value: Value, m: int, i: int, mesh: tuple[int, ...]
) -> Array:
    """`wide`, whole along an axis, with the planes of device `i` of a line added where they lie."""
    state = value.states[m]
    assert isinstance(state, (Sharded, Windowed))
    n = value.space.shape[state.axis]
    axis = state.axis - value.space.ndim
    if isinstance(state, Sharded):
        lo, _ = real_range(n, mesh[m], i)
        return added(wide, piece, axis, lo)
    lo, hi = state.planes(i, n)
    for begin, end, shift in overlaps(lo, hi, 0, n, n, state.periodic):
        part = arrays.narrow(piece, axis, begin - lo, end - lo)
        wide = added(wide, part, axis, begin + shift)
    return wide


def added(wide: Array, part: Array, axis: int, at: int) -> Array:
    """`wide` with `part` added from plane `at` of an axis on; in place where that is possible."""
    stop = at + part.shape[axis]
    if transformed(part):
        return wide + arrays.widen(part, axis, at, wide.shape[axis] - stop)
    if not arrays.is_jax(wide):
        view = arrays.narrow(wide, axis, at, stop)
        view += part
        return wide
    index = (..., slice(at, stop), *(slice(None),) * (-axis - 1))
    return wide.at[index].add(part)
