"""Inner products whose bits depend on no order: not of entries, planes, devices or ranks.

Every product, in float64 with its last bit cleared, is cut into slices at fixed powers of two below
the largest of all. Sums of one slice are exact, so they may be formed anywhere and in any order;
what is lost lies 60 bits below the largest product, divided by their number. (After J. Demmel and
H. D. Nguyen, Parallel reproducible summation, IEEE Trans. Comput. 64, 2015.)

Where parts of an array lie apart, `largest` of all parts is the maximum of theirs, and `slices` of
all the sum of theirs. In JAX call everything where x64 is enabled.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.reductions import dot as plain_dot

__all__ = ["dot", "largest", "products", "slices", "total"]

_BLOCK = 1 << 16
_KEPT = 60  # bits below the largest product, beyond those that the number of products takes
_FIELD = 52  # bits of a float64 behind those of its exponent
_HIGHEST = 2046


def dot(a: Array, b: Array, ndim: int, host: bool = True) -> Any:
    """`linops.reductions.dot` of arrays that are in one place; where a derivative is recorded, that
    one itself."""
    if not all(arrays.is_concrete(x) and not arrays.requires_gradient(x) for x in (a, b)):
        return plain_dot(a, b, ndim, host)
    if arrays.is_jax(a):
        a, b = np.asarray(a), np.asarray(b)
    batch, count = tuple(a.shape)[: a.ndim - ndim], math.prod(a.shape[a.ndim - ndim :])
    xp = arrays.namespace(a, b)
    left, right = (xp.reshape(x, (*batch, count)) for x in (a, b))
    starts = range(0, count, _BLOCK)
    blocks = [(left[..., k : k + _BLOCK], right[..., k : k + _BLOCK]) for k in starts]
    if not blocks:
        return plain_dot(a, b, ndim, host)
    peak: Any = None
    for block in blocks:
        here = largest(products(*block, 1))
        peak = here if peak is None else xp.maximum(peak, here)
    sums: Any = 0
    with np.errstate(invalid="ignore"):
        for block in blocks:
            sums = sums + slices(products(*block, 1), peak, count)
    value = total(sums, peak)
    return value.item() if host and not value.ndim else value


def products(a: Array, b: Array, ndim: int) -> Array:
    """The terms of inner products over the last `ndim` axes: (*batch, 1, n) float64; of complex
    arrays (*batch, 2, 2 n), real and imaginary parts."""
    xp = arrays.namespace(a, b)
    batch, count = tuple(a.shape)[: a.ndim - ndim], math.prod(a.shape[a.ndim - ndim :])
    a, b = (xp.reshape(x, (*batch, count)) for x in (a, b))
    if arrays.dtype_of(a).kind == "c":
        (p, q), (r, s) = ((_wide(xp.real(x)), _wide(xp.imag(x))) for x in (a, b))
        parts = [xp.concat([p * r, q * s], axis=-1), xp.concat([p * s, -q * r], axis=-1)]
        terms = xp.stack(parts, axis=-2)
    else:
        terms = (_wide(a) * _wide(b))[..., None, :]
    # A compiler fuses a product into the sum behind it or not, but never past its last bit.
    return _floats(_bits(terms) & -2)


def largest(terms: Array) -> Array:
    """The largest magnitude, (*batch, parts), infinite where a term is not finite; 0 of none."""
    xp = arrays.namespace(terms)
    if not terms.shape[-1]:
        return xp.sum(terms, axis=-1)
    peak = xp.max(xp.abs(terms), axis=-1)
    return xp.where(xp.isfinite(peak), peak, xp.full_like(peak, math.inf))


def slices(terms: Array, peak: Array, count: int) -> Array:
    """The sums of the slices of terms, (*batch, parts, slices), exact.

    Parameters
    ----------
    terms
        From `products`.
    peak
        `largest` of all parts of the array.
    count
        Entries of the whole array.
    """
    xp = arrays.namespace(terms, peak)
    carry = math.ceil(math.log2(max(2 * count, 2))) + 1
    field = (_bits(peak) >> _FIELD) + (carry + 1)
    found = []
    for _ in range(math.ceil((_KEPT + carry) / (_FIELD + 1 - carry))):
        anchor = _floats(xp.clip(field, 1, _HIGHEST) << _FIELD)[..., None]
        part = (anchor + terms) - anchor
        terms = terms - part
        found.append(xp.sum(part, axis=-1))
        field = field - (_FIELD + 1 - carry)
    return xp.stack(found, axis=-1)


def total(sums: Array, peak: Array) -> Array:
    """The inner products, (*batch,), of the slices of the whole array; NaN where `peak` is not
    finite."""
    xp = arrays.namespace(sums, peak)
    value = sums[..., -1]
    for k in range(2, sums.shape[-1] + 1):
        value = value + sums[..., -k]
    value = xp.where(xp.isfinite(peak), value, xp.full_like(value, math.nan))
    if value.shape[-1] == 1:
        return value[..., 0]
    if arrays.is_jax(value):
        return sys.modules["jax"].lax.complex(value[..., 0], value[..., 1])
    return value[..., 0] + 1j * value[..., 1]


def _wide(x: Array) -> Array:
    xp = arrays.namespace(x)
    return xp.astype(x, xp.float64)


def _bits(x: Array) -> Any:
    if arrays.is_jax(x):
        jax = sys.modules["jax"]
        return jax.lax.bitcast_convert_type(x, jax.numpy.int64)
    return x.view(arrays.namespace(x).int64)


def _floats(x: Any) -> Array:
    if arrays.is_jax(x):
        jax = sys.modules["jax"]
        return jax.lax.bitcast_convert_type(x, jax.numpy.float64)
    return x.view(arrays.namespace(x).float64)
