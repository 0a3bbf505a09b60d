"""The quadratic functional `weight / 2 * |x - center|^2`.

With a volume as center it is the proximal prior of plug-and-play methods, without one plain
Tikhonov. Quadratic *differences* are `QGGMRF(p=2, q=2)`, weights of single entries are in
`LeastSquares`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from linops import arrays, numeric
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.identity import Identity
from linops.functionals.entries import Entries
from linops.functionals.functional import positive_number
from linops.linear_operator import LinearOperator
from linops.space import Space

__all__ = ["Proximity", "Quadratic"]


class _SquaredDistance(Entries):
    """`weight / 2 * |x - center|^2`, however weight and center are said."""

    _tables: ClassVar[Mapping[str, float]] = {"center": 0.0}
    weight: float
    center: Array | None

    @abstractmethod
    def __init__(self, space: Space, weight: float, center: Array | None) -> None:
        super().__init__(space)
        if space.is_complex:
            raise ValueError(
                f"{type(self).__name__} takes a real space, got {space}; see LeastSquares"
            )
        self.weight = weight
        if center is not None:
            numeric.require_finite(f"{self.name}: center", center)
        self.center = None if center is None else self._admit_table(center, "center")

    def surrogate(self, x: Array) -> LinearOperator:
        """`weight` times the identity."""
        operator: LinearOperator = self.weight * Identity(self.domain)
        return operator

    def _value(self, x: Array) -> Any:
        d = self._deviation(x)
        return 0.5 * self.weight * self.domain.inner(d, d)

    def _conjugate_value(self, p: Array) -> Any:
        """`|p|^2 / (2 weight) + <center, p>`."""
        square = 0.5 * self.domain.inner(p, p) / self.weight
        return square if self.center is None else square + self._sum(self._table("center", p) * p)

    def _gradient(self, x: Array) -> Array:
        return self.weight * self._deviation(x)

    def _cost(self) -> Cost:
        element, _, _, summed = self._sizes
        moved = self.center is not None
        return self._state_cost(2.0 + moved, moved * element + summed)

    def _gradient_cost(self) -> Cost:
        moved = self.center is not None
        held = (1 + (moved and not self._elides)) * self._sizes[0]
        return self._state_cost(1.0 + moved, held, True)

    def _hessian(self, x: Array) -> LinearOperator:
        return self.surrogate(x)

    def _prox(self, x: Array, step: Any) -> Array:
        """`(x + step weight center) / (1 + step weight)`."""
        factor = step * self.weight
        if self.center is not None:
            x = x + factor * self._table("center", x)
        return x * (1.0 / (1.0 + factor))

    def _curvature(self) -> Any:
        return self.weight

    def _deviation(self, x: Array) -> Array:
        return x if self.center is None else x - self._table("center", x)


class Quadratic(_SquaredDistance):
    """`weight / 2 * |x - center|^2`.

    Parameters
    ----------
    space
        The domain, real.
    weight
        A finite number >= 0; `1 / sigma^2` for a Gaussian prior of deviation sigma.
    center
        Where the minimum lies; zero by default.

    Raises
    ------
    ValueError
        For another weight, or a complex space.
    ShapeError
        For a center of another shape.
    """

    def __init__(self, space: Space, weight: Any = 1.0, center: Array | None = None) -> None:
        super().__init__(space, positive_number(weight, "weight", zero=True), center)


class Proximity(_SquaredDistance):
    """`|x - v|^2 / (2 sigma_prox^2)`: how far from v, the prior of a proximal map.

    Parameters
    ----------
    v
        A real array, of the shape of the domain.
    sigma_prox
        A deviation > 0, in units of an entry.
    space
        The domain; by default that of arrays like v.

    Raises
    ------
    ValueError
        For another deviation.
    ShapeError
        For a v that is no element of the space.
    """

    def __init__(self, v: Array, sigma_prox: float, space: Space | None = None) -> None:
        sigma = positive_number(sigma_prox, "sigma_prox")
        if space is None:
            v = arrays.asarray(v, "Proximity", "v")
            space = Space(tuple(v.shape), arrays.dtype_of(v))
        super().__init__(space, sigma**-2, v)
