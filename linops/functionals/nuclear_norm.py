"""The nuclear norm: the prior of matrices of low rank, such as a frame a column."""

from __future__ import annotations

import math
from typing import Any

from linops import arrays
from linops.arrays import Array
from linops.elementary.axes import axis_numbers
from linops.errors import ShapeError
from linops.functionals.entries import Entries
from linops.precision import real_of
from linops.reductions import dot
from linops.space import Space

__all__ = ["NuclearNorm"]


class NuclearNorm(Entries):
    """The sum of the singular values of the matrix that two axes span; over the others, a sum.

    Parameters
    ----------
    space
        The domain, real or complex, of two axes or more.
    axes
        The two axes, by name or number; the last two by default. For several axes as one (the
        pixels of a frame), compose with a `Reshape`.

    Notes
    -----
    The gradient is `U V.H` over the singular values that are not 0. There is no surrogate. The
    decomposition is that of the array's own library.
    """

    def __init__(self, space: Space, axes: tuple[str | int, str | int] | None = None) -> None:
        if space.ndim < 2:
            raise ShapeError(f"NuclearNorm takes a space of two axes or more, got {space}")
        numbers = axis_numbers(space, (-2, -1) if axes is None else axes, "NuclearNorm")
        if len(numbers) != 2:
            raise ShapeError(f"NuclearNorm takes two axes, got {axes!r}")
        super().__init__(space, whole=numbers)
        self.axes = (numbers[0] - space.ndim, numbers[1] - space.ndim)

    def _value(self, x: Array) -> Any:
        _, values, _ = self._decompose(x)
        return dot(values, arrays.namespace(x).ones_like(values), self._space.ndim - 1)

    def _conjugate_value(self, p: Array) -> Any:
        """0 where no singular value is above 1, to the rounding of decompositions."""
        slack = self._tolerance * sum(self._space.shape[axis] for axis in self.axes)
        return self._barrier(self._decompose(p)[1][..., None] <= 1 + slack)

    def _gradient(self, x: Array) -> Array:
        left, values, right = self._decompose(x)
        xp = arrays.namespace(x)
        top = xp.max(values, axis=-1, keepdims=True) if 0 not in values.shape else values
        small = values <= self._tolerance * top
        ones = xp.where(small, 0.0 * values, xp.ones_like(values) + 0.0 * values)
        return self._compose(left, ones, right)

    def _prox(self, x: Array, step: Any) -> Array:
        """Singular values shrink by `step`, to 0 at least."""
        left, values, right = self._decompose(x)
        less = values - step
        less = arrays.namespace(x).where(less < 0, 0.0 * less, less)
        return self._compose(left, less, right)

    def _decompose(self, x: Array) -> tuple[Array, Array, Array]:
        xp = arrays.namespace(x)
        x = xp.moveaxis(x, self.axes, (-2, -1))
        finite = xp.isfinite(x)
        # LAPACK refuses what is not finite; here it becomes NaN, a matrix at a time.
        left, values, right = xp.linalg.svd(
            xp.where(finite, x, xp.zeros_like(x)), full_matrices=False
        )
        real = real_of(self.domain.dtype)
        lost = arrays.cast(xp.logical_not(xp.all(finite, axis=(-2, -1), keepdims=True)), real)
        return left, values + xp.where(lost[..., 0] > 0, math.nan, 0.0 * lost[..., 0]), right

    def _compose(self, left: Array, values: Array, right: Array) -> Array:
        xp = arrays.namespace(left)
        found = xp.matmul(left * arrays.cast(values, arrays.dtype_of(left))[..., None, :], right)
        return xp.moveaxis(found, (-2, -1), self.axes)
