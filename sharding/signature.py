"""Plans and programs in words, equal on ranks that want the same, and different where they do not.

Names of operators are no part of them; values of arrays are in a plan's, up to 1 MiB an array
(geometry, small weights), so that ranks with unlike metadata are told before they exchange any.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.structure import leaves
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
        f"{tuple(a.shape)} {arrays.dtype_of(a)} {_values(a)}"
        for leaf in plan.graph.leaves
        for a in leaves(leaf)
        if hasattr(a, "dtype")
    ]
    arrays_ += [
        f"{space.axes} {space.spacing}"
        for leaf in plan.graph.leaves
        for space in (*leaf.domain.members, *leaf.codomain.members)
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


def _values(a: Array) -> str:
    if a.nbytes > _READ or not arrays.is_concrete(a):
        return ""
    host = arrays.to_numpy(a.detach() if arrays.is_torch(a) else a)
    return _digest(np.ascontiguousarray(host).tobytes())


def _digest(data: str | bytes) -> str:
    data = data.encode() if isinstance(data, str) else data
    return hashlib.blake2b(data, digest_size=6).hexdigest()


_READ = 1 << 20
