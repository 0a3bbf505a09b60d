"""The curl, right-handed in (x, y, z) although components are stored in the order of the axes."""

from __future__ import annotations

from typing import Any

from linops.algebra.stacks import hstack, vstack
from linops.elementary.identity import Zero
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.space import Space
from linops.stencils.declaration import offsets_along
from linops.stencils.derivatives import with_components
from linops.stencils.faces import faces_of, from_faces, named_sides, to_faces
from linops.stencils.stencil import Stencil
from linops.stencils.weights import central, checked_order

__all__ = ["Curl"]


class Curl(Stencil):
    """`(curl v)_x = d_y v_z - d_z v_y`, and cyclic; in two dimensions `d_x v_y - d_y v_x`.

    Parameters
    ----------
    space
        A grid of two or three axes, `(y, x)` or `(z, y, x)`, without components.
    order
        Order of accuracy: 2, 4, 6 or 8.
    boundary
        That of the scalar of which the field may be the gradient: it is taken along the axes
        across which components are differentiated.
    staggered
        Components on faces are mapped to edges (in two dimensions to vertices): product spaces in
        the order of the axes.
    source
        With `staggered`: `"faces"`, or `"edges"` for the way back from edges to faces.

    Notes
    -----
    In three dimensions components are stored as (z, y, x). On the staggered grid the curl of a
    `Gradient` and the `Divergence` of a curl from edges vanish to rounding.
    """

    def __new__(cls, *args: Any, **options: Any) -> Any:
        names = ("space", "order", "boundary", "staggered", "source")
        given = {**dict(zip(names, args, strict=False)), **options}
        if given.pop("staggered", False):
            return _staggered_curl(**given)
        return object.__new__(cls)

    def __init__(
        self,
        space: Space,
        order: int = 2,
        boundary: Any = "zero",
        staggered: bool = False,
        source: str = "faces",
    ) -> None:
        order = checked_order(order, "Curl")
        pairs = named_sides(boundary, space, "Curl")
        n = _checked(space)
        steps = space.spacing or (1.0,) * n
        tables: dict[tuple[int, int], dict[tuple[int, ...], float]] = {}
        for output, terms in enumerate(_terms(n)):
            for sign, axis, number in terms:
                row = {o: sign * w / steps[axis] for o, w in central(order).items()}
                tables[output, number] = offsets_along(axis, n, row)
        outputs = 3 if n == 3 else None
        super().__init__(
            with_components(space, n), tables, pairs, components=(outputs, n), name="Curl"
        )


def _terms(n: int) -> list[list[tuple[int, int, int]]]:
    """For each component of the result: sign, axis of the derivative, component of the field."""
    if n == 2:  # axes (y, x)
        return [[(1, 1, 0), (-1, 0, 1)]]
    # axes (z, y, x): z from (x, y), y from (z, x), x from (y, z)
    return [[(1, 2, 1), (-1, 1, 2)], [(1, 0, 2), (-1, 2, 0)], [(1, 1, 0), (-1, 0, 1)]]


def _checked(space: Space) -> int:
    if space.ndim not in (2, 3):
        raise ShapeError(f"Curl takes a grid of two or three axes, got {space}")
    return space.ndim


def _staggered_curl(
    space: Space, order: int = 2, boundary: Any = "zero", source: str = "faces"
) -> LinearOperator:
    order = checked_order(order, "Curl")
    pairs = named_sides(boundary, space, "Curl")
    n = _checked(space)
    if source not in ("faces", "edges"):
        raise ValueError(f"Curl maps from 'faces' or 'edges', got {source!r}")
    if n == 2:
        return _planar(space, order, pairs, source)
    faces = [faces_of(space, a, pairs[a]) for a in range(3)]
    edges = [_edges(space, a, pairs) for a in range(3)]
    rows = []
    for output, terms in enumerate(_terms(3)):
        row: list[LinearOperator | None] = [None] * 3
        for sign, axis, number in terms:
            if source == "faces":
                part: LinearOperator = to_faces(faces[number], axis, order, pairs, "Curl")
            else:
                # The edge along `number` is on a face along `axis`: back to the cells between.
                inner = faces[output]
                part = from_faces(to_faces(inner, axis, order, pairs, "Curl"), axis)
            row[number] = sign * part
        left, right = (edges, faces) if source == "faces" else (faces, edges)
        rows.append(
            hstack(
                [
                    Zero(right[k], left[output]) if part is None else part
                    for k, part in enumerate(row)
                ]
            )
        )
    return vstack(rows)


def _planar(
    space: Space, order: int, pairs: tuple[tuple[str, str], ...], source: str
) -> LinearOperator:
    faces = [faces_of(space, a, pairs[a]) for a in range(2)]
    if source == "faces":
        return hstack(
            [
                sign * to_faces(faces[number], axis, order, pairs, "Curl")
                for sign, axis, number in sorted(_terms(2)[0], key=lambda term: term[2])
            ]
        )
    # The rotated gradient, from vertices to faces: (v_y, v_x) = (-d_x w, d_y w).
    return vstack(
        [
            -1 * from_faces(to_faces(faces[0], 1, order, pairs, "Curl"), 1),
            1 * from_faces(to_faces(faces[1], 0, order, pairs, "Curl"), 0),
        ]
    )


def _edges(space: Space, axis: int, pairs: tuple[tuple[str, str], ...]) -> Space:
    """Edges along an axis stand on faces along both others."""
    for other in range(3):
        if other != axis:
            space = faces_of(space, other, pairs[other])
    return space
