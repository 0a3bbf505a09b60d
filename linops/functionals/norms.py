"""Norms: the sum of moduli, the Euclidean norm, and sums of Euclidean norms of groups.

At a kink the gradient is the subgradient of smallest norm, and there is no surrogate: where one
is needed everywhere, `Huber` and `TotalVariation` are smooth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.axes import axis_number
from linops.elementary.diagonal import Diagonal
from linops.elementary.identity import Identity, Zero
from linops.functionals.entries import Entries
from linops.functionals.functional import is_recorded
from linops.functionals.linear_form import LinearForm
from linops.functionals.radial import RadialCurvature
from linops.linear_operator import LinearOperator
from linops.precision import real_of
from linops.space import Space

__all__ = ["L1", "L2", "GroupL1"]


class L1(Entries):
    """`sum w |x|`, for complex entries of their moduli.

    Parameters
    ----------
    space
        The domain, real or complex.
    weights
        w >= 0, one number or an array of the domain's shape.
    """

    _tables: ClassVar[Mapping[str, float]] = {"weights": 0.0}

    def __init__(self, space: Space, weights: Any = 1.0) -> None:
        super().__init__(space)
        self.weights = self._admit_weights(weights)

    def surrogate(self, x: Array) -> LinearOperator:
        """The diagonal of `w / |x|`, where no entry is 0."""
        x = self._admit(x)
        modulus = arrays.namespace(x).abs(x)
        _refuse_kinks(self.name, modulus)
        return Diagonal(self._table("weights", x) / modulus, self._space)

    def _value(self, x: Array) -> Any:
        return self._sum(self._table("weights", x) * _modulus(x))

    def _conjugate_value(self, p: Array) -> Any:
        """0 where no modulus is above w."""
        return self._barrier(_modulus(p) <= (1 + self._tolerance) * self._table("weights", p))

    def _gradient(self, x: Array) -> Array:
        """`w x / |x|`, 0 where x is 0."""
        return self._table("weights", x) * _over(x, _nonzero(arrays.namespace(x).abs(x)))

    def _cost(self) -> Cost:
        _, real, mask, summed = self._sizes
        held = 5 * real + mask if self.domain.is_complex else 2 * real + summed
        return self._state_cost(8.0 if self.domain.is_complex else 3.0, held)

    def _gradient_cost(self) -> Cost:
        element, real, mask, _ = self._sizes
        scaled = 0.0 if arrays.is_array(self.weights) or self._elides else 2 * element
        return self._state_cost(4.0, max(3 * real + mask, scaled), True)

    def _hessian(self, x: Array) -> LinearOperator:
        """Zero for real entries; for complex ones `w / |x|` across x, where none is 0."""
        if not self.domain.is_complex:
            return Zero(self.domain, self.domain)
        modulus = _modulus(x)
        _refuse_kinks(self.name, modulus)
        across = self._table("weights", x) / modulus
        root = arrays.namespace(x).sqrt(across)
        return RadialCurvature(self._space, across, root * (x / modulus))

    def _prox(self, x: Array, step: Any) -> Array:
        """Soft thresholding: moduli shrink by `step w`, to 0 at least."""
        return _shrunk(x, arrays.namespace(x).abs(x), step * self._table("weights", x))


class GroupL1(Entries):
    """Sum over positions of the Euclidean norm along one axis.

    Of the components of a gradient it is the isotropic total variation:
    `GroupL1(G.codomain) @ G` for `G = Gradient(space)`.

    Parameters
    ----------
    space
        The domain, real or complex.
    axis
        The axis of the groups, by name or number; by default the one named `"component"`, the
        first where there is none.
    """

    def __init__(self, space: Space, axis: str | int | None = None) -> None:
        if axis is None:
            axis = "component" if "component" in (space.axes or ()) else 0
        number = axis_number(space, axis)
        super().__init__(space, whole=(number,))
        self.axis = number - space.ndim

    def surrogate(self, x: Array) -> LinearOperator:
        """The diagonal of one over the norm of each entry's group, where none is 0."""
        x = self._admit(x)
        lengths = self._lengths(x)
        _refuse_kinks(self.name, lengths)
        inverse = arrays.namespace(x).broadcast_to(1.0 / lengths, x.shape)
        return Diagonal(inverse, self._space)

    def _value(self, x: Array) -> Any:
        return self._sum(self._lengths(x))

    def _conjugate_value(self, p: Array) -> Any:
        """0 where no group is longer than 1."""
        return self._barrier(self._lengths(p) <= 1 + self._tolerance)

    def _gradient(self, x: Array) -> Array:
        """Every group over its norm, 0 where that is 0."""
        return _over(x, _nonzero(self._lengths(x)))

    def _cost(self) -> Cost:
        return self._state_cost(3.0, self._held()[0])

    def _gradient_cost(self) -> Cost:
        held, lengths = self._held()
        return self._state_cost(5.0, max(held, self._sizes[0] + lengths), True)

    def _held(self) -> tuple[float, float]:
        """Bytes at most on the way to the lengths of groups, and of these."""
        element, real, mask, _ = self._sizes
        groups = max(self._space.shape[self.axis], 1)
        scaled = element + (2 * real if self.domain.is_complex else real)
        return max(scaled + 2 * real / groups, (4 * real + mask) / groups), real / groups

    def _hessian(self, x: Array) -> LinearOperator:
        """One over the norm of each group, across it, where none is 0."""
        lengths = self._lengths(x)
        _refuse_kinks(self.name, lengths)
        across = arrays.namespace(x).broadcast_to(1.0 / lengths, x.shape)
        direction = x * lengths**-1.5
        return RadialCurvature(self._space, across, direction, self.axis)

    def _prox(self, x: Array, step: Any) -> Array:
        """The norm of every group shrinks by `step`, to 0 at least."""
        return _shrunk(x, self._lengths(x), step)

    def _lengths(self, x: Array) -> Array:
        top = _largest(x, (self.axis,))
        xp = arrays.namespace(x)
        return top * _root(xp.sum(_square(x / top), axis=self.axis, keepdims=True))


class L2(Entries):
    """The Euclidean norm `|x|`, not squared (that is `LeastSquares`).

    Parameters
    ----------
    space
        The domain, real or complex.
    """

    def __init__(self, space: Space) -> None:
        super().__init__(space, whole=range(space.ndim))

    def surrogate(self, x: Array) -> LinearOperator:
        """`I / |x|` away from 0."""
        x = self._admit(x)
        length = self._length(x)
        _refuse_kinks(self.name, length)
        multiple: LinearOperator = (1.0 / length) * Identity(self.domain)
        return multiple

    def _value(self, x: Array) -> Any:
        ndim = self._space.ndim
        top = _largest(x, tuple(range(-ndim, 0)))
        square = self._sum(_square(x / top))
        xp = arrays.namespace(top)
        top = xp.reshape(top, tuple(top.shape)[: top.ndim - ndim])
        if isinstance(square, float):
            return square**0.5 * float(top)
        return _root(square) * arrays.cast(top, arrays.dtype_of(square))

    def _conjugate_value(self, p: Array) -> Any:
        """0 in the unit ball."""
        length = self._length(p) + 0 * arrays.namespace(p).abs(p)
        return self._barrier(length <= 1 + self._tolerance)

    def _gradient(self, x: Array) -> Array:
        """`x / |x|`, 0 at 0."""
        length = self._length(x)
        if isinstance(length, float):
            return _over(x, length or 1.0)
        return _over(x, _nonzero(length))

    def _cost(self) -> Cost:
        _, real, _, summed = self._sizes
        return self._state_cost(2.0, self._held(real) + summed)

    def _gradient_cost(self) -> Cost:
        _, real, _, summed = self._sizes
        return self._state_cost(3.0, self._held(real) + summed, True)

    def _held(self, real: float) -> float:
        """Bytes of the scaled entries and their squares."""
        return (4 if self.domain.is_complex else 2) * real

    def _hessian(self, x: Array) -> LinearOperator:
        """`(I - u u.H) / |x|` with the direction `u = x / |x|`."""
        length = self._length(x)
        _refuse_kinks(self.name, length)
        row = LinearForm(self.domain, x / length, self.rule)
        inner: LinearOperator = Identity(self.domain) - row.H @ row
        multiple: LinearOperator = (1.0 / length) * inner
        return multiple

    def _prox(self, x: Array, step: Any) -> Array:
        """x shortened by `step`, to 0 at least."""
        length = self._length(x)
        if isinstance(length, float) and isinstance(step, float):
            return x * (1.0 - step / max(length, step))
        if isinstance(length, float):
            length = arrays.namespace(step).zeros_like(step) + length
        return _shrunk(x, length, step)

    def _length(self, x: Array) -> Any:
        """A Python float, or an array that broadcasts against x."""
        value = self._value(x)
        if not arrays.is_array(value):
            return value
        xp = arrays.namespace(value)
        shaped = xp.reshape(value, (*value.shape, *(1,) * self._space.ndim))
        return arrays.cast(shaped, real_of(self.domain.dtype))


def _square(x: Array) -> Array:
    if arrays.dtype_of(x).kind != "c":
        return x * x
    xp = arrays.namespace(x)
    real, imaginary = xp.real(x), xp.imag(x)
    return real * real + imaginary * imaginary


def _modulus(x: Array) -> Array:
    """|x|, differentiable by JAX and torch at 0 for complex entries too."""
    if arrays.dtype_of(x).kind != "c":
        return arrays.namespace(x).abs(x)
    top = _largest(x, ())
    return top * _root(_square(x / top))


def _largest(x: Array, axes: tuple[int, ...]) -> Array:
    """The largest component along axes, which stay with length 1; 1 where all are 0.

    Over it squares neither overflow nor vanish, as in LAPACK's `nrm2`. Lengths do not depend on
    it, so it carries no derivative.
    """
    x = arrays.constant(x)
    xp = arrays.namespace(x)
    size = xp.abs(x)
    if arrays.dtype_of(x).kind == "c":
        real, imaginary = xp.abs(xp.real(x)), xp.abs(xp.imag(x))
        size = xp.where(real > imaginary, real, imaginary)
    if axes:
        reduce = xp.sum if 0 in tuple(size.shape) else xp.max
        size = reduce(size, axis=axes, keepdims=True)
    good = (size > 0) & xp.isfinite(size)
    return xp.where(good, size, xp.ones_like(size))


def _root(square: Array) -> Array:
    xp = arrays.namespace(square)
    return xp.where(square != 0, xp.sqrt(_nonzero(square)), xp.zeros_like(square))


def _nonzero(size: Array) -> Array:
    """`size` with ones in the place of zeros; NaN stays."""
    xp = arrays.namespace(size)
    return xp.where(size == 0, xp.ones_like(size), size)


def _over(x: Array, size: Any) -> Array:
    """`x / size`; of complex NaN, NumPy would warn besides."""
    with np.errstate(invalid="ignore"):
        return x / size


def _shrunk(x: Array, size: Array, step: Any) -> Array:
    xp = arrays.namespace(x)
    factor = 1.0 - step / _nonzero(size)
    return x * xp.where(size <= step, xp.zeros_like(factor), factor)


def _refuse_kinks(name: str, size: Any) -> None:
    if arrays.is_array(size):
        if is_recorded(size):
            return
        smooth = bool(arrays.namespace(size).all(size > 0))
    else:
        smooth = size > 0
    if not smooth:
        raise ValueError(
            f"{name} has no curvature at a kink: an entry (or group) is 0 there and no quadratic "
            "majorizes it; use a smooth functional, such as Huber or TotalVariation"
        )
