"""Leaves for Hypothesis: every elementary operator, each with a matrix made without it.

The matrices come from NumPy on the identity matrix, or from a formula. `linops/testing/trees.py`
composes them, `linops/testing/strategies.py` is what users call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import linops as lo
from linops.linear_operator import LinearOperator
from linops.precision import complex_of, real_of
from linops.space import Space
from linops.testing.realified import realify

__all__ = ["KINDS", "Drawn", "leaf"]


class Drawn(NamedTuple):
    """An operator with its matrix over the reals (see `linops/testing/realified.py`).

    `size` bounds what the entries are summed from, so that rounding is a multiple of
    `eps * size`.
    """

    operator: LinearOperator
    matrix: np.ndarray
    size: np.ndarray


def leaf(draw: st.DrawFn, space: Space, *, real_linear: bool = True) -> Drawn:
    """One elementary operator on `space`.

    Parameters
    ----------
    draw
        Of a composite strategy.
    space
        Its domain, not empty.
    real_linear
        Whether operators from real to complex values are drawn.
    """
    names = sorted(KINDS) if space.ndim else ["Cast", "Diagonal", "Identity", "Zero"]
    if not space.is_complex and not real_linear:
        names = [name for name in names if name not in _COMPLEX]
    operator, dense = KINDS[draw(st.sampled_from(names))](draw, space)
    matrix = realify(dense, operator.domain, operator.codomain)
    # A transform has rounding errors in entries that are zero.
    spread = isinstance(operator, (lo.FFT, lo.Convolve))
    size = np.full_like(matrix, np.abs(matrix).max(initial=0)) if spread else np.abs(matrix)
    return Drawn(operator, matrix, size)


Made = tuple[LinearOperator, np.ndarray]


def _identity(draw: st.DrawFn, space: Space) -> Made:
    return lo.Identity(space), np.eye(space.size)


def _zero(draw: st.DrawFn, space: Space) -> Made:
    target = draw(st.sampled_from([space, Space(draw(st.integers(1, 4)), space.dtype)]))
    return lo.Zero(space, target), np.zeros((target.size, space.size))


def _cast(draw: st.DrawFn, space: Space) -> Made:
    wide = real_of(space.dtype).itemsize == 8
    other = np.dtype("float32" if wide else "float64")
    target = space.with_dtype(complex_of(other) if space.is_complex else other)
    return lo.Cast(space, target), np.eye(space.size)


def _diagonal(draw: st.DrawFn, space: Space) -> Made:
    values = space.random(draw(_SEEDS))
    if space.is_complex and draw(st.booleans()):
        values = values.real
    return lo.Diagonal(values, space), np.diag(_double(values).ravel())


def _complex_diagonal(draw: st.DrawFn, space: Space) -> Made:
    values = space.complexify().random(draw(_SEEDS))
    return lo.Diagonal(values, space), np.diag(_double(values).ravel())


def _matrix(draw: st.DrawFn, space: Space) -> Made:
    array = Space((draw(st.integers(1, 5)), space.size), space.dtype).random(draw(_SEEDS))
    return lo.Matrix(array, space), _double(array)


def _restriction(draw: st.DrawFn, space: Space) -> Made:
    places = math.prod(space.shape[-2:])
    index = draw(st.lists(st.integers(-1, places - 1), min_size=1, max_size=4))
    rows = _eye(space).reshape(*space.shape[:-2], places, space.size)
    taken = [rows[..., i, :] if i >= 0 else 0 * rows[..., 0, :] for i in index]
    dense = np.stack(taken, axis=-2).reshape(-1, space.size)
    return lo.Restriction(space, np.array(index, np.int64)), dense


def _scatter(draw: st.DrawFn, space: Space) -> Made:
    # The last axis of the domain holds the values; the target's is another.
    length, size = space.shape[-1], draw(st.integers(1, 5))
    target = Space((*space.shape[:-1], size), space.dtype)
    index = draw(st.lists(st.integers(-1, size - 1), min_size=length, max_size=length))
    eye, out = _eye(space), np.zeros((*space.shape[:-1], size, space.size))
    for source, position in enumerate(index):
        if position >= 0:
            out[..., position, :] += eye[..., source, :]
    operator = lo.Scatter(target, np.array(index, np.int64), (space.ndim - 1,))
    return operator, out.reshape(-1, space.size)


def _crop(draw: st.DrawFn, space: Space) -> Made:
    axis = draw(st.integers(0, space.ndim - 1))
    start = draw(st.integers(0, space.shape[axis] - 1))
    stop = draw(st.integers(start + 1, space.shape[axis]))
    dense = np.take(_eye(space), np.arange(start, stop), axis=axis)
    return lo.Crop(space, {axis: (start, stop)}), dense.reshape(-1, space.size)


def _pad(draw: st.DrawFn, space: Space) -> Made:
    axis = draw(st.integers(0, space.ndim - 1))
    widths = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
    every = [(0, 0)] * (space.ndim + 1)
    every[axis] = widths
    return lo.Pad(space, {axis: widths}), np.pad(_eye(space), every).reshape(-1, space.size)


def _reshape(draw: st.DrawFn, space: Space) -> Made:
    shapes = [(space.size,), (1, *space.shape), space.shape[::-1], (space.shape[0], -1)]
    return lo.Reshape(space, draw(st.sampled_from(shapes))), np.eye(space.size)


def _transpose(draw: st.DrawFn, space: Space) -> Made:
    order = tuple(draw(st.permutations(range(space.ndim))))
    dense = np.transpose(_eye(space), (*order, space.ndim)).reshape(-1, space.size)
    return lo.Transpose(space, order), dense


def _sum(draw: st.DrawFn, space: Space) -> Made:
    axes = _some_axes(draw, space)
    return lo.SumOver(space, axes), _eye(space).sum(axis=axes).reshape(-1, space.size)


def _fft(draw: st.DrawFn, space: Space) -> Made:
    axes = _some_axes(draw, space)
    norm: Any = draw(st.sampled_from(["ortho", "backward", "forward"]))
    half = not space.is_complex and draw(st.booleans())
    transform = np.fft.rfftn if half else np.fft.fftn
    dense = transform(_eye(space), axes=axes, norm=norm).reshape(-1, space.size)
    kind = "auto" if space.is_complex else ("half" if half else "full")
    return lo.FFT(space, axes, norm=norm, real=kind), dense


def _convolve(draw: st.DrawFn, space: Space) -> Made:
    return _convolution(draw, space, Space(draw(st.integers(1, 3)), space.dtype))


def _complex_convolve(draw: st.DrawFn, space: Space) -> Made:
    return _convolution(draw, space, Space(draw(st.integers(1, 3)), complex_of(space.dtype)))


def _convolution(draw: st.DrawFn, space: Space, kernels: Space) -> Made:
    axis = draw(st.integers(0, space.ndim - 1))
    kernel, length = kernels.random(draw(_SEEDS)), space.shape[axis]
    ring, method = draw(st.booleans()), draw(st.sampled_from(["direct", "fft"]))
    origin = draw(st.integers(0, kernel.size - 1))
    line = np.zeros((length, length), "complex128")
    for i in range(length):
        for k, weight in enumerate(_double(kernel)):
            j = i + origin - k
            if ring or 0 <= j < length:
                line[i, j % length] += weight
    operator = lo.Convolve(
        space, kernel, axis, boundary="periodic" if ring else "zero", origin=origin, method=method
    )
    dense = np.moveaxis(np.tensordot(line, _eye(space), (1, axis)), 0, axis)
    return operator, dense.reshape(-1, space.size)


def _interpolate(draw: st.DrawFn, space: Space) -> Made:
    axes = _some_axes(draw, space)
    extents = tuple(space.shape[i] for i in axes)
    moves = draw(st.booleans())
    shape = extents if moves else (draw(st.integers(1, 3)),)
    # Quarters are exact, and some points are off the grid.
    numbers = np.random.default_rng(draw(_SEEDS)).integers(-5, 16, (len(axes), *shape)) / 4
    points = numbers
    if moves:
        points = numbers + np.stack(np.meshgrid(*map(np.arange, extents), indexing="ij"))
    weights = np.ones((*shape, *extents))
    for k, extent in enumerate(extents):
        distance = np.abs(points[k][..., None] - np.arange(extent))
        hat = np.maximum(0.0, 1.0 - distance)
        weights *= hat.reshape(*shape, *(extent if j == k else 1 for j in range(len(axes))))
    inner = tuple(range(len(shape), weights.ndim))
    dense = np.tensordot(weights, _eye(space), (inner, axes))
    front = tuple(range(len(shape), dense.ndim - 1))
    dense = np.transpose(dense, (*front, *range(len(shape)), dense.ndim - 1))
    given: dict[str, Any] = {"displacement" if moves else "points": numbers}
    return lo.Interpolate(space, axes=axes, **given), dense.reshape(-1, space.size)


def _gradient(draw: st.DrawFn, space: Space) -> Made:
    eye, parts = _eye(space), []
    for axis, step in enumerate(space.spacing or (1.0,) * space.ndim):
        last = [(0, 0)] * (space.ndim + 1)
        last[axis] = (0, 1)
        parts.append(np.pad(np.diff(eye, axis=axis), last) / step)
    return lo.Gradient(space), np.stack(parts).reshape(-1, space.size)


KINDS: dict[str, Callable[[st.DrawFn, Space], Made]] = {
    "Cast": _cast,
    "Convolve": _convolve,
    "Convolve, complex": _complex_convolve,
    "Crop": _crop,
    "Diagonal": _diagonal,
    "Diagonal, complex": _complex_diagonal,
    "FFT": _fft,
    "Gradient": _gradient,
    "Identity": _identity,
    "Interpolate": _interpolate,
    "Matrix": _matrix,
    "Pad": _pad,
    "Reshape": _reshape,
    "Restriction": _restriction,
    "Scatter": _scatter,
    "SumOver": _sum,
    "Transpose": _transpose,
    "Zero": _zero,
}
"""How each kind is drawn on a space, with its matrix, one row an entry."""

_COMPLEX = ("Convolve, complex", "Diagonal, complex", "FFT")
_SEEDS = st.integers(0, 99)


def _some_axes(draw: st.DrawFn, space: Space) -> tuple[int, ...]:
    count = draw(st.integers(1, space.ndim))
    return tuple(sorted(draw(st.permutations(range(space.ndim)))[:count]))


def _eye(space: Space) -> np.ndarray:
    return np.eye(space.size).reshape(*space.shape, space.size)


def _double(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.complex128 if array.dtype.kind == "c" else np.float64)
