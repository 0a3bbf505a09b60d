"""Sums of operators between the same spaces: one flat node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from linops.arrays import Array
from linops.cost import Cost, bytes_of
from linops.linear_operator import LinearOperator
from linops.precision import Precision
from linops.relations import positions, sum_rule
from linops.rule import Relation, Rule

__all__ = ["Sum", "added"]

_SPREADING = ("self_adjoint", "psd", "nonnegative", "diagonal")


class Sum(LinearOperator):
    """`terms[0] + terms[1] + ...`."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, terms: Sequence[LinearOperator]) -> None:
        super().__init__(terms[0].domain, terms[0].codomain, name="Sum")
        self.terms = tuple(terms)

    @cached_property
    def _functions(self) -> tuple[Callable[[Any], Any], ...]:
        return tuple(term._forward for term in self.terms)

    @cached_property
    def _adjoint_functions(self) -> tuple[Callable[[Any], Any], ...]:
        return tuple(term._backward for term in self.terms)

    def _apply(self, x: Any) -> Any:
        first, *rest = self._functions
        total = first(x)
        for function in rest:
            total = added(total, function(x))
        return total

    def _apply_adjoint(self, y: Any) -> Any:
        first, *rest = self._adjoint_functions
        total = first(y)
        for function in rest:
            total = added(total, function(y))
        return total

    def _make_adjoint(self) -> LinearOperator:
        if "self_adjoint" in self.tags:
            return self
        return Sum([term.H for term in self.terms])

    def _make_conjugate(self) -> LinearOperator:
        return Sum([term.conj() for term in self.terms])

    def _complexified(self) -> LinearOperator | None:
        if any("real_linear" in term.tags for term in self.terms):
            return None
        from linops.algebra.complexify import complexify

        return Sum([complexify(term) for term in self.terms])

    def _derive_rule(self) -> Rule:
        return sum_rule([term.rule for term in self.terms])

    def _derive_tags(self) -> frozenset[str]:
        every = frozenset.intersection(*(term.tags for term in self.terms))
        tags = {tag for tag in _SPREADING if tag in every}
        for tag in ("real_linear", "approximate_adjoint"):
            if any(tag in term.tags for term in self.terms):
                tags.add(tag)
        return frozenset(tags)

    def _derive_precision(self) -> Precision:
        return Precision.coarsest(term.precision for term in self.terms)

    def _diagonal(self) -> Array | None:
        found = [term._diagonal() for term in self.terms]
        if any(part is None for part in found):
            return None
        total = found[0]
        for part in found[1:]:
            total = added(total, part)
        return total

    def _columns(self, index: Array, axes: tuple[int, ...]) -> LinearOperator:
        return Sum([term.columns(index, axes) for term in self.terms])

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        ranges = [
            term._input_range(_name_in(self.rule, term.rule, axis, Relation.ALIGNED), start, stop)
            for term in self.terms
        ]
        return min(lo for lo, _ in ranges), max(hi for _, hi in ranges)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        from linops.algebra.blocks import weakened

        relation, halo = self.rule.relation(axis), self.rule.halo(axis)
        if self.rule.periodic(axis):
            return None
        blocks = []
        for term in self.terms:
            name = _name_in(self.rule, term.rule, axis, relation)
            block = weakened(term, name, start, stop, padded, relation, halo)
            if block is None:
                return None
            blocks.append(block)
        return Sum(blocks)

    def _cost(self) -> Cost:
        return Cost.added([term.cost() for term in self.terms], bytes_of(self.codomain))


def added(a: Any, b: Any) -> Any:
    """The sum of two elements, member by member for product spaces."""
    if isinstance(a, tuple):
        return tuple(added(x, y) for x, y in zip(a, b, strict=True))
    total = a + b
    # NumPy makes a scalar of two arrays without axes.
    return np.asarray(total) if isinstance(total, np.generic) else total


def _name_in(rule: Rule, term: Rule, axis: str, relation: Relation) -> str:
    side = "codomain" if relation is Relation.PRODUCED else "domain"
    m, p = positions(getattr(rule, side), axis)[0]
    name: str = getattr(term, side)[m][p].name
    return name
