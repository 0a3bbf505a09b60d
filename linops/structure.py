"""An operator as structure and leaves: what is static, and which arrays it holds.

Arrays, operators and fractional scalars are leaves or branches; all else is static and hashable.
Equal structure means that one compiled program serves both. The name is no part of it. How JAX
sees this as a pytree is in `linops/transforms/pytree.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.operator import Operator, _cached_names

__all__ = [
    "Skeleton",
    "children",
    "exchange",
    "flatten",
    "leaves",
    "rebuilt",
    "skeleton",
    "structure",
    "within",
]

Unpack = Callable[[Array, np.dtype], Array]
Branch = Callable[["Skeleton", Iterator[Array]], Any]

_UNSEEN = ("name", "_open", "_children")


def flatten(operator: Operator) -> tuple[dict[str, Any], tuple[tuple[str, Hashable], ...]]:
    """The attributes that are data, and those that are static, sorted by name."""
    data: dict[str, Any] = {}
    static: list[tuple[str, Hashable]] = []
    cached = _cached_names(type(operator))
    known = operator.__dict__.get("_children")
    for name in sorted(operator.__dict__):
        if name in _UNSEEN or name in cached or name.startswith("_cache"):
            continue
        value = operator.__dict__[name]
        if _is_data(value) if known is None else name in known:
            data[name] = value
        else:
            static.append((name, _ByIdentity(value) if _is_sparse(value) else value))
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


def rebuilt(
    cls: type[Operator],
    static: tuple[tuple[str, Hashable], ...],
    data: Mapping[str, Any],
    name: str,
) -> Any:
    """An operator from its attributes, past `__init__`: `data` may hold anything."""
    state = {key: value.array if isinstance(value, _ByIdentity) else value for key, value in static}
    # What is put in the place of an array stays a child, whatever it is.
    return cls._of({**state, **data, "name": name, "_children": frozenset(data)})


def within(operator: Operator, memory: float) -> Operator:
    """The operator with leaves whose temporaries keep to so many bytes, where they can choose."""
    found = operator._within(memory)
    if found is not operator:
        return found
    data, static = flatten(operator)

    def bounded(value: Any) -> Any:
        if isinstance(value, tuple):
            parts = tuple(map(bounded, value))
            return value if all(map(is_, parts, value)) else parts
        return within(value, memory) if isinstance(value, Operator) else value

    changed = {name: bounded(value) for name, value in data.items()}
    if all(changed[name] is value for name, value in data.items()):
        return operator
    return rebuilt(type(operator), static, changed, operator.name)  # type: ignore[no-any-return]


def exchange(operator: Operator, old: Sequence[Array], new: Sequence[Array]) -> Operator:
    """The operator with other arrays, by identity, in the place of some of its own."""
    data, static = flatten(operator)

    def other(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(other, value))
        if isinstance(value, Operator):
            return exchange(value, old, new)
        return next((b for a, b in zip(old, new, strict=True) if value is a), value)

    changed = {name: other(value) for name, value in data.items()}
    made: Operator = rebuilt(type(operator), static, changed, operator.name)
    return made


@dataclass(frozen=True)
class Skeleton:
    """An operator without some of its arrays; equal where one program serves both."""

    cls: type[Operator]
    static: tuple[tuple[str, Hashable], ...]
    parts: tuple[tuple[str, Hashable], ...]
    name: str = field(compare=False)

    @cached_property
    def slots(self) -> int:
        """How many arrays are left out."""
        return sum(_slots(part) for _, part in self.parts)

    def build(
        self, taken: Iterator[Array], unpack: Unpack | None = None, branch: Branch | None = None
    ) -> Any:
        """The operator with arrays from `taken`, in the order in which they were left out.

        `unpack(array, dtype)` restores the tables in `_host_arrays` of its class; `branch` makes
        the operators that this one holds, by default as this one is made.
        """
        make = branch or (lambda skeleton, arrays: skeleton.build(arrays, unpack))
        data = {name: _fill(part, taken, make) for name, part in self.parts}
        if unpack is not None:
            for name, dtype in self.cls._host_arrays.items():
                if name not in data:
                    continue
                data[name] = unpack(data[name], np.dtype(dtype))
        return rebuilt(self.cls, self.static, data, self.name)


def skeleton(
    operator: Operator,
    left_out: Callable[[Array], bool],
    pack: Callable[[Array], Array] | None = None,
    alike: bool = False,
) -> tuple[Skeleton, tuple[Array, ...]]:
    """`operator` without the arrays for which `left_out` is true, and these arrays.

    Other arrays stay in the skeleton and compare by identity. `pack` is applied to the tables in
    `_host_arrays` of a class. `alike`: attributes in `_alike` of a class are left as it says, so
    that an operator made of the skeleton has its hooks and nothing else.
    """
    taken: list[Array] = []

    def part(value: Any) -> Hashable:
        if isinstance(value, tuple):
            return _Several(tuple(map(part, value)))
        if isinstance(value, Operator):
            return whole(value)
        if arrays.is_array(value):
            if left_out(value):
                taken.append(value)
                return _Slot(tuple(value.shape), str(value.dtype))
            return _ByIdentity(value)
        return _Number(type(value), value)

    def whole(node: Operator) -> Skeleton:
        data, static = flatten(node)
        if pack is not None:
            for name in type(node)._host_arrays:
                if name in data:
                    data[name] = pack(data[name])
        if alike:
            like = type(node)._alike
            static = tuple(
                (name, getattr(node, like[name]) if name in like else value)
                for name, value in static
            )
        parts = tuple((name, part(value)) for name, value in data.items())
        return Skeleton(type(node), static, parts, node.name)

    return whole(operator), tuple(taken)


@dataclass(frozen=True)
class _Slot:
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class _Several:
    parts: tuple[Hashable, ...]


@dataclass(frozen=True)
class _Number:
    kind: type
    value: Any


class _ByIdentity:
    """An array, or a SciPy sparse matrix, that compares by identity."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.array is self.array

    def __hash__(self) -> int:
        return id(self.array)


def _slots(part: Any) -> int:
    if isinstance(part, _Several):
        return sum(map(_slots, part.parts))
    return part.slots if isinstance(part, Skeleton) else int(isinstance(part, _Slot))


def _fill(part: Any, taken: Iterator[Array], make: Branch) -> Any:
    if isinstance(part, _Slot):
        return next(taken)
    if isinstance(part, _Several):
        return tuple(_fill(one, taken, make) for one in part.parts)
    if isinstance(part, Skeleton):
        return make(part, taken)
    return part.array if isinstance(part, _ByIdentity) else part.value


def _is_data(value: Any) -> bool:
    if isinstance(value, (Operator, float, complex)) or arrays.is_array(value):
        return True
    return (
        isinstance(value, tuple)
        and bool(value)
        and all(isinstance(part, Operator) or arrays.is_array(part) for part in value)
    )


def _is_sparse(value: Any) -> bool:
    module = sys.modules.get("scipy.sparse")
    return module is not None and bool(module.issparse(value))


def _shape(value: Any) -> Hashable:
    if isinstance(value, tuple):
        return tuple(map(_shape, value))
    if isinstance(value, Operator):
        return structure(value)
    if arrays.is_array(value):
        return tuple(value.shape), str(value.dtype)
    return type(value).__name__
