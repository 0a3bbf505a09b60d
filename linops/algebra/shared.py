"""Parts that members of a sum or a stack share, applied once: `A P + B P` is `(A + B) P`.

Shared is the same operator, not an equal one. In stacks neighbors share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from linops.algebra.composition import Product, flat_product
from linops.algebra.scaled import ScaledLinear, is_complex
from linops.elementary.identity import Identity
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.space import AnySpace

__all__ = ["share_first", "share_last", "share_term"]

Factors = list[LinearOperator]
Stack = Callable[[Sequence[LinearOperator]], LinearOperator]


def share_last(stack: Stack, terms: Sequence[LinearOperator]) -> LinearOperator:
    """`stack([A P, B P, C]) -> stack([stack([A, B]) P, C])`."""
    return _folded(stack, terms, last=True)


def share_first(stack: Stack, terms: Sequence[LinearOperator]) -> LinearOperator:
    """`stack([P A, P B, C]) -> stack([P stack([A, B]), C])`."""
    return _folded(stack, terms, last=False)


def share_term(a: Operator, b: Operator) -> LinearOperator | None:
    """`A P + B P -> (A + B) P`, and `P A + P B -> P (A + B)`, of linear operators."""
    from linops.algebra.arithmetic import add

    if not (isinstance(a, LinearOperator) and isinstance(b, LinearOperator)):
        return None
    for last in (True, False):
        rests, shared = _split([_factors(a, last), _factors(b, last)], last)
        if shared and any(rests):  # of `A + A` nothing is left
            space = shared[0].codomain if last else shared[-1].domain
            total: LinearOperator = add(*(_product(rest, space) for rest in rests))
            return flat_product([total, *shared] if last else [*shared, total])
    return None


def _folded(stack: Stack, terms: Sequence[LinearOperator], last: bool) -> LinearOperator:
    runs: list[list[LinearOperator]] = []
    for term in terms:
        key = _factors(term, last)[-1 if last else 0]
        if runs and _factors(runs[-1][0], last)[-1 if last else 0] is key:
            runs[-1].append(term)
        else:
            runs.append([term])
    members = []
    for run in runs:
        rests, shared = _split([_factors(term, last) for term in run], last)
        if len(run) == 1 or not any(rests):
            members += run
            continue
        space = shared[0].codomain if last else shared[-1].domain
        inner = stack([_product(rest, space) for rest in rests])
        members.append(flat_product([inner, *shared] if last else [*shared, inner]))
    return members[0] if len(members) == 1 < len(terms) else stack(members)


def _product(factors: Factors, space: AnySpace) -> LinearOperator:
    return flat_product(factors) if factors else Identity(space)


def _factors(operator: LinearOperator, last: bool) -> Factors:
    """The factors of an operator, a multiple's scalar on the side that is not shared."""
    if type(operator) is Product:
        return list(operator.terms)
    if type(operator) is ScaledLinear and type(operator.base) is Product:
        head, *rest = operator.base.terms
        if last:
            return [ScaledLinear(operator.scalar, head), *rest]
        if not is_complex(operator.scalar):
            return [head, *rest[:-1], ScaledLinear(operator.scalar, rest[-1])]
    return [operator]


def _split(lists: list[Factors], last: bool) -> tuple[list[Factors], Factors]:
    """What is left of each of the lists, and the factors at one end that all of them share."""
    count = 0
    for column in zip(*(reversed(own) if last else own for own in lists), strict=False):
        if any(factor is not column[0] for factor in column):
            break
        count += 1
    if last:
        return [own[: len(own) - count] for own in lists], lists[0][len(lists[0]) - count :]
    return [own[count:] for own in lists], lists[0][:count]
