"""A program on the ranks of a process group: every rank runs it on its own blocks.

Shares are plain tensors without padding, uneven or empty. A thin layer turns DTensors into local
tensors and back (`LocalOperator` is what lies within it, for `torch.func`); `torch_machine.py`
takes the steps, and each is an autograd function whose backward is its adjoint, so that a program
can be differentiated in any way torch knows.

Ranks agree before the first exchange and after the last, of a backward pass too (`torch_gate.py`):
where one raises, in between too, all raise and the group can be used again.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from linops import arrays
from linops.arrays import Array
from linops.errors import ShapeError
from linops.memory import free_beside
from linops.structure import leaves
from linops.transforms.torch_function import apply_pair, recording
from sharding import agreement, memory
from sharding.array_backends.torch_ranks import opened, over_copies, refuse_transform, wrapped
from sharding.executors.blocks import Blocks
from sharding.executors.torch_gate import Gate
from sharding.executors.torch_local import LocalOperator
from sharding.executors.torch_machine import RankRun, batch_of, entry
from sharding.placement import Placement
from sharding.program import Program
from sharding.rank_movements import recorded_move
from sharding.ranks import ranks_of
from sharding.signature import of_program
from sharding.states import REPLICATED, Replicated, Sharded, State
from sharding.steps import Step, Value
from sharding.tiling import Pair, paired

if TYPE_CHECKING:
    from sharding.plans import Plan

__all__ = ["LocalOperator", "RankEngine"]


class RankEngine:
    """Runs the programs of a plan on this rank."""

    def __init__(self, plan: Plan, blocks: Blocks | None = None) -> None:
        self.plan = plan
        self.ranks = ranks_of(plan.mesh)
        self.blocks = blocks or Blocks(plan.mesh.shape, plan.mesh.coordinates)
        self._said: dict[int, tuple[Program, str]] = {}
        self._units: dict[int, tuple[Program, list[Step | Pair]]] = {}
        self._needs: dict[tuple[int, int], tuple[Program, int]] = {}
        self._placements: dict[Any, Placement] = {}

    def run(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a program, DTensors; derivatives are recorded where torch records."""
        for x in inputs:
            refuse_transform(x)
        recorded = any(map(recording, inputs)) or self._trains(program)
        values = [program.values[k] for k in program.inputs]
        shapes = [tuple(x.shape) for x in inputs]
        batch = batch_of(inputs[0], values[0])
        with contextlib.nullcontext() if recorded else _no_grad():
            local = [
                opened(self._placement(v), self.ranks, x)
                for v, x in zip(values, inputs, strict=True)
            ]
            count = batch[0] if self.plan.by_batch and batch else None
            if count is not None:
                local = [self._moved(x, count, REPLICATED, Sharded(0)) for x in local]
            made = self._agreed(program, local, f"{shapes} {_kinds(inputs)}")
            if count is not None:
                made = [self._moved(y, count, Sharded(0), REPLICATED) for y in made]
            self.plan.stats.ran(program, batch)
            outs = [program.values[k] for k in program.outputs]
            # A leaf may hand its input through; placed results have memory of their own.
            made = [
                y.clone() if any(arrays.may_share_memory(y, x) for x in local) else y for y in made
            ]
            return [
                self._closed(v, y, (*batch, *v.space.shape))
                for v, y in zip(outs, made, strict=True)
            ]

    def linearised(self, program: Program, inputs: Sequence[Any]) -> RankEngine:
        """The engine with the Jacobians of nonlinear blocks at these inputs."""
        points: dict[tuple[int, int], Any] = {}
        with _no_grad():
            local = [x.detach().to_local() for x in inputs]
            self._agreed(program, local, f"{[tuple(x.shape) for x in inputs]}", points)
        return RankEngine(self.plan, self.blocks.linearised(points))

    def local(self, operator: Any) -> LocalOperator:
        """The operator on this rank's parts."""
        adjoint = getattr(operator, "_adjoint_program", None)
        return LocalOperator(self, self.plan.forward, adjoint, operator.name)

    def run_local(self, program: Program, parts: Sequence[Array]) -> list[Array]:
        """The outputs of a program on this rank's parts, under any transform of torch."""
        values = [program.values[k] for k in program.inputs]
        entered = [self._entered(v, x) for v, x in zip(values, parts, strict=True)]
        shapes = [_batch_of_all(x, v) for v, x in zip(values, parts, strict=True)]
        return self._agreed(program, entered, f"local {shapes} {_kinds(parts)}")

    # --- running -------------------------------------------------------------------------

    def _agreed(
        self,
        program: Program,
        local: Sequence[Array],
        what: str,
        points: dict[tuple[int, int], Any] | None = None,
    ) -> list[Array]:
        trained = " of trained arrays" * self._trains(program)
        text = f"{self.plan.operator.name}{trained} on {what}, program {self._digest(program)}"
        # A rank that fails to allocate later would leave the others in an exchange.
        needed = self._allocates(program, batch_of(local[0], program.values[program.inputs[0]]))
        free = free_beside(local[0]) if needed >= memory.SMALL else None
        agreement.agree_or_raise(text, memory.shortage(needed, free, f"rank {self.ranks.position}"))
        gate = Gate(text)
        made = RankRun(self, program, gate, points).run([gate.through(x) for x in local])
        gate.agree_or_raise()
        return [gate.through(y) for y in made]

    def _moved(self, x: Array, count: int, source: State, target: State) -> Array:
        """The first of the leading axes, `count` in all, cut or joined along all ranks."""
        shape = (count, *tuple(x.shape)[1:])
        return recorded_move(self.ranks.lines[0], shape, x.ndim, source, target, x)

    def _digest(self, program: Program) -> str:
        if id(program) not in self._said:
            self._said[id(program)] = program, of_program(program)
        return self._said[id(program)][1]

    def units(self, program: Program) -> list[Step | Pair]:
        """The steps of a program, loops with the exchanges beside them."""
        if id(program) not in self._units:
            self._units[id(program)] = program, paired(program)
        return self._units[id(program)][1]

    def _allocates(self, program: Program, batch: Sequence[int]) -> int:
        """Bytes that a run holds on this rank beside its input, by what leaves state."""
        key = id(program), math.prod(batch)
        if key not in self._needs:
            inputs = [program.values[k].local_bytes(program.mesh) for k in program.inputs]
            held = 0
            with contextlib.suppress(ShapeError):  # a subset's leaf knows its own part only
                held = max(memory.peaks(program, key[1]), default=0) - key[1] * sum(inputs)
            self._needs[key] = program, held
        return self._needs[key][1]

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
        return entry().apply(functools.partial(over_copies, placement, self.ranks), x)

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


def _kinds(parts: Sequence[Array]) -> str:
    """What must be alike beside shapes: a rank that records alone would wait in its backward."""
    return ", ".join(
        f"{x.dtype} on {x.device.type}{' with a gradient' * (x.requires_grad or recording(x))}"
        for x in parts
    )


def _batch_of_all(x: Array, value: Value) -> tuple[int, ...]:
    """The batch axes, those of `torch.func.vmap` included."""
    import torch

    functorch, batch = torch._C._functorch, batch_of(x, value)
    while functorch.is_functorch_wrapped_tensor(x):
        inner = functorch.get_unwrapped(x)
        if functorch.is_batchedtensor(x):
            batch = (inner.shape[functorch.maybe_get_bdim(x)], *batch)
        x = inner
    return batch


@contextlib.contextmanager
def _no_grad() -> Iterator[None]:
    import torch

    with torch.no_grad():
        yield
