"""The complex extension of a real operator: real and imaginary part alike, exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.errors import DTypeError
from linops.linear_operator import LinearOperator
from linops.precision import Precision
from linops.rule import Rule

__all__ = ["ComplexExtension", "complexify"]


class ComplexExtension(LinearOperator):
    """A real operator on complex spaces: `A(re) + 1j * A(im)`."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, base: LinearOperator) -> None:
        super().__init__(
            base.domain.complexify(), base.codomain.complexify(), name=f"complex({base.name})"
        )
        self.base = base

    def _apply(self, x: Any) -> Any:
        return _by_parts(self.base._forward, x)

    def _apply_adjoint(self, y: Any) -> Any:
        return _by_parts(self.base._backward, y)

    def _make_adjoint(self) -> LinearOperator:
        return self if "self_adjoint" in self.tags else ComplexExtension(self.base.H)

    def _make_conjugate(self) -> LinearOperator:
        return self

    def _derive_rule(self) -> Rule:
        return self.base.rule

    def _derive_tags(self) -> frozenset[str]:
        return self.base.tags

    def _derive_precision(self) -> Precision:
        return self.base.precision

    def _diagonal(self) -> Array | None:
        found = self.base._diagonal()
        if found is None or isinstance(found, tuple):
            return None
        return arrays.cast(found, self.domain.dtype)

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        return self.base._input_range(axis, start, stop)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator:
        block = self.base.block(axis, start, stop, padded)
        assert isinstance(block, LinearOperator)
        return complexify(block)

    def _columns(self, index: Array, axes: tuple[int, ...]) -> LinearOperator:
        return complexify(self.base.columns(index, axes))

    def _cost(self) -> Cost:
        cost = self.base.cost()
        return replace(cost, flops=2 * cost.flops, read=2 * cost.read, written=2 * cost.written)


def complexify(operator: LinearOperator) -> LinearOperator:
    """The operator on complex spaces; itself where they are complex already.

    Raises
    ------
    DTypeError
        For an operator between a real and a complex space: its complex extension would have
        another adjoint.
    """
    if operator.domain.is_complex and operator.codomain.is_complex:
        return operator
    if "real_linear" in operator.tags:
        raise DTypeError(
            f"{operator.name} maps {operator.domain} to {operator.codomain} and is linear over the "
            "reals only; it has no complex extension, so complex values or scalars cannot enter it"
        )
    own = operator._complexified()
    return ComplexExtension(operator) if own is None else own


def _by_parts(function: Any, x: Any) -> Any:
    parts = x if isinstance(x, tuple) else (x,)
    xp = arrays.namespace(*parts)
    real = tuple(xp.real(part) for part in parts)
    imaginary = tuple(xp.imag(part) for part in parts)
    if not isinstance(x, tuple):
        return arrays.combine(function(real[0]), function(imaginary[0]))
    y_real, y_imaginary = function(real), function(imaginary)
    if isinstance(y_real, tuple):
        return tuple(arrays.combine(r, i) for r, i in zip(y_real, y_imaginary, strict=True))
    return arrays.combine(y_real, y_imaginary)
