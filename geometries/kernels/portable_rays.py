"""Rays for array code of any namespace: frames to lines, lines to rays, rays to pieces of cells.

Everything is measured in cells of the whole grid, faces at 0, 1, ..., n. A ray is marched along the
axis in which it is longest, slab by slab; within a slab it moves by at most one cell along each
other axis, so a slab holds at most as many pieces as there are axes, in the order of at most two
crossings, and nothing is sorted. A piece belongs to the cell of its middle: a ray in a face belongs
to the cell above it. No pieces are left out but those of length zero.

Sums over rays, batches and memory are in `geometries/kernels/portable.py`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from geometries.kernels.ties import SINGLE_TIE, TIE
from linops import arrays
from linops.arrays import Array

__all__ = [
    "CellBox",
    "Lines",
    "Marched",
    "Rays",
    "Slabs",
    "lines_of",
    "march",
    "meets",
    "rays_of",
    "slabs_of",
]

_ZERO = 1e-20
_FAR = 1e30


class Lines(NamedTuple):
    """Lines of detector cells: one for each view, row (or one for all rows) and column.

    The ray of the cell at height b along v is `point + b slide + s (way + b rise)`, in cells, for s
    from `start` to `stop`; its detector cell (parallel: its cell) stands at `s = foot + b shift`.
    """

    point: Array  # (views, 1 or rows, cols, dims): near the middle of the grid
    slide: Array  # the same
    way: Array  # the same
    rise: Array  # (views, 1, 1, dims)
    start: Array  # (views, 1 or rows, cols)
    stop: Array  # the same
    foot: Array  # the same
    shift: Array  # (views, 1, 1)


class Rays(NamedTuple):
    """R rays: unit directions in cells, parameters along them from the point `origin`."""

    origin: Array  # (R, dims)
    direction: Array  # (R, dims)
    start: Array  # (R,)
    stop: Array  # (R,)
    foot: Array  # (R,): where the detector cell stands
    metre: Array  # (R,): physical length of one unit
    norm: Array  # (R,): length in cells of source to cell, or of the given direction
    way: Array  # (R, dims): physical, source to cell, or the given direction
    size: Array  # (dims,): of a cell of the grid


class CellBox(NamedTuple):
    """The cells of a part of the grid: in the order x, y[, z], as arrays of whole numbers."""

    first: Array  # (dims,): which cell of the grid stands first in the array
    low: Array  # (dims,): cells from here ...
    high: Array  # (dims,): ... to here exist in both, or belong to a tile


class Side(NamedTuple):
    """One axis for each of R rays, `(R, 1)` each: its part of ray and box, its stride."""

    origin: Array
    direction: Array
    size: Array
    first: Array
    low: Array
    high: Array
    stride: Array


class Slabs(NamedTuple):
    """N layers of cells, across the longest axis of each of R rays."""

    begin: Array  # (R, N): the parameters between which the ray is in the slab
    end: Array
    exists: Array  # (R, N): whether the array and the grid have this slab
    flat: Array  # (R, N): flat position of its cell 0 along the other axes
    lateral: tuple[Side, ...]  # the other axes
    axes: tuple[Array, ...]  # (R, dims) each: 1.0 at the longest axis, at the next, ...


class Marched(NamedTuple):
    """Pieces of R rays in N slabs: `dims` of them in each."""

    bounds: Array  # (R, N, dims + 1): parameters between which the pieces lie
    index: Array  # (R, N, dims): flat position of the cell in the array; -1 for none
    crossings: tuple[Array, ...]  # (R, N) each: of the other axes, within the slab


def lines_of(
    parallel: bool,
    frames: tuple[Array, ...],
    offsets: Array,
    spacing: tuple[float, ...],
    center: tuple[float, ...],
    counts: tuple[int, ...],
) -> Lines:
    """Lines of all detector cells from frames, all arrays of one namespace and dtype.

    Parameters
    ----------
    parallel
        Whether rays are infinite, and the first frame a direction.
    frames
        Source or direction, center, u[, v], `(views, dims)` each.
    offsets
        `(1 or views, 1 or rows, cols, 3)`: offsets of cells from the center along u, v and n,
        without the heights of the rows where these are given apart.
    spacing, center, counts
        Of the whole grid, in the order x, y[, z].
    """
    first, middle, u = frames[:3]
    xp = arrays.namespace(u)
    size = _vector(spacing, u)
    origin = _vector(center, u)
    v = frames[3] if len(frames) == 4 else xp.zeros_like(u)
    normal = normals(frames)
    end = _spread(middle - origin) + offsets[..., 0:1] * _spread(u)
    end = end + offsets[..., 1:2] * _spread(v) + offsets[..., 2:3] * _spread(normal)
    tall = _spread(v if offsets.shape[1] == 1 else xp.zeros_like(v))
    if parallel:
        way = _spread(first)
        square = _dot(way, way)
        foot, shift = _dot(end, way) / square, _dot(tall, way) / square
        point, slide = end - foot[..., None] * way, tall - shift[..., None] * way
        way = way + xp.zeros_like(point)
        rise = xp.zeros_like(tall)
        start, stop = xp.full_like(foot, -_FAR), xp.full_like(foot, _FAR)
    else:
        source = _spread(first - origin)
        way, rise = end - source, tall
        # The plane through the middle of the grid that the rays of a column cross where they are
        # nearest to it, seen along v: there a ray's place is affine in its height.
        across = way - _dot(way, tall)[..., None] * tall
        square = _dot(across, across)
        from_source, from_end = -_dot(source, across) / square, -_dot(end, across) / square
        near = _dot(end, end) < _dot(source, source)
        point = xp.where(
            near[..., None],
            end + from_end[..., None] * way,
            source + from_source[..., None] * way,
        )
        begin = xp.where(near, 1.0 + from_end, from_source)
        slide = begin[..., None] * tall
        start, stop = -begin, xp.where(near, -from_end, 1.0 - from_source)
        foot, shift = stop, xp.zeros_like(_dot(tall, tall))
    half = _vector(tuple(0.5 * n for n in counts), u)
    return Lines(
        point / size + half, slide / size + xp.zeros_like(point), way / size, rise / size,
        start, stop, foot, shift,
    )  # fmt: skip


def normals(frames: tuple[Array, ...]) -> Array:
    """Unit detector normals `v x u`, in 2-D `(-u_y, u_x)`."""
    u = frames[2]
    xp = arrays.namespace(u)
    if len(frames) == 3:
        return xp.stack([-u[:, 1], u[:, 0]], axis=1)
    n = cross(frames[3], u)
    return n / xp.sqrt(_dot(n, n))[:, None]


def cross(a: Array, b: Array) -> Array:
    """The cross product of `(n, 3)` with `(n, 3)`."""
    xp = arrays.namespace(a)
    parts = [a[:, i] * b[:, j] - a[:, j] * b[:, i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return xp.stack(parts, axis=1)


def rays_of(
    lines: Lines, heights: Array, view: Array, row: Array, col: Array, spacing: tuple[float, ...]
) -> Rays:
    """The rays of cells (view, row, col), whole numbers `(R,)` each."""
    xp = arrays.namespace(lines.point)
    _, rows, cols, dims = lines.point.shape
    at = (view * rows + (row if rows > 1 else 0 * row)) * cols + col

    def pick(table: Array, number: Array, width: int) -> Array:
        flat = xp.reshape(table, (-1, width) if width > 1 else (-1,))
        return xp.take(flat, number, axis=0)

    b = xp.take(heights, row, axis=0)
    tall = b[:, None]
    origin = pick(lines.point, at, dims) + tall * pick(lines.slide, at, dims)
    way = pick(lines.way, at, dims) + tall * pick(lines.rise, view, dims)
    norm = xp.sqrt(_dot(way, way))
    direction = way / norm[:, None]
    direction = xp.where(xp.abs(direction) <= _ZERO, xp.zeros_like(direction), direction)
    stretched = direction * _vector(spacing, direction)
    foot = pick(lines.foot, at, 1) + b * pick(lines.shift, view, 1)
    return Rays(
        origin,
        direction,
        norm * pick(lines.start, at, 1),
        norm * pick(lines.stop, at, 1),
        norm * foot,
        xp.sqrt(_dot(stretched, stretched)),
        norm,
        stretched * norm[:, None],
        _vector(spacing, direction),
    )


def slabs_of(rays: Rays, box: CellBox, shape: tuple[int, ...], edge: int) -> Slabs:
    """The slabs of a box, at most `edge` of them, along the longest axis of each ray.

    `shape`: of the array, (x, y[, z]).
    """
    xp = arrays.namespace(rays.origin)
    axes = driving(rays.direction)
    steps = arrays.convert(
        np.asarray([math.prod(shape[:a]) for a in range(len(shape))], np.int32), box.first
    )

    def side(mask: Array) -> Side:
        def real(values: Array) -> Array:
            return xp.sum(mask * values, axis=-1)[:, None]

        def whole(values: Array) -> Array:
            chosen = xp.where(mask > 0.5, values, xp.zeros_like(values))
            return xp.sum(chosen, axis=-1, dtype=values.dtype)[:, None]

        return Side(
            real(rays.origin), real(rays.direction), real(rays.size), whole(box.first),
            whole(box.low), whole(box.high), whole(steps),
        )  # fmt: skip

    drive, *lateral = (side(mask) for mask in axes)
    slab = arange(edge, box.first)[None, :] + drive.low
    number = arrays.cast(slab, arrays.dtype_of(drive.origin))
    one = (number - drive.origin) / drive.direction
    two = (number + 1.0 - drive.origin) / drive.direction
    start, stop = rays.start[:, None], rays.stop[:, None]
    return Slabs(
        clipped(xp.minimum(one, two), start, stop),
        clipped(xp.maximum(one, two), start, stop),
        (slab >= drive.low) & (slab < drive.high),
        (slab - drive.first) * drive.stride,
        tuple(lateral),
        axes,
    )


def meets(rays: Rays, box: CellBox) -> Array:
    """Which rays may meet the box, a cell added around it: `(R,)`."""
    xp = arrays.namespace(rays.origin)
    inside = rays.start < rays.stop
    begin, end = rays.start, rays.stop
    for axis in range(rays.origin.shape[1]):
        q, d = rays.origin[:, axis], rays.direction[:, axis]
        low, high = (
            arrays.cast(side[axis], arrays.dtype_of(q)) for side in (box.low - 1, box.high + 1)
        )
        moves = d != 0
        divisor = xp.where(moves, d, xp.ones_like(d))
        one, two = (low - q) / divisor, (high - q) / divisor
        inside = inside & (moves | ((q >= low) & (q <= high)))
        begin = xp.where(moves, xp.maximum(begin, xp.minimum(one, two)), begin)
        end = xp.where(moves, xp.minimum(end, xp.maximum(one, two)), end)
    return inside & (begin <= end)


def march(slabs: Slabs) -> Marched:
    """All pieces of rays in the cells of their slabs."""
    xp = arrays.namespace(slabs.begin)
    begin, end = slabs.begin, slabs.end
    crossings = []
    for side in slabs.lateral:
        q, d = side.origin, side.direction
        face = xp.floor(q + begin * d) + xp.where(d > 0, xp.ones_like(d), xp.zeros_like(d))
        moves = d != 0
        at = (face - q) / xp.where(moves, d, xp.ones_like(d))
        crossings.append(clipped(xp.where(moves, at, end), begin, end))
    index = _cells(slabs, _bounds(slabs, crossings))
    # A ray in a face may be cut where it does not leave its cell: each cell has one piece.
    same = [one == two for one, two in pairwise(index)]
    if len(crossings) == 1:
        crossings = [xp.where(same[0], begin, crossings[0])]
    else:
        ordered = crossings[0] <= crossings[1]
        low = xp.where(same[0], begin, xp.minimum(*crossings))
        high = xp.where(same[1], end, xp.maximum(*crossings))
        crossings = [xp.where(ordered, low, high), xp.where(ordered, high, low)]
    bounds = _bounds(slabs, crossings)
    return Marched(xp.stack(bounds, axis=-1), xp.stack(index, axis=-1), tuple(crossings))


def _bounds(slabs: Slabs, crossings: list[Array]) -> list[Array]:
    if len(crossings) == 1:
        return [slabs.begin, crossings[0], slabs.end]
    xp = arrays.namespace(slabs.begin)
    return [slabs.begin, xp.minimum(*crossings), xp.maximum(*crossings), slabs.end]


def _cells(slabs: Slabs, bounds: list[Array]) -> list[Array]:
    """Flat positions of the cells in which pieces between these bounds lie, by their middles."""
    xp = arrays.namespace(slabs.begin)
    found = []
    for one, two in pairwise(bounds):
        inside, flat = slabs.exists, slabs.flat
        for side in slabs.lateral:
            place = xp.floor(side.origin + 0.5 * (one + two) * side.direction)
            top = arrays.cast(side.high, arrays.dtype_of(place))
            cell = arrays.cast(clipped(place, 0.0 * top - 1.0, top), arrays.dtype_of(flat))
            inside = inside & (cell >= side.low) & (cell < side.high)
            flat = flat + (cell - side.first) * side.stride
        found.append(xp.where(inside, flat, xp.full_like(flat, -1)))
    return found


def driving(direction: Array) -> tuple[Array, ...]:
    """Masks (R, dims) of the axis in which a ray is longest, and of the axes after it."""
    xp = arrays.namespace(direction)
    size = xp.abs(direction)
    tie = SINGLE_TIE if arrays.dtype_of(direction).itemsize == 4 else TIE
    # Lengths within a tie of each other count by the order of their axes.
    order = tuple(1.0 - k * tie for k in range(direction.shape[1]))
    best = xp.argmax(size * _vector(order, direction), axis=-1)
    numbers = arrays.cast(arange(direction.shape[1], best), arrays.dtype_of(best))
    mask = arrays.cast(best[:, None] == numbers[None, :], arrays.dtype_of(direction))
    return tuple(xp.roll(mask, k, axis=-1) for k in range(direction.shape[1]))


def arange(count: int, like: Array) -> Array:
    """Whole numbers from 0 on, int32, in the namespace and on the device of `like`."""
    return arrays.convert(np.arange(count, dtype=np.int32), like)


def clipped(x: Array, low: Array, high: Array) -> Array:
    """`x` held between two arrays."""
    xp = arrays.namespace(x)
    return xp.minimum(xp.maximum(x, low), high)


def _vector(values: tuple[float, ...], like: Array) -> Array:
    return arrays.convert(np.asarray(values, arrays.dtype_of(like)), like)


def _spread(vectors: Array) -> Array:
    return vectors[:, None, None, :]


def _dot(a: Array, b: Array) -> Array:
    return arrays.namespace(a).sum(a * b, axis=-1)
