"""A scalar times an operator; the scalar stays weak, under the adjoint too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.algebra.complexify import complexify
from linops.algebra.node import Node
from linops.algebra.norm import known_norm
from linops.arrays import Array
from linops.cost import Cost, bytes_of
from linops.errors import DTypeError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.precision import Precision
from linops.rule import Rule
from linops.space import Space

__all__ = ["Scaled", "ScaledLinear", "ScaledNonlinear", "as_scalar", "is_complex", "is_scalar"]


class Scaled(Node, family=True):
    """`scalar * base`. The scalar is a Python number, or a traced 0-d array."""

    _aliases = False
    advice: ClassVar[str] = (
        "use '@' to apply or compose, and Diagonal(array) @ A for a product with an array"
    )

    def __init__(self, scalar: Any, base: Any) -> None:
        Operator.__init__(self, base.domain, base.codomain, name="Scaled")
        self.scalar = scalar
        self.base = base

    @classmethod
    def admitted(cls, scalar: Any, base: Any) -> tuple[Any, Any]:
        """What `scalar` and `base` are in the node; raises where it does not take them."""
        return as_scalar(scalar), base

    def _on(self, base: Any) -> Any:
        """The same multiple of another operator."""
        return self._kinds[self._kind](self.scalar, base)

    def _apply(self, x: Any) -> Any:
        return _times(self.scalar, self.base._forward(x), self.codomain)

    def _derive_rule(self) -> Rule:
        rule: Rule = self.base.rule
        return rule

    def _derive_precision(self) -> Precision:
        precision: Precision = self.base.precision
        return precision

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        planes: tuple[int, int] = self.base._input_range(axis, start, stop)
        return planes

    def _member_range(self, member: int, axis: str, start: int, stop: int) -> tuple[int, int]:
        planes: tuple[int, int] = self.base._member_range(member, axis, start, stop)
        return planes

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Any:
        return self._on(self.base.block(axis, start, stop, padded))

    def _cost(self) -> Cost:
        cost: Cost = self.base.cost()
        made = bytes_of(self.codomain)
        flops = cost.flops + self.codomain.size
        return replace(cost, flops=flops, workspace=max(cost.workspace, made))


class ScaledNonlinear(Scaled, final=True):
    """A multiple of an operator that is not linear."""

    @classmethod
    def admitted(cls, scalar: Any, base: Any) -> tuple[Any, Any]:
        value = as_scalar(scalar)
        if isinstance(value, complex) and not base.codomain.is_complex:
            raise DTypeError(
                f"{base.name} gives real values; a complex multiple of it would not: compose it "
                "with a complex Diagonal instead"
            )
        return value, base

    def _jacobian(self, x: Any) -> LinearOperator:
        jacobian: LinearOperator = self.base._jacobian(x) * self.scalar
        return jacobian


class ScaledLinear(LinearOperator, Scaled, final=True):
    """A multiple of a linear operator; the adjoint's scalar is weak too."""

    base: LinearOperator

    @classmethod
    def admitted(cls, scalar: Any, base: Any) -> tuple[Any, Any]:
        value = as_scalar(scalar)
        return value, complexify(base) if is_complex(value) else base

    def _apply_adjoint(self, y: Any) -> Any:
        return _times(_conjugate(self.scalar), self.base._backward(y), self.domain)

    def _make_adjoint(self) -> LinearOperator:
        if "self_adjoint" in self.tags:
            return self
        return ScaledLinear(_conjugate(self.scalar), self.base.H)

    def _make_conjugate(self) -> LinearOperator:
        return ScaledLinear(_conjugate(self.scalar), self.base.conj())

    def _complexified(self) -> LinearOperator | None:
        return None if "real_linear" in self.tags else self._on(complexify(self.base))

    def _derive_tags(self) -> frozenset[str]:
        tags = self.base.tags & {"diagonal", "real_linear", "approximate_adjoint"}
        if not is_complex(self.scalar):
            tags |= self.base.tags & {"self_adjoint"}
            if isinstance(self.scalar, (int, float)) and self.scalar >= 0:
                tags |= self.base.tags & {"psd", "nonnegative"}
        if isinstance(self.scalar, (int, float, complex)) and abs(self.scalar) == 1:
            tags |= self.base.tags & {"unitary"}
        return frozenset(tags)

    def _diagonal(self) -> Array | None:
        found = self.base._diagonal()
        return None if found is None else _times(self.scalar, found, self.domain)

    def _gram_diagonal(self, weights: Array | None) -> Array | None:
        found = self.base._gram_diagonal(weights)
        return None if found is None else found * abs(self.scalar) ** 2

    def _known_norm(self) -> float | None:
        found = None if arrays.is_array(self.scalar) else known_norm(self.base)
        return None if found is None else abs(self.scalar) * found

    def _columns(self, index: Array, axes: tuple[int, ...]) -> LinearOperator:
        return self._on(self.base.columns(index, axes))  # type: ignore[no-any-return]

    def _approximate_inverse(self) -> LinearOperator | None:
        inverse = self.base._approximate_inverse()
        if inverse is None or (isinstance(self.scalar, (int, float, complex)) and not self.scalar):
            return None
        return ScaledLinear(1.0 / self.scalar, inverse)


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


def is_complex(scalar: Any) -> bool:
    """Whether a scalar is complex by its type."""
    if arrays.is_array(scalar):
        return arrays.dtype_of(scalar).kind == "c"
    return isinstance(scalar, (complex, np.complexfloating))


def _conjugate(scalar: Any) -> Any:
    return arrays.conj(scalar) if arrays.is_array(scalar) else scalar.conjugate()
