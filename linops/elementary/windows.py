"""Ranges of planes as operators: `Crop`, `Pad`, and the windows that padded blocks need.

`Crop` keeps a range of planes and `Pad` puts zeros around one; each is the other's adjoint.
`PlaneWindow` does the same with a range that is data: it may reach past both ends, planes outside
are never read and come out as zeros. `PlaneMask` blanks the planes of a padded block that are
outside the array. They select, they never multiply: NaN in a plane that is left out stays there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.errors import ShapeError
from linops.operator import LinearOperator
from linops.rule import Axis, Member, Rule
from linops.space import AnySpace, ProductSpace, Space

__all__ = [
    "Crop",
    "Cut",
    "Pad",
    "PlaneMask",
    "PlaneWindow",
    "axis_number",
    "names_beside",
    "resized",
    "resized_one",
    "with_row",
]

Cut = tuple[int, int]
"""Member of a space, and axis within it, that a window cuts."""

Pairs = Mapping[str | int, tuple[int, int]] | Sequence[tuple[int, int]]
"""Two numbers for some axes by name or number, or for each axis in order."""


class Crop(LinearOperator):
    """A range of planes along some axes.

    Parameters
    ----------
    space
        What is cropped.
    ranges
        `{axis: (start, stop)}`, axes by name or number; or one pair for each axis.
    """

    batched = True
    _exact: ClassVar[bool] = True
    _aliases = True

    def __init__(self, space: Space, ranges: Pairs) -> None:
        cuts, small = [], space
        for axis, (start, stop) in _by_axis(space, ranges, "Crop", "(start, stop)").items():
            number = axis_number(space, axis)
            if not 0 <= start <= stop <= space.shape[number]:
                raise ShapeError(
                    f"Crop: planes {start} to {stop} of axis {axis!r} are outside its "
                    f"{space.shape[number]} planes"
                )
            cuts.append((0, number, int(start)))
            small = resized_one(small, number, stop - start)
        super().__init__(space, small, _window_rule(space, cuts))
        self._cuts = tuple(cuts)

    @classmethod
    def along(
        cls,
        space: AnySpace,
        cuts: Sequence[Cut],
        start: int,
        stop: int,
        members: tuple[Member, ...] | None = None,
    ) -> Crop:
        """The crop of several members of `space` to one range of planes; `members` as for
        `PlaneMask`."""
        small = resized(space, cuts, stop - start)
        return _make(Crop, space, small, [(*c, start) for c in cuts], members)

    def _apply(self, x: Any) -> Any:
        return _crop(x, self.codomain, self._cuts)

    def _apply_adjoint(self, y: Any) -> Any:
        return _pad(y, self.domain, self._cuts)

    def _make_adjoint(self) -> LinearOperator:
        return _make(Pad, self.codomain, self.domain, self._cuts, self.rule.domain)

    def _complexified(self) -> LinearOperator:
        spaces = self.domain.complexified(), self.codomain.complexified()
        return _make(Crop, *spaces, self._cuts, self.rule.domain)

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        shift = _shift(self.rule, self._cuts, axis)
        return start + shift, stop + shift

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        if padded:
            return None
        cuts = _cuts_named(self.rule, axis)
        kept = [cut for cut in self._cuts if cut[:2] not in cuts]
        lo, hi = self._input_range(axis, start, stop)
        source = resized(self.domain, cuts, hi - lo)
        target = resized(self.codomain, cuts, stop - start)
        return _make(Crop, source, target, kept, self.rule.domain)

    def _cost(self) -> Cost:
        return Cost.streaming(self.codomain, self.codomain, 0.0)


class Pad(LinearOperator):
    """Zeros put around a range of planes; the adjoint of `Crop`.

    Parameters
    ----------
    space
        What is padded.
    widths
        `{axis: (before, after)}`, planes of zeros, axes by name or number; or one pair for each
        axis, as NumPy takes them.
    """

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, space: Space, widths: Pairs) -> None:
        cuts, large = [], space
        for axis, (before, after) in _by_axis(space, widths, "Pad", "(before, after)").items():
            number = axis_number(space, axis)
            if before < 0 or after < 0:
                raise ShapeError(
                    f"Pad: widths of axis {axis!r} are {before} and {after}; they are not negative "
                    "(Crop takes planes away)"
                )
            cuts.append((0, number, int(before)))
            large = resized_one(large, number, space.shape[number] + before + after)
        super().__init__(space, large, _window_rule(space, cuts))
        self._cuts = tuple(cuts)

    @cached_property
    def _aliases(self) -> bool:  # type: ignore[override]
        # Without planes to add an array is handed on as it is.
        pairs = zip(self.domain.members, self.codomain.members, strict=True)
        return any(small.shape == large.shape for small, large in pairs)

    @classmethod
    def along(
        cls,
        space: AnySpace,
        cuts: Sequence[Cut],
        start: int,
        stop: int,
        members: tuple[Member, ...] | None = None,
    ) -> Pad:
        """From planes `start` to `stop` into several members of `space`; `members` as for
        `PlaneMask`."""
        small = resized(space, cuts, stop - start)
        return _make(Pad, small, space, [(*c, start) for c in cuts], members)

    def _apply(self, x: Any) -> Any:
        return _pad(x, self.codomain, self._cuts)

    def _apply_adjoint(self, y: Any) -> Any:
        return _crop(y, self.domain, self._cuts)

    def _make_adjoint(self) -> LinearOperator:
        return _make(Crop, self.codomain, self.domain, self._cuts, self.rule.domain)

    def _complexified(self) -> LinearOperator:
        spaces = self.domain.complexified(), self.codomain.complexified()
        return _make(Pad, *spaces, self._cuts, self.rule.domain)

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        shift = _shift(self.rule, self._cuts, axis)
        return start - shift, stop - shift

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        if padded:
            return None
        cuts = _cuts_named(self.rule, axis)
        extent = self.domain.members[cuts[0][0]].shape[cuts[0][1]]
        lo, hi = self._input_range(axis, start, stop)
        first = min(max(lo, 0), extent)
        last = max(min(hi, extent), first)
        kept = [cut for cut in self._cuts if cut[:2] not in cuts]
        shifted = [(*cut, min(max(first - lo, 0), stop - start)) for cut in cuts]
        source = resized(self.domain, cuts, last - first)
        target = resized(self.codomain, cuts, stop - start)
        return _make(Pad, source, target, kept + shifted, self.rule.domain)

    def _cost(self) -> Cost:
        return Cost.streaming(self.domain, self.codomain, 0.0)


class PlaneWindow(LinearOperator):
    """Planes `offset + j` of the input as plane j of the output; zero where there is none.

    The offset is an int32 array, so windows at different places have one structure. With `wrap`
    (the extent of a ring) planes are counted around the ring, each used once.
    """

    batched = True
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
        rule = _window_rule(domain, [(*c, 0) for c in cuts], True, members)
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

    def _complexified(self) -> LinearOperator:
        return PlaneWindow(
            self.domain.complexified(),
            self.codomain.complexified(),
            self._positions,
            self.offset,
            self._wrap,
            self.rule.domain,
        )

    def _move(self, x: Any, target: AnySpace) -> Any:
        def move(part: Array, number: int, member: Space) -> Array:
            for m, position in self._positions:
                if m == number:
                    axis = position - member.ndim
                    index, valid = self._planes(part.shape[axis], member.shape[position], part)
                    part = arrays.gather_planes(part, axis, index, valid)
            return part

        return _map_members(move, x, target)

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


class PlaneMask(LinearOperator):
    """Planes `begin` to `end` kept, the others zero whatever stands in them.

    `members` are the axes that it shows in its rule, by default those of the space: beside an
    operator with names of its own it takes them over, so that their product keeps them.
    """

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(
        self,
        space: AnySpace,
        cuts: Sequence[Cut],
        begin: Any,
        end: Any,
        members: tuple[Member, ...] | None = None,
    ) -> None:
        rule = _window_rule(space, (), members=members)
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

        return _map_members(mask, x, self.domain)

    def _apply_adjoint(self, y: Any) -> Any:
        return self._apply(y)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        cuts = _cuts_named(self.rule, axis)
        if padded or any(cut in self._positions for cut in cuts):
            return None
        space = resized(self.domain, cuts, stop - start)
        return PlaneMask(space, self._positions, self.begin, self.end, self.rule.domain)

    def _complexified(self) -> LinearOperator:
        space = self.domain.complexified()
        return PlaneMask(space, self._positions, self.begin, self.end, self.rule.domain)


def _by_axis(
    space: Space, given: Pairs, owner: str, pair: str
) -> Mapping[str | int, tuple[int, int]]:
    named = given if isinstance(given, Mapping) else None
    if named is None and isinstance(given, Sequence) and len(given) == space.ndim:
        named = dict(enumerate(given))
    if named is None or not all(
        isinstance(two, Sequence) and not isinstance(two, str) and len(two) == 2
        for two in named.values()
    ):
        raise ShapeError(
            f"{owner} of {space} takes {{axis: {pair}}}, or one such pair for each of its "
            f"{space.ndim} axes, got {given!r}"
        )
    return named


def axis_number(space: Space, axis: str | int) -> int:
    """The position of an axis given by name or by (possibly negative) number."""
    if isinstance(axis, str):
        if space.axes is None or axis not in space.axes:
            raise ShapeError(f"no axis {axis!r} in the space {space}")
        return space.axes.index(axis)
    number = axis + space.ndim if axis < 0 else axis
    if not 0 <= number < space.ndim:
        raise ShapeError(f"axis {axis} is outside the {space.ndim} axes of the space {space}")
    return number


def with_row(table: Array, number: int, row: Array) -> Array:
    """A table of planes with another row; a new one, in the namespace of the table."""
    xp = arrays.namespace(table)
    row = xp.reshape(arrays.convert(row, table), (1, -1))
    return xp.concat([table[:number, ...], row, table[number + 1 :, ...]])


def resized(space: AnySpace, cuts: Sequence[Cut], extent: int) -> AnySpace:
    """`space` with another extent along the given axes."""
    members = list(space.members)
    for m, position in cuts:
        members[m] = resized_one(members[m], position, extent)
    return ProductSpace(members) if isinstance(space, ProductSpace) else members[0]


def resized_one(space: Space, position: int, extent: int) -> Space:
    """A plain space with another extent along one axis."""
    shape = list(space.shape)
    shape[position] = extent
    return Space(tuple(shape), space.dtype, space.axes, space.spacing)


_Window = TypeVar("_Window", Crop, Pad)


def _make(
    cls: type[_Window],
    domain: AnySpace,
    codomain: AnySpace,
    cuts: Any,
    members: tuple[Member, ...] | None = None,
) -> _Window:
    # Crop and Pad from their parts; the public constructors derive one space from the other.
    operator = object.__new__(cls)
    rule = _window_rule(domain, cuts, members=members)
    LinearOperator.__init__(operator, domain, codomain, rule)
    operator._cuts = tuple(cuts)
    operator.__dict__["_frozen"] = True
    return operator


def _names(space: AnySpace) -> list[list[str]]:
    rows = []
    for m, member in enumerate(space.members):
        prefix = f"m{m}_" if len(space.members) > 1 else ""
        rows.append([f"{prefix}{name}" for name in member.axes or _numbered(member.ndim)])
    return rows


def names_beside(left: Sequence[str], right: Sequence[str]) -> list[str]:
    """Names of `right`, with `_out` behind those that `left` has, each once."""
    taken, found = {*left, *right}, []
    for own in right:
        name = own
        if own in left:
            while name in taken:
                name += "_out"
            taken.add(name)
        found.append(name)
    return found


def _numbered(count: int) -> list[str]:
    return [f"axis{i}" for i in range(count)]


def _window_rule(
    space: AnySpace,
    cuts: Sequence[tuple[int, ...]],
    whole: bool = False,
    members: tuple[Member, ...] | None = None,
) -> Rule:
    cut = {(c[0], c[1]) for c in cuts}
    if members is not None:
        kept = tuple(
            tuple(
                Axis(axis.name, splits=not (whole and (m, p) in cut))
                for p, axis in enumerate(member)
            )
            for m, member in enumerate(members)
        )
        return Rule(kept, kept)
    names = _names(space)
    shared: dict[str, str] = {}
    for m, p in sorted(cut):
        shared.setdefault("cut", names[m][p])
        if len(cut) > 1 and len(space.members) > 1:
            names[m][p] = shared["cut"]
    row = tuple(
        tuple(Axis(name, splits=not (whole and (m, p) in cut)) for p, name in enumerate(members))
        for m, members in enumerate(names)
    )
    return Rule(row, row)


def _cuts_named(rule: Rule, name: str) -> tuple[Cut, ...]:
    return tuple(
        (m, p)
        for m, member in enumerate(rule.domain)
        for p, axis in enumerate(member)
        if axis.name == name
    )


def _shift(rule: Rule, cuts: Sequence[tuple[int, int, int]], name: str) -> int:
    where = _cuts_named(rule, name)
    return next((start for m, p, start in cuts if (m, p) in where), 0)


def _crop(x: Any, target: AnySpace, cuts: Sequence[tuple[int, int, int]]) -> Any:
    def crop(part: Array, number: int, member: Space) -> Array:
        for m, position, start in cuts:
            if m == number:
                stop = start + member.shape[position]
                part = arrays.narrow(part, position - member.ndim, start, stop)
        return part

    return _map_members(crop, x, target)


def _pad(x: Any, target: AnySpace, cuts: Sequence[tuple[int, int, int]]) -> Any:
    def pad(part: Array, number: int, member: Space) -> Array:
        for m, position, start in cuts:
            if m == number:
                axis = position - member.ndim
                after = member.shape[position] - start - part.shape[axis]
                part = arrays.widen(part, axis, start, after)
        return part

    return _map_members(pad, x, target)


def _map_members(function: Any, x: Any, target: AnySpace) -> Any:
    if isinstance(target, ProductSpace):
        return tuple(
            function(part, number, member)
            for number, (part, member) in enumerate(zip(x, target.spaces, strict=True))
        )
    return function(x, 0, target)


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
