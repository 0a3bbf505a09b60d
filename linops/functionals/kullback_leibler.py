"""The Kullback-Leibler divergence: the negative log-likelihood of counts, up to a constant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from linops import arrays, numeric
from linops.arrays import Array
from linops.elementary.diagonal import Diagonal
from linops.functionals.entries import Entries
from linops.linear_operator import LinearOperator
from linops.space import Space

__all__ = ["KullbackLeibler"]


class KullbackLeibler(Entries):
    """`sum z - y + y log(y / z)`, `z = x + background`; infinite where z < 0, or 0 and y is not.

    Parameters
    ----------
    space
        The domain, real.
    counts
        y >= 0: one number or an array of the domain's shape.
    background
        Expected counts that do not depend on x, >= 0, likewise.

    Raises
    ------
    ValueError
        For a complex space, or negative or non-finite counts or background.

    Notes
    -----
    There is no surrogate: the curvature `y / z^2` grows without bound towards z = 0.
    """

    _tables: ClassVar[Mapping[str, float]] = {"background": 0.0, "counts": 0.0}
    _constants: ClassVar[tuple[str, ...]] = ("background", "counts")

    def __init__(self, space: Space, counts: Any, background: Any = 0.0) -> None:
        super().__init__(space)
        if space.is_complex:
            raise ValueError(f"{self.name} takes a real space, got {space}: counts are real")
        self.background = self._admit_counts(background, "background")
        self.counts = self._admit_counts(counts, "counts")

    def _value(self, x: Array) -> Any:
        z, y = self._expected(x), self._observed(x)
        xp = arrays.namespace(x)
        one = xp.ones_like(z)
        inside = (z > 0) | ((z == 0) & (y == 0))
        ratio = xp.where(inside & (y > 0), y, one) / xp.where(inside & (y > 0), z, one)
        terms = xp.where(inside, z - y + y * xp.log(ratio), xp.zeros_like(z))
        return self._barrier(inside, self._sum(terms))

    def _gradient(self, x: Array) -> Array:
        """`1 - y / z`, 1 where y is 0."""
        z, y = self._expected(x), self._observed(x)
        xp = arrays.namespace(x)
        return 1.0 - y / xp.where(y == 0, xp.ones_like(z), z) + 0 * z

    def _hessian(self, x: Array) -> LinearOperator:
        """The diagonal of `y / z^2`, 0 where y is 0."""
        z, y = self._expected(x), self._observed(x)
        xp = arrays.namespace(x)
        safe = xp.where(y == 0, xp.ones_like(z), z)
        return Diagonal(y / safe / safe, self._space)

    def _prox(self, x: Array, step: Any) -> Array:
        """The root z >= 0 of `z^2 - q z = step y`, `q = x + background - step`."""
        q, y = self._expected(x) - step, self._observed(x)
        xp = arrays.namespace(x)
        root = xp.sqrt(q * q + 4.0 * step * y)
        # The root's other form where q < 0: there the first one cancels.
        below = xp.where(q < 0, root - q, xp.ones_like(q))
        z = xp.where(q < 0, 2.0 * step * y / below, (q + root) / 2.0)
        return z - self._table("background", x)

    def _conjugate_value(self, p: Array) -> Any:
        """`sum -background p - y log(1 - p)` up to p = 1, which only y = 0 reaches."""
        xp = arrays.namespace(p)
        y, left = self._observed(p), 1.0 - p
        inside = (left > 0) | ((left >= -self._tolerance) & (y == 0))
        log = xp.log(xp.where(left > 0, left, xp.ones_like(left)))
        terms = xp.where(inside, -self._table("background", p) * p - y * log, xp.zeros_like(p))
        return self._barrier(inside, self._sum(terms))

    def _expected(self, x: Array) -> Array:
        return x + self._table("background", x)

    def _observed(self, x: Array) -> Array:
        return arrays.namespace(x).zeros_like(x) + self._table("counts", x)

    def _admit_counts(self, value: Any, name: str) -> Any:
        table = self._admit_table(value, name)
        if not arrays.is_array(table) or not (arrays.is_traced(table) or arrays.trainable(table)):
            numeric.require_finite(f"{self.name}: {name}", np.asarray(arrays.to_numpy(table)))
            if np.any(np.asarray(arrays.to_numpy(table)) < 0):
                raise ValueError(f"{self.name}: {name} has negative entries; counts are >= 0")
        return table
