"""The discrete Fourier transform on the array library's own FFT.

A complex space is transformed to itself. A real one maps to a complex one, as the half spectrum
or as the full one, and the operator is then linear over the reals: its adjoint is the real part of
the conjugate transpose, in which interior frequencies of the half spectrum count once, not twice
as in an inverse transform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost, bytes_of
from linops.elementary.axes import axis_numbers, numbered
from linops.errors import DTypeError, ShapeError
from linops.linear_operator import LinearOperator
from linops.precision import complex_of
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = ["FFT"]

_NORMS = ("ortho", "backward", "forward")
_KINDS = ("auto", "half", "full")


class FFT(LinearOperator):
    """`X[k] = s * sum_n x[n] exp(-2 pi i k n / N)` along some axes.

    Parameters
    ----------
    space
        The domain, real or complex.
    axes
        By name or number; all of them where they are not given.
    norm
        `"ortho"`: s = 1 / sqrt(N), which makes it unitary on a complex space; `"backward"`:
        s = 1; `"forward"`: s = 1 / N. N is the product of the transformed extents.
    real
        What a real space maps to: `"half"` is the spectrum that the symmetry leaves, extent
        `n // 2 + 1` along the last of `axes` (as `rfft`); `"full"` is all of it; `"auto"` is
        half. A complex space takes `"auto"` or `"full"`.

    Raises
    ------
    ShapeError
        Where an axis is not there, or named twice.
    DTypeError
        For the half spectrum of a complex space.

    Notes
    -----
    Frequencies stand in FFT order, zero first. The codomain's axes are named `kx` for `x`.
    `A.H` is the adjoint: with `norm="ortho"` it inverts the transform of a complex space and the
    full one of a real space; the half spectrum is not orthogonal under any norm.

    >>> import numpy as np
    >>> from linops.space import Space
    >>> F = FFT(Space(4), norm="backward")
    >>> F @ np.ones(4, "float32")
    array([4.+0.j, 0.+0.j, 0.+0.j], dtype=complex64)
    >>> F.H @ np.ones(3, "complex64")
    array([3., 0., 1., 0.], dtype=float32)
    """

    batched = True
    blockwise = True
    _exact: ClassVar[bool] = True
    domain: Space
    codomain: Space

    def __init__(
        self,
        space: Space,
        axes: str | int | Sequence[str | int] | None = None,
        *,
        norm: str = "ortho",
        real: str = "auto",
    ) -> None:
        if not isinstance(space, Space):
            raise ShapeError("FFT takes one array: pick a member of the product space first")
        if norm not in _NORMS or real not in _KINDS:
            raise ValueError(
                f"FFT: norm is one of {_NORMS} and real one of {_KINDS}, got {norm!r} and {real!r}"
            )
        if real == "half" and space.is_complex:
            raise DTypeError(
                f"FFT: the spectrum of a complex space {space} has no symmetry to halve; leave "
                'real="auto"'
            )
        axes = tuple(range(space.ndim)) if axes is None else axes
        numbers = axis_numbers(space, axes, "FFT")
        half = not space.is_complex and real != "full" and bool(numbers)
        left = space.axes or tuple(numbered(space.ndim))
        right = [f"k{name}" if i in numbers else name for i, name in enumerate(left)]
        shape = list(space.shape)
        if half:
            shape[numbers[-1]] = shape[numbers[-1]] // 2 + 1 if shape[numbers[-1]] else 0
        codomain = Space(
            tuple(shape), complex_of(space.dtype), None if space.axes is None else right
        )
        rule = Rule(
            (tuple(Axis(name, splits=i not in numbers) for i, name in enumerate(left)),),
            (tuple(Axis(name, splits=i not in numbers) for i, name in enumerate(right)),),
        )
        unitary = norm == "ortho" and space.is_complex
        super().__init__(space, codomain, rule, tags=("unitary",) if unitary else ())
        self._numbers, self._norm, self._half = numbers, norm, half

    def _apply(self, x: Array) -> Array:
        axes = self._axes()
        if math.prod(x.shape) == 0:
            batch = tuple(x.shape)[: x.ndim - self.domain.ndim]
            return arrays.zeros((*batch, *self.codomain.shape), self.codomain.dtype, x)
        if not self._half:
            x = arrays.cast(x, self.codomain.dtype)
        if not axes:
            return x + 0  # a result of its own
        return arrays.compiled(_transform, x, axes=axes, norm=self._norm, half=self._half)

    def _apply_adjoint(self, y: Array) -> Array:
        xp, axes = arrays.namespace(y), self._axes()
        if math.prod(y.shape) == 0:
            batch = tuple(y.shape)[: y.ndim - self.codomain.ndim]
            return arrays.zeros((*batch, *self.domain.shape), self.domain.dtype, y)
        # The inverse transform divides by N under the norm "backward" and by nothing under
        # "forward": each is the adjoint of the transform of the other name.
        norm = {"ortho": "ortho", "backward": "forward", "forward": "backward"}[self._norm]
        y = arrays.row_major(y)
        if self._half:
            if len(axes) > 1:
                y = xp.fft.ifftn(y, axes=axes[:-1], norm=norm)
            n = self.domain.shape[self._numbers[-1]]
            y = _once(y, axes[-1], n)
            return arrays.row_major(xp.fft.irfft(y, n=n, axis=axes[-1], norm=norm))
        y = arrays.row_major(xp.fft.ifftn(y, axes=axes, norm=norm) if axes else y + 0)
        return y if self.domain.is_complex else xp.real(y)

    def _gram_diagonal(self, weights: Array | None) -> Array:
        n = math.prod(self.domain.shape[i] for i in self._numbers)
        scale = {"ortho": 1.0 / max(n, 1), "backward": 1.0, "forward": 1.0 / max(n, 1) ** 2}
        dtype = np.empty(0, self.domain.dtype).real.dtype
        w = arrays.ones(self.codomain.shape, dtype) if weights is None else weights
        xp = arrays.namespace(w)
        total = w
        for axis in self._axes():
            total = xp.sum(total, axis=axis, keepdims=True)
        factor = scale[self._norm]
        return total * factor + arrays.zeros(self.domain.shape, arrays.dtype_of(total), total)

    def _known_norm(self) -> float:
        """Of a full spectrum the transform is a multiple of a unitary one; half a spectrum keeps
        the whole of real values whose other half is 0, such as constants."""
        n = math.prod(self.domain.shape[i] for i in self._numbers)
        return {"ortho": 1.0, "backward": math.sqrt(n), "forward": 1.0 / math.sqrt(n or 1)}[
            self._norm
        ]

    def _cost(self) -> Cost:
        # 5 n log2 n for a complex transform of n points, half of it for a real one.
        n = math.prod(self.domain.shape[i] for i in self._numbers)
        flops = 5.0 * self.domain.size * math.log2(max(n, 2)) * (0.5 if self._half else 1.0)
        streaming = Cost.streaming(self.domain, self.codomain, flops)
        return replace(streaming, workspace=self._held(False), adjoint=self._held(True))

    def _held(self, adjoint: bool) -> float:
        """Bytes beside input and result: NumPy makes an array an axis, two at a time."""
        element, spectrum = bytes_of(self.domain), bytes_of(self.codomain)
        several = len(self._numbers) - self._half > 1
        # Without a factor NumPy transforms single precision in double.
        unscaled = self._norm == "backward" and self.domain.dtype in ("float32", "complex64")
        held = several + 4.0 * unscaled
        if adjoint:
            held += 1.0
        elif self._half:
            held += len(self._numbers) > 1
        elif not self.domain.is_complex:
            held += 1.0  # the input as complex numbers
        if adjoint and self._half:
            # What `_once` multiplies and joins, beside the transform along the other axes.
            held = max(held, 4.0 + (len(self._numbers) > 1))
        return held * spectrum - (element if adjoint else 0.0)

    def _axes(self) -> tuple[int, ...]:
        return tuple(i - self.domain.ndim for i in self._numbers)


def _transform(x: Array, axes: tuple[int, ...], norm: str, half: bool) -> Array:
    xp = arrays.namespace(x)
    x = arrays.row_major(x)
    if half:
        x = xp.fft.rfft(x, axis=axes[-1], norm=norm)
        axes = axes[:-1]
    if axes:
        x = xp.fft.fftn(x, axes=axes, norm=norm)
    return arrays.row_major(x)


def _once(y: Any, axis: int, n: int) -> Any:
    """The half spectrum such that an inverse transform counts each of its frequencies once.

    Interior frequencies are halved. Those that stand alone are made real: what an inverse
    transform does with their imaginary part is the library's secret.
    """
    shape = (-1,) + (1,) * (-axis - 1)
    alone = np.zeros(n // 2 + 1, bool)
    alone[0] = True
    if n % 2 == 0:
        alone[-1] = True
    dtype = np.empty(0, arrays.dtype_of(y)).real.dtype
    xp = arrays.namespace(y)
    real, imaginary = xp.real(y), xp.imag(y)
    keep = arrays.convert(np.where(alone, 1.0, 0.5).astype(dtype).reshape(shape), real)
    drop = arrays.convert(np.where(alone, 0.0, 0.5).astype(dtype).reshape(shape), real)
    return arrays.combine(real * keep, imaginary * drop)
