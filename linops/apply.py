"""How arrays enter an operator and leave it: checked once, cast once, batch axes kept.

`call` is what `A @ x` does; `derivable` hands an operator to JAX or torch where they record a
derivative. What a leaf's own functions return is held to its spaces in `linops.guard`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from linops import arrays, autocast, tracing
from linops.arrays import Array
from linops.errors import DTypeError
from linops.precision import complex_of, real_of
from linops.space import AnySpace, ProductSpace, Space

if TYPE_CHECKING:
    from linops.operator import Operator

__all__ = ["admit", "admit_element", "call", "derivable", "map_members", "unalias", "warn"]


def call(operator: Operator, x: Any) -> Any:
    """`operator(x)`: `x` validated and cast to the domain, batch axes in front kept.

    Raises
    ------
    ShapeError, DTypeError
        Before anything is computed, naming the operator, both shapes and the fix.
    """
    domain = operator.domain
    if (
        type(x) is np.ndarray
        and isinstance(domain, Space)
        and x.dtype is domain.dtype
        and x.shape == domain.shape
    ):
        y = operator._forward(x)
        return unalias(y, x) if operator._aliases else y
    if tracing.compiling():
        from linops.transforms import torch_compile

        return torch_compile.applied(operator, x)
    kind = autocast.device(x)
    if kind is not None:
        with autocast.off(kind):
            return call(operator, x)
    domain.check_shape(x, operator.name)
    if isinstance(domain, ProductSpace):
        x = tuple(x)
    parts = x if isinstance(domain, ProductSpace) else (x,)
    if any(arrays.dtype_of(part).kind == "c" for part in parts) and not all(
        space.is_complex for space in domain.members if isinstance(space, Space)
    ):
        if not domain.is_complex:
            return _call_on_complex(operator, x)
    x = map_members(lambda part, space: admit(operator, part, space), x, domain)
    if operator.linear:
        y = derivable(operator, x, adjoint=False)
        if y is not None:
            return y
    y = operator._forward(x)
    return unalias(y, x) if operator._aliases else y


def derivable(operator: Any, x: Any, adjoint: bool) -> Any:
    """The linear operator applied so that JAX or torch differentiate it by its declared pair.

    None where neither traces nor records, and plain array code is right: for concrete arrays,
    in torch also where an array of the operator itself requires a gradient, and in JAX where a
    part of it is a primitive of its own.
    """
    for part in x if isinstance(x, tuple) else (x,):
        if type(part) is np.ndarray:
            continue
        if arrays.is_traced(part):
            from linops.transforms import jax_primitive

            return jax_primitive.apply_operator(operator, x, adjoint)
        if arrays.is_torch(part):
            from linops.transforms import torch_function

            return torch_function.apply_operator(operator, x, adjoint)
    return None


def admit_element(operator: Operator, x: Any) -> Any:
    """An element of the domain, of a checked shape, in the domain's dtype."""
    if isinstance(operator.domain, ProductSpace):
        x = tuple(x)
    return map_members(lambda part, space: admit(operator, part, space), x, operator.domain)


def admit(operator: Operator, x: Array, space: Space) -> Array:
    """`x` in the dtype of `space`; a higher precision is cast with one warning an operator."""
    dtype = arrays.dtype_of(x)
    if dtype == space.dtype:
        return np.asarray(x, space.dtype) if arrays.is_numpy(x) else x
    if dtype.kind not in "biufc":
        raise DTypeError(
            f"{operator.name} takes numbers, got dtype {dtype}; convert them to {space.dtype}"
        )
    if dtype.kind == "c" and not space.is_complex:
        raise DTypeError(
            f"{operator.name} takes real values in one member of a product space, got {dtype}"
        )
    if dtype.kind in "fc" and real_of(dtype).itemsize > real_of(space.dtype).itemsize:
        operator._warn_once(
            f"{operator.name} works in {space.dtype}; its {dtype} input is cast (warned once). "
            f"{_wider(operator, space)}, or cast the input yourself."
        )
    return arrays.cast(x, space.dtype)


def map_members(function: Callable[[Array, Space], Array], x: Any, space: AnySpace) -> Any:
    """`function(part, member)` of every member of an element; of the element where it is one."""
    if isinstance(space, ProductSpace):
        return tuple(function(part, member) for part, member in zip(x, space.spaces, strict=True))
    return function(x, space)


def _call_on_complex(operator: Operator, x: Any) -> Any:
    if not operator.linear or "real_linear" in operator.tags:
        raise DTypeError(
            f"{operator.name} maps real values{' to complex ones' if operator.linear else ''}; it "
            "has no complex extension with the same adjoint. Apply it to real and imaginary "
            "part yourself if that is meant."
        )
    xp = arrays.namespace(*x) if isinstance(x, tuple) else arrays.namespace(x)

    def part(function: str) -> Any:
        def take(a: Array, _: Space) -> Array:
            if arrays.dtype_of(a).kind == "c":
                return getattr(xp, function)(a)
            return a if function == "real" else xp.zeros_like(a)

        return call(operator, map_members(take, x, operator.domain))

    real, imaginary = part("real"), part("imag")
    if isinstance(operator.codomain, ProductSpace):
        return tuple(arrays.combine(r, i) for r, i in zip(real, imaginary, strict=True))
    return arrays.combine(real, imaginary)


def unalias(y: Any, x: Any) -> Any:
    """`y` with copies of what shares memory with `x`, or with an earlier member of `y`."""
    if type(y) is np.ndarray and type(x) is np.ndarray:
        if y is not x and y.base is None and x.base is None:
            return y
        return y.copy() if np.may_share_memory(y, x) else y
    parts = (*(y if isinstance(y, tuple) else (y,)), *(x if isinstance(x, tuple) else (x,)))
    owners = sum([type(part) is np.ndarray and part.base is None for part in parts])
    if owners == len(parts) == len(set(map(id, parts))):
        return y
    taken: dict[int, list[Array]] = {}
    # Arrays by the array that owns their memory: others of them cannot meet. 0: not known.
    for part in x if isinstance(x, tuple) else (x,):
        taken.setdefault(_memory_owner(part), []).append(part)

    def fresh(part: Array) -> Array:
        owner = _memory_owner(part)
        near = taken.values() if owner == 0 else (taken.get(owner, ()), taken.get(0, ()))
        if any(arrays.may_share_memory(part, other) for others in near for other in others):
            part = arrays.copy(part)
            owner = _memory_owner(part)
        taken.setdefault(owner, []).append(part)
        return part

    return tuple(map(fresh, y)) if isinstance(y, tuple) else fresh(y)


def _memory_owner(x: Array) -> int:
    """The identity of the NumPy array whose memory `x` shows; 0 where that is another object."""
    while type(x) is np.ndarray:
        if x.base is None:
            return id(x)
        x = x.base
    return 0


def warn(message: str) -> None:
    """One `RuntimeWarning` that points at the line outside the library that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _INNER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)


_INNER = frozenset(
    {"linops", "geometries", "sharding", "solvers", "jax", "torch", "numpy", "functools"}
    | {"contextlib", "scipy", "pylops", "lineax", "equinox", "concurrent", "threading"}
)
# Packages whose lines lie between a caller and a cast; none of them is the caller's to mend.


def _wider(operator: Any, space: Space) -> str:
    """What would spare the cast of a wider input, by what the operator is built from."""
    if hasattr(operator, "with_precision"):
        return 'Build it with precision="float64"'
    wide = complex_of(np.dtype("float64")) if space.is_complex else np.dtype("float64")
    if any(hasattr(operator, part) for part in ("terms", "base", "functional")):
        return f"Build its parts on spaces of dtype {wide}"
    return f"Build it on a space of dtype {wide}"
