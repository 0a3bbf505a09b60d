"""Inner products and norms of elements of spaces, several of them in one reduction.

The homes of spaces multiply and sum (`linops/home.py`); here are those that go together told
apart, and norms kept from overflow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from linops import arrays
from linops.arrays import Array

if TYPE_CHECKING:
    from linops.space import AnySpace, ProductSpace, Space

__all__ = ["inner_of_members", "inners", "norm", "norm_of_members"]


def norm(space: Space, a: Array) -> Any:
    """The Euclidean norm of an element, see `Space.norm`."""
    narrow = not arrays.has_float64(a) and (arrays.is_traced(a) or a.ndim > space.ndim)
    placed = space.home.placed
    if placed or not narrow:
        with np.errstate(over="ignore"):
            square = space.inner(a, a)
        if isinstance(square, (float, complex)):
            if placed or _holds(square.real):
                return math.sqrt(square.real)
        else:
            real = _real(square)
            if placed or arrays.is_traced(square) or _hold(real):
                return arrays.namespace(real).sqrt(real)
    top = _largest(a, space.ndim)
    xp = arrays.namespace(top)
    wide = xp.reshape(top, (*top.shape, *(1,) * space.ndim))
    scaled = space.inner(a / wide, a / wide)
    if isinstance(scaled, (float, complex)):
        return float(top) * math.sqrt(scaled.real)
    return top * xp.sqrt(_real(scaled))


def norm_of_members(space: ProductSpace, a: tuple[Array, ...]) -> Any:
    """The Euclidean norm over all members."""
    with np.errstate(over="ignore"):
        square = space.inner(a, a)
    if isinstance(square, (float, complex)):
        if _holds(square.real):
            return math.sqrt(square.real)
        return math.hypot(*(s.norm(part) for s, part in zip(space.spaces, a, strict=True)))
    return arrays.namespace(square).sqrt(_real(square))


def inner_of_members(space: ProductSpace, a: tuple[Array, ...], b: tuple[Array, ...]) -> Any:
    """The sum of the members' inner products, see `Space.inner`."""
    return _add(_reduce(list(zip(space.spaces, a, b, strict=True)), True))


def inners(*products: tuple[AnySpace, Any, Any]) -> tuple[Array, ...]:
    """Several inner products `(space, a, b)` at once, as 0-d arrays of the elements' namespace.

    Nothing is read to the host, so loops without host decisions use it; a sharded space reduces
    all of them together.
    """
    terms: list[tuple[Space, Array, Array]] = []
    for space, a, b in products:
        space.validate(a)
        space.validate(b)
        several = hasattr(space, "spaces")
        terms += zip(space.members, a if several else (a,), b if several else (b,), strict=True)
    found = iter(_reduce(terms, False))
    return tuple(_add([next(found) for _ in space.members]) for space, _, _ in products)


def _reduce(terms: Sequence[tuple[Space, Array, Array]], host: bool) -> list[Any]:
    """The inner products of `(space, a, b)`; those that can be are reduced together."""
    groups: dict[Any, list[int]] = {}
    for k, (space, _, _) in enumerate(terms):
        groups.setdefault(space.home.reduction, []).append(k)
    found: list[Any] = [None] * len(terms)
    for members in groups.values():
        values = terms[members[0]][0].home.dots([terms[k] for k in members], host)
        for k, value in zip(members, values, strict=True):
            found[k] = value
    return found


def _add(values: Sequence[Any]) -> Any:
    return sum(values[1:], values[0])


def _real(x: Array) -> Array:
    return arrays.namespace(x).real(x) if arrays.dtype_of(x).kind == "c" else x


def _holds(square: float) -> bool:
    """Whether a sum of squares lost nothing to the range of its numbers."""
    return square > 1e-280 and math.isfinite(square)


def _hold(squares: Array) -> bool:
    xp = arrays.namespace(squares)
    return bool(arrays.item(xp.all((squares > 1e-280) & xp.isfinite(squares))))


def _largest(a: Array, ndim: int) -> Array:
    """The largest size of an entry of each element, 1 where there is none or it is no number."""
    x = arrays.constant(a)
    xp = arrays.namespace(x)
    size = xp.abs(x)
    if arrays.dtype_of(x).kind == "c":
        parts = xp.abs(xp.real(x)), xp.abs(xp.imag(x))
        size = xp.where(parts[0] > parts[1], *parts)
    axes = tuple(range(-ndim, 0))
    if axes:
        size = xp.sum(size, axis=axes) if 0 in tuple(x.shape) else xp.max(size, axis=axes)
    good = (size > 0) & xp.isfinite(size)
    return xp.where(good, size, xp.ones_like(size))
