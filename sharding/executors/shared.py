"""What the engines in shared memory have in common: blocks, Jacobians, batches.

`serial` and `threads` differ in nothing but how the devices of a step are run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from linops import arrays
from linops.arrays import Array
from sharding.executors.blocks import Blocks
from sharding.executors.interpreter import run
from sharding.executors.spread import in_turn
from sharding.program import Program
from sharding.states import real_range
from sharding.traffic import Traffic

if TYPE_CHECKING:
    from sharding.plans import Plan

__all__ = ["SharedEngine"]


class SharedEngine(ABC):
    """What `serial` and `threads` have in common: the blocks, and Jacobians of them."""

    def __init__(self, plan: Plan, blocks: Blocks | None = None) -> None:
        self.plan = plan
        self.blocks = blocks or Blocks(plan.mesh.shape, plan.mesh.coordinates)

    def run(self, program: Program, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of a program, whole arrays of the real shapes."""
        if self.plan.by_batch:
            return self._by_batch(program, inputs)
        return self._execute(program, inputs, None)

    def linearised(self, program: Program, inputs: Sequence[Array]) -> SharedEngine:
        """The engine with the Jacobians of nonlinear blocks at these inputs."""
        points: dict[tuple[int, int], Any] = {}
        self._execute(program, inputs, points)
        return type(self)(self.plan, self.blocks.linearised(points))

    def local(self, operator: Any) -> Any:
        """The operator itself: every device sees all of memory."""
        return operator

    def _by_batch(self, program: Program, inputs: Sequence[Array]) -> list[Array]:
        """Every device runs the whole program on its share of the leading axis."""
        first = program.values[program.inputs[0]].space
        count = inputs[0].shape[0] if inputs[0].ndim > first.ndim else 0
        if not count:
            return self._execute(program, inputs, None)
        parts: list[list[Array] | None] = [None] * self.plan.mesh.size
        counted: list[Traffic] = []

        def task(device: int) -> None:
            lo, hi = real_range(count, self.plan.mesh.size, device)
            if lo < hi:
                share = [x[lo:hi] for x in inputs]
                parts[device] = run(program, share, self.blocks, in_turn, None, counted.append)

        self._spread(task, self.plan.mesh.size, inputs)
        self.plan.stats.add(sum(counted, Traffic()))
        there = [part for part in parts if part is not None]
        return [
            arrays.namespace(*column).concat(column, axis=0)
            for column in map(list, zip(*there, strict=True))
        ]

    @abstractmethod
    def _spread(self, task: Callable[[int], None], n: int, inputs: Sequence[Array]) -> None:
        """Calls `task(i)`, which works on parts of the inputs, for every device."""

    @abstractmethod
    def _execute(
        self, program: Program, inputs: Sequence[Array], points: dict[tuple[int, int], Any] | None
    ) -> list[Array]:
        """`run`, keeping the local inputs of nonlinear leaves in `points`."""

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.plan = state["plan"]
        self.blocks = Blocks(self.plan.mesh.shape, self.plan.mesh.coordinates)
