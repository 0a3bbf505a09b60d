"""Advection in conservative flux form: upwind, central, and the energy-keeping skew split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.algebra.composition import Product
from linops.algebra.scaled import ScaledLinear
from linops.algebra.sums import LinearSum
from linops.arrays import Array
from linops.elementary.diagonal import Diagonal
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.space import Space
from linops.stencils.declaration import offsets_along
from linops.stencils.faces import faces_of, named_sides
from linops.stencils.stencil import Stencil
from linops.stencils.weights import central

__all__ = ["Advection"]

_UPWIND: dict[str, dict[int, float]] = {
    # Value at the face from the cells beside it, for a velocity towards larger indices.
    "upwind1": {-1: 1.0},
    "upwind3": {-2: -1 / 6, -1: 5 / 6, 0: 2 / 6},
}
_CENTRAL: dict[str, dict[int, float]] = {
    "central2": {-1: 0.5, 0: 0.5},
    "central4": {-2: -1 / 12, -1: 7 / 12, 0: 7 / 12, 1: -1 / 12},
}
_SKEW = {"skew": 2, "skew2": 2, "skew4": 4}


class Advection(LinearSum):
    """`-div(a u)` for a given velocity a.

    Parameters
    ----------
    space
        Domain and codomain.
    velocity
        One entry an axis (or one alone in one dimension): a number, or an array on the faces of
        that axis (in cells for the skew form). Derivatives in it follow from building the
        operator inside the function that is differentiated.
    scheme
        The value at a face: `"upwind1"`, `"upwind3"`, `"central2"`, `"central4"`; or `"skew"`
        (`"skew4"`), the mean of `-D(a u)` and `-a D u` with central differences D: exactly skew, so
        that the implicit midpoint rule keeps the norm.
    boundary
        As for `Stencil`, without constants.

    Notes
    -----
    `-(F[i+1/2] - F[i-1/2]) / h`: what leaves a cell enters its neighbor. The derivative of
    upwind fluxes at a velocity of exactly 0 is that from the right.

    >>> import numpy as np
    >>> A = Advection(Space(4), 1.0)
    >>> A @ np.array([1, 0, 0, 0], "float32")
    array([-1.,  1.,  0.,  0.], dtype=float32)
    """

    _exact: ClassVar[bool] = True

    def __init__(
        self, space: Space, velocity: Any, scheme: str = "upwind1", boundary: Any = "periodic"
    ) -> None:
        pairs = named_sides(boundary, space, "Advection")
        if scheme not in (*_UPWIND, *_CENTRAL, *_SKEW):
            raise ValueError(
                f"Advection: the scheme is one of {', '.join((*_UPWIND, *_CENTRAL, *_SKEW))}, got "
                f"{scheme!r}"
            )
        several = isinstance(velocity, (tuple, list)) or (
            isinstance(velocity, np.ndarray) and velocity.shape == (space.ndim,) != space.shape
        )
        each = list(velocity) if several else [velocity]
        if len(each) != space.ndim:
            raise ShapeError(
                f"Advection: the velocity is one entry for each of the {space.ndim} axes, got "
                f"{len(each)}"
            )
        make = _skew if scheme in _SKEW else _flux
        super().__init__([make(space, a, v, scheme, pairs) for a, v in enumerate(each)])
        self.__dict__["name"] = "Advection"


def _flux(
    space: Space, axis: int, velocity: Any, scheme: str, pairs: tuple[tuple[str, str], ...]
) -> LinearOperator:
    n, h = space.ndim, (space.spacing or (1.0,) * space.ndim)[axis]
    where = ["face" if a == axis else "cell" for a in range(n)]
    own = tuple(pair if a == axis else ("zero", "zero") for a, pair in enumerate(pairs))
    faces = faces_of(space, axis, pairs[axis])
    taps: dict[tuple[int, ...], Any]
    if arrays.is_array(velocity) and velocity.ndim:
        if tuple(velocity.shape) != faces.shape:
            raise ShapeError(
                f"Advection: velocities along axis {axis} are on its faces, shape {faces.shape}, "
                f"got {tuple(velocity.shape)}"
            )
        terms = [
            Product([Diagonal(field, faces), _face_values(space, axis, table, own, where)])
            for table, field in _parts(scheme, velocity)
        ]
        value: LinearOperator = terms[0] if len(terms) == 1 else LinearSum(terms)
    else:
        a = float(velocity)
        table = _CENTRAL.get(scheme) or (_UPWIND[scheme] if a >= 0 else _mirror(_UPWIND[scheme]))
        value = _face_values(space, axis, {o: a * w for o, w in table.items()}, own, where)
    ends = tuple(
        ("periodic", "periodic") if a == axis and pair[0] == "periodic" else ("zero", "zero")
        for a, pair in enumerate(pairs)
    )
    taps = offsets_along(axis, n, {0: 1.0 / h, 1: -1.0 / h})
    outflow = Stencil(faces, taps, ends, source=where, name="Outflow")
    return Product([outflow, value])


def _face_values(
    space: Space, axis: int, table: Mapping[int, float], own: Any, where: Any
) -> Stencil:
    return Stencil(
        space, offsets_along(axis, space.ndim, table), own, target=where, name="FaceValue"
    )


def _parts(scheme: str, velocity: Array) -> list[tuple[Mapping[int, float], Array]]:
    """Tables with the velocities that they are for: of one sign where they are upwind."""
    if scheme in _CENTRAL:
        return [(_CENTRAL[scheme], velocity)]
    xp = arrays.namespace(velocity)
    zero = xp.zeros_like(velocity)
    forward = velocity >= 0
    return [
        (_UPWIND[scheme], xp.where(forward, velocity, zero)),
        (_mirror(_UPWIND[scheme]), xp.where(forward, zero, velocity)),
    ]


def _mirror(table: Mapping[int, float]) -> dict[int, float]:
    return {-1 - o: w for o, w in table.items()}


def _skew(
    space: Space, axis: int, velocity: Any, scheme: str, pairs: tuple[tuple[str, str], ...]
) -> LinearOperator:
    h = (space.spacing or (1.0,) * space.ndim)[axis]
    table = offsets_along(axis, space.ndim, {o: w / h for o, w in central(_SKEW[scheme]).items()})
    own = tuple(pair if a == axis else ("zero", "zero") for a, pair in enumerate(pairs))
    D = Stencil(space, table, own, name="Derivative")
    if not (arrays.is_array(velocity) and velocity.ndim):
        return ScaledLinear(-float(velocity), D)
    if tuple(velocity.shape) != space.shape:
        raise ShapeError(
            f"Advection: velocities of the skew form are in cells, shape {space.shape}, got "
            f"{tuple(velocity.shape)}"
        )
    half = Diagonal(velocity * -0.5, space)
    return LinearSum([Product([D, half]), Product([half, D])])
