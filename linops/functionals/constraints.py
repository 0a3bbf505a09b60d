"""Constraints as functionals: 0 where they are met, infinite elsewhere.

Their proximal map is the projection. They have neither gradient nor surrogate.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.functionals.entries import Entries
from linops.functionals.functional import is_recorded
from linops.space import Space

__all__ = ["Box", "NonNegative"]


class _Bounds(Entries):
    """`lower <= x <= upper`, entry by entry."""

    _tables: ClassVar[Mapping[str, float]] = {"lower": -math.inf, "upper": math.inf}
    lower: Any
    upper: Any

    @abstractmethod
    def __init__(self, space: Space) -> None:
        super().__init__(space)
        if space.is_complex:
            raise ValueError(
                f"{self.name} takes a real space, got {space}: complex numbers have no order"
            )

    def _value(self, x: Array) -> Any:
        inside = (x >= self._table("lower", x)) & (x <= self._table("upper", x))
        return self._barrier(inside)

    def _conjugate_value(self, p: Array) -> Any:
        """`sum max(lower p, upper p)`."""
        xp = arrays.namespace(p)
        bound = xp.where(p > 0, self._table("upper", p) + 0 * p, self._table("lower", p) + 0 * p)
        bound = xp.where(p == 0, p, bound)  # there an infinite bound counts nothing
        finite = xp.isfinite(bound)
        return self._barrier(finite, self._sum(xp.where(finite, bound, 0 * p) * p))

    def _cost(self) -> Cost:
        _, real, mask, _ = self._sizes
        return self._state_cost(5.0, 2 * real + 3 * mask)

    def _prox(self, x: Array, step: Any) -> Array:
        """x clipped to the bounds, whatever the step."""
        return arrays.namespace(x).clip(x, self._table("lower", x), self._table("upper", x))


class Box(_Bounds):
    """`lower <= x <= upper`: 0 inside, infinite outside.

    Parameters
    ----------
    space
        The domain, real.
    lower, upper
        Numbers, arrays of the domain's shape, or None for no bound.

    Raises
    ------
    ValueError
        Where a lower bound is above the upper one, or a bound is NaN.
    """

    def __init__(self, space: Space, lower: Any = None, upper: Any = None) -> None:
        super().__init__(space)
        self.lower = self._admit_table(-math.inf if lower is None else lower, "lower")
        self.upper = self._admit_table(math.inf if upper is None else upper, "upper")
        if not (is_recorded(self.lower) or is_recorded(self.upper)):
            low, high = (
                arrays.to_numpy(one) if arrays.is_array(one) else one
                for one in (self.lower, self.upper)
            )
            if not np.all(np.less_equal(low, high)):
                raise ValueError(
                    "Box: lower bounds are not above upper ones, and none is NaN; got "
                    f"{_brief(lower)} and {_brief(upper)}"
                )


class NonNegative(_Bounds):
    """`x >= 0`: 0 where it holds, else infinite.

    Parameters
    ----------
    space
        The domain, real.
    """

    def __init__(self, space: Space) -> None:
        super().__init__(space)
        self.lower, self.upper = 0.0, math.inf


def _brief(value: Any) -> str:
    return f"an array of shape {tuple(value.shape)}" if arrays.is_array(value) else str(value)
