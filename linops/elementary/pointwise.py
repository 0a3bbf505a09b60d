"""Nonlinear maps that act entry by entry, and the transmission of an attenuating object."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from linops import arrays, numeric
from linops.arguments import checked
from linops.arrays import Array
from linops.elementary.axes import window_rule
from linops.elementary.diagonal import Diagonal
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.space import Space

__all__ = ["Exp", "Log", "Pointwise", "Power", "transmission"]


class Pointwise(Operator):
    """A map `x_i -> f(x_i)`; its Jacobian is the diagonal of `f'(x_i)`."""

    batched = True
    blockwise = True
    _exact: ClassVar[bool] = True

    def __init__(self, space: Space) -> None:
        if not isinstance(space, Space):
            raise ShapeError(f"a pointwise map takes a plain space, got {space}")
        row = window_rule(space, ())
        super().__init__(space, space, row)

    @abstractmethod
    def _derivative(self, x: Array) -> Array:
        """`f'(x)`, entry by entry."""

    def _jacobian(self, x: Array) -> LinearOperator:
        assert isinstance(self.domain, Space)
        return Diagonal(self._derivative(x), self.domain)


class Exp(Pointwise):
    """`exp(x)`."""

    def _apply(self, x: Array) -> Array:
        return arrays.namespace(x).exp(x)

    def _derivative(self, x: Array) -> Array:
        return arrays.namespace(x).exp(x)


class Log(Pointwise):
    """The natural logarithm; NaN for negative entries, -inf at 0, as in the array library."""

    def _apply(self, x: Array) -> Array:
        return arrays.namespace(x).log(x)

    def _derivative(self, x: Array) -> Array:
        return 1.0 / x


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
