"""What a plan promises, checked: the same numbers, inert padding, a true adjoint.

For users who declare operators of their own: `check_placement(A, plan(A, devices=4))` says in one
line what is wrong. The checks of the operator itself are in `linops.testing`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linops import arrays
from linops.errors import ShapeError
from linops.functionals.functional import Functional
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.space import ProductSpace
from linops.testing import dot_test
from sharding.plans import Plan

__all__ = ["check_placement"]

_GARBAGE = (0.0, 1e6, 1e30, float("nan"), float("inf"))


def check_placement(operator: Operator, plan: Plan, seed: int = 0) -> None:
    """Check a lowered operator against the operator itself, and its padding against garbage.

    Parameters
    ----------
    operator
        What was planned.
    plan
        Its plan, on any executor.
    seed
        Of the vectors.

    Raises
    ------
    AssertionError
        Where a result differs from the unplanned one beyond rounding, where garbage in the
        padding of an input changes a bit of a result or survives in one, or where the adjoint is
        none.
    """
    lowered = plan.lower()
    x = operator.domain.random(seed)
    if isinstance(operator, Functional):
        _same(lowered(x), operator(x), operator, "the value")
        _inert(lowered, x, "the value")
        try:
            gradient, wanted = lowered.gradient, operator.gradient(x)
        except TypeError:
            return
        _same(gradient(x), wanted, operator, "the gradient")
        _inert(gradient, x, "the gradient")
        return
    _same(lowered(x), operator(x), operator, "the result")
    _inert(lowered, x, "the result")
    if not isinstance(operator, LinearOperator):
        return
    y = operator.codomain.random(seed + 1)
    _same(lowered.H(y), operator.H(y), operator, "the adjoint")
    _inert(lowered.H, y, "the adjoint")
    dot_test(lowered)
    weights = None
    if not isinstance(operator.codomain, ProductSpace):
        weights = np.abs(operator.codomain.random(seed + 2))
    gram, wanted = lowered.gram(weights), operator.gram(weights)
    _same(gram(x), wanted(x), operator, "the gram")
    _inert(gram, x, "the gram")
    try:
        diagonal = wanted.diagonal(limit=0)
    except ShapeError:
        return  # nobody knows it in closed form
    for value in _GARBAGE if weights is not None else _GARBAGE[:1]:
        w = None if weights is None else _spoiled(lowered.codomain, weights, value)
        placed = lowered.gram(w).diagonal()
        for member, part in zip(lowered.domain.members, _members(placed), strict=True):
            _zero_tail(member, part, f"the diagonal of the gram of {operator.name}")
        found = lowered.domain.home.gather(placed)
        _same(found, diagonal, operator, f"the diagonal of the gram, weights padded with {value},")


def _spoiled(space: Any, x: Any, value: float) -> Any:
    """`x` put on its devices, with `value` in the padding."""
    members = zip(space.members, _members(x), strict=True)
    parts = [_poisoned(member, member.home.put(part), value) for member, part in members]
    return tuple(parts) if isinstance(space, ProductSpace) else parts[0]


def _inert(operator: Any, x: Any, what: str) -> None:
    space = operator.domain
    parts = zip(space.members, _members(x), strict=True)
    padded = any(_padding(member, member.home.put(part)).any() for member, part in parts)
    reference: list[np.ndarray] | None = None
    for value in _GARBAGE if padded else _GARBAGE[:1]:
        result = operator(_spoiled(space, x, value))
        if not arrays.is_array(result) and not isinstance(result, tuple):
            found = [np.asarray(result)]
        else:
            made = _members(result)
            found = [arrays.to_numpy(part) for part in made]
            for member, part in zip(operator.codomain.members, made, strict=True):
                _zero_tail(member, part, f"{what} of {operator.name}")
        if reference is None:
            reference = found
        for a, b in zip(found, reference, strict=True):
            if not np.array_equal(a, b):
                raise AssertionError(
                    f"{what} of {operator.name} changes where the padding of its input holds "
                    f"{value}: padding is not inert"
                )


def _poisoned(space: Any, x: Any, value: float) -> Any:
    """`x` with `value` in its padding; itself where there is none."""
    if not _padding(space, x).any():
        return x
    return arrays.namespace(x).where(space.home.placement.mask(x.ndim), x, value)


def _padding(space: Any, x: Any) -> np.ndarray:
    """Which entries are padding; of one entry where none is."""
    return ~np.asarray(arrays.to_numpy(space.home.placement.mask(x.ndim)))


def _zero_tail(space: Any, x: Any, what: str) -> None:
    if np.any(arrays.to_numpy(x)[np.broadcast_to(_padding(space, x), x.shape)] != 0):
        raise AssertionError(f"{what} has entries in its padding that are not zero")


def _same(got: Any, wanted: Any, operator: Operator, what: str) -> None:
    eps = float(np.finfo(operator.dtype).eps)
    for a, b in zip(_parts(got), _parts(wanted), strict=True):
        if np.array_equal(a, b):
            continue  # infinities too
        scale, worst = float(np.abs(b).max()), float(np.abs(a - b).max())
        if not worst <= 256 * eps * max(scale, 1e-30):
            raise AssertionError(
                f"{what} of the lowered {operator.name} differs by {worst:.3g} from the "
                f"unplanned one, whose largest entry is {scale:.3g}"
            )


def _members(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple) else [x]


def _parts(x: Any) -> list[np.ndarray]:
    return [
        np.asarray(arrays.to_numpy(part) if arrays.is_array(part) else part) for part in _members(x)
    ]
