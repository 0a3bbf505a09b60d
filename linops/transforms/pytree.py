"""Operators as JAX pytrees: arrays, operators and fractional scalars are children.

Everything else about an operator is static, hashable, and compared by value; the name is carried
along and not compared. So an operator may be an argument of `jax.jit`, `grad`, `vmap` and
`lax.scan`, and new values do not trace again. A class is registered when it, or the first of its
operators, is made and JAX is already imported; `register_jax()` serves the other order.

An operator says by `_data_and_static()` what is data, and is made again by
`_of_data(static, data, name)`; one that is more than its attributes (a lowered one) overrides both.

Tables in float64 that compiled kernels read on the host (`_host_arrays` of a class, such as the
frames of a projector) are children as pairs of uint32: JAX without x64 would round them.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from linops import arrays
from linops.operator import Operator
from linops.structure import flatten

__all__ = ["check_static", "decode", "pack", "register", "register_jax", "unpack"]

_registered: set[type] = set()


def register_jax() -> None:
    """Make every class of operators a JAX pytree: for operators made before JAX was imported.

    Imports JAX. Calling it again does no harm.
    """
    import jax  # noqa: F401

    _register_below(Operator)  # type: ignore[type-abstract]


def register(cls: type[Operator]) -> bool:
    """Register one class, once; whether it is registered. JAX is imported already."""
    if cls in _registered:
        return True
    tree_util = getattr(sys.modules.get("jax"), "tree_util", None)
    if tree_util is None:  # in the middle of its import
        return False
    _registered.add(cls)

    def children_with_keys(operator: Any) -> tuple[list[tuple[Any, Any]], _Static]:
        values, static = _split(operator)
        keys = map(tree_util.GetAttrKey, static.names)
        return list(zip(keys, values, strict=True)), static

    def build(static: _Static, values: Iterable[Any]) -> Any:
        data = dict(zip(static.names, values, strict=True))
        for name, dtype in static.packed:
            data[name] = unpack(data[name], np.dtype(dtype))
        return cls._of_data(static.fields, data, static.name)

    tree_util.register_pytree_with_keys(cls, children_with_keys, build, _split)
    return True


def check_static(operator: Operator) -> None:
    """Raise where an attribute is neither data nor hashable.

    Raises
    ------
    TypeError
        Naming the attribute.
    """
    for name, value in flatten(operator)[1]:
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"{operator.name}.{name} is a {type(value).__name__}, which cannot be hashed: "
                "attributes of operators are arrays, operators, numbers, tuples of arrays or of "
                "operators, or hashable; make it a tuple, or a frozen dataclass"
            ) from None


def pack(array: Any) -> Any:
    """A 64-bit NumPy array as uint32 with a last axis twice as long; others as they are."""
    if isinstance(array, np.ndarray) and array.dtype.itemsize == 8 and array.ndim:
        return np.ascontiguousarray(array).view(np.uint32)
    return array


def unpack(array: Any, dtype: np.dtype) -> Any:
    """The inverse of `pack` for NumPy arrays; anything else stays as it is."""
    if isinstance(array, np.ndarray) and array.dtype == np.uint32 != dtype:
        host = np.ascontiguousarray(array).view(dtype)
        host.setflags(write=False)
        return host
    return array


def decode(bits: Any) -> Any:
    """What `pack` made of a float64 table, as numbers inside JAX: float32 without x64."""
    if not (arrays.is_jax(bits) and str(bits.dtype) == "uint32"):
        return bits
    jax = sys.modules["jax"]
    jnp = jax.numpy
    low, high = bits[..., 0::2], bits[..., 1::2]
    if jax.config.jax_enable_x64:
        return jax.lax.bitcast_convert_type(jnp.stack([low, high], axis=-1), jnp.float64)
    exponent = ((high >> 20) & 0x7FF).astype(jnp.int32)
    fraction = (high & 0xFFFFF) * jnp.float32(2.0**-20) + low * jnp.float32(2.0**-52)
    size = jnp.ldexp(1 + fraction.astype(jnp.float32), exponent - 1023)
    size = jnp.where(exponent == 0, jnp.zeros_like(size), size)
    return jnp.where(high >> 31 == 1, -size, size)


class _Static:
    """What of an operator is no child; equality leaves the name out."""

    __slots__ = ("_hash", "fields", "name", "names", "packed")

    def __init__(
        self,
        names: tuple[str, ...],
        fields: tuple[tuple[str, Hashable], ...],
        packed: tuple[tuple[str, str], ...],
        name: str,
    ) -> None:
        self.names, self.fields, self.packed, self.name = names, fields, packed, name
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, _Static)
            and self.names == other.names
            and self.fields == other.fields
            and self.packed == other.packed
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.names, self.fields, self.packed))
        return self._hash

    def __repr__(self) -> str:
        return f"<{self.name}: {', '.join(self.names)}>"


def _split(operator: Operator) -> tuple[tuple[Any, ...], _Static]:
    """The children and the rest; an operator does not change, so it is taken apart once."""
    found: tuple[tuple[Any, ...], _Static] | None = operator.__dict__.get("_cache_split")
    if found is None:
        found = _take_apart(operator)
        if "_open" not in operator.__dict__:
            operator.__dict__["_cache_split"] = found
    return found


def _take_apart(operator: Operator) -> tuple[tuple[Any, ...], _Static]:
    data, fields = operator._data_and_static()
    tables: list[tuple[str, str]] = []
    for name, dtype in type(operator)._host_arrays.items():
        if name in data:
            data[name] = pack(data[name])
            tables.append((name, dtype))
    return tuple(data.values()), _Static(tuple(data), fields, tuple(tables), operator.name)


def _register_below(cls: type[Operator]) -> None:
    for child in cls.__subclasses__():
        if not getattr(child, "__abstractmethods__", None):
            register(child)
        _register_below(child)
