"""The composition of operators: one flat node, whatever the order in which it was written.

The Jacobian of a composition is the product of the Jacobians, each taken where the one before has
led; the primal pass runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any, ClassVar, overload

from linops import guard
from linops.algebra.fused import links
from linops.algebra.mirror import mirrored
from linops.algebra.node import LinearNode, Node
from linops.algebra.norm import known_norm
from linops.algebra.rewrite import PRODUCT_RULES, extend
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.axes import resized
from linops.elementary.crop_pad import Crop
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.relations import Link, extent_of, link_named, positions, product_rule
from linops.rule import Relation, Rule

__all__ = ["Composition", "NonlinearComposition", "Product", "flat_product"]


class Composition(Node, family=True):
    """`terms[0](terms[1](...(x)))`; the last term is applied first.

    Spaces of neighbors are equal up to names and spacing; `linops.algebra.arithmetic` sees to
    that.
    """

    title: ClassVar[str] = "Composition"

    def __init__(
        self,
        terms: Sequence[Operator],
        tags: Collection[str] = (),
        rule: Rule | None = None,
    ) -> None:
        ends = terms[-1].domain, terms[0].codomain
        Operator.__init__(self, *ends, rule, name=self.title, tags=tags)
        self.__dict__["terms"] = tuple(terms)

    @classmethod
    def of(cls, terms: Sequence[Any]) -> Any:
        """The composition: linear where all terms are, a functional where the outermost is."""
        if len(terms) == 1:
            return terms[0]
        kind = terms[0]._kind
        for term in terms:
            if kind == LinearOperator._kind and not term.linear:
                kind = Operator._kind
        return cls._kinds[kind](terms)

    @cached_property
    def _forward(self) -> Callable[[Any], Any]:
        return guard.chain(links(self.terms, adjoint=False))

    def _apply(self, x: Any) -> Any:
        return self._forward(x)

    def _derive_rule(self) -> Rule:
        return self._legal(product_rule([term.rule for term in self.terms]))

    def _link(self, axis: str) -> Link | None:
        """The axis of that name, followed through the factors."""
        return link_named(self.rule, [term.rule for term in self.terms], axis)

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        link = self._link(axis)
        assert link is not None
        for term, name in zip(self.terms, link.names, strict=True):
            start, stop = term._input_range(str(name), start, stop)
        return start, stop

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Any:
        link, rules = self._link(axis), [term.rule for term in self.terms]
        if link is None or not link.factors:
            return None
        terms = list(self.terms)
        whole = self._planes(link, axis, start, stop)
        if link.relation is Relation.CONTRACTED:
            for k in range(link.last, link.first, -1):
                lo, _ = terms[k]._input_range(str(link.names[k]), 0, 0)
                halo = rules[k].halo(str(link.names[k]))
                start, stop = start - (lo + halo), stop - (lo + halo)
            if not padded:
                outer, name = terms[link.first], str(link.names[link.first])
                start, stop = _clip(
                    start, stop, extent_of(outer.domain, rules[link.first].domain, name)
                )
        for k in range(link.first, link.last + 1):
            term, name = self.terms[k], str(link.names[k])
            terms[k] = term.block(name, start, stop, padded)
            if k == link.last and link.relation is Relation.PRODUCED:
                break
            if rules[k].relation(name) is Relation.ALIGNED:
                start, stop = term._input_range(name, start, stop)
            else:
                halo = rules[k].halo(name)
                start, stop = start - halo, stop + halo
            if not padded:
                start, stop = _clip(start, stop, extent_of(term.domain, rules[k].domain, name))
        if not padded and link.relation is not Relation.PRODUCED:
            terms += self._unread(link, start, stop, whole)
        return flat_product(terms)

    def _planes(self, link: Link, axis: str, start: int, stop: int) -> tuple[int, int]:
        """Input planes that a block takes by rule."""
        if link.relation is Relation.ALIGNED:
            return self._input_range(axis, start, stop)
        return start - link.halo, stop + link.halo

    def _unread(
        self, link: Link, start: int, stop: int, whole: tuple[int, int]
    ) -> list[LinearOperator]:
        """A crop to planes `start` to `stop` where a factor cuts off more than the ends do."""
        rule, name = self.terms[-1].rule, str(link.names[-1])
        lo, hi = _clip(*whole, extent_of(self.domain, rule.domain, name))
        if (lo, hi) == (start, stop):
            return []
        cuts = positions(rule.domain, name)
        small = resized(self.domain, cuts, hi - lo)
        first = min(max(start - lo, 0), hi - lo)
        return [Crop.along(small, cuts, first, first + stop - start, rule.domain)]

    def _cost(self) -> Cost:
        return Cost.chained([term.cost() for term in self.terms])


class NonlinearComposition(Composition, final=True):
    """A composition of which at least one term is not linear."""

    def _jacobian(self, x: Any) -> LinearOperator:
        result: LinearOperator = self.terms[-1]._jacobian(x)
        for before, term in zip(self.terms[:0:-1], self.terms[-2::-1], strict=True):
            x = before._forward(x)
            result = term._jacobian(x) @ result
        return result


class Product(LinearNode, Composition, final=True):
    """A composition of linear operators."""

    title = "Product"
    terms: tuple[LinearOperator, ...]
    _spreading = frozenset({"unitary", "nonnegative", "diagonal"})

    @cached_property
    def _backward(self) -> Callable[[Any], Any]:
        return guard.chain(links(self.terms, adjoint=True))

    def _apply_adjoint(self, y: Any) -> Any:
        return self._backward(y)

    def _make_adjoint(self) -> LinearOperator:
        if "self_adjoint" in self._declared_tags or "self_adjoint" in mirrored(self.terms):
            return self
        return Product([term.H for term in reversed(self.terms)])

    def _derive_tags(self) -> frozenset[str]:
        return super()._derive_tags() | mirrored(self.terms)

    def _diagonal(self) -> Array | None:
        if not all("diagonal" in term.tags for term in self.terms):
            return None
        found = [term._diagonal() for term in self.terms]
        if any(part is None or isinstance(part, tuple) for part in found):
            return None
        out: Any = found[0]
        for part in found[1:]:
            out = out * part
        return out

    def _known_norm(self) -> float | None:
        """That of the one factor which is not unitary."""
        turning = [factor for factor in self.terms if "unitary" not in factor.tags]
        if len(turning) > 1:
            return None
        return known_norm(turning[0]) if turning else 1.0

    def _gram_diagonal(self, weights: Array | None) -> Array | None:
        if len(self.terms) == 1:
            return self.terms[0]._gram_diagonal(weights)
        rest: LinearOperator
        square = squared_diagonal(self.terms[0])
        if square is not None:
            rest = Composition.of(self.terms[1:])
            return rest._gram_diagonal(square if weights is None else square * weights)
        square = squared_diagonal(self.terms[-1])
        if square is None:
            return None
        rest = Composition.of(self.terms[:-1])
        found = rest._gram_diagonal(weights)
        return None if found is None else square * found

    def _columns(self, index: Array, axes: tuple[int, ...]) -> LinearOperator:
        columns = self.terms[-1].columns(index, axes)
        return flat_product([*self.terms[:-1], columns])


@overload
def flat_product(terms: Sequence[LinearOperator]) -> LinearOperator: ...
@overload
def flat_product(terms: Sequence[Operator]) -> Operator: ...
def flat_product(terms: Sequence[Any]) -> Any:
    """The composition of operators whose spaces fit, outermost first, rewritten where they meet."""
    flat: list[Operator] = []
    for term in terms:
        extend(flat, Composition.terms_in(term), PRODUCT_RULES)
    return Composition.of(flat)


def squared_diagonal(term: LinearOperator) -> Array | None:
    """The squared moduli of what a diagonal operator multiplies by; None of another one."""
    if "diagonal" not in term.tags or term.domain.shape != term.codomain.shape:
        return None
    d = term._diagonal()
    return None if d is None or isinstance(d, tuple) else abs(d) ** 2


def _clip(start: int, stop: int, n: int) -> tuple[int, int]:
    first = min(max(start, 0), n)
    return first, max(min(stop, n), first)
