"""Whether a product reads the same from both ends, `A.H @ W @ A`: by what its factors are made of.

Two factors built from equal arrays are the same map, whoever built them. Values are compared where
nobody can change them; tensors of torch, traced arrays and arrays that are trained have to be the
same object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from linops import arrays
from linops.operator import Operator
from linops.structure import flatten

if TYPE_CHECKING:
    from linops.linear_operator import LinearOperator

__all__ = ["alike", "mirrored"]


def mirrored(terms: Sequence[LinearOperator]) -> frozenset[str]:
    """Of `"self_adjoint"` and `"psd"` what follows for the product of these factors."""
    n = len(terms)
    # Pairs first, from outside: of most products the first one says no.
    for left, right in zip(terms[: n // 2], reversed(terms), strict=False):
        if (left.domain, left.codomain) != (right.codomain, right.domain):
            return frozenset()
        if not (alike(left.H, right) or alike(left, right.H)):
            return frozenset()
    tags = frozenset({"self_adjoint", "psd"})
    if n % 2:
        tags &= terms[n // 2].tags
    if "self_adjoint" not in tags or all("self_adjoint" in term.tags for term in terms):
        return frozenset()  # of no two adjoint factors it is not known whether they commute
    if any("approximate_adjoint" in term.tags for term in terms):
        return frozenset()
    return tags


def alike(first: Any, second: Any) -> bool:
    """Whether two parts of operators are certain to be the same map."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, Operator):
        (data, static), (others, fixed) = flatten(first), flatten(second)
        return (
            data.keys() == others.keys()
            and static == fixed
            and all(alike(value, others[name]) for name, value in data.items())
        )
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(alike, first, second))
    if arrays.is_array(first):
        fixed_values = arrays.is_numpy(first) or (
            arrays.is_jax(first) and not (arrays.is_traced(first) or arrays.is_traced(second))
        )
        if not fixed_values or (first.shape, first.dtype) != (second.shape, second.dtype):
            return False
        return bool(np.array_equal(np.asarray(first), np.asarray(second)))
    return bool(first == second)
