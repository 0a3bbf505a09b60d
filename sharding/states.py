"""How an array lies on a mesh: one state for each mesh axis, and what leads from one to another.

    replicated   every device holds the whole
    sharded      device i holds its share of one array axis
    windowed     its share of that axis, with the planes beside it that the next operator reads
    partial      every device holds a summand of the whole

Seen globally a movement is the identity: only the state changes. Its adjoint runs between the
dual states; sharded and windowed are their own duals, replicated and partial change places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = [
    "PARTIAL",
    "REPLICATED",
    "Partial",
    "Replicated",
    "Sharded",
    "State",
    "States",
    "Windowed",
    "dual",
    "overlaps",
    "real_range",
    "share_of",
    "side_by_side",
]


@dataclass(frozen=True)
class Replicated:
    """The whole on every device."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True)
class Partial:
    """A summand on every device."""

    def __str__(self) -> str:
        return "P"


@dataclass(frozen=True)
class Sharded:
    """Equal shares of one array axis, the last ones padded."""

    axis: int

    def __str__(self) -> str:
        return f"S{self.axis}"


@dataclass(frozen=True)
class Windowed:
    """A range of planes of one array axis on each device.

    Attributes
    ----------
    axis
        The array axis, counted from the first axis of the space.
    ranges
        For each device the planes `[lo, hi)`, uncut, that the real part of its share needs.
    padded
        The same for its whole share, padding included; all have one length.
    periodic
        Whether planes beyond an end are those of the other end.
    """

    axis: int
    ranges: tuple[tuple[int, int], ...]
    padded: tuple[tuple[int, int], ...]
    periodic: bool = False

    def __str__(self) -> str:
        return f"W{self.axis}"

    def planes(self, i: int, n: int) -> tuple[int, int]:
        """The planes that device `i` holds of `n`: cut at the ends, uncut around a ring."""
        lo, hi = self.ranges[i]
        if self.periodic:
            return lo, hi
        lo = min(max(lo, 0), n)
        return lo, min(max(hi, lo), n)


State = Replicated | Partial | Sharded | Windowed
States = tuple[State, ...]

REPLICATED = Replicated()
PARTIAL = Partial()


def dual(state: State) -> State:
    """The state of the cotangent of a value in `state`."""
    if isinstance(state, Replicated):
        return PARTIAL
    if isinstance(state, Partial):
        return REPLICATED
    return state


def share_of(n: int, devices: int) -> int:
    """Planes of one share when `n` planes are cut for `devices`."""
    return math.ceil(n / devices)


def real_range(n: int, devices: int, i: int) -> tuple[int, int]:
    """The planes of `n` that device `i` of `devices` owns; the last shares may be empty."""
    share = share_of(n, devices)
    return min(i * share, n), min((i + 1) * share, n)


def side_by_side(states: States) -> bool:
    """Whether the devices' pieces lie side by side in one array."""
    return not any(isinstance(s, (Partial, Windowed)) for s in states)


def overlaps(
    lo: int, hi: int, first: int, last: int, n: int, periodic: bool
) -> list[tuple[int, int, int]]:
    """Pieces `[begin, end)` of `[lo, hi)` that fall, shifted, into `[first, last)`."""
    shifts = [0]
    if periodic and n:
        shifts = [-k * n for k in range(lo // n, (hi - 1) // n + 1)]
    found = []
    for shift in shifts:
        begin, end = max(lo, first - shift), min(hi, last - shift)
        if begin < end:
            found.append((begin, end, shift))
    return found
