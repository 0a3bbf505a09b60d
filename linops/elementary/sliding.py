"""The sum that convolutions are made of: `y[i] = sum_k h[k] x[i + shift - k]` along some axes.

Beyond its planes x is zero, or goes on around the ring. Two ways, for small and for large kernels:
shift by shift, and through the array library's own FFT. What the sum is for, its blocks and its
adjoint, is in `linops/elementary/convolve.py`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.precision import complex_of

__all__ = ["SlidingAxis", "direct_sum", "fast_length", "spectral_sum"]


class SlidingAxis(NamedTuple):
    """One axis of a sum.

    Attributes
    ----------
    axis
        Of x, negative.
    shift
        Input plane that `h[0]` weighs in output plane 0.
    planes
        Planes of the output.
    ring
        Whether x goes on at its other end; the output then has as many planes as x.
    """

    axis: int
    shift: int
    planes: int
    ring: bool


def direct_sum(x: Array, kernel: Array, lines: Sequence[SlidingAxis]) -> Array:
    """The sum shift by shift; one line for each axis of `kernel`."""
    empty = _empty(x, kernel, lines)
    if empty is not None:
        return empty
    return arrays.compiled(_shifted_sum, x, kernel, lines=tuple(lines))


def _shifted_sum(x: Array, kernel: Array, lines: tuple[SlidingAxis, ...]) -> Array:
    for line, m in zip(lines, kernel.shape, strict=True):
        x = _window(x, line.axis, line.shift - (m - 1), line.shift + line.planes, line.ring)
    total: Any = None
    for position, planes in _shifts(lines, tuple(kernel.shape)):
        if total is None:
            total = kernel[position] * x[planes]
        elif type(total) is np.ndarray:  # the product has no name, so it ends before the next
            total += kernel[position] * x[planes]
        else:
            total = total + kernel[position] * x[planes]
    return total


@functools.lru_cache(512)
def _shifts(
    lines: tuple[SlidingAxis, ...], extents: tuple[int, ...]
) -> tuple[tuple[Any, Any], ...]:
    """Positions in a kernel, and the planes of the window that meet each of them."""
    found = []
    for position in itertools.product(*map(range, extents)):
        planes = [slice(None)] * max((-line.axis for line in lines), default=0)
        for line, k, m in zip(lines, position, extents, strict=True):
            planes[line.axis] = slice(m - 1 - k, m - 1 - k + line.planes)
        found.append((position, (..., *planes)))
    return tuple(found)


def spectral_sum(
    x: Array, kernel: Array, lines: Sequence[SlidingAxis], cache: dict[bool, Array]
) -> Array:
    """The sum through FFTs; the kernel's spectrum is kept in `cache`, by whether it is real."""
    empty = _empty(x, kernel, lines)
    if empty is not None:
        return empty
    xp = arrays.namespace(x)
    lengths, firsts = [], []
    for line, m in zip(lines, kernel.shape, strict=True):
        if not line.ring:
            # Of a window that holds all that is read, only planes that are not wanted alias.
            x = _window(x, line.axis, line.shift - (m - 1), line.shift + line.planes, False)
        lengths.append(line.planes if line.ring else fast_length(line.planes + m - 1))
        firsts.append(0 if line.ring else m - 1)
    is_real = arrays.dtype_of(x).kind != "c" and arrays.dtype_of(kernel).kind != "c"
    axes, s = tuple(line.axis for line in lines), tuple(lengths)
    if is_real not in cache:
        cache[is_real] = _spectrum(kernel, lines, s, is_real)
    forward = xp.fft.rfftn if is_real else xp.fft.fftn
    backward = xp.fft.irfftn if is_real else xp.fft.ifftn
    if not is_real:
        x = arrays.cast(x, complex_of(arrays.dtype_of(x)))
    spectrum = forward(arrays.row_major(x), s=s, axes=axes) * cache[is_real]
    y = arrays.row_major(backward(spectrum, s=s, axes=axes))
    for line, first in zip(lines, firsts, strict=True):
        y = arrays.narrow(y, line.axis, first, first + line.planes)
    return y


def _spectrum(
    kernel: Array, lines: Sequence[SlidingAxis], lengths: Sequence[int], is_real: bool
) -> Array:
    """The kernel's transform, its axes where those of x are."""
    xp = arrays.namespace(kernel)
    own = tuple(range(-kernel.ndim, 0))
    for axis, length in zip(own, lengths, strict=True):
        kernel = arrays.widen(kernel, axis, 0, length - kernel.shape[axis])
    kernel = xp.roll(kernel, tuple(-line.shift if line.ring else 0 for line in lines), axis=own)
    if is_real:
        spectrum = xp.fft.rfftn(kernel, axes=own)
    else:
        spectrum = xp.fft.fftn(arrays.cast(kernel, complex_of(arrays.dtype_of(kernel))), axes=own)
    order = sorted(range(len(lines)), key=lambda k: lines[k].axis)
    spectrum = xp.permute_dims(spectrum, tuple(order))
    shape = [1] * -lines[order[0]].axis
    for k, extent in zip(order, spectrum.shape, strict=True):
        shape[lines[k].axis] = int(extent)
    return xp.reshape(spectrum, tuple(shape))


def _empty(x: Array, kernel: Array, lines: Sequence[SlidingAxis]) -> Array | None:
    """Zeros where there is nothing to sum, or nothing to sum it for."""
    if 0 not in x.shape and 0 not in [line.planes for line in lines]:
        return None
    dtype = arrays.dtype_of(x)
    if arrays.dtype_of(kernel).kind == "c":
        dtype = complex_of(dtype)
    shape = list(x.shape)
    for line in lines:
        shape[line.axis] = line.planes
    return arrays.zeros(tuple(shape), dtype, x)


def _window(x: Array, axis: int, start: int, stop: int, ring: bool) -> Array:
    """Planes `start` to `stop` along a negative axis, beyond the ends zero or around the ring."""
    n = x.shape[axis]
    if ring:
        xp = arrays.namespace(x)
        index = arrays.convert(np.arange(start, stop) % n, x)
        return xp.take(x, index, axis=x.ndim + axis)
    first, last, before, after = _cut(n, start, stop)
    return arrays.widen(arrays.narrow(x, axis, first, last), axis, before, after)


@functools.lru_cache(512)
def _cut(n: int, start: int, stop: int) -> tuple[int, int, int, int]:
    """Of planes `start` to `stop`, the range that is among n, and how many lie before and after."""
    first = min(max(start, 0), n)
    last = max(first, min(stop, n), 0)
    before = min(max(first - start, 0), stop - start)
    return first, last, before, stop - start - before - (last - first)


def fast_length(n: int) -> int:
    """The smallest product of 2, 3 and 5 that is at least n."""
    best = 1 << max(n - 1, 0).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            two = three * (1 << max(-(-n // three) - 1, 0).bit_length())
            best = min(best, two)
            three *= 3
        five *= 5
    return best
