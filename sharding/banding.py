"""Plans that fit: leaves run band after band, and what is done where memory is short.

A band is a range of an axis of a leaf's rule. Bands of a produced or aligned axis stand side by
side, those of a contracted axis are added up in order; results do not depend on their length beyond
the rounding of such sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from linops.algebra.blocks import extent
from linops.algebra.concatenation import Concatenation
from linops.algebra.sums import LinearSum
from linops.elementary.crop_pad import Crop
from linops.errors import PlacementError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.relations import extent_of, positions
from linops.rule import Relation
from linops.space import Space
from sharding.program import Program
from sharding.states import Sharded
from sharding.steps import AllGather, Compute, Loop, ReduceScatter

__all__ = ["banded", "bands", "bands_in", "exchanged_bands", "looped", "may_loop"]


def may_loop(leaf: Operator, name: str) -> bool:
    """Whether a leaf can run in bands of an axis of its rule."""
    return (
        isinstance(leaf, LinearOperator)
        and name in leaf.rule.names
        and leaf.rule.relation(name) is not Relation.WHOLE
        and not leaf.rule.periodic(name)
        and isinstance(leaf.codomain, Space)
    )


def looped(program: Program, chunks: Mapping[str, int]) -> Program:
    """The program with leaves that have one of these axes run in bands of that length.

    Raises
    ------
    PlacementError
        For a length that is no count, or an axis that no leaf can loop over.
    """
    steps = list(program.steps)
    for name, length in chunks.items():
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise PlacementError(f"chunks gives {name!r} a length of {length!r}; give a count")
        found = False
        for position, step in enumerate(steps):
            if isinstance(step, Compute) and may_loop(step.operator, name):
                found = True
                if not isinstance(step, Loop) and extent(step.operator, name) > length:
                    steps[position] = Loop(
                        step.inputs, step.outputs, step.operator, step.cuts, step.number,
                        step.adjoint, (name, length),
                    )  # fmt: skip
        if not found:
            able = sorted(
                {
                    axis
                    for step in program.computes()
                    for axis in step.operator.rule.names
                    if may_loop(step.operator, axis)
                }
            )
            raise PlacementError(
                f"chunks: no leaf loops over an axis {name!r}; "
                + (f"some do over {', '.join(able)}" if able else "none loops over any axis")
            )
    return replace(program, steps=tuple(steps))


def banded(operator: LinearOperator, name: str, length: int) -> LinearOperator:
    """The operator as one that runs in bands of `length` planes of an axis."""
    blocks = bands(operator, name, length)
    if len(blocks) < 2:
        return operator
    relation = operator.rule.relation(name)
    n = extent(operator, name)
    starts = range(0, n, length)
    terms = [
        block if relation is Relation.PRODUCED else block @ _reading(operator, name, lo, length)
        for lo, block in zip(starts, blocks, strict=True)
    ]
    if relation is Relation.CONTRACTED:
        return LinearSum(terms)
    return Concatenation(terms, positions(operator.rule.codomain, name)[0][1])


def bands(operator: LinearOperator, name: str, length: int) -> list[LinearOperator]:
    """The blocks of the operator's bands of an axis; itself where there is one."""
    n = extent(operator, name)
    if n <= length:
        return [operator]
    return [
        cast(LinearOperator, operator.block(name, lo, min(lo + length, n)))
        for lo in range(0, n, length)
    ]


def _reading(operator: LinearOperator, name: str, lo: int, length: int) -> LinearOperator:
    """The crop to the planes that a band reads."""
    hi = min(lo + length, extent(operator, name))
    if operator.rule.relation(name) is Relation.ALIGNED:
        first, last = operator._input_range(name, lo, hi)
    else:
        halo = operator.rule.halo(name)
        first, last = lo - halo, hi + halo
    total = extent_of(operator.domain, operator.rule.domain, name)
    cuts = positions(operator.rule.domain, name)
    # A band of what a padding adds reads no plane at all, and lies on either side of the array.
    first = min(max(first, 0), total)
    last = max(min(last, total), first)
    return Crop.along(operator.domain, cuts, first, last, operator.rule.domain)


def exchanged_bands(program: Program) -> dict[int, int]:
    """Loops whose bands can be gathered, or scattered, one by one: their positions in the program,
    and those of the movement that this makes part of the loop.

    A band is then the same range of planes of every share, so that no device holds the whole of
    what is gathered or of its partial sums.
    """
    found = {}
    for position, step in enumerate(program.steps):
        if not isinstance(step, Loop) or len(step.inputs) + len(step.outputs) != 2:
            continue
        name = step.bands[0]
        rule = step.operator.rule
        relation = rule.relation(name)
        if name in step.cuts or rule.halo(name) or relation is Relation.ALIGNED:
            continue
        inward = (relation is Relation.CONTRACTED) != step.adjoint
        side = rule.domain if relation is Relation.CONTRACTED else rule.codomain
        axis = positions(side, name)[0][1]
        for other, move in enumerate(program.steps):
            if not isinstance(move, AllGather if inward else ReduceScatter):
                continue
            joint = step.inputs if inward else step.outputs
            if joint != (move.outputs if inward else move.inputs):
                continue
            cut = program.values[(move.inputs if inward else move.outputs)[0]]
            if program.readers[joint[0]] == 1 and cut.states[move.mesh_axis] == Sharded(axis):
                found[position] = other
    return found


def bands_in(program: Program) -> tuple[str, int]:
    """The axis and the length of a program's bands."""
    return next(step.bands for step in program.steps if isinstance(step, Loop))
