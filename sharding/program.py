"""A program: a short list of steps between values, and its adjoint, which is the list reversed.

Every step is linear (`Compute` of a nonlinear leaf apart) and knows its adjoint. Steps say what
moves; how it moves is an executor's. A value that several steps read gets the sum of their
cotangents. Which steps a composition needs is decided in `sharding/planner.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import ClassVar

from linops.operator import LinearOperator, Operator
from linops.space import Space
from sharding.states import (
    Partial,
    Replicated,
    Sharded,
    State,
    States,
    Windowed,
    dual,
    real_range,
    share_of,
)

__all__ = [
    "Add",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Compute",
    "Extend",
    "Halo",
    "HaloAdd",
    "Loop",
    "Movement",
    "Program",
    "ReduceScatter",
    "Slice",
    "Step",
    "Value",
    "movement",
    "reverse",
]


Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Value:
    """An array on a mesh: its space, of the real shape, and one state a mesh axis."""

    space: Space
    states: States

    def real(self, mesh: tuple[int, ...], at: tuple[int, ...]) -> Ranges:
        """For each array axis the planes on the device at mesh coordinates `at`; around a ring
        uncut."""
        ranges = [(0, n) for n in self.space.shape]
        for m, state in enumerate(self.states):
            if isinstance(state, Sharded):
                ranges[state.axis] = real_range(self.space.shape[state.axis], mesh[m], at[m])
            elif isinstance(state, Windowed):
                ranges[state.axis] = state.planes(at[m], self.space.shape[state.axis])
        return tuple(ranges)

    def local_shape(self, mesh: tuple[int, ...]) -> tuple[int, ...]:
        """The padded shape on each device."""
        shape = list(self.space.shape)
        for m, state in enumerate(self.states):
            if isinstance(state, Sharded):
                shape[state.axis] = share_of(shape[state.axis], mesh[m])
            elif isinstance(state, Windowed):
                lo, hi = state.padded[0]
                shape[state.axis] = hi - lo
        return tuple(shape)

    def local_bytes(self, mesh: tuple[int, ...]) -> int:
        """Bytes on each device, padding included."""
        return math.prod(self.local_shape(mesh)) * self.space.dtype.itemsize

    def dual(self) -> Value:
        """The cotangent's value."""
        return Value(self.space, tuple(map(dual, self.states)))

    def with_state(self, m: int, state: State) -> Value:
        """The same array in another state along mesh axis `m`."""
        return replace(self, states=(*self.states[:m], state, *self.states[m + 1 :]))

    def __str__(self) -> str:
        return f"{self.space.describe_shape()} {'x'.join(map(str, self.states))}"


@dataclass(frozen=True)
class Step:
    """One step: the numbers of the values that it reads and makes."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kind: ClassVar[str] = "Step"


@dataclass(frozen=True)
class Compute(Step):
    """A leaf on every device's block.

    Attributes
    ----------
    operator
        The leaf, as it stands in the forward program.
    cuts
        For each mesh axis the axis of the leaf's rule that it cuts, None where it cuts none.
    adjoint
        Whether the adjoints of the blocks are applied.
    number
        The leaf's number in the plan: blocks and linearisations are kept under it.
    """

    operator: Operator = field(repr=False)
    cuts: tuple[str | None, ...]
    number: int
    adjoint: bool = False
    kind: ClassVar[str] = "Compute"


@dataclass(frozen=True)
class Loop(Compute):
    """A leaf on every device's block, band after band: less workspace, the same result.

    Attributes
    ----------
    bands
        The axis of the leaf's rule that is cut into bands, and their length.
    """

    bands: tuple[str, int] = ("", 0)
    kind: ClassVar[str] = "Loop"


@dataclass(frozen=True)
class Add(Step):
    """The sum of its inputs, all in the state of the output."""

    kind: ClassVar[str] = "Add"


@dataclass(frozen=True)
class Movement(Step):
    """One value in another state along one mesh axis."""

    mesh_axis: int

    def volume(self, before: Value, after: Value, mesh: tuple[int, ...]) -> int:
        """Bytes that all devices move together, padding included."""
        return 0


class Slice(Movement):
    """Replicated to sharded or windowed: every device keeps its range."""

    kind: ClassVar[str] = "Slice"


class Extend(Movement):
    """To partial: a share stands among zeros; of copies one is kept, on the first device."""

    kind: ClassVar[str] = "Extend"


class AllGather(Movement):
    """Sharded to replicated."""

    kind: ClassVar[str] = "AllGather"

    def volume(self, before: Value, after: Value, mesh: tuple[int, ...]) -> int:
        """`(n - 1) B` in each group, with B bytes of the padded array."""
        n, groups = _groups(self.mesh_axis, mesh)
        return groups * n * (n - 1) * before.local_bytes(mesh)


class ReduceScatter(Movement):
    """Partial to sharded: summed in the order of the devices."""

    kind: ClassVar[str] = "ReduceScatter"

    def volume(self, before: Value, after: Value, mesh: tuple[int, ...]) -> int:
        """`(n - 1) B` in each group."""
        n, groups = _groups(self.mesh_axis, mesh)
        return groups * n * (n - 1) * after.local_bytes(mesh)


class AllReduce(Movement):
    """Partial to replicated: summed in the order of the devices."""

    kind: ClassVar[str] = "AllReduce"

    def volume(self, before: Value, after: Value, mesh: tuple[int, ...]) -> int:
        """`2 (n - 1) B` in each group."""
        n, groups = _groups(self.mesh_axis, mesh)
        return groups * 2 * (n - 1) * after.local_bytes(mesh)


class AllToAll(Movement):
    """Sharded along one array axis to sharded along another."""

    kind: ClassVar[str] = "AllToAll"

    def volume(self, before: Value, after: Value, mesh: tuple[int, ...]) -> int:
        """`(n - 1) B / n` in each group, with B bytes of the array padded along both axes."""
        n, groups = _groups(self.mesh_axis, mesh)
        source, target = before.states[self.mesh_axis], after.states[self.mesh_axis]
        assert isinstance(source, Sharded) and isinstance(target, Sharded)
        shape = list(before.local_shape(mesh))
        shape[target.axis] = after.local_shape(mesh)[target.axis]
        piece = math.prod(shape) * before.space.dtype.itemsize
        return groups * n * (n - 1) * piece


class Halo(Movement):
    """Sharded to windowed: planes come from the devices that own them."""

    kind: ClassVar[str] = "Halo"

    def volume(self, before: Value, after: Value, mesh: tuple[int, ...]) -> int:
        """Bytes of the planes that devices read and do not own."""
        return _exchanged(before, after, self.mesh_axis, mesh)


class HaloAdd(Movement):
    """Windowed to sharded: planes go back to their owners and are added there."""

    kind: ClassVar[str] = "HaloAdd"

    def volume(self, before: Value, after: Value, mesh: tuple[int, ...]) -> int:
        """As for `Halo`."""
        return _exchanged(after, before, self.mesh_axis, mesh)


def movement(source: State, target: State) -> type[Movement] | None:
    """The step from one state to another; None where there is nothing to do.

    Raises
    ------
    ValueError
        Where two steps are needed.
    """
    if source == target:
        return None
    kinds = (type(source), type(target))
    if kinds not in _TABLE:
        raise ValueError(f"no single step leads from {source} to {target}")
    return _TABLE[kinds]


_TABLE: dict[tuple[type, type], type[Movement]] = {
    (Replicated, Sharded): Slice,
    (Replicated, Windowed): Slice,
    (Replicated, Partial): Extend,
    (Sharded, Replicated): AllGather,
    (Sharded, Sharded): AllToAll,
    (Sharded, Windowed): Halo,
    (Sharded, Partial): Extend,
    (Windowed, Sharded): HaloAdd,
    (Windowed, Partial): Extend,
    (Partial, Replicated): AllReduce,
    (Partial, Sharded): ReduceScatter,
}


@dataclass(frozen=True)
class Program:
    """Steps in order, the values that they name by number, and which come in and go out."""

    mesh: tuple[int, ...]
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def computes(self) -> Iterator[Compute]:
        """The steps that apply a leaf."""
        return (step for step in self.steps if isinstance(step, Compute))

    def volume(self, step: Step) -> int:
        """Bytes that all devices together move in a step."""
        if not isinstance(step, Movement):
            return 0
        return step.volume(self.values[step.inputs[0]], self.values[step.outputs[0]], self.mesh)

    @cached_property
    def places(self) -> tuple[tuple[Ranges, ...], ...]:
        """For each value and device the planes of each array axis that lie there."""
        coordinates = list(product(*(range(n) for n in self.mesh)))
        return tuple(
            tuple(value.real(self.mesh, at) for at in coordinates) for value in self.values
        )

    @cached_property
    def readers(self) -> tuple[int, ...]:
        """For each value how often it is read, by steps and as an output."""
        counts = [0] * len(self.values)
        for step in self.steps:
            for k in step.inputs:
                counts[k] += 1
        for k in self.outputs:
            counts[k] += 1
        return tuple(counts)

    @property
    def linear(self) -> bool:
        """Whether every step is linear."""
        return all(isinstance(step.operator, LinearOperator) for step in self.computes())

    def adjoint(self, closing: Sequence[States] | None = None) -> Program:
        """The reversed program.

        Parameters
        ----------
        closing
            The states in which the cotangents of the inputs are wanted, and those of the outputs
            come: by default those of the forward program, so that a replicated input ends as a
            partial sum that one `AllReduce` closes.
        """
        return reverse(self, closing)


def reverse(program: Program, closing: Sequence[States] | None = None) -> Program:
    """The adjoint of a linear program, from outputs to inputs, in the states of the forward one."""
    writer = Writer(program.mesh)
    cotangents: dict[int, list[int]] = {}
    wanted = [program.values[k].states for k in program.outputs]
    entries = []
    for k, states in zip(program.outputs, wanted, strict=True):
        value = program.values[k]
        entry = writer.value(Value(value.space, states))
        entries.append(entry)
        cotangents.setdefault(k, []).append(writer.to(entry, value.dual().states))

    def total(k: int) -> int:
        parts = cotangents.pop(k, [])
        if not parts:
            raise ValueError(f"value {k} of the program is made and never read")
        if len(parts) == 1:
            return parts[0]
        out = writer.value(program.values[k].dual())
        writer.steps.append(Add(tuple(parts), (out,)))
        return out

    for step in reversed(program.steps):
        if isinstance(step, Add):
            got = total(step.outputs[0])
            for k in step.inputs:
                cotangents.setdefault(k, []).append(got)
        elif isinstance(step, Movement):
            got = total(step.outputs[0])
            back = writer.to(got, program.values[step.inputs[0]].dual().states)
            cotangents.setdefault(step.inputs[0], []).append(back)
        else:
            assert isinstance(step, Compute)
            got_all = tuple(total(k) for k in step.outputs)
            duals = tuple(program.values[k].dual() for k in step.inputs)
            joined = _before_extension(writer, got_all) if _replicated(program, step) else None
            if joined is not None:
                # Run once on the whole instead of on every summand.
                got_all = joined
                duals = tuple(program.values[k] for k in step.inputs)
            made = tuple(writer.value(value) for value in duals)
            writer.steps.append(
                replace(step, inputs=got_all, outputs=made, adjoint=not step.adjoint)
            )
            for k, number in zip(step.inputs, made, strict=True):
                back = writer.to(number, program.values[k].dual().states)
                cotangents.setdefault(k, []).append(back)
    targets = closing or [program.values[k].states for k in program.inputs]
    outputs = [
        writer.to(total(k), states) for k, states in zip(program.inputs, targets, strict=True)
    ]
    return writer.program(entries, outputs)


def _replicated(program: Program, step: Step) -> bool:
    """Whether a step reads and makes copies on every device."""
    return all(
        isinstance(state, Replicated)
        for k in (*step.inputs, *step.outputs)
        for state in program.values[k].states
    )


def _before_extension(writer: Writer, numbers: tuple[int, ...]) -> tuple[int, ...] | None:
    """Where all values are shares or copies made partial by `Extend` alone: the whole, gathered."""
    maker = {k: step for step in writer.steps for k in step.outputs}
    found = []
    for k in numbers:
        while isinstance(maker.get(k), Extend):
            k = maker[k].inputs[0]
        if any(isinstance(s, (Partial, Windowed)) for s in writer.values[k].states):
            return None
        found.append(writer.to(k, (Replicated(),) * len(writer.mesh)))
    return tuple(found)


class Writer:
    """A program as it is written: values get numbers, movements are found from states."""

    def __init__(self, mesh: tuple[int, ...]) -> None:
        self.mesh = mesh
        self.values: list[Value] = []
        self.steps: list[Step] = []
        self._moved: dict[tuple[int, States], int] = {}

    def value(self, value: Value) -> int:
        """The number of a new value."""
        self.values.append(value)
        return len(self.values) - 1

    def to(self, k: int, states: States) -> int:
        """The value `k` in other states, by as few steps as there are; made once."""
        if self.values[k].states == states:
            return k
        key = (k, states)
        if key not in self._moved:
            number = k
            for m, state in _route(self.values[k].states, states):
                number = self._step(number, m, state)
            self._moved[key] = number
        return self._moved[key]

    def _step(self, k: int, m: int, state: State) -> int:
        value = self.values[k]
        kind = movement(value.states[m], state)
        if kind is None:
            return k
        after = value.with_state(m, state)
        key = (k, after.states)
        if key not in self._moved:
            number = self.value(after)
            self.steps.append(kind((k,), (number,), m))
            self._moved[key] = number
        return self._moved[key]

    def program(self, inputs: Sequence[int], outputs: Sequence[int]) -> Program:
        """The finished program, neighbours fused, without what nobody reads."""
        steps, outs = _fused(self.steps, self.values, list(outputs))
        return Program(self.mesh, tuple(self.values), tuple(steps), tuple(inputs), tuple(outs))


def _route(source: States, target: States) -> list[tuple[int, State]]:
    """Single steps, one mesh axis at a time, so that no array axis is cut twice on the way."""
    route: list[tuple[int, State]] = []
    current = list(source)

    def place(m: int, state: State) -> None:
        if current[m] != state:
            route.append((m, state))
            current[m] = state

    def cut(m: int) -> int | None:
        state = current[m]
        return state.axis if isinstance(state, (Sharded, Windowed)) else None

    aims: dict[int, list[State]] = {}
    for m, (old, new) in enumerate(zip(source, target, strict=True)):
        aims[m] = _single(old, new)
    pending = [m for m in aims if aims[m]]
    while pending:
        for m in pending:
            aim = aims[m][0]
            axis = aim.axis if isinstance(aim, (Sharded, Windowed)) else None
            if axis is None or all(cut(k) != axis for k in range(len(current)) if k != m):
                place(m, aims[m].pop(0))
                break
        else:
            # Each waits for an axis that another holds: one is gathered first.
            held = [m for m in pending if cut(m) is not None]
            if not held:
                raise ValueError(f"states {target} cut one array axis twice")
            place(held[0], Replicated())
        pending = [m for m in pending if aims[m]]
    return route


def _single(old: State, new: State) -> list[State]:
    """The states on the way from one to another along one mesh axis, the last included."""
    if old == new:
        return []
    if isinstance(new, Windowed):
        if isinstance(old, Replicated):
            return [new]
        before: State = Sharded(new.axis)
        return [*_single(old, before), new]
    if isinstance(old, Windowed) and not isinstance(new, Partial):
        after: State = Sharded(old.axis)
        return [after, *_single(after, new)]
    return [new]


def _fused(
    steps: list[Step], values: list[Value], outputs: list[int]
) -> tuple[list[Step], list[int]]:
    """Neighbouring movements along one mesh axis as one, and dead steps dropped."""
    changed = True
    steps = list(steps)
    while changed:
        changed = False
        maker = {k: step for step in steps for k in step.outputs}
        for position, step in enumerate(steps):
            if not isinstance(step, Movement):
                continue
            before = maker.get(step.inputs[0])
            if not isinstance(before, Movement) or before.mesh_axis != step.mesh_axis:
                continue
            start = values[before.inputs[0]].states[step.mesh_axis]
            middle = values[step.inputs[0]].states[step.mesh_axis]
            end = values[step.outputs[0]].states[step.mesh_axis]
            if not isinstance(middle, (Partial, Replicated)) or isinstance(start, Windowed):
                continue
            if isinstance(middle, Replicated) and not isinstance(start, Partial):
                continue
            if isinstance(end, Windowed):
                continue
            if start == end:
                old, new = step.outputs[0], before.inputs[0]
                del steps[position]
                steps = [
                    replace(s, inputs=tuple(new if k == old else k for k in s.inputs))
                    for s in steps
                ]
                outputs = [new if k == old else k for k in outputs]
            else:
                kind = movement(start, end)
                assert kind is not None
                steps[position] = kind(before.inputs, step.outputs, step.mesh_axis)
            changed = True
            break
    needed = set(outputs)
    kept: list[Step] = []
    for step in reversed(steps):
        if needed & set(step.outputs):
            needed |= set(step.inputs)
            kept.append(step)
    return kept[::-1], outputs


def _groups(m: int, mesh: tuple[int, ...]) -> tuple[int, int]:
    return mesh[m], math.prod(mesh) // mesh[m]


def _exchanged(owned: Value, wide: Value, m: int, mesh: tuple[int, ...]) -> int:
    window = wide.states[m]
    assert isinstance(window, Windowed)
    n, groups = _groups(m, mesh)
    extent = owned.space.shape[window.axis]
    planes = 0
    for i in range(n):
        first, last = real_range(extent, n, i)
        lo, hi = window.planes(i, extent)
        planes += sum(not first <= p % extent < last for p in range(lo, hi)) if extent else 0
    shape = [s for a, s in enumerate(owned.local_shape(mesh)) if a != window.axis]
    return groups * planes * math.prod(shape) * owned.space.dtype.itemsize
