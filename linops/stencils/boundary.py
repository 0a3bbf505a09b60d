"""Boundaries: what a stencil reads beyond the ends of an axis.

    boundary     cells, beyond the first          faces, beyond the first
    periodic     u[-1-j] = u[n-1-j]               u[-1-j] = u[n-1-j]
    zero         u[-1-j] = 0                      u[-1-j] = 0
    even         u[-1-j] = u[j]                   u[-1-j] = u[j+1]
    odd          u[-1-j] = -u[j]                  u[-1-j] = -u[j+1], u[0] read as 0
    edge         u[-1-j] = u[0]                   u[-1-j] = u[0]
    a number c   u[-1-j] = c                      u[-1-j] = c

The wall of `even` and `odd` stands on the face outside the first cell. Where the reach is larger
than the axis, what is beyond is found by going on: the mirror of a mirror.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["CUT", "KINDS", "Side", "Sides", "constants", "flipped", "ghost", "linear_part", "sides"]

KINDS = ("periodic", "zero", "even", "odd", "edge")
"""The boundaries that have a name; a number is a constant value outside."""

CUT = "cut"
# A side of a block behind which other planes come with the input.

Side = str | float
Sides = tuple[Side, Side]


def sides(boundary: Any, ndim: int, owner: str) -> tuple[Sides, ...]:
    """Lower and upper side of each axis, from one value, one an axis, or pairs.

    Raises
    ------
    ValueError
        For an unknown name, another number of entries, or an axis that is periodic on one side.
    """
    if isinstance(boundary, (str, int, float)):
        entries: list[Any] = [boundary] * ndim
    elif ndim == 1 and _is_pair(boundary):
        entries = [tuple(boundary)]
    elif isinstance(boundary, (tuple, list)):
        entries = list(boundary)
    else:
        raise ValueError(f"{owner}: {_wanted()}, got {boundary!r}")
    if len(entries) != ndim:
        raise ValueError(
            f"{owner}: boundary is one value, or one (or a pair) for each of the {ndim} axes, got "
            f"{len(entries)}: {boundary!r}"
        )
    return tuple(_pair(entry, number, owner) for number, entry in enumerate(entries))


def constants(boundary: Any) -> bool:
    """Whether a boundary names a value outside other than 0, so that the map is affine."""
    if isinstance(boundary, (tuple, list)):
        return any(constants(entry) for entry in boundary)
    return isinstance(boundary, (int, float)) and boundary != 0


def linear_part(pairs: Sequence[Sides]) -> tuple[tuple[str, str], ...]:
    """The boundaries with 0 in the place of constants."""
    return tuple((_named(low), _named(high)) for low, high in pairs)


def flipped(pair: tuple[str, str]) -> tuple[str, str]:
    """The boundary of a derivative: even and odd change places."""
    turn = {"even": "odd", "odd": "even"}
    low, high = pair
    return turn.get(low, low), turn.get(high, high)


def ghost(plane: int, n: int, pair: tuple[str, str], faces: bool) -> tuple[int, int] | None:
    """Where plane `plane` of an axis of `n` planes is read, and with which sign; None: it is 0.

    `faces`: the planes stand on faces, so that walls are the first and last of them.
    """
    if n == 0:
        return None
    sign = 1
    if pair[0] == "periodic":
        return plane % n, 1
    if faces and n == 1 and plane != 0:
        kinds = pair[0] if plane < 0 else pair[1]
        return (0, 1) if kinds in ("even", "edge") else None
    gap = 0 if faces else 1
    while not 0 <= plane < n:
        below = plane < 0
        kind = pair[0] if below else pair[1]
        if kind in ("zero", CUT):
            return None
        if kind == "edge":
            plane = 0 if below else n - 1
            break
        plane = -plane - gap if below else 2 * (n - 1) - plane + gap
        sign = -sign if kind == "odd" else sign
    if faces and ((plane == 0 and pair[0] == "odd") or (plane == n - 1 and pair[1] == "odd")):
        return None
    return plane, sign


def _is_pair(boundary: Any) -> bool:
    return (
        isinstance(boundary, (tuple, list))
        and len(boundary) == 2
        and all(isinstance(side, (str, int, float)) for side in boundary)
    )


def _pair(entry: Any, number: int, owner: str) -> Sides:
    pair: Any = (entry, entry) if isinstance(entry, (str, int, float)) else tuple(entry)
    if len(pair) != 2:
        raise ValueError(f"{owner}: axis {number} has a lower and an upper side, got {entry!r}")
    for side in pair:
        if isinstance(side, bool) or not (side in KINDS or isinstance(side, (int, float))):
            raise ValueError(f"{owner}: {_wanted()}, got {side!r} at axis {number}")
    if (pair[0] == "periodic") != (pair[1] == "periodic"):
        raise ValueError(
            f"{owner}: axis {number} is periodic on one side only ({entry!r}); a ring has no ends, "
            "so both sides are periodic or neither is"
        )
    low, high = (_named(side) if side == 0 else side for side in pair)
    return (
        low if isinstance(low, str) else float(low),
        high if isinstance(high, str) else float(high),
    )


def _named(side: Side) -> str:
    return side if isinstance(side, str) else "zero"


def _wanted() -> str:
    return f"a boundary is one of {', '.join(map(repr, KINDS))}, or a number (the value outside)"
