"""Entries picked by their positions: `Restriction` reads them, `Scatter` puts them back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.axes import axis_numbers, cuts_named, numbered, resized
from linops.elementary.plane_windows import PlaneMask
from linops.errors import DTypeError, ShapeError
from linops.linear_operator import LinearOperator
from linops.rule import Axis, Member, Rule
from linops.space import Space

__all__ = ["Restriction", "Scatter", "indexed_axes", "shifted"]


class Scatter(LinearOperator):
    """Values added into zeros at flat positions; the adjoint of `Restriction`.

    Parameters
    ----------
    space
        The codomain.
    index
        Integers, shape (s,): flat positions in C order along `axes`; -1 is inert, repeated
        positions add up.
    axes
        The axes that the positions run over, one or several by name or number: the last two by
        default, the only one in one dimension. The others stay whole: the domain is `(others, s)`.

    Raises
    ------
    ShapeError
        Where a position is outside the axes.
    DTypeError
        Where the index does not hold integers.
    """

    batched = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True

    def __init__(
        self, space: Space, index: Array, axes: str | int | Sequence[str | int] | None = None
    ) -> None:
        numbers = indexed_axes(space, axes)
        index = _checked(index, math.prod(space.shape[i] for i in numbers))
        small, rows = _pick(space, numbers, int(index.shape[0]))
        super().__init__(small, space, Rule((rows[1],), (rows[0],)), tags=("nonnegative",))
        self.index = arrays.snapshot(index)
        self._axes = numbers

    def _apply(self, x: Array) -> Array:
        return _scatter(x, self.index, self.codomain, self._axes)

    def _apply_adjoint(self, y: Array) -> Array:
        return _restrict(y, self.index, self.codomain, self._axes)

    def _make_adjoint(self) -> LinearOperator:
        return Restriction(self.codomain, self.index, self._axes)  # type: ignore[arg-type]

    def _gram_diagonal(self, weights: Array | None) -> Array:
        whole = self.codomain.ones() if weights is None else weights
        return _restrict(whole, self.index, self.codomain, self._axes)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        return _block_of(Scatter, self, axis, start, stop, padded)

    def _cost(self) -> Cost:
        return Cost.streaming(self.domain, self.codomain, float(self.domain.size))


class Restriction(LinearOperator):
    """The entries at flat positions; parameters as for `Scatter`, with `space` the domain.

    An inert position (-1) gives zero.
    """

    batched = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True

    def __init__(
        self, space: Space, index: Array, axes: str | int | Sequence[str | int] | None = None
    ) -> None:
        numbers = indexed_axes(space, axes)
        index = _checked(index, math.prod(space.shape[i] for i in numbers))
        small, rows = _pick(space, numbers, int(index.shape[0]))
        super().__init__(space, small, Rule((rows[0],), (rows[1],)), tags=("nonnegative",))
        self.index = arrays.snapshot(index)
        self._axes = numbers

    def _apply(self, x: Array) -> Array:
        if type(x) is np.ndarray and self._runs_over_all and x.ndim == len(self.domain.shape):
            return x.ravel().take(self.index)
        return _restrict(x, self.index, self.domain, self._axes)

    def _apply_adjoint(self, y: Array) -> Array:
        return _scatter(y, self.index, self.domain, self._axes)

    @cached_property
    def _runs_over_all(self) -> bool:
        """Whether positions run over all axes, none of them inert: NumPy takes them at once."""
        whole = type(self.index) is np.ndarray and bool((self.index >= 0).all())
        return whole and self._axes == tuple(range(len(self.domain.shape)))

    def _make_adjoint(self) -> LinearOperator:
        return Scatter(self.domain, self.index, self._axes)  # type: ignore[arg-type]

    def _gram_diagonal(self, weights: Array | None) -> Array:
        picked = self.codomain.ones() if weights is None else weights
        return _scatter(picked, self.index, self.domain, self._axes)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        return _block_of(Restriction, self, axis, start, stop, padded)

    def _cost(self) -> Cost:
        return Cost.streaming(self.codomain, self.codomain, 0.0)


def indexed_axes(space: Space, axes: str | int | Sequence[str | int] | None) -> tuple[int, ...]:
    """The numbers of the axes that flat positions run over (the last two by default)."""
    if not isinstance(space, Space):
        raise ShapeError("positions run over one array: pick a member of the product space first")
    if axes is None:
        return tuple(range(max(space.ndim - 2, 0), space.ndim))
    return axis_numbers(space, axes, "positions along axes")


def shifted(
    index: Array, shape: tuple[int, ...], axes: tuple[int, ...], number: int, start: int, stop: int
) -> Array:
    """Positions along `axes` counted in planes `start` to `stop` of one of them; -1 outside."""
    place = axes.index(number)
    stride = math.prod(shape[a] for a in axes[place + 1 :])
    xp = arrays.namespace(index)
    before, rest = index // (stride * shape[number]), index % (stride * shape[number])
    plane = rest // stride - start
    inside = (index >= 0) & (plane >= 0) & (plane < stop - start)
    moved = (before * (stop - start) + plane) * stride + rest % stride
    return xp.where(inside, moved, xp.zeros_like(index) - 1)


def _checked(index: Any, size: int) -> Array:
    if not arrays.is_array(index) and np.size(index) == 0:
        index = np.zeros(np.shape(index), np.int64)
    index = arrays.asarray(index, "an index of positions", "index")
    if index.ndim != 1:
        raise ShapeError(f"an index of positions has one axis, got shape {tuple(index.shape)}")
    if arrays.dtype_of(index).kind not in "iu":
        raise DTypeError(
            f"an index holds integers, got {index.dtype}; use numpy.flatnonzero(mask) for a mask"
        )
    if not arrays.is_traced(index) and index.shape[0]:
        host = arrays.to_numpy(index)
        bad = np.flatnonzero((host < -1) | (host >= size))
        if bad.size:
            raise ShapeError(
                f"entry {int(bad[0])} of the index is {int(host[bad[0]])}; positions run from 0 to "
                f"{size - 1}, and -1 is inert"
            )
    return _wide(index)


def _wide(index: Array) -> Array:
    """The positions in a signed dtype that holds every count they are compared with: -1 stays -1,
    products of extents do not wrap around, and every library takes them."""
    dtype = arrays.dtype_of(index)
    if dtype.name in ("int32", "int64"):
        return index
    small = dtype.itemsize < 4 or not arrays.has_float64(index)
    return arrays.cast(index, np.dtype("int32" if small else "int64"))


def _pick(
    space: Space, numbers: tuple[int, ...], count: int
) -> tuple[Space, tuple[Member, Member]]:
    others = [i for i in range(space.ndim) if i not in numbers]
    names = space.axes or tuple(numbered(space.ndim))
    s = "s" if "s" not in names else "s_picked"
    small = Space(
        (*(space.shape[i] for i in others), count),
        space.dtype,
        (*(names[i] for i in others), s) if space.axes else None,
    )
    whole = tuple(map(Axis, names))
    part = (*(Axis(names[i]) for i in others), Axis(s))
    return small, (whole, part)


def _restrict(x: Array, index: Array, space: Any, numbers: tuple[int, ...]) -> Array:
    xp = arrays.namespace(x)
    batch = tuple(x.shape)[: x.ndim - space.ndim]
    others = [i for i in range(space.ndim) if i not in numbers]
    order = [*range(len(batch)), *(len(batch) + i for i in (*others, *numbers))]
    if order != sorted(order):
        x = xp.permute_dims(x, tuple(order))
    size = math.prod(space.shape[i] for i in numbers)
    kept = tuple(space.shape[i] for i in others)
    return arrays.take_last(xp.reshape(x, (*batch, *kept, size)), index)


def _scatter(x: Array, index: Array, space: Any, numbers: tuple[int, ...]) -> Array:
    others = [i for i in range(space.ndim) if i not in numbers]
    batch = tuple(x.shape)[: x.ndim - len(others) - 1]
    size = math.prod(space.shape[i] for i in numbers)
    flat = arrays.scatter_add(x, index, size)
    xp = arrays.namespace(flat)
    moved = (*others, *numbers)
    out = xp.reshape(flat, (*batch, *(space.shape[i] for i in moved)))
    if list(moved) == sorted(moved):
        return out
    n = len(batch)
    order = [*range(n), *(n + moved.index(i) for i in range(space.ndim))]
    return xp.permute_dims(out, tuple(order))


def _block_of(
    cls: Any, operator: Any, axis: str, start: int, stop: int, padded: bool
) -> LinearOperator | None:
    space = operator.codomain if cls is Scatter else operator.domain
    small = operator.rule.domain if cls is Scatter else operator.rule.codomain
    if axis == small[0][-1].name:
        return None if padded else cls(space, operator.index[start:stop], operator._axes)
    cuts = cuts_named(Rule((_names_of(space),), ()), axis)
    if not cuts:
        return None
    number = cuts[0][1]
    n = space.shape[number]
    index = operator.index
    if number in operator._axes:
        index = shifted(index, space.shape, operator._axes, number, start, stop)
    block = cls(resized(space, cuts, stop - start), index, operator._axes)
    if not padded or number in operator._axes:
        return block  # type: ignore[no-any-return]
    from linops.algebra.composition import Product

    members = operator.rule.codomain
    where = [(0, p) for p, a in enumerate(members[0]) if a.name == axis]
    return Product([PlaneMask(block.codomain, where, -start, n - start, members), block])


def _names_of(space: Space) -> Member:
    return tuple(map(Axis, space.axes or numbered(space.ndim)))
