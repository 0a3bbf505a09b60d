"""A functional seen from a subset of positions, on devices: what VCD asks of a prior."""

from __future__ import annotations

from typing import Any

from linops.functionals.restricted import Restricted
from sharding.lowered import LoweredFunctional, lowered_beside
from sharding.plans import states_of

__all__ = ["LoweredRestricted"]


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
