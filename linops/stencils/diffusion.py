"""Diffusion with a variable coefficient: on faces, or as a full tensor on vertices."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.algebra.gram import Gram
from linops.algebra.scaled import ScaledLinear
from linops.algebra.sums import LinearSum
from linops.arrays import Array
from linops.elementary.diagonal import Diagonal
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.space import Space
from linops.stencils.derivatives import StaggeredGradient
from linops.stencils.faces import named_sides
from linops.stencils.slices import framed_input, shifted
from linops.stencils.stencil import Stencil
from linops.stencils.weights import checked_order

__all__ = ["Diffusion", "on_faces"]


class Diffusion(ScaledLinear):
    """`div(kappa grad u)`, self-adjoint and negative semidefinite.

    Parameters
    ----------
    space
        Domain and codomain.
    kappa
        A number; the values in cells, an array of the space's shape; those on faces, a tuple of
        one array an axis; or a tensor on vertices, shape `(ndim, ndim, *vertices)`. Derivatives
        in it follow from building the operator inside the function that is differentiated.
    order
        Order of accuracy of the differences: 2, 4, 6 or 8 (2 with a tensor).
    boundary
        As for `Stencil`; `"even"` lets nothing through the walls.
    mean
        How values in cells become values on faces: `"arithmetic"`, or `"harmonic"`, which is right
        for interfaces between materials.

    Notes
    -----
    `-(G.H @ W @ K @ G)`, axis by axis, with G the staggered gradient and W its weights. Explicit
    Euler steps are stable for `dt <= h^2 / (2 d max(kappa))`, and with order 2 they then keep to
    the bounds of the data. The tensor form `(Gv u)_x = (u11 + u10 - u01 - u00) / (2 h)` over the
    four cells round a vertex does not see a checkerboard: for a diagonal tensor take faces.

    >>> import numpy as np
    >>> A = Diffusion(Space(3), np.array([1.0, 1.0, 3.0]))
    >>> A @ np.array([1, 0, 0], "float32")
    array([-1.,  1.,  0.], dtype=float32)
    """

    _exact: ClassVar[bool] = True

    def __init__(
        self,
        space: Space,
        kappa: Any,
        order: int = 2,
        boundary: Any = "even",
        mean: str = "arithmetic",
    ) -> None:
        order = checked_order(order, "Diffusion")
        pairs = named_sides(boundary, space, "Diffusion")
        if mean not in ("arithmetic", "harmonic"):
            raise ValueError(f"Diffusion: the mean is 'arithmetic' or 'harmonic', got {mean!r}")
        if not isinstance(kappa, tuple) and not arrays.is_array(kappa):
            kappa = np.asarray(kappa)
        tensor = arrays.is_array(kappa) and kappa.ndim == space.ndim + 2
        if tensor:
            if order != 2:
                raise ValueError(f"Diffusion: with a tensor the order is 2, got {order}")
            inner: LinearOperator = Gram(*_on_vertices(space, kappa, pairs))
        else:
            base = StaggeredGradient(space, order, pairs)
            weights = on_faces(base, space, kappa, pairs, mean)
            # Axis by axis, where cells and faces stay aligned.
            terms = [Gram(term, w) for term, w in zip(base.terms, weights, strict=True)]
            inner = terms[0] if len(terms) == 1 else LinearSum(terms)
        super().__init__(-1.0, inner)
        self.__dict__["name"] = "Diffusion"


def on_faces(
    base: StaggeredGradient,
    space: Space,
    kappa: Any,
    pairs: tuple[tuple[str, str], ...],
    mean: str,
    weighted: bool = True,
) -> list[LinearOperator]:
    """Multiplication by a field's values on the faces of each axis, and by their weights."""
    faces = [term.codomain for term in base.terms]
    if not isinstance(kappa, tuple) and not arrays.is_array(kappa):
        kappa = np.asarray(kappa)
    if isinstance(kappa, tuple):
        if len(kappa) != space.ndim:
            raise ShapeError(
                f"Diffusion: values on faces are one array for each of the {space.ndim} axes, got "
                f"{len(kappa)}"
            )
        fields = [k if arrays.is_array(k) else np.asarray(k) for k in kappa]
    else:
        if kappa.ndim and tuple(kappa.shape) != space.shape:
            raise ShapeError(
                f"Diffusion: kappa is a number, values in cells {space.shape}, a tuple of values on"
                f" faces, or a tensor on vertices, got shape {tuple(kappa.shape)}"
            )
        fields = [
            _meant(kappa, axis, space, pairs[axis], mean) if kappa.ndim else kappa
            for axis in range(space.ndim)
        ]
    parts: list[LinearOperator] = []
    for axis, (field, face, term) in enumerate(zip(fields, faces, base.terms, strict=True)):
        assert isinstance(face, Space)
        if field.ndim and tuple(field.shape) != face.shape:
            raise ShapeError(
                f"Diffusion: kappa on the faces of axis {axis} has the shape {face.shape}, got "
                f"{tuple(field.shape)}"
            )
        if weighted or not field.ndim:
            field = _weighted(field, face, axis, term, weighted)
        parts.append(Diagonal(field, face))
    return parts


def _meant(kappa: Array, axis: int, space: Space, pair: tuple[str, str], mean: str) -> Array:
    """The mean of the cells on both sides of each face; beyond a wall is the cell within."""
    ring = pair[0] == "periodic"
    n = space.shape[axis]
    sides = pair if ring else ("edge", "edge")
    where = tuple("face" if a == axis else "cell" for a in range(space.ndim))
    shape = Stencil(
        Space(space.shape, "float64"),
        {tuple(-int(a == axis) for a in range(space.ndim)): 1.0, (0,) * space.ndim: 1.0},
        tuple(sides if a == axis else ("zero", "zero") for a in range(space.ndim)),
        target=where,
    )
    if n == 0:
        return arrays.zeros(shape.codomain.shape, arrays.dtype_of(kappa), kappa)
    lines = shape._lines[0]
    frame = framed_input(kappa, lines, shape.starts)
    left, right = (shifted(frame, lines, tap.offset) for tap in shape._taps)
    if mean == "arithmetic":
        return (left + right) * 0.5
    total = left + right
    xp = arrays.namespace(total)
    safe = xp.where(total == 0, xp.ones_like(total), total)
    return 2.0 * left * right / safe


def _weighted(field: Array, face: Space, axis: int, term: Any, weighted: bool) -> Array:
    """Values on faces times the weights of the faces."""
    row = np.ones(face.shape[axis])
    pair = term._lines[0][axis].pair
    if weighted and face.shape[axis] > 1:
        row[0] = 0.5 if pair[0] == "odd" else 1.0
        row[-1] = 0.5 if pair[1] == "odd" else 1.0
    shape = [1] * face.ndim
    shape[axis] = -1
    whole = np.broadcast_to(row.reshape(shape), face.shape)
    weights = arrays.cast(arrays.convert(whole.copy(), field), arrays.dtype_of(field))
    return field * weights


def _on_vertices(
    space: Space, kappa: Array, pairs: tuple[tuple[str, str], ...]
) -> tuple[Stencil, LinearOperator]:
    n = space.ndim
    steps = space.spacing or (1.0,) * n
    around = list(itertools.product((-1, 0), repeat=n))
    tables = {
        (a, 0): {o: (1 if o[a] == 0 else -1) / (2 ** (n - 1) * steps[a]) for o in around}
        for a in range(n)
    }
    base = Stencil(
        space, tables, pairs, target="vertex", components=(n, None), name="VertexGradient"
    )
    vertices = base.codomain.shape[1:]
    if tuple(kappa.shape) != (n, n, *vertices):
        raise ShapeError(
            f"Diffusion: a tensor on vertices has the shape {(n, n, *vertices)}, got "
            f"{tuple(kappa.shape)}"
        )
    weight = np.ones(vertices)
    for axis, pair in enumerate(pairs):
        row = np.ones(vertices[axis])
        if len(row) > 1:
            row[0] *= 0.5 if pair[0] == "odd" else 1.0
            row[-1] *= 0.5 if pair[1] == "odd" else 1.0
        weight = weight * row.reshape([-1 if a == axis else 1 for a in range(n)])
    held = arrays.cast(arrays.convert(weight, kappa), arrays.dtype_of(kappa))
    taps = {
        (a, b): {(0,) * n: kappa[a, b, ...] * held}
        for a, b in itertools.product(range(n), repeat=2)
    }
    symmetric = arrays.is_concrete(kappa) and not arrays.requires_gradient(kappa)
    if symmetric:
        host = arrays.to_numpy(kappa)
        symmetric = bool((host == np.swapaxes(host, 0, 1).conj()).all())
        if not symmetric:
            raise ValueError("Diffusion: the tensor kappa is symmetric, kappa[a, b] == kappa[b, a]")
    tensor = Stencil(
        base.codomain,
        taps,
        tuple("zero" if pair[0] != "periodic" else "periodic" for pair in pairs),
        components=(n, n),
        name="Tensor",
        tags=("self_adjoint",),
    )
    return base, tensor
