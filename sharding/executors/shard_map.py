"""A program as one jitted SPMD program on JAX devices: `shard_map` with collectives of `lax`.

Every device runs the same code on its padded share; which planes are real, which frames are its
own, it reads from its blocks' arrays, which enter as operands with a leading axis over the mesh.
Under JAX's transformations a linear program is one primitive with the plan's own adjoint, held to
the plan's shardings on both sides; nothing differentiates through its collectives. Programs are
shared by structure: new values compile nothing.

Where arrays live is said in `sharding/array_backends/jax_devices.py`, what blocks and halos look
like in `sharding/executors/padded.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.functionals.functional import Functional
from linops.linear_operator import LinearOperator
from linops.space import ProductSpace
from linops.transforms import jax_primitive
from linops.transforms.pytree import unpack
from sharding.array_backends.device_locks import together
from sharding.array_backends.jax_devices import constrained, named_sharding, on_shards, stacked
from sharding.banding import exchanged_bands
from sharding.executors import collectives
from sharding.executors.account import account_of, admit
from sharding.executors.ends import End
from sharding.executors.exchanged_loop import exchanges
from sharding.executors.padded import PaddedBlocks, Slot, description
from sharding.memory import Account
from sharding.mesh import Mesh
from sharding.program import Program
from sharding.states import share_of
from sharding.steps import Add, Compute, Movement

if TYPE_CHECKING:
    from sharding.planner import Plan

__all__ = ["ShardMapEngine"]


class ShardMapEngine:
    """Runs the programs of a plan, or of its linearisation at a point, as compiled programs."""

    def __init__(
        self,
        plan: Plan,
        blocks: PaddedBlocks | None = None,
        points: dict[int, tuple[Array, ...]] | None = None,
    ) -> None:
        self.plan = plan
        self.blocks = blocks or PaddedBlocks(plan.mesh, plan.machine)
        self._points = points or {}
        self._linear = bool(points) or plan.forward.linear
        self._bare = False  # whether its program knows its leaves no more
        self._ready: dict[int, tuple[Program, _Body, tuple[Array, ...]]] = {}
        self._pairs: dict[int, tuple[_PairProgram, bool, tuple[Array, ...]]] = {}

    def run(self, program: Program, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of a program for placed inputs, or traced ones of the padded shapes."""
        body, leaves = self._body(program)
        traced = any(map(arrays.is_traced, (*inputs, *leaves)))
        if not traced:
            body.admit(inputs, leaves)
            if not self._bare:
                ndim = program.values[program.inputs[0]].space.ndim
                self.plan.stats.ran(program, inputs[0].shape[: inputs[0].ndim - ndim])
            return list(together(body.compiled, self.plan.mesh.devices, *inputs, *leaves))
        pair = self._pair(program)
        if pair is None:
            inputs = body.held(inputs, program.inputs)
            return body.held(body.compiled(*inputs, *leaves), program.outputs)
        primitive, adjoint, leaves = pair
        source = primitive.spaces(adjoint)[0]
        x = tuple(inputs) if isinstance(source, ProductSpace) else inputs[0]
        out = jax_primitive.bind(primitive, x, leaves, adjoint)
        return list(out) if isinstance(out, tuple) else [out]

    def linearised(self, program: Program, inputs: Sequence[Array]) -> ShardMapEngine:
        """The engine with the Jacobians of nonlinear leaves where these inputs lead."""
        body, leaves = self._body(program, True)
        inputs = body.held(inputs, program.inputs)
        found = iter(together(body.compiled, self.plan.mesh.devices, *inputs, *leaves))
        points = {
            step.number: tuple(next(found) for _ in step.inputs)
            for step in program.computes()
            if not isinstance(step.operator, LinearOperator)
        }
        return ShardMapEngine(self.plan, self.blocks, points)

    def local(self, operator: Any) -> Any:
        """The operator itself: JAX's own transformations serve it."""
        return operator

    def compiled_part(self, program: Program) -> tuple[_Body, tuple[Array, ...]]:
        """What of a program is shared by structure, and the arrays of its leaves."""
        return self._body(program)

    @classmethod
    def of_parts(
        cls, plan: Plan, parts: Sequence[tuple[_Body, tuple[Array, ...]]], linear: bool
    ) -> ShardMapEngine:
        """The engine of a plan whose programs are those of these parts, with their arrays."""
        engine = cls(plan)
        engine._linear, engine._bare = linear, True
        programs = [plan.forward] if plan.adjoint is None else [plan.forward, plan.adjoint]
        for program, (body, leaves) in zip(programs, parts, strict=True):
            engine._ready[2 * id(program)] = program, body, leaves
        return engine

    def compiled_text(self, program: Program) -> str:
        """The optimised program as XLA prints it, for arrays without batch axes."""
        body, leaves = self._body(program)
        return str(body.ahead(body.described(()), leaves).as_text())

    def account(self, program: Program, batch: Sequence[int] = ()) -> Account:
        """What the compiler says that a program takes on each device; nothing is allocated."""
        slots = self._slots(program)
        body = _shared(_Body(self.plan.mesh, program, slots, frozenset(), False))
        leaves = [
            leaf for slot in slots if slot is not None for leaf in self.blocks.described(slot)
        ]
        return body.account(body.described(batch), leaves)

    def _slots(self, program: Program) -> list[Slot | None]:
        moved = exchanges(program, self.plan.mesh)
        return [
            self.blocks.of(step, moved.get(number)) if isinstance(step, Compute) else None
            for number, step in enumerate(program.steps)
        ]

    def _body(self, program: Program, points: bool = False) -> tuple[_Body, tuple[Array, ...]]:
        key = 2 * id(program) + points
        if key not in self._ready:
            slots = self._slots(program)
            operands: list[Array] = []
            for step, slot in zip(program.steps, slots, strict=True):
                if slot is not None and isinstance(step, Compute):
                    operands += self.blocks.stacked(slot)
                    operands += self._points.get(step.number, ())
            at = frozenset(self._points)
            body = _shared(_Body(self.plan.mesh, program, slots, at, points))
            self._ready[key] = program, body, tuple(operands)
        _, body, leaves = self._ready[key]
        return body, leaves

    def _pair(self, program: Program) -> tuple[_PairProgram, bool, tuple[Array, ...]] | None:
        """The primitive of a linear program and whether it is its adjoint; None: not linear."""
        if not self._linear:
            return None
        if id(program) not in self._pairs:
            forward, back = self.plan.forward, self.plan.adjoint
            adjoint = program is not forward
            if adjoint:
                back = program
            elif self._points or back is None:
                back = forward.adjoint()
            (first, leaves), (second, others) = self._body(forward), self._body(back)
            made = _PairProgram(first, second, len(leaves))
            self._pairs[id(program)] = made, adjoint, (*leaves, *others)
        return self._pairs[id(program)]

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "points": self._points}

    def __setstate__(self, state: dict[str, Any]) -> None:
        plan = state["plan"]
        points = {
            number: tuple(stacked(plan.mesh, list(part)) for part in parts)
            for number, parts in state["points"].items()
        }
        self.__init__(plan, None, points)  # type: ignore[misc]


class _PairProgram(jax_primitive.PrimitiveProgram):
    """A linear program and its adjoint as one primitive on arrays of the padded shapes."""

    def __init__(self, forward: _Body, adjoint: _Body, count: int) -> None:
        spaces = [
            [body.ends(k).space() for k in body.program.inputs] for body in (forward, adjoint)
        ]
        domain, codomain = (
            ProductSpace(members) if len(members) > 1 else members[0] for members in spaces
        )
        super().__init__((forward, adjoint), domain, codomain)
        self.bodies, self.count = (forward, adjoint), count

    def execute(self, x: Any, leaves: Sequence[Array], adjoint: bool) -> Any:
        own = leaves[self.count :] if adjoint else leaves[: self.count]
        out = self.bodies[adjoint].compiled(*(x if isinstance(x, tuple) else (x,)), *own)
        return tuple(out) if len(out) > 1 else out[0]

    def placed(self, parts: Sequence[Array], adjoint: bool, inward: bool) -> Sequence[Array]:
        body = self.bodies[adjoint]
        ends = body.program.inputs if inward else body.program.outputs
        n = len(ends)
        return [*body.held(parts[:n], ends), *map(body.held_leaf, parts[n:])]

    def __repr__(self) -> str:
        return "lowered operator"


class _Body:
    """The part of a program that is compiled: equal where its structure is.

    Parameters
    ----------
    mesh
        The devices.
    program
        Its steps.
    slots
        For each step the blocks of its leaf.
    at
        Numbers of the nonlinear leaves whose Jacobians are applied; their local points follow
        the arrays of their blocks.
    points
        Whether the local inputs of nonlinear leaves are the result.
    """

    def __init__(
        self,
        mesh: Mesh,
        program: Program,
        slots: Sequence[Slot | None],
        at: frozenset[int],
        points: bool,
    ) -> None:
        # Without the leaves: what is shared keeps nobody's arrays alive.
        bare = tuple(
            replace(step, operator=None) if isinstance(step, Compute) else step  # type: ignore
            for step in program.steps
        )
        self.mesh, self.points = mesh, points
        self.program = replace(program, steps=bare)
        # Movements that are done band by band in a loop beside them.
        self.looped = {
            move
            for loop, move in exchanged_bands(program).items()
            if (slot := slots[loop]) is not None and slot.exchanged
        }
        self.skeletons = [None if slot is None else (slot.skeleton, slot.linear) for slot in slots]
        self.counts = [0 if slot is None else len(slot.leaves[0]) for slot in slots]
        self.at = at
        # Leaf numbers tell which points are whose; they are part of what is shared.
        numbers = tuple(step.number for step in program.computes()) if at else ()
        self.key: Hashable = (mesh, description(program, slots), at, numbers, points)
        self._hash = hash(self.key)
        self._accounts: dict[Hashable, Account] = {}

    @functools.cached_property
    def compiled(self) -> Any:
        """The jitted program: inputs, then arrays of leaves."""
        import jax

        return jax.jit(self._call)

    def described(self, batch: Sequence[int]) -> list[Any]:
        """The inputs, as JAX describes arrays that are not there."""
        import jax

        return [
            jax.ShapeDtypeStruct(
                (*batch, *end.global_shape()),
                end.value.space.dtype,
                sharding=end.sharding(tuple(batch)),
            )
            for end in map(self.ends, self.program.inputs)
        ]

    def ahead(self, inputs: Sequence[Any], leaves: Sequence[Any]) -> Any:
        """The compiled program for arrays like these; its first run finds it."""
        return self.compiled.lower(*inputs, *leaves).compile()

    def account(self, inputs: Sequence[Any], leaves: Sequence[Any]) -> Account:
        """What the compiler says that the program takes on each device."""
        key = tuple(x.shape for x in inputs)
        if key not in self._accounts:
            shares = [(math.prod(x.sharding.shard_shape(x.shape)), x.dtype) for x in inputs]
            read = sum(entries * dtype.itemsize for entries, dtype in shares)
            self._accounts[key] = account_of(self.ahead(inputs, leaves), read)
        return self._accounts[key]

    def admit(self, inputs: Sequence[Array], leaves: Sequence[Array]) -> None:
        """Refuse a run that the devices have no room for, before any of them has begun."""
        admit(self.mesh.devices, self.account(inputs, leaves))

    def ends(self, k: int) -> End:
        """A value that comes in or goes out."""
        return End(self.mesh, self.program.values[k])

    def held(self, parts: Sequence[Array], ends: Sequence[int]) -> list[Array]:
        """Arrays with the shardings of the values, where a trace could forget them."""
        out = []
        for part, k in zip(parts, ends, strict=True):
            end = self.ends(k)
            if arrays.is_traced(part):
                part = constrained(part, end.sharding(end.batch(part)))
            out.append(part)
        return out

    def held_leaf(self, leaf: Array) -> Array:
        if not arrays.is_traced(leaf):
            return leaf
        everywhere = tuple(0 for _ in self.mesh.shape)
        return constrained(leaf, named_sharding(self.mesh, everywhere, leaf.ndim))

    def _call(self, *operands: Array) -> tuple[Array, ...]:
        import jax.numpy as jnp
        from jax.sharding import PartitionSpec

        program = self.program
        n = len(program.inputs)
        batch = self.ends(program.inputs[0]).batch(operands[0])
        wide = self._padded(batch)
        if wide != batch:
            # With a copy of the last member, for which everything is as finite as for itself.
            more = wide[0] - batch[0]
            operands = tuple(
                jnp.concatenate([x, jnp.repeat(x[-1:], more, axis=0)]) if k < n else x
                for k, x in enumerate(operands)
            )
        rows = PartitionSpec(self.mesh.names)
        if self.points:
            outs: Any = tuple(
                rows
                for step, shown in zip(program.steps, self.skeletons, strict=True)
                if shown is not None and not shown[1]
                for _ in step.inputs
            )
        else:
            outs = tuple(self.ends(k).sharding(wide).spec for k in program.outputs)
        specs = (
            *(self.ends(k).sharding(wide).spec for k in program.inputs),
            *[rows] * (len(operands) - n),
        )
        made = tuple(on_shards(self._local, self.mesh, specs, outs)(*operands))
        if wide == batch or self.points:
            return made
        ends = map(self.ends, program.outputs)
        return tuple(
            constrained(y[: batch[0]], end.sharding(batch))
            for y, end in zip(made, ends, strict=True)
        )

    def _padded(self, batch: tuple[int, ...]) -> tuple[int, ...]:
        """The batch axes of which devices take equal shares."""
        if not self.mesh.by_batch or not batch:
            return batch
        return share_of(batch[0], self.mesh.size) * self.mesh.size, *batch[1:]

    def _local(self, *operands: Array) -> tuple[Array, ...]:
        """The program on one device."""
        program = self.program
        n = len(program.inputs)
        held: dict[int, Array] = dict(zip(program.inputs, operands[:n], strict=True))
        leaves = [leaf[0] for leaf in operands[n:]]
        points: list[Array] = []
        for number, step in enumerate(program.steps):
            if isinstance(step, Compute):
                own, leaves = leaves[: self.counts[number]], leaves[self.counts[number] :]
                at = None
                if step.number in self.at:
                    at, leaves = leaves[: len(step.inputs)], leaves[len(step.inputs) :]
                parts = [held[k] for k in step.inputs]
                shown = self.skeletons[number]
                assert shown is not None
                if self.points and not shown[1]:
                    points += [part[None] for part in parts]
                made = applied(shown[0], own, parts, step.adjoint, at)
                for k, part in zip(step.outputs, made, strict=True):
                    held[k] = part
            elif isinstance(step, Add):
                first, *others = (held[k] for k in step.inputs)
                held[step.outputs[0]] = functools.reduce(lambda a, b: a + b, others, first)
            elif number in self.looped:
                held[step.outputs[0]] = held[step.inputs[0]]
            else:
                assert isinstance(step, Movement)
                before, after = (program.values[k] for k in (*step.inputs, *step.outputs))
                name = self.mesh.names[step.mesh_axis]
                held[step.outputs[0]] = collectives.moved(
                    step, held[step.inputs[0]], before, after, program.mesh, name
                )
        if self.points:
            return tuple(points)
        return tuple(
            collectives.masked(held[k], program.values[k], self.mesh) for k in program.outputs
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Body) and other.key == self.key

    def __hash__(self) -> int:
        return self._hash


def applied(
    skeleton: Any,
    leaves: Sequence[Array],
    parts: Sequence[Array],
    adjoint: bool,
    at: Sequence[Array] | None = None,
) -> tuple[Array, ...]:
    """A block on local arrays; with `at` its Jacobian there."""
    block = skeleton.build(iter(leaves), unpack)
    if at is not None:
        block = block._jacobian(tuple(at) if isinstance(block.domain, ProductSpace) else at[0])
    source = block.codomain if adjoint else block.domain
    x = tuple(parts) if isinstance(source, ProductSpace) else parts[0]
    if isinstance(block, Functional):
        import jax

        dtype = np.float64 if jax.config.jax_enable_x64 else np.float32
        return (jax.numpy.asarray(block._value(x), dtype),)
    y = block._backward(x) if adjoint else block._forward(x)
    return y if isinstance(y, tuple) else (y,)


@functools.lru_cache(maxsize=512)
def _shared(body: _Body) -> _Body:
    """The one body of this structure, with its compiled program."""
    return body
