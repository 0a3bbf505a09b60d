"""Neighboring factors of a product that run as one pass.

`D.H @ W @ D` of a stencil D and a diagonal W, and `D.H @ D`, where D has such a pass for NumPy
arrays; other arrays go factor by factor. The product's factors stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from linops.linear_operator import LinearOperator

__all__ = ["links"]

Function = Callable[[Any], Any]


def links(terms: Sequence[LinearOperator], adjoint: bool) -> list[Function]:
    """The functions of a product's factors, outermost first, in the order in which they run.

    Parameters
    ----------
    terms
        The factors.
    adjoint
        Whether the adjoint runs.
    """
    functions: list[Function] = []
    position = 0
    while position < len(terms):
        for count in (3, 2):
            taken = terms[position : position + count]
            found = _pass_of(taken, adjoint) if len(taken) == count else None
            if found is not None:
                functions.append(found)
                position += count
                break
        else:
            term = terms[position]
            functions.append(term._backward if adjoint else term._forward)
            position += 1
    return functions if adjoint else functions[::-1]


def _pass_of(terms: Sequence[LinearOperator], adjoint: bool) -> Function | None:
    outer, base = terms[0], terms[-1]
    weights = terms[1] if len(terms) == 3 else None
    if base.__dict__.get("_cache_H") is not outer:
        return None
    one = base._fused_gram(weights)
    if one is None:
        return None
    middle = () if weights is None else (weights._backward if adjoint else weights._forward,)
    steps = (base._forward, *middle, base._backward)

    def run(x: Any) -> Any:
        if type(x) is np.ndarray:
            return one(x)
        for step in steps:
            x = step(x)
        return x

    return run
