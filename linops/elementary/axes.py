"""Axes of spaces and planes along them, as windows and leaves with padded blocks count them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from linops import arrays
from linops.arrays import Array
from linops.errors import ShapeError
from linops.rule import Axis, Member, Rule
from linops.space import AnySpace, ProductSpace, Space

__all__ = [
    "Cut",
    "axis_number",
    "axis_numbers",
    "cuts_named",
    "map_members",
    "names_beside",
    "numbered",
    "resized",
    "resized_one",
    "window_rule",
    "with_row",
]

Cut = tuple[int, int]
"""Member of a space, and axis within it, that a window cuts."""


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


def axis_numbers(
    space: Space, axes: str | int | Sequence[str | int], owner: str
) -> tuple[int, ...]:
    """The positions of one axis or several, by name or number, none of them twice."""
    several = (axes,) if isinstance(axes, (str, int)) else tuple(axes)
    numbers = tuple(axis_number(space, axis) for axis in several)
    if len(set(numbers)) != len(numbers):
        raise ShapeError(f"{owner}: axes {axes!r} name one axis twice")
    return numbers


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


def numbered(count: int) -> list[str]:
    """Names of axes that have none."""
    return [f"axis{i}" for i in range(count)]


def _names(space: AnySpace) -> list[list[str]]:
    rows = []
    for m, member in enumerate(space.members):
        prefix = f"m{m}_" if len(space.members) > 1 else ""
        rows.append([f"{prefix}{name}" for name in member.axes or numbered(member.ndim)])
    return rows


def window_rule(
    space: AnySpace,
    cuts: Sequence[tuple[int, ...]],
    whole: bool = False,
    members: tuple[Member, ...] | None = None,
) -> Rule:
    """The rule of a window: every axis aligned; `whole` forbids splitting those that are cut.

    `members` are the axes that it shows, by default those of the space.
    """
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


def cuts_named(rule: Rule, name: str) -> tuple[Cut, ...]:
    """The members and positions that a rule gives an axis of this name."""
    return tuple(
        (m, p)
        for m, member in enumerate(rule.domain)
        for p, axis in enumerate(member)
        if axis.name == name
    )


def map_members(function: Any, x: Any, target: AnySpace) -> Any:
    """`function(part, number, member)` of every member of `target`."""
    if isinstance(target, ProductSpace):
        return tuple(
            function(part, number, member)
            for number, (part, member) in enumerate(zip(x, target.spaces, strict=True))
        )
    return function(x, 0, target)


def with_row(table: Array, number: int, row: Array) -> Array:
    """A table of planes with another row; a new one, in the namespace of the table."""
    xp = arrays.namespace(table)
    row = xp.reshape(arrays.convert(row, table), (1, -1))
    return xp.concat([table[:number, ...], row, table[number + 1 :, ...]])
