"""Operators side by side on product spaces: `vstack`, `hstack`, `block_diagonal`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar

from linops.algebra.blocks import weakened
from linops.algebra.members import (
    as_tuple,
    every_complex,
    flat,
    members_of,
    places,
    product_of,
    spread_tags,
)
from linops.algebra.norm import known_norm
from linops.algebra.shared import share_first, share_last
from linops.algebra.sums import added
from linops.arguments import checked
from linops.cost import Cost
from linops.linear_operator import AsOperator, LinearOperator
from linops.precision import Precision
from linops.relations import positions, stack_rule
from linops.rule import Axis, Relation, Rule

__all__ = ["BlockDiagonal", "HStack", "VStack", "block_diagonal", "hstack", "vstack"]

_Parts = tuple[tuple[Callable[[Any], Any], Any], ...]
# Functions of terms, each with the place of its part in a tuple.


@checked
def vstack(operators: Iterable[AsOperator]) -> LinearOperator:
    """`x -> (A @ x, B @ x, ...)`: one domain, a product space of codomains.

    Members may be operators or matrices; product codomains are flattened.
    """
    terms = members_of(operators, "vstack", "domain")
    return share_last(VStack, terms)


@checked
def hstack(operators: Iterable[AsOperator]) -> LinearOperator:
    """`(x, y, ...) -> A @ x + B @ y + ...`: a product space of domains, one codomain."""
    terms = members_of(operators, "hstack", "codomain")
    return share_first(HStack, terms)


@checked
def block_diagonal(operators: Iterable[AsOperator], axis: str | None = None) -> LinearOperator:
    """`(x, y, ...) -> (A @ x, B @ y, ...)`.

    Parameters
    ----------
    operators
        Operators or matrices.
    axis
        Where it is given, x, y, ... are the planes of one array along a new first axis of this
        name (an operator a frame), and so are the results; the operators share their spaces.
    """
    terms = members_of(operators, "block_diagonal", None)
    if axis is None:
        return BlockDiagonal(terms)
    from linops.algebra.frames import Frames

    return Frames(terms, axis)


class VStack(LinearOperator):
    """`terms` applied to one input, their outputs a tuple."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, terms: Sequence[LinearOperator], rule: Rule | None = None) -> None:
        super().__init__(
            terms[0].domain, product_of([term.codomain for term in terms]), rule, name="vstack"
        )
        self.terms = tuple(terms)

    @cached_property
    def _aliases(self) -> bool:  # type: ignore[override]
        return any(term._aliases for term in self.terms)

    def _apply(self, x: Any) -> Any:
        return flat([function(x) for function in self._functions])

    def _apply_adjoint(self, y: Any) -> Any:
        return _sum_up(self._adjoint_parts, y)

    @cached_property
    def _functions(self) -> tuple[Callable[[Any], Any], ...]:
        return tuple(term._forward for term in self.terms)

    @cached_property
    def _adjoint_parts(self) -> _Parts:
        where = places(term.codomain for term in self.terms)
        return tuple(zip((term._backward for term in self.terms), where, strict=True))

    def _make_adjoint(self) -> LinearOperator:
        return HStack([term.H for term in self.terms])

    def _make_conjugate(self) -> LinearOperator:
        return VStack([term.conj() for term in self.terms])

    def _complexified(self) -> LinearOperator | None:
        return every_complex(VStack, self.terms)

    def _derive_rule(self) -> Rule:
        return stack_rule([t.rule for t in self.terms], [t.codomain for t in self.terms])

    def _derive_tags(self) -> frozenset[str]:
        return spread_tags(self.terms, {"nonnegative"})

    def _derive_precision(self) -> Precision:
        return Precision.coarsest(term.precision for term in self.terms)

    def _gram_diagonal(self, weights: Any) -> Any:
        if weights is not None:
            return None
        found = [term._gram_diagonal(None) for term in self.terms]
        if any(part is None for part in found):
            return None
        total: Any = found[0]
        for part in found[1:]:
            total = total + part
        return total

    def _columns(self, index: Any, axes: tuple[int, ...]) -> LinearOperator:
        return VStack([term.columns(index, axes) for term in self.terms])

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        relation, halo = self.rule.relation(axis), self.rule.halo(axis)
        if self.rule.periodic(axis):
            return None
        blocks: list[LinearOperator] = []
        member = 0
        for term in self.terms:
            name = self._name_in(term, member, axis, relation)
            member += len(term.codomain.members)
            if name is None:
                blocks.append(term)
                continue
            block = weakened(term, name, start, stop, padded, relation, halo)
            if block is None:
                return None
            blocks.append(block)
        # The same rule: equal extents of what is left would join axes that are apart here.
        return VStack(blocks, _still_split(self.rule, [b.rule for b in blocks]))

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        ranges = [
            term._input_range(str(self._name_in(term, 0, axis, Relation.ALIGNED)), start, stop)
            for term in self.terms
        ]
        return min(lo for lo, _ in ranges), max(hi for _, hi in ranges)

    def _name_in(
        self, term: LinearOperator, member: int, axis: str, relation: Relation
    ) -> str | None:
        if relation is not Relation.PRODUCED:
            m, p = positions(self.rule.domain, axis)[0]
            return term.rule.domain[m][p].name
        for m, p in positions(self.rule.codomain, axis):
            if member <= m < member + len(term.codomain.members):
                return term.rule.codomain[m - member][p].name
        return None

    def _cost(self) -> Cost:
        return sum((term.cost() for term in self.terms[1:]), self.terms[0].cost())


class HStack(LinearOperator):
    """`terms` applied to the members of a tuple, their outputs added."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, terms: Sequence[LinearOperator], rule: Rule | None = None) -> None:
        super().__init__(
            product_of([term.domain for term in terms]), terms[0].codomain, rule, name="hstack"
        )
        self.terms = tuple(terms)

    @cached_property
    def _aliases(self) -> bool:  # type: ignore[override]
        return any(term._aliases for term in self.terms)

    def _apply(self, x: Any) -> Any:
        return _sum_up(self._parts, x)

    def _apply_adjoint(self, y: Any) -> Any:
        return flat([function(y) for function in self._adjoint_functions])

    @cached_property
    def _parts(self) -> _Parts:
        where = places(term.domain for term in self.terms)
        return tuple(zip((term._forward for term in self.terms), where, strict=True))

    @cached_property
    def _adjoint_functions(self) -> tuple[Callable[[Any], Any], ...]:
        return tuple(term._backward for term in self.terms)

    def _make_adjoint(self) -> LinearOperator:
        return VStack([term.H for term in self.terms])

    def _make_conjugate(self) -> LinearOperator:
        return HStack([term.conj() for term in self.terms])

    def _complexified(self) -> LinearOperator | None:
        return every_complex(HStack, self.terms)

    def _derive_rule(self) -> Rule:
        dual = stack_rule(
            [t.rule.adjoint() for t in self.terms], [t.domain for t in self.terms]
        ).adjoint()
        legal = set()
        for name in dual.names:
            relation = dual.relation(name)
            members = {m for m, _ in positions(dual.domain, name)}
            everywhere = len(members) == len(dual.domain)
            own = all(self._own_relation(dual, name) == {relation} for _ in (0,)) and dual.halo(
                name
            ) == self._own_halo(dual, name)
            if relation is Relation.PRODUCED:
                # In every term the same members: else a part of one axis would cut another too.
                own = self._covers_alike(dual, name)
            if own and (everywhere or relation is Relation.PRODUCED):
                legal.add(name)
        return _whole_but(dual, legal)

    def _covers_alike(self, rule: Rule, name: str) -> bool:
        where = positions(rule.codomain, name)
        m, p = where[0]
        return all(
            positions(term.rule.codomain, term.rule.codomain[m][p].name) == where
            for term in self.terms
        )

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        relation, halo = self.rule.relation(axis), self.rule.halo(axis)
        if self.rule.periodic(axis):
            return None
        blocks = []
        for term, own in self._names_in(self.rule, axis):
            if relation is Relation.PRODUCED:
                m, p = positions(self.rule.codomain, axis)[0]
                own = term.rule.codomain[m][p].name
            if own is None:
                return None
            block = weakened(term, own, start, stop, padded, relation, halo)
            if block is None:
                return None
            blocks.append(block)
        # The same rule: equal extents of what is left would join axes that are apart here.
        duals = [block.rule.adjoint() for block in blocks]
        return HStack(blocks, _still_split(self.rule.adjoint(), duals).adjoint())

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        ranges = [
            term._input_range(own, start, stop)
            for term, own in self._names_in(self.rule, axis)
            if own is not None
        ]
        return min(lo for lo, _ in ranges), max(hi for _, hi in ranges)

    def _own_relation(self, rule: Rule, name: str) -> set[Relation]:
        return {
            term.rule.relation(own) for term, own in self._names_in(rule, name) if own is not None
        }

    def _own_halo(self, rule: Rule, name: str) -> int:
        return max(
            (term.rule.halo(own) for term, own in self._names_in(rule, name) if own is not None),
            default=0,
        )

    def _names_in(self, rule: Rule, name: str) -> list[tuple[LinearOperator, str | None]]:
        found: list[tuple[LinearOperator, str | None]] = []
        start = 0
        for term in self.terms:
            count = len(term.domain.members)
            own = next(
                (
                    term.rule.domain[m - start][p].name
                    for m, p in positions(rule.domain, name)
                    if start <= m < start + count
                ),
                None,
            )
            found.append((term, own))
            start += count
        return found

    def _derive_tags(self) -> frozenset[str]:
        return spread_tags(self.terms, {"nonnegative"})

    def _derive_precision(self) -> Precision:
        return Precision.coarsest(term.precision for term in self.terms)

    def _cost(self) -> Cost:
        return sum((term.cost() for term in self.terms[1:]), self.terms[0].cost())


class BlockDiagonal(LinearOperator):
    """`terms` applied to the members of a tuple, one each."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, terms: Sequence[LinearOperator], rule: Rule | None = None) -> None:
        super().__init__(
            product_of([term.domain for term in terms]),
            product_of([term.codomain for term in terms]),
            rule,
            name="block_diagonal",
        )
        self.terms = tuple(terms)

    @cached_property
    def _aliases(self) -> bool:  # type: ignore[override]
        return any(term._aliases for term in self.terms)

    def _apply(self, x: Any) -> Any:
        return flat([function(x[place]) for function, place in self._parts])

    def _apply_adjoint(self, y: Any) -> Any:
        return flat([function(y[place]) for function, place in self._adjoint_parts])

    @cached_property
    def _parts(self) -> _Parts:
        where = places(term.domain for term in self.terms)
        return tuple(zip((term._forward for term in self.terms), where, strict=True))

    @cached_property
    def _adjoint_parts(self) -> _Parts:
        where = places(term.codomain for term in self.terms)
        return tuple(zip((term._backward for term in self.terms), where, strict=True))

    def _known_norm(self) -> float | None:
        found = [known_norm(term) for term in self.terms]
        known = [value for value in found if value is not None]
        return max(known) if len(known) == len(found) else None

    def _make_adjoint(self) -> LinearOperator:
        if "self_adjoint" in self.tags:
            return self
        return BlockDiagonal([term.H for term in self.terms])

    def _make_conjugate(self) -> LinearOperator:
        return BlockDiagonal([term.conj() for term in self.terms])

    def _complexified(self) -> LinearOperator | None:
        return every_complex(BlockDiagonal, self.terms)

    def _derive_rule(self) -> Rule:
        left: list[tuple[Axis, ...]] = []
        right: list[tuple[Axis, ...]] = []
        for k, term in enumerate(self.terms):
            # Names of different members are different axes: their extents and ends differ.
            def named(axis: Axis, k: int = k) -> Axis:
                return Axis(f"{axis.name}_{k}", splits=False)

            left += [tuple(map(named, row)) for row in term.rule.domain]
            right += [tuple(map(named, row)) for row in term.rule.codomain]
        shared = self._shared()
        if shared is not None:
            return shared
        return Rule(tuple(left), tuple(right))

    def _shared(self) -> Rule | None:
        """One rule for all members, where they are cut alike."""
        first = self.terms[0]
        same = all(
            term.rule == first.rule
            and term.domain.shape == first.domain.shape
            and term.codomain.shape == first.codomain.shape
            for term in self.terms
        )
        if not same:
            return None
        n = len(self.terms)
        return Rule(first.rule.domain * n, first.rule.codomain * n)

    def _derive_tags(self) -> frozenset[str]:
        return spread_tags(
            self.terms, {"nonnegative", "self_adjoint", "psd", "unitary", "diagonal"}
        )

    def _derive_precision(self) -> Precision:
        return Precision.coarsest(term.precision for term in self.terms)

    def _diagonal(self) -> Any:
        found = [term._diagonal() for term in self.terms]
        if any(part is None for part in found):
            return None
        return tuple(
            part
            for term, d in zip(self.terms, found, strict=True)
            for part in as_tuple(d, term.domain)
        )

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        relation, halo = self.rule.relation(axis), self.rule.halo(axis)
        if self.rule.periodic(axis):
            return None
        blocks: list[LinearOperator] = []
        first = last = 0
        for term in self.terms:
            side, start_of = (
                ("codomain", last) if relation is Relation.PRODUCED else ("domain", first)
            )
            name = next(
                getattr(term.rule, side)[m - start_of][p].name
                for m, p in positions(getattr(self.rule, side), axis)
                if start_of <= m < start_of + len(getattr(term, side).members)
            )
            first, last = first + len(term.domain.members), last + len(term.codomain.members)
            block = weakened(term, name, start, stop, padded, relation, halo)
            if block is None:
                return None
            blocks.append(block)
        rules = [block.rule for block in blocks]
        together = Rule(
            tuple(row for rule in rules for row in rule.domain),
            tuple(row for rule in rules for row in rule.codomain),
        )
        # The same rule: members whose blocks differ are cut alike all the same.
        return BlockDiagonal(blocks, _still_split(self.rule, [together]))

    def _cost(self) -> Cost:
        return sum((term.cost() for term in self.terms[1:]), self.terms[0].cost())


def _sum_up(parts: _Parts, x: tuple[Any, ...]) -> Any:
    """The sum of what the functions give, each of its part of a tuple."""
    (function, place), *rest = parts
    total = function(x[place])
    for function, place in rest:
        total = added(total, function(x[place]))
    return total


def _still_split(rule: Rule, blocks: Sequence[Rule]) -> Rule:
    """The rule of a stack for its blocks: axes that one of them must not split are whole."""
    whole = {
        own.name
        for block in blocks
        for row, theirs in zip(rule.domain, block.domain, strict=True)
        for own, axis in zip(row, theirs, strict=True)
        if not axis.splits
    }
    flat = [row for block in blocks for row in block.codomain]
    for row, theirs in zip(rule.codomain, flat, strict=True):
        whole |= {own.name for own, axis in zip(row, theirs, strict=True) if not axis.splits}
    return _whole_but(rule, set(rule.names) - whole)


def _whole_but(rule: Rule, legal: set[str]) -> Rule:
    def side(members: Any) -> Any:
        return tuple(
            tuple(axis if axis.name in legal else Axis(axis.name, splits=False) for axis in member)
            for member in members
        )

    return Rule(side(rule.domain), side(rule.codomain))
