"""The ramp filter: a linear convolution along detector columns.

The kernel is given in the spatial domain, band-limited, so that the constant is kept (sampling
|f| instead loses it). Weights before and after are in `geometries/analytic/weights.py`.
"""

from __future__ import annotations

import math
import operator as numbers
from typing import Any

import numpy as np

from linops import arguments, arrays, numeric
from linops.arrays import Array
from linops.compiled import pool
from linops.cost import Cost
from linops.errors import GeometryError, ShapeError
from linops.linear_operator import LinearOperator
from linops.precision import Precision
from linops.space import Space

__all__ = ["RampFilter", "ramp_response"]

_WINDOWS = ("ram-lak", "hann", "hanning", "hamming", "cosine", "shepp-logan")


def ramp_response(
    columns: int,
    pitch: float = 1.0,
    window: str = "ram-lak",
    pad: int = 2,
    *,
    fan_step: float | None = None,
) -> np.ndarray:
    """The ramp's real frequency response, 1 / pitch included: float64, `(pad * columns // 2 + 1,)`.

    Parameters
    ----------
    columns
        Cells of a row.
    pitch
        Distance of the cells, in physical length (radians on an equiangular detector).
    window
        `"ram-lak"` (none), `"hann"`, `"hamming"`, `"cosine"` or `"shepp-logan"`.
    pad
        Rows are padded with zeros to `pad * columns`, at least 2.
    fan_step
        The angle of a cell on an equiangular detector, radians: the kernel is then
        multiplied by `(k fan_step / sin(k fan_step))^2`.

    Raises
    ------
    GeometryError
        For less than two columns, a pad that is no integer of at least 2, another window, and a
        pitch or step that is not positive.

    Notes
    -----
    The response is that of `2 pi |f|`, band-limited: h[0] = pi / 2, h[k] = -2 / (pi k^2) for odd
    k, 0 for even k (A. C. Kak, M. Slaney, "Principles of Computerized Tomographic Imaging",
    section 3.3, times 2 pi and the squared pitch).
    """
    count = numeric.whole("columns", columns, 0, GeometryError)
    if count < 2:
        raise GeometryError(f"a ramp along {count} column: it takes at least two detector bins")
    if isinstance(pad, bool) or not hasattr(pad, "__index__") or numbers.index(pad) < 2:
        raise GeometryError(f"pad is {pad!r}; it is an integer of at least 2")
    if not isinstance(window, str) or window not in _WINDOWS:
        raise GeometryError(f"window is {window!r}; it is one of {', '.join(_WINDOWS)}")
    numeric.positive("pitch", pitch, GeometryError)
    if fan_step is not None:
        numeric.positive("fan_step", fan_step, GeometryError)
    length = numbers.index(pad) * count
    k = np.arange(length)
    k = np.minimum(k, length - k)
    h = np.zeros(length)
    h[0] = math.pi / 2
    odd = k % 2 == 1
    h[odd] = -2 / (math.pi * k[odd].astype(float) ** 2)
    if fan_step is not None:
        turn = k[1:] * fan_step
        # Beyond the row's own width only a window reads the kernel: there it ends before pi.
        inside = (k[1:] < count) | (turn < 0.75 * math.pi)
        with np.errstate(divide="ignore", invalid="ignore"):
            h[1:] *= np.where(inside, (turn / np.sin(turn)) ** 2, 0.0)
    frequencies = 2 * np.fft.rfftfreq(length)
    return np.asarray(np.fft.rfft(h).real * _window(window, frequencies) / pitch)


class RampFilter(LinearOperator):
    """Rows along the last axis of `space`, filtered by a ramp; its own adjoint.

    Parameters
    ----------
    space
        Real projections, `(view, col)` or `(view, row, col)`.
    pitch, window, pad, fan_step
        As for `ramp_response`.
    filter_response
        `pad * columns // 2 + 1` real values that replace the response, 1 / pitch included. A
        torch or JAX array here may carry a gradient.

    Raises
    ------
    GeometryError, ShapeError
        As `ramp_response`; for a response of another length.
    """

    batched = True
    blockwise = True

    def __init__(
        self,
        space: Space,
        pitch: float = 1.0,
        window: str = "ram-lak",
        pad: int = 2,
        filter_response: Any = None,
        *,
        fan_step: float | None = None,
        precision: str | Precision | None = None,
    ) -> None:
        space = arguments.hold("Space", space, "RampFilter", "space")
        columns = space.shape[-1]
        own = ramp_response(columns, pitch, window, pad, fan_step=fan_step)
        if filter_response is None:
            response: Any = own
        else:
            response = filter_response
            if not arrays.is_array(response):
                response = np.asarray(response)
            if tuple(response.shape) != own.shape or arrays.dtype_of(response).kind not in "fiu":
                raise ShapeError(
                    f"filter_response has shape {tuple(response.shape)} and dtype "
                    f"{response.dtype}; rows of {columns} columns with pad {pad} take "
                    f"{len(own)} real values"
                )
            numeric.require_finite("filter_response", response, GeometryError)
        names = space.axes or (*(f"axis{i}" for i in range(space.ndim - 1)), "col")
        axes = " ".join([*names[:-1], f"{names[-1]}!"])
        super().__init__(
            space, space, f"{axes} -> {axes}", precision=precision, tags=("self_adjoint",)
        )
        self.length = numbers.index(pad) * columns
        self.response = arrays.own(response, space.dtype)

    def _apply(self, x: Array) -> Array:
        if type(x) is np.ndarray and type(self.response) is np.ndarray:
            return self._apply_rows(x)
        xp = arrays.namespace(x)
        columns = x.shape[-1]
        response = self._beside("response", x)
        spectrum = xp.fft.rfft(arrays.row_major(x), n=self.length, axis=-1) * response
        filtered = arrays.row_major(xp.fft.irfft(spectrum, n=self.length, axis=-1))
        return arrays.narrow(filtered, -1, 0, columns)

    def _apply_adjoint(self, y: Array) -> Array:
        return self._apply(y)

    def _apply_rows(self, x: np.ndarray) -> np.ndarray:
        columns = x.shape[-1]
        rows = x.reshape(-1, columns)
        out = np.empty(rows.shape, x.dtype)
        # A tile's spectrum stays in a few hundred kilobytes.
        tile = max(1, (1 << 15) // self.length)

        def filter_tile(i: int) -> None:
            part = slice(i * tile, (i + 1) * tile)
            spectrum = np.fft.rfft(rows[part], n=self.length, axis=-1)
            spectrum *= self.response
            out[part] = np.fft.irfft(spectrum, n=self.length, axis=-1)[:, :columns]

        pool.run(filter_tile, -(-len(rows) // tile))
        return out.reshape(x.shape)

    def _cost(self) -> Cost:
        streaming = Cost.streaming(self.domain, self.codomain)
        rows = self.domain.size / self.domain.members[0].shape[-1] if self.domain.size else 0.0
        flops = rows * 5 * self.length * math.log2(self.length)
        return Cost(flops, streaming.read, streaming.written, 0.0)


def _window(name: str, nu: np.ndarray) -> np.ndarray:
    if name in ("hann", "hanning"):
        return 0.5 + 0.5 * np.cos(math.pi * nu)
    if name == "hamming":
        return 0.54 + 0.46 * np.cos(math.pi * nu)
    if name == "cosine":
        return np.cos(math.pi * nu / 2)
    if name == "shepp-logan":
        return np.sinc(nu / 2)
    return np.ones_like(nu)
