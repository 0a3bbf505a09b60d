"""Plans and lowered operators in three lines: what is planned, on which devices, where arrays lie.

The whole table of a plan is `sharding/explain.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from linops.space import AnySpace
from sharding.placement import Placement

if TYPE_CHECKING:
    from sharding.plans import Plan

__all__ = ["summarize"]


def summarize(plan: Plan, head: str, tags: Iterable[str] = ()) -> str:
    """`head`, what is planned with its spaces; executor and devices; where elements live."""
    operator = plan.operator
    shown = f" [{', '.join(sorted(tags))}]" if tags else ""
    count = len(plan.devices)
    kinds = ", ".join(map(str, plan.devices[:3])) + (", ..." if count > 3 else "")
    domain = _where(operator.domain, plan.domain_placements)
    codomain = _where(operator.codomain, plan.codomain_placements)
    return (
        f"<{head} {operator.name}: {operator.domain} -> {operator.codomain}, "
        f"{operator.precision}{shown}\n"
        f" executor {plan.executor}, {count} device{'' if count == 1 else 's'} ({kinds})\n"
        f" domain {domain}; codomain {codomain}>"
    )


def _where(space: AnySpace, placements: Sequence[Placement]) -> str:
    """`cut along z in 2 shares`, a member each."""
    found = []
    for member, placement in zip(space.members, placements, strict=True):
        cuts = [axis for axis in placement.axes if axis is not None]
        names = [str(member.axes[axis]) if member.axes else f"axis {axis}" for axis in cuts]
        found.append("cut along " + " and ".join(names) if cuts else "a copy each")
    return ", ".join(found)
