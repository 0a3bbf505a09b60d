"""Sums of operators between the same spaces: one flat node."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import add
from typing import Any

import numpy as np

from linops.algebra.blocks import weakened
from linops.algebra.node import LinearNode, Node
from linops.arrays import Array
from linops.cost import Cost, bytes_of
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.relations import positions, sum_rule
from linops.rule import Relation, Rule

__all__ = ["LinearSum", "NonlinearSum", "Sum", "added"]


class Sum(Node, family=True):
    """`terms[0](x) + terms[1](x) + ...`."""

    def __init__(self, terms: Sequence[Operator]) -> None:
        Operator.__init__(self, terms[0].domain, terms[0].codomain, name="Sum")
        self.terms = tuple(terms)

    def _apply(self, x: Any) -> Any:
        return _total(self._functions, x)

    def _derive_rule(self) -> Rule:
        return self._legal(sum_rule([term.rule for term in self.terms]))

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        ranges = [
            term._input_range(self._name_in(term, axis, Relation.ALIGNED), start, stop)
            for term in self.terms
        ]
        return min(lo for lo, _ in ranges), max(hi for _, hi in ranges)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        relation, halo = self.rule.relation(axis), self.rule.halo(axis)
        if self.rule.periodic(axis):
            return None
        blocks = []
        for term in self.terms:
            name = self._name_in(term, axis, relation)
            block = weakened(term, name, start, stop, padded, relation, halo)
            if block is None:
                return None
            blocks.append(block)
        made: Operator = Sum.of(blocks)
        return made

    def _name_in(self, term: Operator, axis: str, relation: Relation) -> str:
        side = "codomain" if relation is Relation.PRODUCED else "domain"
        m, p = positions(getattr(self.rule, side), axis)[0]
        name: str = getattr(term.rule, side)[m][p].name
        return name

    def _cost(self) -> Cost:
        return Cost.added([term.cost() for term in self.terms], bytes_of(self.codomain))


class NonlinearSum(Sum, final=True):
    """A sum of operators of which some are not linear."""

    def _jacobian(self, x: Any) -> LinearOperator:
        total: LinearOperator = functools.reduce(add, [term._jacobian(x) for term in self.terms])
        return total


class LinearSum(LinearNode, Sum, final=True):
    """A sum of linear operators."""

    _spreading = frozenset({"self_adjoint", "psd", "nonnegative", "diagonal"})

    def _apply_adjoint(self, y: Any) -> Any:
        return _total(self._adjoint_functions, y)

    def _diagonal(self) -> Array | None:
        found = [term._diagonal() for term in self.terms]
        if any(part is None for part in found):
            return None
        total: Array = functools.reduce(added, found)
        return total

    def _columns(self, index: Array, axes: tuple[int, ...]) -> LinearOperator:
        return LinearSum([term.columns(index, axes) for term in self.terms])


def added(a: Any, b: Any) -> Any:
    """The sum of two elements, member by member for product spaces."""
    if isinstance(a, tuple):
        return tuple(added(x, y) for x, y in zip(a, b, strict=True))
    total = a + b
    # NumPy makes a scalar of two arrays without axes.
    return np.asarray(total) if isinstance(total, np.generic) else total


def _total(functions: Sequence[Callable[[Any], Any]], x: Any) -> Any:
    first, *rest = functions
    total = first(x)
    for function in rest:
        total = added(total, function(x))
    return total
