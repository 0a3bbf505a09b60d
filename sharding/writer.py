"""How programs are written: values get numbers, movements are found from states.

`reverse` writes the adjoint of a program: the steps reversed, between dual states. A value that
several steps read gets the sum of their cotangents. Neighboring movements fuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sharding.program import Program
from sharding.states import (
    PARTIAL,
    REPLICATED,
    Partial,
    Replicated,
    Sharded,
    State,
    States,
    Windowed,
)
from sharding.steps import Add, Compute, Extend, Movement, Step, Value, movement

__all__ = ["Writer", "reverse"]


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
        cotangents.setdefault(k, []).append(writer.to(entry, _cotangent(program, k).states))

    def total(k: int) -> int:
        parts = cotangents.pop(k, [])
        if not parts:
            raise ValueError(f"value {k} of the program is made and never read")
        if len(parts) == 1:
            return parts[0]
        out = writer.value(_cotangent(program, k))
        writer.steps.append(Add(tuple(parts), (out,)))
        return out

    for step in reversed(program.steps):
        if isinstance(step, Add):
            got = total(step.outputs[0])
            for k in step.inputs:
                cotangents.setdefault(k, []).append(got)
        elif isinstance(step, Movement):
            got = total(step.outputs[0])
            back = writer.to(got, _cotangent(program, step.inputs[0]).states)
            cotangents.setdefault(step.inputs[0], []).append(back)
        else:
            assert isinstance(step, Compute)
            got_all = tuple(total(k) for k in step.outputs)
            duals = tuple(_cotangent(program, k) for k in step.inputs)
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
                back = writer.to(number, _cotangent(program, k).states)
                cotangents.setdefault(k, []).append(back)
    targets = closing or [program.values[k].states for k in program.inputs]
    outputs = [
        writer.to(total(k), states) for k, states in zip(program.inputs, targets, strict=True)
    ]
    return writer.program(entries, outputs)


def _cotangent(program: Program, k: int) -> Value:
    """The cotangent of a value: dual states, but along one device copies and summands are one."""
    value = program.values[k].dual()
    for m, (n, state) in enumerate(zip(program.mesh, value.states, strict=True)):
        if n == 1 and state == PARTIAL:
            value = value.with_state(m, REPLICATED)
    return value


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
        """The finished program, neighbors fused, without what nobody reads."""
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
    """Neighboring movements along one mesh axis as one, and dead steps dropped."""
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
