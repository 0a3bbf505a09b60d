"""Derivatives of a projection in its geometry, by array code: both modes, one batch of rays a time.

Weights are functions of the rays' detector cells P and ways E (from source to cell, or the
direction); `geometries/kernels/portable_models.py` says how they change. Here stands the chain to
frames and cells, `P = C + a u + b v + c n` with `n = v x u`, axes and directions normalised:

    dP = dC + a du + b dv + c dn + u da + v db + n dc,      E = P - S  (or the direction)

and its transpose. Nothing is kept between batches, so memory does not depend on their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from geometries.kernels.portable import (
    batches,
    numbered,
    over_tiles,
    rays_at,
    scattered,
)
from geometries.kernels.portable_models import Pieces
from geometries.kernels.portable_rays import cross, normals
from geometries.kernels.portable_scan import ScanArrays, Setup
from linops import arrays
from linops.arrays import Array

__all__ = ["Chain", "MovingFrames", "pull", "push", "straight"]


class MovingFrames(NamedTuple):
    """What moves: frames `(views, dims)` each, and cells as in `lines_of`."""

    first: Array
    middle: Array
    u: Array
    v: Array | None
    offsets: Array  # (1 or views, 1 or rows, cols, 3)
    heights: Array  # (rows,)

    @property
    def vectors(self) -> tuple[Array, ...]:
        """Source or direction, center, u and, in 3-D, v."""
        found = (self.first, self.middle, self.u, self.v)
        return tuple(part for part in found if part is not None)


@dataclass(frozen=True)
class Chain:
    """Frames of unit axes with the detector's normals, and how they move."""

    parallel: bool
    frames: MovingFrames
    normal: Array
    moved: MovingFrames | None = None
    turned: Array | None = None

    @classmethod
    def of(cls, setup: Setup, at: MovingFrames, move: MovingFrames | None = None) -> Self:
        """From frames and their moves as a user gives them."""
        frames = straight(setup, at)
        if move is None:
            return cls(setup.parallel, frames, normals(frames.vectors))
        moved = _unit_moves(setup, at, move)
        normal, turned = _normal_moves(frames, moved)
        return cls(setup.parallel, frames, normal, moved, turned)

    def pulled(self, at: MovingFrames, sums: Sequence[Array]) -> tuple[Array, ...]:
        """Gradients in a user's frames from those in unit axes and normals, `(views, dims)`."""
        first, middle, to_u, to_v, to_n = sums
        more_u, more_v = _normal_pulled(self.frames, self.normal, to_n)
        found = [_projected(at.first, first) if self.parallel else first, middle]
        found.append(_projected(at.u, to_u + more_u))
        if at.v is not None:
            assert more_v is not None
            found.append(_projected(at.v, to_v + more_v))
        return tuple(found)


def push(
    setup: Setup, scan: ScanArrays, at: MovingFrames, move: MovingFrames, x: Array, back: bool
) -> Array:
    """How the projections of `x` `(n, *voxels)` change where the geometry moves.

    With `back`, how the back projection of projections `x` `(n, *cells)` changes.
    """
    xp = arrays.namespace(x)
    chain = Chain.of(setup, at, move)
    frames, moved, normal, turned = chain.frames, chain.moved, chain.normal, chain.turned
    assert moved is not None and turned is not None

    def moves(number: Any) -> tuple[Array, Array]:
        """How the cells and ways of a batch of rays move."""
        view, row, col, _ = numbered(setup, number, scan.box.first)
        a, b, c = _cells(frames, view, row, col)
        da, db, dc = _cells(moved, view, row, col)

        def of(vectors: Array) -> Array:
            return xp.take(vectors, view, axis=0)

        v, dv = _third(frames), _third(moved)
        point = of(moved.middle) + a * of(moved.u) + b * of(dv) + c * of(turned)
        point = point + da * of(frames.u) + db * of(v) + dc * of(normal)
        return point, of(moved.first) if setup.parallel else point - of(moved.first)

    if back:
        return scattered(setup, scan, x, lambda number, pieces: pieces.change(*moves(number)))
    flat = xp.reshape(x, (x.shape[0], -1))
    total = math.prod(setup.cells)

    def one(number: Any) -> Array:
        rays, inside = rays_at(setup, scan, number)
        point, way = moves(number)

        def add(pieces: Pieces, used: Array, sums: Array) -> Array:
            step = arrays.cast(pieces.change(point, way), arrays.dtype_of(x))
            # What a missed ray would give may be no number.
            step = xp.where(used, step, xp.zeros_like(step))
            index = _places(pieces, used)
            return sums + arrays.mapped(
                x.shape[0],
                lambda k: xp.sum(
                    step * xp.reshape(arrays.take_last(flat[k, :], index), step.shape), axis=1
                ),
                x,
            )

        start = arrays.zeros((x.shape[0], setup.batch), arrays.dtype_of(x), x)
        return over_tiles(setup, scan.box, rays, inside, add, start)

    sums = xp.permute_dims(arrays.mapped(batches(setup), one, x), (1, 0, 2))
    return xp.reshape(xp.reshape(sums, (x.shape[0], -1))[:, :total], (x.shape[0], *setup.cells))


def pull(setup: Setup, scan: ScanArrays, at: MovingFrames, x: Array, y: Array) -> tuple[Array, ...]:
    """The gradient of `<A x, y>` in frames, offsets and heights, in the order of `MovingFrames`."""
    xp = arrays.namespace(x)
    chain = Chain.of(setup, at)
    frames, normal = chain.frames, chain.normal
    views, dims = frames.u.shape
    flat = xp.reshape(x, (x.shape[0], -1))
    total = math.prod(setup.cells)
    padded = arrays.widen(
        xp.reshape(y, (y.shape[0], total)), -1, 0, batches(setup) * setup.batch - total
    )
    parts = xp.reshape(padded, (y.shape[0], batches(setup), setup.batch))
    shape = tuple(frames.offsets.shape)

    def add(number: Any, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        view, row, col, _ = numbered(setup, number, scan.box.first)
        rays, inside = rays_at(setup, scan, number)
        zero = xp.zeros_like(rays.origin)

        def moments(pieces: Pieces, used: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            index = _places(pieces, used)

            def weighted(k: Any) -> Array:
                values = xp.reshape(arrays.take_last(flat[k, :], index), used.shape)
                return values * parts[k, number, :][:, None]

            values = xp.sum(arrays.mapped(x.shape[0], weighted, x), axis=0)
            values = arrays.cast(values, arrays.dtype_of(rays.origin))
            values = xp.where(used, values, xp.zeros_like(values))

            def moment(k: int, of_point: bool) -> Array:
                step = zero + arrays.convert(_basis(k, dims, rays.origin), zero)
                change = pieces.change(step, zero) if of_point else pieces.change(zero, step)
                return xp.sum(xp.where(used, values * change, xp.zeros_like(values)), axis=1)

            return (
                sums[0] + xp.stack([moment(k, True) for k in range(dims)], axis=0),
                sums[1] + xp.stack([moment(k, False) for k in range(dims)], axis=0),
            )

        none = xp.zeros_like(xp.permute_dims(zero, (1, 0)))
        to_point, to_way = over_tiles(setup, scan.box, rays, inside, moments, (none, none))
        first = to_way if setup.parallel else -to_way
        cell = to_point if setup.parallel else to_point + to_way
        a, b, c = (part[:, 0] for part in _cells(frames, view, row, col))

        def by_view(values: Array) -> Array:
            return arrays.scatter_add(values, view, views)

        v = _third(frames)
        axes = [
            xp.permute_dims(xp.take(axis, view, axis=0), (1, 0)) for axis in (frames.u, v, normal)
        ]
        along = [xp.sum(cell * axis, axis=0) for axis in axes]
        place = (view if shape[0] > 1 else 0 * view) * shape[1] + (row if shape[1] > 1 else 0 * row)
        place = place * shape[2] + col
        found = (
            by_view(first),
            by_view(cell),
            by_view(cell * a),
            by_view(cell * b),
            by_view(cell * c),
            arrays.scatter_add(xp.stack(along, axis=0), place, shape[0] * shape[1] * shape[2]),
            arrays.scatter_add(along[1], row, setup.rows),
        )
        return tuple(one + two for one, two in zip(sums, found, strict=True))

    wide = arrays.dtype_of(frames.u)
    start = (
        *(arrays.zeros((dims, views), wide, x) for _ in range(5)),
        arrays.zeros((3, shape[0] * shape[1] * shape[2]), wide, x),
        arrays.zeros((setup.rows,), wide, x),
    )
    sums = arrays.loop(batches(setup), add, start)
    vectors = [xp.permute_dims(part, (1, 0)) for part in sums[:5]]
    cells = xp.reshape(xp.permute_dims(sums[5], (1, 0)), shape)
    return (*chain.pulled(at, vectors), cells, sums[6])


def _places(pieces: Pieces, used: Array) -> Array:
    """Flat positions of the pieces that count, -1 for others."""
    xp = arrays.namespace(used)
    return xp.reshape(xp.where(used, pieces.index, xp.full_like(pieces.index, -1)), (-1,))


def unit(vectors: Array) -> Array:
    """Vectors `(n, dims)` of length 1."""
    xp = arrays.namespace(vectors)
    return vectors / xp.sqrt(xp.sum(vectors * vectors, axis=-1))[:, None]


def straight(setup: Setup, at: MovingFrames) -> MovingFrames:
    """Frames whose axes and directions have length 1."""
    return at._replace(
        first=unit(at.first) if setup.parallel else at.first,
        u=unit(at.u),
        v=None if at.v is None else unit(at.v),
    )


def _unit_moves(setup: Setup, at: MovingFrames, move: MovingFrames) -> MovingFrames:
    return move._replace(
        first=_projected(at.first, move.first) if setup.parallel else move.first,
        u=_projected(at.u, move.u),
        v=None if at.v is None or move.v is None else _projected(at.v, move.v),
    )


def _projected(vectors: Array, moves: Array) -> Array:
    """The derivative of `unit`, which is its own transpose."""
    xp = arrays.namespace(vectors)
    size = xp.sqrt(xp.sum(vectors * vectors, axis=-1))[:, None]
    straight = vectors / size
    return (moves - straight * xp.sum(straight * moves, axis=-1)[:, None]) / size


def _normal_moves(frames: MovingFrames, moved: MovingFrames) -> tuple[Array, Array]:
    xp = arrays.namespace(frames.u)
    normal = normals(frames.vectors)
    if frames.v is None:
        return normal, xp.stack([-moved.u[:, 1], moved.u[:, 0]], axis=1)
    assert moved.v is not None
    raw = cross(moved.v, frames.u) + cross(frames.v, moved.u)
    return normal, _projected(cross(frames.v, frames.u), raw)


def _normal_pulled(frames: MovingFrames, normal: Array, g: Array) -> tuple[Array, Array | None]:
    xp = arrays.namespace(g)
    if frames.v is None:
        return xp.stack([g[:, 1], -g[:, 0]], axis=1), None
    h = _projected(cross(frames.v, frames.u), g)
    return cross(h, frames.v), cross(frames.u, h)


def _third(frames: MovingFrames) -> Array:
    if frames.v is not None:
        return frames.v
    return arrays.namespace(frames.u).zeros_like(frames.u)


def _cells(frames: MovingFrames, view: Array, row: Array, col: Array) -> tuple[Array, Array, Array]:
    """Offsets of cells along u, v and n, `(R, 1)` each."""
    xp = arrays.namespace(frames.offsets)
    count, rows, cols, _ = frames.offsets.shape
    place = (view if count > 1 else 0 * view) * rows + (row if rows > 1 else 0 * row)
    found = xp.take(xp.reshape(frames.offsets, (-1, 3)), place * cols + col, axis=0)
    height = xp.take(frames.heights, row, axis=0)[:, None]
    return found[:, 0:1], found[:, 1:2] + height, found[:, 2:3]


def _basis(k: int, dims: int, like: Array) -> np.ndarray:
    return np.eye(dims, dtype=arrays.dtype_of(like))[k : k + 1]
