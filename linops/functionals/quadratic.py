"""The quadratic functional `weight / 2 * |x - centre|^2`.

With a volume as centre it is the proximal prior of plug-and-play methods, without one plain
Tikhonov. Quadratic *differences* are `QGGMRF(p=2, q=2)`.
"""

from __future__ import annotations

import math
from typing import Any

from linops import arrays
from linops.arrays import Array
from linops.elementary.identity import Identity
from linops.functionals.functional import Functional, Restricted
from linops.operator import LinearOperator
from linops.space import Space

__all__ = ["Quadratic"]


class Quadratic(Functional):
    """`weight / 2 * |x - centre|^2`.

    Parameters
    ----------
    space
        The domain.
    weight
        A finite number >= 0; `1 / sigma^2` for a Gaussian prior of deviation sigma.
    center
        Where the minimum lies; zero by default.

    Raises
    ------
    ValueError
        For another weight.
    ShapeError
        For a centre of another shape.
    """

    def __init__(self, space: Space, weight: float = 1.0, center: Array | None = None) -> None:
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight is {weight}; it is a finite number >= 0")
        super().__init__(space)
        self.weight = float(weight)
        self.center = None if center is None else arrays.snapshot(self._admit(center))
        self._residents: dict[Any, Array] = {}

    def prox(self, x: Array, step: float) -> Array:
        """`(x + step weight centre) / (1 + step weight)`."""
        x = self._admit(x)
        factor = step * self.weight
        if self.center is not None:
            x = x + factor * self._center(x)
        return x * (1.0 / (1.0 + factor))

    def surrogate(self, x: Array) -> LinearOperator:
        """`weight` times the identity."""
        operator: LinearOperator = self.weight * Identity(self.domain)
        return operator

    def restrict(self, index: Any) -> Restricted:
        return _RestrictedQuadratic(self, index)

    def _value(self, x: Array) -> Any:
        d = self._deviation(x)
        return 0.5 * self.weight * self.domain.inner(d, d)

    def _gradient(self, x: Array) -> Array:
        return self.weight * self._deviation(x)

    def _deviation(self, x: Array) -> Array:
        return x if self.center is None else x - self._center(x)

    def _center(self, like: Array) -> Array:
        return arrays.resident(self._residents, "center", self.center, like)


class _RestrictedQuadratic(Restricted):
    functional: Quadratic

    def terms(self, x: Array) -> tuple[Array, Array]:
        gather = self._scatter.H
        deviation = gather @ x
        if self.functional.center is not None:
            deviation = deviation - gather @ self.functional._center(x)
        xp = arrays.namespace(x)
        return (
            self.functional.weight * deviation,
            xp.ones_like(deviation) * self.functional.weight,
        )

    def quadratic(self, x: Array, d: Array) -> Array:
        return self.functional.weight * arrays.namespace(d).sum(d * d)
