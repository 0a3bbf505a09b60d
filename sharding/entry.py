"""Programs on elements as callers have them: put on their devices on entry, gathered on exit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from linops import arrays
from linops.space import ProductSpace
from linops.structure import leaves
from sharding.devices import family
from sharding.executors import Engine
from sharding.memory import explained
from sharding.plans import Plan, states_of
from sharding.program import Program
from sharding.states import States

__all__ = [
    "gather",
    "is_placed",
    "is_traced",
    "map_over",
    "pairs",
    "run_program",
    "states_of_all",
]


def is_traced(plan: Plan) -> bool:
    """Whether JAX traces arrays of an operator planned for workers, which run no traced code: the
    trace takes the operator itself."""
    if "jax" not in sys.modules or family(plan.devices[0]) != "threads":
        return False
    found = plan.__dict__.get("_traced")
    if found is None:
        found = plan.__dict__["_traced"] = any(map(arrays.is_traced, leaves(plan.operator)))
    return bool(found)


def map_over(x: Any, source: Any, target: Any, program: Program, engine: Engine) -> Any:
    """A program on an element: plain ones are put on entry, and what it makes is gathered."""
    placed = is_placed(x, source)
    parts = [space.home.adopt(part) for space, part in pairs(x, source)]
    made = run_program(engine, program, parts)
    if not placed:
        like = x[0] if isinstance(x, tuple) else x
        made = [
            arrays.convert(space.home.gather(part), like)
            for space, part in zip(target.members, made, strict=True)
        ]
    return tuple(made) if isinstance(target, ProductSpace) else made[0]


def run_program(engine: Engine, program: Program, parts: list[Any]) -> list[Any]:
    """The parts that a program makes of placed ones; an error for want of memory says whose."""
    with explained(engine.plan):
        return engine.run(program, parts)


def pairs(x: Any, space: Any) -> list[tuple[Any, Any]]:
    """The members of a space, each with its part of an element."""
    parts = x if isinstance(space, ProductSpace) else (x,)
    return list(zip(space.members, parts, strict=True))


def is_placed(x: Any, space: Any) -> bool:
    """Whether an element is placed, or a member of it: plain ones are then put beside it."""
    return any(
        arrays.is_distributed(part) or member.home.placement.holds(part)
        for member, part in pairs(x, space)
    )


def gather(x: Any, space: Any) -> Any:
    """The plain arrays of an element; anything else, such as a number, as it is."""
    several = isinstance(space, ProductSpace)
    return space.home.gather(x) if several or arrays.is_array(x) else x


def states_of_all(placements: Sequence[Any]) -> list[States]:
    """How every member is cut."""
    return [states_of(placement) for placement in placements]
