"""Arrays moved by fractions of a plane, and onto finer or coarser grids."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from linops import arguments
from linops.algebra.composition import Product
from linops.algebra.kron import kron
from linops.elementary.axes import axis_numbers, numbered, resized_one
from linops.elementary.convolve import Convolve
from linops.elementary.crop_pad import Crop, Pad
from linops.elementary.diagonal import Diagonal
from linops.elementary.fourier import FFT
from linops.elementary.identity import Identity
from linops.elementary.matrix import Matrix
from linops.elementary.order import Roll
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.space import Space

__all__ = ["Resample", "Shift"]

Axes = str | int | Sequence[str | int]


class Shift(Product):
    """Planes moved on by any distance, negative ones back: `y[i] = x[i - shift]`.

    Parameters
    ----------
    space
        Domain and codomain.
    shift
        In planes: one number for all axes, or one each.
    axes
        By name or number; all of them where they are not given.
    method
        `"linear"` interpolates between two planes and keeps a halo; `"fourier"` turns phases, exact
        for periodic arrays without the highest frequency, and needs the axes whole.
    boundary
        What comes in at the end: `"zero"`, the default of `"linear"`, or `"periodic"`, that of
        `"fourier"`, which has no other.

    Raises
    ------
    ShapeError
        Where axes and shifts do not fit.
    ValueError
        For another method or boundary.
    """

    @arguments.checked
    def __init__(
        self,
        space: Space,
        shift: float | Sequence[float],
        axes: Axes | None = None,
        *,
        method: str = "linear",
        boundary: str | None = None,
    ) -> None:
        numbers = axis_numbers(space, range(space.ndim) if axes is None else axes, "Shift")
        shifts = (
            tuple(map(float, shift)) if isinstance(shift, Sequence) else (shift,) * len(numbers)
        )
        if len(shifts) != len(numbers) or not all(map(math.isfinite, shifts)):
            raise ShapeError(
                f"Shift takes one finite number, or one for each of its {len(numbers)} axes, got "
                f"{shift!r}"
            )
        boundary = boundary or ("zero" if method == "linear" else "periodic")
        known = [("linear", "zero"), ("linear", "periodic"), ("fourier", "periodic")]
        if (method, boundary) not in known:
            raise ValueError(
                f"Shift: method and boundary are one of {known}, got {(method, boundary)}"
            )
        moves = {i: s for i, s in zip(numbers, shifts, strict=True) if s}
        if method == "fourier":
            terms = _turned(space, moves)
        else:
            terms = _moved(space, moves, boundary == "periodic")
        super().__init__(terms or [Identity(space)])
        self.name = "Shift"


class Resample(Product):
    """Values on a finer or coarser grid over the same extent, linear between cell centers.

    Parameters
    ----------
    space
        The domain.
    shape
        New extents of `axes`, one number or one each.
    axes
        By name or number; all of them where they are not given.
    antialias
        Whether cells of a coarser grid average all that they cover (a triangle as wide as two of
        them) instead of reading two neighbors.

    Raises
    ------
    ShapeError
        Where extents and axes do not fit, or one of them is 0.

    Notes
    -----
    Values are those of `jax.image.resize(method="linear")`: weights of every new cell add up to 1.
    The adjoint is the transpose, which a downsampling back is not.

    >>> import numpy as np
    >>> (Resample(Space(4, "float64"), 2) @ np.array([0.0, 0.0, 7.0, 7.0])).round(12)
    array([1., 6.])
    """

    @arguments.checked
    def __init__(
        self,
        space: Space,
        shape: int | Sequence[int],
        axes: Axes | None = None,
        *,
        antialias: bool = True,
    ) -> None:
        numbers = axis_numbers(space, range(space.ndim) if axes is None else axes, "Resample")
        extents = (shape,) * len(numbers) if isinstance(shape, int) else tuple(map(int, shape))
        old = [space.shape[i] for i in numbers]
        if len(extents) != len(numbers) or min((*extents, *old), default=1) < 1:
            raise ShapeError(
                f"Resample takes extents of 1 or more, one or one for each of its {len(numbers)} "
                f"axes, got {shape!r} for axes of {old} planes"
            )
        terms: list[LinearOperator] = []
        for i, n in zip(numbers, extents, strict=True):
            if n != space.shape[i]:
                terms.insert(0, _along(space, i, n, _weights(space.shape[i], n, antialias)))
                space = terms[0].codomain  # type: ignore[assignment]
        super().__init__(terms or [Identity(space)])
        self.name = "Resample"


def _turned(space: Space, moves: dict[int, float]) -> list[LinearOperator]:
    if not moves:
        return []
    F = FFT(space, tuple(moves), real="auto" if space.is_complex else "full")
    phases = np.zeros((1,) * space.ndim)
    for i, shift in moves.items():
        turns = np.fft.fftfreq(space.shape[i]) * shift if space.shape[i] else np.zeros(0)
        phases = phases + turns.reshape([-1 if k == i else 1 for k in range(space.ndim)])
    turned = np.broadcast_to(np.exp(-2j * np.pi * phases), space.shape)
    return [F.H, Diagonal(turned, F.codomain), F]


def _moved(space: Space, moves: dict[int, float], ring: bool) -> list[LinearOperator]:
    """Whole planes, and before them the fraction that is left, on the same side."""
    whole = {i: int(shift) for i, shift in moves.items() if int(shift)}
    parts = {i: math.fmod(shift, 1) for i, shift in moves.items() if shift % 1}
    terms: list[LinearOperator] = []
    if whole and ring:
        terms.append(Roll(space, tuple(whole.values()), tuple(whole)))
    elif whole:
        gaps = {i: (k > 0, min(abs(k), space.shape[i])) for i, k in whole.items()}
        crop = Crop(
            space,
            {i: (0 if on else m, space.shape[i] - m * on) for i, (on, m) in gaps.items()},
        )
        pad = Pad(
            crop.codomain,  # type: ignore[arg-type]
            {i: (m, 0) if on else (0, m) for i, (on, m) in gaps.items()},
        )
        terms += [pad, crop]
    if parts:
        pairs = [[1 - f, f] if f > 0 else [-f, 1 + f] for f in parts.values()]
        kernel = functools.reduce(np.multiply.outer, map(np.array, pairs))
        origin = [0 if f > 0 else 1 for f in parts.values()]
        boundary = "periodic" if ring else "zero"
        terms.append(Convolve(space, kernel, tuple(parts), boundary=boundary, origin=origin))
    return terms


def _along(space: Space, axis: int, extent: int, weights: np.ndarray) -> LinearOperator:
    """A matrix along one axis, as a Kronecker product; distances shrink or grow with the cells."""
    source, before, after = (
        _axes(space, axes) for axes in ([axis], range(axis), range(axis + 1, space.ndim))
    )
    scale = space.shape[axis] / extent
    target = resized_one(source, 0, extent)
    if source.spacing:
        target = Space(extent, space.dtype, source.axes, source.spacing[0] * scale)
    found: LinearOperator = Matrix(weights, source, target)
    if after.ndim:
        found = kron(found, Identity(after))
    return kron(Identity(before), found) if before.ndim else found


def _axes(space: Space, axes: Sequence[int]) -> Space:
    names, spacing = space.axes or numbered(space.ndim), space.spacing
    return Space(
        [space.shape[i] for i in axes],
        space.dtype,
        [names[i] for i in axes],
        [spacing[i] for i in axes] if spacing else None,
    )


def _weights(n: int, m: int, antialias: bool) -> np.ndarray:
    """`(m, n)`: how much of each of n cells is in each of m over the same extent."""
    places = (np.arange(m) + 0.5) * (n / m) - 0.5
    if not antialias:
        places = np.clip(places, 0, n - 1)
    reach = max(n / m, 1.0) if antialias else 1.0
    weights: np.ndarray = np.maximum(1 - np.abs(places[:, None] - np.arange(n)) / reach, 0)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
