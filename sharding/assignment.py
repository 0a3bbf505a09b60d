"""Which way every leaf of a graph runs along one mesh axis: dynamic programming over states.

The frontier of the walk is the set of edges that somebody still reads; for each of its states the
cheapest way there is kept. Meshes of two axes are planned axis after axis, the second knowing what
the first has cut. What a step costs comes from `sharding/machine.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from linops.algebra.blocks import extent, runs_whole
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from sharding.graph import Graph, GraphNode
from sharding.machine import Machine, leaf_seconds, movement_seconds
from sharding.options import Option, options
from sharding.states import (
    PARTIAL,
    REPLICATED,
    Partial,
    Sharded,
    State,
    States,
    Windowed,
    dual,
    share_of,
)
from sharding.steps import Value
from sharding.writer import Writer

__all__ = ["Assignment", "Constraint", "assign"]

_PREFERENCE = 1e-3
"""Seconds for each second that it takes to read what a device keeps resident: breaks ties."""


@dataclass(frozen=True)
class Assignment:
    """What was decided along one mesh axis: an option a node, a state an input and output.

    `seconds` are those of all work, and of what moves along this mesh axis.
    """

    nodes: tuple[Option, ...]
    entries: tuple[State, ...]
    exits: tuple[State, ...]
    seconds: float


@dataclass(frozen=True)
class Constraint:
    """What is asked for beforehand.

    Attributes
    ----------
    allowed
        Whether a leaf may run by an option.
    entries, exits
        Fixed states of inputs and outputs; None where they are free.
    ends
        The array axes of an input or output along one of which its elements are cut, none where
        they are copies; None where that is free.
    mirrored
        Whether outputs have the states of the inputs: a self-adjoint operator is its own adjoint.
    padded
        Whether blocks must have the padded form: one program serves all devices.
    """

    allowed: Callable[[Operator, Option], bool]
    entries: tuple[State, ...] | None = None
    exits: tuple[State, ...] | None = None
    ends: Callable[[int], set[int] | None] | None = None
    mirrored: bool = False
    padded: bool = False


def assign(
    graph: Graph,
    devices: int,
    prior: Sequence[tuple[Assignment, int]],
    constraint: Constraint,
    machine: Machine,
) -> Assignment | None:
    """The cheapest assignment along a mesh axis of `devices`; None where none is allowed.

    Parameters
    ----------
    graph
        The leaves.
    devices
        Devices along this mesh axis.
    prior
        What was decided for the mesh axes before, with their devices.
    constraint
        What may be chosen.
    machine
        The rates.
    """
    return _Walk(graph, devices, prior, constraint, machine).best()


_Choice = tuple[Option, ...]
_Frontier = tuple[tuple[int, State], ...]
_Best = tuple[float, _Choice, tuple[State, ...]]
_Table = dict[_Frontier, _Best]


class _Walk:
    def __init__(
        self,
        graph: Graph,
        devices: int,
        prior: Sequence[tuple[Assignment, int]],
        constraint: Constraint,
        machine: Machine,
    ) -> None:
        self.graph, self.n, self.constraint, self.machine = graph, devices, constraint, machine
        self.prior = [a for a, _ in prior]
        self.mesh = (*(n for _, n in prior), devices)
        self.last: dict[int, int] = {}
        for position, node in enumerate(graph.nodes):
            for edge in node.inputs:
                self.last[edge] = position
        for edge in graph.outputs:
            self.last[edge] = len(graph.nodes)
        self.before = self._edge_states()
        self._prices: dict[tuple[int, State, State], float] = {}

    def best(self) -> Assignment | None:
        table: _Table = {}
        for entries in self._entries():
            start = sum(
                self._entry_price(k, s) for k, s in zip(self.graph.inputs, entries, strict=True)
            )
            frontier = self._kept(dict(zip(self.graph.inputs, entries, strict=True)), -1)
            self._offer(table, frontier, (start, (), entries))
        for position, node in enumerate(self.graph.nodes):
            table = self._after(table, position, node)
            if not table:
                return None
        found: Assignment | None = None
        for frontier, (price, choice, entries) in table.items():
            states = dict(frontier)
            exits, extra = [], 0.0
            ends = zip(self.graph.outputs, self._exits(entries), strict=True)
            for edge, wanted in ends:
                prices = {s: self._move(edge, states[edge], s) for s in wanted}
                state = min(wanted, key=lambda s: prices[s] + self._resident(edge, s))
                exits.append(state)
                extra += prices[state] + self._resident(edge, state)
            if found is None or price + extra < found.seconds:
                found = Assignment(choice, entries, tuple(exits), price + extra)
        return found

    def _after(
        self,
        table: _Table,
        position: int,
        node: GraphNode,
    ) -> _Table:
        out: _Table = {}
        ways = self._ways(position, node)
        works = [self._work(position, node, way) for way in ways]
        for frontier, (price, choice, entries) in table.items():
            states = dict(frontier)
            for way, work in zip(ways, works, strict=True):
                total = price + work
                for edge, wanted in zip(node.inputs, way.reads, strict=True):
                    total += self._move(edge, states[edge], wanted)
                made = {**states, **dict(zip(node.outputs, way.makes, strict=True))}
                key = self._kept(made, position)
                self._offer(out, key, (total, (*choice, way), entries))
        return out

    @staticmethod
    def _offer(table: _Table, key: _Frontier, entry: _Best) -> None:
        if key not in table or entry[0] < table[key][0]:
            table[key] = entry

    def _kept(self, states: dict[int, State], position: int) -> _Frontier:
        return tuple(
            sorted(
                ((k, s) for k, s in states.items() if self.last.get(k, -1) > position),
                key=lambda item: item[0],
            )
        )

    # --- what may be chosen -----------------------------------------------------------------

    def _ways(self, position: int, node: GraphNode) -> list[Option]:
        if node.operator is None:
            space = self.graph.edges[node.outputs[0]]
            states: list[State] = [REPLICATED, PARTIAL, *(Sharded(a) for a in range(space.ndim))]
            ways = [Option(None, (s,) * len(node.inputs), (s,)) for s in states]
        else:
            ways = [
                way
                for way in options(node.operator, self.n, self.constraint.padded)
                if self.constraint.allowed(node.operator, way)
            ]
        return [way for way in ways if self._fits(position, way)]

    def _fits(self, position: int, way: Option) -> bool:
        """Whether no array axis is cut by an earlier mesh axis too."""
        for decided in self.prior:
            other = decided.nodes[position]
            if way.cut is not None and other.cut == way.cut:
                return False
            pairs = zip((*way.reads, *way.makes), (*other.reads, *other.makes), strict=True)
            if any(_axis(a) is not None and _axis(a) == _axis(b) for a, b in pairs):
                return False
        return True

    def _entries(self) -> list[tuple[State, ...]]:
        if self.constraint.entries is not None:
            return [self.constraint.entries]
        choices: list[tuple[State, ...]] = [()]
        for number, edge in enumerate(self.graph.inputs):
            free = self._free(edge, [a.entries[number] for a in self.prior])
            choices = [(*row, state) for row in choices for state in free]
        return choices

    def _exits(self, entries: tuple[State, ...]) -> list[tuple[State, ...]]:
        if self.constraint.exits is not None:
            return [(state,) for state in self.constraint.exits]
        if self.constraint.mirrored:
            return [(state,) for state in entries]
        return [
            self._free(edge, [a.exits[number] for a in self.prior])
            for number, edge in enumerate(self.graph.outputs)
        ]

    def _free(self, edge: int, taken: Sequence[State]) -> tuple[State, ...]:
        axes = {_axis(state) for state in taken}
        shape = self.graph.edges[edge].shape
        bound = None if self.constraint.ends is None else self.constraint.ends(edge)
        if bound is None:
            cuts = [Sharded(a) for a, n in enumerate(shape) if a not in axes and n > 1]
            return (REPLICATED, *cuts)
        own = sorted(bound - axes) if self.n > 1 else ()
        return tuple(map(Sharded, own)) or (REPLICATED,)

    # --- what it costs ----------------------------------------------------------------------

    def _work(self, position: int, node: GraphNode, way: Option) -> float:
        if node.operator is None:
            return 0.0
        machine = self.machine
        whole = leaf_seconds(node.operator, machine)
        share, pieces = 1.0, 1
        for decided, n in (
            *((a.nodes[position], n) for a, n in zip(self.prior, self.mesh, strict=False)),
            (way, self.n),
        ):
            if decided.cut is not None:
                share *= _share(node.operator, decided, n)
                pieces *= n
        if pieces == 1 and machine.shared:
            # Once, and compiled kernels use all cores themselves; summands one by one.
            compiled = hasattr(node.operator, "_forward_host")
            once = whole / (machine.cores or 1) if compiled else whole
            if any(isinstance(state, Partial) for state in way.reads):
                return (once + whole * math.ceil(self.n / machine.at_once(self.n))) / 2
            return once
        # Copies are computed too, each on its device.
        size = math.prod(self.mesh)
        running = pieces if machine.shared else size
        turns = math.ceil(running / machine.at_once(running))
        overhead = machine.latency if size > 1 else 0.0
        return whole * share * turns + overhead

    def _move(self, edge: int, source: State, target: State) -> float:
        key = (edge, source, target)
        if key not in self._prices:
            self._prices[key] = self._move_price(edge, source, target)
        return self._prices[key]

    def _move_price(self, edge: int, source: State, target: State) -> float:
        if source == target:
            return 0.0
        forward = self._route_price(edge, source, target)
        return forward + self._route_price(edge, dual(target), dual(source))

    def _route_price(self, edge: int, source: State, target: State) -> float:
        if isinstance(source, (Partial,)) and isinstance(target, Windowed):
            return self._route_price(edge, source, Sharded(target.axis)) + self._route_price(
                edge, Sharded(target.axis), target
            )
        writer = Writer(self.mesh)
        taken = {_axis(source), _axis(target)} - {None}
        others = tuple(REPLICATED if _axis(s) in taken else s for s in self.before[edge])
        first = writer.value(Value(self.graph.edges[edge], (*others, source)))
        writer.to(first, (*others, target))
        return sum(
            movement_seconds(step, writer.values, self.mesh, self.machine) for step in writer.steps
        )

    def _entry_price(self, edge: int, state: State) -> float:
        """The adjoint ends with a sum where the input is replicated."""
        price = self._resident(edge, state)
        if state == REPLICATED and self._linear:
            price += self._move(edge, PARTIAL, REPLICATED) / 2
        return price

    @property
    def _linear(self) -> bool:
        return all(isinstance(leaf, LinearOperator) for leaf in self.graph.leaves)

    def _resident(self, edge: int, state: State) -> float:
        value = Value(self.graph.edges[edge], (*self.before[edge], state))
        return _PREFERENCE * value.local_bytes(self.mesh) / self.machine.bandwidth

    def _edge_states(self) -> dict[int, States]:
        """The states that edges have along the mesh axes decided before."""
        found: dict[int, list[State]] = {k: [] for k in range(len(self.graph.edges))}
        for decided in self.prior:
            for k, state in zip(self.graph.inputs, decided.entries, strict=True):
                found[k].append(state)
            for node, way in zip(self.graph.nodes, decided.nodes, strict=True):
                for k, state in zip(node.outputs, way.makes, strict=True):
                    found[k].append(state)
        return {k: tuple(states) for k, states in found.items()}


def _share(leaf: Operator, way: Option, n: int) -> float:
    """Of the whole work, what one of `n` devices does: its planes, and those it computes again;
    all of it where its block is the default."""
    if runs_whole(leaf, str(way.cut)):
        return 1.0
    planes = extent(leaf, str(way.cut))
    own = share_of(planes, n)
    read = [s.padded[0][1] - s.padded[0][0] for s in way.reads if isinstance(s, Windowed)]
    # Inner factors of a fused leaf run on up to all planes that it reads; half of them on average.
    return (own + max([0.0, *((r - own) / 2 for r in read)])) / max(planes, 1)


def _axis(state: State) -> int | None:
    return state.axis if isinstance(state, (Sharded, Windowed)) else None
