"""`Plan`: what was decided for an operator, to be read, explained and lowered.

How it is decided is in `sharding/planner.py`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from linops.errors import PlacementError
from linops.operator import Operator
from linops.space import ProductSpace
from sharding.assignment import Assignment
from sharding.graph import Graph, flatten
from sharding.machine import Machine, movement_seconds
from sharding.memory import Account, MemoryUse, counted, footprint
from sharding.mesh import Mesh
from sharding.placement import Placement
from sharding.program import Program
from sharding.states import Replicated, Sharded, State, States
from sharding.steps import Compute, Movement
from sharding.summary import summarize
from sharding.traffic import Stats, Traffic, expected

__all__ = ["Plan", "Settings", "states_of"]


@dataclass(frozen=True)
class Settings:
    """What a plan is made for: the engine, its rates, and what results must keep."""

    executor: str
    machine: Machine
    deterministic: bool = False
    memory: float | None = None
    batch: tuple[int, ...] = ()
    probe: bool = True


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """How an operator runs on a mesh of devices; made by `plan`.

    Attributes
    ----------
    operator
        What was planned.
    mesh
        The devices.
    settings
        What it was planned for.
    forward, adjoint
        The programs; `adjoint` is None where the operator is not linear.
    domain_placement, codomain_placement
        Where elements live; tuples for product spaces.
    notes
        What was decided and why, one sentence each.
    """

    operator: Operator
    graph: Graph
    mesh: Mesh
    settings: Settings
    assignments: tuple[Assignment, ...]
    forward: Program
    adjoint: Program | None
    domain_placements: tuple[Placement, ...]
    codomain_placements: tuple[Placement, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return summarize(self, "plan of")

    @property
    def domain_placement(self) -> Any:
        """The placement of elements of the domain; a tuple for a product space."""
        return _one(self.domain_placements, self.operator.domain)

    @property
    def codomain_placement(self) -> Any:
        """The placement of elements of the codomain; a tuple for a product space."""
        return _one(self.codomain_placements, self.operator.codomain)

    @property
    def executor(self) -> str:
        """`"serial"`, `"threads"`, `"shard_map"` or `"torch"`."""
        return self.settings.executor

    @property
    def machine(self) -> Machine:
        """The rates of the devices."""
        return self.settings.machine

    @property
    def deterministic(self) -> bool:
        """Whether results are the same bits on any number of devices."""
        return self.settings.deterministic

    @property
    def memory(self) -> float | None:
        """Bytes that each device may hold; None for what is free."""
        return self.settings.memory

    @property
    def batch(self) -> tuple[int, ...]:
        """Leading axes of the arrays that it was priced for."""
        return self.settings.batch

    @property
    def probe(self) -> bool:
        """Whether copies between accelerators are tried out first."""
        return self.settings.probe

    @property
    def by_batch(self) -> bool:
        """Whether devices share the leading axis of arrays, and nothing else is cut."""
        return self.mesh.by_batch

    @property
    def devices(self) -> tuple[Any, ...]:
        """The devices, in the order of the mesh."""
        return self.mesh.devices

    @cached_property
    def seconds(self) -> float:
        """The price that the plan was chosen by; no promise."""
        # An earlier mesh axis was decided before it was known what later ones leave to move.
        last = len(self.assignments) - 1
        programs = [p for p in (self.forward, self.adjoint) if p is not None]
        return self.assignments[-1].seconds + sum(
            movement_seconds(step, program.values, program.mesh, self.machine)
            for program in programs
            for step in program.steps
            if isinstance(step, Movement) and step.mesh_axis < last
        )

    @cached_property
    def footprint(self) -> MemoryUse:
        """Bytes on each device: resident, and at the peak of its programs.

        Of a compiled plan it is the compiler's own count, made without allocating; of others, and
        for devices that are not here, what the leaves state, added up step by step.
        """
        return counted(self.accounts) if self.accounts else self.stated

    @cached_property
    def stated(self) -> MemoryUse:
        """The footprint by what the leaves state, whatever the executor."""
        return footprint(self)

    @cached_property
    def accounts(self) -> tuple[Account, ...]:
        """The compiler's counts of forward and adjoint; empty where nothing is compiled."""
        from sharding.executors.account import accounts

        return accounts(self)

    @cached_property
    def stats(self) -> Stats:
        """What the runs of this plan have read, copied and added up so far."""
        return Stats()

    def traffic(self, adjoint: bool = False) -> Traffic:
        """What one run of the forward program, or the adjoint one, reads, copies and adds up."""
        program = self.adjoint if adjoint else self.forward
        if program is None:
            raise PlacementError(f"{self.operator.name} is not linear: it has no adjoint to run")
        return expected(program, self.machine.shared, math.prod(self.batch))

    def explain(self) -> str:
        """A table: step, where, shape, halo, bytes moved, flops, peak memory."""
        from sharding.explain import explain

        return explain(self)

    def lower(self) -> Any:
        """The operator on the plan's devices: of the same kind, placed elements in and out."""
        from sharding.lowered import lower

        return lower(self)

    def again(
        self,
        operator: Operator,
        entries: Sequence[States] | None = None,
        exits: Sequence[States] | None = None,
        key: Hashable = None,
    ) -> Plan:
        """A plan of another operator on the same mesh, with states of its inputs and outputs
        fixed; with a `key` it is drafted once for operators that differ in an index alone."""
        from sharding.drafts import draft

        drafted = self.__dict__.setdefault("_drafted", {})
        if key in drafted:
            return _over(drafted[key], operator)
        made = draft(operator, self.mesh, self.settings, None, None, entries, exits)
        if key is not None:
            bare: Any = {"operator": None, "graph": None}  # nobody's arrays are kept alive
            drafted[key] = replace(
                made,
                forward=_filled(made.forward, None),
                adjoint=None if made.adjoint is None else _filled(made.adjoint, None),
                **bare,
            )
        return made

    def __str__(self) -> str:
        return self.explain()

    def __getstate__(self) -> dict[str, Any]:
        # Engines are made again where the plan arrives.
        made = ("_engine", "_prepared", "_drafted", "accounts", "footprint", "stats")
        return {key: value for key, value in self.__dict__.items() if key not in made}


def states_of(placement: Placement) -> States:
    """The states that a placement stands for."""
    states: list[State] = [
        Replicated() if axis is None else Sharded(axis) for axis in placement.axes
    ]
    return tuple(states)


def _over(template: Plan, operator: Operator) -> Plan:
    """A plan without its leaves, with those of an operator of equal structure."""
    graph = flatten(operator)
    leaves = graph.leaves
    return replace(
        template,
        operator=operator,
        graph=graph,
        forward=_filled(template.forward, leaves),
        adjoint=None if template.adjoint is None else _filled(template.adjoint, leaves),
    )


def _filled(program: Program, leaves: Sequence[Operator] | None) -> Program:
    """A program with other leaves, by their numbers; None takes them out."""
    steps = tuple(
        replace(step, operator=None if leaves is None else leaves[step.number])  # type: ignore
        if isinstance(step, Compute)
        else step
        for step in program.steps
    )
    return replace(program, steps=steps)


def _one(placements: tuple[Placement, ...], space: Any) -> Any:
    return placements if isinstance(space, ProductSpace) else placements[0]
