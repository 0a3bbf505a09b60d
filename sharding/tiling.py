"""Which loops of a program exchange their bands one by one where ranks run it: tiles.

How a rank computes and sends them is in `sharding/executors/torch_tiles.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from linops.algebra.blocks import extent
from linops.linear_operator import LinearOperator
from linops.relations import positions
from linops.rule import Relation
from linops.space import Space
from sharding.program import Program
from sharding.states import Partial, Replicated, Sharded
from sharding.steps import Loop, Movement, Step

__all__ = ["Pair", "paired"]


@dataclass(frozen=True)
class Pair:
    """A loop, and the movement of what it makes or, where that comes `first`, reads.

    Attributes
    ----------
    tiled
        The axis of the value that moves of which bands are tiles, counted from its last.
    along
        That axis of the loop's other end, where it is cut alike; else the loop needs, or adds up,
        the whole there.
    """

    loop: Loop
    movement: Movement
    first: bool
    tiled: int
    along: int | None

    @property
    def parts(self) -> tuple[Step, Step]:
        """Both steps, in their order."""
        return (self.movement, self.loop) if self.first else (self.loop, self.movement)

    @property
    def inputs(self) -> tuple[int, ...]:
        """What the first of both reads."""
        return self.parts[0].inputs

    @property
    def outputs(self) -> tuple[int, ...]:
        """What the second of both makes."""
        return self.parts[1].outputs


def paired(program: Program) -> list[Step | Pair]:
    """The steps of a program; a loop and an exchange that can go on beside it are one."""
    units: list[Step | Pair] = []
    made = {k: step for step in program.steps for k in step.outputs}
    read = {k: step for step in program.steps for k in step.inputs}
    taken: set[int] = set()
    for step in program.steps:
        pair = None
        if isinstance(step, Loop):
            after = read.get(step.outputs[0])
            pair = _pair(program, step, after, False) if len(step.outputs) == 1 else None
            if pair is None and len(step.inputs) == 1:
                pair = _pair(program, step, made.get(step.inputs[0]), True)
        if pair is not None:
            taken.add(id(pair.movement))
        units.append(pair or step)
    return [unit for unit in units if id(unit) not in taken]


def _pair(program: Program, loop: Loop, movement: Step | None, first: bool) -> Pair | None:
    if not isinstance(movement, Movement) or program.mesh[movement.mesh_axis] == 1:
        return None
    ends = (*movement.inputs, *movement.outputs)
    before, after = (program.values[k].states[movement.mesh_axis] for k in ends)
    if first:
        fits = isinstance(before, (Partial, Sharded)) and isinstance(after, Replicated)
    else:
        fits = isinstance(before, Partial) and isinstance(after, (Replicated, Sharded))
    between = ends[1] if first else ends[0]
    operator, (name, length) = loop.operator, loop.bands
    if not fits or program.readers[between] != 1 or not isinstance(operator, LinearOperator):
        return None
    sides = (operator.domain, operator.codomain)
    if not all(isinstance(side, Space) for side in sides) or operator.rule.halo(name):
        return None
    if operator.rule.relation(name) is Relation.ALIGNED and (
        operator._input_range(name, 1, 2) != (1, 2)
    ):
        return None
    found = [
        cuts[0][1] - len(side.shape) if (cuts := positions(members, name)) else None
        for side, members in zip(sides, (operator.rule.domain, operator.rule.codomain), strict=True)
    ]
    tiled, along = found if first is not loop.adjoint else found[::-1]
    if tiled is None or extent(operator, name) <= length:
        return None
    return Pair(loop, movement, first, tiled, along)
