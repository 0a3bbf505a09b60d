"""A program on JAX devices with one worker a device: no compiled collectives, no trace.

Shares are read in place and results joined without a copy. A worker runs its device's blocks and
asks the devices that own them for the planes that it needs, piece by piece, through the one door of
`sharding/array_backends/jax_devices.py`; sums are formed in the order of the devices. Dispatch
stays asynchronous. Under a trace of JAX there are no shards to hand out: the same plan then runs as
one compiled program (`sharding/executors/shard_map.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from linops import arrays
from linops.arrays import Array
from linops.compiled import pool
from linops.errors import PlacementError
from linops.transforms.pytree import unpack
from sharding.array_backends.jax_devices import joined, named_sharding, pieces, send
from sharding.banding import exchanged_bands
from sharding.executors import shard_map
from sharding.executors.exchanged_loop import exchanges
from sharding.executors.padded import PaddedBlocks, Slot, segments
from sharding.executors.shard_map import applied
from sharding.mesh import groups
from sharding.program import Program
from sharding.states import Replicated, Sharded, Windowed, real_range, share_of
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
    Value,
)

if TYPE_CHECKING:
    from sharding.plans import Plan

__all__ = ["DeviceThreadEngine"]

Points = dict[tuple[int, int], tuple[Array, ...]]
Cells = list[tuple[int, int, int]]
"""Ranges of planes: their place in the source, their place in the target, how many."""


class DeviceThreadEngine:
    """Runs the programs of a plan, or of its linearisation, device by device."""

    def __init__(
        self,
        plan: Plan,
        blocks: PaddedBlocks | None = None,
        points: Points | None = None,
        origin: tuple[Program, tuple[Array, ...]] | None = None,
    ) -> None:
        self.plan = plan
        self.blocks = blocks or PaddedBlocks(plan.mesh)
        self._points = points or {}
        self._origin = origin

    def run(self, program: Program, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of a program for placed inputs; under a trace those of one program."""
        if self._is_traced(program, inputs):
            return self._traced.run(program, inputs)
        return _DeviceRun(self, program, None).run(inputs)

    def linearised(self, program: Program, inputs: Sequence[Array]) -> Any:
        """The engine with the Jacobians of nonlinear leaves where these inputs lead."""
        if self._is_traced(program, inputs):
            return self._traced.linearised(program, inputs)
        points: Points = {}
        _DeviceRun(self, program, points).run(inputs)
        return DeviceThreadEngine(self.plan, self.blocks, points, (program, tuple(inputs)))

    def local(self, operator: Any) -> Any:
        """The operator itself: JAX's own transformations serve it."""
        return operator

    def point(self, step: Compute, device: int) -> tuple[Array, ...] | None:
        """Where a nonlinear leaf is linearised on a device."""
        return self._points.get((step.number, device))

    @functools.cached_property
    def _traced(self) -> shard_map.ShardMapEngine:
        """The same under a trace: one compiled program."""
        whole = shard_map.ShardMapEngine(self.plan, self.blocks)
        return whole if self._origin is None else whole.linearised(*self._origin)

    def _is_traced(self, program: Program, inputs: Sequence[Array]) -> bool:
        leaves = [leaf for step in program.computes() for leaf in self.blocks.of(step).leaves[0]]
        return any(map(arrays.is_traced, (*inputs, *leaves)))

    def __getstate__(self) -> dict[str, Any]:
        at = self._origin and [p.gather(x) for p, x in self._ends(self.plan, self._origin[1])]
        return {"plan": self.plan, "at": at}

    def __setstate__(self, state: dict[str, Any]) -> None:
        plan, at = state["plan"], state["at"]
        self.__init__(plan)  # type: ignore[misc]
        if at is not None:
            placed = [p.put(x) for p, x in self._ends(plan, at)]
            self.__dict__.update(self.linearised(plan.forward, placed).__dict__)

    @staticmethod
    def _ends(plan: Plan, inputs: Sequence[Array]) -> list[tuple[Any, Array]]:
        return list(zip(plan.domain_placements, inputs, strict=True))


class _DeviceRun:
    """One run: for each value what every device has of it; None stands for zeros of a sum."""

    def __init__(self, engine: DeviceThreadEngine, program: Program, points: Points | None) -> None:
        self.engine, self.program, self.points = engine, program, points
        self.mesh, self.shape = engine.plan.mesh, program.mesh
        self.devices = self.mesh.devices
        self.held: dict[int, list[Array | None]] = {}
        self.batch: tuple[int, ...] = ()

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        values = self.program.values
        for k, x in zip(self.program.inputs, inputs, strict=True):
            self.held[k] = pieces(x, self.mesh)
            self.batch = tuple(x.shape)[: x.ndim - values[k].space.ndim]
            if any(piece is None for piece in self.held[k]):
                raise PlacementError(
                    "executor 'threads' runs the devices of one process, the plan has some of "
                    "others; take executor='shard_map'"
                )
        slots = {
            loop: slot
            for loop, exchange in exchanges(self.program, self.mesh).items()
            if (slot := self.engine.blocks.of(self.program.steps[loop], exchange)).exchanged  # type: ignore[arg-type]
        }
        moves = {loop: m for loop, m in exchanged_bands(self.program).items() if loop in slots}
        last: dict[int, int] = {k: len(self.program.steps) for k in self.program.outputs}
        for position, step in enumerate(self.program.steps):
            for k in step.inputs:
                last[k] = max(last.get(k, -1), position)
        for position, step in enumerate(self.program.steps):
            if position in moves.values():
                # Done band by band in the loop beside it, which finds or leaves the other end.
                self.held[step.outputs[0]] = self.held[step.inputs[0]]
            elif position in moves:
                move = self.program.steps[moves[position]]
                assert isinstance(step, Compute) and isinstance(move, Movement)
                self.held[step.outputs[0]] = self._exchanged(step, move, slots[position])
            elif isinstance(step, Compute):
                self._compute(step)
            elif isinstance(step, Add):
                columns = list(zip(*(self.held[k] for k in step.inputs), strict=True))
                self.held[step.outputs[0]] = self.spread(lambda d, c=columns: _sum(c[d]))  # type: ignore[misc]
            else:
                assert isinstance(step, Movement)
                self.held[step.outputs[0]] = self._moved(step)
            for k in step.inputs:
                if last[k] == position:
                    self.held.pop(k, None)
        self.engine.plan.stats.ran(self.program, self.batch)
        return [self._joined(k) for k in self.program.outputs]

    def spread(self, task: Callable[[int], Any]) -> list[Any]:
        """`task(d)` for every device, each in a worker of which it is the default device."""
        import jax

        made: list[Any] = [None] * len(self.devices)
        x64 = jax.config.jax_enable_x64

        def work(d: int) -> None:
            try:
                with jax.default_device(self.devices[d]), jax.enable_x64(x64):
                    made[d] = task(d)
            except Exception as error:
                error.add_note(f"on shard {d} of {len(made)}, {self.devices[d]}")
                raise

        pool.run(work, len(made))
        return made

    def _compute(self, step: Compute) -> None:
        slot = self.engine.blocks.of(step)
        leaves = self.engine.blocks.on_devices(slot)

        def task(d: int) -> tuple[Array, ...] | None:
            parts = [self.held[k][d] for k in step.inputs]
            if any(part is None for part in parts):
                return None
            if self.points is not None and not slot.linear:
                self.points[step.number, d] = tuple(parts)
            at = self.engine.point(step, d)
            return _apply()(slot.skeleton, step.adjoint, tuple(leaves[d]), tuple(parts), at)  # type: ignore[no-any-return]

        made = self.spread(task)
        for j, k in enumerate(step.outputs):
            self.held[k] = [None if row is None else row[j] for row in made]

    def _exchanged(self, step: Compute, move: Movement, slot: Slot) -> list[Array | None]:
        """A loop whose bands are gathered, or whose partial sums are scattered, one by one."""
        leaves = self.engine.blocks.on_devices(slot)
        loop = slot.skeleton.build(iter(leaves[0]), unpack)
        n, share, length, axis = self.shape[move.mesh_axis], loop.share, loop.length, loop.axis
        lines = {
            d: (line, i) for line in groups(self.shape, move.mesh_axis) for i, d in enumerate(line)
        }
        source = self.held[step.inputs[0]]
        target: list[list[Array]] = [[] for _ in self.devices]
        for first in range(0, share, length):
            band, last = first // length, min(first + length, share)

            def made(d: int, j: int, x: Array, band: int = band) -> Array:
                return _piece()(slot.skeleton, step.adjoint, tuple(leaves[d]), band * n + j, x)

            def gathered(d: int, first: int = first, last: int = last) -> None:
                # Where there is nothing, a whole line of devices has nothing.
                there = [
                    (j, other) for j, other in enumerate(lines[d][0]) if source[other] is not None
                ]
                for j, other in there:
                    part = send(_cut(source[other], axis, first, last), self.devices[d])
                    part = made(d, j, _built([part], axis, [0], length))
                    target[d] = [part if not target[d] else _sum([target[d][0], part])]
                    target[d][0].block_until_ready()

            def scattered(d: int, first: int = first, last: int = last) -> None:
                line, j = lines[d]
                total: Array | None = None
                for other in line:
                    x = source[other]
                    if x is not None:
                        part = send(made(other, j, x), self.devices[d])
                        total = part if total is None else _sum([total, part])
                if total is not None:
                    target[d].append(_cut(total, axis, 0, last - first).block_until_ready())

            self.spread(gathered if isinstance(move, AllGather) else scattered)
        if isinstance(move, AllGather):
            return [parts[0] if parts else None for parts in target]
        starts = list(range(0, share, length))
        return [_built(parts, axis, starts, share) if parts else None for parts in target]

    def _joined(self, k: int) -> Array:
        value = self.program.values[k]
        ndim = len(self.batch) + value.space.ndim
        shape = [*self.batch, *value.local_shape(self.shape)]
        cut: list[int | None] = []
        for m, state in enumerate(value.states):
            axis = state.axis + len(self.batch) if isinstance(state, Sharded) else None
            cut.append(axis)
            if axis is not None:
                shape[axis] *= self.shape[m]
        parts = self.spread(lambda d: self._masked(k, d))
        return joined(tuple(shape), named_sharding(self.mesh, tuple(cut), ndim), parts)

    def _masked(self, k: int, d: int) -> Array:
        """A share with a zero tail."""
        value, part = self.program.values[k], self.held[k][d]
        assert part is not None
        for m, state in enumerate(value.states):
            if isinstance(state, Sharded):
                n, axis = value.space.shape[state.axis], state.axis - value.space.ndim
                lo, hi = real_range(n, self.shape[m], self.mesh.coordinates[d][m])
                if hi - lo < part.shape[axis]:
                    part = _built([_cut(part, axis, 0, hi - lo)], axis, [0], part.shape[axis])
        return part

    def _moved(self, step: Movement) -> list[Array | None]:
        before, after = (self.program.values[k] for k in (*step.inputs, *step.outputs))
        source = self.held[step.inputs[0]]
        n = self.shape[step.mesh_axis]
        if n == 1:
            return source
        lines: dict[int, tuple[tuple[int, ...], int]] = {}
        for line in groups(self.shape, step.mesh_axis):
            lines.update({d: (line, i) for i, d in enumerate(line)})
        move = _Move(before, after, step.mesh_axis, n, self.batch, self.shape)
        if isinstance(step, AllReduce):
            # The first device of a line adds up, the others get copies.
            first = self.spread(
                lambda d: (
                    move.summed(source, *lines[d], self.devices[d]) if lines[d][1] == 0 else None
                )
            )
            return self.spread(lambda d: send(first[lines[d][0][0]], self.devices[d]))
        task = _TASKS[type(step)]
        return self.spread(lambda d: task(move, source, *lines[d], self.devices[d]))


class _Move:
    """How one value changes its state along a line of devices; methods make one device's part."""

    def __init__(
        self,
        before: Value,
        after: Value,
        m: int,
        n: int,
        batch: tuple[int, ...],
        shape: tuple[int, ...],
    ) -> None:
        self.source, self.target, self.n = before.states[m], after.states[m], n
        self.extents, self.ndim = before.space.shape, before.space.ndim
        self.dtype = after.space.dtype
        self.local = (*batch, *after.local_shape(shape))

    def sliced(self, source: Any, line: Any, i: int, device: Any) -> Array | None:
        """From a whole axis: the device's own planes."""
        part = source[line[i]]
        if part is None:
            return None
        axis, n, length = self.axis(self.target)
        return _assembled(
            [(_cut(part, axis, a, a + c), b) for a, b, c in self.cells(self.target, n, i)],
            axis, length, part,
        )  # fmt: skip

    def gathered(self, source: Any, line: Any, i: int, device: Any) -> Array | None:
        """The shares of all devices side by side."""
        axis, n, _ = self.axis(self.source)
        parts = []
        for j, d in enumerate(line):
            lo, hi = real_range(n, self.n, j)
            if hi > lo and source[d] is not None:
                parts.append((send(_cut(source[d], axis, 0, hi - lo), device), lo))
        return _assembled(parts, axis, n, source[line[i]])

    def recut(self, source: Any, line: Any, i: int, device: Any) -> Array | None:
        """From every device the part of its share that falls into this one's."""
        old, n, _ = self.axis(self.source)
        new, extent, share = self.axis(self.target)
        first, last = real_range(extent, self.n, i)
        parts = []
        for j, d in enumerate(line):
            lo, hi = real_range(n, self.n, j)
            if hi > lo and source[d] is not None:
                piece = _cut(_cut(source[d], old, 0, hi - lo), new, first, last)
                parts.append((send(piece, device), lo))
        if not parts:
            return None
        whole = _assembled(parts, old, n, parts[0][0])
        return _built([whole], new, [0], share)

    def haloed(self, source: Any, line: Any, i: int, device: Any) -> Array | None:
        """The planes of a window, from the devices that own them."""
        assert isinstance(self.target, Windowed)
        axis, n, length = self.axis(self.target)
        parts = []
        for segment in segments(self.target, n, self.n)[i]:
            owner = source[line[segment.owner]]
            if owner is not None:
                piece = _cut(owner, axis, segment.first, segment.first + segment.count)
                parts.append((send(piece, device), segment.place))
        return _assembled(parts, axis, length, source[line[i]])

    def summed(self, source: Any, line: Any, i: int, device: Any) -> Array | None:
        """The sum of all summands, or of the device's planes of them, in the order of devices."""
        parts: list[Array] = []
        for d in line:
            part = source[d]
            if part is None:
                continue
            if isinstance(self.target, Sharded):
                axis, n, _ = self.axis(self.target)
                part = _cut(part, axis, *real_range(n, self.n, i))
            parts.append(send(part, device))
        if not parts:
            return self.nothing(device)
        total = _sum(parts)
        if isinstance(self.target, Sharded):
            axis, _, length = self.axis(self.target)
            total = _built([total], axis, [0], length)
        return total

    def returned(self, source: Any, line: Any, i: int, device: Any) -> Array | None:
        """What the windows hold of the device's planes, added up."""
        assert isinstance(self.source, Windowed)
        axis, n, length = self.axis(self.target)
        total: Array | None = None
        table = segments(self.source, n, self.n)
        for j, d in enumerate(line):
            for segment in table[j]:
                if segment.owner != i or source[d] is None:
                    continue
                piece = send(
                    _cut(source[d], axis, segment.place, segment.place + segment.count), device
                )
                piece = _built([piece], axis, [segment.first], length)
                total = piece if total is None else _sum([total, piece])
        return self.nothing(device) if total is None else total

    def extended(self, source: Any, line: Any, i: int, device: Any) -> Array | None:
        """A summand: a share among zeros; of copies the first."""
        part = source[line[i]]
        if isinstance(self.source, Replicated):
            return part if i == 0 else None
        if part is None:
            return None
        axis, n, _ = self.axis(self.source)
        total: Array | None = None
        for a, b, c in self.cells(self.source, n, i):
            piece = _built([_cut(part, axis, b, b + c)], axis, [a], n)
            total = piece if total is None else _sum([total, piece])
        return total

    def axis(self, state: Any) -> tuple[int, int, int]:
        """Of the axis that a state cuts: its negative number, its planes, those of a part."""
        n = self.extents[state.axis]
        if isinstance(state, Windowed):
            length = state.padded[0][1] - state.padded[0][0]
        else:
            length = share_of(n, self.n)
        return state.axis - self.ndim, n, length

    def cells(self, state: Any, n: int, i: int) -> Cells:
        """What a part holds of the whole axis."""
        if isinstance(state, Windowed):
            whole = Windowed(state.axis, (state.ranges[i],), (state.padded[i],), state.periodic)
            return [(s.first, s.place, s.count) for s in segments(whole, n, 1)[0]]
        lo, hi = real_range(n, self.n, i)
        return [(lo, 0, hi - lo)] if hi > lo else []

    def nothing(self, device: Any) -> Array:
        import jax

        return send(jax.numpy.zeros(self.local, self.dtype), device)


_TASKS: dict[type, Callable[..., Array | None]] = {
    Slice: _Move.sliced,
    AllGather: _Move.gathered,
    AllToAll: _Move.recut,
    Halo: _Move.haloed,
    Extend: _Move.extended,
    ReduceScatter: _Move.summed,
    HaloAdd: _Move.returned,
}


def _assembled(
    parts: list[tuple[Array, int]], axis: int, length: int, like: Array | None
) -> Array | None:
    """Pieces at their places, zeros between; None of nothing but zeros."""
    if not parts:
        return None if like is None else _built([_cut(like, axis, 0, 0)], axis, [0], length)
    parts = sorted(parts, key=lambda pair: pair[1])
    return _built([p for p, _ in parts], axis, [place for _, place in parts], length)


def _built(parts: Sequence[Array], axis: int, places: Sequence[int], length: int) -> Array:
    if len(parts) == 1 and places[0] == 0 and parts[0].shape[axis] == length:
        return parts[0]
    return _compiled()[0](tuple(parts), axis, tuple(places), length)


def _cut(x: Array, axis: int, start: int, stop: int) -> Array:
    if start == 0 and stop == x.shape[axis]:
        return x
    return _compiled()[1](x, axis, start, stop)


def _sum(parts: Sequence[Array | None]) -> Array | None:
    there = tuple(part for part in parts if part is not None)
    return _compiled()[2](there) if len(there) > 1 else (there[0] if there else None)


@functools.cache
def _compiled() -> tuple[Any, Any, Any]:
    import jax

    jnp = jax.numpy

    def build(parts: Any, axis: int, places: tuple[int, ...], length: int) -> Any:
        rows, at = [], 0
        for part, place in zip(parts, places, strict=True):
            rows += [_zeros(jnp, part, axis, place - at), part]
            at = place + part.shape[axis]
        rows.append(_zeros(jnp, parts[0], axis, length - at))
        return jnp.concatenate(rows, axis=axis)

    def cut(x: Any, axis: int, start: int, stop: int) -> Any:
        return jax.lax.slice_in_dim(x, start, max(stop, start), axis=x.ndim + axis)

    def add(parts: Any) -> Any:
        return functools.reduce(lambda a, b: a + b, parts)

    return (
        jax.jit(build, static_argnums=(1, 2, 3)),
        jax.jit(cut, static_argnums=(1, 2, 3)),
        jax.jit(add),
    )


def _zeros(jnp: Any, like: Array, axis: int, planes: int) -> Array:
    shape = list(like.shape)
    shape[axis] = planes
    return jnp.zeros(shape, like.dtype)


@functools.cache
def _piece() -> Any:
    import jax

    def run(skeleton: Any, adjoint: bool, leaves: Any, k: Any, x: Any) -> Any:
        return skeleton.build(iter(leaves), unpack)._of_block(k, x, adjoint)

    return jax.jit(run, static_argnums=(0, 1))


@functools.cache
def _apply() -> Any:
    import jax

    def run(skeleton: Any, adjoint: bool, leaves: Any, parts: Any, at: Any) -> Any:
        return applied(skeleton, leaves, parts, adjoint, at)

    return jax.jit(run, static_argnums=(0, 1))
