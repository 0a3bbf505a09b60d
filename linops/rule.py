"""The sharding rule: one line, in the manner of an einsum, that says how axes split.

    projector          "z y x -> view row col"
    gradient           "z~1 y~1 x~1 -> component z y x"
    ramp filter        "view row col! -> view row col!"
    diagonal           "z y x; z y x -> z y x"
    stack              "z y x -> view row col, component z y x"

An axis on both sides is *aligned*: shard i of the output needs shard i of the input, and
`~h` neighboring planes (`~h*`: around the ring). Only on the right it is *produced*, only on
the left *contracted*. `!` forbids splitting. Members of product spaces are separated by
commas; after `;` stand the operator's own arrays, cut along the axes they name.

This file is the grammar and its meaning. How rules of parts become the rule of a
composition is in `linops/relations.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = ["Axis", "Member", "Relation", "Rule"]


class Relation(StrEnum):
    """What a split of an axis asks of the other side."""

    ALIGNED = "aligned"
    PRODUCED = "produced"
    CONTRACTED = "contracted"
    WHOLE = "whole"


@dataclass(frozen=True)
class Axis:
    """One named axis of one member: its halo, whether it wraps, whether it may be split."""

    name: str
    halo: int = 0
    periodic: bool = False
    splits: bool = True

    def __str__(self) -> str:
        halo = f"~{self.halo}{'*' if self.periodic else ''}" if self.halo or self.periodic else ""
        return f"{self.name}{halo}{'' if self.splits else '!'}"


Member = tuple[Axis, ...]
"""The axes of one space, in order."""

_AXIS = re.compile(r"([A-Za-z_][A-Za-z_0-9]*)(?:~([0-9]+)(\*)?)?(!)?")


@dataclass(frozen=True)
class Rule:
    """A parsed rule. Equal rules compare equal; `str` gives the line back.

    Attributes
    ----------
    domain, codomain
        One tuple of axes for each member; a plain space has one member.
    arrays
        Axes of the operator's own arrays, in the order of its leaves.
    """

    domain: tuple[Member, ...]
    codomain: tuple[Member, ...]
    arrays: tuple[Member, ...] = ()

    @classmethod
    def parse(cls, text: str | Rule) -> Rule:
        """The rule that a line states.

        Raises
        ------
        ValueError
            Naming the piece that is no axis, the missing arrow, the repeated name, or the
            axis that wraps in one member only.
        """
        if isinstance(text, Rule):
            return text
        sides = text.split("->")
        if len(sides) != 2:
            raise ValueError(
                f"rule {text!r} has {len(sides) - 1} arrows; it has one, as in 'z y x -> view col'"
            )
        left, *arrays = sides[0].split(";")
        if len(arrays) > 1:
            raise ValueError(f"rule {text!r} has more than one ';'; arrays are separated by commas")
        if ";" in sides[1]:
            raise ValueError(f"rule {text!r}: the operator's arrays stand before the arrow")
        rule = cls(
            _members(left, text),
            _members(sides[1], text),
            _members(arrays[0], text) if arrays else (),
        )
        rule._check(text)
        return rule

    def adjoint(self) -> Rule:
        """The line read backwards, halos moved to the new left side."""
        halos = {axis.name: axis for axis in self._axes(self.domain)}

        def turn(members: tuple[Member, ...], keep: bool) -> tuple[Member, ...]:
            return tuple(
                tuple(
                    replace(
                        axis,
                        halo=halos[axis.name].halo if keep and axis.name in halos else 0,
                        periodic=keep and axis.name in halos and halos[axis.name].periodic,
                    )
                    for axis in member
                )
                for member in members
            )

        return Rule(turn(self.codomain, True), turn(self.domain, False), self.arrays)

    def relation(self, name: str) -> Relation:
        """How the axis of that name relates the two sides.

        Raises
        ------
        ValueError
            Where no axis has that name; the message lists those there are.
        """
        found = [axis for axis in self if axis.name == name]
        if not found:
            raise ValueError(f"rule '{self}' has no axis {name!r}; it has {', '.join(self.names)}")
        if not all(axis.splits for axis in found):
            return Relation.WHOLE
        left = any(axis.name == name for axis in self._axes(self.domain))
        right = any(axis.name == name for axis in self._axes(self.codomain))
        if left and right:
            return Relation.ALIGNED
        return Relation.CONTRACTED if left else Relation.PRODUCED

    def halo(self, name: str) -> int:
        """Neighboring planes that the axis needs on each side; 0 where none is stated."""
        return max((axis.halo for axis in self._axes(self.domain) if axis.name == name), default=0)

    def periodic(self, name: str) -> bool:
        """Whether the axis wraps around."""
        return any(axis.periodic for axis in self._axes(self.domain) if axis.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all axes, each once, domain first."""
        return tuple(dict.fromkeys(axis.name for axis in self))

    def __iter__(self) -> Iterator[Axis]:
        yield from self._axes(self.domain)
        yield from self._axes(self.codomain)

    def __str__(self) -> str:
        left = ", ".join(" ".join(map(str, member)) for member in self.domain)
        right = ", ".join(" ".join(map(str, member)) for member in self.codomain)
        arrays = ", ".join(" ".join(map(str, member)) for member in self.arrays)
        return f"{left}{'; ' + arrays if self.arrays else ''} -> {right}".strip()

    @staticmethod
    def _axes(members: tuple[Member, ...]) -> Iterator[Axis]:
        for member in members:
            yield from member

    def _check(self, text: str) -> None:
        for members, side in ((self.domain, "left"), (self.codomain, "right")):
            for member in members:
                names = [axis.name for axis in member]
                for name in names:
                    if names.count(name) > 1:
                        raise ValueError(
                            f"rule {text!r} names the axis {name!r} twice in one member on the "
                            f"{side}; give the second another name, such as '{name}2'"
                        )
        for axis in self:
            if axis.name == "batch":
                raise ValueError(
                    f"rule {text!r} names an axis 'batch': leading batch axes are aligned in every "
                    "rule and are not written"
                )
        for axis in self._axes(self.codomain):
            if axis.halo or axis.periodic:
                raise ValueError(f"rule {text!r}: the halo of '{axis}' belongs on the left side")
        known = {axis.name for axis in self}
        for axis in self._axes(self.arrays):
            if axis.name not in known:
                raise ValueError(
                    f"rule {text!r}: no space has the axis {axis.name!r} of an operator's array"
                )
        for name in known:
            wraps = {axis.periodic for axis in self._axes(self.domain) if axis.name == name}
            if len(wraps) > 1:
                raise ValueError(f"rule {text!r}: axis {name!r} wraps in one member only")


def _members(side: str, text: str) -> tuple[Member, ...]:
    return tuple(tuple(_axis(piece, text) for piece in part.split()) for part in side.split(","))


def _axis(piece: str, text: str) -> Axis:
    match = _AXIS.fullmatch(piece)
    if match is None:
        raise ValueError(
            f"rule {text!r}: {piece!r} is no axis; an axis is a name, then '~h' or '~h*' for a "
            "halo of h planes, then '!' where it must not be split"
        )
    name, halo, periodic, whole = match.groups()
    return Axis(name, int(halo or 0), periodic is not None, whole is None)
