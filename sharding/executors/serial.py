"""The reference: the devices of every step one after the other, in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from linops.arrays import Array
from linops.compiled import pool
from sharding.executors.interpreter import run
from sharding.executors.shared import SharedEngine
from sharding.executors.spread import in_turn
from sharding.program import Program

__all__ = ["SerialEngine"]


class SerialEngine(SharedEngine):
    """Runs programs in turn, kernels on one thread."""

    def _spread(self, task: Callable[[int], None], n: int, inputs: Sequence[Array]) -> None:
        with pool.limit(1):
            in_turn(task, n)

    def _execute(
        self, program: Program, inputs: Sequence[Array], points: dict[tuple[int, int], Any] | None
    ) -> list[Array]:
        with pool.limit(1):
            return run(program, inputs, self.blocks, in_turn, points, self.plan.stats.add)
