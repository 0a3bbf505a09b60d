"""Plans that fit the memory of their devices: in bands, without partial sums, or refused.

How leaves run in bands is in `sharding/banding.py`, what a plan holds in `sharding/memory.py`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from linops.algebra.blocks import extent
from linops.errors import PlacementError
from sharding import banding, partitions
from sharding.devices import Described
from sharding.drafts import draft
from sharding.machine import leaf_seconds
from sharding.mesh import Mesh
from sharding.plans import Plan
from sharding.states import REPLICATED, Sharded, States
from sharding.steps import AllGather, Compute, ReduceScatter

__all__ = ["within_memory"]

_COUNTED = 8
"""No compiler has been seen to take so many times what leaves state."""

_OVERHEAD = 0.05
"""What starting its bands may cost of a leaf's time, where there is a choice."""


def within_memory(found: Plan, request: partitions.Request, chunks: dict[str, int]) -> Plan:
    """The plan, run in bands where that is asked for, or where it would not fit.

    Lengths that are asked for win over every limit. Else bands are as long as fits; of several axes
    that one is taken whose bands cost less than a twentieth of the time to start, or least.

    Raises
    ------
    PlacementError
        Where no plan fits: what is needed and allowed, the largest step, and what would fit.
    """
    if chunks:
        return _in_bands(found, chunks)
    allowed = found.machine.memory if found.memory is None else float(found.memory)
    if allowed is None or _surely_fits(found, allowed) or found.footprint.total <= allowed:
        return _in_short_bands(found) if request.sides else found
    smallest = found
    best: tuple[float, Plan] | None = None
    for one, leaf, names in _ways(found, request):
        if one.footprint.total <= allowed:
            return one
        smallest = _smaller(smallest, one)
        for name in names:
            made = _longest(one, name, extent(leaf.operator, name), allowed)
            smallest = _smaller(smallest, made)
            if made.footprint.total > allowed:
                continue
            spent = _starting(made, leaf)
            if spent < _OVERHEAD:
                return made
            if best is None or spent < best[0]:
                best = spent, made
    if best is not None:
        return best[1]
    raise PlacementError(_refusal(found, smallest, request, allowed))


def _surely_fits(found: Plan, allowed: float) -> bool:
    """Whether a compiled plan is so far from its limit that the compiler need not be asked."""
    return found.executor == "shard_map" and _COUNTED * found.stated.total <= allowed


def _smaller(one: Plan, other: Plan) -> Plan:
    return min(one, other, key=lambda p: p.footprint.total)


def _ways(found: Plan, request: partitions.Request) -> Iterator[tuple[Plan, Compute, list[str]]]:
    """Plans that may be run in bands, each with its heaviest leaf and the axes for it."""
    plans = [found]
    if not found.deterministic and not request.names:
        settings = replace(found.settings, deterministic=True)
        with contextlib.suppress(PlacementError):
            owned = draft(found.operator, found.mesh, settings, request, found.graph)
            notes = (*found.notes, "no partial sums: they would not fit")
            plans.append(replace(owned, notes=notes))
    with contextlib.suppress(PlacementError):
        shares = _in_shares(found, found.mesh, request)
        if shares is not None:
            asked = _sides(shares)
            how = f"in shares{f', partition={asked}' if asked else ''}: copies would not fit"
            plans.append(replace(shares, notes=(*found.notes, how)))
    for one in plans:
        if next(one.forward.computes(), None) is not None:
            yield one, *_for_bands(one)


def _for_bands(one: Plan) -> tuple[Compute, list[str]]:
    """The heaviest leaf of a plan, and the axes in whose bands it may run."""
    heaviest = max(one.forward.computes(), key=lambda step: step.operator.cost().workspace)
    leaf = heaviest.operator
    return heaviest, [
        name
        for name in leaf.rule.names
        if name not in heaviest.cuts and banding.may_loop(leaf, name)
    ]


def _in_short_bands(found: Plan) -> Plan:
    """The plan with its heaviest leaf, and what is exchanged beside it, in bands of about a share.

    Who says where elements of both sides lie wants devices to hold no more than that.
    """
    moved = any(isinstance(step, (AllGather, ReduceScatter)) for step in found.forward.steps)
    if not moved or found.machine.shared:
        return found
    leaf, names = _for_bands(found)
    # On ranks two ranges of the whole axis are in flight, else one of every share.
    count = found.mesh.size * (2 if found.executor == "torch" else found.mesh.size)
    lengths = {name: math.ceil(extent(leaf.operator, name) / count) for name in names}
    plans = [_in_bands(found, {name: length}) for name, length in lengths.items() if length]
    best = min(plans, key=lambda p: p.stated.total, default=found)
    return best if best.stated.total < 0.9 * found.stated.total else found


def _sides(found: Plan) -> dict[str, str | int | None]:
    """How `partition=` would ask for a plan's placements, where each side is one array."""
    asked: dict[str, str | int | None] = {}
    ends = (
        (found.operator.domain, found.domain_placements),
        (
            found.operator.codomain,
            found.codomain_placements,
        ),
    )
    for side, (space, placements) in zip(partitions.SIDES, ends, strict=True):
        if len(placements) != 1 or len(placements[0].axes) != 1:
            return {}
        (axis,) = placements[0].axes
        names = space.members[0].axes
        asked[side] = names[axis] if names and axis is not None else axis
    return asked


def _longest(one: Plan, name: str, n: int, allowed: float) -> Plan:
    """The plan in the longest bands of an axis that fit; where none do, in those of one plane."""

    def banded(length: int) -> Plan:
        return _in_bands(one, {name: length})

    # A compiler is asked about few lengths: what leaves state says which.
    scale = one.stated.total / one.footprint.total if one.accounts else 1.0
    length = _last(lambda k: banded(k).stated.total <= scale * allowed, 1, max(n - 1, 1))
    made = banded(length)
    while length > 1 and made.footprint.total > allowed:
        length //= 2
        made = banded(length)
    return made


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last number up to `high` for which holds what holds below it; at least `low`."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _starting(made: Plan, leaf: Compute) -> float:
    """What starting the bands of a leaf costs, as a part of its time."""
    name, length = banding.bands_in(made.forward)
    count = math.ceil(extent(leaf.operator, name) / length)
    work = leaf_seconds(leaf.operator, made.machine) / made.machine.at_once(made.mesh.size)
    return 2 * count * made.machine.latency / work if work else math.inf


def _in_bands(found: Plan, chunks: dict[str, int]) -> Plan:
    adjoint = found.adjoint
    return replace(
        found,
        forward=banding.looped(found.forward, chunks),
        adjoint=None if adjoint is None else banding.looped(adjoint, chunks),
        notes=(*found.notes, f"in bands: {chunks}"),
    )


def _refusal(found: Plan, smallest: Plan, request: partitions.Request, allowed: float) -> str:
    needed, least = found.footprint, smallest.footprint.total
    how = "in bands" if smallest is found else smallest.notes[-1].split(":")[0]
    advice = []
    count = _enough(found, request, allowed)
    if count is not None:
        advice.append(f"{count} devices would do")
    others = _other_partitions(found, request, allowed)
    if others:
        advice.append("so would partition=" + " or ".join(map(repr, others)))
    return (
        f"{found.operator.name} needs {needed.total:,} bytes on each of {found.mesh.size} devices "
        f"({needed.resident:,} resident, at most {needed.peak:,} in {needed.step}), allowed are "
        f"{int(allowed):,}; {how} it takes {least:,} at least: use more devices, another "
        "partition, or more memory" + (f" ({'; '.join(advice)})" if advice else "")
    )


def _enough(found: Plan, request: partitions.Request, allowed: float) -> int | None:
    """The least power of two times as many devices, up to 16, on which shares fit."""
    if found.machine.shared or len(found.mesh.shape) > 1:
        return None
    for times in (2, 4, 8, 16):
        count = times * found.mesh.size
        mesh = Mesh(Described.several(count), (count,), found.mesh.names)
        sized = replace(request, sizes=dict.fromkeys(request.names, count))
        if _drafted(found, mesh, sized) <= allowed:
            return count
    return None


def _other_partitions(found: Plan, request: partitions.Request, allowed: float) -> list[Any]:
    """Axes, or a side each, by which the same devices would fit."""
    if len(found.mesh.shape) > 1 or found.mesh.size == 1:
        return []
    names = sorted({name for leaf in found.graph.leaves for name in leaf.rule.names})
    fitting: list[Any] = []
    for name in names:
        with contextlib.suppress(PlacementError):
            other = partitions.request(found.graph, name, found.mesh.size)
            mesh = replace(found.mesh, names=(name,))
            if name not in request.names and _drafted(found, mesh, other) <= allowed:
                fitting.append(name)
    if not fitting:
        with contextlib.suppress(PlacementError):
            shares = _in_shares(found, found.mesh, partitions.Request())
            if shares is not None and _in_short_bands(shares).stated.total <= allowed:
                fitting += [_sides(shares)] if _sides(shares) else []
    return fitting


def _in_shares(found: Plan, mesh: Mesh, request: partitions.Request) -> Plan | None:
    """The plan with elements in shares wherever a mesh axis has an axis of theirs to cut; None
    where they are placed as was asked for."""
    graph = found.graph
    if request.free:
        shares = replace(request, shares=True)
        return draft(found.operator, mesh, found.settings, shares, graph)

    def states(edge: int) -> States:
        cuts = [request.ends(m, graph, edge) for m in range(len(mesh.shape))]
        return tuple(
            Sharded(min(cut)) if cut and n > 1 else REPLICATED
            for cut, n in zip(cuts, mesh.shape, strict=True)
        )

    if not request.names:
        return None
    ends = [[states(k) for k in side] for side in (graph.inputs, graph.outputs)]
    return draft(found.operator, mesh, found.settings, request, graph, *ends)


def _drafted(found: Plan, mesh: Mesh, request: partitions.Request) -> float:
    """Bytes that leaves state for a plan on another mesh; infinite where there is none."""
    held = [math.inf]
    with contextlib.suppress(PlacementError):
        one = draft(found.operator, mesh, found.settings, request, found.graph)
        held.append(one.stated.total)
        shares = _in_shares(found, mesh, request)
        if shares is not None:
            held.append(_in_short_bands(shares).stated.total)
    return min(held)
