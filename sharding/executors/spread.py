"""How the devices of a step are run in one process: in turn, side by side, and what torch wants."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from linops.arrays import Array
from linops.structure import leaves
from linops.transforms.torch_function import recording
from sharding.executors.blocks import Blocks
from sharding.program import Program

__all__ = ["Spread", "for_torch", "in_turn"]

Spread = Callable[[Callable[[int], None], int], None]


def in_turn(task: Callable[[int], None], n: int) -> None:
    """Call `task(i)` for every device, one after the other."""
    for i in range(n):
        task(i)


def for_torch(
    program: Program, blocks: Blocks, spread: Spread, inputs: Sequence[Array]
) -> tuple[Blocks, Spread, Sequence[Array]]:
    """Graphs are recorded in the caller's thread; where none is, workers record none either."""
    no_grad = sys.modules["torch"].no_grad()
    if any(recording(a) for step in program.computes() for a in leaves(step.operator)):
        return blocks.fresh(), in_turn, inputs
    if any(map(recording, inputs)):
        return blocks, in_turn, inputs

    def quietly(task: Callable[[int], None], n: int) -> None:
        spread(no_grad(task), n)

    return blocks, quietly, [x.detach() for x in inputs]
