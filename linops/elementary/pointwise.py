"""Nonlinear maps that act entry by entry, and the transmission of an attenuating object."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from linops import arrays, numeric
from linops.arguments import checked
from linops.arrays import Array
from linops.elementary.diagonal import Diagonal
from linops.elementary.plane_windows import PlaneMask
from linops.elementary.planes import cuts_named, resized, window_rule
from linops.errors import ShapeError
from linops.maps import Operator
from linops.operator import LinearOperator
from linops.space import Space

__all__ = ["Exp", "Log", "Pointwise", "Power", "transmission"]


class Pointwise(Operator):
    """A map `x_i -> f(x_i)`; its Jacobian is the diagonal of `f'(x_i)`."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, space: Space) -> None:
        if not isinstance(space, Space):
            raise ShapeError(f"a pointwise map takes a plain space, got {space}")
        row = window_rule(space, ())
        super().__init__(space, space, row)

    @abstractmethod
    def _derivative(self, x: Array) -> Array:
        """`f'(x)`, entry by entry."""

    @abstractmethod
    def _on(self, space: Space) -> Pointwise:
        """The same function on another space."""

    def _jacobian(self, x: Array) -> LinearOperator:
        assert isinstance(self.domain, Space)
        return Diagonal(self._derivative(x), self.domain)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator:
        cuts = cuts_named(self.rule, axis)
        m, p = cuts[0]
        space = resized(self.domain, cuts, stop - start)
        assert isinstance(space, Space)
        block = self._on(space)
        if not padded:
            return block
        n = self.domain.members[m].shape[p]
        return PlaneMask(space, cuts, -start, n - start) @ block  # type: ignore[no-any-return]


class Exp(Pointwise):
    """`exp(x)`."""

    def _apply(self, x: Array) -> Array:
        return arrays.namespace(x).exp(x)

    def _derivative(self, x: Array) -> Array:
        return arrays.namespace(x).exp(x)

    def _on(self, space: Space) -> Pointwise:
        return Exp(space)


class Log(Pointwise):
    """The natural logarithm; NaN for negative entries, -inf at 0, as in the array library."""

    def _apply(self, x: Array) -> Array:
        return arrays.namespace(x).log(x)

    def _derivative(self, x: Array) -> Array:
        return 1.0 / x

    def _on(self, space: Space) -> Pointwise:
        return Log(space)


class Power(Pointwise):
    """`x ** exponent` for a finite number."""

    def __init__(self, space: Space, exponent: Any) -> None:
        super().__init__(space)
        if arrays.is_array(exponent) and exponent.ndim == 0:
            numeric.require_finite("exponent", exponent)
        else:
            exponent = numeric.finite("exponent", exponent)
        self.exponent = exponent

    def _apply(self, x: Array) -> Array:
        return x**self.exponent

    def _derivative(self, x: Array) -> Array:
        if not arrays.is_array(self.exponent) and self.exponent == 0:
            return arrays.namespace(x).zeros_like(x)
        return self.exponent * x ** (self.exponent - 1)

    def _on(self, space: Space) -> Pointwise:
        return Power(space, self.exponent)


@checked
def transmission(projector: LinearOperator, unattenuated: Any = 1.0) -> Operator:
    """Beer-Lambert: `I0 exp(-A x)`, what a detector counts behind an object.

    Parameters
    ----------
    projector
        A, from attenuation to line integrals.
    unattenuated
        I0, a positive number, or an array of the shape of the projections without negative entries.

    Raises
    ------
    ShapeError
        For a projector on a product.
    ValueError
        For counts that are negative or not finite.
    """
    space = projector.codomain
    if not isinstance(space, Space):
        raise ShapeError(f"transmission takes a projector on a plain codomain, got {space}")
    counts: Any = Exp(space) @ (-projector)
    if arrays.is_array(unattenuated):
        numeric.require_finite("unattenuated", unattenuated, least=0)
    else:
        unattenuated = numeric.positive("unattenuated", unattenuated)
    if arrays.is_array(unattenuated) and unattenuated.ndim:
        return Diagonal(unattenuated, space) @ counts  # type: ignore[no-any-return]
    return unattenuated * counts  # type: ignore[no-any-return]
