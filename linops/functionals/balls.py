"""Balls and the simplex as constraints, and the largest modulus: all by one threshold.

The projections on the simplex and on the L1 ball, and the proximal map of the largest modulus,
shorten every entry by (or to) a level at which the rest has a given sum (Duchi et al., 2008).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from linops import arrays, numeric
from linops.arrays import Array
from linops.elementary.axes import axis_number
from linops.functionals.entries import Entries
from linops.functionals.functional import positive_number
from linops.functionals.norms import _nonzero
from linops.space import Space

__all__ = ["Ball", "Linf", "Simplex"]


class Linf(Entries):
    """The largest modulus of an entry.

    Parameters
    ----------
    space
        The domain, real or complex.
    """

    def __init__(self, space: Space) -> None:
        super().__init__(space, whole=range(space.ndim))

    def _value(self, x: Array) -> Any:
        xp, ndim = arrays.namespace(x), self._space.ndim
        if not self._space.size:
            return xp.sum(xp.abs(x), axis=tuple(range(-ndim, 0)))
        return xp.max(xp.abs(x), axis=tuple(range(-ndim, 0)))

    def _prox(self, x: Array, step: Any) -> Array:
        """Moduli capped at the level above which `step` lies."""
        return _cap(x, _level(arrays.namespace(x).abs(x), step, self._space.ndim))

    def _conjugate_value(self, p: Array) -> Any:
        """0 where the moduli add up to 1 at most."""
        return self._barrier(_total(arrays.namespace(p).abs(p), self._space) <= 1 + self._tolerance)


class Ball(Entries):
    """`|x - center| <= radius`: 0 inside, infinite outside.

    Parameters
    ----------
    space
        The domain, real or complex.
    radius
        > 0.
    center
        An array of the domain's shape; zero by default.
    norm
        2 (Euclidean), 1 (sum of moduli) or `math.inf` (largest modulus).

    Notes
    -----
    The value allows for rounding: up to `radius (1 + 64 eps)` x is inside.
    """

    _tables: ClassVar[Mapping[str, float]] = {"center": 0.0}

    def __init__(
        self, space: Space, radius: Any = 1.0, *, center: Array | None = None, norm: float = 2
    ) -> None:
        if norm not in (1, 2, math.inf):
            raise ValueError(f"Ball: norm is {norm!r}; it is 1, 2 or math.inf")
        super().__init__(space, whole=() if norm == math.inf else range(space.ndim))
        self.norm = str(float(norm))  # no number: JAX would trace it
        self.radius = positive_number(radius, "radius")
        if center is not None:
            numeric.require_finite(f"{self.name}: center", center)
        self.center = None if center is None else self._admit_table(center, "center", space.dtype)

    def _value(self, x: Array) -> Any:
        d = self._deviation(x)
        size = arrays.namespace(x).abs(d) / self.radius
        if self.norm == "1.0":
            size = _total(size, self._space)
        elif self.norm == "2.0":
            size = _total(size * size, self._space) ** 0.5
        return self._barrier(size <= 1 + self._tolerance)

    def _prox(self, x: Array, step: Any) -> Array:
        """The projection, whatever the step."""
        xp, ndim = arrays.namespace(x), self._space.ndim
        d = self._deviation(x)
        size = xp.abs(d)
        if self.norm == "1.0":
            shorter = size - _level(size, self.radius, ndim)
            shorter = xp.where(shorter > 0, shorter, xp.zeros_like(shorter))
            d = d * xp.where(size > 0, shorter / _nonzero(size), shorter)
        elif self.norm == "2.0":
            size = size / self.radius
            length = _total(size * size, self._space) ** 0.5
            d = d / xp.where(length > 1, length, xp.ones_like(length))
        else:
            d = _cap(d, xp.zeros_like(size) + self.radius)
        return d if self.center is None else d + self._table("center", x)

    def _conjugate_value(self, p: Array) -> Any:
        """`Re <center, p> + radius |p|` in the dual norm."""
        xp, axes = arrays.namespace(p), tuple(range(-self._space.ndim, 0))
        size = xp.abs(p)
        if self.norm == "1.0":
            dual = xp.max(size, axis=axes)
        else:
            dual = self._sum(size * size) ** 0.5 if self.norm == "2.0" else self._sum(size)
        if self.center is None:
            return self.radius * dual
        along = arrays.real(arrays.conj(self._table("center", p)) * p)
        return self._sum(along) + self.radius * dual

    def _deviation(self, x: Array) -> Array:
        return x if self.center is None else x - self._table("center", x)


class Simplex(Entries):
    """`x >= 0` with sum `radius`, along one axis or all: 0 there, infinite elsewhere.

    Parameters
    ----------
    space
        The domain, real.
    radius
        The sum, > 0.
    axis
        The axis along which entries add up, by name or number; None: all of them.

    Notes
    -----
    The value allows for rounding: entries down to `-64 eps radius`, sums off by as much.
    """

    _tables: ClassVar[Mapping[str, float]] = {"radius": 0.0}
    _constants: ClassVar[tuple[str, ...]] = ("radius",)

    def __init__(self, space: Space, radius: Any = 1.0, *, axis: str | int | None = None) -> None:
        axes = range(space.ndim) if axis is None else (axis_number(space, axis),)
        super().__init__(space, whole=axes)
        if space.is_complex:
            raise ValueError(f"{self.name} takes a real space, got {space}: its entries are >= 0")
        self.axis = None if axis is None else axes[0] - space.ndim
        self.radius = positive_number(radius, "radius")

    def _value(self, x: Array) -> Any:
        xp, radius = arrays.namespace(x), self._sums(x)
        x = self._along(x)
        slack = self._tolerance * radius
        off = xp.sum(x, axis=-1, keepdims=True) - radius
        return self._barrier(self._back((x >= -slack) & (xp.abs(off) <= slack)))

    def _prox(self, x: Array, step: Any) -> Array:
        """The projection, whatever the step."""
        xp, radius = arrays.namespace(x), self._sums(x)
        x = self._along(x)
        x = x - _level(x, radius, 1, signed=True)
        return self._back(xp.where(x < 0, xp.zeros_like(x), x))

    def _conjugate_value(self, p: Array) -> Any:
        """The sum, times the largest entry."""
        xp = arrays.namespace(p)
        along = self._along(p)
        top = xp.max(along, axis=-1, keepdims=True) * self._sums(p)
        share = xp.ones_like(along) / along.shape[-1]
        return self._sum(self._back(top * share))

    def _sums(self, x: Array) -> Any:
        radius = self._table("radius", x)
        if not arrays.is_array(radius) or not radius.ndim:
            return radius
        return arrays.narrow(self._along(radius), -1, 0, 1)

    def _along(self, x: Array) -> Array:
        xp, ndim = arrays.namespace(x), self._space.ndim
        if self.axis is None:
            return xp.reshape(x, (*x.shape[: x.ndim - ndim], self._space.size))
        return xp.moveaxis(x, self.axis, -1)

    def _back(self, x: Array) -> Array:
        xp = arrays.namespace(x)
        if self.axis is None:
            return xp.reshape(x, (*x.shape[:-1], *self._space.shape))
        return xp.moveaxis(x, -1, self.axis)


def _level(x: Array, total: Any, ndim: int, signed: bool = False) -> Array:
    """t with `sum max(x - t, 0) = total` over the last axes; 0 at least unless `signed`.

    It is the largest of the means `(x_1 + .. + x_k - total) / k` of the k largest entries; the
    entries above it are then summed once more, for its rounding is that of a running sum.
    """
    xp = arrays.namespace(x)
    flat = xp.reshape(x, (*x.shape[: x.ndim - ndim], math.prod(x.shape[x.ndim - ndim :])))
    if not flat.shape[-1]:
        return xp.sum(x, axis=tuple(range(-ndim, 0)), keepdims=True)
    ordered = xp.sort(flat, axis=-1, descending=True)
    counts = xp.cumulative_sum(xp.ones_like(ordered), axis=-1)
    level = xp.max((xp.cumulative_sum(ordered, axis=-1) - total) / counts, axis=-1, keepdims=True)
    above = flat > level
    kept = xp.sum(xp.where(above, flat, xp.zeros_like(flat)), axis=-1, keepdims=True)
    many = xp.sum(xp.where(above, xp.ones_like(flat), xp.zeros_like(flat)), axis=-1, keepdims=True)
    level = xp.where(many > 0, (kept - total) / xp.where(many > 0, many, many + 1), level)
    if not signed:
        level = xp.where(level < 0, xp.zeros_like(level), level)
    return xp.reshape(level, (*flat.shape[:-1], *(1,) * ndim))


def _cap(x: Array, level: Array) -> Array:
    xp = arrays.namespace(x)
    size = xp.abs(x)
    return x * xp.where(size > level, level / _nonzero(size), xp.ones_like(size))


def _total(size: Array, space: Space) -> Array:
    """The sum over an element, for each member of a batch, laid out over its entries."""
    xp = arrays.namespace(size)
    total = xp.sum(size, axis=tuple(range(-space.ndim, 0)), keepdims=True)
    return xp.broadcast_to(total, size.shape)
