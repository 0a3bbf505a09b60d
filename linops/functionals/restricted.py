"""A functional seen from a subset of its domain, which is what coordinate descent needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from linops import arrays
from linops.arrays import Array
from linops.elementary.select import Scatter
from linops.operator import LinearOperator
from linops.space import Space

if TYPE_CHECKING:
    from linops.functionals.functional import Functional

__all__ = ["Restricted", "RestrictedSum"]


class Restricted:
    """A functional's gradient and surrogate rows at a subset; neighbours are read from all of x.

    This form takes them from the whole and is right for every functional; priors whose rows
    are cheap override it.

    Parameters
    ----------
    functional
        The functional on the whole domain.
    index
        Flat positions, shape (s,), -1 inert.
    """

    def __init__(self, functional: Functional, index: Any) -> None:
        assert isinstance(functional.domain, Space)
        self.functional = functional
        self.index = index
        self._scatter = Scatter(functional.domain, index)
        self.domain = self._scatter.domain

    def gradient(self, x: Array) -> Array:
        """Rows of the gradient at `x`, shape `(others, s)`; zero at inert positions."""
        return self.terms(x)[0]

    def surrogate(self, x: Array) -> LinearOperator:
        """The surrogate at `x` restricted to the subset, rows and columns."""
        scatter = self._scatter
        restricted: LinearOperator = scatter.H @ self.functional.surrogate(x) @ scatter
        return restricted

    def terms(self, x: Array) -> tuple[Array, Array]:
        """Gradient rows and the surrogate's diagonal at the subset, in one pass where possible."""
        scatter = self._scatter
        curvature = self.functional.surrogate(x).diagonal(limit=None)
        return scatter.H @ self.functional.gradient(x), scatter.H @ arrays.convert(curvature, x)

    def quadratic(self, x: Array, d: Array) -> Array:
        """`<d, S(x) d>` for a direction `d` on the subset, as a 0-d array."""
        full = self._scatter @ d
        return arrays.namespace(full).sum(full * (self.functional.surrogate(x) @ full))


class RestrictedSum(Restricted):
    """A sum of multiples of functionals on one subset.

    Parameters
    ----------
    functional
        The sum on the whole domain.
    index
        Flat positions, shape (s,), -1 inert.
    parts
        Factors, and the restrictions of the terms.
    """

    def __init__(
        self, functional: Functional, index: Any, parts: Sequence[tuple[Any, Restricted]]
    ) -> None:
        super().__init__(functional, index)
        self._parts = tuple(parts)

    def terms(self, x: Array) -> tuple[Array, Array]:
        gradient, curvature = None, None
        for factor, part in self._parts:
            g, c = part.terms(x)
            if factor is not None:
                g, c = factor * g, factor * c
            gradient = g if gradient is None else gradient + g
            curvature = c if curvature is None else curvature + c
        return gradient, curvature

    def quadratic(self, x: Array, d: Array) -> Array:
        total = None
        for factor, part in self._parts:
            value = part.quadratic(x, d)
            if factor is not None:
                value = factor * value
            total = value if total is None else total + value
        return total
