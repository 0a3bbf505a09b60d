"""The row engine: a stencil on NumPy arrays by compiled passes, spread over the pool.

Boundaries are tables of planes, made once for an operator: which planes a plane of the result
reads along each axis, with which sign. Forward and adjoint are the same passes over different
tables, so nothing is extended, copied or folded. The loops are in
`linops/stencils/row_passes.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linops.compiled import pool
from linops.compiled.writeable import writeable
from linops.precision import real_of
from linops.stencils.boundary import ghost
from linops.stencils.line import Line
from linops.stencils.slices import Tap

__all__ = ["Rows", "servable"]

_TILED = 1 << 15
"""Entries from which on a pass is worth several threads."""

_PLANES = 1 << 20
"""Bytes of neighboring planes above which rows are done in blocks, so that they stay in cache."""


def servable(
    lines: Sequence[Sequence[Line]], taps: Sequence[Tap], fields: Sequence[Any], dtype: np.dtype
) -> str | None:
    """Why the row engine cannot serve a stencil; None where it can."""
    if real_of(dtype) not in (np.dtype("float32"), np.dtype("float64")):
        return f"it works in float32 and float64, not in {dtype}"
    if len(lines[0]) > 3:
        return f"it serves up to three axes, not {len(lines[0])}"
    if any(type(field) is not np.ndarray for field in fields):
        return "its coefficient fields are no arrays of NumPy"
    if any(isinstance(tap.weight, complex) for tap in taps):
        return "rows know no complex weights"
    if any(line.whole for row in lines for line in row):
        return "the place of a padded block is data"
    return None


@dataclass(frozen=True)
class _Pass:
    """What one pair of output and input needs."""

    taps: np.ndarray
    weights: np.ndarray
    tables: tuple[np.ndarray, ...]
    signs: tuple[np.ndarray, ...]
    plain: tuple[np.ndarray, ...]
    sizes: tuple[int, int, int, int]
    inner: tuple[int, int]
    moves: tuple[np.ndarray, ...]
    whole: np.ndarray
    ends: tuple[np.ndarray, np.ndarray]


class Rows:
    """A stencil, or its adjoint, as passes over rows."""

    def __init__(
        self,
        lines: Sequence[tuple[Line, ...]],
        taps: Sequence[Tap],
        outputs: int,
        dtype: np.dtype,
        adjoint: bool,
        led: bool,
    ) -> None:
        # led: whether what is read has an axis of components
        self._led = led
        first = lines[0]
        extents = tuple(line.extent for line in first)
        counts = tuple(line.count for line in first)
        self._source, self._target = (counts, extents) if adjoint else (extents, counts)
        self._made = len(lines) if adjoint else outputs
        self._read = outputs if adjoint else len(lines)
        self._adjoint = adjoint
        self._reach = max((line.low + line.high + 1 for line in first), default=1)
        self._parts: list[list[tuple[int, _Pass]]] = [[] for _ in range(self._made)]
        for output, number in itertools.product(range(outputs), range(len(lines))):
            own = [tap for tap in taps if (tap.output, tap.input) == (output, number)]
            if own:
                a, b = (number, output) if adjoint else (output, number)
                self._parts[a].append((b, self._pass(lines[number], own, dtype)))

    def apply(self, x: np.ndarray, components: bool, update: Any = None) -> np.ndarray:
        """The result; `components` where the result has an axis of them.

        `update` is `(u, v, beta, d)`: the result becomes `2 u + d * result + beta * v`, d flat.
        """
        if x.dtype.kind == "c":
            halves = self.apply(np.stack([x.real, x.imag]), components)
            whole = np.empty(halves.shape[1:], x.dtype)
            whole.real, whole.imag = halves
            return whole
        if update is not None:
            u, v, beta, d = update
            flat_u, flat_v = (writeable(np.ascontiguousarray(a)).reshape(-1) for a in (u, v))
            update = flat_u, flat_v, beta, writeable(d)
        batch = x.shape[: x.ndim - len(self._source) - int(self._led)]
        members = math.prod(batch)
        size_in, size_out = _size(self._source), _size(self._target)
        wide = writeable(np.ascontiguousarray(x)).reshape(members, self._read, size_in)
        shape = (*batch, self._made, *self._target) if components else (*batch, *self._target)
        out = np.empty(shape, x.dtype)
        flat = out.reshape(members, self._made, size_out)
        if size_out:
            tasks = [
                (member, c, k) for member in range(len(flat)) for c, k in self._tasks(size_out)
            ]
            pool.run(lambda t: self._run(wide, flat, *tasks[t], update), len(tasks))
        return out

    def _tasks(self, size: int) -> list[tuple[int, tuple[int, int, int, int]]]:
        m0, m1 = _three(self._target)[:2]
        item = size // max(m0, 1) * 4
        rows = m1 if item * self._reach <= _PLANES else min(m1, 32)
        planes = m0
        if size > _TILED:
            planes = max(1, -(-m0 // (4 * pool.workers())))
        return [
            (c, (i, min(i + planes, m0), j, min(j + rows, m1)))
            for c in range(self._made)
            for i in range(0, m0, planes)
            for j in range(0, m1, rows)
        ]

    def _run(
        self, x: np.ndarray, out: np.ndarray, member: int, c: int, part: Any, update: Any
    ) -> None:
        from linops.stencils.row_passes import stencil_rows

        parts = self._parts[c]
        target = out[member, c]
        none = target[:1]
        if not parts:
            rows = target.reshape(_three(self._target))
            rows[part[0] : part[1], part[2] : part[3]] = 0
        for number, (source, own) in enumerate(parts):
            last = update is not None and number == len(parts) - 1
            u, v, beta, d = update if last else (none, none, 0.0, none)
            stencil_rows(
                x[member, source], target, own.taps, own.weights, own.tables, own.signs,
                own.plain, own.sizes, own.inner, own.moves, own.whole, own.ends, part,
                (number > 0, last, target.dtype.type(beta)), u, v, d,
            )  # fmt: skip

    def _pass(self, lines: Sequence[Line], taps: Sequence[Tap], dtype: np.dtype) -> _Pass:
        made = [
            _table(line, sorted({tap.offset[a] for tap in taps}), self._adjoint)
            for a, line in enumerate(lines)
        ]
        shifts = [sorted({tap.offset[a] for tap in taps}) for a in range(len(lines))]
        numbers = np.array(
            [[shifts[a].index(o) for a, o in enumerate(tap.offset)] for tap in taps], np.int64
        )
        moves = [
            [(-1 if self._adjoint else 1) * (line.lead + o) for o in row]
            for line, row in zip(lines, shifts, strict=True)
        ]
        empty = (np.zeros((1, 1, 1), np.int64), np.ones((1, 1, 1), np.int8), np.ones(1, np.bool_))
        where = _slots(len(lines))
        axes = [made[where.index(a)] if a in where else empty for a in range(3)]
        steps = [moves[where.index(a)] if a in where else [0] for a in range(3)]
        three = np.zeros((len(taps), 3), np.int64)
        for k, a in enumerate(where):
            three[:, a] = numbers[:, k]
        n, m = _three(self._source), _three(self._target)
        rest = np.flatnonzero(~axes[2][2])
        low = int(rest[rest < m[2] // 2].max(initial=-1)) + 1
        high = int(rest[rest >= m[2] // 2].min(initial=m[2]))
        inner = min(low, m[2]), max(high, min(low, m[2]))
        whole = np.array(
            [
                bool((axes[2][0][r, :, 0] == np.maximum(np.arange(m[2]) + steps[2][r], 0)).all())
                and (m[2] == 0 or steps[2][r] >= 0)
                and axes[2][0].shape[2] == 1
                and bool((axes[2][1][r] > 0).all())
                for r in range(len(steps[2]))
            ],
            np.bool_,
        )
        ends = (np.zeros(0, np.int64), np.zeros(0, np.int8))
        if not self._adjoint and not whole.all():
            ends = _ends(lines[-1], min(steps[2]), max(steps[2]))
        return _Pass(
            three,
            np.array([tap.weight for tap in taps], real_of(dtype)),
            tuple(axis[0] for axis in axes),
            tuple(axis[1] for axis in axes),
            tuple(axis[2] for axis in axes),
            (n[1], n[2], m[1], m[2]),
            inner,
            tuple(np.array(row, np.int64) for row in steps),
            whole,
            ends,
        )


def _ends(line: Line, lowest: int, highest: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the entries of a row and beyond its ends are read, from shift `lowest` on."""
    found = [_source(line, place) for place in range(lowest, line.count + highest)]
    return (
        np.array([0 if where is None else where[0] for where in found], np.int64),
        np.array([0 if where is None else where[1] for where in found], np.int8),
    )


def _table(line: Line, shifts: Sequence[int], adjoint: bool) -> tuple[np.ndarray, ...]:
    """For each shift and plane of the result: planes that are read, and signs; and which planes
    read one plane each, at their own place."""
    planes = line.extent if adjoint else line.count
    lists: list[list[list[tuple[int, int]]]] = [[[] for _ in range(planes)] for _ in shifts]
    for number, o in enumerate(shifts):
        for i in range(line.count):
            found = _source(line, i + line.lead + o)
            if found is not None:
                a, b = (found[0], i) if adjoint else (i, found[0])
                lists[number][a].append((b, found[1]))
    depth = max((len(entry) for row in lists for entry in row), default=1) or 1
    table = np.full((len(shifts), planes, depth), -1, np.int64)
    signs = np.ones((len(shifts), planes, depth), np.int8)
    plain = np.ones(planes, np.bool_)
    for number, o in enumerate(shifts):
        move = (-1 if adjoint else 1) * (line.lead + o)
        for i, entry in enumerate(lists[number]):
            plain[i] &= entry == [(i + move, 1)]
            for r, (p, sign) in enumerate(entry):
                table[number, i, r], signs[number, i, r] = p, sign
    return table, signs, plain


def _source(line: Line, plane: int) -> tuple[int, int] | None:
    if 0 <= plane < line.extent:
        return None if plane in line.blanks else (plane, 1)
    return ghost(plane, line.extent, line.pair, line.faces)


def _slots(d: int) -> tuple[int, ...]:
    """Which of three axes the axes of a grid become: the last is the one of rows."""
    return {1: (2,), 2: (0, 2), 3: (0, 1, 2)}[d]


def _three(shape: Sequence[int]) -> tuple[int, int, int]:
    found = [1, 1, 1]
    for n, a in zip(shape, _slots(len(shape)), strict=True):
        found[a] = n
    return found[0], found[1], found[2]


def _size(shape: Sequence[int]) -> int:
    return math.prod(shape)
