"""Checks of numbers that a caller gives: the one home of "a finite number above 0" and the like.

Each returns what it was given as a plain Python or NumPy value and raises an error that names the
argument, what came and what is wanted. Kinds of arguments are held in `linops/arguments.py`, what
an operand may be in `linops/apply.py`. Values under a trace of JAX cannot be looked at; the
functions that take them say what they do then.
"""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np

from linops import arrays
from linops.errors import DTypeError

__all__ = [
    "finite",
    "finite_vector",
    "non_negative",
    "positive",
    "require_finite",
    "require_numbers",
    "whole",
]


def finite(name: str, value: Any, error: type[ValueError] = ValueError) -> float:
    """`value` as a finite float; no boolean, text or complex number."""
    number = _real(name, value, error, "a finite number")
    if not math.isfinite(number):
        raise error(f"{name} is {value!r}; it is a finite number")
    return number


def positive(name: str, value: Any, error: type[ValueError] = ValueError) -> float:
    """`value` as a finite float above 0."""
    number = _real(name, value, error, "a positive, finite number")
    if not (math.isfinite(number) and number > 0):
        raise error(f"{name} is {value!r}; it is a positive, finite number")
    return number


def non_negative(name: str, value: Any, error: type[ValueError] = ValueError) -> float:
    """`value` as a finite float of at least 0."""
    number = _real(name, value, error, "a finite number of at least 0")
    if not (math.isfinite(number) and number >= 0):
        raise error(f"{name} is {value!r}; it is a finite number of at least 0")
    return number


def whole(name: str, value: Any, least: int = 0, error: type[ValueError] = ValueError) -> int:
    """`value` as an int of at least `least`; booleans and fractions are refused."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise error(f"{name} is {value!r}; it is a whole number of at least {least}") from None
    if number < least:
        raise error(f"{name} is {value!r}; it is a whole number of at least {least}")
    return number


def finite_vector(name: str, value: Any, error: type[ValueError] = ValueError) -> np.ndarray:
    """`value` as finite float64 NumPy numbers along one axis, at least one."""
    _refuse_masked(name, value)
    host = np.asarray(arrays.to_numpy(value) if arrays.is_array(value) else value)
    if host.dtype.kind not in "iuf":
        raise DTypeError(f"{name} has dtype {host.dtype}; it is an array of real numbers")
    if host.ndim != 1 or host.size == 0:
        raise error(f"{name} has shape {host.shape}; it is one-dimensional, with an entry or more")
    require_finite(name, host, error)
    return host.astype(np.float64)


def require_finite(
    name: str,
    value: Any,
    error: type[ValueError] = ValueError,
    *,
    least: float | None = None,
) -> None:
    """Raise where an array holds NaN or infinity, or a value below `least`, naming the first.

    Arrays under a trace, and those of no real or complex numbers, are passed over.
    """
    _refuse_masked(name, value)
    if not arrays.is_concrete(value):
        return
    host = np.asarray(arrays.to_numpy(value) if arrays.is_array(value) else value)
    if host.dtype.kind not in "fciu":
        return
    bad = ~np.isfinite(host)
    wanted = "finite"
    if least is not None and host.dtype.kind != "c":
        bad |= host < least
        wanted = f"finite and at least {least:g}"
    if bad.any():
        where = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), host.shape))
        raise error(f"{name} holds {host[where]} at {where}; every entry is {wanted}")


def require_numbers(name: str, value: Any, error: type[ValueError] = ValueError) -> None:
    """Raise where an array that can be read holds NaN, naming the first; infinity passes."""
    _refuse_masked(name, value)
    if not arrays.is_concrete(value):
        return
    host = np.asarray(arrays.to_numpy(value) if arrays.is_array(value) else value)
    if host.dtype.kind in "fc" and np.isnan(host).any():
        where = tuple(int(i) for i in np.argwhere(np.isnan(host))[0])
        raise error(f"{name} holds nan at {where}; every entry is a number")


def _refuse_masked(name: str, value: Any) -> None:
    if arrays.is_masked(value):
        raise arrays.masked_error("linops", name)


def _real(name: str, value: Any, error: type[ValueError], wanted: str) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        given: Any = value
        single = arrays.is_array(given) and given.ndim == 0 and arrays.is_concrete(given)
        if not single or arrays.dtype_of(given).kind not in "iuf":
            raise error(f"{name} is {value!r}; it is {wanted}")
        return float(arrays.to_numpy(given))
    return float(value)
