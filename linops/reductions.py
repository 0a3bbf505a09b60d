"""Inner products of arrays, accumulated in float64 whatever the arrays' dtype.

NumPy sums fixed blocks in a fixed order, so results depend neither on threads nor on memory
order. A namespace without float64 (JAX without x64) sums compensated pairs under a trace (after
Ogita, Rump, Oishi 2005, algorithm Dot2, here as a tree), and on the host elsewhere.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array

__all__ = ["dot", "paired_dot"]

_BLOCK = 1 << 16


def dot(a: Array, b: Array, ndim: int, host: bool = True) -> Any:
    """`sum(conj(a) * b)` over the last `ndim` axes, accumulated in float64.

    Parameters
    ----------
    a, b
        Arrays of equal shape and dtype, `ndim` axes after any batch axes.
    ndim
        Number of trailing axes that are summed.
    host
        Whether a result without batch axes and without a trace is read as a Python number;
        else it stays a 0-d array of the namespace.

    Returns
    -------
    float, complex or array
        One value for each member of the batch.
    """
    if arrays.is_numpy(a) and arrays.is_numpy(b):
        value = _dot_numpy(a, b, ndim)
        return value if not host or value.ndim else value.item()
    if arrays.is_jax(a) or arrays.is_jax(b):
        return _dot_jax(a, b, ndim, host)
    xp = arrays.namespace(a, b)
    axes = tuple(range(-ndim, 0))
    complex_ = arrays.dtype_of(a).kind == "c"
    dtype = np.dtype("complex128" if complex_ else "float64")
    left, right = arrays.cast(a, dtype), arrays.cast(b, dtype)
    product = (xp.conj(left) if complex_ else left) * right
    value = xp.sum(product, axis=axes) if ndim else product
    recorded = arrays.requires_gradient(value) or not arrays.is_concrete(value)
    if host and not value.ndim and not recorded:
        return complex(value) if complex_ else float(value)
    return value


def _dot_numpy(a: np.ndarray, b: np.ndarray, ndim: int) -> np.ndarray:
    dtype = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    batch = a.shape[: a.ndim - ndim]
    if batch:
        out = np.empty(batch, dtype)
        for index in np.ndindex(*batch):
            out[index] = _dot_numpy(a[index], b[index], ndim)
        return out
    # C order whatever the memory order: equal elements have equal inner products.
    left, right = a.reshape(-1), b.reshape(-1)
    total = dtype(0)
    for start in range(0, left.size, _BLOCK):
        part = left[start : start + _BLOCK]
        part = part.conj() if part.dtype.kind == "c" else part
        total += np.multiply(part, right[start : start + _BLOCK], dtype=dtype).sum()
    return np.asarray(total)


def _dot_jax(a: Array, b: Array, ndim: int, host: bool) -> Any:
    jax = sys.modules["jax"]
    jnp = jax.numpy
    if host and not arrays.is_traced(a) and not arrays.is_traced(b):
        value = _dot_numpy(np.asarray(a), np.asarray(b), ndim)
        return value.item() if not value.ndim else jnp.asarray(value)
    high, low = paired_dot(a, b, ndim)
    return high + low


def paired_dot(a: Array, b: Array, ndim: int) -> tuple[Array, Array]:
    """`dot` of JAX arrays as two summands, of which the second is what the first rounds away.

    With x64 the first is in float64 and the second is 0.
    """
    jax = sys.modules["jax"]
    jnp = jax.numpy
    complex_ = arrays.dtype_of(a).kind == "c"
    if jax.config.jax_enable_x64:
        dtype = jnp.complex128 if complex_ else jnp.float64
        product = jnp.conj(a).astype(dtype) * b.astype(dtype)
        high = jnp.sum(product, axis=tuple(range(-ndim, 0))) if ndim else product
        return high, jnp.zeros_like(high)
    batch = a.shape[: a.ndim - ndim]
    left, right = a.reshape(*batch, -1), b.reshape(*batch, -1)
    dot2 = _compiled_dot2()
    if not complex_:
        found: tuple[Array, Array] = dot2(left, right)
        return found
    parts = [
        (dot2(left.real, right.real), dot2(left.imag, right.imag)),
        (dot2(left.real, right.imag), dot2(-left.imag, right.real)),
    ]
    real, imaginary = (_added(x, y) for x, y in parts)
    return tuple(jax.lax.complex(r, i) for r, i in zip(real, imaginary, strict=True))


def _added(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
    total = x[0] + y[0]
    z = total - x[0]
    return total, ((x[0] - (total - z)) + (y[0] - z)) + x[1] + y[1]


@functools.cache
def _compiled_dot2() -> Any:
    # Outside a trace too: one program, not twenty small ones for each halving.
    return sys.modules["jax"].jit(_dot2)


def _dot2(a: Array, b: Array) -> tuple[Array, Array]:
    jnp = sys.modules["jax"].numpy
    # Products of halves of the digits are exact, so it is all one whether a compiler rounds them
    # or fuses them into the sum behind.
    (ah, al), (bh, bl) = _halves(a.astype(jnp.float32)), _halves(b.astype(jnp.float32))
    high, low = ah * bh, (ah * bl + al * bh) + al * bl
    while high.shape[-1] > 1:
        if high.shape[-1] % 2:
            pad = [(0, 0)] * (high.ndim - 1) + [(0, 1)]
            high, low = jnp.pad(high, pad), jnp.pad(low, pad)
        half = high.shape[-1] // 2
        high, low = _added((high[..., :half], low[..., :half]), (high[..., half:], low[..., half:]))
    if high.shape[-1] == 0:
        nothing = jnp.zeros(high.shape[:-1], jnp.float32)
        return nothing, nothing
    return high[..., 0], low[..., 0]


def _halves(x: Array) -> tuple[Array, Array]:
    """The first twelve digits of float32 numbers, and the others."""
    jax = sys.modules["jax"]
    bits = jax.lax.bitcast_convert_type(x, jax.numpy.int32) & -4096
    high = jax.lax.bitcast_convert_type(bits, jax.numpy.float32)
    return high, x - high
