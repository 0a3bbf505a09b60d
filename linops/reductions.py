"""Inner products of arrays, accumulated in float64 whatever the arrays' dtype.

NumPy sums fixed blocks in a fixed order, so results depend neither on threads nor on memory
order. A namespace without float64 (JAX without x64) sums compensated pairs under a trace (after
Ogita, Rump, Oishi 2005, algorithm Dot2, here row by row), and on the host elsewhere.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array

__all__ = ["dot", "paired_dot", "sum_pairs", "summing"]

_BLOCK = 1 << 16
_ROWS = 64
_RANK = 6
"""Of what XLA multiplies and sums: above it jax 0.10.2 and 0.11.0 crash or hang (jax#39257)."""


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


def summing(space: Any) -> float:
    """Bytes that `dot` of two NumPy elements of a space holds: a block of products, and what NumPy
    casts and conjugates of it."""
    held = 0.0
    for member in space.members:
        count, kind = min(member.size, _BLOCK), member.dtype
        wide = 16 if kind.kind == "c" else 8
        casts = 2 * min(count, np.getbufsize()) * wide if kind.itemsize < wide else 0
        held = max(held, count * (wide + kind.itemsize * (kind.kind == "c")) + casts)
    return float(held)


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
    if a.ndim > _RANK:
        a, b = (x.reshape(*x.shape[: x.ndim - ndim], -1) for x in (a, b))
        ndim = 1
    if jax.config.jax_enable_x64:
        dtype = jnp.complex128 if complex_ else jnp.float64
        product = jnp.conj(a).astype(dtype) * b.astype(dtype)
        high = jnp.sum(product, axis=tuple(range(-ndim, 0))) if ndim else product
        return high, jnp.zeros_like(high)
    batch = a.shape[: a.ndim - ndim]
    left, right = a.reshape(*batch, -1), b.reshape(*batch, -1)
    dot2 = _compile_dot2()
    if not complex_:
        found: tuple[Array, Array] = dot2(left, right)
        return found
    parts = [
        (dot2(left.real, right.real), dot2(left.imag, right.imag)),
        (dot2(left.real, right.imag), dot2(-left.imag, right.real)),
    ]
    real, imaginary = (_add_pairs(x, y) for x, y in parts)
    return tuple(jax.lax.complex(r, i) for r, i in zip(real, imaginary, strict=True))


def _add_pairs(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
    total = x[0] + y[0]
    z = total - x[0]
    return total, ((x[0] - (total - z)) + (y[0] - z)) + x[1] + y[1]


@functools.cache
def _compile_dot2() -> Any:
    # Outside a trace too: one program, not twenty small ones.
    return sys.modules["jax"].jit(_dot2)


def _dot2(a: Array, b: Array) -> tuple[Array, Array]:
    return _over_rows((a, b), _product)


def sum_pairs(high: Array, low: Array) -> tuple[Array, Array]:
    """Sums of JAX arrays along their last axis: `(high, low)`, `low` what is rounded away."""
    return _over_rows((high, low), lambda high, low: (high, low))


def _over_rows(operands: Sequence[Array], pair: Callable[..., Any]) -> tuple[Array, Array]:
    """The sum of `pair` along the last axis: rows are added up in a loop, again and again, until
    one entry is left. A loop, for a tree takes seconds to compile."""
    jax = sys.modules["jax"]
    jnp, lax = jax.numpy, jax.lax
    n = operands[0].shape[-1]
    if n < 2:
        high, low = (jnp.sum(x, axis=-1) for x in pair(*operands))
        return high, low
    width = -(-n // _ROWS)
    rows = -(-n // width)
    pad = [(0, 0)] * (operands[0].ndim - 1) + [(0, rows * width - n)]
    operands = [jnp.pad(x, pad) for x in operands]

    def row(k: Any) -> Any:
        return pair(*(lax.dynamic_slice_in_dim(x, k * width, width, axis=-1) for x in operands))

    total = lax.fori_loop(1, rows, lambda k, total: _add_pairs(total, row(k)), row(0))
    return sum_pairs(*total)


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    jnp = sys.modules["jax"].numpy
    # Products of halves of the digits are exact, so it is all one whether a compiler rounds them
    # or fuses them into the sum behind.
    (ah, al), (bh, bl) = _halves(a.astype(jnp.float32)), _halves(b.astype(jnp.float32))
    return ah * bh, (ah * bl + al * bh) + al * bl


def _halves(x: Array) -> tuple[Array, Array]:
    """The first twelve digits of float32 numbers, and the others."""
    high = _clear_last_bits(-4096, x)
    return high, x - high


def _clear_last_bits(mask: int, x: Array) -> Array:
    """Numbers with some of their last bits cleared; its derivative is that of the identity."""
    return _clear()(mask, x)


@functools.cache
def _clear() -> Any:
    jax = sys.modules["jax"]
    lax = jax.lax

    def clear(mask: int, x: Array) -> Array:
        bits = lax.bitcast_convert_type(x, jax.numpy.int32)
        return lax.bitcast_convert_type(bits & mask, x.dtype)

    made = jax.custom_jvp(clear, nondiff_argnums=(0,))
    made.defjvp(lambda mask, primals, tangents: (made(mask, *primals), *tangents))
    return made
