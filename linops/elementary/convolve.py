"""Convolution with a stored kernel, over zeros or around the ring.

Small kernels are summed shift by shift, large ones go through the array library's own FFT. Blocks,
adjoints and squares are the same sum with another shift, kernel or extent; the sum itself is in
`linops/elementary/sliding.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.axes import axis_numbers, numbered, with_row
from linops.elementary.sliding import SlidingAxis, direct_sum, fast_length, spectral_sum
from linops.errors import DTypeError, ShapeError
from linops.linear_operator import LinearOperator
from linops.precision import complex_of, real_of
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = ["Convolve"]

_DIRECT_LIMIT = 64
_ZERO, _RING, _ARC = "zero", "ring", "arc"
# Beyond the planes of the input: zeros; its own other end; or nothing that is needed, because an
# arc of the ring comes with its neighbors.


class Convolve(LinearOperator):
    """`y[i] = sum_k h[k] x[i + origin - k]` along some axes, the result as large as the input.

    Parameters
    ----------
    space
        The domain.
    kernel
        One axis for each of `axes`; real or complex, a NumPy array is copied. A complex kernel
        on a real space gives complex values and is linear over the reals.
    axes
        By name or number; the last ones by default.
    boundary
        `"zero"`: x is zero outside the array; `"periodic"`: it repeats.
    origin
        The position in the kernel that weighs `x[i]`, one number or one for each axis;
        `(m - 1) // 2` by default, which is what `scipy.signal.convolve(mode="same")` does.
    method
        `"direct"`, `"fft"`, or `"auto"`: direct up to 64 kernel entries.

    Raises
    ------
    ShapeError
        Where kernel, axes and origin do not fit, or a kernel has no entry.

    Notes
    -----
    A periodic kernel longer than the ring is folded onto it. The kernel is an array of the
    operator's own: derivatives in it are derivatives of `A @ x`.

    >>> import numpy as np
    >>> A = Convolve(Space(5), np.array([1.0, 2.0, 3.0], "float32"))
    >>> A @ np.array([0, 0, 1, 0, 0], "float32")
    array([0., 1., 2., 3., 0.], dtype=float32)
    """

    batched = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True
    domain: Space
    codomain: Space

    def __init__(
        self,
        space: Space,
        kernel: Array,
        axes: str | int | Sequence[str | int] | None = None,
        *,
        boundary: str = "zero",
        origin: int | Sequence[int] | None = None,
        method: str = "auto",
    ) -> None:
        if not isinstance(space, Space):
            raise ShapeError("Convolve takes one array: pick a member of the product space first")
        if boundary not in ("zero", "periodic") or method not in ("auto", "direct", "fft"):
            raise ValueError(
                "Convolve: boundary is 'zero' or 'periodic' and method 'auto', 'direct' or 'fft', "
                f"got {boundary!r} and {method!r}"
            )
        kernel = _checked(kernel, space)
        numbers = _axes(space, kernel, axes)
        periodic = boundary == "periodic"
        origins = _origins(kernel, origin)
        if periodic:
            for k, number in enumerate(numbers):
                kernel = _fold(kernel, k - len(numbers), space.shape[number])
            extents = [space.shape[number] for number in numbers]
            origins = tuple(o % n if n else 0 for o, n in zip(origins, extents, strict=True))
        if method == "auto":
            method = "direct" if math.prod(kernel.shape) <= _DIRECT_LIMIT else "fft"
        ends = np.array([[0, space.shape[i]] for i in numbers], np.int32).reshape(-1, 2)
        lead = (0,) * len(numbers)
        planes = tuple(space.shape[i] for i in numbers)
        edges = (_RING if periodic else _ZERO,) * len(numbers)
        super().__init__(space, *_made_spaces(space, kernel, numbers, origins, edges, planes))
        # Along the convolved axes: planes of the output; lead, input planes before the first of
        # them; edges, what is beyond the input; ends, the real range of output planes.
        self.kernel, self.ends = arrays.snapshot(kernel), arrays.snapshot(ends)
        self._numbers, self._origins, self._edges, self._fft = (
            numbers,
            origins,
            edges,
            method == "fft",
        )
        self._planes, self._lead, self._padded = planes, lead, (False,) * len(numbers)

    def _apply(self, x: Array) -> Array:
        x = self._masked(x, inputs=True)
        y = self._sum(x, self._beside("kernel", x), "forward")
        return self._masked(y, inputs=False)

    def _apply_adjoint(self, y: Array) -> Array:
        y = self._masked(y, inputs=False)
        kernel = self._beside("kernel", y)
        xp = arrays.namespace(kernel)
        flipped = xp.flip(kernel, axis=tuple(range(kernel.ndim)))
        if arrays.dtype_of(kernel).kind == "c":
            flipped = xp.conj(flipped)
        x = self._sum(y, flipped, "adjoint")
        if not self.domain.is_complex and arrays.dtype_of(x).kind == "c":
            x = arrays.namespace(x).real(x)
        return self._masked(x, inputs=True)

    def _make_adjoint(self) -> LinearOperator:
        if "self_adjoint" in self.tags:
            return self
        if self.domain != self.codomain or any(self._padded) or any(self._lead):
            return super()._make_adjoint()
        xp = arrays.namespace(self.kernel)
        kernel = xp.flip(self.kernel, axis=tuple(range(self.kernel.ndim)))
        if arrays.dtype_of(kernel).kind == "c":
            kernel = xp.conj(kernel)
        origins = tuple(m - 1 - o for m, o in zip(kernel.shape, self._origins, strict=True))
        return self._changed(self.domain, kernel=kernel, _origins=origins)

    def _derive_tags(self) -> frozenset[str]:
        tags = set(super()._derive_tags())
        unknown = arrays.is_traced(self.kernel) or arrays.trainable(self.kernel)
        if unknown or math.prod(self.kernel.shape) == 0:
            return frozenset(tags)
        kernel = arrays.to_numpy(self.kernel)
        # A transform leaves rounding below zero, so only the direct sum can promise it.
        if not self._fft and kernel.dtype.kind != "c" and bool((kernel >= 0).all()):
            tags.add("nonnegative")
        centered = all(m == 2 * o + 1 for m, o in zip(kernel.shape, self._origins, strict=True))
        if centered and self.domain == self.codomain and not any(self._padded) + any(self._lead):
            if bool((np.flip(kernel).conj() == kernel).all()):
                tags.add("self_adjoint")
        return frozenset(tags)

    def _diagonal(self) -> Array | None:
        if self.domain.shape != self.codomain.shape or any(self._padded) or any(self._lead):
            return None
        dtype = self.codomain.dtype
        value = arrays.cast(self.kernel, dtype)[self._origins]
        return arrays.zeros(self.domain.shape, dtype, self.kernel) + value

    def _gram_diagonal(self, weights: Array | None) -> Array:
        dtype = real_of(self.domain.dtype)
        square = arrays.cast(abs(self.kernel) ** 2, dtype)
        squared = self._changed(self.domain.with_dtype(dtype), kernel=square)
        w = arrays.ones(self.codomain.shape, dtype, self.kernel) if weights is None else weights
        return squared._apply_adjoint(w)

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        halo, k = self.rule.halo(axis), self._position(axis)
        lead = 0 if k is None else self._lead[k]
        return start + lead - halo, stop + lead + halo

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        k = self._position(axis)
        domain = self.domain
        shape = list(domain.shape)
        if k is None:
            i = [a.name for a in self.rule.domain[0]].index(axis)
            n, shape[i] = shape[i], stop - start
            block = self._changed(_reshape(domain, shape))
            if not padded:
                return block
            from linops.algebra.composition import Product
            from linops.elementary.plane_windows import PlaneMask

            return Product([PlaneMask(block.codomain, [(0, i)], -start, n - start), block])
        i, n, halo = self._numbers[k], self._planes[k], self.rule.halo(axis)
        ring = self._edges[k] == _RING
        if self._padded[k] or self._lead[k] or shape[i] != n or self._edges[k] == _ARC:
            return None
        lo, hi = start - halo, stop + halo
        if not padded and not ring:
            lo, hi = max(lo, 0), max(min(hi, n), max(lo, 0))
        shape[i] = hi - lo
        ends = with_row(self.ends, k, np.array([-start, n - start], np.int32))
        return self._changed(
            _reshape(domain, shape),
            _planes=_with(self._planes, k, stop - start),
            _lead=_with(self._lead, k, start - lo),
            _padded=_with(self._padded, k, padded),
            _edges=_with(self._edges, k, _ARC if ring else _ZERO),
            ends=ends,
        )

    def _cost(self) -> Cost:
        entries = math.prod(self.kernel.shape)
        flops = 2.0 * self.codomain.size * entries
        if self._fft:
            flops = 10.0 * self.codomain.size * math.log2(max(self.codomain.size, 2))
        streaming = Cost.streaming(self.domain, self.codomain, flops)
        kernel = entries * arrays.dtype_of(self.kernel).itemsize
        held = self._held(self.domain, self._planes), self._held(self.codomain, self.domain.shape)
        return Cost(flops, streaming.read + kernel, streaming.written, *held)

    def _held(self, source: Space, target: Sequence[int]) -> float:
        """Bytes beside input and result: a window of the input, and a product or spectra."""
        ring = all(edge == _RING for edge in self._edges)
        window, lengths = list(source.shape), list(source.shape)
        planes = target if len(target) == len(self._numbers) else [target[i] for i in self._numbers]
        for i, n, m in zip(self._numbers, planes, self.kernel.shape, strict=True):
            window[i] = n + int(m) - 1
            lengths[i] = n if ring else fast_length(window[i])
        size = self.codomain.dtype.itemsize
        extent = float(math.prod(window)) * source.dtype.itemsize
        made = float(self.codomain.size) * size
        if not self._fft:
            return extent + made
        spectrum = float(math.prod(lengths)) * size
        # NumPy transforms float32 in double precision, then holds the product and two more; the
        # kernel's spectrum is kept.
        several = 6.0 if self.codomain.dtype in ("float32", "complex64") else 3.0
        return (0.0 if ring else extent) + (several + 1.0) * spectrum - made

    def _changed(self, domain: Space, **changes: Any) -> Convolve:
        """The same sum with other parts, and the spaces and the rule that follow."""
        parts = {name: self.__dict__[name] for name in ("kernel", "_origins", "_edges", "_planes")}
        kernel, origins, edges, planes = (changes.get(name, parts[name]) for name in parts)
        codomain, rule = _made_spaces(domain, kernel, self._numbers, origins, edges, planes)
        return self._with(domain=domain, codomain=codomain, rule=rule, **changes)

    def _position(self, axis: str) -> int | None:
        i = [a.name for a in self.rule.domain[0]].index(axis)
        return self._numbers.index(i) if i in self._numbers else None

    def _masked(self, x: Array, inputs: bool) -> Array:
        """Zero, whatever stands there, in planes of a padded block that are outside the array."""
        if True not in self._padded:
            return x
        for k, number in enumerate(self._numbers):
            axis = number - len(self.domain.shape)
            if not self._padded[k] or not x.shape[axis]:
                continue
            before = after = self._lead[k] if inputs else 0
            if inputs and self._edges[k] == _ARC:
                halo = max(self._origins[k], self.kernel.shape[k] - 1 - self._origins[k])
                before, after = before - halo, after + halo
            plane = arrays.namespace(self.ends).arange(x.shape[axis], dtype=self.ends.dtype)
            valid = (plane >= self.ends[k, 0] + before) & (plane < self.ends[k, 1] + after)
            x = arrays.gather_planes(x, axis, plane, valid)
        return x

    def _lines(self, direction: str) -> tuple[SlidingAxis, ...]:
        """Along each convolved axis, what `direct_sum` and `spectral_sum` move and keep."""
        origins: Iterable[tuple[int, int]] = zip(self._origins, self._lead, strict=True)
        if direction == "forward":
            shifts = [o + lead for o, lead in origins]
            planes = self._planes
        else:
            extents = self.kernel.shape
            shifts = [m - 1 - o - lead for m, (o, lead) in zip(extents, origins, strict=True)]
            planes = tuple(self.domain.shape[i] for i in self._numbers)
        n = len(self.domain.shape)
        return tuple(
            SlidingAxis(number - n, shift, count, edge == _RING)
            for number, shift, count, edge in zip(
                self._numbers, shifts, planes, self._edges, strict=True
            )
        )

    def _sum(self, x: Array, kernel: Array, direction: str) -> Array:
        kept = self.__dict__.setdefault("_cache_lines", {})
        lines = kept.get(direction)
        if lines is None:
            lines = kept[direction] = self._lines(direction)
        if not self._fft:
            return direct_sum(x, kernel, lines)
        host = type(self.kernel) is np.ndarray and type(x) is np.ndarray
        cache = self.__dict__.setdefault("_cache_spectra", {}) if host else {}
        return spectral_sum(x, kernel, lines, cache.setdefault(direction, {}))


def _made_spaces(
    domain: Space,
    kernel: Array,
    numbers: tuple[int, ...],
    origins: tuple[int, ...],
    edges: tuple[str, ...],
    planes: tuple[int, ...],
) -> tuple[Space, Rule]:
    """The codomain and the rule that follow from the parts of a convolution."""
    names = domain.axes or tuple(numbered(domain.ndim))
    shape = list(domain.shape)
    left = [Axis(name) for name in names]
    for k, i in enumerate(numbers):
        shape[i] = planes[k]
        reach = max(origins[k], int(kernel.shape[k]) - 1 - origins[k])
        left[i] = Axis(names[i], reach, edges[k] == _RING and reach > 0)
    is_complex = domain.is_complex or arrays.dtype_of(kernel).kind == "c"
    dtype = complex_of(domain.dtype) if is_complex else domain.dtype
    codomain = Space(tuple(shape), dtype, domain.axes, domain.spacing)
    return codomain, Rule((tuple(left),), (tuple(map(Axis, names)),))


def _checked(kernel: Any, space: Space) -> Array:
    kernel = arrays.asarray(kernel, "Convolve", "kernel")
    kind = arrays.dtype_of(kernel).kind
    if kind not in "biufc":
        raise DTypeError(f"Convolve: a kernel holds numbers, got dtype {kernel.dtype}")
    if not 1 <= kernel.ndim <= space.ndim or 0 in kernel.shape:
        raise ShapeError(
            f"Convolve: a kernel has an axis for each convolved axis of {space} and at least one "
            f"entry, got shape {tuple(kernel.shape)}"
        )
    dtype = complex_of(space.dtype) if kind == "c" else real_of(space.dtype)
    return arrays.own(kernel, dtype)


def _axes(space: Space, kernel: Array, axes: Any) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(space.ndim - kernel.ndim, space.ndim))
    numbers = axis_numbers(space, axes, "Convolve")
    if len(numbers) != kernel.ndim:
        raise ShapeError(
            f"Convolve: the kernel has {kernel.ndim} axes, one for each convolved axis once; got "
            f"the axes {axes!r}"
        )
    return numbers


def _origins(kernel: Array, origin: int | Sequence[int] | None) -> tuple[int, ...]:
    shape = tuple(int(m) for m in kernel.shape)
    if origin is None:
        return tuple((m - 1) // 2 for m in shape)
    origins = (origin,) * len(shape) if isinstance(origin, int) else tuple(origin)
    if len(origins) != len(shape) or any(
        not 0 <= o < m for o, m in zip(origins, shape, strict=True)
    ):
        raise ShapeError(
            f"Convolve: the origin is a position in the kernel of shape {shape}, got {origin!r}"
        )
    return tuple(int(o) for o in origins)


def _fold(kernel: Array, axis: int, n: int) -> Array:
    """The kernel added up around a ring of n planes."""
    m = int(kernel.shape[axis])
    if n == 0 or m <= n:
        return kernel
    xp = arrays.namespace(kernel)
    turns = -(-m // n)
    kernel = arrays.widen(kernel, axis, 0, turns * n - m)
    number = kernel.ndim + axis
    shape = tuple(kernel.shape)
    split = (*shape[:number], turns, n, *shape[number + 1 :])
    return xp.sum(xp.reshape(kernel, split), axis=number)


def _reshape(space: Space, shape: Sequence[int]) -> Space:
    return Space(tuple(shape), space.dtype, space.axes, space.spacing)


def _with(values: tuple[Any, ...], k: int, value: Any) -> tuple[Any, ...]:
    return (*values[:k], value, *values[k + 1 :])
