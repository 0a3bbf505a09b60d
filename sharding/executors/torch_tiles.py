"""A leaf's bands and the exchange beside it, tile by tile: one travels while the next is computed.

Where a loop makes partial sums that are added up, or reads what is gathered or added up before, its
bands are tiles of the value that moves. They are the bands of the loop and sums are in the order of
ranks, so nothing changes but when an exchange is waited for, and no rank holds all partial sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from linops.arrays import Array
from linops.space import Space
from linops.transforms.torch_function import apply_pair, recording
from sharding.async_exchange import Journey, ahead, streamed
from sharding.executors.torch_zeros import zeros
from sharding.states import Sharded, State, dual, real_range
from sharding.tiling import Pair

if TYPE_CHECKING:
    from sharding.executors.torch_machine import RankRun

__all__ = ["in_tiles"]


def in_tiles(machine: RankRun, pair: Pair, x: Array) -> Array:
    """What a pair makes of a rank's tensor, in the graph that torch records."""
    tiles = _Tiles(machine, pair)
    if not recording(x):
        return tiles.run(x, False)
    made: Array = apply_pair(x, lambda v: tiles.run(v, False), lambda g: tiles.run(g, True))
    return made


class _Tiles:
    """One run of a pair on this rank, or of its adjoint."""

    def __init__(self, machine: RankRun, pair: Pair) -> None:
        self.machine, self.pair = machine, pair
        m, ends = pair.movement.mesh_axis, (*pair.movement.inputs, *pair.movement.outputs)
        values = machine.program.values
        self.line = machine.engine.ranks.lines[m]
        self.states = tuple(values[k].states[m] for k in ends)
        self.whole = values[ends[0]].space.shape  # beyond what the other mesh axis cuts
        other, between = pair.loop.inputs, pair.loop.outputs
        if pair.first:
            other, between = between, other
        self.far, self.near = machine.local_space(other), machine.local_space(between)
        n, length = self.near.shape[pair.tiled], pair.loop.bands[1]
        self.bounds = [(a, min(a + length, n)) for a in range(0, max(n, 1), length)]

    def run(self, x: Array, adjoint: bool) -> Array:
        """The pair, or its adjoint, of plain tensors."""
        states: Sequence[State] = self.states
        if adjoint:
            states = [dual(state) for state in reversed(states)]
        turned = self.pair.loop.adjoint is not adjoint
        if self.pair.first is not adjoint:
            return self._moved_first(x, states[0], turned)
        return self._made_first(x, states[1], turned)

    def _made_first(self, x: Array, target: State, turned: bool) -> Array:
        out: list[Array] = []
        axis = self.pair.tiled
        size = self.whole[axis]
        owner = isinstance(target, Sharded) and target.axis - len(self.whole) == axis
        begin, end = real_range(size, self.line.n, self.line.i)

        def journeys() -> Iterator[Journey]:
            for a, b in self.bounds:
                part = self._applied(_part(x, self.pair.along, a, b), a, b, turned, False)
                if not isinstance(target, Sharded):
                    yield self.line.summing(part)
                elif owner:
                    yield self.line.owning(part, axis, size, a)
                else:
                    cut = target.axis - len(self.whole)
                    yield self.line.scattering(part, cut, self.whole[cut])

        def place(i: int, made: Array) -> None:
            a = self.bounds[i][0]
            if not out:
                shape = list(made.shape)
                shape[axis] = end - begin if owner else self.near.shape[axis]
                out.append(made.new_empty(shape))
            if owner:
                a = min(max(a, begin), end) - begin
            out[0].narrow(made.ndim + axis, a, made.shape[axis]).copy_(made)

        streamed(journeys(), place)
        return out[0]

    def _moved_first(self, x: Array, source: State, turned: bool) -> Array:
        axis, along = self.pair.tiled, self.pair.along
        cut = source.axis - len(self.whole) if isinstance(source, Sharded) else None

        def journeys() -> Iterator[Journey]:
            for a, b in self.bounds:
                if cut is None:
                    yield self.line.summing(_part(x, axis, a, b))
                elif cut == axis:
                    yield self.line.lending(x, axis, self.whole[axis], a, b)
                else:
                    yield self.line.gathering(_part(x, axis, a, b), cut, self.whole[cut])

        out: Array | None = None
        for (a, b), part in zip(self.bounds, ahead(journeys()), strict=True):
            made = self._applied(part, a, b, turned, True)
            if out is None:
                out = made.new_zeros((*made.shape[: made.ndim - self.far.ndim], *self.far.shape))
            _part(out, along, a, b).add_(made)
        assert out is not None
        return out

    def _applied(self, x: Array, a: int, b: int, turned: bool, inward: bool) -> Array:
        """The block of one band, from its tile or to it; zeros where this rank has none."""
        near, far = _cut(self.near, self.pair.tiled, a, b), _cut(self.far, self.pair.along, a, b)
        source, target = (near, far) if inward else (far, near)
        machine, loop = self.machine, self.pair.loop
        where = machine.where(loop.operator)
        block: Any = None
        try:
            if machine.gate.error is None:
                block = machine.engine.blocks.tile(loop, machine.position, a, b)
        except Exception as error:
            machine.gate.keep(error, where)
        if block is None:
            return zeros(x, source, target)
        hook = block._backward if turned else block._forward
        made: Array = machine.gate.kept(hook, source, target, where)(x)
        return made


def _part(x: Array, axis: int | None, first: int, last: int) -> Array:
    return x if axis is None else x.narrow(x.ndim + axis, first, last - first)


def _cut(space: Space, axis: int | None, first: int, last: int) -> Space:
    if axis is None:
        return space
    shape = list(space.shape)
    shape[axis] = last - first
    return Space(tuple(shape), space.dtype)
