"""Linear interpolation at given points, and the adjoint that spreads values back.

The array is zero outside the grid, so values fade over the last half-open plane and the adjoint is
exact. Points are arrays of the operator's own: where they require a gradient, weights are computed
from them in every application.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost, bytes_of
from linops.elementary.axes import axis_numbers, numbered, resized_one, with_row
from linops.elementary.plane_windows import PlaneMask
from linops.errors import DTypeError, ShapeError
from linops.linear_operator import LinearOperator
from linops.precision import real_of
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = ["Interpolate"]


class Interpolate(LinearOperator):
    """Values at points between the planes, linear along every axis, zero off the grid.

    Parameters
    ----------
    space
        The domain.
    points
        Shape `(d, *shape)`: coordinate k of every point along the k-th of `axes`, counted in
        planes (2.5 is halfway between planes 2 and 3), as `scipy.ndimage.map_coordinates` takes
        them. The codomain is the other axes, then `shape`.
    displacement
        Instead of points, shape `(d, *extents of axes)`: `y[i] = x[i + displacement[i]]`, counted
        in planes (divide a length by the spacing).
    axes
        By name or number; the last d by default.
    names
        Names for the axes of the points; by default numbered.
    reach
        Of a displacement: planes that none of its entries exceeds, one number or one for each of
        `axes`. Those axes are then aligned, with a halo of `reach` planes, so that a deformation
        is cut where the image is; without it every output plane may need the whole input.

    Raises
    ------
    ValueError
        Where a displacement exceeds its reach, or points have one.
    ShapeError
        Where points and axes do not fit, or neither or both of points and displacement are given.
    DTypeError
        Where coordinates are not real.

    Notes
    -----
    A point nearer than one plane to the grid still sees its border, and zeros beyond
    (`mode="grid-constant"` in SciPy). A point that is not finite gives zero.

    >>> import numpy as np
    >>> A = Interpolate(Space(3), np.array([[0.5, 2.0, 2.75]]))
    >>> A @ np.array([1, 2, 4], "float32")
    array([1.5, 4. , 1. ], dtype=float32)
    """

    batched = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True
    domain: Space
    codomain: Space

    def __init__(
        self,
        space: Space,
        points: Array | None = None,
        *,
        displacement: Array | None = None,
        axes: str | int | Sequence[str | int] | None = None,
        names: Sequence[str] | None = None,
        reach: int | Sequence[int] | None = None,
    ) -> None:
        if not isinstance(space, Space):
            raise ShapeError("Interpolate takes one array: pick a member of the product first")
        if (points is None) == (displacement is None):
            raise ShapeError("Interpolate takes points or a displacement, one of the two")
        given = _checked(displacement if points is None else points)
        count = int(given.shape[0])
        axes = tuple(range(space.ndim - count, space.ndim)) if axes is None else axes
        numbers = axis_numbers(space, axes, "Interpolate")
        if count == 0 or len(numbers) != count:
            raise ShapeError(
                f"Interpolate: the first axis of the points counts their coordinates, one for each "
                f"of the axes {axes!r} of {space}; got shape {tuple(given.shape)}"
            )
        shape = tuple(int(n) for n in given.shape[1:])
        extents = tuple(space.shape[i] for i in numbers)
        if points is None and shape != extents:
            raise ShapeError(
                f"Interpolate: a displacement has shape {(count, *extents)}, got "
                f"{tuple(given.shape)}"
            )
        kept = given if arrays.trainable(given) else None
        coordinates = () if kept is not None else _coordinates(given, points is None)
        others = [i for i in range(space.ndim) if i not in numbers]
        left = space.axes or tuple(numbered(space.ndim))
        named = points is None and space.axes is not None
        halos = _halos(given, count, reach, points is None)
        if halos:
            own = [left[i] for i in numbers]
        else:
            own = _own_names(left, numbers, len(shape), names, named)
        ranges = np.array([[0, 0, n] for n in extents], np.int32).reshape(-1, 3)
        rule = Rule(
            (tuple(Axis(name, halos.get(i, 0)) for i, name in _placed(left, numbers)),),
            (tuple(Axis(name) for name in (*(left[i] for i in others), *own)),),
            (tuple(map(Axis, own)),) * len(coordinates),
        )
        codomain = Space(
            (*(space.shape[i] for i in others), *shape),
            space.dtype,
            (*(left[i] for i in others), *own),
            None
            if space.spacing is None or points is not None
            else tuple(space.spacing[i] for i in (*others, *numbers)),
        )
        super().__init__(space, codomain, rule, tags=("nonnegative",))
        # ranges: of every axis, the plane of the grid that is plane 0 of the input, and the range
        # of input planes that are on the grid. given: points, or a displacement that moves, which
        # are trained: they are what the operator holds, and `points` is empty.
        self.points, self.ranges = tuple(map(arrays.snapshot, coordinates)), arrays.snapshot(ranges)
        self.given, self._moves = kept, points is None
        self._numbers = numbers
        # Input planes before the one that stands at output plane 0, along aligned axes.
        self._lead = (0,) * len(numbers)

    def _apply(self, x: Array) -> Array:
        xp = arrays.namespace(x)
        flat, batch = self._flat(x)
        if self._extent() == 0:
            return arrays.zeros((*batch, *self.codomain.shape), self.codomain.dtype, x)
        total: Any = None
        for index, weight in self._corners(x):
            part = arrays.take_last(flat, index) * weight
            total = part if total is None else total + part
        return xp.reshape(total, (*batch, *self.codomain.shape))

    def _apply_adjoint(self, y: Array) -> Array:
        return self._spread(y, 1)

    def _gram_diagonal(self, weights: Array | None) -> Array:
        w = weights
        if w is None:
            like = self._located()[0]
            w = arrays.ones(self.codomain.shape, real_of(self.codomain.dtype), like)
        return self._spread(w, 2)

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        halo = self.rule.halo(axis)
        i = [a.name for a in self.rule.domain[0]].index(axis)
        lead = self._lead[self._numbers.index(i)] if i in self._numbers else 0
        return start + lead - halo, stop + lead + halo

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        from linops.algebra.composition import Product

        left = [a.name for a in self.rule.domain[0]]
        right = [a.name for a in self.rule.codomain[0]]
        if axis not in left:
            j = right.index(axis)
            n = self.codomain.shape[j]
            points = self._points_of(j, start, stop)
            codomain = resized_one(self.codomain, j, stop - start)
            block = self._with(codomain=codomain, points=points, given=None)
            if not padded:
                return block
            mask = PlaneMask(codomain, [(0, j)], -start, n - start, self.rule.codomain)
            return Product([mask, block])
        i = left.index(axis)
        n = self.domain.shape[i]
        if axis in right and i in self._numbers:
            return self._aligned_block(i, right.index(axis), start, stop, padded)
        domain = resized_one(self.domain, i, stop - start)
        if axis in right:
            j = right.index(axis)
            codomain = resized_one(self.codomain, j, stop - start)
            block = self._with(domain=domain, codomain=codomain)
            if not padded:
                return block
            mask = PlaneMask(domain, [(0, i)], -start, n - start, self.rule.domain)
            return Product([block, mask])
        k = self._numbers.index(i)
        xp = arrays.namespace(self.ranges)
        row = self.ranges[k, ...]
        bounds = xp.clip(row[1:] - start, 0, stop - start)
        row = xp.concat([row[:1] + start, bounds])
        return self._with(domain=domain, ranges=with_row(self.ranges, k, row))

    def _aligned_block(
        self, i: int, j: int, start: int, stop: int, padded: bool
    ) -> LinearOperator | None:
        """The block of a displacement with a reach: its own planes and their halo."""
        from linops.algebra.composition import Product

        k, n = self._numbers.index(i), self.codomain.shape[j]
        if self._lead[k] or self.domain.shape[i] != n:
            return None
        halo = self.rule.domain[0][i].halo
        lo, hi = start - halo, stop + halo
        if not padded:
            lo, hi = max(lo, 0), max(min(hi, n), max(lo, 0))
        row = np.array([lo, *np.clip((-lo, n - lo), 0, hi - lo)], np.int32)
        codomain = resized_one(self.codomain, j, stop - start)
        block = self._with(
            domain=resized_one(self.domain, i, hi - lo),
            codomain=codomain,
            points=self._points_of(j, start, stop),
            given=None,
            ranges=with_row(self.ranges, k, row),
            _lead=(*self._lead[:k], start - lo, *self._lead[k + 1 :]),
        )
        if not padded:
            return block
        mask = PlaneMask(codomain, [(0, j)], -start, n - start, self.rule.codomain)
        return Product([mask, block])

    def _points_of(self, j: int, start: int, stop: int) -> tuple[Array, ...]:
        """The points of planes `start` to `stop` of an axis of the codomain, zeros outside."""
        position, n = j - self.codomain.ndim, self.codomain.shape[j]
        lo, hi = min(max(start, 0), n), max(min(stop, n), 0)
        hi = max(lo, hi)
        before = min(max(lo - start, 0), stop - start)
        after = stop - start - before - (hi - lo)
        return tuple(
            arrays.widen(arrays.narrow(part, position, lo, hi), position, before, after)
            for part in self._located()
        )

    def _cost(self) -> Cost:
        corners = 2.0 ** len(self._numbers)
        streaming = Cost.streaming(self.domain, self.codomain, 2 * corners * self.codomain.size)
        one = self.points[0] if self.given is None else self.given[0, ...]
        size = arrays.dtype_of(one).itemsize * math.prod(one.shape)
        read = streaming.read + size * len(self._numbers)
        return Cost(streaming.flops, read, streaming.written, *self._held())

    def _held(self) -> tuple[float, float]:
        """Bytes beside input and result, of both directions: corners are kept, terms made."""
        points = float(self._count())
        size, corners = real_of(self.domain.dtype).itemsize, 2.0 ** len(self._numbers)
        kept = corners * (4 + size) * points
        made = 2 * len(self._numbers) * (5 + size) * points + (26 + 2 * size) * points
        written, read = bytes_of(self.codomain), bytes_of(self.domain)
        forward = 3 * written + points
        back = 2 * read + 3 * written + 5 * points
        return kept + max(made, forward), kept + max(made, back)

    def _flat(self, x: Array) -> tuple[Array, tuple[int, ...]]:
        """`x` with the interpolated axes last and as one, and its batch axes."""
        n = self.domain.ndim
        xp = arrays.namespace(x)
        lead = x.ndim - n
        batch = tuple(x.shape)[:lead]
        others = [i for i in range(n) if i not in self._numbers]
        order = (*range(lead), *(lead + i for i in (*others, *self._numbers)))
        if order != tuple(range(x.ndim)):
            x = xp.permute_dims(x, order)
        shape = (*batch, *(self.domain.shape[i] for i in others), self._extent())
        return xp.reshape(x, shape), batch

    def _spread(self, y: Array, power: int) -> Array:
        n = self.domain.ndim
        xp = arrays.namespace(y)
        others = [i for i in range(n) if i not in self._numbers]
        lead = y.ndim - self.codomain.ndim
        batch = tuple(y.shape)[:lead]
        count = self._count()
        flat = xp.reshape(y, (*batch, *(self.domain.shape[i] for i in others), count))
        total: Any = None
        for index, weight in self._corners(y):
            part = arrays.scatter_add(flat * weight**power, index, self._extent())
            total = part if total is None else total + part
        moved = (*others, *self._numbers)
        out = xp.reshape(total, (*batch, *(self.domain.shape[i] for i in moved)))
        order = (*range(lead), *(lead + moved.index(i) for i in range(n)))
        return out if order == tuple(range(out.ndim)) else xp.permute_dims(out, order)

    def _located(self) -> tuple[Array, ...]:
        """The coordinates of the points."""
        return self.points if self.given is None else _coordinates(self.given, self._moves)

    def _count(self) -> int:
        return math.prod(self.codomain.shape[self.domain.ndim - len(self._numbers) :])

    def _extent(self) -> int:
        return math.prod(self.domain.shape[i] for i in self._numbers)

    def _corners(self, like: Array) -> list[tuple[Array, Array]]:
        """Flat index (-1 off the grid) and weight of the 2^d neighbors of every point."""
        held = *self.points, self.ranges
        fixed = self.given is None and not any(
            arrays.is_traced(part) or arrays.trainable(part) for part in held
        )
        cache = self.__dict__.setdefault("_cache_resident", {}) if fixed else {}
        if "corners" not in cache:
            corners = self._computed()
            if any(arrays.is_traced(weight) for _, weight in corners):
                # Of this trace alone.
                return corners
            cache["corners"] = corners
        return [
            (
                arrays.resident(cache, f"index{c}", index, like),
                arrays.resident(cache, f"weight{c}", weight, like),
            )
            for c, (index, weight) in enumerate(cache["corners"])
        ]

    def _computed(self) -> list[tuple[Array, Array]]:
        extents = tuple(self.domain.shape[i] for i in self._numbers)
        dtype = real_of(self.domain.dtype)
        points = self._located()
        xp = arrays.namespace(points[0])
        ranges = arrays.convert(self.ranges, points[0])
        pairs = []
        for k, part in enumerate(points):
            flat = xp.reshape(part, (-1,))
            finite = xp.isfinite(flat)
            flat = xp.where(finite, flat, arrays.zeros((), arrays.dtype_of(flat), flat) - 2)
            # Planes beyond these are off the grid whatever they are, and fit an int32.
            flat = xp.clip(flat, -2.0, float(2**30))
            floor = xp.floor(flat)
            fraction = flat - floor
            low = arrays.cast(floor, np.dtype("int32")) - ranges[k, 0]
            sides = []
            for index, weight in ((low, 1 - fraction), (low + 1, fraction)):
                inside = (index >= ranges[k, 1]) & (index < ranges[k, 2])
                sides.append((index, inside, arrays.cast(weight, dtype)))
            pairs.append(sides)
        corners = []
        for chosen in itertools.product(*pairs):
            index, inside, weight = chosen[0]
            for extent, (i, on, w) in zip(extents[1:], chosen[1:], strict=True):
                index, inside, weight = index * extent + i, inside & on, weight * w
            corners.append((xp.where(inside, index, xp.zeros_like(index) - 1), weight))
        return corners


def _checked(points: Any) -> Array:
    points = arrays.asarray(points, "Interpolate", "points")
    kind = arrays.dtype_of(points).kind
    if kind not in "iuf":
        raise DTypeError(f"Interpolate: coordinates are real numbers, got dtype {points.dtype}")
    if points.ndim == 0:
        raise ShapeError("Interpolate: points have a first axis of coordinates, got a scalar")
    exact = np.dtype("float64" if arrays.is_numpy(points) else "float32")
    return points if kind == "f" else arrays.cast(points, exact)


def _halos(given: Array, count: int, reach: Any, moves: bool) -> dict[int, int]:
    """The halo of every coordinate with a reach; empty without one."""
    if reach is None:
        return {}
    if not moves:
        raise ValueError("Interpolate: points lie anywhere; a reach belongs to a displacement")
    numbers = (reach,) * count if isinstance(reach, int) else tuple(reach)
    if len(numbers) != count or any(h < 0 for h in numbers):
        raise ValueError(
            f"Interpolate: reach is a number of planes >= 0 or {count} of them, got {reach!r}"
        )
    if not arrays.is_traced(given):
        host = arrays.to_numpy(given).reshape(count, -1)
        for k, h in enumerate(numbers):
            finite = np.abs(host[k][np.isfinite(host[k])])
            if finite.size and finite.max() > h:
                raise ValueError(
                    f"Interpolate: the displacement along coordinate {k} reaches "
                    f"{finite.max():.6g} planes, over its reach of {h}"
                )
    return dict(enumerate(int(h) for h in numbers))


def _placed(left: Sequence[str], numbers: Sequence[int]) -> list[tuple[int, str]]:
    """Every axis with the coordinate that moves along it, -1 where none does."""
    return [(numbers.index(i) if i in numbers else -1, name) for i, name in enumerate(left)]


def _coordinates(given: Array, moves: bool) -> tuple[Array, ...]:
    """The coordinates that points, or a displacement, give along each axis."""
    parts = tuple(given[k, ...] for k in range(int(given.shape[0])))
    return tuple(_shift(part, k) for k, part in enumerate(parts)) if moves else parts


def _shift(part: Array, axis: int) -> Array:
    """A displacement plus the coordinate of each grid point along `axis`."""
    shape = [1] * part.ndim
    shape[axis] = int(part.shape[axis])
    plane = np.arange(part.shape[axis], dtype=arrays.dtype_of(part)).reshape(shape)
    return part + arrays.convert(plane, part)


def _own_names(
    left: Sequence[str],
    numbers: Sequence[int],
    count: int,
    names: Sequence[str] | None,
    named: bool,
) -> list[str]:
    if names is None:
        names = [left[i] for i in numbers] if named else [f"point{j}" for j in range(count)]
    elif len(names) != count:
        raise ShapeError(f"Interpolate: {count} axes of points, got the names {tuple(names)!r}")
    taken, found = set(left), []
    for name in names:
        while name in taken:
            name += "2"
        taken.add(name)
        found.append(name)
    return found
