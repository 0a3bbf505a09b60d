"""Whether a plan fits the memory of its devices, and what to do where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linops.errors import PlacementError

if TYPE_CHECKING:
    from sharding.planner import Plan

__all__ = ["within_memory"]


def within_memory(plan: Plan, memory: float | None, chunks: dict[str, int]) -> Plan:
    """The plan, held to `memory` bytes a device (None: what is free).

    Raises
    ------
    PlacementError
        With the bytes needed and allowed, the largest step, and what would fit.
    """
    allowed = plan.machine.memory if memory is None else float(memory)
    needed = plan.footprint
    del chunks
    if allowed is None or needed.total <= allowed:
        return plan
    raise PlacementError(
        f"{plan.operator.name} needs {needed.total:,} bytes on each of {plan.mesh.size} devices "
        f"({needed.resident:,} resident, at most {needed.peak:,} in {needed.step}), allowed are "
        f"{int(allowed):,}; use more devices, another partition, or more memory"
    )
