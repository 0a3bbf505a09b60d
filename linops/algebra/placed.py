"""Operators that run by a plan compose where their placements match.

An operator without a plan beside one with a plan is lowered to the placement where the two meet;
two placements that differ are refused when the composition is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from linops.elementary.identity import Identity, Zero
from linops.errors import PlacementError
from linops.operator import Operator
from linops.space import AnySpace
from linops.structure import children

__all__ = ["chained", "meeting", "refuse_shares"]


def chained(outer: Any, inner: Any) -> tuple[Any, Any]:
    """`outer` and `inner` of a composition."""
    source, target = inner.codomain, outer.domain
    if not (source.home.placed or target.home.placed):
        return outer, inner
    _agree(target, source, f"compose {outer.name} @ {inner.name}")
    if _plain(inner):
        inner = target.home.lower_between(inner, None, target)
    elif _plain(outer):
        end = source if outer.codomain.shape == source.shape else None
        outer = source.home.lower_between(outer, source, end)
    return outer, inner


def meeting(operators: Sequence[Any], sides: Sequence[str], what: str) -> list[Any]:
    """Operators that share their domain, or their codomain, or both, as `sides` says."""
    placed = (t for t in operators if all(getattr(t, s).home.placed for s in sides))
    first = next((t for t in placed if not _plain(t)), None)
    if first is None:
        return list(operators)
    for term in operators:
        for side in sides:
            name = f"{what} {first.name} and {term.name}"
            _agree(getattr(first, side), getattr(term, side), name)
    ends = [getattr(first, side) if side in sides else None for side in ("domain", "codomain")]
    home = getattr(first, sides[0]).home
    return [home.lower_between(t, *ends) if _plain(t) else t for t in operators]


def refuse_shares(operators: Sequence[Any], what: str) -> None:
    """Raise where an operator gives arrays in shares on devices to what joins whole ones."""
    for term in operators:
        for space in term.codomain.members:
            if space.home.apart and not _plain(term):
                raise PlacementError(
                    f"{what} joins whole arrays, {term.name} gives shares of one on "
                    f"{space.home}: plan the whole, plan({what}([...])).lower()"
                )


def _plain(operator: Operator) -> bool:
    """Whether nothing in it runs by a plan, and a plan would change what runs."""
    found = operator.__dict__.get("_cache_plain")
    if found is None:
        found = not operator._lowered and all(map(_unplanned, children(operator)))
        operator.__dict__["_cache_plain"] = found
    return bool(found) and not isinstance(operator, (Identity, Zero))


def _unplanned(operator: Operator) -> bool:
    return _plain(operator) or isinstance(operator, (Identity, Zero))


def _agree(a: AnySpace, b: AnySpace, what: str) -> None:
    for one, other in zip(a.members, b.members, strict=True):
        if not one.home.agrees(other.home):
            raise PlacementError(
                f"cannot {what}: at {one.describe_shape()} the first lives on {one.home}, "
                f"the second on {other.home}; plan the whole composition, "
                "or lower one operator to the other's space: B.domain.lower(other)"
            )
