"""Differences from cells to faces along one axis, and spaces of faces.

Face `f` is the left one of cell `f`; an axis of n cells has n + 1 faces, n if it is periodic. The
way back is minus the adjoint, with weight 1/2 on the two outer faces of an odd wall: there the
field of faces is even about the wall, which counts it twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linops.elementary.diagonal import Diagonal
from linops.elementary.identity import Identity
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.space import Space
from linops.stencils.boundary import Sides, constants, linear_part, sides
from linops.stencils.declaration import offsets_along
from linops.stencils.stencil import Stencil
from linops.stencils.weights import staggered

__all__ = ["face_weights", "faces_of", "from_faces", "named_sides", "to_faces"]


def named_sides(boundary: Any, space: Space, owner: str) -> tuple[tuple[str, str], ...]:
    """The boundary of each axis, constants refused.

    Raises
    ------
    ShapeError
        For a product space, or one without axes.
    ValueError
        For a constant other than 0.
    """
    if not isinstance(space, Space) or space.ndim == 0:
        raise ShapeError(f"{owner} takes a space with one or more axes, got {space}")
    pairs: tuple[Sides, ...] = sides(boundary, space.ndim, owner)
    if constants(pairs):
        raise ValueError(f"{owner} is linear: its boundaries are names, got {boundary!r}")
    return linear_part(pairs)


def to_faces(
    space: Space, axis: int, order: int, pairs: tuple[tuple[str, str], ...], name: str
) -> Stencil:
    """The staggered first derivative along one axis."""
    h = (space.spacing or (1.0,) * space.ndim)[axis]
    taps = {o: w / h for o, w in staggered(order).items()}
    where = ["face" if a == axis else "cell" for a in range(space.ndim)]
    rest = tuple(pair if a == axis else ("zero", "zero") for a, pair in enumerate(pairs))
    return Stencil(space, offsets_along(axis, space.ndim, taps), rest, target=where, name=name)


def from_faces(difference: Stencil, axis: int) -> LinearOperator:
    """The derivative from faces back to cells: minus the adjoint, outer faces weighted."""
    back: LinearOperator = -(difference.H @ face_weights(difference, axis))
    return back


def face_weights(difference: Stencil, axis: int) -> LinearOperator:
    """The weights of the faces of a staggered difference: 1/2 on an odd wall, else 1."""
    space = difference.codomain
    pair = difference._lines[0][axis].pair
    if "odd" not in pair or space.shape[axis] < 2:
        return Identity(space)
    row = np.ones(space.shape[axis], np.float32 if space.dtype.itemsize < 8 else np.float64)
    if pair[0] == "odd":
        row[0] = 0.5
    if pair[1] == "odd":
        row[-1] = 0.5
    shape = [1] * space.ndim
    shape[axis] = -1
    return Diagonal(np.broadcast_to(row.reshape(shape), space.shape).copy(), space)


def faces_of(space: Space, axis: int, pair: tuple[str, str]) -> Space:
    """The space of the faces of a grid along one axis."""
    if pair[0] == "periodic":
        return space
    shape = list(space.shape)
    shape[axis] += 1
    return Space(tuple(shape), space.dtype, space.axes, space.spacing)
