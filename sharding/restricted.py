"""A functional seen from a subset of positions, on devices: what VCD asks of a prior."""

from __future__ import annotations

from typing import Any

from linops.functionals.restricted import Restricted
from linops.operator import Operator
from linops.rule import Member
from sharding.lowered import LoweredFunctional, lower
from sharding.plans import Plan, states_of
from sharding.states import REPLICATED, Sharded, State, States

__all__ = ["LoweredRestricted", "lowered_beside"]


class LoweredRestricted(Restricted):
    """Rows of a functional at a subset, each made where the planes of its slab are.

    Parameters
    ----------
    functional
        On the devices of its plan.
    index
        Flat positions along the last two axes, shape (s,), -1 inert.
    """

    def __init__(self, functional: LoweredFunctional, index: Any) -> None:
        base = functional.base.restrict(index)
        plan = functional.plan
        states = states_of(plan.domain_placements[0])
        made: list[Any] = [
            lowered_beside(plan, states, operator, (kind, len(base.picks.index)))  # type: ignore
            for kind, operator in enumerate((base.picks, base.of_terms, base.of_form))
        ]
        super().__init__(functional, *made)


def lowered_beside(plan: Plan, states: States, operator: Operator, key: Any = None) -> Any:
    """An operator lowered where the first member of its domain has these states; the others, and
    what it makes, are cut along the axes to which its rule gives the same names."""
    rule = operator.rule
    names = [a.name for a in rule.domain[0]]
    cuts = [names[s.axis] if isinstance(s, Sharded) else None for s in states]

    def cut(member: Member) -> States:
        own = [a.name for a in member]
        found: list[State] = [
            Sharded(own.index(name)) if name in own else REPLICATED for name in cuts
        ]
        return tuple(found)

    again = plan.again(operator, list(map(cut, rule.domain)), list(map(cut, rule.codomain)), key)
    return lower(again)
