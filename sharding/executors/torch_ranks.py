"""A program on the ranks of a process group: every rank runs it on its own blocks.

Shares are plain tensors without padding, uneven or empty. Movements are exchanges of
`sharding/ranks.py`, and each is a torch autograd function whose backward is the movement between
the dual states, so that a program can be differentiated in any way torch knows. A thin layer turns
DTensors into local tensors and back; `Local` is what lies within it, for `torch.func`.

Ranks agree before the first exchange and after the last: where one raises, in between too, all
raise and the group can be used again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from linops import arrays, calling
from linops.algebra.structure import leaves, skeleton
from linops.arrays import Array
from linops.errors import PlacementError, ShapeError
from linops.functionals.functional import Functional
from linops.operator import LinearOperator
from linops.space import AnySpace, ProductSpace, Space
from linops.transforms.torch_function import apply_pair, recording
from sharding import agreement
from sharding.executors.blocks import Blocks
from sharding.homes.torch_ranks import opened, over_copies, refuse_transform, wrapped
from sharding.placement import Placement
from sharding.program import Program
from sharding.ranks import Line, ranks_of
from sharding.signature import of_program
from sharding.states import (
    Partial,
    Replicated,
    Sharded,
    State,
    Windowed,
    real_range,
)
from sharding.steps import Add, Compute, Movement, Step, Value

if TYPE_CHECKING:
    from sharding.plans import Plan

__all__ = ["Engine", "Local"]


class Engine:
    """Runs the programs of a plan on this rank."""

    def __init__(self, plan: Plan, blocks: Blocks | None = None) -> None:
        self.plan = plan
        self.ranks = ranks_of(plan.mesh)
        self.blocks = blocks or Blocks(plan.mesh.shape, plan.mesh.coordinates)
        self._said: dict[int, tuple[Program, str]] = {}
        self._placements: dict[Any, Placement] = {}

    def run(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a program, DTensors; derivatives are recorded where torch records."""
        for x in inputs:
            refuse_transform(x)
        recorded = any(map(recording, inputs)) or self._trains(program)
        values = [program.values[k] for k in program.inputs]
        shapes = [tuple(x.shape) for x in inputs]
        batch = _batch(inputs[0], values[0])
        with contextlib.nullcontext() if recorded else _no_grad():
            local = [
                opened(self._placement(v), self.ranks, x)
                for v, x in zip(values, inputs, strict=True)
            ]
            made = self._agreed(program, local, f"{shapes} {[x.dtype for x in inputs]}")
            outs = [program.values[k] for k in program.outputs]
            # A leaf may hand its input through; placed results have memory of their own.
            made = [
                y.clone() if any(arrays.may_share_memory(y, x) for x in local) else y for y in made
            ]
            return [
                self._closed(v, y, (*batch, *v.space.shape))
                for v, y in zip(outs, made, strict=True)
            ]

    def linearised(self, program: Program, inputs: Sequence[Any]) -> Engine:
        """The engine with the Jacobians of nonlinear blocks at these inputs."""
        points: dict[tuple[int, int], Any] = {}
        with _no_grad():
            local = [x.detach().to_local() for x in inputs]
            self._agreed(program, local, f"{[tuple(x.shape) for x in inputs]}", points)
        return Engine(self.plan, self.blocks.linearised(points))

    def local(self, operator: Any) -> Local:
        """The operator on this rank's parts."""
        adjoint = getattr(operator, "_adjoint_program", None)
        return Local(self, self.plan.forward, adjoint, operator.name)

    def run_local(self, program: Program, parts: Sequence[Array]) -> list[Array]:
        """The outputs of a program on this rank's parts, under any transform of torch."""
        values = [program.values[k] for k in program.inputs]
        entered = [self._entered(v, x) for v, x in zip(values, parts, strict=True)]
        shapes = [_batch_of_all(x, v) for v, x in zip(values, parts, strict=True)]
        return self._agreed(program, entered, f"local {shapes} {[x.dtype for x in parts]}")

    # --- running -------------------------------------------------------------------------

    def _agreed(
        self,
        program: Program,
        local: Sequence[Array],
        what: str,
        points: dict[tuple[int, int], Any] | None = None,
    ) -> list[Array]:
        text = f"{self.plan.operator.name} on {what}, program {self._digest(program)}"
        agreement.settle(text)
        machine = _Machine(self, program, local, points)
        made = machine.run(local)
        agreement.settle(text, machine.error)
        return made

    def _digest(self, program: Program) -> str:
        if id(program) not in self._said:
            self._said[id(program)] = program, of_program(program)
        return self._said[id(program)][1]

    def _trains(self, program: Program) -> bool:
        """Whether an array of a leaf requires a gradient."""
        return any(recording(a) for step in program.computes() for a in leaves(step.operator))

    def _placement(self, value: Value) -> Placement:
        from sharding.drafts import placement_of

        key = value.space.shape, value.states
        if key not in self._placements:
            self._placements[key] = placement_of(self.plan.mesh, *key)
        return self._placements[key]

    def _entered(self, value: Value, x: Array) -> Array:
        """`x`; its cotangents, one a copy, are added up."""
        if not recording(x) or not any(isinstance(s, Replicated) for s in value.states):
            return x
        placement = self._placement(value)
        return _entry().apply(functools.partial(over_copies, placement, self.ranks), x)

    def _closed(self, value: Value, y: Array, shape: tuple[int, ...]) -> Any:
        """The DTensor of an output; of copies of its cotangent one counts."""
        placement = self._placement(value)

        def keep(g: Any) -> Any:
            local = placement.put(g).to_local()
            for state, c in zip(value.states, self.ranks.at, strict=True):
                if isinstance(state, Replicated) and c:
                    return local.new_zeros(local.shape)
            return local

        def wrap(y: Any) -> Any:
            return wrapped(placement, self.ranks, y, shape)

        return apply_pair(y, wrap, keep) if recording(y) else wrap(y)

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["plan"])  # type: ignore[misc]


class Local:
    """A lowered operator on this rank's plain tensors; every rank calls it together.

    `local(x)`, and for linear ones `local @ x` and `local.H @ y`, under autograd and `torch.func`
    (jvp, vjp, grad, vmap and their compositions). Parts are those of the placements: shares where
    an axis is cut, copies elsewhere. Derivatives treat the copies of an output as outputs of their
    own, so a loss formed on every rank from local parts counts a placement's `replicas` times:
    divide by them. The gradient of an input that all ranks hold comes summed over the ranks.

    Attributes
    ----------
    domain, codomain
        The spaces of this rank's parts.
    """

    def __init__(
        self, engine: Engine, program: Program, adjoint: Program | None, name: str
    ) -> None:
        self._engine, self._program, self._adjoint = engine, program, adjoint
        self.name = name
        self.domain = _local_space(program, program.inputs, engine.ranks.at)
        self.codomain = _local_space(program, program.outputs, engine.ranks.at)

    @property
    def H(self) -> Local:
        """The adjoint on this rank's parts."""
        if self._adjoint is None:
            raise PlacementError(f"{self.name} is not linear: it has no adjoint")
        return Local(self._engine, self._adjoint, self._program, f"{self.name}.H")

    def __call__(self, x: Any) -> Any:
        parts = tuple(x) if isinstance(x, (tuple, list)) else (x,)
        try:
            self.domain.check_shape(x, f"{self.name}.local")
            if not all(map(arrays.is_torch, parts)) or any(map(arrays.is_distributed, parts)):
                raise ShapeError(f"{self.name}.local takes this rank's plain tensors")
        except (TypeError, ValueError) as error:
            agreement.refuse(error)
            raise
        made = self._engine.run_local(self._program, parts)
        return tuple(made) if isinstance(self.codomain, ProductSpace) else made[0]

    def __matmul__(self, x: Any) -> Any:
        return self(x)

    def __repr__(self) -> str:
        return f"<{self.name}.local: {self.domain} -> {self.codomain}>"


class _Machine:
    """One run of a program on this rank."""

    def __init__(
        self,
        engine: Engine,
        program: Program,
        local: Sequence[Array],
        points: dict[tuple[int, int], Any] | None,
    ) -> None:
        self.engine, self.program, self.points = engine, program, points
        self.position, self.at = engine.ranks.position, engine.ranks.at
        self.batch = _batch(local[0], program.values[program.inputs[0]])
        self.error: Exception | None = None
        self.held: dict[int, Array] = {}

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        self.held = dict(zip(self.program.inputs, inputs, strict=True))
        last = {k: step for step in self.program.steps for k in step.inputs}
        kept = set(self.program.outputs)
        for step in self.program.steps:
            self._step(step)
            for k in step.inputs:
                if last[k] is step and k not in kept:
                    self.held.pop(k, None)
        return [self.held[k] for k in self.program.outputs]

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
            self.held[step.outputs[0]] = self._moved(parts[0], before, after, step.mesh_axis)

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
            entered = tuple(_entry().apply(self.engine.ranks.total, a) for a in arrays_)
            step = replace(step, operator=form.build(iter(entered)))
            blocks = blocks.fresh()
        return blocks.of(step, self.position) if self.error is None else None, entered

    def _made(self, step: Compute, block: Any, parts: list[Array]) -> tuple[Array, ...]:
        if block is None:
            return self._nothing(step, parts)
        source: AnySpace = block.codomain if step.adjoint else block.domain
        x = tuple(parts) if isinstance(source, ProductSpace) else parts[0]
        if self.points is not None and not isinstance(block, LinearOperator):
            self.points[step.number, self.position] = x
        try:
            made = _applied(block, x, step.adjoint)
        except Exception as error:
            # The others go on to the next exchange: this rank takes part, and tells at the end.
            error.add_note(f"on rank {self.position}, in {block.name}")
            self.error = error
            return self._nothing(step, parts)
        return made if isinstance(made, tuple) else (made,)

    def _nothing(self, step: Compute, parts: list[Array]) -> tuple[Array, ...]:
        """Zeros, for a share that is empty, in the graph of this rank like of the others."""
        outs = [self.program.values[k] for k in step.outputs]
        ins = [self.program.values[k] for k in step.inputs]
        several = len(parts) > 1 or len(outs) > 1

        def zeros(values: list[Value]) -> Callable[[Any], Any]:
            def make(x: Any) -> Any:
                like = x[0] if isinstance(x, tuple) else x
                batch = like.shape[: like.ndim - (ins if values is outs else outs)[0].space.ndim]
                made = [_zeros(like, (*batch, *self._shape(v)), v.space) for v in values]
                return tuple(made) if several else made[0]

            return make

        x = tuple(parts) if several else parts[0]
        if any(map(recording, parts)):
            made = apply_pair(x, zeros(outs), zeros(ins))
        else:
            made = zeros(outs)(x)
        return made if isinstance(made, tuple) else (made,)

    def _shape(self, value: Value) -> tuple[int, ...]:
        return tuple(hi - lo for lo, hi in value.real(self.program.mesh, self.at))

    def _moved(self, x: Array, before: Value, after: Value, m: int) -> Array:
        line = self.engine.ranks.lines[m]
        ndim = before.space.ndim
        source, target = before.states[m], after.states[m]
        there = functools.partial(_move, line, before.space.shape, ndim, source, target)
        if not recording(x):
            return there(x)
        dual_source, dual_target = after.dual().states[m], before.dual().states[m]
        back = functools.partial(_move, line, before.space.shape, ndim, dual_source, dual_target)
        return apply_pair(x, there, back)


def _move(
    line: Line, shape: tuple[int, ...], ndim: int, source: State, target: State, x: Array
) -> Array:
    """One movement of a rank's tensor along a line of the mesh.

    The movement between the dual states is its adjoint, as a map of all ranks' tensors together.
    """
    if isinstance(source, Replicated):
        if isinstance(target, Partial):
            return x if line.i == 0 else x.new_zeros(x.shape)
        return _taken(line, shape, ndim, target, x)
    if isinstance(target, Partial):
        return _spread(line, shape, ndim, source, x)
    if isinstance(source, Partial):
        if isinstance(target, Replicated):
            return line.all_reduce(x)
        assert isinstance(target, Sharded)
        return line.reduce_scatter(x, target.axis - ndim, shape[target.axis])
    axis = source.axis - ndim
    size = shape[source.axis]
    if isinstance(target, Replicated):
        return line.all_gather(x, axis, size)
    if isinstance(target, Windowed):
        return line.halo(x, axis, size, target)
    if isinstance(source, Windowed):
        return line.halo_add(x, axis, size, source)
    return line.all_to_all(x, (axis, size), (target.axis - ndim, shape[target.axis]))


def _taken(line: Line, shape: tuple[int, ...], ndim: int, state: State, x: Array) -> Array:
    """A rank's range of what it holds whole."""
    return line.taken(x, *_range(line, shape, ndim, state))


def _spread(line: Line, shape: tuple[int, ...], ndim: int, state: State, x: Array) -> Array:
    """A rank's range among zeros."""
    return line.spread(x, *_range(line, shape, ndim, state))


def _range(
    line: Line, shape: tuple[int, ...], ndim: int, state: State
) -> tuple[int, int, tuple[int, int]]:
    assert isinstance(state, (Sharded, Windowed))
    size = shape[state.axis]
    planes = (
        state.planes(line.i, size)
        if isinstance(state, Windowed)
        else real_range(size, line.n, line.i)
    )
    return state.axis - ndim, size, planes


def _applied(block: Any, x: Any, adjoint: bool) -> Any:
    """A block on a rank's tensors; linear ones are differentiated by their declared pair."""
    if isinstance(block, Functional):
        like = x[0] if isinstance(x, tuple) else x
        value = block._value(x)
        if arrays.is_torch(value):
            return value.double() if value.dtype != _float64() else value
        return arrays.convert(np.asarray(value, np.float64), like)
    if isinstance(block, LinearOperator):
        made = calling.derivable(block, x, adjoint)
        if made is not None:
            return made
    return block._backward(x) if adjoint else block._forward(x)


def _tie(others: Sequence[Array]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """The first of several, of which all others are told that they have no part in it."""
    shapes = [tuple(other.shape) for other in others]

    def back(g: Any) -> Any:
        return (g, *(g.new_zeros(shape) for shape in shapes))

    return lambda x: x[0].view_as(x[0]), back


def _zeros(like: Array, shape: tuple[int, ...], space: Space) -> Array:
    import torch

    return like.new_zeros(shape, dtype=getattr(torch, space.dtype.name))


def _batch(x: Array, value: Value) -> tuple[int, ...]:
    return tuple(x.shape)[: x.ndim - value.space.ndim]


def _batch_of_all(x: Array, value: Value) -> tuple[int, ...]:
    """The batch axes, those of `torch.func.vmap` included."""
    import torch

    functorch, batch = torch._C._functorch, _batch(x, value)
    while functorch.is_functorch_wrapped_tensor(x):
        inner = functorch.get_unwrapped(x)
        if functorch.is_batchedtensor(x):
            batch = (inner.shape[functorch.maybe_get_bdim(x)], *batch)
        x = inner
    return batch


def _local_space(program: Program, ends: Sequence[int], at: tuple[int, ...]) -> AnySpace:
    spaces = []
    for k in ends:
        value = program.values[k]
        shape = tuple(hi - lo for lo, hi in value.real(program.mesh, at))
        space = value.space
        spaces.append(Space(shape, space.dtype, space.axes, space.spacing))
    return ProductSpace(spaces) if len(spaces) > 1 else spaces[0]


@contextlib.contextmanager
def _no_grad() -> Iterator[None]:
    import torch

    with torch.no_grad():
        yield


def _float64() -> Any:
    import torch

    return torch.float64


@functools.cache
def _entry() -> Any:
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
