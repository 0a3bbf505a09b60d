"""Stencils from a function of shifted views: `lambda u: u(1) * u(0) - u(-1) ** 2`.

A function that is linear becomes a table of taps. Any other is a nonlinear stencil, whose Jacobian
is a stencil with the partial derivatives as coefficient fields: so its adjoint, blocks and rule
are those of every stencil. In NumPy the partial derivatives come from dual numbers, in JAX and
torch from the library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.rule import Rule
from linops.space import Space
from linops.stencils import slices
from linops.stencils.boundary import linear_part, sides
from linops.stencils.stencil import Stencil

__all__ = ["NonlinearStencil", "linear_taps"]

Offset = tuple[int, ...]


def linear_taps(
    function: Callable[..., Any], ndim: int, strict: bool = True
) -> dict[Offset, Any] | None:
    """The taps of a function of shifted views; None where it is not linear.

    Raises
    ------
    ShapeError
        Where a view is shifted along another number of axes.
    """

    def view(*offset: int) -> _Form:
        return _Form({_checked(offset, ndim): 1.0})

    try:
        found = function(view)
        if not isinstance(found, _Form):
            raise _NotLinear
    except ShapeError:
        raise
    except Exception:
        if strict:
            raise ValueError("the function of views is not linear") from None
        return None
    return found.table


class NonlinearStencil(Operator):
    """`y[i] = f(x[i + o], ...)`: a function of shifted views, with a boundary.

    Parameters
    ----------
    space
        Domain and codomain.
    function
        Takes `u`; `u(offset, ...)` is the input shifted by so many planes along each axis. It
        computes entry by entry, with operators and functions of the array's library.
    boundary
        As for `Stencil`, constants included.
    """

    batched = True
    _exact: ClassVar[bool] = True
    domain: Space

    def __init__(
        self,
        space: Space,
        function: Callable[..., Any],
        boundary: Any = "zero",
        name: str | None = None,
    ) -> None:
        pairs = sides(boundary, space.ndim, name or "Stencil")
        shape = Stencil(space, dict.fromkeys(_offsets(function, space.ndim), 1.0), "zero")
        shape = Stencil(
            space, {tap.offset: 1.0 for tap in shape._taps}, linear_part(pairs), name=name
        )
        values = tuple(
            tuple(side if not isinstance(side, str) else None for side in pair) for pair in pairs
        )
        self._set_up(shape, function, values if boundary_is_affine(values) else None)

    def _set_up(self, shape: Stencil, function: Callable[..., Any], values: Any) -> None:
        Operator.__init__(self, shape.domain, shape.codomain, shape.rule, name=shape.name)
        self.shape_of = shape
        self._function, self._values = function, values

    def _apply(self, x: Array) -> Array:
        frame = self._frame(slices.wide(x))
        found = self._function(lambda *offset: self._view(frame, offset))
        return self._blanked(arrays.cast(found + 0 * self._view(frame, self._center), x.dtype))

    def _jacobian(self, x: Any) -> LinearOperator:
        frame = self._frame(slices.wide(x))
        views = {tap.offset: self._view(frame, tap.offset) for tap in self.shape_of._taps}
        parts = _partials(self._function, views)
        like = self._view(frame, self._center)
        taps, fields = [], []
        for number, tap in enumerate(self.shape_of._taps):
            part = parts.get(tap.offset)
            field = 0 * like if part is None else part + 0 * like
            fields.append(arrays.cast(self._blanked(field), arrays.dtype_of(x)))
            taps.append(tap._replace(coefficient=number))
        return self.shape_of._rebuilt(taps=tuple(taps), fields=tuple(fields), tags=())

    def _frame(self, x: Array) -> Array:
        base = self.shape_of
        return slices.framed_input(x, base._lines[0], base.starts, self._values)

    def _view(self, frame: Array, offset: tuple[int, ...]) -> Array:
        return slices.shifted(frame, self.shape_of._lines[0], offset)

    @property
    def _center(self) -> Offset:
        return (0,) * len(self.shape_of._lines[0])

    def _blanked(self, y: Array) -> Array:
        lines = self.shape_of._lines[0]
        for axis, line in enumerate(lines):
            start = self.shape_of.starts[axis]
            y = slices.blanked(y, axis - len(lines), line, start)
        return y

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        return self.shape_of._input_range(axis, start, stop)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        if padded and self._values is not None:
            return None
        inner = self.shape_of._block(axis, start, stop, padded)
        if inner is None:
            return None
        function, values = self._function, self._values
        return NonlinearStencil._opened(lambda made: made._set_up(inner, function, values))  # type: ignore[arg-type]

    def _derive_rule(self) -> Rule:
        return self.shape_of.rule

    def _cost(self) -> Cost:
        return self.shape_of.cost()


def boundary_is_affine(values: Any) -> bool:
    """Whether a side has a value of its own."""
    return any(side is not None for pair in values for side in pair)


class _NotLinear(Exception):
    """Raised while a function is followed that is not linear."""


class _Form:
    """A linear form in shifted views."""

    __array_ufunc__ = None

    def __init__(self, table: Mapping[Offset, Any]) -> None:
        self.table = dict(table)

    def __add__(self, other: Any) -> _Form:
        if isinstance(other, (int, float)) and other == 0:
            return self
        if not isinstance(other, _Form):
            raise _NotLinear
        table = dict(self.table)
        for offset, weight in other.table.items():
            table[offset] = table[offset] + weight if offset in table else weight
        return _Form(table)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return self * -1.0

    def __pos__(self) -> _Form:
        return self

    def __sub__(self, other: Any) -> Any:
        return self + other * -1.0

    def __rsub__(self, other: Any) -> Any:
        return self * -1.0 + other

    def __mul__(self, factor: Any) -> Any:
        if isinstance(factor, _Form):
            raise _NotLinear
        return _Form({offset: factor * weight for offset, weight in self.table.items()})

    __rmul__ = __mul__

    def __truediv__(self, factor: Any) -> _Form:
        if isinstance(factor, _Form):
            raise _NotLinear
        return _Form({offset: weight / factor for offset, weight in self.table.items()})

    def __bool__(self) -> bool:
        raise _NotLinear


def _offsets(function: Callable[..., Any], ndim: int) -> tuple[Offset, ...]:
    seen: dict[Offset, None] = {}

    def view(*offset: int) -> Any:
        seen[_checked(offset, ndim)] = None
        return np.ones(())

    with np.errstate(all="ignore"):
        try:
            function(view)
        except ShapeError:
            raise
        except TypeError:
            seen.clear()
            torch = sys.modules.get("torch")
            if torch is None:
                raise

            def tensor(*offset: int) -> Any:
                seen[_checked(offset, ndim)] = None
                return torch.ones(())

            function(tensor)
    seen.setdefault((0,) * ndim, None)
    return tuple(seen)


def _checked(offset: tuple[int, ...], ndim: int) -> Offset:
    if len(offset) != ndim:
        raise ShapeError(f"a view is shifted along {ndim} axes, u{offset!r} along {len(offset)}")
    return tuple(int(o) for o in offset)


def _partials(function: Callable[..., Any], views: Mapping[Offset, Array]) -> dict[Offset, Any]:
    """The derivative of the function in each of its views, entry by entry."""
    example = next(iter(views.values()))
    if arrays.is_jax(example) or arrays.is_torch(example):
        if arrays.is_jax(example):
            jvp: Any = sys.modules["jax"].jvp
        else:
            jvp = sys.modules["torch"].func.jvp
        xp, offsets = arrays.namespace(example), tuple(views)

        def of_views(*parts: Array) -> Any:
            table = dict(zip(offsets, parts, strict=True))
            return function(lambda *offset: table[offset]) + 0 * parts[0]

        own = tuple(views.values())
        return {
            offset: jvp(
                of_views,
                own,
                tuple(
                    xp.ones_like(v) if o == offset else xp.zeros_like(v) for o, v in views.items()
                ),
            )[1]
            for offset in offsets
        }
    from linops.stencils.dual import Dual

    found = function(lambda *offset: Dual(views[offset], {offset: 1.0}))
    parts: Any = found.parts if isinstance(found, Dual) else {}
    return parts  # type: ignore[no-any-return]
