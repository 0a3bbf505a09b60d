"""`plan`: from a composition to a program, its placements, and what it costs.

It takes the operator apart (`sharding/graph.py`), decides along each mesh axis how every leaf runs
(`sharding/assignment.py`), and writes the program down. How many devices are worth having is part
of the decision where nobody names them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from linops.algebra.blocks import extent
from linops.errors import PlacementError
from linops.operator import LinearOperator, Operator
from linops.rule import Relation
from sharding import banding, partitions
from sharding.assignment import Assignment, Constraint, assign
from sharding.cost import Machine
from sharding.devices import Worker, choose, machine_of
from sharding.graph import Graph, flatten
from sharding.memory import Footprint, footprint
from sharding.mesh import Mesh
from sharding.options import Option
from sharding.placement import Placement
from sharding.program import Add, Compute, Program, Value, Writer
from sharding.states import Replicated, Sharded, State, States, real_range

__all__ = ["Plan", "plan"]


@dataclass(frozen=True, eq=False)
class Plan:
    """How an operator runs on a mesh of devices; made by `plan`.

    Attributes
    ----------
    operator
        What was planned.
    mesh
        The devices.
    executor
        `"serial"`, `"threads"`, `"shard_map"` or `"torch"`.
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
    executor: str
    machine: Machine
    assignments: tuple[Assignment, ...]
    forward: Program
    adjoint: Program | None
    domain_placements: tuple[Placement, ...]
    codomain_placements: tuple[Placement, ...]
    deterministic: bool
    memory: float | None
    batch: tuple[int, ...]
    probe: bool
    notes: tuple[str, ...]
    by_batch: bool = False

    @property
    def domain_placement(self) -> Any:
        """The placement of elements of the domain; a tuple for a product space."""
        return _one(self.domain_placements, self.operator.domain)

    @property
    def codomain_placement(self) -> Any:
        """The placement of elements of the codomain; a tuple for a product space."""
        return _one(self.codomain_placements, self.operator.codomain)

    @property
    def devices(self) -> tuple[Any, ...]:
        """The devices, in the order of the mesh."""
        return self.mesh.devices

    @property
    def seconds(self) -> float:
        """The price that the plan was chosen by; no promise."""
        return self.assignments[-1].seconds

    @property
    def footprint(self) -> Footprint:
        """Bytes on each device: resident, and at the peak of each program."""
        return footprint(self)

    def explain(self) -> str:
        """A table: step, where, shape, halo, bytes moved, flops, peak memory."""
        from sharding.explain import explain

        return explain(self)

    def lower(self) -> Any:
        """The operator on the plan's devices: of the same kind, placed elements in and out."""
        from sharding.lowered import lower

        return lower(self)

    def again(self, operator: Operator, **states: Any) -> Plan:
        """A plan of another operator on the same mesh, with states of its inputs and outputs
        fixed."""
        return _planned(
            operator, flatten(operator), self.mesh, self.executor, self.machine,
            partitions.Request((), {}), self.deterministic, self.memory, self.batch, self.probe,
            (), **states,
        )  # fmt: skip

    def __str__(self) -> str:
        return self.explain()


def plan(
    A: Operator,
    devices: Any = None,
    executor: str = "auto",
    partition: str | Mapping[str, int | None] = "auto",
    memory: float | None = None,
    chunks: Mapping[str, int] | None = None,
    batch: Sequence[int] = (),
    deterministic: bool = False,
    probe: bool = True,
) -> Plan:
    """How an operator or functional runs on several devices.

    Parameters
    ----------
    A
        Any composition; its leaves' rules say what may be split.
    devices
        None (all that are worth having), a number, a platform such as `"gpu"`, or a list of
        devices, of their numbers, or of `Described` ones that are not here.
    executor
        `"threads"`, `"shard_map"`, `"torch"`, `"serial"`, or `"auto"`.
    partition
        `"auto"`, the name of an axis of a rule (`"view"`), a grid of two of them
        (`{"view": 2, "z": 3}`; None for a near-square factorisation), or `"batch"`: each worker
        thread takes its share of the first leading axis.
    memory
        Bytes that each device may hold; by default nine tenths of what is free.
    chunks
        Lengths of bands by axis name, such as `{"z": 16}`; they win over `memory`.
    batch
        Leading axes of the arrays to come, for the prices.
    deterministic
        Whether results are to be the same bits on any number of devices: no contracted axis is
        split, forward or adjoint.
    probe
        Whether copies between accelerators are tried out before the first program.

    Returns
    -------
    Plan

    Raises
    ------
    PlacementError
        For devices that are not there, an axis that nobody has or that must not be split (the
        leaf is named, and what may be split), or a plan that does not fit the memory.
    """
    if not isinstance(A, Operator):
        raise PlacementError(f"plan takes an Operator or Functional, got {type(A).__name__}")
    graph = flatten(A)
    available, engine = choose(devices, executor)
    if partition == "batch":
        return _by_batch(A, graph, available, engine, memory, tuple(batch))
    request = partitions.request(graph, partition, None if devices is None else len(available))
    if request.shape and math.prod(request.shape) > len(available):
        raise PlacementError(
            f"partition {partition!r} takes {math.prod(request.shape)} devices, there are "
            f"{len(available)}"
        )
    machine = machine_of(available, engine)
    common = (deterministic, memory, tuple(batch), probe)
    counts = _counts(len(available), devices, request, engine)
    plans: list[Plan] = []
    for count in counts:
        shape = request.shape or (count,)
        names = request.names or ("devices",)
        mesh = Mesh(available[: math.prod(shape)], shape, names)
        plans.append(_planned(A, graph, mesh, engine, machine, request, *common, ()))
    useful = [p for p in plans if not _idle(p)] if len(plans) > 1 else plans
    best = useful[0]
    for other in useful[1:]:
        if other.seconds < 0.98 * best.seconds:
            best = other
    best = _with_notes(best, plans, devices is None, len(available))
    return _within_memory(best, request, dict(chunks or {}))


def _by_batch(
    operator: Operator,
    graph: Graph,
    available: tuple[Any, ...],
    engine: str,
    memory: float | None,
    batch: tuple[int, ...],
) -> Plan:
    """A plan in which nothing is cut but the leading axis of the arrays."""
    if engine not in ("serial", "threads") or not isinstance(available[0], Worker):
        raise PlacementError(
            f"partition='batch' runs on worker threads, not with executor {engine!r} on "
            f"{available[0]}: there, cut the leading axis of the array itself"
        )
    mesh = Mesh(available, (len(available),), ("batch",))
    nothing = partitions.Request(("batch",), {})
    found = _planned(
        operator, graph, mesh, engine, machine_of(available, engine), nothing, False, memory,
        batch, True, (f"{len(available)} devices share the leading axis",),
    )  # fmt: skip
    return replace(found, by_batch=True)


def _within_memory(found: Plan, request: partitions.Request, chunks: dict[str, int]) -> Plan:
    """The plan, run in bands where that is asked for, or where it would not fit."""
    if chunks:
        found = _in_bands(found, chunks)
    allowed = found.machine.memory if found.memory is None else float(found.memory)
    if allowed is None or found.footprint.total <= allowed:
        return found
    for other in _smaller(found, request, bool(chunks)):
        if other.footprint.total <= allowed:
            return other
    needed = found.footprint
    raise PlacementError(
        f"{found.operator.name} needs {needed.total:,} bytes on each of {found.mesh.size} devices "
        f"({needed.resident:,} resident, at most {needed.peak:,} in {needed.step}), allowed are "
        f"{int(allowed):,}; use more devices, another partition, or more memory"
    )


def _smaller(found: Plan, request: partitions.Request, fixed: bool) -> Iterator[Plan]:
    """Plans that hold less: in bands, without partial sums, both."""
    plans = [found]
    if not found.deterministic and not request.names:
        notes = (*found.notes, "no partial sums: they would not fit")
        with contextlib.suppress(PlacementError):
            owned = _planned(
                found.operator, found.graph, found.mesh, found.executor, found.machine, request,
                True, found.memory, found.batch, found.probe, notes,
            )  # fmt: skip
            plans.append(owned)
    for one in plans:
        yield one
        if fixed:
            continue
        heaviest = max(
            one.forward.computes(), key=lambda step: step.operator.cost().workspace, default=None
        )
        if heaviest is None:
            continue
        for name in heaviest.operator.rule.names:
            if name in heaviest.cuts or not banding.may_loop(heaviest.operator, name):
                continue
            for length in banding.band_lengths(extent(heaviest.operator, name)):
                yield _in_bands(one, {name: length})


def _in_bands(found: Plan, chunks: dict[str, int]) -> Plan:
    adjoint = found.adjoint
    return replace(
        found,
        forward=banding.looped(found.forward, chunks),
        adjoint=None if adjoint is None else banding.looped(adjoint, chunks),
        notes=(*found.notes, f"in bands: {chunks}"),
    )


def _counts(available: int, devices: Any, request: partitions.Request, engine: str) -> list[int]:
    if request.shape:
        return [math.prod(request.shape)]
    if devices is not None or engine == "torch":
        return [available]
    return list(range(1, available + 1))


def _planned(
    operator: Operator,
    graph: Graph,
    mesh: Mesh,
    executor: str,
    machine: Machine,
    request: partitions.Request,
    deterministic: bool,
    memory: float | None,
    batch: tuple[int, ...],
    probe: bool,
    notes: tuple[str, ...],
    entries: Sequence[States] | None = None,
    exits: Sequence[States] | None = None,
) -> Plan:
    decided: list[tuple[Assignment, int]] = []
    for m, n in enumerate(mesh.shape):

        def allowed(leaf: Operator, way: Option, m: int = m) -> bool:
            if deterministic and _contracted(leaf, way):
                return False
            return request.allows(m, leaf, way)

        constraint = Constraint(
            allowed,
            None if entries is None else tuple(states[m] for states in entries),
            None if exits is None else tuple(states[m] for states in exits),
            partial(request.ends, m, graph) if request.names else None,
        )
        found = assign(graph, n, decided, constraint, machine)
        if found is None:
            raise PlacementError(
                f"{operator.name} cannot be planned along mesh axis {mesh.names[m]!r}: no way of "
                "running its leaves joins the states that are asked for"
            )
        decided.append((found, n))
    assignments = tuple(a for a, _ in decided)
    forward = _written(graph, mesh.shape, assignments)
    placements = [
        tuple(
            _placement(mesh, forward.values[k].space.shape, forward.values[k].states) for k in ends
        )
        for ends in (forward.inputs, forward.outputs)
    ]
    adjoint = None
    if isinstance(operator, LinearOperator):
        if deterministic and entries is None:
            ends = [
                [forward.values[k].states for k in e] for e in (forward.outputs, forward.inputs)
            ]
            back = _planned(
                operator.H, flatten(operator.H), mesh, executor, machine,
                partitions.Request((), {}), True, memory, batch, probe, (), *ends,
            )  # fmt: skip
            adjoint = _renumbered(back.forward, len(graph.leaves))
        else:
            adjoint = forward.adjoint()
    return Plan(
        operator, graph, mesh, executor, machine, assignments, forward, adjoint,
        placements[0], placements[1], deterministic, memory, batch, probe, notes,
    )  # fmt: skip


def _written(graph: Graph, mesh: tuple[int, ...], assignments: Sequence[Assignment]) -> Program:
    writer = Writer(mesh)
    number: dict[int, int] = {}
    for k, states in zip(
        graph.inputs, zip(*(a.entries for a in assignments), strict=True), strict=True
    ):
        number[k] = writer.value(Value(graph.edges[k], states))
    inputs = [number[k] for k in graph.inputs]
    leaf = 0
    for position, node in enumerate(graph.nodes):
        ways = [a.nodes[position] for a in assignments]
        read = tuple(
            writer.to(number[k], tuple(way.reads[j] for way in ways))
            for j, k in enumerate(node.inputs)
        )
        for j, k in enumerate(node.outputs):
            number[k] = writer.value(Value(graph.edges[k], tuple(w.makes[j] for w in ways)))
        made = tuple(number[k] for k in node.outputs)
        if node.operator is None:
            writer.steps.append(Add(read, made))
        else:
            cuts = tuple(way.cut for way in ways)
            writer.steps.append(Compute(read, made, node.operator, cuts, leaf))
            leaf += 1
    outputs = [
        writer.to(number[k], tuple(a.exits[j] for a in assignments))
        for j, k in enumerate(graph.outputs)
    ]
    return writer.program(inputs, outputs)


def _renumbered(program: Program, first: int) -> Program:
    """The program with its leaves numbered from `first` on."""
    steps = tuple(
        replace(step, number=step.number + first) if isinstance(step, Compute) else step
        for step in program.steps
    )
    return replace(program, steps=steps)


def _idle(found: Plan) -> bool:
    """Whether the last device of a row has nothing but padding in every step that is cut."""
    n = found.mesh.size
    cuts = [(step.operator, step.cuts[0]) for step in found.forward.computes() if step.cuts[0]]
    return bool(cuts) and all(
        real_range(extent(leaf, str(cut)), n, n - 1)[0] >= extent(leaf, str(cut))
        for leaf, cut in cuts
    )


def _placement(mesh: Mesh, shape: tuple[int, ...], states: States) -> Placement:
    axes: list[int | None] = []
    sizes: list[int | None] = []
    for state in states:
        assert isinstance(state, (Replicated, Sharded))
        axes.append(state.axis if isinstance(state, Sharded) else None)
        sizes.append(shape[state.axis] if isinstance(state, Sharded) else None)
    flat = len(axes) == 1
    return Placement(
        mesh.devices,
        axes[0] if flat else tuple(axes),
        sizes[0] if flat else tuple(sizes),
        None,
        mesh,
        len(shape),
    )


def states_of(placement: Placement) -> States:
    """The states that a placement stands for."""
    states: list[State] = [
        Replicated() if axis is None else Sharded(axis) for axis in placement.axes
    ]
    return tuple(states)


def _contracted(leaf: Operator, way: Option) -> bool:
    return way.cut is not None and leaf.rule.relation(way.cut) is Relation.CONTRACTED


def _with_notes(best: Plan, plans: Sequence[Plan], free: bool, available: int) -> Plan:
    notes = [f"{best.mesh.size} of {available} devices, executor {best.executor}"]
    others = [p for p in plans if p is not best]
    if free and others:
        second = min(others, key=lambda p: p.seconds)
        notes.append(
            f"priced at {best.seconds:.3g} s for apply and adjoint; next choice: "
            f"{second.mesh.size} devices at {second.seconds:.3g} s"
        )
    return replace(best, notes=tuple(notes))


def _one(placements: tuple[Placement, ...], space: Any) -> Any:
    from linops.space import ProductSpace

    return placements if isinstance(space, ProductSpace) else placements[0]
