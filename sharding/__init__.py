"""From a rule to a plan, and from a plan to several devices.

    p = plan(A, devices=4)          # any operator or functional
    print(p.explain())              # steps, bytes and memory, before anything runs
    B = p.lower()                   # of the same kind again: B @ x, B.H @ y, solvers

The planner works on rules and blocks of leaves (`linops.rule`, `A.block`) and knows no geometry.
`placement` says where an array lives, `states` and `program` what moves, `assignment` what is
cheapest, `executors` how it runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sharding.devices import Described, Rank, Worker
    from sharding.environment import check_environment
    from sharding.mesh import Mesh
    from sharding.placement import Placement
    from sharding.planner import plan
    from sharding.plans import Plan

__all__ = [
    "Described",
    "Mesh",
    "Placement",
    "Plan",
    "Rank",
    "Worker",
    "check_environment",
    "plan",
]

_ROOMS = {
    "Described": "devices",
    "Mesh": "mesh",
    "Placement": "placement",
    "Plan": "plans",
    "Rank": "devices",
    "Worker": "devices",
    "check_environment": "environment",
    "plan": "planner",
}


def __getattr__(name: str) -> Any:
    # Rooms are opened when they are first asked for: an import stays short.
    if name in _ROOMS:
        value = getattr(import_module(f"sharding.{_ROOMS[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'sharding' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
