"""The q-generalised Gaussian Markov random field: smooth where it is flat, fair to edges.

    R(x) = sum over axes a, pairs (s, r) adjacent along a:  b_a rho(x_s - x_r)

with a potential that is like `t^p / p` for small and like `T^(p-q) t^q / p` for large
differences (Thibault, Sauer, Bouman, Hsieh 2007), written so that it is exact at 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.functionals.differences import Differences, compilable, narrow_pair, passes, volume
from linops.functionals.functional import positive_number
from linops.operator import Operator
from linops.space import Space

__all__ = ["QGGMRF"]


class QGGMRF(Differences):
    """Sum of weighted potentials of the differences of neighbors.

    Parameters
    ----------
    space
        The domain, real, any number of axes.
    p, q
        Exponents for small and large differences, `0 < q <= p <= 2`; convex for `q >= 1`.
        `p = q = 2` is Tikhonov on differences.
    T
        Where one regime passes into the other, in units of `sigma_x`; > 0.
    sigma_x
        Scale of the differences, in units of a voxel; > 0.
    neighbor_weights
        One weight >= 0 for each axis (z, y, x), or one for all. They are divided by twice their
        sum, so the weights of all neighbors of an inner voxel add to 1. Differences are taken
        by index, as in the literature: who wants physical spacing passes weights for it.

    Raises
    ------
    ValueError
        For a parameter outside its range, naming it, its value and the range.

    Notes
    -----
    At the border the mirrored neighbor is the voxel itself: it adds nothing to value,
    gradient or curvature.
    """

    def __init__(
        self,
        space: Space,
        *,
        p: float = 2.0,
        q: float = 1.2,
        T: Any = 1.0,
        sigma_x: Any = 1.0,
        neighbor_weights: float | Sequence[float] = 1.0,
    ) -> None:
        if not 0 < p <= 2:
            raise ValueError(f"p is {p}; it lies in 0 < p <= 2")
        if not 0 < q <= p:
            raise ValueError(f"q is {q}; it lies in 0 < q <= p = {p}")
        if space.ndim == 0 or space.is_complex:
            raise ValueError(f"QGGMRF takes a real space with one or more axes, got {space}")
        super().__init__(space)
        # Exponents are structure, T and sigma_x are data.
        self._exponents = (float(p), float(q))
        self.T = positive_number(T, "T")
        self.sigma_x = positive_number(sigma_x, "sigma_x")
        self.neighbor_weights = _weights(neighbor_weights, space.ndim)
        total = 2.0 * sum(self.neighbor_weights)
        self.b = tuple(w / total for w in self.neighbor_weights)
        self.convex = self.q >= 1

    @property
    def p(self) -> float:
        """The exponent for small differences."""
        return self._exponents[0]

    @property
    def q(self) -> float:
        """The exponent for large differences."""
        return self._exponents[1]

    def potential(self, d: Array) -> Array:
        """`rho(d) = t^p / (p (1 + r))`, with `t = |d| / sigma_x` and `r = (t / T)^(p - q)`."""
        t, safe, r = self._scaled(d)
        value = self._where(t, safe**self.p, 0.0)
        return value / (self.p * (1.0 + r))

    def influence(self, d: Array) -> Array:
        """`rho'(d)`, 0 at 0."""
        t, safe, r = self._scaled(d)
        u = 1.0 / (1.0 + r)
        size = safe ** (self.p - 1.0) * ((1.0 + self.q / self.p * r) * u) * u / self.sigma_x
        return arrays.namespace(d).sign(d) * self._where(t, size, 0.0)

    def curvature(self, d: Array) -> Array:
        """`m(d) = rho'(d) / d`, the curvature of the parabola that majorizes at d.

        For p < 2 it has no bound at 0 and is taken at `t >= T eps`.
        """
        t = self._floor(d)
        r = self._ratio(t)
        u = 1.0 / (1.0 + r)
        m = ((1.0 + self.q / self.p * r) * u) * u / self.sigma_x / self.sigma_x
        return m if self.p == 2 else m * t ** (self.p - 2.0)

    def second_derivative(self, d: Array) -> Array:
        """`rho''(d)`; for p < 2, where it has no bound at 0, taken at `t >= T eps`."""
        t = self._floor(d)
        r = self._ratio(t)
        p, q = self.p, self.q
        u = 1.0 / (1.0 + r)
        n = (1.0 + q / p * r) * u
        m = u * ((p - 1.0) * n + (p - q) * (q / p - 2.0 * n) * (r * u))
        m = m / self.sigma_x / self.sigma_x
        return m if p == 2 else m * t ** (p - 2.0)

    def _rows(self, index: Any) -> tuple[Operator, Operator]:
        from linops.functionals.qggmrf_rows import QGGMRFForm, QGGMRFTerms

        return QGGMRFTerms(self, index), QGGMRFForm(self, index)

    def _value(self, x: Array) -> Any:
        if self._compilable(x):
            real, window = self._trim()
            x3 = volume(x[real])
            return float(passes().value(x3, *self._weights3(), self._parameters(), window))
        x = self._clean(x)
        total: Any = 0.0
        for a, b in self._axes():
            low, high = narrow_pair(x, a - self._space.ndim)
            terms = self._kept(self.potential(high - low), a)
            part = Space(_tail(terms, self._space.ndim), self.domain.dtype)
            total = total + b * part.inner(terms, arrays.namespace(x).ones_like(terms))
        return total

    def _gradient(self, x: Array) -> Array:
        if self._compilable(x) and self.window is None:
            return self._through(passes().gradient, x)
        return self._accumulate(x, x, lambda b, d, _: b * self.influence(d), signed=True)

    def _form(self, x: Array, v: Array) -> Array:
        if self._compilable(x, v) and self.window is None:
            return self._through(passes().form, x, v)
        return self._accumulate(x, v, lambda b, d, e: b * self.curvature(d) * e, signed=True)

    def _form_diagonal(self, x: Array) -> Array:
        if self._compilable(x) and self.window is None:
            return self._through(passes().form_diagonal, x)
        return self._accumulate(x, x, lambda b, d, _: b * self.curvature(d), signed=False)

    def _hessian_form(self, x: Array, v: Array) -> Array:
        return self._accumulate(
            x, v, lambda b, d, e: b * self.second_derivative(d) * e, signed=True
        )

    def _through(self, compiled: Any, *elements: Array) -> Array:
        """A compiled pass over the real planes."""
        real, _ = self._trim()
        x3 = volume(elements[0][real])
        volumes = [x3, *(x3 if v is elements[0] else volume(v[real]) for v in elements[1:])]
        out = np.zeros_like(x3)
        compiled(*volumes, *self._weights3(), self._parameters(), out)
        like = elements[-1]
        if self.real is None:
            return arrays.convert(out.reshape(self._space.shape), like)
        whole = np.zeros(self._space.shape, out.dtype)
        whole[real] = out.reshape(whole[real].shape)
        return arrays.convert(whole, like)

    def _accumulate(self, x: Array, v: Array, term: Any, signed: bool) -> Array:
        n = self._space.ndim
        total = arrays.namespace(v).zeros_like(v)
        x, v = self._clean(x), self._clean(v)
        for a, b in self._axes():
            low, high = narrow_pair(x, a - n)
            moved_low, moved_high = narrow_pair(v, a - n)
            flow = self._kept(term(b, high - low, moved_high - moved_low), a)
            up, down = arrays.widen(flow, a - n, 1, 0), arrays.widen(flow, a - n, 0, 1)
            total = total + (up - down if signed else up + down)
        return total

    def _axes(self) -> list[tuple[int, float]]:
        return [(a, b) for a, b in enumerate(self.b) if self._space.shape[a] > 1 and b > 0]

    def _kept(self, flow: Array, axis: int) -> Array:
        """Zero for pairs that do not count."""
        mask = self._counted(flow, pairs=axis)
        if mask is None:
            return flow
        xp = arrays.namespace(flow)
        mask = arrays.narrow(mask, axis - self._space.ndim, 0, self._space.shape[axis] - 1)
        return xp.where(mask, flow, xp.zeros_like(flow))

    def _floor(self, d: Array) -> Array:
        xp = arrays.namespace(d)
        t = xp.abs(d) / self.sigma_x
        if self.p == 2:
            return t
        floor = self.T * float(np.finfo(self.domain.dtype).eps)
        return xp.where(t > floor, t, xp.zeros_like(t) + floor)

    def _scaled(self, d: Array) -> tuple[Array, Array, Array]:
        # Where t is 0 a 1 stands in: powers and their derivatives stay finite there.
        xp = arrays.namespace(d)
        t = xp.abs(d) / self.sigma_x
        safe = xp.where(t > 0, t, xp.ones_like(t))
        ratio = self._ratio(safe)
        return t, safe, ratio if self.p == self.q else self._where(t, ratio, 0.0)

    def _ratio(self, t: Array) -> Array:
        xp = arrays.namespace(t)
        if self.p == self.q:
            return xp.ones_like(t)
        r = (t / self.T) ** (self.p - self.q)
        return xp.clip(r, max=_largest(self.domain.dtype))

    def _where(self, t: Array, value: Array, otherwise: float) -> Array:
        xp = arrays.namespace(t)
        return xp.where(t > 0, value, xp.zeros_like(value) + otherwise)

    def _compilable(self, *elements: Array) -> bool:
        plain = isinstance(self.T, float) and isinstance(self.sigma_x, float)
        plain = plain and (self.real is None or arrays.is_numpy(self.real))
        return plain and compilable(self._space, *elements)

    def _weights3(self) -> tuple[Any, ...]:
        kind = self.domain.dtype.type
        return tuple(map(kind, (0.0,) * (3 - self._space.ndim) + self.b))

    def _parameters(self) -> tuple[Any, ...]:
        kind = self.domain.dtype.type
        eps = float(np.finfo(self.domain.dtype).eps)
        floor = self.T * eps if self.p < 2 else 0.0
        numbers = (
            1.0 / self.sigma_x,
            1.0 / self.T,
            self.p,
            self.q / self.p,
            self.p - self.q,
            floor,
            1.0,
        )
        return tuple(map(kind, (*numbers, _largest(self.domain.dtype))))


def _tail(x: Array, ndim: int) -> tuple[int, ...]:
    return tuple(x.shape)[x.ndim - ndim :]


def _largest(dtype: np.dtype) -> float:
    return 1e36 if dtype.itemsize == 4 else 1e300


def _weights(weights: float | Sequence[float], ndim: int) -> tuple[float, ...]:
    listed = isinstance(weights, (tuple, list, np.ndarray))
    entries: tuple[Any, ...] = tuple(weights) if listed else (weights,) * ndim  # type: ignore[arg-type]
    values = tuple(float(w) for w in entries)
    good = len(values) == ndim and all(math.isfinite(w) and w >= 0 for w in values)
    if not good or not any(values):
        raise ValueError(
            f"neighbor_weights is {weights!r}; it is {ndim} finite numbers >= 0, not all zero"
        )
    return values
