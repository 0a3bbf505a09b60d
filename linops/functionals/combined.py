"""Sums, multiples and shifts of functionals."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from linops import arrays
from linops.algebra.arithmetic import add, scale
from linops.algebra.scaled import Scaled, is_complex
from linops.algebra.sums import Sum
from linops.arrays import Array
from linops.cost import Cost
from linops.functionals.functional import Functional, plain, positive_number
from linops.functionals.translation import Subtract
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.relations import positions
from linops.rule import Rule

__all__ = ["FunctionalSum", "ScaledFunctional", "ShiftedFunctional"]


class FunctionalSum(Functional, Sum, final=True):
    """A sum of functionals on one space."""

    def __init__(self, terms: Sequence[Functional]) -> None:
        Sum.__init__(self, terms)

    def surrogate(self, x: Any) -> LinearOperator:
        total: LinearOperator = _summed([term.surrogate(x) for term in self.terms])
        return total

    def _rows(self, index: Any) -> tuple[Operator, Operator]:
        terms, forms = zip(*(term._rows(index) for term in self.terms), strict=True)
        return _summed(terms), _summed(forms)

    def _value(self, x: Any) -> Any:
        values = [term(x) for term in self.terms]
        return sum(values[1:], values[0])

    def _cost(self) -> Cost:
        return Sum._cost(self)

    def _make_gradient(self) -> Operator:
        gradient: Operator = _summed([term.gradient for term in self.terms])
        return gradient

    def _prox(self, x: Any, step: Any) -> Any:
        """With a quadratic `w |x - c|^2 / 2` beside one other term f, that of f:
        `prox_{s f}((x + step w c) / (1 + step w))`, `s = step / (1 + step w)`."""
        rest: list[tuple[Any, Functional]] = []
        for factor, term in self._leaves():
            weight = term._curvature()
            if weight is None:
                same = [k for k, (_, other) in enumerate(rest) if other is term]
                if same:
                    rest[same[0]] = (rest[same[0]][0] + factor, term)
                else:
                    rest.append((factor, term))
                continue
            x, step = term._prox(x, step * factor), step / (1.0 + step * (factor * weight))
        if len(rest) > 1:
            return super()._prox(x, step)
        return rest[0][1]._prox(x, step * rest[0][0]) if rest else x

    def _curvature(self) -> Any:
        weights = [term._curvature() for term in self.terms]
        return None if any(weight is None for weight in weights) else sum(weights)

    def _leaves(self, factor: Any = 1.0) -> Iterator[tuple[Any, Functional]]:
        """The terms with their factors, those of multiples of sums too."""
        for term in self.terms:
            here, base = factor, term
            if isinstance(term, ScaledFunctional):
                here, base = factor * term.scalar, term.base
            if isinstance(base, FunctionalSum):
                yield from base._leaves(here)
            else:
                yield here, base


class ScaledFunctional(Functional, Scaled, final=True):
    """A functional times a number that is not negative."""

    base: Functional
    advice = (
        "weights of single entries are an argument of the functional, or a Diagonal inside: "
        "f @ Diagonal(array)"
    )

    def __init__(self, scalar: Any, base: Functional) -> None:
        Scaled.__init__(self, scalar, base)

    @classmethod
    def admitted(cls, scalar: Any, base: Any) -> tuple[Any, Any]:
        if is_complex(scalar):
            raise TypeError(f"'*' takes a real number, got {scalar}: {cls.advice}")
        return positive_number(scalar, "the factor of a functional", zero=True), base

    def surrogate(self, x: Any) -> LinearOperator:
        multiple: LinearOperator = scale(self.scalar, self.base.surrogate(x))
        return multiple

    def _rows(self, index: Any) -> tuple[Operator, Operator]:
        terms, form = self.base._rows(index)
        return scale(self.scalar, terms), scale(self.scalar, form)

    def _value(self, x: Any) -> Any:
        return self.scalar * self.base(x)

    def _cost(self) -> Cost:
        return Scaled._cost(self)

    def _make_gradient(self) -> Operator:
        gradient: Operator = scale(self.scalar, self.base.gradient)
        return gradient

    def _prox(self, x: Any, step: Any) -> Any:
        return self.base._prox(x, step * self.scalar)

    def _conjugate_value(self, p: Any) -> Any:
        """`scalar f*(p / scalar)`."""
        return self.scalar * self.base._conjugate_value(p / self.scalar)

    def _curvature(self) -> Any:
        weight = self.base._curvature()
        return None if weight is None else self.scalar * weight


class ShiftedFunctional(Functional):
    """`x -> base(x - shift)`."""

    batched = True

    def __init__(self, base: Functional, shift: Array) -> None:
        space = plain(base.domain, "translate")
        super().__init__(space, name="Shifted")
        trained = arrays.trainable(shift)
        if isinstance(base, ShiftedFunctional) and not (
            trained or arrays.trainable(base.translation.shift)
        ):
            shift, base = base.translation.shift + base._admit(shift), base.base
        self.base: Functional = base
        self.translation: Subtract = Subtract(space, shift)

    def surrogate(self, x: Any) -> LinearOperator:
        return self.base.surrogate(self.translation(self._admit(x)))

    def _value(self, x: Any) -> Any:
        return self.base(self.translation._apply(x))

    def _cost(self) -> Cost:
        return Cost.chained([self.base.cost(), self.translation.cost()])

    def _make_gradient(self) -> Operator:
        return self.base.gradient @ self.translation  # type: ignore[no-any-return]

    def _prox(self, x: Any, step: Any) -> Any:
        """`shift + prox_base(x - shift)`."""
        return self.base._prox(self.translation._apply(x), step) + self.translation._near(x)

    def _curvature(self) -> Any:
        return self.base._curvature()

    def _derive_rule(self) -> Rule:
        return Rule(self.base.rule.domain, self.base.rule.codomain)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        base: Any = self.base.block(axis, start, stop, padded)
        m, p = positions(self.base.rule.domain, axis)[0]
        halo, n = self.base.rule.halo(axis), self.domain.members[m].shape[p]
        lo, hi = start - halo, stop + halo
        if not padded:
            lo, hi = max(lo, 0), min(hi, n)
        name = self.translation.rule.domain[m][p].name
        return base @ self.translation.block(name, lo, hi, padded)  # type: ignore[no-any-return]


def _summed(parts: Sequence[Operator]) -> Any:
    return functools.reduce(add, parts)
