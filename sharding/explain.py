"""What a plan will do, as text: one line a step, with bytes and flops before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linops.cost import bytes_of
from sharding.devices import family
from sharding.memory import peaks_of
from sharding.program import Program
from sharding.states import Windowed
from sharding.steps import Compute, Loop, Movement, Step

if TYPE_CHECKING:
    from sharding.plans import Plan

__all__ = ["explain"]

_HEAD = ("step", "what", "where", "local shape", "dtype", "halo", "bytes moved", "flops", "memory")


def explain(plan: Plan) -> str:
    """The table of a plan."""
    lines = [f"plan of {plan.operator.name}: {plan.operator.rule}"]
    lines += [f"  {note}" for note in plan.notes]
    lines.append(f"  mesh {dict(zip(plan.mesh.names, plan.mesh.shape, strict=True))}")
    for side, placements in (
        ("domain", plan.domain_placements),
        ("codomain", plan.codomain_placements),
    ):
        lines.append(f"  {side}: " + "; ".join(map(str, placements)))
    held = plan.footprint
    where = "of the process" if plan.machine.shared else "a device"
    lines.append(
        f"  memory {where}: {held.total:,} bytes; {held.resident:,} resident, {held.peak:,} "
        f"beside operators' arrays at the peak ({held.step})"
    )
    for name, account in zip(("forward", "adjoint"), plan.accounts, strict=False):
        lines.append(
            f"  compiled {name}, a device: {account.operators + account.run:,} bytes "
            f"({account.inputs:,} in, {account.operators:,} operators' arrays, "
            f"{account.results:,} out, {account.temporaries:,} temporary); the column below is "
            "what leaves state"
        )
    if plan.machine.shared:
        lines.append("  shared memory: shares and halos are views, only sums of parts are copied")
    if family(plan.devices[0]) == "jax":
        from sharding.probe import verdict

        lines.append(f"  {verdict(plan.devices)}")
    for name in ("forward", "adjoint")[: 1 if plan.adjoint is None else 2]:
        lines.append(f"  a run of {name}: {plan.traffic(name == 'adjoint')}")
    lines += _descent(plan)
    lines += ["", "forward", *_table(plan.forward, peaks_of(plan, plan.forward))]
    if plan.adjoint is not None:
        lines += ["", "adjoint", *_table(plan.adjoint, peaks_of(plan, plan.adjoint))]
    return "\n".join(lines)


def _descent(plan: Plan) -> list[str]:
    """What a pass of coordinate descent over all subsets of the domain moves and holds.

    Movements of volumes bring columns, so all subsets together move one volume; those of
    projections are made anew for each.
    """
    domain, codomain = plan.operator.domain, plan.operator.codomain
    if plan.adjoint is None or len(domain.members) + len(codomain.members) > 2:
        return []
    once = each = 0
    for program in (plan.forward, plan.adjoint):
        for step in program.steps:
            if isinstance(step, Movement):
                columns = program.values[step.inputs[0]].space.shape == domain.shape
                once += program.volume(step) * columns
                each += program.volume(step) * (not columns)
    ends = (plan.forward.outputs[0], 3), (plan.forward.inputs[0], 2)
    held = sum(
        count
        * (
            bytes_of(plan.forward.values[k].space)
            if plan.machine.shared
            else plan.forward.values[k].local_bytes(plan.forward.mesh)
        )
        for k, count in ends
    )
    more = f", and {each:,} for each subset" if each else ""
    where = "in all" if plan.machine.shared else "a device"
    return [
        f"  a pass of vcd: {once:,} bytes moved for columns{more}; {held:,} resident {where} "
        "(data, roots of weights, error; volume, curvature)"
    ]


def _table(program: Program, held: list[int]) -> list[str]:
    rows: list[tuple[str, ...]] = [_HEAD]
    total = 0
    for step, bytes_held in zip(program.steps, held, strict=True):
        total += program.volume(step)
        rows.append(_row(program, step, bytes_held))
    rows.append(("total", "", "", "", "", "", f"{total:,}", "", ""))
    widths = [max(len(row[c]) for row in rows) for c in range(len(_HEAD))]
    return [
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _row(program: Program, step: Step, held: int) -> tuple[str, ...]:
    what, flops, halo = "", "", ""
    if isinstance(step, Compute):
        name = step.operator.name + (".H" if step.adjoint else "")
        cuts = [cut for cut in step.cuts if cut is not None]
        what = f"{name} by {', '.join(cuts)}" if cuts else f"{name} whole"
        if isinstance(step, Loop):
            what += " in bands of {1} {0}".format(*step.bands)
        flops = f"{step.operator.cost().flops:.3g}"
    elif isinstance(step, Movement):
        what = f"mesh axis {step.mesh_axis}"
        for k in (*step.outputs, *step.inputs):
            state = program.values[k].states[step.mesh_axis]
            if isinstance(state, Windowed):
                lo, hi = state.padded[0]
                # The next share starts where this one ends.
                end = state.padded[1][0] - lo if len(state.padded) > 1 else hi
                halo = f"{max(-lo, 0)}+{max(hi - end, 0)}" + ("*" if state.periodic else "")
                break
    value = program.values[step.outputs[0]]
    return (
        step.kind,
        what,
        "x".join(map(str, value.states)),
        str(value.local_shape(program.mesh)),
        str(value.space.dtype),
        halo,
        f"{program.volume(step):,}",
        flops,
        f"{held:,}",
    )
