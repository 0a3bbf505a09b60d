"""A scalar times an operator; the scalar stays weak, under the adjoint too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.algebra.norm import known_norm
from linops.arrays import Array
from linops.cost import Cost
from linops.linear_operator import LinearOperator
from linops.precision import Precision
from linops.rule import Rule
from linops.space import Space

__all__ = ["Scaled", "as_scalar", "is_scalar"]


class Scaled(LinearOperator):
    """`scalar * base`. The scalar is a Python number, or a traced 0-d array."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, scalar: Any, base: LinearOperator) -> None:
        super().__init__(base.domain, base.codomain, name="Scaled")
        self.scalar = scalar
        self.base = base

    def _apply(self, x: Any) -> Any:
        return _times(self.scalar, self.base._forward(x), self.codomain)

    def _apply_adjoint(self, y: Any) -> Any:
        return _times(_conjugate(self.scalar), self.base._backward(y), self.domain)

    def _make_adjoint(self) -> LinearOperator:
        return self if "self_adjoint" in self.tags else Scaled(_conjugate(self.scalar), self.base.H)

    def _make_conjugate(self) -> LinearOperator:
        return Scaled(_conjugate(self.scalar), self.base.conj())

    def _complexified(self) -> LinearOperator | None:
        from linops.algebra.complexify import complexify

        if "real_linear" in self.tags:
            return None
        return Scaled(self.scalar, complexify(self.base))

    def _derive_rule(self) -> Rule:
        return self.base.rule

    def _derive_tags(self) -> frozenset[str]:
        tags = self.base.tags & {"diagonal", "real_linear", "approximate_adjoint"}
        traced = arrays.is_array(self.scalar)
        if not isinstance(self.scalar, complex) and not (
            traced and arrays.dtype_of(self.scalar).kind == "c"
        ):
            tags |= self.base.tags & {"self_adjoint"}
            if isinstance(self.scalar, (int, float)) and self.scalar >= 0:
                tags |= self.base.tags & {"psd", "nonnegative"}
        if isinstance(self.scalar, (int, float, complex)) and abs(self.scalar) == 1:
            tags |= self.base.tags & {"unitary"}
        return frozenset(tags)

    def _derive_precision(self) -> Precision:
        return self.base.precision

    def _diagonal(self) -> Array | None:
        found = self.base._diagonal()
        return None if found is None else _times(self.scalar, found, self.domain)

    def _gram_diagonal(self, weights: Array | None) -> Array | None:
        found = self.base._gram_diagonal(weights)
        return None if found is None else found * abs(self.scalar) ** 2

    def _known_norm(self) -> float | None:
        found = None if arrays.is_array(self.scalar) else known_norm(self.base)
        return None if found is None else abs(self.scalar) * found

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        return self.base._input_range(axis, start, stop)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator:
        block = self.base.block(axis, start, stop, padded)
        assert isinstance(block, LinearOperator)
        return Scaled(self.scalar, block)

    def _columns(self, index: Array, axes: tuple[int, ...]) -> LinearOperator:
        return Scaled(self.scalar, self.base.columns(index, axes))

    def _approximate_inverse(self) -> LinearOperator | None:
        inverse = self.base._approximate_inverse()
        if inverse is None or (isinstance(self.scalar, (int, float, complex)) and not self.scalar):
            return None
        return Scaled(1.0 / self.scalar, inverse)

    def _cost(self) -> Cost:
        cost = self.base.cost()
        return replace(cost, flops=cost.flops + self.codomain.size)


def is_scalar(value: Any) -> bool:
    """Whether `value` is a number: of Python, of NumPy, or an array of one entry without axes."""
    if isinstance(value, (bool, str)) or arrays.is_masked(value):
        return False
    if isinstance(value, (int, float, complex, np.number)):
        return True
    return arrays.is_array(value) and value.ndim == 0 and arrays.dtype_of(value).kind in "iufc"


def as_scalar(value: Any) -> Any:
    """A Python number, or the 0-d array itself where it is traced or requires a gradient."""
    if isinstance(value, (int, float, complex)) and not isinstance(value, np.generic):
        return value
    if arrays.is_traced(value) or arrays.trainable(value):
        return value
    return value.item()


def _times(scalar: Any, x: Any, space: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(
            _times(scalar, part, member) for part, member in zip(x, space.members, strict=True)
        )
    if arrays.is_array(scalar):
        scalar = arrays.resident({}, "scalar", scalar, x)
        dtype = space.dtype if isinstance(space, Space) else arrays.dtype_of(x)
        kind = arrays.dtype_of(scalar).kind
        if kind == "c" or np.dtype(dtype).kind != "c":
            scalar = arrays.cast(scalar, np.dtype(dtype))
        return scalar * x
    y = x * scalar
    # NumPy makes a scalar of an array without axes.
    return np.asarray(y) if isinstance(y, np.generic) else y


def _conjugate(scalar: Any) -> Any:
    if arrays.is_array(scalar):
        if arrays.dtype_of(scalar).kind != "c":
            return scalar
        return arrays.namespace(scalar).conj(scalar)
    return scalar.conjugate()
