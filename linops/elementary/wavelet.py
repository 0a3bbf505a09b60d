"""Discrete wavelet transforms with PyWavelets' families and modes, and their exact adjoints.

One level filters the array, extended beyond its ends as the mode says, and keeps every second
value. The extension is linear in the planes near the ends: PyWavelets' own `pad` gives its matrix,
and the adjoint folds what falls beyond the ends back by the transpose.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from linops import arguments, arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.axes import axis_numbers, numbered
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = ["Wavelet"]


class Wavelet(LinearOperator):
    """Coefficients of a multilevel wavelet transform along some axes, packed in one array.

    Parameters
    ----------
    space
        The domain, real or complex.
    wavelet
        A name (`"haar"`, `"db4"`, `"sym5"`, `"bior4.4"`) or a `pywt.Wavelet`.
    axes
        By name or number; all of them where they are not given.
    level
        How often the means are split further; as often as PyWavelets does where it is not given.
    mode
        How the array goes on beyond its ends, by PyWavelets' names: `"periodization"` needs no
        more coefficients than entries; `"zero"`, `"symmetric"`, `"periodic"`, `"constant"`,
        `"smooth"` and the others keep all that see the array.

    Raises
    ------
    ImportError
        Where PyWavelets is not installed: `pip install 'linops[wavelet]'`.
    ValueError
        For a wavelet or a mode that PyWavelets does not have.
    ShapeError
        Where an axis is not there, or named twice.

    Notes
    -----
    The layout is that of `pywt.coeffs_to_array(pywt.wavedecn(x, ...))`: the coarsest means first,
    finer details behind coarser ones, zeros where bands leave room. With an orthogonal wavelet,
    mode `"periodization"` and even extents at every level the transform is unitary, and `A.H` its
    inverse; otherwise `A.H` is the transpose alone.

    >>> import numpy as np
    >>> W = Wavelet(Space(4, "float64"), "haar", level=1)
    >>> (W @ np.array([1.0, 3.0, 5.0, 5.0]) * np.sqrt(2)).round(12)
    array([ 4., 10., -2.,  0.])
    """

    batched = True
    blockwise = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True
    domain: Space
    codomain: Space

    @arguments.checked
    def __init__(
        self,
        space: Space,
        wavelet: Any = "db2",
        axes: str | int | Sequence[str | int] | None = None,
        *,
        level: int | None = None,
        mode: str = "periodization",
    ) -> None:
        pywt = _pywt()
        if mode not in pywt.Modes.modes:
            raise ValueError(f"Wavelet: mode is one of {pywt.Modes.modes}, got {mode!r}")
        found = pywt.Wavelet(wavelet) if isinstance(wavelet, str) else wavelet
        if found.dec_len % 2:
            raise ValueError(f"Wavelet takes filters of even length, got {found.dec_len} taps")
        numbers = axis_numbers(space, range(space.ndim) if axes is None else axes, "Wavelet")
        extents = [space.shape[i] for i in numbers]
        if not all(extents):
            raise ShapeError(f"Wavelet takes axes with planes, got {space}")
        if level is None:
            level = pywt.dwtn_max_level(extents, found) if extents else 0
        if level < 0:
            raise ValueError(f"Wavelet: level is not negative, got {level}")
        bands = tuple(_bands(n, found.dec_len, level, mode) for n in extents)
        if "reflect" in mode and any(1 in counts[:-1] for counts in bands):
            raise ShapeError(
                f"Wavelet: mode {mode!r} splits no axis of one plane, as {space} has at {level} "
                "levels; take fewer levels or another mode"
            )
        shape = list(space.shape)
        for i, counts in zip(numbers, bands, strict=True):
            shape[i] = sum(counts[1:]) + counts[-1] if level else counts[0]
        left = space.axes or tuple(numbered(space.ndim))
        right = [f"w{name}" if i in numbers else name for i, name in enumerate(left)]
        rule = Rule(
            (tuple(Axis(name, splits=i not in numbers) for i, name in enumerate(left)),),
            (tuple(Axis(name, splits=i not in numbers) for i, name in enumerate(right)),),
        )
        codomain = Space(tuple(shape), space.dtype, None if space.axes is None else right)
        even = all(n % 2 == 0 for counts in bands for n in counts[:-1])
        unitary = found.orthogonal and mode == "periodization" and even
        super().__init__(space, codomain, rule, tags=("unitary",) if unitary or not level else ())
        self._numbers, self._bands, self._mode = numbers, bands, mode
        self._filters = (tuple(found.dec_lo), tuple(found.dec_hi))

    @property
    def means(self) -> tuple[slice, ...]:
        """Where the coarsest means stand in an array of coefficients."""
        places = [slice(None)] * self.domain.ndim
        for i, counts in zip(self._numbers, self._bands, strict=True):
            places[i] = slice(0, counts[-1])
        return tuple(places)

    def _apply(self, x: Array) -> Array:
        return self._analyse(x, 0) if self._levels() else x + 0

    def _apply_adjoint(self, y: Array) -> Array:
        return self._gather(y, 0) if self._levels() else y + 0

    def _known_norm(self) -> float | None:
        return 1.0 if "unitary" in self.tags else None

    def _cost(self) -> Cost:
        flops = 4.0 * self.domain.size * len(self._numbers) * len(self._filters[0])
        return Cost.streaming(self.domain, self.codomain, flops if self._levels() else 0.0)

    def _levels(self) -> int:
        return len(self._bands[0]) - 1 if self._bands else 0

    def _room(self, k: int, level: int) -> int:
        """Planes along the k-th axis that hold the means of a level with all that comes of them."""
        counts = self._bands[k]
        return counts[-1] + sum(counts[level + 1 :])

    def _analyse(self, x: Array, level: int, key: str = "") -> Array:
        # One letter for every axis that is split: m for means, d for details.
        k = len(key)
        if level == self._levels():
            return x
        if k < len(self._numbers):
            axis = self._numbers[k] - self.domain.ndim
            low, high = _split(x, self._filters, self._mode, axis)
            parts = [self._analyse(low, level, key + "m"), self._analyse(high, level, key + "d")]
            return arrays.namespace(x).concat(parts, axis=axis)
        if "d" not in key:
            return self._analyse(x, level + 1)
        for j, letter in enumerate(key):
            if letter == "m":
                axis = self._numbers[j] - self.domain.ndim
                x = arrays.widen(x, axis, 0, self._room(j, level + 1) - x.shape[axis])
        return x

    def _gather(self, y: Array, level: int, key: str = "") -> Array:
        k = len(key)
        if level == self._levels():
            return y
        if k < len(self._numbers):
            axis, n, count = self._numbers[k] - self.domain.ndim, *self._bands[k][level : level + 2]
            room = self._room(k, level + 1)
            low = self._gather(arrays.narrow(y, axis, 0, room), level, key + "m")
            high = self._gather(arrays.narrow(y, axis, room, room + count), level, key + "d")
            return _join(low, high, self._filters, self._mode, axis, n)
        if "d" not in key:
            return self._gather(y, level + 1)
        for j, letter in enumerate(key):
            if letter == "m":
                axis = self._numbers[j] - self.domain.ndim
                y = arrays.narrow(y, axis, 0, self._bands[j][level + 1])
        return y


_Filters = tuple[tuple[float, ...], tuple[float, ...]]


def _pywt() -> Any:
    try:
        return importlib.import_module("pywt")
    except ImportError as error:
        raise ImportError(
            "Wavelet takes its filters from PyWavelets, which is not installed: "
            "pip install 'linops[wavelet]'"
        ) from error


def _bands(n: int, taps: int, level: int, mode: str) -> tuple[int, ...]:
    """The extent of an axis, and of its means at every level."""
    counts = [n]
    for _ in range(level):
        more = 1 if mode == "periodization" else taps - 1
        counts.append((counts[-1] + more) // 2)
    return tuple(counts)


@functools.cache
def _bank(filters: _Filters) -> Any:
    """Filters for PyWavelets' loops: its synthesis is the transpose of its analysis."""
    low, high = filters
    return _pywt().Wavelet("linops", [low, high, low[::-1], high[::-1]])


@functools.lru_cache(256)
def _edges(n: int, taps: int, mode: str) -> tuple[int, int, np.ndarray]:
    """How the planes beyond the ends of n come of those within.

    Returns how many planes are put before, how many of the first planes are the head, and the
    matrix `(before + after, head + tail)` that makes those beyond of the first and last planes.
    """
    periodic = mode == "periodization"
    before = taps // 2 - 1 if periodic else taps - 2
    after = 2 * _bands(n, taps, 1, mode)[1] + taps - 2 - n - before
    head = min(n, taps + 2)
    tail = min(n - head, taps + 2 + (n - head) % 2)
    # These ends alone go on like those of n planes: what stands between them is seen by neither.
    unit = np.eye(head + tail)
    if periodic and n % 2:
        unit = np.concatenate([unit, unit[:, -1:]], axis=1)
    named = "periodic" if periodic else "constant" if mode == "smooth" and n == 1 else mode
    # By a plane more at either side than wanted: "smooth" does not pad by none.
    wide = np.stack([_pywt().pad(row, (before + 1, after + 1), named) for row in unit])
    behind = before + 1 + head + tail
    matrix = np.concatenate([wide[:, 1 : before + 1], wide[:, behind : behind + after]], axis=1).T
    return before, head, np.ascontiguousarray(matrix)


def _split(x: Array, filters: _Filters, mode: str, axis: int) -> tuple[Array, Array]:
    """One level along a negative axis: means and details."""
    if type(x) is np.ndarray and x.size:
        low, high = _pywt().dwt(x, _bank(filters), mode, axis)
        return low, high
    xp, taps, n = arrays.namespace(x), len(filters[0]), x.shape[axis]
    before, head, matrix = _edges(n, taps, mode)
    x = xp.moveaxis(x, axis, -1)
    tail = matrix.shape[1] - head
    ends = xp.concat([x[..., :head], x[..., n - tail :]], axis=-1) if tail else x[..., :head]
    beyond = ends @ _like(matrix.T, x)
    x = xp.concat([beyond[..., :before], x, beyond[..., before:]], axis=-1)
    count = (x.shape[-1] - taps) // 2 + 1
    pairs = xp.reshape(x, (*x.shape[:-1], x.shape[-1] // 2, 2))
    found = []
    for taken in filters:
        terms = [
            taken[taps - 1 - i] * pairs[..., i // 2 : i // 2 + count, i % 2] for i in range(taps)
        ]
        found.append(xp.moveaxis(functools.reduce(lambda a, b: a + b, terms), -1, axis))
    return found[0], found[1]


def _join(low: Array, high: Array, filters: _Filters, mode: str, axis: int, n: int) -> Array:
    """The transpose of `_split`, for n planes."""
    taps = len(filters[0])
    compiled = type(low) is np.ndarray and low.size
    if compiled and (mode == "zero" or (mode == "periodization" and n % 2 == 0)):
        x = _pywt().idwt(low, high, _bank(filters), mode, axis)
        return arrays.narrow(x, axis, 0, n)
    beside = taps // 2 - 1
    low, high = (arrays.widen(y, axis, beside, beside) for y in (low, high))
    xp = arrays.namespace(low)
    if compiled:
        x = np.moveaxis(_pywt().idwt(low, high, _bank(filters), "zero", axis), axis, -1)
    else:
        low, high = (xp.moveaxis(y, axis, -1) for y in (low, high))
        count = low.shape[-1] - beside
        phases = []
        for odd in (0, 1):
            terms = [
                taken[taps - 1 - 2 * i - odd] * y[..., beside - i : beside - i + count]
                for taken, y in zip(filters, (low, high), strict=True)
                for i in range(taps // 2)
            ]
            phases.append(functools.reduce(lambda a, b: a + b, terms))
        x = xp.reshape(xp.stack(phases, axis=-1), (*low.shape[:-1], 2 * count))
    before, head, matrix = _edges(n, taps, mode)
    tail = matrix.shape[1] - head
    beyond = xp.concat([x[..., :before], x[..., before + n :]], axis=-1)
    folded = beyond @ _like(matrix, x)
    x = x[..., before : before + n]
    parts = [x[..., :head] + folded[..., :head], x[..., head : n - tail]]
    if tail:
        parts.append(x[..., n - tail :] + folded[..., head:])
    return xp.moveaxis(xp.concat(parts, axis=-1), -1, axis)


def _like(matrix: np.ndarray, x: Array) -> Array:
    return arrays.convert(matrix.astype(arrays.dtype_of(x)), x)
