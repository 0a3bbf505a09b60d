"""What the stacks share: their members on one space, tuples dealt out to them, tags that spread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from linops.algebra.arithmetic import as_operator
from linops.algebra.complexify import complexify
from linops.algebra.composition import flat_product
from linops.algebra.placed import meeting
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.space import AnySpace, ProductSpace, Space

__all__ = [
    "as_tuple",
    "flat",
    "in_one_dtype",
    "members_of",
    "places",
    "plain_space",
    "product_of",
]


def members_of(operators: Iterable[Any], name: str, side: str | None) -> list[LinearOperator]:
    """The operators of a stack, on one space where `side` says which, in one precision."""
    terms = [as_operator(value) for value in operators]
    if not terms:
        raise ShapeError(f"{name} takes one or more operators, got none")
    one_array = name == "concat"
    if _differ_in_field(terms) and (one_array or not _meet_over_reals(terms, side)):
        terms = [complexify(term) for term in terms]
    if side is None:
        return terms
    first = getattr(terms[0], side)
    for term in terms[1:]:
        if getattr(term, side).shape != first.shape:
            raise ShapeError(
                f"{name} takes operators with one {side}, got {terms[0].name} on "
                f"{first} and {term.name} on {getattr(term, side)}"
            )
    return in_one_dtype(meeting(terms, [side], name), side)


def in_one_dtype(terms: Sequence[LinearOperator], side: str) -> list[LinearOperator]:
    """The operators with casts, so that their domains, or their codomains, have one dtype."""
    if len({getattr(term, side).dtype for term in terms}) == 1:
        return list(terms)
    widest = max(terms, key=lambda term: getattr(term, side).dtype.itemsize)
    return [_on_side(term, widest, side) for term in terms]


def _differ_in_field(terms: Sequence[LinearOperator]) -> bool:
    return len({(t.domain.is_complex, t.codomain.is_complex) for t in terms}) > 1


def _meet_over_reals(terms: Sequence[LinearOperator], side: str | None) -> bool:
    """Whether a transform of a real image stands beside real operators: both stay as they are."""
    if not any("real_linear" in term.tags for term in terms):
        return False
    return side is None or not any(getattr(term, side).is_complex for term in terms)


def _on_side(term: LinearOperator, widest: LinearOperator, side: str) -> LinearOperator:
    from linops.elementary.identity import Cast

    own = getattr(term, side)
    wide = own.with_dtype(getattr(widest, side).dtype)
    if own.dtype == wide.dtype:
        return term
    if side == "domain":
        return flat_product([term, Cast(wide, own)])
    return flat_product([Cast(own, wide), term])


def plain_space(space: AnySpace, name: str) -> Space:
    """`space`, which must be no product."""
    if not isinstance(space, Space):
        raise ShapeError(f"{name} takes operators with a plain codomain, got {space}")
    return space


def product_of(spaces: Sequence[AnySpace]) -> ProductSpace:
    """The product of all members of the spaces, flat."""
    return ProductSpace([member for space in spaces for member in space.members])


def as_tuple(x: Any, space: AnySpace) -> tuple[Any, ...]:
    """An element as the tuple of its members."""
    return x if isinstance(space, ProductSpace) else (x,)


def flat(parts: Iterable[Any]) -> tuple[Any, ...]:
    """Arrays, and members of tuples among them, as one tuple."""
    parts = tuple(parts)
    if tuple not in map(type, parts):
        return parts
    return tuple(one for part in parts for one in (part if isinstance(part, tuple) else (part,)))


def places(spaces: Iterable[AnySpace]) -> list[Any]:
    """Where each of the spaces stands in an element of their product: a number, or a slice."""
    found: list[Any] = []
    start = 0
    for space in spaces:
        stop = start + len(space.members)
        found.append(slice(start, stop) if isinstance(space, ProductSpace) else start)
        start = stop
    return found
