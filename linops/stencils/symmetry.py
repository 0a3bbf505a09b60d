"""What is seen from the taps and boundaries of a stencil: symmetry, and diagonals of shifts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linops.arrays import Array
from linops.space import Space
from linops.stencils import boundary as boundaries
from linops.stencils.line import Line
from linops.stencils.slices import Tap

__all__ = ["is_symmetric", "shift_diagonal"]


def is_symmetric(
    lines: tuple[tuple[Line, ...], ...],
    taps: Sequence[Tap],
    fields: Sequence[Array],
    domain: Space,
    outputs: int | None,
) -> bool:
    """Whether the map is its own adjoint, seen from taps and boundaries."""
    first = lines[0]
    if fields or outputs is not None or domain.ndim != len(first):
        return False
    table: dict[tuple[int, ...], complex] = {}
    for tap in taps:
        table[tap.offset] = table.get(tap.offset, 0) + tap.weight
    turns = [tuple(-1 for _ in first)]
    for axis, line in enumerate(first):
        if line.extent != line.count or line.lead or line.whole or boundaries.CUT in line.pair:
            return False
        if line.faces and line.pair[0] != "periodic":
            return False
        if "edge" in line.pair and line.halo > 1:
            return False
        if set(line.pair) & {"even", "odd", "edge"}:
            turns.append(tuple(-1 if a == axis else 1 for a in range(len(first))))
    return all(
        table.get(tuple(t * o for t, o in zip(turn, offset, strict=True)))
        == complex(weight).conjugate()
        for offset, weight in table.items()
        for turn in turns
    )


def shift_diagonal(line: Line, offset: int) -> np.ndarray:
    """The diagonal of a shift by `offset` along one axis."""
    row = np.zeros(line.count)
    for plane in range(line.count):
        target = plane + offset
        if 0 <= target < line.extent and target not in line.blanks:
            row[plane] = float(target == plane)
            continue
        where = boundaries.ghost(target, line.extent, line.pair, line.faces)
        if where is not None and where[0] == plane:
            row[plane] = where[1]
    return row
