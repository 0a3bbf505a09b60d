"""The affine map `x -> x - shift`, which shifts functionals."""

from __future__ import annotations

from typing import Any

from linops import arrays, numeric
from linops.arrays import Array
from linops.elementary.identity import Identity
from linops.errors import ShapeError
from linops.functionals.entries import name_axes
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.rule import Rule
from linops.space import Space

__all__ = ["Subtract"]


class Subtract(Operator):
    """`x - shift`.

    Parameters
    ----------
    space
        Domain and codomain.
    shift
        An element of it, without batch axes.

    Raises
    ------
    ShapeError
        For a shift of another shape.
    """

    batched = True
    blockwise = True

    def __init__(self, space: Space, shift: Array) -> None:
        if not arrays.is_array(shift) or tuple(shift.shape) != space.shape:
            raise ShapeError(
                f"a shift is one element of {space}, got "
                f"{tuple(shift.shape) if arrays.is_array(shift) else type(shift).__name__}"
            )
        numeric.require_finite("shift", shift)
        row = (name_axes(space),)
        super().__init__(space, space, Rule(row, row, row))
        self.shift = arrays.own(shift, space.dtype)

    def _apply(self, x: Array) -> Array:
        return x - self._near(x)

    def _jacobian(self, x: Any) -> LinearOperator:
        return Identity(self.domain)

    def _near(self, like: Array) -> Array:
        cache = self.__dict__.setdefault("_cache_resident", {})
        return arrays.resident(cache, "shift", self.shift, like, self.domain.dtype)
