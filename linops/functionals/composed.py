"""A functional of what an operator gives: `f @ A`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from linops import arrays
from linops.algebra.composition import Composition, Product
from linops.algebra.scaled import ScaledLinear
from linops.cost import Cost
from linops.elementary.crop_pad import Crop
from linops.elementary.plane_windows import PlaneMask
from linops.elementary.select import Restriction
from linops.functionals.functional import Functional
from linops.functionals.linear_form import bare
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.relations import Link, extent_of, positions, product_links, product_rule
from linops.rule import Axis, Relation, Rule

__all__ = ["ComposedFunctional"]


class ComposedFunctional(Functional, Composition, final=True):
    """`x -> outer(inner(x))`.

    The gradient is `J.H gradient(inner(x))`, with the Jacobian J of the inner operator; for a
    linear A the surrogate is `A.H S A`, and there is a proximal map where `A A.H` is a multiple
    of the identity.
    """

    def __init__(self, terms: Sequence[Operator]) -> None:
        outer, *rest = terms
        inner: Operator = Composition.of(rest)
        Operator.__init__(self, inner.domain, outer.codomain, name=f"{outer.name} @ {inner.name}")
        self.terms = outer, inner
        self.batched = inner.linear

    @property
    def outer(self) -> Functional:
        """The functional."""
        return self.terms[0]  # type: ignore[no-any-return]

    @property
    def inner(self) -> Operator:
        """The operator inside of it."""
        return self.terms[1]  # type: ignore[no-any-return]

    def surrogate(self, x: Any) -> LinearOperator:
        if not isinstance(self.inner, LinearOperator):
            raise TypeError(
                f"{self.name} has no majorizing quadratic: {self.inner.name} is not linear; "
                "linearise it with jacobian(x)"
            )
        S = self.outer.surrogate(self.inner(self._admit(x)))
        return self.inner.gram(S)

    def _value(self, x: Any) -> Any:
        return self.outer(self.inner(x))

    def _cost(self) -> Cost:
        return Composition._cost(self)

    def _gradient_cost(self) -> Cost:
        # The Jacobian of a map that is not linear costs about as much as the map.
        inner = self.inner.cost()
        return Cost.chained([inner.reversed, self.outer.gradient.cost(), inner + inner])

    def _make_gradient(self) -> Operator:
        if isinstance(self.inner, LinearOperator):
            return self.inner.H @ self.outer.gradient @ self.inner  # type: ignore[no-any-return]
        return super()._make_gradient()

    def _gradient(self, x: Any) -> Any:
        return self.inner._jacobian(x).H(self.outer.gradient(self.inner(x)))

    def _prox(self, x: Any, step: Any) -> Any:
        """`x + A.H (prox_{c step f}(A x) - A x) / c`, with `A A.H = c I`."""
        c = _tightness(self.inner)
        if c is None or not isinstance(self.inner, LinearOperator):
            raise NotImplementedError(
                f"{self.name} has no proximal map in closed form: that needs an operator with "
                "A @ A.H a multiple of the identity; keep the operator apart, as primal-dual "
                "methods do, or use gradient or surrogate"
            )
        y = self.inner(x)
        back = self.inner.H(self.outer._prox(y, step * c) - y)
        return x + back * (1.0 / c)

    def _links(self) -> list[Link]:
        """The axes of the domain that are aligned through the operator and contracted after it."""
        rules = [term.rule for term in self.terms]
        found = []
        for link in product_links(rules):
            outer, inner = link.names
            if outer is None or inner is None or link.relation is not Relation.CONTRACTED:
                continue
            if rules[1].relation(inner) is not Relation.ALIGNED or link.periodic:
                continue
            halo = rules[1].halo(inner)
            if self.inner._input_range(inner, 0, 1) != (-halo, 1 + halo):
                continue
            if extent_of(self.inner.domain, rules[1].domain, inner) != extent_of(
                self.inner.codomain, rules[1].codomain, inner
            ):
                continue
            found.append(link)
        return found

    def _derive_rule(self) -> Rule:
        halos = {str(link.names[1]): link.halo for link in self._links()}
        rule = product_rule([term.rule for term in self.terms])
        domain = tuple(
            tuple(Axis(one.name, halos.get(one.name, 0), splits=one.name in halos) for one in row)
            for row in rule.domain
        )
        return Rule(domain, rule.codomain)

    def _gradient_rule(self) -> Rule:
        # Of a nonlinear operator: what another plane's term needs is beyond one halo.
        row = tuple(
            tuple(replace(one, halo=0, splits=one.splits and not one.halo) for one in member)
            for member in self.rule.domain
        )
        return Rule(row, row)

    def _gradient_block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        block: Any = self.block(axis, start, stop, padded)
        if not padded:
            return block.gradient  # type: ignore[no-any-return]
        cuts = positions(self.rule.domain, axis)
        n = extent_of(self.domain, self.rule.domain, axis)
        mask = PlaneMask(block.domain, cuts, -start, n - start, bare(self.rule.domain))
        return mask @ block.gradient  # type: ignore[no-any-return]


def _tightness(operator: Operator) -> Any:
    """The number c with `A A.H = c I`, None where that is not certain."""
    if isinstance(operator, LinearOperator) and "unitary" in operator.tags:
        return 1.0
    if isinstance(operator, ScaledLinear):
        base = _tightness(operator.base)
        if base is None or operator.scalar is None:
            return None
        return base * abs(operator.scalar) ** 2
    if isinstance(operator, Crop):
        return 1.0
    if isinstance(operator, Restriction) and _distinct(operator):
        return 1.0
    if isinstance(operator, Product):
        parts = [_tightness(term) for term in operator.terms]
        total: Any = 1.0
        for part in parts:
            if part is None:
                return None
            total = total * part
        return total
    return None


def _distinct(operator: Restriction) -> bool:
    index = operator.index
    if arrays.is_traced(index):
        return False
    host = arrays.to_numpy(index).ravel().tolist()
    return min(host, default=0) >= 0 and len(set(host)) == len(host)
