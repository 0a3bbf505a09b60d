"""The composition of operators: one flat node, whatever the order in which it was written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any, ClassVar

from linops import guard
from linops.algebra.fused import links
from linops.algebra.mirror import mirrored
from linops.algebra.norm import known_norm
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.axes import resized
from linops.elementary.crop_pad import Crop
from linops.linear_operator import LinearOperator
from linops.precision import Precision
from linops.relations import Link, link_named, positions, product_rule
from linops.rule import Relation, Rule

__all__ = ["Product"]

_SPREADING = ("unitary", "nonnegative", "diagonal")


class Product(LinearOperator):
    """`terms[0] @ terms[1] @ ...`; the last term is applied first.

    Spaces of neighbours are equal up to names and spacing; `linops.algebra.arithmetic` sees to
    that.
    """

    terms: tuple[LinearOperator, ...]
    batched = True
    _exact: ClassVar[bool] = True

    def __init__(
        self,
        terms: Sequence[LinearOperator],
        tags: Collection[str] = (),
        rule: Rule | None = None,
    ) -> None:
        super().__init__(terms[-1].domain, terms[0].codomain, rule, name="Product", tags=tags)
        self.__dict__["terms"] = tuple(terms)

    @cached_property
    def _aliases(self) -> bool:  # type: ignore[override]
        # Of a chain, members of a product space may still be one array.
        return any(term._aliases for term in self.terms)

    @cached_property
    def _forward(self) -> Callable[[Any], Any]:
        return guard.chain(links(self.terms, adjoint=False))

    @cached_property
    def _backward(self) -> Callable[[Any], Any]:
        return guard.chain(links(self.terms, adjoint=True))

    def _apply(self, x: Any) -> Any:
        return self._forward(x)

    def _apply_adjoint(self, y: Any) -> Any:
        return self._backward(y)

    def _make_adjoint(self) -> LinearOperator:
        if "self_adjoint" in self._declared_tags or "self_adjoint" in mirrored(self.terms):
            return self
        return Product([term.H for term in reversed(self.terms)])

    def _make_conjugate(self) -> LinearOperator:
        return Product([term.conj() for term in self.terms])

    def _complexified(self) -> LinearOperator | None:
        if any("real_linear" in term.tags for term in self.terms):
            return None
        from linops.algebra.complexify import complexify

        return Product([complexify(term) for term in self.terms])

    def _derive_rule(self) -> Rule:
        return product_rule([term.rule for term in self.terms])

    def _derive_tags(self) -> frozenset[str]:
        tags = [term.tags for term in self.terms]
        every, some = frozenset.intersection(*tags), frozenset.union(*tags)
        spreading = every.intersection(_SPREADING)
        return spreading | (some & {"real_linear", "approximate_adjoint"}) | mirrored(self.terms)

    def _derive_precision(self) -> Precision:
        return Precision.coarsest(term.precision for term in self.terms)

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
        outer, rest = self.terms[0], self.terms[1:]
        if not rest:
            return outer._gram_diagonal(weights)
        if "diagonal" not in outer.tags or outer.domain.shape != outer.codomain.shape:
            return None
        d = outer._diagonal()
        if d is None or isinstance(d, tuple):
            return None
        square = abs(d) ** 2 if weights is None else abs(d) ** 2 * weights
        return (rest[0] if len(rest) == 1 else Product(rest))._gram_diagonal(square)

    def _columns(self, index: Array, axes: tuple[int, ...]) -> LinearOperator:
        from linops.algebra.arithmetic import flat_product

        return flat_product([*self.terms[:-1], self.terms[-1].columns(index, axes)])

    def _link(self, axis: str) -> Link | None:
        """The axis of that name, followed through the factors."""
        return link_named(self.rule, [term.rule for term in self.terms], axis)

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        link = self._link(axis)
        assert link is not None
        for term, name in zip(self.terms, link.names, strict=True):
            start, stop = term._input_range(str(name), start, stop)
        return start, stop

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        from linops.algebra.blocks import extent_of

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
            block = term.block(name, start, stop, padded)
            assert isinstance(block, LinearOperator)
            terms[k] = block
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
        from linops.algebra.arithmetic import flat_product

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
        from linops.algebra.blocks import extent_of

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


def _clip(start: int, stop: int, n: int) -> tuple[int, int]:
    first = min(max(start, 0), n)
    return first, max(min(stop, n), first)
