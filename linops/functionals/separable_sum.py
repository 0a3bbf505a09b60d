"""Functionals on product spaces that are sums over the members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from linops import arguments
from linops.algebra.stacks import block_diagonal
from linops.cost import Cost
from linops.errors import ShapeError
from linops.functionals.functional import Functional, plain
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.relations import extent_of, fresh_name
from linops.rule import Axis, Member, Rule
from linops.space import ProductSpace

__all__ = ["SeparableFunctional", "SideBySide", "separable"]


class SeparableFunctional(Functional):
    """`f(x) + g(y) + ...` of an element `(x, y, ...)` of the product of their spaces."""

    batched = True

    def __init__(self, terms: Sequence[Functional]) -> None:
        spaces = [plain(term.domain, "separable") for term in terms]
        super().__init__(ProductSpace(spaces), name="Separable")
        self.terms = tuple(terms)

    def surrogate(self, x: Any) -> LinearOperator:
        x = self._admit(x)
        parts = [term.surrogate(part) for term, part in zip(self.terms, x, strict=True)]
        stacked: LinearOperator = block_diagonal(parts)
        return stacked

    def translate(self, shift: Any) -> Functional:
        """Every term shifted by its member of `shift`."""
        self.domain.check_shape(shift, f"{self.name}.shifted")
        parts = zip(self.terms, shift, strict=True)
        return SeparableFunctional([term.translate(part) for term, part in parts])

    def _value(self, x: Any) -> Any:
        values = [term(part) for term, part in zip(self.terms, x, strict=True)]
        return sum(values[1:], values[0])

    def _cost(self) -> Cost:
        costs = [term.cost() for term in self.terms]
        return sum(costs[1:], costs[0])

    def _make_gradient(self) -> Operator:
        return SideBySide([term.gradient for term in self.terms])

    def _prox(self, x: Any, step: Any) -> Any:
        return tuple(term._prox(part, step) for term, part in zip(self.terms, x, strict=True))

    def _derive_rule(self) -> Rule:
        return Rule(_join_rules(self.terms)[0], ((),))

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        # An axis splits only where all members have it, under one name.
        m = [[one.name for one in row] for row in self.rule.domain]
        blocks: list[Any] = [
            term.block(term.rule.domain[0][row.index(axis)].name, start, stop, padded)
            for term, row in zip(self.terms, m, strict=True)
        ]
        return SeparableFunctional(blocks)


class SideBySide(Operator):
    """Operators on the members of a product space, each on its own."""

    batched = True

    def __init__(self, terms: Sequence[Operator]) -> None:
        super().__init__(
            ProductSpace([plain(term.domain, "SideBySide") for term in terms]),
            ProductSpace([plain(term.codomain, "SideBySide") for term in terms]),
        )
        self.terms = tuple(terms)

    def _apply(self, x: Any) -> Any:
        return tuple(term._forward(part) for term, part in zip(self.terms, x, strict=True))

    def _cost(self) -> Cost:
        costs = [term.cost() for term in self.terms]
        return sum(costs[1:], costs[0])

    def _jacobian(self, x: Any) -> LinearOperator:
        parts = [term._jacobian(part) for term, part in zip(self.terms, x, strict=True)]
        stacked: LinearOperator = block_diagonal(parts)
        return stacked

    def _derive_rule(self) -> Rule:
        return Rule(*_join_rules(self.terms))

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        blocks = [
            term.block(
                term.rule.codomain[0][[a.name for a in row].index(axis)].name, start, stop, padded
            )
            for term, row in zip(self.terms, self.rule.codomain, strict=True)
        ]
        return SideBySide(blocks)


def separable(terms: Sequence[Functional]) -> SeparableFunctional:
    """`(x, y, ...) -> f(x) + g(y) + ...` on the product of the domains of f, g, ...

    Parameters
    ----------
    terms
        One functional for each member, each on a plain space.

    Raises
    ------
    ShapeError
        For no functional at all.
    TypeError
        For what is no functional, or has a product space as domain.
    """
    if not isinstance(terms, Iterable):
        raise arguments.wrong("separable", "terms", terms, "a list of functionals")
    listed = list(terms)
    if not listed:
        raise ShapeError("separable takes one functional for each member, got none")
    for term in listed:
        if not isinstance(term, Functional):
            raise TypeError(f"separable takes functionals, got {type(term).__name__}")
    return SeparableFunctional(listed)


def _join_rules(terms: Sequence[Operator]) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
    """Both sides of the rule: one axis where all members have it under one name and split it
    alike, else axes of their own that stay whole."""
    rules = [term.rule for term in terms]
    shared = []
    for axis in rules[0].domain[0]:
        if not axis.splits or any(axis not in rule.domain[0] for rule in rules):
            continue
        extents = {extent_of(term.domain, term.rule.domain, axis.name) for term in terms}
        if len(extents) == 1 and len({rule.relation(axis.name) for rule in rules}) == 1:
            shared.append(axis.name)
    taken = set(shared)
    domain, codomain = [], []
    for rule in rules:
        names: dict[str, str] = {}

        def turned(axis: Axis, names: dict[str, str] = names) -> Axis:
            if axis.name in shared:
                return axis
            if axis.name not in names:
                names[axis.name] = fresh_name(axis.name, taken)
            return replace(axis, name=names[axis.name], halo=0, periodic=False, splits=False)

        domain.append(tuple(map(turned, rule.domain[0])))
        codomain.append(tuple(map(turned, rule.codomain[0])))
    return tuple(domain), tuple(codomain)
