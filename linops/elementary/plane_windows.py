"""Windows whose range of planes is data, which padded blocks need.

`PlaneWindow` moves a range that may reach past both ends: planes outside are never read and come
out as zeros. `EdgeWindow` puts the nearest plane in their place. `PlaneMask` blanks the planes of a
padded block that are outside the array. They select, they never multiply: NaN in a plane that is
left out stays there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.elementary.axes import Cut, cuts_named, map_members, resized, window_rule
from linops.linear_operator import LinearOperator
from linops.rule import Member
from linops.space import AnySpace, Space

__all__ = ["EdgeWindow", "PlaneMask", "PlaneWindow"]


class PlaneWindow(LinearOperator):
    """Planes `offset + j` of the input as plane j of the output; zero where there is none.

    The offset is an int32 array, so windows at different places have one structure. With `wrap`
    (the extent of a ring) planes are counted around the ring, each used once.
    """

    batched = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True

    def __init__(
        self,
        domain: AnySpace,
        codomain: AnySpace,
        cuts: Sequence[Cut],
        offset: Any,
        wrap: int | None = None,
        members: tuple[Member, ...] | None = None,
    ) -> None:
        rule = window_rule(domain, [(*c, 0) for c in cuts], True, members)
        super().__init__(domain, codomain, rule)
        self._positions = tuple(cuts)
        self.offset = _int32(offset)
        self._wrap = wrap

    def _apply(self, x: Any) -> Any:
        return self._move(x, self.codomain)

    def _apply_adjoint(self, y: Any) -> Any:
        return self.H._apply(y)

    def _make_adjoint(self) -> LinearOperator:
        spaces = self.codomain, self.domain
        members = self.rule.domain
        return PlaneWindow(*spaces, self._positions, -self.offset, self._wrap, members)

    def _move(self, x: Any, target: AnySpace) -> Any:
        def move(part: Array, number: int, member: Space) -> Array:
            for m, position in self._positions:
                if m == number:
                    axis = position - member.ndim
                    index, valid = self._planes(part.shape[axis], member.shape[position], part)
                    part = arrays.gather_planes(part, axis, index, valid)
            return part

        return map_members(move, x, target)

    def _planes(self, source: int, count: int, like: Array) -> tuple[Array, Array]:
        xp = arrays.namespace(self.offset)
        plane = xp.arange(count, dtype=self.offset.dtype) + self.offset
        if self._wrap is not None:
            plane = plane % self._wrap
        valid = (plane >= 0) & (plane < source)
        if self._wrap is not None:
            # A window longer than the ring meets some planes twice; one of them counts.
            valid = valid & (xp.arange(count) < self._wrap)
        return xp.where(valid, plane, xp.zeros_like(plane)), valid


class EdgeWindow(LinearOperator):
    """From a window of planes into the whole space: planes that it lacks repeat the nearest one.

    Plane 0 of the window is plane `offset` of the whole; its planes `begin` to `end` are there,
    others are never read. Without any the result is zero. All three are int32 arrays; `wrap` is
    as for `PlaneWindow`.
    """

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(
        self,
        domain: AnySpace,
        codomain: AnySpace,
        cuts: Sequence[Cut],
        offset: Any,
        begin: Any,
        end: Any,
        wrap: int | None = None,
        members: tuple[Member, ...] | None = None,
    ) -> None:
        rule = window_rule(domain, [(*c, 0) for c in cuts], True, members)
        super().__init__(domain, codomain, rule)
        self._positions = tuple(cuts)
        self.offset, self.begin, self.end = _int32(offset), _int32(begin), _int32(end)
        self._wrap = wrap

    def _apply(self, x: Any) -> Any:
        def spread(part: Array, number: int, member: Space) -> Array:
            for position in self._cuts(number):
                if not part.shape[position - member.ndim]:
                    shape = list(part.shape)
                    shape[position - member.ndim] = member.shape[position]
                    part = arrays.zeros(tuple(shape), arrays.dtype_of(part), part)
                    continue
                index, there = self._planes(member.shape[position])
                part = arrays.gather_planes(part, position - member.ndim, index, there)
            return part

        return map_members(spread, x, self.codomain)

    def _apply_adjoint(self, y: Any) -> Any:
        def collect(part: Array, number: int, member: Space) -> Array:
            for position in self._cuts(number):
                xp, axis = arrays.namespace(part), part.ndim + position - member.ndim
                index, there = self._planes(part.shape[axis])
                index = arrays.namespace(index).where(there, index, -1)
                last = arrays.scatter_add(
                    xp.moveaxis(part, axis, -1), index, member.shape[position]
                )
                part = xp.moveaxis(last, -1, axis)
            return part

        return map_members(collect, y, self.domain)

    def _cuts(self, number: int) -> list[int]:
        return [position for m, position in self._positions if m == number]

    def _planes(self, count: int) -> tuple[Array, Array]:
        """For each plane of the whole one of the window, and whether the window has any."""
        xp = arrays.namespace(self.offset)
        plane = xp.arange(count, dtype=self.offset.dtype) - self.offset
        if self._wrap is not None:
            plane = plane % self._wrap
        last = xp.maximum(self.end - 1, self.begin)
        plane = xp.minimum(xp.maximum(plane, self.begin), last)
        there = xp.broadcast_to(self.end > self.begin, (count,))
        return xp.where(there, plane, xp.zeros_like(plane)), there


class PlaneMask(LinearOperator):
    """Planes `begin` to `end` kept, the others zero whatever stands in them.

    `members` are the axes that it shows in its rule, by default those of the space: beside an
    operator with names of its own it takes them over, so that their product keeps them.
    """

    batched = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True

    def __init__(
        self,
        space: AnySpace,
        cuts: Sequence[Cut],
        begin: Any,
        end: Any,
        members: tuple[Member, ...] | None = None,
    ) -> None:
        rule = window_rule(space, (), members=members)
        super().__init__(space, space, rule, tags=("self_adjoint", "psd", "diagonal"))
        self._positions = tuple(cuts)
        self.begin, self.end = _int32(begin), _int32(end)

    def _apply(self, x: Any) -> Any:
        def mask(part: Array, number: int, member: Space) -> Array:
            for m, position in self._positions:
                if m == number:
                    axis = position - member.ndim
                    part = _masked(part, axis, self.begin, self.end)
            return part

        return map_members(mask, x, self.domain)

    def _apply_adjoint(self, y: Any) -> Any:
        return self._apply(y)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        cuts = cuts_named(self.rule, axis)
        if padded or any(cut in self._positions for cut in cuts):
            return None
        space = resized(self.domain, cuts, stop - start)
        return PlaneMask(space, self._positions, self.begin, self.end, self.rule.domain)


def _masked(x: Array, axis: int, begin: Array, end: Array) -> Array:
    xp = arrays.namespace(begin)
    plane = xp.arange(x.shape[axis], dtype=begin.dtype)
    return arrays.gather_planes(x, axis, plane, (plane >= begin) & (plane < end))


def _int32(value: Any) -> Array:
    if arrays.is_array(value) and not arrays.is_numpy(value):
        return value
    array = np.asarray(value, np.int32)
    array.setflags(write=False)
    return array
