"""Adjoints and conjugates of leaves. Nodes push them inwards and never need these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from linops import arrays
from linops.algebra.norm import known_norm
from linops.arrays import Array
from linops.cost import Cost
from linops.linear_operator import LinearOperator
from linops.precision import Precision
from linops.rule import Relation, Rule

__all__ = ["Adjoint", "Conjugate", "conjugate"]


class Adjoint(LinearOperator):
    """The adjoint of a leaf: its two functions change places."""

    base: LinearOperator
    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, base: LinearOperator) -> None:
        super().__init__(base.codomain, base.domain, name=f"{base.name}.H")
        own = self.__dict__
        own["base"], own["_aliases"] = base, base._aliases

    @property
    def _forward(self) -> Callable[[Any], Any]:
        return self.base._backward

    @property
    def _backward(self) -> Callable[[Any], Any]:
        return self.base._forward

    def _apply(self, x: Any) -> Any:
        return self.base._backward(x)

    def _apply_adjoint(self, y: Any) -> Any:
        return self.base._forward(y)

    def _make_adjoint(self) -> LinearOperator:
        return self.base

    def _make_conjugate(self) -> LinearOperator:
        return self if self.base.conj() is self.base else Conjugate(self)

    def _complexified(self) -> LinearOperator | None:
        base = self.base._complexified()
        return None if base is None else base.H

    def _derive_rule(self) -> Rule:
        return self.base.rule.adjoint()

    def _derive_tags(self) -> frozenset[str]:
        return self.base.tags

    def _derive_precision(self) -> Precision:
        return self.base.precision

    def _diagonal(self) -> Array | None:
        found = self.base._diagonal()
        return None if found is None else conjugate(found)

    def _known_norm(self) -> float | None:
        return known_norm(self.base)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        rule = self.base.rule
        relation, halo = rule.relation(axis), rule.halo(axis)
        aligned = relation is Relation.ALIGNED
        ranges = self.base._input_range(axis, start, stop) if aligned else (start, stop)
        if halo == 0 and ranges == (start, stop):
            block = self.base.block(axis, start, stop, padded)
            assert isinstance(block, LinearOperator)
            return block.H
        if padded or not aligned or rule.periodic(axis) or ranges != (start - halo, stop + halo):
            return None
        # A gather with halo: the block that reaches h planes further, transposed, restricted.
        from linops.algebra.blocks import crop_outputs, extent

        n = extent(self.base, axis)  # faces are one more than cells
        lo, hi = max(start - halo, 0), min(stop + halo, n)
        wide = self.base.block(axis, lo, hi)
        assert isinstance(wide, LinearOperator)
        first = max(lo - halo, 0)
        return crop_outputs(wide.H, self.rule, axis, start - first, stop - first)

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        if self.base.rule.relation(axis) is not Relation.ALIGNED:
            return super()._input_range(axis, start, stop)
        halo = self.base.rule.halo(axis)
        shift = self.base._input_range(axis, 0, 0)[0] + halo
        return start - shift - halo, stop - shift + halo

    def _cost(self) -> Cost:
        return self.base.cost().reversed


class Conjugate(LinearOperator):
    """The operator with conjugated entries: `conj . A . conj`."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, base: LinearOperator) -> None:
        super().__init__(base.domain, base.codomain, name=f"conj({base.name})")
        self.base = base
        self._aliases = base._aliases

    def _apply(self, x: Any) -> Any:
        return conjugate(self.base._forward(conjugate(x)))

    def _apply_adjoint(self, y: Any) -> Any:
        return conjugate(self.base._backward(conjugate(y)))

    def _make_adjoint(self) -> LinearOperator:
        return self.base.H.conj()

    def _make_conjugate(self) -> LinearOperator:
        return self.base

    def _derive_rule(self) -> Rule:
        return self.base.rule

    def _derive_tags(self) -> frozenset[str]:
        return self.base.tags

    def _derive_precision(self) -> Precision:
        return self.base.precision

    def _diagonal(self) -> Array | None:
        found = self.base._diagonal()
        return None if found is None else conjugate(found)

    def _gram_diagonal(self, weights: Array | None) -> Array | None:
        return self.base._gram_diagonal(weights)

    def _known_norm(self) -> float | None:
        return known_norm(self.base)

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        return self.base._input_range(axis, start, stop)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator:
        block = self.base.block(axis, start, stop, padded)
        assert isinstance(block, LinearOperator)
        return block.conj()

    def _columns(self, index: Array, axes: tuple[int, ...]) -> LinearOperator:
        return self.base.columns(index, axes).conj()

    def _cost(self) -> Cost:
        return self.base.cost()


def conjugate(x: Any) -> Any:
    """The complex conjugate in the array's own namespace; real arrays as they are."""
    if isinstance(x, tuple):
        return tuple(conjugate(part) for part in x)
    if arrays.dtype_of(x).kind != "c":
        return x
    return arrays.namespace(x).conj(x)
