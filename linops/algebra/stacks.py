"""Operators side by side: `vstack`, `hstack`, `block_diagonal` on product spaces, `concat` on one
array, `kron` for separable operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.algebra.arithmetic import as_operator, flat_product
from linops.algebra.blocks import weakened
from linops.algebra.complexify import complexify
from linops.algebra.relations import positions, stack_rule
from linops.algebra.sums import added
from linops.cost import Cost
from linops.elementary.windows import Crop, axis_number, resized
from linops.errors import ShapeError
from linops.operator import LinearOperator
from linops.precision import Precision
from linops.rule import Axis, Relation, Rule
from linops.space import AnySpace, ProductSpace, Space

__all__ = [
    "BlockDiagonal",
    "Concatenation",
    "HStack",
    "VStack",
    "block_diagonal",
    "concat",
    "hstack",
    "vstack",
]


def vstack(operators: Iterable[Any]) -> LinearOperator:
    """`x -> (A @ x, B @ x, ...)`: one domain, a product space of codomains.

    Members may be operators or matrices; product codomains are flattened.
    """
    terms = _members(operators, "vstack", "domain")
    return VStack(terms)


def hstack(operators: Iterable[Any]) -> LinearOperator:
    """`(x, y, ...) -> A @ x + B @ y + ...`: a product space of domains, one codomain."""
    terms = _members(operators, "hstack", "codomain")
    return HStack(terms)


def block_diagonal(operators: Iterable[Any]) -> LinearOperator:
    """`(x, y, ...) -> (A @ x, B @ y, ...)`."""
    terms = _members(operators, "block_diagonal", None)
    return BlockDiagonal(terms)


def concat(operators: Iterable[Any], axis: str | int = 0) -> LinearOperator:
    """The outputs of operators with one domain, joined into one array along `axis`.

    Parameters
    ----------
    operators
        Operators whose codomains agree but for the extent of `axis`.
    axis
        Axis of the codomains, by name or number.
    """
    terms = _members(operators, "concat", "domain")
    spaces = [_plain(term.codomain, "concat") for term in terms]
    number = axis_number(spaces[0], axis)
    for space in spaces[1:]:
        if (
            space.ndim != spaces[0].ndim
            or resized(space, [(0, number)], 0).shape != resized(spaces[0], [(0, number)], 0).shape
        ):
            raise ShapeError(
                f"concat joins outputs that agree but along axis {axis!r}, got {spaces[0]} and "
                f"{space}"
            )
    return Concatenation(terms, number)


class VStack(LinearOperator):
    """`terms` applied to one input, their outputs a tuple."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, terms: Sequence[LinearOperator], rule: Rule | None = None) -> None:
        super().__init__(
            terms[0].domain, _product([term.codomain for term in terms]), rule, name="vstack"
        )
        self.terms = tuple(terms)

    @cached_property
    def _aliases(self) -> bool:  # type: ignore[override]
        return any(term._aliases for term in self.terms)

    def _apply(self, x: Any) -> Any:
        return tuple(
            part for term in self.terms for part in _tuple(term._forward(x), term.codomain)
        )

    def _apply_adjoint(self, y: Any) -> Any:
        total: Any = None
        for term, part in _dealt(self.terms, y, "codomain"):
            back = term._backward(part)
            total = back if total is None else added(total, back)
        return total

    def _make_adjoint(self) -> LinearOperator:
        return HStack([term.H for term in self.terms])

    def _make_conjugate(self) -> LinearOperator:
        return VStack([term.conj() for term in self.terms])

    def _complexified(self) -> LinearOperator | None:
        return _every_complex(VStack, self.terms)

    def _derive_rule(self) -> Rule:
        return stack_rule([t.rule for t in self.terms], [t.codomain for t in self.terms])

    def _derive_tags(self) -> frozenset[str]:
        return _spread_tags(self.terms, {"nonnegative"})

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
            _product([term.domain for term in terms]), terms[0].codomain, rule, name="hstack"
        )
        self.terms = tuple(terms)

    @cached_property
    def _aliases(self) -> bool:  # type: ignore[override]
        return any(term._aliases for term in self.terms)

    def _apply(self, x: Any) -> Any:
        total: Any = None
        for term, part in _dealt(self.terms, x, "domain"):
            y = term._forward(part)
            total = y if total is None else added(total, y)
        return total

    def _apply_adjoint(self, y: Any) -> Any:
        return tuple(part for term in self.terms for part in _tuple(term._backward(y), term.domain))

    def _make_adjoint(self) -> LinearOperator:
        return VStack([term.H for term in self.terms])

    def _make_conjugate(self) -> LinearOperator:
        return HStack([term.conj() for term in self.terms])

    def _complexified(self) -> LinearOperator | None:
        return _every_complex(HStack, self.terms)

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
            if relation is Relation.PRODUCED or (everywhere and own):
                legal.add(name)
        return _whole_but(dual, legal)

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
        return _spread_tags(self.terms, {"nonnegative"})

    def _derive_precision(self) -> Precision:
        return Precision.coarsest(term.precision for term in self.terms)

    def _cost(self) -> Cost:
        return sum((term.cost() for term in self.terms[1:]), self.terms[0].cost())


class BlockDiagonal(LinearOperator):
    """`terms` applied to the members of a tuple, one each."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, terms: Sequence[LinearOperator]) -> None:
        super().__init__(
            _product([term.domain for term in terms]),
            _product([term.codomain for term in terms]),
            name="block_diagonal",
        )
        self.terms = tuple(terms)

    @cached_property
    def _aliases(self) -> bool:  # type: ignore[override]
        return any(term._aliases for term in self.terms)

    def _apply(self, x: Any) -> Any:
        return tuple(
            out
            for term, part in _dealt(self.terms, x, "domain")
            for out in _tuple(term._forward(part), term.codomain)
        )

    def _apply_adjoint(self, y: Any) -> Any:
        return tuple(
            out
            for term, part in _dealt(self.terms, y, "codomain")
            for out in _tuple(term._backward(part), term.domain)
        )

    def _make_adjoint(self) -> LinearOperator:
        if "self_adjoint" in self.tags:
            return self
        return BlockDiagonal([term.H for term in self.terms])

    def _make_conjugate(self) -> LinearOperator:
        return BlockDiagonal([term.conj() for term in self.terms])

    def _complexified(self) -> LinearOperator | None:
        return _every_complex(BlockDiagonal, self.terms)

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
        return _spread_tags(
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
            for part in _tuple(d, term.domain)
        )

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        if self.rule.periodic(axis):
            return None
        blocks = []
        for term in self.terms:
            block = term.block(axis, start, stop, padded)
            assert isinstance(block, LinearOperator)
            blocks.append(block)
        return BlockDiagonal(blocks)

    def _cost(self) -> Cost:
        return sum((term.cost() for term in self.terms[1:]), self.terms[0].cost())


class Concatenation(LinearOperator):
    """`terms` applied to one input, their outputs joined along one axis of one array."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, terms: Sequence[LinearOperator], axis: int) -> None:
        spaces = [_plain(term.codomain, "concat") for term in terms]
        extents = [space.shape[axis] for space in spaces]
        joined = resized(spaces[0], [(0, axis)], sum(extents))
        super().__init__(terms[0].domain, joined, name="concat")
        self.terms = tuple(terms)
        self._axis = axis - spaces[0].ndim
        self._starts = tuple(int(n) for n in np.cumsum([0, *extents]))

    def _apply(self, x: Any) -> Any:
        parts = [term._forward(x) for term in self.terms]
        return arrays.namespace(*parts).concat(parts, axis=self._axis)

    def _apply_adjoint(self, y: Any) -> Any:
        total: Any = None
        for term, start, stop in zip(self.terms, self._starts[:-1], self._starts[1:], strict=True):
            back = term._backward(arrays.narrow(y, self._axis, start, stop))
            total = back if total is None else added(total, back)
        return total

    def _make_conjugate(self) -> LinearOperator:
        return Concatenation([t.conj() for t in self.terms], self._position)

    def _complexified(self) -> LinearOperator | None:
        if any("real_linear" in term.tags for term in self.terms):
            return None
        return Concatenation([complexify(term) for term in self.terms], self._position)

    @property
    def _position(self) -> int:
        assert isinstance(self.codomain, Space)
        return self._axis + self.codomain.ndim

    def _derive_rule(self) -> Rule:
        stacked = stack_rule([t.rule for t in self.terms], [t.codomain for t in self.terms])
        first = stacked.codomain[0]
        taken = {a.name for row in stacked.domain for a in row}
        right = []
        for p, axis in enumerate(first):
            column = [row[p].name for row in stacked.codomain]
            if p == self._position:
                name = axis.name
                while name in taken:
                    name += "_joined"
                relations = {t.rule.relation(t.rule.codomain[0][p].name) for t in self.terms}
                right.append(Axis(name, splits=relations <= {Relation.PRODUCED, Relation.ALIGNED}))
            else:
                same = len(set(column)) == 1
                splits = same and all(row[p].splits for row in stacked.codomain)
                right.append(Axis(axis.name, splits=splits))
        return Rule(stacked.domain, (tuple(right),))

    def _derive_tags(self) -> frozenset[str]:
        return _spread_tags(self.terms, {"nonnegative"})

    def _derive_precision(self) -> Precision:
        return Precision.coarsest(term.precision for term in self.terms)

    def _gram_diagonal(self, weights: Any) -> Any:
        total: Any = None
        for term, start, stop in zip(self.terms, self._starts[:-1], self._starts[1:], strict=True):
            w = None if weights is None else arrays.narrow(weights, self._axis, start, stop)
            part = term._gram_diagonal(w)
            if part is None:
                return None
            total = part if total is None else total + part
        return total

    def _columns(self, index: Any, axes: tuple[int, ...]) -> LinearOperator:
        return Concatenation([t.columns(index, axes) for t in self.terms], self._position)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        if padded or axis != self.rule.codomain[0][self._position].name:
            return None
        pieces = []
        for term, first, last in zip(self.terms, self._starts[:-1], self._starts[1:], strict=True):
            lo, hi = max(start, first), min(stop, last)
            if lo < hi:
                name = term.rule.codomain[0][self._position].name
                relation = Relation.PRODUCED
                piece = weakened(term, name, lo - first, hi - first, False, relation, 0)
                if piece is None:
                    return None
                pieces.append(piece)
        if not pieces:
            cuts = [(0, self._position)]
            crop = Crop.along(self.codomain, cuts, start, stop, self.rule.codomain)
            return flat_product([crop, self])
        # One piece too: its axes keep the relations that they have in the whole.
        return Concatenation(pieces, self._position)

    def _cost(self) -> Cost:
        return sum((term.cost() for term in self.terms[1:]), self.terms[0].cost())


def _members(operators: Iterable[Any], name: str, side: str | None) -> list[LinearOperator]:
    terms = [as_operator(value) for value in operators]
    if not terms:
        raise ShapeError(f"{name} takes one or more operators, got none")
    if any(t.domain.is_complex or t.codomain.is_complex for t in terms) and not all(
        (t.domain.is_complex, t.codomain.is_complex)
        == (terms[0].domain.is_complex, terms[0].codomain.is_complex)
        for t in terms
    ):
        terms = [complexify(term) for term in terms]
    if side is None:
        return terms
    first = getattr(terms[0], side)
    for term in terms[1:]:
        if getattr(term, side).shape != first.shape:
            raise ShapeError(
                f"{name} takes operators with one {side}, got {terms[0].name} on "
                f"{first} and {term.name} on {getattr(term, side)}"
            )
    if len({getattr(term, side).dtype for term in terms}) > 1:
        widest = max(terms, key=lambda term: getattr(term, side).dtype.itemsize)
        terms = [_on_side(term, widest, side) for term in terms]
    return terms


def _on_side(term: LinearOperator, widest: LinearOperator, side: str) -> LinearOperator:
    from linops.elementary.identity import Cast

    own = getattr(term, side)
    wide = own.with_dtype(getattr(widest, side).dtype)
    if own.dtype == wide.dtype:
        return term
    if side == "domain":
        return flat_product([term, Cast(wide, own)])
    return flat_product([Cast(own, wide), term])


def _plain(space: AnySpace, name: str) -> Space:
    if not isinstance(space, Space):
        raise ShapeError(f"{name} takes operators with a plain codomain, got {space}")
    return space


def _product(spaces: Sequence[AnySpace]) -> ProductSpace:
    return ProductSpace([member for space in spaces for member in space.members])


def _tuple(x: Any, space: AnySpace) -> tuple[Any, ...]:
    return x if isinstance(space, ProductSpace) else (x,)


def _dealt(terms: Sequence[LinearOperator], x: Any, side: str) -> list[tuple[LinearOperator, Any]]:
    dealt, start = [], 0
    for term in terms:
        space = getattr(term, side)
        if isinstance(space, ProductSpace):
            count = len(space.spaces)
            dealt.append((term, tuple(x[start : start + count])))
        else:
            count = 1
            dealt.append((term, x[start]))
        start += count
    return dealt


def _every_complex(cls: Any, terms: Sequence[LinearOperator]) -> LinearOperator | None:
    if any("real_linear" in term.tags for term in terms):
        return None
    made: LinearOperator = cls([complexify(term) for term in terms])
    return made


def _spread_tags(terms: Sequence[LinearOperator], spreading: set[str]) -> frozenset[str]:
    every = frozenset.intersection(*(term.tags for term in terms))
    tags = set(every & spreading)
    for tag in ("real_linear", "approximate_adjoint"):
        if any(tag in term.tags for term in terms):
            tags.add(tag)
    return frozenset(tags)


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
