"""Hypothesis strategies: spaces, vectors, operators, and trees of them with their matrices.

Needs Hypothesis, so neither `linops` nor `linops.testing` imports this module. Everything is drawn
as NumPy; tests of another namespace convert at the edge.

>>> from hypothesis import given
>>> from linops.testing.strategies import compositions
>>> @given(compositions())
... def test_matrix(pair):
...     A, dense = pair
...     assert A.to_dense().shape == dense.shape
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from linops.linear_operator import LinearOperator
from linops.space import AnySpace, ProductSpace, Space
from linops.testing.dot import unit
from linops.testing.leaves import Drawn, leaf
from linops.testing.realified import complex_matrix
from linops.testing.trees import tree, under_a_last_view

__all__ = ["compositions", "operators", "spaces", "trees", "vectors"]

DTYPES = ("float32", "float64", "complex64", "complex128")


@st.composite
def spaces(
    draw: st.DrawFn,
    max_size: int = 30,
    max_ndim: int = 3,
    dtypes: tuple[str, ...] = DTYPES,
) -> Space:
    """Plain spaces of 1 to `max_size` entries and 1 to `max_ndim` axes, axes of length 1 included.

    Names and spacings of the axes are there or not.

    >>> spaces(max_size=6, dtypes=("float32",)).example().size <= 6  # doctest: +SKIP
    True
    """
    shape: list[int] = []
    for _ in range(draw(st.integers(1, max_ndim))):
        shape.append(draw(st.integers(1, min(5, max_size // math.prod(shape)))))
    dtype = draw(st.sampled_from(dtypes))
    axes = ("z", "y", "x")[-len(shape) :] if len(shape) <= 3 and draw(st.booleans()) else None
    steps = st.sampled_from([1.0, 0.5, 2.0])
    spacing = tuple(draw(steps) for _ in shape) if draw(st.booleans()) else None
    return Space(tuple(shape), dtype, axes, spacing)


def vectors(space: AnySpace) -> st.SearchStrategy[Any]:
    """Elements of `space`: basis vectors, Gaussians, and arrays that shrink to few non-zeros.

    The elements of a product space are tuples.

    >>> vectors(Space(3)).example().shape  # doctest: +SKIP
    (3,)
    """
    kinds: list[st.SearchStrategy[Any]] = []
    if space.size:
        kinds.append(st.integers(0, space.size - 1).map(lambda i: unit(space, i)))
    kinds.append(_gaussians(space))
    free = [_free(member) for member in space.members]
    kinds.append(st.tuples(*free) if isinstance(space, ProductSpace) else free[0])
    return st.one_of(kinds)


@st.composite
def operators(
    draw: st.DrawFn, domain: Space | None = None, *, real_linear: bool = True
) -> tuple[LinearOperator, np.ndarray]:
    """Every elementary operator, each with a matrix that NumPy makes without it.

    Parameters
    ----------
    domain
        Of every operator that is drawn; one of `spaces()` by default.
    real_linear
        Whether operators from real to complex values are drawn too. Their matrix is complex, and
        that of the adjoint is the real part of its conjugate transpose.

    Returns
    -------
    strategy of (LinearOperator, array)
        The matrix has the shape `A.shape`, in double precision.

    >>> A, dense = operators().example()  # doctest: +SKIP
    """
    space = draw(spaces()) if domain is None else domain
    A, matrix, _ = leaf(draw, space, real_linear=real_linear)
    return A, complex_matrix(matrix, A.domain, A.codomain)


@st.composite
def compositions(
    draw: st.DrawFn, max_depth: int = 3, max_size: int = 12
) -> tuple[LinearOperator, np.ndarray]:
    """Trees of everything that composes, with matrices from those of their parts.

    Leaves are those of `operators(real_linear=False)`: over the reals complex operators have no
    matrix of their own. The nodes are `@`, `+`, `-`, scalars, `.H`, `.T`, `.conj()`, powers,
    grams, columns, vstack, hstack, block_diagonal, concat, kron, and changes of precision. The
    matrix of a node is computed by NumPy from those of its members, so it is that of the tree as
    it was written, before the algebra simplifies it.

    Parameters
    ----------
    max_depth
        Nodes on top of each other, below a last `.H`, `.T`, `.conj()`, gram or columns.
    max_size
        Entries of the domain of the innermost leaves.

    >>> A, dense = compositions(max_depth=2).example()  # doctest: +SKIP
    """
    A, matrix, _ = draw(trees(max_depth, max_size))
    return A, complex_matrix(matrix, A.domain, A.codomain)


@st.composite
def trees(
    draw: st.DrawFn, max_depth: int = 3, max_size: int = 12, *, real_linear: bool = True
) -> Drawn:
    """As `compositions`, with real matrices that serve R-linear operators too (see `Drawn`)."""
    first = draw(spaces(max_size))
    domain: AnySpace = first
    if draw(st.integers(0, 5)) == 0:
        domain = ProductSpace([first, draw(spaces(max_size, dtypes=(first.dtype.name,)))])
    drawn = tree(draw, domain, draw(st.integers(0, max_depth)), real_linear=real_linear)
    return under_a_last_view(draw, drawn)


@st.composite
def _gaussians(draw: st.DrawFn, space: AnySpace) -> Any:
    # Half of the windows start at entry 0, so many vectors are full; a failure moves the start
    # as far back as it can and then shortens the window to one entry.
    seed, n = draw(st.integers(0, 999)), max(space.size, 1)
    start = max(n - 1 - draw(st.integers(0, 2 * n - 1)), 0)
    stop = start + draw(st.sampled_from([1, n]))
    values = space.random(seed)
    parts, offset = [], 0
    for part in values if isinstance(values, tuple) else (values,):
        position = offset + np.arange(part.size).reshape(part.shape)
        kept = (position >= start) & (position < stop)
        parts.append(np.where(kept, part, np.zeros_like(part)))
        offset += part.size
    return tuple(parts) if isinstance(space, ProductSpace) else parts[0]


def _free(space: Space) -> st.SearchStrategy[np.ndarray]:
    width: Any = 64 if space.dtype in ("float64", "complex128") else 32
    width = 16 if space.dtype == "float16" else width
    limits: dict[str, Any] = dict(allow_nan=False, allow_infinity=False, allow_subnormal=False)
    if space.is_complex:
        numbers: Any = st.complex_numbers(max_magnitude=100, width=2 * width, **limits)
    else:
        numbers = st.floats(-100, 100, width=width, **limits)
    return hnp.arrays(space.dtype, space.shape, elements=numbers, fill=st.just(0))
