"""What may stand in the place of an operator's fields: the checks of `Operator.replace`.

Fields are the arrays, parts and numbers of an operator; what shapes follow from (spaces, rule,
counts) and private tables are not replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linops import arrays
from linops.errors import DTypeError, ShapeError
from linops.operator import Operator
from linops.structure import flatten

__all__ = ["admitted_fields", "fields"]

_DERIVED = ("domain", "codomain")


def fields(operator: Operator) -> dict[str, Any]:
    """The fields of an operator that may be replaced, by name."""
    found = flatten(operator)[0]
    if operator._exact:  # their whole numbers say where planes and entries are
        found = {name: value for name, value in found.items() if not _counts(value)}
    return {
        name: value
        for name, value in found.items()
        if not name.startswith("_") and name not in _DERIVED
    }


def admitted_fields(operator: Operator, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes as an operator holds them.

    Raises
    ------
    TypeError, ShapeError, DTypeError
        As `Operator.replace`.
    """
    known = fields(operator)
    for name in changes:
        if name not in known:
            listed = ", ".join(sorted(known)) or "nothing: build a new operator"
            raise TypeError(
                f"{operator.name}.replace takes no {name!r}; of this operator it replaces {listed}"
            )
    return {name: operator._admit_field(name, value) for name, value in changes.items()}


def _counts(value: Any) -> bool:
    return arrays.is_array(value) and arrays.dtype_of(value).kind in "iu"


def fitting(owner: str, old: Any, new: Any) -> Any:
    """`new` as it stands in the place of `old`."""
    if isinstance(old, tuple) and isinstance(new, (tuple, list)) and len(old) == len(new):
        return tuple(fitting(owner, a, b) for a, b in zip(old, new, strict=True))
    if isinstance(old, Operator):
        if not isinstance(new, Operator) or (new.domain, new.codomain, new.linear) != (
            old.domain,
            old.codomain,
            old.linear,
        ):
            raise ShapeError(
                f"{owner} is an operator {old.domain} -> {old.codomain}, got {new!r}: another one "
                "between these spaces takes its place"
            )
        return new
    if arrays.is_array(old):
        if not arrays.is_array(new) or tuple(new.shape) != tuple(old.shape):
            got = tuple(new.shape) if arrays.is_array(new) else type(new).__name__
            raise ShapeError(f"{owner} is an array of shape {tuple(old.shape)}, got {got}")
        dtype = arrays.dtype_of(old)
        if (arrays.dtype_of(new).kind == "c") != (dtype.kind == "c"):
            raise DTypeError(
                f"{owner} holds {dtype}, got {arrays.dtype_of(new)}: real and complex arrays do "
                "not take each other's place; build a new operator"
            )
        return arrays.own(new, dtype)
    if type(old) in (float, complex) and not isinstance(new, (int, float, type(old))):
        raise TypeError(f"{owner} is a number, got {type(new).__name__}")
    return type(old)(new) if type(old) in (float, complex) else new
