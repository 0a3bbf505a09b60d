"""`Replacement`: a volume with the entries at some positions of its plane replaced."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.axes import resized
from linops.elementary.identity import Identity
from linops.elementary.select import Scatter, indexed_axes, shifted
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.rule import Member, Rule
from linops.space import ProductSpace, Space

__all__ = ["Replacement"]


class Replacement(Operator):
    """`(x, rows) -> x` with `rows`, `(others, s)`, in the place of its entries at positions.

    It is linear, and its Jacobian says so; but where a plane is cut the adjoint's members would
    split in two ways, which no rule can tell. What stands in planes of x beyond the array stays
    there, so that a compiled loop can write into x.

    Parameters
    ----------
    space
        That of x; the positions run over its last two axes (the only one in one dimension).
    index
        Flat positions, shape (s,), none twice; -1 is inert.
    """

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, space: Space, index: Any) -> None:
        scatter = Scatter(space, index)
        # Where a plane is cut, every part picks its own from all rows.
        part: Member = tuple(
            a if a in scatter.rule.codomain[0] else replace(a, splits=False)
            for a in scatter.rule.domain[0]
        )
        whole, small = scatter.rule.codomain[0], scatter.domain
        assert isinstance(small, Space)
        super().__init__(ProductSpace((space, small)), space, Rule((whole, part), (whole,)))
        self.index = scatter.index

    def into(self, parts: tuple[Array, Array]) -> Array:
        """The same, written into x where the library writes: go on with what is returned."""
        return self._put(*parts)

    def _apply(self, parts: tuple[Array, Array]) -> Array:
        x, rows = parts
        return self._put(arrays.copy(x), rows)

    def _jacobian(self, x: Any) -> LinearOperator:
        from linops.algebra.stacks import hstack

        scatter = Scatter(self._space, self.index)
        return hstack([Identity(self._space) - scatter @ scatter.H, scatter])

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator:
        space = self._space
        number = [one.name for one in self.rule.codomain[0]].index(axis)
        small, index = resized(space, [(0, number)], stop - start), self.index
        axes = indexed_axes(space, None)
        if number in axes:
            index = shifted(index, space.shape, axes, number, start, stop)
        assert isinstance(small, Space)
        return Replacement(small, index)

    def _cost(self) -> Cost:
        return Cost.streaming(self.codomain, self.codomain, 0.0)

    @property
    def _space(self) -> Space:
        assert isinstance(self.codomain, Space)
        return self.codomain

    def _put(self, x: Array, rows: Array) -> Array:
        xp = arrays.namespace(x)
        axes = indexed_axes(self._space, None)
        size = math.prod(self._space.shape[a] for a in axes)
        flat = xp.reshape(x, (*x.shape[: x.ndim - len(axes)], size))
        return xp.reshape(arrays.put_last(flat, self.index, rows), tuple(x.shape))
