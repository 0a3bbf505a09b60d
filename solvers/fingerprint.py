"""Digests that tell whether two solves are the same problem.

An operator, a functional, an array, a function or a plain value enters by what it is made of:
class names, settings, and sha256 over shape, dtype and row-major bytes of its arrays. Other
objects enter by what a copy of them would be made from, so that no field is forgotten. Functions
enter by code, constants, closure and the globals they read, objects of the user's classes also by
the methods and constants of these. What only says where another operator runs is that operator,
which it names by `_identity()`. Nothing here is stored as such; only digests are.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from linops import arrays
from linops.operator import Operator
from linops.space import ProductSpace, Space

__all__ = ["array_digest", "fingerprint"]

_BLOCK = 1 << 20
_LIBRARY = ("linops", "geometries", "sharding", "solvers", "builtins")
_DATA = (
    *(bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, range),
    *(Operator, np.generic, functools.partial, types.SimpleNamespace),
)


def fingerprint(value: Any) -> str:
    """The sha256 of everything that `value` is made of, as hexadecimal digits."""
    digest = hashlib.sha256()
    _feed(digest, value, {})
    return digest.hexdigest()


def array_digest(x: Any) -> str:
    """The sha256 of an array's shape, dtype and row-major bytes."""
    digest = hashlib.sha256()
    _feed_array(digest, x)
    return digest.hexdigest()


def _feed(digest: Any, value: Any, seen: dict[int, Any]) -> None:
    if isinstance(value, Operator):
        value = value._identity()
    if value is None or (
        isinstance(value, (bool, int, float, complex, str, bytes)) and not isinstance(value, Enum)
    ):
        digest.update(f"{type(value).__name__}:{value!r};".encode())
        return
    if isinstance(value, Enum):
        digest.update(f"{type(value).__qualname__}.{value.name};".encode())
        return
    if isinstance(value, (np.dtype, type)):
        digest.update(f"type:{value!r};".encode())
        return
    if isinstance(value, (Space, ProductSpace)):
        # By value: where elements live, and who shares the space, is no part of the problem.
        for member in value.members:
            facts = member.shape, member.dtype.str, member.axes, member.spacing
            digest.update(f"space:{facts!r};".encode())
        return
    if id(value) in seen:
        digest.update(f"again:{seen[id(value)][0]};".encode())
        return
    # The value is kept as well: a temporary's id could otherwise come again.
    seen[id(value)] = (len(seen), value)
    if isinstance(value, np.generic):
        _feed_array(digest, np.asarray(value))
    elif arrays.is_array(value):
        _feed_array(digest, value)
    elif isinstance(value, Mapping):
        digest.update(f"mapping:{len(value)};".encode())
        for key in sorted(value, key=lambda key: (str(key), type(key).__name__)):
            digest.update(f"{type(key).__name__} {key!s}=".encode())
            _feed(digest, value[key], seen)
    elif isinstance(value, (tuple, list)):
        digest.update(f"{type(value).__name__}:{len(value)};".encode())
        for entry in value:
            _feed(digest, entry, seen)
    elif isinstance(value, (set, frozenset)):
        digest.update(f"set:{sorted(map(fingerprint, value))!r};".encode())
    elif isinstance(value, types.FunctionType):
        _feed_function(digest, value, seen)
    elif hasattr(value, "py_func"):  # compiled by Numba
        _feed(digest, value.py_func, seen)
    elif isinstance(value, functools.partial):
        _feed(digest, [value.func, value.args, value.keywords], seen)
    elif isinstance(value, types.MethodType):
        _feed_function(digest, value.__func__, seen)
        _feed(digest, value.__self__, seen)
    elif isinstance(value, types.CodeType):
        digest.update(value.co_code)
        _feed(digest, [c for c in value.co_consts if c is not value.co_name], seen)
        _feed(digest, list(value.co_names), seen)
    elif isinstance(value, (types.ModuleType, np.ufunc)):
        digest.update(f"named:{getattr(value, '__name__', value)!r};".encode())
    else:
        _feed_object(digest, value, seen)


def _feed_object(digest: Any, value: Any, seen: dict[int, Any]) -> None:
    kind = type(value)
    digest.update(f"object:{kind.__module__}.{kind.__qualname__};".encode())
    if _is_users(kind.__module__):
        _feed_class(digest, kind, seen)
    parts = _parts(value)
    if not parts:
        shown = repr(value)
        digest.update(b"opaque;" if " at 0x" in shown else shown.encode())
    _feed(digest, parts, seen)


def _feed_class(digest: Any, kind: type, seen: dict[int, Any]) -> None:
    """Methods and constants of a class of the user's: what its objects do."""
    for base in kind.__mro__:
        if base.__module__ != kind.__module__:
            continue
        for name, member in sorted(vars(base).items()):
            member = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(member, types.FunctionType):
                digest.update(f"method {name};".encode())
                _feed(digest, member, seen)
            elif _is_data(member) and not name.startswith("__"):
                digest.update(f"class {name}=".encode())
                _feed(digest, member, seen)


@functools.cache
def _is_users(module: str) -> bool:
    """Whether a module is neither of this library nor installed."""
    if module.partition(".")[0] in (*_LIBRARY, *sys.stdlib_module_names) and module != "__main__":
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file


def _parts(value: Any) -> dict[str, Any]:
    """What an object is made of: what a copy of it would be made from, without caches."""
    kind = type(value)
    held = {**getattr(value, "__dict__", {}), **_slots(value)}
    if isinstance(value, Operator):
        held = value.__getstate__()
    elif "__wrapped__" not in held:  # by name alone a decorated function would be copied
        try:
            made = value.__reduce_ex__(4)
        except Exception:  # what does not pickle is all that it holds
            made = None
        if isinstance(made, str):
            return {"named": made}
        if made is not None:
            maker, arguments, state, *items = (*made, None, None, None)[:5]
            if isinstance(state, tuple) and all(isinstance(p, (dict, type(None))) for p in state):
                state = {name: part for half in state for name, part in (half or {}).items()}
            held = state if isinstance(state, dict) else {"state": state}
            if not maker.__name__.startswith("__newobj"):
                held = {**held, "maker": maker.__qualname__}
            held |= {"arguments": arguments, "items": [list(found or ()) for found in items]}
    return {
        name: part
        for name, part in held.items()
        if not str(name).startswith("_cache")
        and name not in ("_residents", "__weakref__")
        and not isinstance(getattr(kind, str(name), None), functools.cached_property)
        and not type(part).__name__.endswith(("lock", "Lock"))
    }


def _slots(value: Any) -> dict[str, Any]:
    """What stands in the slots of all classes that an object is of."""
    named = (vars(base).get("__slots__", ()) for base in type(value).__mro__)
    names = [n for slots in named for n in ((slots,) if isinstance(slots, str) else slots)]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _feed_function(digest: Any, function: Any, seen: dict[int, Any]) -> None:
    digest.update(b"function;")
    _feed(digest, function.__code__, seen)
    _feed(digest, function.__defaults__, seen)
    _feed(digest, function.__kwdefaults__, seen)
    for cell in function.__closure__ or ():
        try:
            _feed(digest, cell.cell_contents, seen)
        except ValueError:  # a cell that was never filled
            digest.update(b"empty;")
    # Globals of the user's functions enter where they are data, or functions and objects of the
    # same module; of the user's modules and classes the data that the function may look up in them.
    if not _is_users(str(function.__globals__.get("__name__"))):
        return
    names = _names(function.__code__)
    for name in names:
        found = function.__globals__.get(name)
        if _is_data(found):
            digest.update(f"global {name}=".encode())
            _feed(digest, found, seen)
        elif isinstance(found, (types.ModuleType, type)):
            if not _is_users(found.__module__ if isinstance(found, type) else found.__name__):
                continue
            for inner in sorted(set(names)):
                entry = inspect.getattr_static(found, inner, None)
                if _is_data(entry):
                    digest.update(f"global {name}.{inner}=".encode())
                    _feed(digest, entry, seen)
        elif function.__module__ in (getattr(found, "__module__", None), type(found).__module__):
            _feed(digest, found, seen)


def _is_data(value: Any) -> bool:
    if isinstance(value, types.ModuleType):  # whose attributes may warn
        return False
    return isinstance(value, _DATA) or arrays.is_array(value)


def _names(code: types.CodeType) -> list[str]:
    """The names that a function and the functions inside it look up."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return [*code.co_names, *(name for c in inner for name in _names(c))]


def _feed_array(digest: Any, x: Any) -> None:
    kind = str(getattr(x, "dtype", type(x))).rsplit(".", 1)[-1]
    if hasattr(x, "detach"):
        x = x.detach()
    if kind == "bfloat16":
        x = arrays.cast(x, np.dtype("float32"))
    host = arrays.to_numpy(x)
    digest.update(f"array:{host.shape}:{kind};".encode())
    if host.dtype.hasobject:
        _feed(digest, host.ravel().tolist(), {})
        return
    if host.flags.c_contiguous:
        flat = host.reshape(-1)
        for start in range(0, flat.size, _BLOCK):
            digest.update(flat[start : start + _BLOCK].view(np.uint8))
        return
    if host.ndim and host.shape[0] > 1 and host.size > _BLOCK:
        for plane in host:
            digest.update(np.ascontiguousarray(plane).reshape(-1).view(np.uint8))
    else:
        digest.update(np.ascontiguousarray(host).reshape(-1).view(np.uint8))
