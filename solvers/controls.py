"""Checks of what a caller asks a solver for; all of them before the operator is touched."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from linops import arrays, numeric
from linops.progress import bar
from linops.space import Space

__all__ = [
    "bar",
    "bounds_pair",
    "callback_or_none",
    "is_false",
    "non_negative",
    "positive",
    "positive_count",
    "positive_or_none",
    "require_real_arrays",
    "whole",
]


def whole(name: str, value: Any) -> int:
    """`value` as an int >= 0; booleans and fractions are refused."""
    return numeric.whole(name, value)


def positive_count(name: str, value: Any) -> int:
    """`value` as an int >= 1."""
    return numeric.whole(name, value, 1)


def non_negative(name: str, value: Any) -> float:
    """`value` as a finite float >= 0."""
    return numeric.non_negative(name, value)


def positive(name: str, value: Any) -> float:
    """`value` as a finite float > 0."""
    return numeric.positive(name, value)


def positive_or_none(name: str, value: Any) -> float | None:
    """As `positive`; None stays, for what the solver finds by itself."""
    return None if value is None else positive(name, value)


def require_real_arrays(A: Any, name: str) -> None:
    """Raise unless A maps a real array to a real array."""
    if not (isinstance(A.domain, Space) and isinstance(A.codomain, Space)):
        raise ValueError(f"{name} takes an operator between single arrays; stack terms by concat")
    if A.domain.is_complex or A.codomain.is_complex:
        raise ValueError(f"{name} wants real values, got {A.domain} -> {A.codomain}")


def bounds_pair(bounds: Any) -> tuple[float | None, float | None]:
    """`(low, high)`, None where there is no bound; None alone bounds nothing."""
    if bounds is None:
        return None, None
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise ValueError(f"bounds is {bounds!r}; it is a pair (low, high), None for no bound")
    ends: list[float | None] = []
    for end, open_end in zip(bounds, (-math.inf, math.inf), strict=True):
        number = None if end is None else _real("bounds", end)
        if number is not None and math.isnan(number):
            raise ValueError(f"bounds is {bounds!r}; its ends are numbers or None")
        ends.append(None if number == open_end else number)
    low, high = ends
    if low is not None and high is not None and low > high:
        raise ValueError(f"bounds is {bounds!r}; its first entry must not exceed the second")
    return low, high


def callback_or_none(callback: Any) -> Callable[..., Any] | None:
    """A callable or None."""
    if callback is not None and not callable(callback):
        raise ValueError(
            f"callback is {callback!r}; it is called as callback(iteration, residual, solution)"
        )
    return callback  # type: ignore[no-any-return]


def is_false(answer: Any) -> bool:
    """Whether a callback's answer ends the solve: `False`, of whatever library; not 0 nor None."""
    if answer is False:
        return True
    if not (arrays.is_array(answer) or isinstance(answer, np.generic)) or np.ndim(answer):
        return False
    return arrays.dtype_of(answer).kind == "b" and not arrays.item(answer)


def _real(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name} is {value!r}; it is a real number")
    return float(value)
