"""One plan for one mesh: every leaf's way decided along each mesh axis, and the program written.

Which meshes are worth a draft, and which draft is taken, is decided in `sharding/planner.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from linops.errors import PlacementError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.rule import Relation
from sharding.assignment import Assignment, Constraint, assign
from sharding.devices import family
from sharding.graph import Graph, flatten
from sharding.mesh import Mesh
from sharding.options import Option
from sharding.partitions import Request
from sharding.placement import Placement
from sharding.plans import Plan, Settings
from sharding.program import Program
from sharding.states import Partial, Replicated, Sharded, States
from sharding.steps import Add, Compute, Value
from sharding.writer import Writer

__all__ = ["draft", "placement_of"]


def draft(
    operator: Operator,
    mesh: Mesh,
    settings: Settings,
    request: Request | None = None,
    graph: Graph | None = None,
    entries: Sequence[States] | None = None,
    exits: Sequence[States] | None = None,
) -> Plan:
    """The cheapest plan of an operator on a mesh.

    Parameters
    ----------
    operator
        What is planned.
    mesh
        The devices.
    settings
        Engine, rates, and what results must keep.
    request
        The names that bind mesh axes; by default none.
    graph
        The operator taken apart; by default into all its leaves.
    entries, exits
        States of inputs and outputs where they are fixed.

    Raises
    ------
    PlacementError
        Where no way of running the leaves joins the states that are asked for.
    """
    request = request or Request(("batch",) if mesh.by_batch else ())
    graph = graph or flatten(operator)
    decided: list[tuple[Assignment, int]] = []
    for m, n in enumerate(mesh.shape):

        def allowed(leaf: Operator, way: Option, m: int = m, n: int = n) -> bool:
            if n == 1:
                # One device has the whole: nothing is cut, added up, or moved.
                return way.whole
            if settings.deterministic and _adds_up(leaf, way):
                return False
            return request.allows(m, leaf, way)

        constraint = Constraint(
            allowed,
            None if entries is None else tuple(states[m] for states in entries),
            None if exits is None else tuple(states[m] for states in exits),
            None if request.free else partial(request.ends, m, graph),
            "self_adjoint" in operator.tags,
            family(mesh.devices[0]) == "jax",
        )
        found = assign(graph, n, decided, constraint, settings.machine)
        if found is None:
            raise PlacementError(
                f"{operator.name} cannot be planned along mesh axis {mesh.names[m]!r}: no way of "
                f"running its leaves joins the states that are asked for{_fix(settings)}"
            )
        decided.append((found, n))
    assignments = tuple(a for a, _ in decided)
    forward = _written(graph, mesh.shape, assignments)
    domain, codomain = (
        tuple(
            placement_of(mesh, forward.values[k].space.shape, forward.values[k].states)
            for k in ends
        )
        for ends in (forward.inputs, forward.outputs)
    )
    adjoint = None
    if isinstance(operator, LinearOperator):
        adjoint = forward.adjoint()
        if settings.deterministic and entries is None:
            # Reversed, produced axes would be contracted: the adjoint is drafted by itself.
            ends = [
                [forward.values[k].states for k in side]
                for side in (forward.outputs, forward.inputs)
            ]
            back = draft(operator.H, mesh, settings, None, None, *ends)
            adjoint = _renumbered(back.forward, len(graph.leaves))
    return Plan(
        operator, graph, mesh, settings, assignments, forward, adjoint, domain, codomain, ()
    )


def _fix(settings: Settings) -> str:
    if not settings.deterministic:
        return ""
    return (
        "; deterministic=True splits no contracted axis: leave it out, or cut an axis that the "
        "result keeps (partition='auto' finds one)"
    )


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


def placement_of(mesh: Mesh, shape: tuple[int, ...], states: States) -> Placement:
    """The placement of arrays of a shape in states."""
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


def _adds_up(leaf: Operator, way: Option) -> bool:
    """Whether its results are partial sums, of which there are more on more devices."""
    if way.cut is not None:
        return leaf.rule.relation(way.cut) is Relation.CONTRACTED
    return any(isinstance(state, Partial) for state in (*way.reads, *way.makes))
