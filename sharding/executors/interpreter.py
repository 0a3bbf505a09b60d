"""A program on arrays in shared memory, step by step: every device is a range of indices.

Shares are views of one array and halos are larger views, so of all movements only sums of partial
results touch memory. Blocks write into their part of one output. How the devices of a step are
run, in turn or side by side, is given by `spread`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from linops import apply, arrays
from linops.arrays import Array
from linops.functionals.functional import Functional
from linops.linear_operator import LinearOperator
from linops.space import AnySpace, ProductSpace
from linops.transforms.torch_function import recording
from sharding.executors.blocks import Blocks
from sharding.executors.counters import Counters
from sharding.executors.spread import Spread, for_torch
from sharding.executors.views import (
    added,
    along,
    among_zeros,
    index_of,
    spread_out,
    transformed,
    view,
)
from sharding.mesh import groups
from sharding.program import Program
from sharding.states import Replicated, Sharded, Windowed, overlaps, real_range, side_by_side
from sharding.steps import (
    Add,
    AllGather,
    AllReduce,
    AllToAll,
    Compute,
    Extend,
    Halo,
    HaloAdd,
    Movement,
    ReduceScatter,
    Slice,
    Step,
    Value,
)
from sharding.traffic import Traffic, wrapped

__all__ = ["run"]


def run(
    program: Program,
    inputs: Sequence[Array],
    blocks: Blocks,
    spread: Spread,
    points: dict[tuple[int, int], Any] | None = None,
    count: Callable[[Traffic], None] | None = None,
) -> list[Array]:
    """The outputs of a program, whole arrays of the real shapes.

    Parameters
    ----------
    program
        Its inputs and outputs are replicated or sharded.
    inputs
        Whole arrays of the real shapes, batch axes in front, of one namespace.
    blocks
        The blocks of its leaves.
    spread
        `spread(task, n)` calls `task(i)` for every device.
    points
        Where to keep the local inputs of leaves that are not linear.
    count
        Told what the run read, copied and added up.
    """
    if arrays.is_torch(inputs[0]):
        blocks, spread, inputs = for_torch(program, blocks, spread, inputs)
    machine = _Interpreter(program, blocks, spread, points, inputs)
    made = machine.run(inputs)
    if count is not None:
        count(machine.counters.total())
    return made


class _HeldValue:
    """A value: what each device has of it; where these are views of one array, that array too."""

    __slots__ = ("pieces", "whole")

    def __init__(self, pieces: list[Array | None], whole: Array | None = None) -> None:
        self.pieces = pieces
        self.whole = whole


class _Interpreter:
    def __init__(
        self,
        program: Program,
        blocks: Blocks,
        spread: Spread,
        points: dict[tuple[int, int], Any] | None,
        inputs: Sequence[Array],
    ) -> None:
        self.program, self.blocks, self.spread, self.points = program, blocks, spread, points
        self.mesh = program.mesh
        self.coordinates = list(product(*(range(n) for n in program.mesh)))
        self.n = len(self.coordinates)
        self.like = inputs[0]
        self.recorded = any(map(recording, inputs))
        self.in_place = not (arrays.is_jax(self.like) or any(map(transformed, inputs)))
        first = program.values[program.inputs[0]].space
        self.batch = tuple(inputs[0].shape)[: inputs[0].ndim - first.ndim]
        self.held: dict[int, _HeldValue] = {}
        self.counters = Counters(program, self.batch)
        self.left = list(program.readers)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        for k, x in zip(self.program.inputs, inputs, strict=True):
            self.held[k] = self._cut(k, x)
        for step in self.program.steps:
            if isinstance(step, Compute):
                self._compute(step)
            elif isinstance(step, Add):
                self._add(step)
            else:
                assert isinstance(step, Movement)
                self.held[step.outputs[0]] = _MOVES[type(step)](self, step)
            self._forget(step)
        return [self._whole(k) for k in self.program.outputs]

    # --- values ---------------------------------------------------------------------------

    def value(self, k: int) -> Value:
        return self.program.values[k]

    def _cut(self, k: int, x: Array) -> _HeldValue:
        """Views of a whole array, one a device."""
        value = self.value(k)
        self.counters.cut(k)
        return _HeldValue([view(x, value, place) for place in self.program.places[k]], x)

    def _whole(self, k: int) -> Array:
        found = self.held[k].whole
        assert found is not None
        return found

    def _blank(self, value: Value) -> Array:
        """An array that the shares of all devices fill."""
        if arrays.is_numpy(self.like):
            return np.empty((*self.batch, *value.space.shape), value.space.dtype)
        return self._empty(value)

    def _empty(self, value: Value) -> Array:
        return arrays.zeros((*self.batch, *value.space.shape), value.space.dtype, self.like)

    def _forget(self, step: Step) -> None:
        for k in step.inputs:
            self.left[k] -= 1
            if not self.left[k]:
                del self.held[k]

    # --- steps ----------------------------------------------------------------------------

    def _compute(self, step: Compute) -> None:
        values = [self.value(k) for k in step.outputs]
        sources = [self.held[k] for k in step.inputs]
        if self.n == 1 or all(isinstance(s, Replicated) for v in values for s in v.states):
            # Once, by the caller: its kernels spread their tiles themselves.
            self._once(step, sources, values)
            return
        joined = [side_by_side(v.states) for v in values]
        wholes = [self._blank(v) if cut else None for v, cut in zip(values, joined, strict=True)]
        mutable = [w is not None and self.in_place for w in wholes]
        pieces: list[list[Array | None]] = [[None] * self.n for _ in values]
        active = [
            d for d in range(self.n) if all(source.pieces[d] is not None for source in sources)
        ]

        def task(number: int) -> None:
            device = active[number]
            block = self.blocks.of(step, device)
            if block is None:
                return
            parts = [source.pieces[device] for source in sources]
            made = self._apply(step, block, parts, device)
            for j, (part, value, whole) in enumerate(zip(made, values, wholes, strict=True)):
                if whole is not None:
                    self.counters.copied(part)
                if whole is not None and mutable[j]:
                    place = self.program.places[step.outputs[j]][device]
                    view(whole, value, place)[...] = part
                else:
                    pieces[j][device] = part

        self.spread(task, len(active))
        for j, (k, value, whole) in enumerate(zip(step.outputs, values, wholes, strict=True)):
            if whole is None:
                self.held[k] = _HeldValue(pieces[j])
            elif mutable[j]:
                self.held[k] = self._cut(k, whole)
            else:
                self.held[k] = self._cut(k, self._assembled(pieces[j], value))

    def _once(self, step: Compute, sources: list[_HeldValue], values: list[Value]) -> None:
        block = self.blocks.of(step, 0)
        if block is None:  # an axis without planes
            for k, value in zip(step.outputs, values, strict=True):
                self.held[k] = self._cut(k, self._empty(value))
            return
        made = self._apply(step, block, [source.pieces[0] for source in sources], 0)
        if self.points is not None and (step.number, 0) in self.points:
            for device in range(1, self.n):
                self.points[step.number, device] = self.points[step.number, 0]
                self.blocks.of(step, device)
        for k, part in zip(step.outputs, made, strict=True):
            # The adjoint of a crop makes a range of planes only.
            everything = tuple((0, n) for n in self.value(k).space.shape)
            whole = part if self.program.places[k][0] == everything else None
            self.held[k] = _HeldValue([part] * self.n, whole)

    def _apply(
        self, step: Compute, block: Any, parts: Sequence[Any], device: int
    ) -> tuple[Array, ...]:
        source: AnySpace = block.codomain if step.adjoint else block.domain
        x = tuple(parts) if isinstance(source, ProductSpace) else parts[0]
        self.counters.applied(step, self.blocks.parts(step, device), parts)
        if self.points is not None and not isinstance(block, LinearOperator):
            self.points[step.number, device] = x
        try:
            if isinstance(block, Functional):
                return (block._value(x),)
            y = None
            if self.recorded and isinstance(block, LinearOperator):
                y = apply.derivable(block, x, step.adjoint)
            if y is None:
                y = block._backward(x) if step.adjoint else block._forward(x)
        except Exception as error:
            error.add_note(f"on device {device} of {self.n}, in {block.name}")
            raise
        return y if isinstance(y, tuple) else (y,)

    def _add(self, step: Add) -> None:
        out = step.outputs[0]
        value = self.value(out)
        parts = [self.held[k] for k in step.inputs]
        if side_by_side(value.states) or all(p.whole is not None for p in parts):
            first, *others = wholes = [self._whole(k) for k in step.inputs]
            self.counters.reduced(wholes)
            for other in others:
                first = first + other
            self.held[out] = self._cut(out, first)
            return
        sums: list[Array | None] = []
        for column in zip(*(p.pieces for p in parts), strict=True):
            there = [piece for piece in column if piece is not None]
            self.counters.reduced(there)
            total = there[0] if there else None
            for piece in there[1:]:
                total = total + piece
            sums.append(total)
        self.held[out] = _HeldValue(sums)

    def _recut(self, step: Movement) -> _HeldValue:
        """Other views of what is there."""
        source, out = self.held[step.inputs[0]], step.outputs[0]
        if source.whole is not None:
            return self._cut(out, source.whole)
        # Partial along the other mesh axis: each line of devices has an array of its own.
        before, after = self.value(step.inputs[0]), self.value(out)
        pieces: list[Array | None] = [None] * self.n
        for line in groups(self.mesh, step.mesh_axis):
            there = [source.pieces[d] for d in line]
            if all(piece is None for piece in there):
                continue
            local = self._line(before, line, step.mesh_axis, there)
            if isinstance(before.states[step.mesh_axis], Sharded):
                self.counters.copied(local)
            for i, d in enumerate(line):
                pieces[d] = along(local, after, step.mesh_axis, i, self.mesh)
                if wrapped(self.program.places[out][d], after):
                    self.counters.copied(pieces[d])
        return _HeldValue(pieces)

    def _line(
        self, value: Value, line: tuple[int, ...], m: int, there: Sequence[Array | None]
    ) -> Array:
        """What the devices of a line hold together: whole along the axis that they cut."""
        state = value.states[m]
        if not isinstance(state, Sharded):
            return there[0]
        axis = state.axis - value.space.ndim
        real = value.real(self.mesh, self.coordinates[line[0]])
        shape = [hi - lo for lo, hi in real]
        shape[state.axis] = value.space.shape[state.axis]
        local = arrays.zeros((*self.batch, *shape), value.space.dtype, self.like)
        parts = []
        for i, piece in enumerate(there):
            lo, hi = real_range(value.space.shape[state.axis], self.mesh[m], i)
            parts.append(arrays.narrow(local, axis, lo, hi) if piece is None else piece)
        return arrays.namespace(*parts).concat(parts, axis=axis)

    def _extend(self, step: Movement) -> _HeldValue:
        source, before = self.held[step.inputs[0]], self.value(step.inputs[0])
        after = self.value(step.outputs[0])
        m = step.mesh_axis
        state = before.states[m]
        pieces: list[Array | None] = [None] * self.n
        for line in groups(self.mesh, m):
            for i, d in enumerate(line):
                piece = source.pieces[d]
                if piece is None:
                    continue
                if isinstance(state, Replicated):
                    pieces[d] = piece if i == 0 else None
                else:
                    assert isinstance(state, (Sharded, Windowed))
                    shape = [hi - lo for lo, hi in after.real(self.mesh, self.coordinates[d])]
                    wide = arrays.zeros((*self.batch, *shape), after.space.dtype, self.like)
                    self.counters.copied(piece)
                    pieces[d] = spread_out(wide, piece, before, m, i, self.mesh)
        return _HeldValue(pieces)

    def _reduced(self, step: Movement) -> _HeldValue:
        """Sums over the devices of each line, in their order; shares side by side."""
        source, out = self.held[step.inputs[0]], step.outputs[0]
        after, m = self.value(out), step.mesh_axis
        lines = list(groups(self.mesh, m))
        cut = isinstance(after.states[m], Sharded)
        whole = self._blank(after) if side_by_side(after.states) else None
        in_place = whole is not None and self.in_place
        pieces: list[Array | None] = [None] * self.n
        seen: set[tuple[tuple[int, int], ...]] = set()
        jobs: list[tuple[int, tuple[int, ...], int]] = []
        for line in lines:
            for i, d in enumerate(line if cut else line[:1]):
                place = self.program.places[out][d]
                if whole is not None and place in seen:
                    continue  # a copy of another line
                seen.add(place)
                jobs.append((d, line, i))

        def task(number: int) -> None:
            d, line, i = jobs[number]
            parts = [p for p in (source.pieces[other] for other in line) if p is not None]
            if cut:
                parts = [along(part, after, m, i, self.mesh) for part in parts]
            self.counters.reduced(parts)
            if whole is not None and in_place:
                mine = view(whole, after, self.program.places[out][d])
                mine[...] = parts[0] if parts else 0
                for part in parts[1:]:
                    mine += part
                return
            if not parts:
                shape = [hi - lo for lo, hi in self.program.places[out][d]]
                parts = [arrays.zeros((*self.batch, *shape), after.space.dtype, self.like)]
            total = sum(parts[1:], parts[0])
            for other in (d,) if cut else line:
                pieces[other] = total

        self.spread(task, len(jobs))
        if whole is None:
            return _HeldValue(pieces)
        return self._cut(out, whole if in_place else self._assembled(pieces, after))

    def _halo_add(self, step: Movement) -> _HeldValue:
        """Every owner adds up what the windows hold of its planes, in the order of devices."""
        source, out = self.held[step.inputs[0]], step.outputs[0]
        before, after = self.value(step.inputs[0]), self.value(out)
        m = step.mesh_axis
        window = before.states[m]
        assert isinstance(window, Windowed)
        n = after.space.shape[window.axis]
        axis = window.axis - after.space.ndim
        pieces: list[Array | None] = [None] * self.n
        places = self.program.places[out]
        whole = self._empty(after) if side_by_side(after.states) else None
        in_place = whole is not None and self.in_place
        jobs: dict[Any, tuple[int, tuple[int, ...]]] = {}
        for line in groups(self.mesh, m):
            for d in line:
                # What lies in one array is added once, however many devices have a copy.
                jobs.setdefault(places[d] if in_place else d, (d, line))
        owners = list(jobs.values())

        def task(number: int) -> None:
            d, line = owners[number]
            first, last = real_range(n, self.mesh[m], line.index(d))
            if whole is not None and in_place:
                total = view(whole, after, places[d])
            else:
                shape = [hi - lo for lo, hi in places[d]]
                total = arrays.zeros((*self.batch, *shape), after.space.dtype, self.like)
            for i, other in enumerate(line):
                piece = source.pieces[other]
                if piece is None:
                    continue
                lo, hi = window.planes(i, n)
                for begin, end, shift in overlaps(lo, hi, first, last, n, window.periodic):
                    part = arrays.narrow(piece, axis, begin - lo, end - lo)
                    self.counters.reduced([part])
                    total = added(total, part, axis, begin + shift - first)
            pieces[d] = total

        self.spread(task, len(owners))
        if whole is None:
            return _HeldValue(pieces)
        return self._cut(out, whole if in_place else self._assembled(pieces, after))

    def _assembled(self, pieces: Sequence[Array | None], value: Value) -> Array:
        """One array of what the devices own; copies are taken from the first."""
        whole = self._empty(value)
        seen = set()
        for d, piece in enumerate(pieces):
            place = value.real(self.mesh, self.coordinates[d])
            if piece is None or place in seen:
                continue
            seen.add(place)
            if self.in_place:
                view(whole, value, place)[...] = piece
            elif arrays.is_jax(whole):
                whole = whole.at[index_of(place)].set(piece)
            else:
                whole = whole + among_zeros(piece, value, place)
        return whole


_MOVES: dict[type, Callable[[_Interpreter, Any], _HeldValue]] = {
    Slice: _Interpreter._recut,
    AllGather: _Interpreter._recut,
    AllToAll: _Interpreter._recut,
    Halo: _Interpreter._recut,
    Extend: _Interpreter._extend,
    AllReduce: _Interpreter._reduced,
    ReduceScatter: _Interpreter._reduced,
    HaloAdd: _Interpreter._halo_add,
}
