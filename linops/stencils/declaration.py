"""How a declaration of a stencil is read: boundaries, locations, tables of taps.

What `linops/stencils/stencil.py` is told by a user, checked and listed; and tables along one axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.errors import DTypeError, ShapeError
from linops.precision import complex_of, real_of
from linops.space import Space
from linops.stencils import boundary as boundaries
from linops.stencils.slices import Tap

__all__ = [
    "added_tables",
    "count_planes",
    "list_taps",
    "offsets_along",
    "read_boundaries",
    "read_locations",
]


def read_boundaries(
    boundary: Any, ndim: int, inputs: int, owner: str
) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Lower and upper side of each axis, a row for each input component; constants as zeros."""
    each = boundary if isinstance(boundary, list) and inputs > 1 else [boundary] * inputs
    if len(each) != inputs:
        raise ValueError(f"{owner}: a list of boundaries has one for each of {inputs} components")
    rows = tuple(boundaries.linear_part(boundaries.sides(one, ndim, owner)) for one in each)
    for axis in range(ndim):
        if len({row[axis][0] == "periodic" for row in rows}) > 1:
            raise ValueError(f"{owner}: axis {axis} is periodic for some components only")
    return rows


def read_locations(where: Any, ndim: int, owner: str) -> tuple[bool, ...]:
    """Whether each axis stands on faces."""
    each = (where,) * ndim if isinstance(where, str) else tuple(where)
    if len(each) != ndim or any(one not in ("cell", "face", "vertex") for one in each):
        raise ValueError(
            f"{owner}: a location is 'cell', 'face' or 'vertex', one for all of the {ndim} axes or "
            f"one an axis, got {where!r}"
        )
    return tuple(one != "cell" for one in each)


def count_planes(
    grid: Sequence[int],
    pairs: Sequence[tuple[str, str]],
    source: Sequence[bool],
    target: Sequence[bool],
) -> tuple[int, ...]:
    """Planes of the output along each axis, of an input on `source` and an output on `target`."""
    counts = []
    for n, pair, a, b in zip(grid, pairs, source, target, strict=True):
        ring = pair[0] == "periodic"
        counts.append(n if ring else max(n + int(b) - int(a), 0))
    return tuple(counts)


def list_taps(
    tables: Any,
    components: tuple[int, int],
    counts: tuple[int, ...],
    space: Space,
    owner: str,
) -> tuple[tuple[Tap, ...], tuple[Array, ...]]:
    """All taps, and the coefficient fields that they name by number."""
    (outputs, inputs), ndim = components, len(counts)
    taps: list[Tap] = []
    fields: list[Array] = []
    for (output, number), table in tables.items():
        if not (0 <= output < outputs and 0 <= number < inputs):
            raise ShapeError(
                f"{owner}: components run from (0, 0) to ({outputs - 1}, {inputs - 1}), got "
                f"({output}, {number})"
            )
        for offset, weight in table.items():
            where = offset if isinstance(offset, tuple) else (offset,)
            if len(where) != ndim or not all(isinstance(o, (int, np.integer)) for o in where):
                raise ShapeError(
                    f"{owner}: an offset is {ndim} whole numbers, one an axis, got {offset!r}"
                )
            place = tuple(int(o) for o in where)
            factor: Any = 1.0
            if isinstance(weight, tuple):
                factor, weight = weight
            if arrays.is_array(weight) and weight.ndim:
                if tuple(weight.shape) != counts:
                    raise ShapeError(
                        f"{owner}: a coefficient field has the shape {counts} of the output's grid,"
                        f" got {tuple(weight.shape)} at offset {offset!r}"
                    )
                known = next((k for k, f in enumerate(fields) if f is weight), None)
                if known is None:
                    known = len(fields)
                    fields.append(weight)
                taps.append(Tap(output, number, place, factor, known))
                continue
            value = complex(weight)
            if value.imag and not space.is_complex:
                raise DTypeError(
                    f"{owner}: the weight {weight!r} is complex, {space} is real; complexify it"
                )
            taps.append(Tap(output, number, place, value if value.imag else value.real, -1))
    dtype = space.dtype
    held = tuple(
        arrays.snapshot(
            arrays.cast(f, complex_of(dtype) if arrays.dtype_of(f).kind == "c" else real_of(dtype))
        )
        for f in fields
    )
    # Taps that are not shifted along rows first, then row after row: what engines like best.
    taps.sort(key=lambda tap: (tap.output, tap.input, tap.offset[-1] != 0))
    return tuple(taps), held


def offsets_along(axis: int, ndim: int, table: Mapping[int, float]) -> dict[tuple[int, ...], float]:
    """Taps along one axis as offsets in all of them."""
    return {
        tuple(o if a == axis else 0 for a in range(ndim)): weight for o, weight in table.items()
    }


def added_tables(*tables: Mapping[Any, float]) -> dict[Any, float]:
    """Taps of a sum."""
    total: dict[Any, float] = {}
    for offset, weight in itertools.chain.from_iterable(table.items() for table in tables):
        total[offset] = total.get(offset, 0.0) + weight
    return total
