"""An operator as structure and leaves: what is static, and which arrays it holds.

Arrays, operators and fractional scalars are leaves or branches; all else is static and hashable.
Equal structure means that one compiled program serves both. The name is no part of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from linops import arrays
from linops.arrays import Array
from linops.maps import Operator, _cached_names

__all__ = ["children", "flatten", "leaves", "structure"]

_UNSEEN = ("name", "_frozen")


def flatten(operator: Operator) -> tuple[dict[str, Any], tuple[tuple[str, Hashable], ...]]:
    """The attributes that are data, and those that are static, sorted by name."""
    data: dict[str, Any] = {}
    static: list[tuple[str, Hashable]] = []
    cached = _cached_names(type(operator))
    for name in sorted(operator.__dict__):
        if name in _UNSEEN or name in cached or name.startswith("_cache"):
            continue
        value = operator.__dict__[name]
        if _is_data(value):
            data[name] = value
        else:
            static.append((name, value))
    return data, tuple(static)


def children(operator: Operator) -> tuple[Operator, ...]:
    """The operators that this one is made of, in the order of their attributes."""
    found: list[Operator] = []
    for value in flatten(operator)[0].values():
        parts = value if isinstance(value, tuple) else (value,)
        found += [part for part in parts if isinstance(part, Operator)]
    return tuple(found)


def leaves(operator: Operator) -> tuple[Array, ...]:
    """All arrays of the tree, in a fixed order."""
    found: list[Array] = []
    for value in flatten(operator)[0].values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Operator):
                found += leaves(part)
            elif arrays.is_array(part):
                found.append(part)
    return tuple(found)


def structure(operator: Operator) -> Hashable:
    """What two operators share where one compiled program serves both: class, static fields,
    shapes and dtypes of arrays; values and names are left out."""
    data, static = flatten(operator)
    return (type(operator), static, tuple((name, _shape(value)) for name, value in data.items()))


def _is_data(value: Any) -> bool:
    if isinstance(value, (Operator, float, complex)) or arrays.is_array(value):
        return True
    return (
        isinstance(value, tuple)
        and bool(value)
        and all(isinstance(part, Operator) or arrays.is_array(part) for part in value)
    )


def _shape(value: Any) -> Hashable:
    if isinstance(value, tuple):
        return tuple(map(_shape, value))
    if isinstance(value, Operator):
        return structure(value)
    if arrays.is_array(value):
        return tuple(value.shape), str(value.dtype)
    return type(value).__name__
