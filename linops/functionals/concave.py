"""Penalties that are not convex: they count or saturate, so that large entries are left alone.

All but `L0` have a surrogate, so that majorization-minimization (iteratively reweighted least
squares) descends. None is convex: Moreau's identity does not hold for them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from linops import arrays
from linops.arrays import Array
from linops.elementary.diagonal import Diagonal
from linops.functionals.entries import Entries
from linops.functionals.functional import positive_number
from linops.functionals.norms import _nonzero, _over, _refuse_kinks
from linops.linear_operator import LinearOperator
from linops.space import Space

__all__ = ["L0", "Cauchy", "GemanMcClure", "LogSum", "Lp"]


class L0(Entries):
    """`sum w` over the entries that are not 0.

    Parameters
    ----------
    space
        The domain, real or complex.
    weights
        w >= 0, one number or an array of the domain's shape.
    """

    _tables: ClassVar[Mapping[str, float]] = {"weights": 0.0}

    def __init__(self, space: Space, weights: Any = 1.0) -> None:
        super().__init__(space)
        self.weights = self._admit_weights(weights)

    def _value(self, x: Array) -> Any:
        xp = arrays.namespace(x)
        size = xp.abs(x)
        # NaN stays: 0 * NaN is not 0.
        one = xp.where(size == 0, xp.zeros_like(size), xp.ones_like(size))
        counted = xp.where(size == size, one, size)
        return self._sum(self._table("weights", x) * counted)

    def _prox(self, x: Array, step: Any) -> Array:
        """Hard thresholding: what is not above `sqrt(2 step w)` becomes 0."""
        xp = arrays.namespace(x)
        size = xp.abs(x)
        return xp.where(size * size <= 2.0 * step * self._table("weights", x), xp.zeros_like(x), x)


class _Saturating(Entries):
    """`sum phi(|x / scale|^2)` with a concave phi.

    Parameters
    ----------
    space
        The domain, real or complex.
    scale
        The modulus at which the penalty turns from a parabola, > 0.
    """

    def __init__(self, space: Space, scale: Any = 1.0) -> None:
        super().__init__(space)
        self.scale = positive_number(scale, "scale")

    def surrogate(self, x: Array) -> LinearOperator:
        """The diagonal of `2 phi'(|x / scale|^2) / scale^2`."""
        return Diagonal(self._weight(self._admit(x)), self._space)

    @abstractmethod
    def _phi(self, s: Array) -> Array: ...

    @abstractmethod
    def _phi_slope(self, s: Array) -> Array: ...

    @abstractmethod
    def _phi_bend(self, s: Array) -> Array: ...

    def _value(self, x: Array) -> Any:
        return self._sum(self._phi(self._square(x)))

    def _gradient(self, x: Array) -> Array:
        return x * self._weight(x)

    def _hessian(self, x: Array) -> LinearOperator:
        if self.domain.is_complex:
            return super()._hessian(x)
        s = self._square(x)
        curvature = 2.0 * self._phi_slope(s) + 4.0 * s * self._phi_bend(s)
        return Diagonal(curvature / self.scale / self.scale, self._space)

    def _weight(self, x: Array) -> Array:
        return 2.0 * self._phi_slope(self._square(x)) / self.scale / self.scale

    def _square(self, x: Array) -> Array:
        size = arrays.namespace(x).abs(x) / self.scale
        return size * size


class Cauchy(_Saturating):
    """`sum log(1 + |x / scale|^2)`, the negative log-likelihood of a Cauchy distribution.

    Parameters
    ----------
    space
        The domain, real or complex.
    scale
        > 0.
    """

    def _phi(self, s: Array) -> Array:
        return arrays.namespace(s).log1p(s)

    def _phi_slope(self, s: Array) -> Array:
        return 1.0 / (1.0 + s)

    def _phi_bend(self, s: Array) -> Array:
        return -1.0 / (1.0 + s) ** 2


class GemanMcClure(_Saturating):
    """`sum s / (1 + s)`, `s = |x / scale|^2`: at most 1 an entry.

    Parameters
    ----------
    space
        The domain, real or complex.
    scale
        > 0.
    """

    def _phi(self, s: Array) -> Array:
        return s / (1.0 + s)

    def _phi_slope(self, s: Array) -> Array:
        return 1.0 / (1.0 + s) ** 2

    def _phi_bend(self, s: Array) -> Array:
        return -2.0 / (1.0 + s) ** 3


class Lp(_Saturating):
    """`sum (1 + |x / scale|^2)^(p / 2) - 1`, the p-th power of moduli, smooth below `scale`.

    Parameters
    ----------
    space
        The domain, real or complex.
    p
        0 < p <= 2; below 1 it is not convex.
    scale
        > 0.
    """

    def __init__(self, space: Space, p: float = 0.5, scale: Any = 1.0) -> None:
        super().__init__(space, scale)
        if not 0 < p <= 2:
            raise ValueError(f"Lp: p is {p}; it lies above 0 and is 2 at most")
        self.p = float(p)

    def _phi(self, s: Array) -> Array:
        xp = arrays.namespace(s)
        return xp.expm1(self.p / 2 * xp.log1p(s))

    def _phi_slope(self, s: Array) -> Array:
        return self.p / 2 * (1.0 + s) ** (self.p / 2 - 1.0)

    def _phi_bend(self, s: Array) -> Array:
        return self.p / 2 * (self.p / 2 - 1.0) * (1.0 + s) ** (self.p / 2 - 2.0)


class LogSum(Entries):
    """`sum log(1 + |x| / scale)` (Candes, Wakin, Boyd, 2008): sharper than L1 at 0.

    Parameters
    ----------
    space
        The domain, real or complex.
    scale
        > 0; for large ones it is `L1 / scale`.
    """

    def __init__(self, space: Space, scale: Any = 1.0) -> None:
        super().__init__(space)
        self.scale = positive_number(scale, "scale")

    def surrogate(self, x: Array) -> LinearOperator:
        """The diagonal of `1 / (|x| (|x| + scale))`, where no entry is 0."""
        size = arrays.namespace(x).abs(self._admit(x))
        _refuse_kinks(self.name, size)
        return Diagonal(1.0 / (size * (size + self.scale)), self._space)

    def _value(self, x: Array) -> Any:
        xp = arrays.namespace(x)
        return self._sum(xp.log1p(xp.abs(x) / self.scale))

    def _gradient(self, x: Array) -> Array:
        """`x / (|x| (|x| + scale))`, 0 at 0."""
        size = arrays.namespace(x).abs(x)
        return _over(x, _nonzero(size) * (size + self.scale))

    def _prox(self, x: Array, step: Any) -> Array:
        """The larger root of `(r - |x|) (r + scale) + step = 0`, or 0 where that is less."""
        xp = arrays.namespace(x)
        size = xp.abs(x)
        inner = (size + self.scale) ** 2 - 4.0 * step
        root = xp.sqrt(xp.where(inner > 0, inner, xp.zeros_like(inner)))
        r = (size - self.scale + root) / 2.0
        r = xp.where((inner > 0) & (r > 0), r, xp.zeros_like(r))
        gain = r * size - r * r / 2.0 - step * xp.log1p(r / self.scale)
        r = xp.where(gain > 0, r, xp.zeros_like(r))
        return x * (r / _nonzero(size))
