"""Operators side by side on product spaces: `vstack`, `hstack`, `block_diagonal`.

They are one node: each term reads all of the input or its own members of it, and the results stand
side by side or add up. Outputs joined into one array are in `linops/algebra/concatenation.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, ClassVar

from linops.algebra.blocks import weakened
from linops.algebra.members import as_tuple, flat, members_of, places, product_of
from linops.algebra.node import LinearNode
from linops.algebra.norm import known_norm
from linops.algebra.shared import share_first, share_last
from linops.algebra.sums import added
from linops.arguments import checked
from linops.linear_operator import AsOperator, LinearOperator
from linops.operator import Operator
from linops.relations import positions, stack_rule
from linops.rule import Axis, Relation, Rule

__all__ = [
    "BlockDiagonal",
    "HStack",
    "HorizontalStack",
    "VStack",
    "VerticalStack",
    "block_diagonal",
    "hstack",
    "still_split",
    "vstack",
]

_Parts = tuple[tuple[Callable[[Any], Any], Any], ...]
# Functions of terms, each with the place of its part in a tuple, None where that is the whole.


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


class Stack(LinearNode):
    """`terms` side by side: along the domain, along the codomain, or along both."""

    title: ClassVar[str]
    dealt: ClassVar[tuple[str, ...]]
    # The sides of which every term has members of its own.

    def __init__(self, terms: Sequence[LinearOperator], rule: Rule | None = None) -> None:
        def space(side: str) -> Any:
            spaces = [getattr(term, side) for term in terms]
            return product_of(spaces) if side in self.dealt else spaces[0]

        Operator.__init__(self, space("domain"), space("codomain"), rule, name=self.title)
        self.terms = tuple(terms)

    def _apply(self, x: Any) -> Any:
        return _run(self._parts, x, "codomain" in self.dealt)

    def _apply_adjoint(self, y: Any) -> Any:
        return _run(self._adjoint_parts, y, "domain" in self.dealt)

    @cached_property
    def _parts(self) -> _Parts:
        return tuple(zip(self._functions, self._places("domain"), strict=False))

    @cached_property
    def _adjoint_parts(self) -> _Parts:
        return tuple(zip(self._adjoint_functions, self._places("codomain"), strict=False))

    def _places(self, side: str) -> Iterable[Any]:
        return places(getattr(t, side) for t in self.terms) if side in self.dealt else repeat(None)

    @abstractmethod
    def _make_adjoint(self) -> LinearOperator:
        """The stack of the adjoints."""

    @abstractmethod
    def _derive_rule(self) -> Rule:
        """Of the terms beside each other."""

    def _names_in(self, rule: Rule, axis: str, relation: Relation) -> list[str | None]:
        """What each term calls an axis of `rule`, None where it has no part of it."""
        side = "codomain" if relation is Relation.PRODUCED else "domain"
        where = positions(getattr(rule, side), axis)
        found: list[str | None] = []
        start = 0
        for term in self.terms:
            rows = getattr(term.rule, side)
            own = (rows[m - start][p].name for m, p in where if start <= m < start + len(rows))
            found.append(next(own, None))
            start += len(rows) if side in self.dealt else 0
        return found

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        relation, halo = self.rule.relation(axis), self.rule.halo(axis)
        if self.rule.periodic(axis):
            return None
        blocks: list[LinearOperator] = []
        for term, name in zip(self.terms, self._names_in(self.rule, axis, relation), strict=True):
            block = term
            if name is not None:
                block = weakened(term, name, start, stop, padded, relation, halo)
            if block is None:
                return None
            blocks.append(block)
        # The same rule: equal extents of what is left would join axes that are apart here.
        rule = still_split(self.rule, [block.rule for block in blocks], self.dealt)
        return self._on(blocks, rule)

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        names = self._names_in(self.rule, axis, Relation.ALIGNED)
        ranges = [
            term._input_range(name, start, stop)
            for term, name in zip(self.terms, names, strict=True)
            if name is not None
        ]
        return min(lo for lo, _ in ranges), max(hi for _, hi in ranges)


class VerticalStack(Stack, family=True):
    """`terms` applied to one input, their outputs a tuple."""

    title = "vstack"
    dealt = ("codomain",)

    def _derive_rule(self) -> Rule:
        return stack_rule([t.rule for t in self.terms], [t.codomain for t in self.terms])

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


class VStack(VerticalStack, final=True):
    """What `vstack` gives."""

    def _make_adjoint(self) -> LinearOperator:
        return HStack([term.H for term in self.terms])


class HorizontalStack(Stack, family=True):
    """`terms` applied to the members of a tuple, their outputs added."""

    title = "hstack"
    dealt = ("domain",)

    def _derive_rule(self) -> Rule:
        dual = stack_rule(
            [t.rule.adjoint() for t in self.terms], [t.domain for t in self.terms]
        ).adjoint()
        return _whole_but(dual, {name for name in dual.names if self._read_alike(dual, name)})

    def _read_alike(self, rule: Rule, name: str) -> bool:
        """Whether a part of the axis is one part of every term."""
        relation = rule.relation(name)
        names = self._names_in(rule, name, relation)
        own = [(t.rule, n) for t, n in zip(self.terms, names, strict=True) if n is not None]
        if relation is Relation.PRODUCED:
            # In every term the same members: else a part of one axis would cut another too.
            where = positions(rule.codomain, name)
            return all(positions(part.codomain, n) == where for part, n in own)
        everywhere = {m for m, _ in positions(rule.domain, name)} == set(range(len(rule.domain)))
        return (
            everywhere
            and {part.relation(n) for part, n in own} == {relation}
            and rule.halo(name) == max(part.halo(n) for part, n in own)
        )


class HStack(HorizontalStack, final=True):
    """What `hstack` gives."""

    def _make_adjoint(self) -> LinearOperator:
        return VStack([term.H for term in self.terms])


class BlockDiagonal(Stack, family=True, final=True):
    """`terms` applied to the members of a tuple, one each."""

    title = "block_diagonal"
    dealt = ("domain", "codomain")
    _spreading = frozenset({"nonnegative", "self_adjoint", "psd", "unitary", "diagonal"})
    _make_adjoint = LinearNode._make_adjoint

    def _known_norm(self) -> float | None:
        found = [known_norm(term) for term in self.terms]
        known = [value for value in found if value is not None]
        return max(known) if len(known) == len(found) else None

    def _derive_rule(self) -> Rule:
        """One rule for all members, where they are cut alike; else no axis splits."""
        first = self.terms[0]
        if all(
            term.rule == first.rule
            and term.domain.shape == first.domain.shape
            and term.codomain.shape == first.codomain.shape
            for term in self.terms
        ):
            n = len(self.terms)
            return Rule(first.rule.domain * n, first.rule.codomain * n)

        def side(which: str) -> Any:
            # Names of different members are different axes: their extents and ends differ.
            return tuple(
                tuple(Axis(f"{axis.name}_{k}", splits=False) for axis in row)
                for k, term in enumerate(self.terms)
                for row in getattr(term.rule, which)
            )

        return Rule(side("domain"), side("codomain"))

    def _diagonal(self) -> Any:
        found = [term._diagonal() for term in self.terms]
        if any(part is None for part in found):
            return None
        return tuple(
            part
            for term, d in zip(self.terms, found, strict=True)
            for part in as_tuple(d, term.domain)
        )


def _run(parts: _Parts, x: Any, side_by_side: bool) -> Any:
    """What the functions give of their parts of an element, as a tuple or added up."""
    if side_by_side:
        return flat([f(x if place is None else x[place]) for f, place in parts])
    (function, place), *rest = parts
    total = function(x if place is None else x[place])
    for function, place in rest:
        total = added(total, function(x if place is None else x[place]))
    return total


def still_split(rule: Rule, blocks: Sequence[Rule], dealt: Sequence[str] = ()) -> Rule:
    """The rule of a stack for its blocks: axes that one of them must not split are whole."""
    whole: set[str] = set()
    for side in ("domain", "codomain"):
        theirs = [getattr(block, side) for block in blocks]
        for rows in [sum(theirs, ())] if side in dealt else theirs:
            for row, other in zip(getattr(rule, side), rows, strict=True):
                whole |= {own.name for own, a in zip(row, other, strict=True) if not a.splits}
    return _whole_but(rule, set(rule.names) - whole)


def _whole_but(rule: Rule, legal: set[str]) -> Rule:
    def side(members: Any) -> Any:
        return tuple(
            tuple(axis if axis.name in legal else Axis(axis.name, splits=False) for axis in member)
            for member in members
        )

    return Rule(side(rule.domain), side(rule.codomain))
