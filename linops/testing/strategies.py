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

import linops as lo
from linops.operator import LinearOperator
from linops.space import AnySpace, ProductSpace, Space
from linops.testing.dot import unit

__all__ = ["compositions", "operators", "spaces", "vectors"]

DTYPES = ("float32", "float64", "complex64", "complex128")
Pair = tuple[LinearOperator, np.ndarray]


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
    """Leaves, each with a matrix that NumPy makes without the operator.

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
    kinds = [
        "identity",
        "zero",
        "diagonal",
        "matrix",
        "restriction",
        "crop",
        "pad",
        "convolve",
        "scatter",
        "gradient",
    ]
    if space.is_complex or real_linear:
        kinds.append("fft")
    kind = draw(st.sampled_from(kinds))
    n, eye = space.size, np.eye(space.size).reshape(*space.shape, space.size)
    seed = draw(st.integers(0, 99))
    if kind == "identity":
        return lo.Identity(space), np.eye(n)
    if kind == "zero":
        small = Space(draw(st.integers(1, 4)), space.dtype)
        return lo.Zero(space, small), np.zeros((small.size, n))
    if kind == "diagonal":
        values = space.random(seed)
        return lo.Diagonal(values, space), np.diag(_double(values).ravel())
    if kind == "matrix":
        return _matrix(space, Space(draw(st.integers(1, 5)), space.dtype), seed)
    if kind == "restriction":
        index = draw(
            st.lists(st.integers(-1, math.prod(space.shape[-2:]) - 1), min_size=1, max_size=4)
        )
        R = lo.Restriction(space, np.array(index, np.int64))
        rows = eye.reshape(*space.shape[:-2], -1, n)
        taken: list[Any] = [rows[..., i, :] if i >= 0 else 0 * rows[..., 0, :] for i in index]
        dense: Any = np.stack(taken, axis=-2)
        return R, dense.reshape(-1, n)
    if kind == "scatter":
        # The last axis of the domain holds the values; the target adds a plane of its own.
        size = draw(st.integers(1, 5))
        target = Space((*space.shape[:-1], size), space.dtype)
        index = draw(
            st.lists(st.integers(-1, size - 1), min_size=space.shape[-1], max_size=space.shape[-1])
        )
        S = lo.Scatter(target, np.array(index, np.int64), (space.ndim - 1,))
        out = np.zeros((*space.shape[:-1], size, n))
        for source, position in enumerate(index):
            if position >= 0:
                out[..., position, :] += eye[..., source, :]
        return S, out.reshape(-1, n)
    axis = draw(st.integers(0, space.ndim - 1))
    length = space.shape[axis]
    if kind == "crop":
        start = draw(st.integers(0, length - 1))
        stop = draw(st.integers(start + 1, length))
        dense = np.take(eye, np.arange(start, stop), axis=axis)
        return lo.Crop(space, {axis: (start, stop)}), dense.reshape(-1, n)
    if kind == "pad":
        widths = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
        every = [(0, 0)] * (space.ndim + 1)
        every[axis] = widths
        return lo.Pad(space, {axis: widths}), np.pad(eye, every).reshape(-1, n)
    if kind == "gradient":
        parts = []
        for a, steps in enumerate(space.spacing or (1.0,) * space.ndim):
            last = [(0, 0)] * (space.ndim + 1)
            last[a] = (0, 1)
            parts.append(np.pad(np.diff(eye, axis=a), last) / steps)
        return lo.Gradient(space), np.stack(parts).reshape(-1, n)
    if kind == "fft":
        wave = np.fft.fft(eye, axis=axis, norm="ortho")
        return lo.FFT(space, axis, real="full"), wave.reshape(-1, n)
    weights = Space(draw(st.integers(1, 3)), space.dtype).random(seed)
    ring = draw(st.booleans())
    C = lo.Convolve(space, weights, axis, boundary="periodic" if ring else "zero")
    origin, line = (weights.size - 1) // 2, np.zeros((length, length), "complex128")
    for i in range(length):
        for k, weight in enumerate(_double(weights)):
            j = i + origin - k
            if ring or 0 <= j < length:
                line[i, j % length] += weight
    dense = np.moveaxis(np.tensordot(line, eye, (1, axis)), 0, axis).reshape(-1, n)
    return C, dense if space.is_complex else dense.real


@st.composite
def compositions(
    draw: st.DrawFn, max_depth: int = 3, max_size: int = 12
) -> tuple[LinearOperator, np.ndarray]:
    """Trees of `@`, `+`, `.H`, `.T`, scalars, vstack and concat, with matrices from the parts.

    Leaves are those of `operators(real_linear=False)`, because over the reals complex operators do
    not compose. The matrix of a node is computed by NumPy from those of its members.

    Parameters
    ----------
    max_depth
        Nodes on top of each other, below a last `.H`, `.T` or `.conj()`.
    max_size
        Entries of the domain of the innermost leaves.

    >>> A, dense = compositions(max_depth=2).example()  # doctest: +SKIP
    """
    A, dense = _tree(draw, draw(spaces(max_size)), max_depth)
    last = draw(st.sampled_from(["", "H", "T", "conj", "gram"]))
    if last == "H":
        return A.H, dense.conj().T
    if last == "T":
        return A.T, dense.T
    if last == "conj":
        return A.conj(), dense.conj()
    if last == "gram":
        return A.gram(), dense.conj().T @ dense
    return A, dense


def _tree(draw: st.DrawFn, domain: AnySpace, depth: int) -> Pair:
    assert isinstance(domain, Space)
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(operators(domain, real_linear=False))
    A, dense = _tree(draw, domain, depth - 1)
    kind = draw(st.sampled_from(["scalar", "gram", "vstack", "sum", "concat", "product"]))
    seed = draw(st.integers(0, 99))
    if kind == "scalar":
        factors: list[Any] = [2, -0.5, 0, *([0.25j] if domain.is_complex else [])]
        factor = draw(st.sampled_from(factors))
        return factor * A, factor * dense
    if kind == "gram":
        return A.H @ A, dense.conj().T @ dense
    B, other = _tree(draw, A.domain, depth - 1) if kind == "vstack" else (A, dense)
    if kind == "vstack":
        return lo.vstack([A, B]), np.concatenate([dense, other])
    target = A.codomain
    if not isinstance(target, Space) or target.size > 60:
        return -A, -dense
    if kind == "product":
        B, other = _tree(draw, target, depth - 1)
        return B @ A, other @ dense
    B, other = _matrix(A.domain, target, seed)
    if kind == "sum":
        return A + B, dense + other
    return lo.concat([A, B]), np.concatenate([dense, other])


def _matrix(domain: AnySpace, codomain: Space, seed: int) -> Pair:
    assert isinstance(domain, Space)
    array = Space((codomain.size, domain.size), domain.dtype).random(seed)
    return lo.Matrix(array, domain, codomain), _double(array)


def _double(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.complex128 if array.dtype.kind == "c" else np.float64)


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
