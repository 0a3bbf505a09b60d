"""The Huber functional: quadratic for small entries, linear for large ones."""

from __future__ import annotations

from typing import Any

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.diagonal import Diagonal
from linops.functionals.entries import Entries
from linops.functionals.functional import positive_number
from linops.functionals.radial import RadialCurvature
from linops.linear_operator import LinearOperator
from linops.space import Space

__all__ = ["Huber"]


class Huber(Entries):
    """`sum h(|x|)`, `h(a) = a^2 / 2` up to delta and `delta (a - delta / 2)` beyond.

    Parameters
    ----------
    space
        The domain, real or complex.
    delta
        Where the parabola passes into the line, > 0.
    """

    def __init__(self, space: Space, delta: Any = 1.0) -> None:
        super().__init__(space)
        self.delta = positive_number(delta, "delta")

    def surrogate(self, x: Array) -> LinearOperator:
        """The diagonal of `delta / max(|x|, delta)`."""
        return Diagonal(self._slope(self._admit(x)), self._space)

    def _value(self, x: Array) -> Any:
        size = arrays.namespace(x).abs(x)
        capped = self._cap_size(size)
        return self._sum(capped * (size - 0.5 * capped))

    def _conjugate_value(self, p: Array) -> Any:
        """`|p|^2 / 2` where no modulus is above delta."""
        size = arrays.namespace(p).abs(p)
        inside = size <= (1 + self._tolerance) * self.delta
        return self._barrier(inside, 0.5 * self._sum(size * size))

    def _gradient(self, x: Array) -> Array:
        """`x`, where it is larger than delta shortened to that."""
        return x * self._slope(x)

    def _cost(self) -> Cost:
        _, real, _, summed = self._sizes
        return self._state_cost(7.0, 4 * real + summed)

    def _gradient_cost(self) -> Cost:
        _, real, mask, _ = self._sizes
        return self._state_cost(5.0, 3 * real + mask, True)

    def _hessian(self, x: Array) -> LinearOperator:
        """1 up to delta; beyond, 0 along x and for complex entries `delta / |x|` across it."""
        xp = arrays.namespace(x)
        size = xp.abs(x)
        inside = size <= self.delta
        if not self.domain.is_complex:
            return Diagonal(arrays.cast(inside, self.domain.dtype), self._space)
        across = self._slope(x)
        safe = xp.where(inside, xp.ones_like(size), size)
        length = xp.where(inside, xp.zeros_like(size), xp.sqrt(across) / safe)
        return RadialCurvature(self._space, across, x * length)

    def _prox(self, x: Array, step: Any) -> Array:
        """`x / (1 + step)` up to `delta (1 + step)`, beyond shortened by `step delta`."""
        xp = arrays.namespace(x)
        ratio = xp.abs(x) / self.delta
        far = ratio > 1.0 + step
        # Near 0 not as 1 - step / (1 + step): that cancels where steps are large.
        shortened = 1.0 - step / xp.where(far, ratio, xp.ones_like(ratio) + step)
        return x * xp.where(far, shortened, 1.0 / (xp.ones_like(ratio) + step))

    def _cap_size(self, size: Array) -> Array:
        xp = arrays.namespace(size)
        return xp.where(size < self.delta, size, xp.zeros_like(size) + self.delta)

    def _slope(self, x: Array) -> Array:
        xp = arrays.namespace(x)
        size = xp.abs(x)
        large = size > self.delta
        return xp.where(large, self.delta / xp.where(large, size, xp.ones_like(size)), 1.0)
