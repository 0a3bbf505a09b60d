"""The second derivative of functions of moduli: one curvature along x, another across it.

For a sum of `phi(|x|)`, over complex entries or over groups of entries, the gradient is
`phi'(|x|) u` with the direction `u = x / |x|`, and its derivative

    H v = s (v - u Re<u, v>) + phi''(|x|) u Re<u, v>,    s = phi'(|x|) / |x|,

which is linear over the reals. The functionals of this folder have `phi'' <= s`, so that it is
`s v - d Re<d, v>` with `d = (s - phi'')^(1/2) u`: two arrays. Which they are is the functional's
business.
"""

from __future__ import annotations

from typing import ClassVar

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.functionals.entries import name_axes
from linops.linear_operator import LinearOperator
from linops.precision import real_of
from linops.rule import Rule
from linops.space import Space

__all__ = ["RadialCurvature"]


class RadialCurvature(LinearOperator):
    """`v -> across * v - direction * Re<direction, v>`, the product taken in every group.

    Parameters
    ----------
    space
        Domain and codomain, real or complex.
    across
        s, real, of the space's shape.
    direction
        d, of the space's shape and dtype, with `|d|^2 <= s` in every group.
    axis
        The axis of the groups as a negative number; None: every entry is one.
    """

    batched = True
    blockwise = True
    _exact: ClassVar[bool] = True

    def __init__(
        self, space: Space, across: Array, direction: Array, axis: int | None = None
    ) -> None:
        row = name_axes(space, () if axis is None else (axis + space.ndim,))
        tags = ["self_adjoint", "psd"] + (["real_linear"] if space.is_complex else [])
        super().__init__(space, space, Rule((row,), (row,), (row, row)), tags=tags)
        self.across = arrays.snapshot(arrays.cast(across, real_of(space.dtype)))
        self.axis = axis
        self.direction = arrays.snapshot(arrays.cast(direction, space.dtype))

    def _apply(self, v: Array) -> Array:
        cache = self.__dict__.setdefault("_cache_resident", {})
        across = arrays.resident(cache, "across", self.across, v)
        direction = arrays.resident(cache, "direction", self.direction, v)
        xp = arrays.namespace(v)
        if self.domain.is_complex:
            along = xp.real(direction) * xp.real(v) + xp.imag(direction) * xp.imag(v)
        else:
            along = direction * v
        if self.axis is not None:
            along = xp.sum(along, axis=self.axis, keepdims=True)
        return across * v - direction * along

    def _apply_adjoint(self, v: Array) -> Array:
        return self._apply(v)

    def _diagonal(self) -> Array | None:
        if self.domain.is_complex:
            return None
        return self.across - self.direction * self.direction

    def _cost(self) -> Cost:
        streaming, size = Cost.streaming(self.domain, self.codomain), float(self.domain.size)
        tables = size * (self.across.dtype.itemsize + self.direction.dtype.itemsize)
        along = size * self.across.dtype.itemsize
        if self.axis is not None:
            along /= max(self.domain.members[0].shape[self.axis], 1)
        held = streaming.written + along
        return Cost(4 * size, streaming.read + tables, streaming.written, held)
