"""One run of a program on a rank: steps on its own tensors, in the graph that torch records.

A rank whose block raises goes on with zeros, so that the others do not wait for it, and tells at
the next gate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.functionals.functional import Functional
from linops.linear_operator import LinearOperator
from linops.space import AnySpace, ProductSpace, Space
from linops.structure import leaves, skeleton
from linops.transforms import torch_function
from linops.transforms.torch_function import apply_pair, recording
from sharding.executors.torch_gate import Gate
from sharding.executors.torch_tiles import in_tiles
from sharding.executors.torch_zeros import nothing, zeros
from sharding.program import Program
from sharding.rank_movements import recorded_move
from sharding.steps import Add, Compute, Movement, Step, Value
from sharding.tiling import Pair

if TYPE_CHECKING:
    from sharding.executors.torch_ranks import RankEngine

__all__ = ["RankRun", "batch_of", "entry", "local_space"]


class RankRun:
    """One run of a program on this rank."""

    def __init__(
        self,
        engine: RankEngine,
        program: Program,
        gate: Gate,
        points: dict[tuple[int, int], Any] | None,
    ) -> None:
        self.engine, self.program, self.gate, self.points = engine, program, gate, points
        self.position, self.at = engine.ranks.position, engine.ranks.at
        self.held: dict[int, Array] = {}

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        self.held = dict(zip(self.program.inputs, inputs, strict=True))
        units = self.engine.units(self.program)
        last = {k: unit for unit in units for k in unit.inputs}
        kept = set(self.program.outputs)
        for unit in units:
            self._unit(unit)
            for k in unit.inputs:
                if last[k] is unit and k not in kept:
                    self.held.pop(k, None)
        return [self.held[k] for k in self.program.outputs]

    def local_space(self, ends: Sequence[int]) -> Space:
        """The space of this rank's part of one value."""
        space = local_space(self.program, ends, self.at)
        assert isinstance(space, Space)
        return space

    def where(self, block: Any) -> str:
        """What to say of an error."""
        return f"on rank {self.position}, in {block.name}"

    def _unit(self, unit: Step | Pair) -> None:
        if not isinstance(unit, Pair):
            self._step(unit)
        elif any(map(recording, leaves(unit.loop.operator))):
            for step in unit.parts:
                self._step(step)
            self.held.pop(unit.parts[0].outputs[0])
        else:
            self.held[unit.outputs[0]] = in_tiles(self, unit, self.held[unit.inputs[0]])

    def _step(self, step: Step) -> None:
        parts = [self.held[k] for k in step.inputs]
        if isinstance(step, Compute):
            self.held.update(zip(step.outputs, self._computed(step, parts), strict=True))
        elif isinstance(step, Add):
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            self.held[step.outputs[0]] = total
        else:
            assert isinstance(step, Movement)
            before, after = (self.program.values[k] for k in (*step.inputs, *step.outputs))
            m, space = step.mesh_axis, before.space
            self.held[step.outputs[0]] = recorded_move(
                self.engine.ranks.lines[m],
                space.shape,
                space.ndim,
                before.states[m],
                after.states[m],
                parts[0],
            )

    def _computed(self, step: Compute, parts: list[Array]) -> tuple[Array, ...]:
        block, entered = self._block(step)
        made = self._made(step, block, parts)
        if not entered:
            return made
        # Every rank passes on cotangents of the leaf's arrays, also one that has no use for them.
        return (apply_pair((made[0], *entered), *_tie(entered)), *made[1:])

    def _block(self, step: Compute) -> tuple[Any, tuple[Array, ...]]:
        """This rank's block, and the leaf's arrays of which a derivative is recorded."""
        blocks = self.engine.blocks
        entered: tuple[Array, ...] = ()
        if any(map(recording, leaves(step.operator))):
            form, arrays_ = skeleton(step.operator, recording)
            # Every rank has a copy and sees a part of what it does: the parts are added up.
            entered = tuple(entry().apply(self._total, a) for a in arrays_)
            step = replace(step, operator=form.build(iter(entered)))
            blocks = blocks.fresh()
        try:
            return blocks.of(step, self.position) if self.gate.error is None else None, entered
        except Exception as error:
            self.gate.keep(error, self.where(step.operator))
            return None, entered

    def _total(self, x: Array) -> Array:
        self.gate.agree_or_raise()
        return self.engine.ranks.total(x)

    def _made(self, step: Compute, block: Any, parts: list[Array]) -> tuple[Array, ...]:
        if block is None:
            return self._nothing(step, parts)
        source: AnySpace = block.codomain if step.adjoint else block.domain
        x = tuple(parts) if isinstance(source, ProductSpace) else parts[0]
        if self.points is not None and not isinstance(block, LinearOperator):
            self.points[step.number, self.position] = x
        try:
            made = self._applied(block, x, step.adjoint)
        except Exception as error:
            self.gate.keep(error, self.where(block))
            return self._nothing(step, parts)
        made = made if isinstance(made, tuple) else (made,)
        if not isinstance(block, LinearOperator) and any(map(recording, parts)):
            # In the graph like where a rank has no share: affine maps forget the point.
            made = (made[0] + self._nothing(step, parts)[0], *made[1:])
        return made

    def _nothing(self, step: Compute, parts: list[Array]) -> tuple[Array, ...]:
        """Zeros, for a share that is empty, in the graph of this rank like of the others."""
        ends = [local_space(self.program, ks, self.at) for ks in (step.inputs, step.outputs)]
        x = tuple(parts) if len(parts) > 1 else parts[0]
        there, back = (functools.partial(zeros, source=a, target=b) for a, b in (ends, ends[::-1]))
        if not any(map(recording, parts)):
            made = there(x)
        elif isinstance(step.operator, LinearOperator):
            made = apply_pair(x, there, back)
        else:
            made = nothing(x, *ends)
        return made if isinstance(made, tuple) else (made,)

    def _applied(self, block: Any, x: Any, adjoint: bool) -> Any:
        """A block on a rank's tensors; linear ones are differentiated by their declared pair."""
        if isinstance(block, Functional):
            like = x[0] if isinstance(x, tuple) else x
            value = block._value(x)
            if arrays.is_torch(value):
                return value.double() if value.dtype != _float64() else value
            return arrays.convert(np.asarray(value, np.float64), like)
        if isinstance(block, LinearOperator):
            kept = functools.partial(self.gate.kept, where=self.where(block))
            made = torch_function.apply_operator(block, x, adjoint, kept)
            if made is not None:
                return made
        return block._backward(x) if adjoint else block._forward(x)


def local_space(program: Program, ends: Sequence[int], at: tuple[int, ...]) -> AnySpace:
    """The space of a rank's parts of some values of a program."""
    spaces = []
    for k in ends:
        value = program.values[k]
        shape = tuple(hi - lo for lo, hi in value.real(program.mesh, at))
        space = value.space
        spaces.append(Space(shape, space.dtype, space.axes, space.spacing))
    return ProductSpace(spaces) if len(spaces) > 1 else spaces[0]


def _tie(others: Sequence[Array]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """The first of several, of which all others are told that they have no part in it."""
    shapes = [tuple(other.shape) for other in others]

    def back(g: Any) -> Any:
        return (g, *(g.new_zeros(shape) for shape in shapes))

    return lambda x: x[0].view_as(x[0]), back


def batch_of(x: Array, value: Value) -> tuple[int, ...]:
    """The leading axes beyond those of the value."""
    return tuple(x.shape)[: x.ndim - value.space.ndim]


def _float64() -> Any:
    import torch

    return torch.float64


@functools.cache
def entry() -> Any:
    import torch

    class Entry(torch.autograd.Function):  # type: ignore[misc]
        """The identity on what all ranks hold, whose cotangents are summed over the copies."""

        @staticmethod
        def forward(close: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.close = inputs[0]

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            # The sum over copies is its own adjoint: copies of its cotangents add up too.
            return None, apply_pair(g, ctx.close, ctx.close)

        @staticmethod
        def jvp(ctx: Any, _close: Any, dx: Any) -> Any:
            return dx

        @staticmethod
        def vmap(info: Any, in_dims: Any, close: Any, x: Any) -> Any:
            return Entry.apply(close, x.movedim(in_dims[1], 0)), 0

    return Entry
