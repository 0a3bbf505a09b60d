"""Compositions of maps of which some are not linear: chain rule.

The Jacobian of a composition is the product of the Jacobians, each taken where the one before has
led; the primal pass runs once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from linops.algebra.placed import chained
from linops.cost import Cost
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.precision import Precision
from linops.relations import link_named, only_local, product_rule
from linops.rule import Relation, Rule

__all__ = ["Composition", "composed"]


class Composition(Operator):
    """`terms[0](terms[1](...(x)))`; at least one term is not linear."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, terms: Sequence[Operator]) -> None:
        super().__init__(terms[-1].domain, terms[0].codomain, name="Composition")
        self.terms = tuple(terms)

    def _apply(self, x: Any) -> Any:
        for term in reversed(self.terms):
            x = term._forward(x)
        return x

    def _jacobian(self, x: Any) -> LinearOperator:
        from linops.algebra.arithmetic import compose

        result: LinearOperator | None = None
        for number, term in enumerate(reversed(self.terms)):
            jacobian = term._jacobian(x)
            result = jacobian if result is None else compose(jacobian, result)
            if number < len(self.terms) - 1:
                x = term._forward(x)
        assert result is not None
        return result

    def _derive_rule(self) -> Rule:
        return only_local(product_rule([term.rule for term in self.terms]))

    def _derive_precision(self) -> Precision:
        return Precision.coarsest(term.precision for term in self.terms)

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        link = link_named(self.rule, [term.rule for term in self.terms], axis)
        assert link is not None
        for term, name in zip(self.terms, link.names, strict=True):
            start, stop = term._input_range(str(name), start, stop)
        return start, stop

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        from linops.algebra.blocks import extent_of

        link = link_named(self.rule, [term.rule for term in self.terms], axis)
        if link is None or not link.factors or link.relation is Relation.CONTRACTED:
            return None
        blocks = list(self.terms)
        for k in range(link.last + 1):
            term, name = self.terms[k], str(link.names[k])
            blocks[k] = term.block(name, start, stop, padded)
            if k == link.last and link.relation is Relation.PRODUCED:
                break
            start, stop = term._input_range(name, start, stop)
            if not padded:
                n = extent_of(term.domain, term.rule.domain, name)
                start = min(max(start, 0), n)
                stop = max(min(stop, n), start)
        return composed(*blocks)

    def _cost(self) -> Cost:
        return Cost.chained([term.cost() for term in self.terms])


def composed(*terms: Operator) -> Operator:
    """The composition, outermost first; linear neighbours are multiplied together."""
    from linops.algebra.arithmetic import compose
    from linops.elementary.identity import Identity

    flat: list[Operator] = []
    for term in terms:
        for part in term.terms if isinstance(term, Composition) else (term,):
            if isinstance(part, Identity):
                continue
            if flat and isinstance(flat[-1], LinearOperator) and isinstance(part, LinearOperator):
                flat[-1] = compose(flat[-1], part)
            else:
                if flat:
                    _fits(flat[-1], part)
                    flat[-1], part = chained(flat[-1], part)
                flat.append(part)
    if not flat:
        return terms[0]
    return flat[0] if len(flat) == 1 else Composition(flat)


def _fits(outer: Operator, inner: Operator) -> None:
    if outer.domain.shape != inner.codomain.shape or outer.domain.dtype != inner.codomain.dtype:
        raise ShapeError(
            f"cannot compose {outer.name} @ {inner.name}: {outer.name} takes {outer.domain}, "
            f"{inner.name} gives {inner.codomain}"
        )
