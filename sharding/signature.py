"""Plans and programs in words, equal on ranks that want the same, and different where they do not.

Names of operators and values of arrays are no part of them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from linops import arrays
from linops.algebra.structure import leaves
from sharding.program import Program
from sharding.steps import Compute, Loop, Movement

if TYPE_CHECKING:
    from sharding.plans import Plan

__all__ = ["of_plan", "of_program"]


def of_program(program: Program) -> str:
    """A digest of steps, states, rules and shapes."""
    return _digest("\n".join(_lines(program)))


def of_plan(plan: Plan) -> str:
    """Mesh, executor, and digests of what runs."""
    programs = [plan.forward] + ([] if plan.adjoint is None else [plan.adjoint])
    arrays_ = [
        f"{tuple(a.shape)} {arrays.dtype_of(a)}"
        for leaf in plan.graph.leaves
        for a in leaves(leaf)
        if hasattr(a, "dtype")
    ]
    mesh = dict(zip(plan.mesh.names, plan.mesh.shape, strict=True))
    order = ",".join(str(getattr(d, "number", d)) for d in plan.devices)
    return (
        f"{plan.operator.name}: {plan.operator.domain} -> {plan.operator.codomain} on mesh {mesh} "
        f"of ranks {order}, precision {plan.operator.precision}, program "
        f"{'/'.join(map(of_program, programs))}, arrays {_digest(';'.join(arrays_))}, batch "
        f"{plan.batch}, deterministic {plan.deterministic}"
    )


def _lines(program: Program) -> list[str]:
    found = [f"{program.mesh} {program.inputs} {program.outputs}"]
    for step in program.steps:
        made = [f"{program.values[k]} {program.values[k].space.dtype}" for k in step.outputs]
        extra = ""
        if isinstance(step, Compute):
            leaf = step.operator
            extra = f"{type(leaf).__name__} {leaf.rule} {leaf.precision} {step.cuts} {step.adjoint}"
            if isinstance(step, Loop):
                extra += f" {step.bands}"
        elif isinstance(step, Movement):
            extra = f"{step.mesh_axis} {[program.values[k].states for k in step.outputs]!r}"
        found.append(f"{step.kind} {step.inputs} {step.outputs} {made} {extra}")
    return found


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
