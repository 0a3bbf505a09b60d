"""Gradient and divergence of orders 2 to 8, collocated and staggered.

Collocated, `Divergence == -Gradient.T` for every boundary named alike, because even and odd change
places under a derivative. Staggered, gradients stand on faces: `D == -(G.H @ G.face_weights)`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from linops.algebra.stacks import HStack, VStack, block_diagonal
from linops.linear_operator import LinearOperator
from linops.space import Space
from linops.stencils.boundary import flipped
from linops.stencils.declaration import offsets_along
from linops.stencils.faces import face_weights, from_faces, named_sides, to_faces
from linops.stencils.stencil import Stencil
from linops.stencils.weights import central, checked_order

__all__ = ["Divergence", "Gradient", "StaggeredDivergence", "StaggeredGradient"]


class Gradient(Stencil):
    """First derivatives along every axis, of order 2 to 8.

    Parameters
    ----------
    space
        The domain; distances are its spacing, 1 where it has none.
    order
        Order of accuracy: 2, 4, 6 or 8.
    boundary
        As for `Stencil`.
    staggered
        Whether derivatives stand on faces: the codomain is then the product of the spaces of
        faces, in the order of the axes. Else it has a first axis `component`, in that order.

    Notes
    -----
    Central differences do not see a field that alternates from cell to cell; total variation
    takes `linops.Gradient`, the forward differences.

    >>> import numpy as np
    >>> G = Gradient(Space(4), boundary="periodic")
    >>> G @ np.array([0, 1, 0, 0], "float32")
    array([[ 0.5,  0. , -0.5,  0. ]], dtype=float32)
    """

    def __new__(cls, *args: Any, staggered: bool = False, **options: Any) -> Any:
        if staggered or (len(args) > 3 and args[3]):
            return StaggeredGradient(*args[:3], **options)
        return super().__new__(cls, *args, **options)

    def __init__(
        self, space: Space, order: int = 2, boundary: Any = "zero", staggered: bool = False
    ) -> None:
        order, n = checked_order(order, "Gradient"), _ndim(space, "Gradient")
        steps = space.spacing or (1.0,) * n
        tables = {
            (a, 0): offsets_along(a, n, {o: w / steps[a] for o, w in central(order).items()})
            for a in range(n)
        }
        super().__init__(space, tables, boundary, components=(n, None), name="Gradient")


class Divergence(Stencil):
    """The sum of the derivatives of each component along its own axis.

    Parameters
    ----------
    space
        The codomain, a grid without components. The domain has a first axis `component`, or is
        the product of the spaces of faces where `staggered`.
    order, staggered
        As for `Gradient`.
    boundary
        That of the scalar whose gradient this is the way back from: at `"even"` the component
        across the wall is odd (nothing flows through it), at `"odd"` it is even.

    Notes
    -----
    `Divergence(space, ...) == -Gradient(space, ...).T`, on faces up to the weights of odd walls.
    """

    def __new__(cls, *args: Any, staggered: bool = False, **options: Any) -> Any:
        if staggered or (len(args) > 3 and args[3]):
            return StaggeredDivergence(*args[:3], **options)
        return object.__new__(cls)

    def __init__(
        self, space: Space, order: int = 2, boundary: Any = "zero", staggered: bool = False
    ) -> None:
        order, n = checked_order(order, "Divergence"), _ndim(space, "Divergence")
        pairs = named_sides(boundary, space, "Divergence")
        steps = space.spacing or (1.0,) * n
        tables = {
            (0, a): offsets_along(a, n, {o: w / steps[a] for o, w in central(order).items()})
            for a in range(n)
        }
        own = [
            tuple(flipped(pair) if a == b else pair for b, pair in enumerate(pairs))
            for a in range(n)
        ]
        vectors = with_components(space, n)
        super().__init__(
            vectors, tables, own if n > 1 else own[0], components=(None, n), name="Divergence"
        )


class StaggeredGradient(VStack):
    """First derivatives on the faces of every axis; made by `Gradient(..., staggered=True)`."""

    _exact: ClassVar[bool] = True

    def __init__(self, space: Space, order: int = 2, boundary: Any = "zero") -> None:
        order = checked_order(order, "Gradient")
        pairs = named_sides(boundary, space, "Gradient")
        super().__init__([to_faces(space, a, order, pairs, "Gradient") for a in range(space.ndim)])
        self.__dict__["name"] = "Gradient"

    @cached_property
    def face_weights(self) -> LinearOperator:
        """W on the product of faces: the divergence is `-(G.H @ W)`."""
        return block_diagonal([face_weights(term, a) for a, term in enumerate(self.terms)])


class StaggeredDivergence(HStack):
    """The divergence of a field on faces; made by `Divergence(..., staggered=True)`."""

    _exact: ClassVar[bool] = True

    def __init__(self, space: Space, order: int = 2, boundary: Any = "zero") -> None:
        order = checked_order(order, "Divergence")
        pairs = named_sides(boundary, space, "Divergence")
        super().__init__(
            [
                from_faces(to_faces(space, a, order, pairs, "Divergence"), a)
                for a in range(space.ndim)
            ]
        )
        self.__dict__["name"] = "Divergence"


def with_components(space: Space, n: int) -> Space:
    """The space of `n` components on a grid."""
    from linops.relations import fresh_name

    axes = None
    if space.axes is not None:
        axes = (fresh_name("component", set(space.axes)), *space.axes)
    return Space((n, *space.shape), space.dtype, axes)


def _ndim(space: Space, owner: str) -> int:
    named_sides("zero", space, owner)
    return space.ndim
