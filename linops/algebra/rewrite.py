"""The rewrite table: pairs of neighbouring factors, or terms, that simplify.

Each rule is a small pure function that returns the simpler operator, or None where it does not
apply. Products try `PRODUCT_RULES` where two chains meet, sums try `SUM_RULES`; a composition is
simplified as it is built.
"""

from __future__ import annotations

from collections.abc import Callable

from linops import arrays
from linops.elementary.diagonal import Diagonal
from linops.elementary.identity import Cast, Identity, Zero
from linops.operator import LinearOperator

__all__ = ["PRODUCT_RULES", "SUM_RULES", "simplify_pair"]

Rewrite = Callable[[LinearOperator, LinearOperator], LinearOperator | None]


def identity_on_the_left(outer: LinearOperator, inner: LinearOperator) -> LinearOperator | None:
    """`I @ A -> A`."""
    return inner if isinstance(outer, Identity) else None


def identity_on_the_right(outer: LinearOperator, inner: LinearOperator) -> LinearOperator | None:
    """`A @ I -> A`."""
    return outer if isinstance(inner, Identity) else None


def zero_factor(outer: LinearOperator, inner: LinearOperator) -> LinearOperator | None:
    """`0 @ A -> 0` and `A @ 0 -> 0`."""
    if isinstance(outer, Zero) or isinstance(inner, Zero):
        return Zero(inner.domain, outer.codomain)
    return None


def diagonals(outer: LinearOperator, inner: LinearOperator) -> LinearOperator | None:
    """`Diagonal(a) @ Diagonal(b) -> Diagonal(a b)`."""
    if not (isinstance(outer, Diagonal) and isinstance(inner, Diagonal)):
        return None
    if "real_linear" in outer.tags or "real_linear" in inner.tags:
        return None
    a, b = outer.array, inner.array
    if not (arrays.is_numpy(a) and arrays.is_numpy(b)):
        if type(a) is not type(b):
            return None
    return Diagonal(a * b, inner.domain)  # type: ignore[arg-type]


def unitary_pair(outer: LinearOperator, inner: LinearOperator) -> LinearOperator | None:
    """`U.H @ U -> I` and `U @ U.H -> I` for a unitary U."""
    if "unitary" in inner.tags and outer is inner.H and outer.codomain == inner.domain:
        return Identity(inner.domain)
    return None


def casts(outer: LinearOperator, inner: LinearOperator) -> LinearOperator | None:
    """Two changes of precision become one where the middle one is the finest."""
    if not (isinstance(outer, Cast) and isinstance(inner, Cast)):
        return None
    middle = inner.codomain.dtype.itemsize
    if middle < max(inner.domain.dtype.itemsize, outer.codomain.dtype.itemsize):
        return None
    if inner.domain == outer.codomain:
        return Identity(inner.domain)
    return Cast(inner.domain, outer.codomain)


PRODUCT_RULES: tuple[Rewrite, ...] = (
    identity_on_the_left,
    identity_on_the_right,
    zero_factor,
    diagonals,
    unitary_pair,
    casts,
)


def zero_term(a: LinearOperator, b: LinearOperator) -> LinearOperator | None:
    """`A + 0 -> A`."""
    if isinstance(a, Zero):
        return b
    return a if isinstance(b, Zero) else None


def diagonal_terms(a: LinearOperator, b: LinearOperator) -> LinearOperator | None:
    """`Diagonal(a) + Diagonal(b) -> Diagonal(a + b)`."""
    if not (isinstance(a, Diagonal) and isinstance(b, Diagonal)):
        return None
    if a.codomain != b.codomain or type(a.array) is not type(b.array):
        return None
    return Diagonal(a.array + b.array, a.domain)  # type: ignore[arg-type]


SUM_RULES: tuple[Rewrite, ...] = (zero_term, diagonal_terms)


def simplify_pair(
    rules: tuple[Rewrite, ...], a: LinearOperator, b: LinearOperator
) -> LinearOperator | None:
    """The first rewrite that applies to the pair, or None."""
    for rule in rules:
        found = rule(a, b)
        if found is not None:
            return found
    return None
