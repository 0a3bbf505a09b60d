"""`Functional`: a real number for every element of a space, and what solvers ask about it.

A functional has a value, where it is differentiable a gradient, where a closed form exists a
proximal map, and a surrogate: a symmetric positive operator whose quadratic majorizes it.
`restrict` gives the same for a subset of the domain, which is what coordinate descent needs.
Particular functionals live beside this file; nothing here knows a solver.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from linops import arrays
from linops.arrays import Array
from linops.elementary.select import Scatter
from linops.operator import LinearOperator
from linops.space import Space

__all__ = ["Functional", "Restricted", "ScaledFunctional", "SumFunctional"]


class Functional(ABC):
    """A map from a space to the real numbers.

    Parameters
    ----------
    domain
        Space of its arguments.

    Notes
    -----
    `f(x)` is a Python float; with leading batch axes an array with one value a member; under a
    trace, or where a gradient is required, a 0-d array. `f + g` and `a * f` (a >= 0 keeps what
    is convex convex) are functionals again.
    """

    def __init__(self, domain: Space) -> None:
        self.domain = domain

    def __call__(self, x: Array) -> Any:
        return self._value(self._admit(x))

    def gradient(self, x: Array) -> Array:
        """The gradient at `x`, of the shape of `x`."""
        return self._gradient(self._admit(x))

    def prox(self, x: Array, step: float) -> Array:
        """`argmin_u |u - x|^2 / 2 + step * f(u)`, where it has a closed form.

        Raises
        ------
        NotImplementedError
            Where it has none.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no proximal map in closed form; use its gradient or "
            "surrogate"
        )

    @abstractmethod
    def surrogate(self, x: Array) -> LinearOperator:
        """The operator S with `f(x + d) <= f(x) + <gradient(x), d> + <d, S d> / 2` for all d.

        Self-adjoint and positive semidefinite by tag; `x` has no batch axes.
        """

    def restrict(self, index: Any) -> Restricted:
        """The functional seen from a subset of positions.

        Parameters
        ----------
        index
            Flat positions along the last two axes of the domain (the only one in one
            dimension), as for `LinearOperator.columns`; -1 is inert.
        """
        return Restricted(self, index)

    def __add__(self, other: Any) -> Functional:
        if not isinstance(other, Functional):
            return NotImplemented
        return SumFunctional([self, other])

    def __mul__(self, factor: Any) -> Functional:
        if isinstance(factor, bool) or not isinstance(factor, (int, float)):
            return NotImplemented
        return ScaledFunctional(float(factor), self)

    __rmul__ = __mul__

    @abstractmethod
    def _value(self, x: Array) -> Any:
        """The value; `x` is validated and has the domain's dtype."""

    @abstractmethod
    def _gradient(self, x: Array) -> Array:
        """The gradient; `x` is validated and has the domain's dtype."""

    def _admit(self, x: Array) -> Array:
        self.domain.check_shape(x, type(self).__name__)
        return arrays.cast(x, self.domain.dtype)


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
        return _sum(full * (self.functional.surrogate(x) @ full))


class SumFunctional(Functional):
    """The sum of functionals on one space."""

    def __init__(self, terms: Sequence[Functional]) -> None:
        self.terms: tuple[Functional, ...]
        flat: list[Functional] = []
        for term in terms:
            flat.extend(term.terms if isinstance(term, SumFunctional) else [term])
        for term in flat:
            if term.domain.shape != flat[0].domain.shape:
                raise ValueError(
                    f"functionals on {flat[0].domain} and {term.domain} do not add; "
                    "build them on one space"
                )
        super().__init__(flat[0].domain)
        self.terms = tuple(flat)

    def surrogate(self, x: Array) -> LinearOperator:
        parts = [term.surrogate(x) for term in self.terms]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def restrict(self, index: Any) -> Restricted:
        return _RestrictedSum(self, index, [(1.0, term.restrict(index)) for term in self.terms])

    def _value(self, x: Array) -> Any:
        values = [term(x) for term in self.terms]
        return sum(values[1:], values[0])

    def _gradient(self, x: Array) -> Array:
        total = self.terms[0].gradient(x)
        for term in self.terms[1:]:
            total = total + term.gradient(x)
        return total


class ScaledFunctional(Functional):
    """A functional times a number that is not negative."""

    def __init__(self, factor: float, base: Functional) -> None:
        if not (math.isfinite(factor) and factor >= 0):
            raise ValueError(
                f"a functional is scaled by a finite number >= 0, got {factor}: a negative one "
                "has no majorizing surrogate"
            )
        super().__init__(base.domain)
        self.factor = factor
        self.base = base

    def prox(self, x: Array, step: float) -> Array:
        return self.base.prox(x, step * self.factor)

    def surrogate(self, x: Array) -> LinearOperator:
        scaled: LinearOperator = self.factor * self.base.surrogate(x)
        return scaled

    def restrict(self, index: Any) -> Restricted:
        return _RestrictedSum(self, index, [(self.factor, self.base.restrict(index))])

    def _value(self, x: Array) -> Any:
        return self.factor * self.base(x)

    def _gradient(self, x: Array) -> Array:
        return self.factor * self.base.gradient(x)


class _RestrictedSum(Restricted):
    def __init__(
        self, functional: Functional, index: Any, parts: Sequence[tuple[float, Restricted]]
    ) -> None:
        super().__init__(functional, index)
        self._parts = tuple(parts)

    def terms(self, x: Array) -> tuple[Array, Array]:
        gradient, curvature = None, None
        for factor, part in self._parts:
            g, c = part.terms(x)
            if factor != 1.0:
                g, c = factor * g, factor * c
            gradient = g if gradient is None else gradient + g
            curvature = c if curvature is None else curvature + c
        return gradient, curvature

    def quadratic(self, x: Array, d: Array) -> Array:
        total = None
        for factor, part in self._parts:
            value = part.quadratic(x, d)
            if factor != 1.0:
                value = factor * value
            total = value if total is None else total + value
        return total


def _sum(x: Array) -> Array:
    return arrays.namespace(x).sum(x)
