"""The rewrite table: pairs of neighboring factors, or terms, that simplify.

Each rule is a small pure function that returns the simpler operator, or None where it does not
apply; classes are final, so it compares types. Products try `PRODUCT_RULES` where two chains meet,
sums try `SUM_RULES`, multiples `SCALE_RULES`; a composition is simplified as it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from linops import arrays
from linops.algebra.node import Node
from linops.algebra.origins import derived
from linops.elementary.diagonal import Diagonal
from linops.elementary.identity import Cast, Identity, Zero
from linops.linear_operator import LinearOperator
from linops.operator import Operator

__all__ = ["PRODUCT_RULES", "SCALE_RULES", "SUM_RULES", "Rewrite", "extend", "simplify_pair"]

Rewrite = Callable[[Operator, Operator], Operator | None]


def identity_on_the_left(outer: Operator, inner: Operator) -> Operator | None:
    """`I @ A -> A`."""
    return inner if type(outer) is Identity else None


def identity_on_the_right(outer: Operator, inner: Operator) -> Operator | None:
    """`A @ I -> A`."""
    return outer if type(inner) is Identity else None


def zero_factor(outer: Operator, inner: Operator) -> Operator | None:
    """`0 @ A -> 0`, and `A @ 0 -> 0` for a linear A."""
    if type(outer) is Zero or (type(inner) is Zero and outer.linear):
        return Zero(inner.domain, outer.codomain)
    return None


def diagonals(outer: Operator, inner: Operator) -> Operator | None:
    """`Diagonal(a) @ Diagonal(b) -> Diagonal(a b)`."""
    if type(outer) is not Diagonal or type(inner) is not Diagonal:
        return None
    if "real_linear" in outer.tags or "real_linear" in inner.tags:
        return None
    a, b = outer.array, inner.array
    if not (arrays.is_numpy(a) and arrays.is_numpy(b)):
        if type(a) is not type(b):
            return None
    return Diagonal(a * b, inner.domain)  # type: ignore[arg-type]


def unitary_pair(outer: Operator, inner: Operator) -> Operator | None:
    """`U.H @ U -> I` and `U @ U.H -> I` for a unitary U."""
    # An adjoint that was never asked for is nobody's neighbor; this costs no tags.
    if outer is not inner and inner.__dict__.get("_cache_H") is not outer:
        return None
    if not isinstance(inner, LinearOperator):
        return None
    if "unitary" in inner.tags and outer is inner.H and outer.codomain == inner.domain:
        return Identity(inner.domain)
    return None


def casts(outer: Operator, inner: Operator) -> Operator | None:
    """Two changes of precision become one where the middle one is the finest."""
    if type(outer) is not Cast or type(inner) is not Cast:
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


def zero_term(a: Operator, b: Operator) -> Operator | None:
    """`A + 0 -> A`."""
    if type(a) is Zero:
        return b
    return a if type(b) is Zero else None


def diagonal_terms(a: Operator, b: Operator) -> Operator | None:
    """`Diagonal(a) + Diagonal(b) -> Diagonal(a + b)`."""
    if type(a) is not Diagonal or type(b) is not Diagonal:
        return None
    if a.codomain != b.codomain or type(a.array) is not type(b.array):
        return None
    return Diagonal(a.array + b.array, a.domain)  # type: ignore[arg-type]


def shared_factors(a: Operator, b: Operator) -> Operator | None:
    """`A P + B P -> (A + B) P`, and `P A + P B -> P (A + B)`."""
    if not (isinstance(a, Node) or isinstance(b, Node)):
        return None
    from linops.algebra.shared import share_term  # which makes sums

    return share_term(a, b)


SUM_RULES: tuple[Rewrite, ...] = (zero_term, diagonal_terms, shared_factors)


def one_times(scalar: Any, operator: Operator) -> Operator | None:
    """`1 A -> A`."""
    return operator if not arrays.is_array(scalar) and scalar == 1 else None


def zero_times(scalar: Any, operator: Operator) -> Operator | None:
    """`0 A -> 0` for a linear A, and `a 0 -> 0`."""
    if arrays.is_array(scalar) or not operator.linear:
        return None
    if type(operator) is Zero:
        return operator
    return Zero(operator.domain, operator.codomain) if scalar == 0 else None


SCALE_RULES: tuple[Callable[[Any, Operator], Operator | None], ...] = (one_times, zero_times)


def extend(terms: list[Any], more: Sequence[Any], rules: tuple[Rewrite, ...]) -> None:
    """Extend `terms`, simplified already, by `more`, rewritten from where the two meet."""
    for k, term in enumerate(more):
        current, met = term, False
        while terms:
            found = simplify_pair(rules, terms[-1], current)
            if found is None:
                break
            terms.pop()
            current, met = found, True
        terms.append(current)
        if not met and len(terms) > 1:
            terms += more[k + 1 :]
            break


def simplify_pair(rules: tuple[Rewrite, ...], a: Operator, b: Operator) -> Operator | None:
    """The first rewrite that applies to the pair, or None."""
    for rule in rules:
        found = rule(a, b)
        # What was computed from a parameter would not follow it.
        if found is not None and not derived(found, (a, b)):
            return found
    return None
