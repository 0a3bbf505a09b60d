"""Discrete cosine and sine transforms, orthonormal, on the array library's own FFT.

Entry k of such a transform is `sum_n x[n] cos(pi (n + a) (k + b) / M)`, or the sine: the real part
of an FFT over 2 M points between two turns of phase. Ends that would count twice are scaled so
that every type is an orthogonal matrix: its transpose is its inverse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from linops import arguments, arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.axes import axis_numbers, numbered
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = ["DCT", "DST"]


class _Trigonometric(LinearOperator):
    batched = True
    blockwise = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True
    _sine: ClassVar[bool]
    domain: Space

    @arguments.checked
    def __init__(
        self, space: Space, type: int = 2, axes: str | int | Sequence[str | int] | None = None
    ) -> None:
        name = self.__class__.__name__
        if type not in (1, 2, 3, 4):
            raise ValueError(f"{name}: type is 1, 2, 3 or 4, got {type!r}")
        numbers = axis_numbers(space, range(space.ndim) if axes is None else axes, name)
        if not self._sine and type == 1 and any(space.shape[i] < 2 for i in numbers):
            raise ShapeError(f"DCT of type 1 takes axes of 2 planes or more, got {space}")
        left = space.axes or tuple(numbered(space.ndim))
        right = [f"k{own}" if i in numbers else own for i, own in enumerate(left)]
        codomain = Space(space.shape, space.dtype, None if space.axes is None else right)
        rule = Rule(
            (tuple(Axis(own, splits=i not in numbers) for i, own in enumerate(left)),),
            (tuple(Axis(own, splits=i not in numbers) for i, own in enumerate(right)),),
        )
        super().__init__(space, codomain, rule, tags=("unitary",))
        self._numbers, self._type = numbers, type

    def _apply(self, x: Array) -> Array:
        return self._transformed(x, self._type)

    def _apply_adjoint(self, y: Array) -> Array:
        return self._transformed(y, {2: 3, 3: 2}.get(self._type, self._type))

    def _known_norm(self) -> float:
        return 1.0

    def _cost(self) -> Cost:
        n = math.prod(self.domain.shape[i] for i in self._numbers)
        return Cost.streaming(
            self.domain, self.codomain, 10.0 * self.domain.size * math.log2(n + 1)
        )

    def _transformed(self, x: Array, type: int) -> Array:
        axes = tuple(i - self.domain.ndim for i in self._numbers)
        if math.prod(x.shape) == 0 or not axes:
            return x + 0
        call = dict(axes=axes, type=type, sine=self._sine)
        if arrays.dtype_of(x).kind != "c":
            return arrays.compiled(_transform, x, **call)
        xp = arrays.namespace(x)
        parts = [arrays.compiled(_transform, part, **call) for part in (xp.real(x), xp.imag(x))]
        return arrays.combine(*parts)


class DCT(_Trigonometric):
    """The orthonormal discrete cosine transform along some axes.

    Parameters
    ----------
    space
        The domain, real or complex.
    type
        1, 2, 3 or 4, as `scipy.fft.dct(..., norm="ortho")` counts them.
    axes
        By name or number; all of them where they are not given.

    Raises
    ------
    ValueError
        For another type.
    ShapeError
        Where an axis is not there, or named twice, or type 1 is to transform a single plane.

    Notes
    -----
    `A.H` is the inverse. Type 2 is the transform of JPEG; type 3 undoes it.

    >>> import numpy as np
    >>> (DCT(Space(4, "float64")) @ np.ones(4)).round(12) + 0
    array([2., 0., 0., 0.])
    """

    _sine = False


class DST(_Trigonometric):
    """The orthonormal discrete sine transform along some axes.

    Parameters
    ----------
    space
        The domain, real or complex.
    type
        1, 2, 3 or 4, as `scipy.fft.dst(..., norm="ortho")` counts them.
    axes
        By name or number; all of them where they are not given.

    Raises
    ------
    ValueError
        For another type.
    ShapeError
        Where an axis is not there, or named twice.

    Notes
    -----
    `A.H` is the inverse. Type 1 diagonalises the Laplacian with zeros beyond both ends.
    """

    _sine = True


def _transform(x: Array, axes: tuple[int, ...], type: int, sine: bool) -> Array:
    for axis in axes:
        x = _transform_one(x, axis, type, sine)
    return x


def _transform_one(x: Array, axis: int, type: int, sine: bool) -> Array:
    xp, n = arrays.namespace(x), x.shape[axis]
    period = n + (1 if sine else -1) if type == 1 else n
    whole = 1.0 if sine else 0.0  # where samples stand on the planes, half a plane off otherwise
    a, b = ((whole, whole), (0.5, whole), (whole, 0.5), (0.5, 0.5))[type - 1]
    i = np.arange(n)
    before, after = np.ones(n), np.full(n, math.sqrt(2 / period))
    # Where the whole transform has a factor of sqrt(2), these ends have 1.
    ends = [0, n - 1] if type == 1 and not sine else [n - 1 if sine else 0]
    if type in (1, 3) and not (type == 1 and sine):
        before[ends] /= math.sqrt(2)
    if type in (1, 2) and not (type == 1 and sine):
        after[ends] /= math.sqrt(2)
    turn = before * np.exp(-1j * math.pi * b / period * i)
    back = after * np.exp(-1j * math.pi * a / period * (i + b)) * (1j if sine else 1)
    dtype = np.result_type(arrays.dtype_of(x), np.complex64)

    def factor(values: np.ndarray) -> Array:
        return arrays.convert(values.astype(dtype).reshape((-1,) + (1,) * (-axis - 1)), x)

    z = arrays.row_major(arrays.cast(x, dtype) * factor(turn))
    z = arrays.narrow(xp.fft.fft(z, n=2 * period, axis=axis), axis, 0, n)
    return xp.real(arrays.row_major(z) * factor(back))
