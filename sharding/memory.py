"""Bytes that a plan holds on each device: predicted from shapes alone, before anything is made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from linops.algebra.blocks import extent
from linops.algebra.structure import leaves
from linops.operator import Operator
from sharding.program import Compute, Loop, Program, Step

if TYPE_CHECKING:
    from sharding.plans import Plan

__all__ = ["Footprint", "footprint", "peaks"]


@dataclass(frozen=True)
class Footprint:
    """Bytes on one device.

    Attributes
    ----------
    resident
        Elements of domain and codomain, and the operators' arrays.
    peak
        What a run holds at most beyond the operators' arrays, elements included.
    step
        The step at which that is.
    """

    resident: int
    peak: int
    step: str

    @property
    def total(self) -> int:
        """Bytes that must be free."""
        return max(self.resident, self.peak + self.operators)

    operators: int = 0


def footprint(plan: Plan) -> Footprint:
    """The footprint of a plan, of the larger of its two programs."""
    batch = math.prod(plan.batch)
    operators = sum(_operator_bytes(leaf) for leaf in plan.graph.leaves)
    programs = [plan.forward] + ([] if plan.adjoint is None else [plan.adjoint])
    ends = plan.forward
    elements = batch * sum(
        ends.values[k].local_bytes(ends.mesh) for k in (*ends.inputs, *ends.outputs)
    )
    worst, where = 0, "none"
    for program in programs:
        for step, held in zip(program.steps, peaks(program, batch), strict=True):
            if held > worst:
                worst, where = held, step.kind
    return Footprint(elements + operators, max(worst, elements), where, operators)


def peaks(program: Program, batch: int = 1) -> list[int]:
    """For each step the bytes that a device holds while it runs: what is read or will be read
    again, what is made, and the leaf's workspace."""
    last: dict[int, int] = {}
    for position, step in enumerate(program.steps):
        for k in step.inputs:
            last[k] = position
    for k in (*program.inputs, *program.outputs):
        last[k] = len(program.steps)  # the caller holds both
    alive = set(program.inputs)
    found = []
    for position, step in enumerate(program.steps):
        alive |= set(step.outputs)
        held = sum(program.values[k].local_bytes(program.mesh) for k in alive)
        found.append(batch * (held + _workspace(program, step)))
        alive = {k for k in alive if last.get(k, -1) > position}
    return found


def _workspace(program: Program, step: Step) -> int:
    if not isinstance(step, Compute):
        return 0
    share = 1.0
    made = [program.values[k] for k in (*step.outputs, *step.inputs)]
    whole = sum(math.prod(v.space.shape) * v.space.dtype.itemsize for v in made)
    local = sum(v.local_bytes(program.mesh) for v in made)
    if whole:
        share = local / whole
    if isinstance(step, Loop):
        name, length = step.bands
        share *= min(length / max(extent(step.operator, name), 1), 1.0)
    return int(step.operator.cost().workspace * share)


def _operator_bytes(leaf: Operator) -> int:
    return sum(int(a.size) * a.dtype.itemsize for a in leaves(leaf) if hasattr(a.dtype, "itemsize"))
