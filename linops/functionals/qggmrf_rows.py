"""`QGGMRF` at a subset of positions, at a cost in proportion to it.

Neighbors in the plane are read from x, those in other planes from the rows; so it is rows, not
planes, that devices exchange. Which positions are neighbors follows from the index, which is data:
one compiled program serves every subset.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost, bytes_of
from linops.functionals.differences import narrow_pair, passes, volume
from linops.functionals.qggmrf import QGGMRF
from linops.functionals.restricted import RowMap

__all__ = ["QGGMRFForm", "QGGMRFTerms"]


class _QGGMRFRows(RowMap):
    """What both maps share.

    Parameters
    ----------
    functional
        The functional on the whole domain.
    index
        Flat positions along the plane, shape (s,), -1 inert.
    """

    def __init__(self, functional: QGGMRF, index: Any) -> None:
        space = functional._space
        outer = max(space.ndim - 2, 0)
        super().__init__(space, index, (0,) * outer, (1,) * outer)
        self.functional = functional

    def _cost(self) -> Cost:
        # A potential costs about twenty flops, and each entry has two an axis.
        rows = self.codomain.members[0]
        count = 40.0 * rows.size * self.functional._space.ndim
        held = bytes_of(rows)
        return Cost(count, 7.0 * held, bytes_of(self.codomain), 4.0 * held)

    @property
    def _plane(self) -> tuple[int, int]:
        shape = self.domain.members[0].shape
        return (1, shape[-1]) if len(shape) == 1 else (shape[-2], shape[-1])

    def _tables(self, like: Array) -> _Tables:
        """Which positions are neighbors; made once where the index is known."""
        if arrays.is_traced(self.index):
            return _tables(self.index, self._plane)
        found = self.__dict__.get("_cache_tables")
        if found is None:
            host = np.ascontiguousarray(arrays.to_numpy(self.index), np.int64)
            found = self.__dict__["_cache_tables"] = _tables(host, self._plane)
        return found

    def _compilable(self, *parts: Array) -> bool:
        return (
            self.real is None
            and not arrays.is_traced(self.index)
            and self.functional._compilable(parts[0])
            and all(type(part) is np.ndarray or arrays.is_torch(part) for part in parts)
        )

    def _host(self, x: Array, *rows: Array) -> tuple[Any, ...]:
        """What a compiled pass takes first."""
        slices = math.prod(x.shape[: max(x.ndim - 2, 0)])
        x2 = volume(x).reshape(slices, self._plane[0] * self._plane[1])
        own = [np.ascontiguousarray(arrays.to_numpy(r)).reshape(-1, r.shape[-1]) for r in rows]
        return x2, *own, self._margins[0][0] if self._margins else 0

    def _back(self, values: np.ndarray, like: Array) -> Array:
        return arrays.convert(values.reshape(self.codomain.members[0].shape), like)

    def _in_plane(self, x: Array, own: Array, d: Array | None) -> Iterator[tuple[Any, ...]]:
        """For each neighbor in the plane: b, difference, 1 where it exists, its move."""
        weights = (0.0,) * (2 - min(x.ndim, 2)) + self.functional.b[-2:]
        tables = self._tables(x)
        xp = arrays.namespace(x)
        flat = xp.reshape(x, (*own.shape[:-1], self._plane[0] * self._plane[1]))
        for way in range(4):
            if weights[way // 2] == 0:
                continue
            there = tables.neighbors[way, ...]
            inside = arrays.cast(arrays.convert(there >= 0, own), self.functional.domain.dtype)
            other = None if d is None else arrays.take_last(d, tables.inner[way, ...])
            yield weights[way // 2], (own - arrays.take_last(flat, there)) * inside, inside, other

    def _across(self, rows: Array) -> Iterator[tuple[int, float, Array, Array]]:
        """For each axis before the plane that has pairs: its number from the end, b, their
        differences, and 1 where both are of the array and the position counts."""
        xp = arrays.namespace(rows)
        count = len(self._margins)
        valid = arrays.convert(self.index >= 0, rows)
        for a, (before, behind) in enumerate(self._margins):
            planes = self.codomain.members[0].shape[a] + before + behind
            b = self.functional.b[a]
            if planes < 2 or b == 0:
                continue
            axis = a - count - 1
            low, high = narrow_pair(self._own(rows, a), axis)
            there = valid
            inside = self._inside(a, -before, planes, rows)
            if inside is not None:
                first, second = narrow_pair(inside, axis)
                there = there & first & second
            difference = xp.where(there, high - low, xp.zeros_like(low))
            yield axis, b, difference, arrays.cast(there, self.functional.domain.dtype)

    def _added(self, flow: Array, axis: int, sign: float) -> Array:
        """What pairs along an axis add to its own planes: once as it is, once with a sign."""
        before, behind = self._margins[axis + len(self._margins) + 1]
        total = arrays.widen(flow, axis, 1, 0) + sign * arrays.widen(flow, axis, 0, 1)
        return arrays.narrow(total, axis, before, total.shape[axis] - behind)


class QGGMRFTerms(_QGGMRFRows):
    """`(x, rows) -> (gradient rows, the surrogate's diagonal)`."""

    def _apply(self, parts: tuple[Array, Array]) -> tuple[Array, Array]:
        x, rows = parts
        functional = self.functional
        if self._compilable(x, rows):
            tables = self._tables(x)
            x2, rows2, first = self._host(x, rows)
            shape = (x2.shape[0], rows2.shape[1])
            out = np.empty(shape, x2.dtype), np.empty(shape, x2.dtype)
            passes().subset_terms(
                x2, rows2, first, tables.index, tables.neighbors,
                functional._weights3(), functional._parameters(), *out,
            )  # fmt: skip
            return self._back(out[0], x), self._back(out[1], x)
        own = self._own(rows)
        xp = arrays.namespace(x)
        gradient, diagonal = xp.zeros_like(own), xp.zeros_like(own)
        for b, difference, inside, _ in self._in_plane(x, own, None):
            gradient = gradient + b * functional.influence(difference) * inside
            diagonal = diagonal + b * functional.curvature(difference) * inside
        for axis, b, difference, there in self._across(rows):
            flow = b * functional.influence(difference) * there
            gradient = gradient + self._added(flow, axis, -1.0)
            bend = b * functional.curvature(difference) * there
            diagonal = diagonal + self._added(bend, axis, 1.0)
        return self._blank(gradient), self._blank(diagonal)


class QGGMRFForm(_QGGMRFRows):
    """`(x, rows, d) -> rows of S(x) d`."""

    _inputs, _outputs = 2, 1

    def _apply(self, parts: tuple[Array, Array, Array]) -> Array:
        x, rows, d = parts
        functional = self.functional
        if self._compilable(x, rows, d):
            tables = self._tables(x)
            x2, rows2, d2, first = self._host(x, rows, d)
            out = np.empty((x2.shape[0], rows2.shape[1]), x2.dtype)
            passes().subset_form(
                x2, rows2, d2, first, tables.index, tables.neighbors, tables.inner,
                functional._weights3(), functional._parameters(), out,
            )  # fmt: skip
            return self._back(out, x)
        own, own_d = self._own(rows), self._own(d)
        total = arrays.namespace(x).zeros_like(own)
        for b, difference, inside, other in self._in_plane(x, own, own_d):
            total = total + b * functional.curvature(difference) * inside * (own_d - other)
        for axis, b, difference, there in self._across(rows):
            low, high = narrow_pair(self._own(d, axis + len(self._margins) + 1), axis)
            xp = arrays.namespace(d)
            move = xp.where(there > 0, high - low, xp.zeros_like(low))
            flow = b * functional.curvature(difference) * there * move
            total = total + self._added(flow, axis, -1.0)
        return self._blank(total)


class _Tables(NamedTuple):
    """Of each position its flat place, `(s,)`, the places of its neighbors in the plane (y-1,
    y+1, x-1, x+1), `(4, s)`, and where these stand in the subset; -1 for none."""

    index: Array
    neighbors: Array
    inner: Array


def _tables(index: Array, plane: tuple[int, int]) -> _Tables:
    ny, nx = plane
    xp = arrays.namespace(index)
    y, x = index // nx, index % nx
    real, none = index >= 0, xp.zeros_like(index) - 1
    neighbors = xp.stack(
        [
            xp.where(real & there, index + step, none)
            for there, step in ((y > 0, -nx), (y < ny - 1, nx), (x > 0, -1), (x < nx - 1, 1))
        ]
    )
    # A position that is not of the subset counts as 0, and so does what is none.
    place = arrays.scatter_add(xp.arange(1, index.shape[0] + 1), index, ny * nx)
    inner = xp.stack([arrays.take_last(place, neighbors[way, ...]) - 1 for way in range(4)])
    return _Tables(index, neighbors, inner)
