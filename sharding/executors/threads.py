"""Devices side by side on the pool of `linops.compiled.pool`, arrays in shared memory.

The pool is the only source of parallelism: a kernel inside a worker runs its tiles in line.
`LINOPS_NUM_THREADS` bounds it, so there may be more shares than threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from linops import arrays
from linops.arrays import Array
from linops.compiled import pool
from sharding.executors.interpreter import run
from sharding.executors.shared import SharedEngine
from sharding.executors.spread import in_turn
from sharding.program import Program

__all__ = ["ThreadEngine"]


class ThreadEngine(SharedEngine):
    """Runs the devices of a step side by side."""

    def _spread(self, task: Callable[[int], None], n: int, inputs: Sequence[Array]) -> None:
        # A trace of JAX belongs to the thread that began it.
        spread = in_turn if any(map(arrays.is_traced, inputs)) else pool.run
        spread(task, n)

    def _execute(
        self, program: Program, inputs: Sequence[Array], points: dict[tuple[int, int], Any] | None
    ) -> list[Array]:
        def spread(task: Callable[[int], None], n: int) -> None:
            self._spread(task, n, inputs)

        return run(program, inputs, self.blocks, spread, points, self.plan.stats.add)
