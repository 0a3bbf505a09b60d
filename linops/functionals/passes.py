"""Compiled passes over a volume for functionals of differences.

Each function walks a C-contiguous volume of three axes once, holds no array of differences,
and runs without the GIL. Importing this module imports Numba; callers do so on first use.
Scalars come in the volume's dtype, so that float32 work stays float32.

`parameters` of the q-generalised Gaussian potential is the tuple
(1/sigma, 1/T, p, q/p, p - q, smallest t of the curvature, one, largest r); a `window` holds first
and last plane (the latter not included) of each axis.
"""

from __future__ import annotations

import math
from typing import Any

from linops.compiled.caching import kept_njit

__all__ = [
    "form",
    "form_diagonal",
    "gradient",
    "subset_form",
    "subset_terms",
    "tv_diagonal",
    "tv_form",
    "tv_value",
    "value",
]

_jit = kept_njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True, fastmath={"contract"})


@_jit
def tv_value(x: Any, h0: Any, h1: Any, h2: Any, eps: Any, window: Any) -> float:
    """Sum of the smoothed lengths of the gradient in a window, in float64."""
    n0, n1, n2 = x.shape
    zero = x.dtype.type(0)
    total = 0.0
    for i in range(window[0], window[1]):
        for j in range(window[2], window[3]):
            row = 0.0
            for k in range(window[4], window[5]):
                c = x[i, j, k]
                a = (x[i + 1, j, k] - c) * h0 if i + 1 < n0 else zero
                b = (x[i, j + 1, k] - c) * h1 if j + 1 < n1 else zero
                d = (x[i, j, k + 1] - c) * h2 if k + 1 < n2 else zero
                row += math.sqrt(a * a + b * b + d * d + eps)
            total += row
    return total


@_jit
def tv_form(x: Any, v: Any, h0: Any, h1: Any, h2: Any, eps: Any, scale: Any, out: Any) -> None:
    """`out += scale * G.H (G v / |G x|)`; the gradient where v is x. `out` comes in as zeros."""
    n0, n1, n2 = x.shape
    zero = x.dtype.type(0)
    for i in range(n0):
        for j in range(n1):
            for k in range(n2):
                c, m = x[i, j, k], v[i, j, k]
                a = b = d = a2 = b2 = d2 = zero
                if i + 1 < n0:
                    a = (x[i + 1, j, k] - c) * h0
                    a2 = (v[i + 1, j, k] - m) * h0
                if j + 1 < n1:
                    b = (x[i, j + 1, k] - c) * h1
                    b2 = (v[i, j + 1, k] - m) * h1
                if k + 1 < n2:
                    d = (x[i, j, k + 1] - c) * h2
                    d2 = (v[i, j, k + 1] - m) * h2
                w = scale / math.sqrt(a * a + b * b + d * d + eps)
                a2 *= h0 * w
                b2 *= h1 * w
                d2 *= h2 * w
                out[i, j, k] -= a2 + b2 + d2
                if i + 1 < n0:
                    out[i + 1, j, k] += a2
                if j + 1 < n1:
                    out[i, j + 1, k] += b2
                if k + 1 < n2:
                    out[i, j, k + 1] += d2


@_jit
def tv_diagonal(x: Any, h0: Any, h1: Any, h2: Any, eps: Any, scale: Any, out: Any) -> None:
    """The diagonal of `tv_form`."""
    n0, n1, n2 = x.shape
    zero = x.dtype.type(0)
    for i in range(n0):
        for j in range(n1):
            for k in range(n2):
                c = x[i, j, k]
                a = (x[i + 1, j, k] - c) * h0 if i + 1 < n0 else zero
                b = (x[i, j + 1, k] - c) * h1 if j + 1 < n1 else zero
                d = (x[i, j, k + 1] - c) * h2 if k + 1 < n2 else zero
                w = scale / math.sqrt(a * a + b * b + d * d + eps)
                if i + 1 < n0:
                    out[i, j, k] += w * h0 * h0
                    out[i + 1, j, k] += w * h0 * h0
                if j + 1 < n1:
                    out[i, j, k] += w * h1 * h1
                    out[i, j + 1, k] += w * h1 * h1
                if k + 1 < n2:
                    out[i, j, k] += w * h2 * h2
                    out[i, j, k + 1] += w * h2 * h2


@_jit
def _ratio(t: Any, q: Any) -> Any:
    if q[4] == 0:
        return q[6]
    return min((t * q[1]) ** q[4], q[7])


@_jit
def _potential(d: Any, q: Any) -> Any:
    t = abs(d) * q[0]
    return t ** q[2] / (q[2] * (q[6] + _ratio(t, q)))


@_jit
def _curvature(d: Any, q: Any) -> Any:
    t = max(abs(d) * q[0], q[5])
    r = _ratio(t, q)
    u = q[6] / (q[6] + r)
    m = q[0] * q[0] * ((q[6] + q[3] * r) * u) * u
    if q[2] != 2:
        m *= t ** (q[2] - 2 * q[6])
    return m


@_jit
def _slope(d: Any, m: Any, q: Any) -> Any:
    """rho'(d) from its curvature m, and from its own formula where m is held at its floor."""
    t = abs(d) * q[0]
    # Of small or large units the curvature may be no number of float32.
    if (t >= q[5] and 0 < m < q[7]) or d == 0:
        return m * d if d != 0 else d
    r = _ratio(t, q)
    u = q[6] / (q[6] + r)
    size = t ** (q[2] - q[6]) * ((q[6] + q[3] * r) * u) * u * q[0]
    return size if d > 0 else -size


@_jit
def gradient(x: Any, b0: Any, b1: Any, b2: Any, parameters: Any, out: Any) -> None:
    """`out += D.H (b rho'(D x))`. `out` comes in as zeros."""
    n0, n1, n2 = x.shape
    for i in range(n0):
        for j in range(n1):
            for k in range(n2):
                c = x[i, j, k]
                if i + 1 < n0:
                    d = x[i + 1, j, k] - c
                    f = b0 * _slope(d, _curvature(d, parameters), parameters)
                    out[i, j, k] -= f
                    out[i + 1, j, k] += f
                if j + 1 < n1:
                    d = x[i, j + 1, k] - c
                    f = b1 * _slope(d, _curvature(d, parameters), parameters)
                    out[i, j, k] -= f
                    out[i, j + 1, k] += f
                if k + 1 < n2:
                    d = x[i, j, k + 1] - c
                    f = b2 * _slope(d, _curvature(d, parameters), parameters)
                    out[i, j, k] -= f
                    out[i, j, k + 1] += f


@_jit
def value(x: Any, b0: Any, b1: Any, b2: Any, parameters: Any, window: Any) -> float:
    """Sum of the weighted potentials of the pairs whose first is in a window, in float64."""
    n0, n1, n2 = x.shape
    total = 0.0
    for i in range(window[0], window[1]):
        for j in range(window[2], window[3]):
            row = 0.0
            for k in range(window[4], window[5]):
                c = x[i, j, k]
                if i + 1 < n0:
                    row += b0 * _potential(x[i + 1, j, k] - c, parameters)
                if j + 1 < n1:
                    row += b1 * _potential(x[i, j + 1, k] - c, parameters)
                if k + 1 < n2:
                    row += b2 * _potential(x[i, j, k + 1] - c, parameters)
            total += row
    return total


@_jit
def form(x: Any, v: Any, b0: Any, b1: Any, b2: Any, parameters: Any, out: Any) -> None:
    """`out += D.H (b m(D x) D v)`; the gradient where v is x. `out` comes in as zeros."""
    n0, n1, n2 = x.shape
    for i in range(n0):
        for j in range(n1):
            for k in range(n2):
                c, e = x[i, j, k], v[i, j, k]
                if i + 1 < n0:
                    f = b0 * _curvature(x[i + 1, j, k] - c, parameters) * (v[i + 1, j, k] - e)
                    out[i, j, k] -= f
                    out[i + 1, j, k] += f
                if j + 1 < n1:
                    f = b1 * _curvature(x[i, j + 1, k] - c, parameters) * (v[i, j + 1, k] - e)
                    out[i, j, k] -= f
                    out[i, j + 1, k] += f
                if k + 1 < n2:
                    f = b2 * _curvature(x[i, j, k + 1] - c, parameters) * (v[i, j, k + 1] - e)
                    out[i, j, k] -= f
                    out[i, j, k + 1] += f


@_jit
def form_diagonal(x: Any, b0: Any, b1: Any, b2: Any, parameters: Any, out: Any) -> None:
    """The diagonal of `form`."""
    n0, n1, n2 = x.shape
    for i in range(n0):
        for j in range(n1):
            for k in range(n2):
                c = x[i, j, k]
                if i + 1 < n0:
                    m = b0 * _curvature(x[i + 1, j, k] - c, parameters)
                    out[i, j, k] += m
                    out[i + 1, j, k] += m
                if j + 1 < n1:
                    m = b1 * _curvature(x[i, j + 1, k] - c, parameters)
                    out[i, j, k] += m
                    out[i, j + 1, k] += m
                if k + 1 < n2:
                    m = b2 * _curvature(x[i, j, k + 1] - c, parameters)
                    out[i, j, k] += m
                    out[i, j, k + 1] += m


@_jit
def subset_terms(
    x: Any,
    rows: Any,
    first: Any,
    index: Any,
    neighbors: Any,
    weights: Any,
    parameters: Any,
    gradient: Any,
    diagonal: Any,
) -> None:
    """Gradient and curvature at positions `index` of every slice of `x`, shape (slices, plane).

    `rows`, (slices with neighbors, positions), holds x there; slice 0 of x is slice `first` of
    them. `neighbors`, (4, positions), holds those in the plane (y-1, y+1, x-1, x+1), -1 for
    none; `weights` the three b, slices first. Entries of inert positions are written as zeros.
    """
    zero = x.dtype.type(0)
    for z in range(x.shape[0]):
        k = z + first
        for s in range(index.shape[0]):
            g = c = zero
            if index[s] >= 0:
                center = rows[k, s]
                if k > 0:
                    d = center - rows[k - 1, s]
                    m = _curvature(d, parameters)
                    c += weights[0] * m
                    g += weights[0] * _slope(d, m, parameters)
                if k + 1 < rows.shape[0]:
                    d = center - rows[k + 1, s]
                    m = _curvature(d, parameters)
                    c += weights[0] * m
                    g += weights[0] * _slope(d, m, parameters)
                for way in range(4):
                    there = neighbors[way, s]
                    if there >= 0:
                        d = center - x[z, there]
                        m = _curvature(d, parameters)
                        c += weights[1 + way // 2] * m
                        g += weights[1 + way // 2] * _slope(d, m, parameters)
            gradient[z, s] = g
            diagonal[z, s] = c


@_jit
def subset_form(
    x: Any,
    rows: Any,
    d: Any,
    first: Any,
    index: Any,
    neighbors: Any,
    inner: Any,
    weights: Any,
    parameters: Any,
    out: Any,
) -> None:
    """Rows of `S(x) d` for d on a subset, laid out as `rows`; `inner` are the neighbors' places
    in it. The rest as for `subset_terms`."""
    zero = x.dtype.type(0)
    for z in range(x.shape[0]):
        k = z + first
        for s in range(index.shape[0]):
            f = zero
            if index[s] >= 0:
                center, move = rows[k, s], d[k, s]
                if k > 0:
                    m = weights[0] * _curvature(center - rows[k - 1, s], parameters)
                    f += m * (move - d[k - 1, s])
                if k + 1 < rows.shape[0]:
                    m = weights[0] * _curvature(center - rows[k + 1, s], parameters)
                    f += m * (move - d[k + 1, s])
                for way in range(4):
                    there = neighbors[way, s]
                    if there >= 0:
                        m = weights[1 + way // 2] * _curvature(center - x[z, there], parameters)
                        other = inner[way, s]
                        f += m * (move - d[k, other]) if other >= 0 else m * move
            out[z, s] = f
