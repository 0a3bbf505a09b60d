"""The diagonal of a gram on ranks: each adds up the squares of its own block.

`sum_i w_i |A_ij|^2` is linear in `w`, and splits as the adjoint of A does; so it is an operator
with a rule, and a plan of it runs like any other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

from linops import arrays
from linops.algebra.composition import Product, flat_product, squared_diagonal
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.diagonal import Diagonal
from linops.linear_operator import LinearOperator
from linops.rule import Axis, Member, Rule
from linops.space import Space
from sharding.devices import family
from sharding.graph import flatten
from sharding.lowered import lower
from sharding.plans import Plan, states_of

__all__ = ["Squares", "diagonal_on_ranks"]


def diagonal_on_ranks(plan: Plan, base: LinearOperator, weights: Any = None) -> Any:
    """The diagonal of `base.gram(weights)`, placed as the domain of a plan is.

    None where it is no matter of ranks, or `base` is no leaf that knows its squares, alone or
    between diagonal operators.

    Parameters
    ----------
    plan
        Of an operator with the domain of `base`.
    base
        What is squared.
    weights
        An element of its codomain, plain or placed; None for 1.
    """
    of_all = _squares_of(base) if family(plan.devices[0]) == "torch" else None
    if of_all is None:
        return None
    exits = [states_of(placement) for placement in plan.domain_placements]
    placed = arrays.is_distributed(weights)
    entries = [states_of(p) for p in plan.codomain_placements] if placed else None
    squares: Any = lower(plan.again(of_all, entries, exits))
    return squares @ squares.domain.home.put(squares.domain.ones() if weights is None else weights)


def _squares_of(base: LinearOperator) -> LinearOperator | None:
    """`w -> diagonal of base.gram(w)` as a composition; None where there is none."""
    if Squares.serves(base):
        return Squares(base)
    if not isinstance(base, Product):
        return None
    factors: list[LinearOperator] = []
    for term in reversed(base.terms):
        square = squared_diagonal(term)
        if square is not None and isinstance(term.domain, Space):
            factors.append(Diagonal(square, term.domain))
        elif Squares.serves(term):
            factors.append(Squares(term))
        else:
            return None
    several = sum(isinstance(factor, Squares) for factor in factors) != 1
    return None if several else flat_product(factors)


class Squares(LinearOperator):
    """`w -> diagonal of base.gram(w)`, from the codomain of `base` to its domain.

    Parameters
    ----------
    base
        A leaf between real single arrays. Axes that it reads with a halo are not split.
    """

    def __init__(self, base: LinearOperator) -> None:
        rule = base.rule.adjoint()
        bound = {axis.name for axis in rule if axis.halo or axis.periodic}
        sides = (_held(rule.domain, bound), _held(rule.codomain, bound))
        super().__init__(
            base.codomain,
            base.domain,
            Rule(*sides),
            precision=base.precision,
            name=f"squares of {base.name}",
        )
        self.base = base

    @staticmethod
    def serves(base: LinearOperator) -> bool:
        """Whether `base` is a leaf that knows the diagonal of its gram."""
        spaces = base.domain, base.codomain
        return (
            all(isinstance(space, Space) and not space.is_complex for space in spaces)
            and type(base)._gram_diagonal is not LinearOperator._gram_diagonal
            and flatten(base).leaves == (base,)
        )

    def _apply(self, w: Array) -> Array:
        found = self.base._gram_diagonal(w)
        return self.base.gram(w).diagonal(limit=None) if found is None else found

    def _apply_adjoint(self, d: Array) -> NoReturn:
        raise NotImplementedError(f"{self.name} are summed only; nothing reads them backwards")

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        if padded:
            return None
        block = self.base.block(axis, start, stop)
        assert isinstance(block, LinearOperator)
        return Squares(block)

    def _cost(self) -> Cost:
        cost = self.base.H.cost()
        return replace(cost, flops=_TIMES * cost.flops)


_TIMES = 12  # what a compiled projector's squares cost beside its adjoint, measured


def _held(members: tuple[Member, ...], bound: set[str]) -> tuple[Member, ...]:
    """The members of a rule, without a halo; axes of `bound` are not split."""
    return tuple(
        tuple(Axis(a.name, splits=a.splits and a.name not in bound) for a in member)
        for member in members
    )
