"""Weighted least squares, the data term of Gaussian noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from linops import arrays, numeric
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.diagonal import Diagonal
from linops.elementary.identity import Identity
from linops.functionals.entries import Entries
from linops.linear_operator import LinearOperator
from linops.space import Space

__all__ = ["LeastSquares"]


class LeastSquares(Entries):
    """`sum w |x - b|^2 / 2`; with a projector inside, `LeastSquares(...) @ A`, a data term.

    Parameters
    ----------
    space
        The domain, real or complex.
    target
        b, an element of the domain; zero by default.
    weights
        w >= 0, one number or an array of the domain's shape, such as inverse variances; 1 by
        default.

    Raises
    ------
    ShapeError
        For a target or weights of another shape.
    ValueError
        For weights that are negative or not finite.
    """

    _tables: ClassVar[Mapping[str, float]] = {"target": 0.0, "weights": 0.0}

    def __init__(self, space: Space, target: Array | None = None, weights: Any = None) -> None:
        super().__init__(space)
        self.target = None if target is None else self._admit_table(target, "target", space.dtype)
        if target is not None:
            numeric.require_finite(f"{self.name}: target", target)
        self.weights = None if weights is None else self._admit_weights(weights)

    def surrogate(self, x: Array) -> LinearOperator:
        """The diagonal of the weights, wherever x is."""
        self._admit(x)
        if self.weights is None:
            return Identity(self.domain)
        if not arrays.is_array(self.weights):
            multiple: LinearOperator = self.weights * Identity(self.domain)
            return multiple
        return Diagonal(self.weights, self._space)

    def _value(self, x: Array) -> Any:
        d = self._residual(x)
        value = self.domain.inner(d, self._weighted(d))
        if self.domain.is_complex:
            value = value.real if isinstance(value, complex) else _real(value)
        return 0.5 * value

    def _gradient(self, x: Array) -> Array:
        return self._weighted(self._residual(x))

    def _cost(self) -> Cost:
        element, _, _, summed = self._sizes
        arrays_made = (self.target is not None) + (self.weights is not None)
        return self._state_cost(2.0 + arrays_made, arrays_made * element + summed)

    def _gradient_cost(self) -> Cost:
        arrays_made = (self.target is not None) + (self.weights is not None)
        return self._state_cost(max(1, arrays_made), arrays_made * self._sizes[0], True)

    def _hessian(self, x: Array) -> LinearOperator:
        return self.surrogate(x)

    def _prox(self, x: Array, step: Any) -> Array:
        """`(x + step w b) / (1 + step w)`."""
        w = 1.0 if self.weights is None else self._table("weights", x)
        if self.target is not None:
            x = x + step * w * self._table("target", x)
        return x / (1.0 + step * w)

    def _curvature(self) -> Any:
        if self.weights is None:
            return 1.0
        return None if arrays.is_array(self.weights) and self.weights.ndim else self.weights

    def _residual(self, x: Array) -> Array:
        return x if self.target is None else x - self._table("target", x)

    def _weighted(self, d: Array) -> Array:
        return d if self.weights is None else self._table("weights", d) * d


def _real(value: Any) -> Any:
    return np.real(value) if arrays.is_numpy(value) else arrays.namespace(value).real(value)
