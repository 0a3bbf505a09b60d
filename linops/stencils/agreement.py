"""Whether a kernel and its stated derivative belong to each other, tried on numbers.

A pair of formulations may differ by a limiter that is scaled in one of them, an adjoint may forget
a term; both run without an error and give gradients of another function. Here values are
compared, and tangents are held against differences of the kernel that runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["check_adjoint", "check_native"]


def check_native(
    fast: Callable[..., Any], native: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Hold `native` and its tangent against `fast`, on smooth states beside the arguments.

    Raises
    ------
    ValueError
        Naming what differs and by how much.
    """
    import jax

    state, direction = _smooth(arguments, 0), _tangents(arguments)
    value, other = fast(*state), native(*state)
    _check_alike(fast, "the fast kernel", value, "the native one", other)
    eps = _eps(other)
    scale, error = _largest(other), _largest(_differences(value, other))
    if not error <= 256 * eps * max(scale, _largest(state)):
        raise ValueError(
            f"{_name(fast)} and its native form differ by {error:.3g} where values reach "
            f"{scale:.3g}: not the same function"
        )
    derivative = jax.jvp(native, state, direction)[1]
    _check_rate(fast, lambda step: _difference_quotient(fast, state, direction, step), derivative)


def check_adjoint(
    forward: Callable[..., Any], adjoint: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Hold a hand-written adjoint against differences of `forward`, argument by argument.

    Raises
    ------
    ValueError
        Naming the argument, and both numbers.
    """
    import jax
    import jax.numpy as jnp

    state = _smooth(arguments, 0)
    value = forward(*state)
    cotangent = jax.tree.map(
        lambda x: jnp.asarray(_pattern(np.shape(x), 3), jax.dtypes.result_type(x)), value
    )
    found = adjoint(*state, cotangent)
    if len(state) == 1 and not (isinstance(found, tuple) and len(found) == 1):
        found = (found,)
    if not isinstance(found, (tuple, list)) or len(found) != len(state):
        return  # the call itself says so, with what came
    for i, given in enumerate(found):
        if given is None:
            continue
        direction = _tangents(arguments, only=i)
        given_leaves = jax.tree.leaves(given, is_leaf=lambda x: x is None)
        leaves, tree = jax.tree.flatten(direction[i])
        if len(given_leaves) != len(leaves):
            return  # the call itself says so, with what came
        leaves = [
            jnp.zeros_like(d) if g is None and _is_inexact(d) else d
            for g, d in zip(given_leaves, leaves, strict=True)
        ]
        direction = (*direction[:i], jax.tree.unflatten(tree, leaves), *direction[i + 1 :])
        pairs = [
            (g, d)
            for g, d in zip(given_leaves, leaves, strict=True)
            if g is not None and _is_inexact(d)
        ]
        stated = sum(float(np.real(np.vdot(g, d))) for g, d in pairs)

        def measured(step: float, direction: Any = direction) -> float:
            quotient = _difference_quotient(forward, state, direction, step)
            return sum(
                float(np.real(np.vdot(c, q)))
                for c, q in zip(jax.tree.leaves(cotangent), jax.tree.leaves(quotient), strict=True)
            )

        best = min((abs(measured(step) - stated), step) for step in _steps(_eps(value)))[0]
        size = _norm(cotangent) * _norm(_difference_quotient(forward, state, direction, 1e-2))
        if not best <= _tolerance(_eps(value)) * max(size, abs(stated), 1e-30):
            raise ValueError(
                f"the adjoint of {_name(forward)} for argument {i} gives {stated:.6g} along a "
                f"direction in which {_name(forward)} changes by {measured(1e-3):.6g}: it belongs "
                "to another function"
            )


def _check_rate(
    fast: Callable[..., Any], quotient: Callable[[float], Any], derivative: Any
) -> None:
    """Central differences approach the tangent as the square of the step, down to rounding."""
    eps = _eps(derivative)
    errors = [_largest(_differences(quotient(step), derivative)) for step in _steps(eps)]
    scale = max(_largest(derivative), _largest(quotient(1e-2)))
    if not min(errors) <= _tolerance(eps) * max(scale, 1e-30):
        raise ValueError(
            f"the tangent of the native form of {_name(fast)} is off by {min(errors):.3g} from "
            f"differences of {_name(fast)}, where both reach {scale:.3g}: gradients would be those "
            "of another function"
        )


def _steps(eps: float) -> tuple[float, ...]:
    return (
        tuple(0.02 / 2**k for k in range(8))
        if eps > 1e-10
        else tuple(10.0**-k for k in (2, 3, 4, 5))
    )


def _tolerance(eps: float) -> float:
    """What central differences reach: the cube root of rounding, squared, with room."""
    return float(30 * eps ** (2 / 3))


def _difference_quotient(f: Callable[..., Any], state: Any, direction: Any, step: float) -> Any:
    import jax

    def moved(sign: int) -> Any:
        return jax.tree.map(
            lambda x, d: x + (sign * step * d).astype(x.dtype) if _is_inexact(x) else x,
            state,
            direction,
        )

    above, below = f(*moved(1)), f(*moved(-1))
    return jax.tree.map(lambda a, b: (np.asarray(a) - np.asarray(b)) / (2 * step), above, below)


def _smooth(arguments: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """The arguments with a smooth variation of a tenth of their size; integers as they are."""
    import jax
    import jax.numpy as jnp

    def vary(x: Any) -> Any:
        x = jnp.asarray(x)
        if not _is_inexact(x) or x.ndim == 0:
            return x
        size = float(jnp.max(jnp.abs(x))) if x.size else 1.0
        return x + jnp.asarray(0.1 * (size or 1.0) * _pattern(x.shape, seed), x.dtype)

    return tuple(jax.tree.map(vary, arguments))


def _tangents(arguments: tuple[Any, ...], only: int | None = None) -> tuple[Any, ...]:
    import jax
    import jax.numpy as jnp

    def along(i: int, x: Any) -> Any:
        x = jnp.asarray(x)
        if not _is_inexact(x):
            return np.zeros(x.shape, jax.dtypes.float0)
        if only is not None and i != only:
            return jnp.zeros_like(x)
        size = float(jnp.max(jnp.abs(x))) if x.size else 1.0
        return jnp.asarray((size or 1.0) * _pattern(x.shape, 7 + i), x.dtype)

    return tuple(
        jax.tree.map(lambda x, i=i: along(i, x), argument) for i, argument in enumerate(arguments)
    )


def _pattern(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """A smooth array within [-1, 1], drawn anew for each seed."""
    drawn = np.random.default_rng(seed)
    total = np.full(shape, drawn.uniform(0.3, 0.5))
    for axis, extent in enumerate(shape):
        phase = drawn.uniform(0, 2 * np.pi)
        wave = 0.5 / len(shape) * np.sin(2 * np.pi * np.arange(extent) / max(extent, 2) + phase)
        total = total + wave.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return np.asarray(total)


def _check_alike(f: Callable[..., Any], first: str, a: Any, second: str, b: Any) -> None:
    import jax

    shapes = [
        jax.tree.map(lambda x: (np.shape(x), str(jax.dtypes.result_type(x))), value)
        for value in (a, b)
    ]
    if shapes[0] != shapes[1]:
        raise ValueError(f"{_name(f)}: {first} returns {shapes[0]}, {second} {shapes[1]}")


def _differences(a: Any, b: Any) -> list[np.ndarray]:
    import jax

    wide = [[_widen(x) for x in jax.tree.leaves(v)] for v in (a, b)]
    return [x - y for x, y in zip(*wide, strict=True)]


def _largest(value: Any) -> float:
    import jax

    leaves = [np.asarray(x) for x in jax.tree.leaves(value)]
    return max((float(np.abs(x).max()) for x in leaves if _is_inexact(x) and x.size), default=0.0)


def _norm(value: Any) -> float:
    import jax

    return float(np.sqrt(sum(np.sum(np.abs(np.asarray(x)) ** 2) for x in jax.tree.leaves(value))))


def _eps(value: Any) -> float:
    import jax
    import jax.numpy as jnp

    kinds = [jax.dtypes.result_type(x) for x in jax.tree.leaves(value)]
    return max(
        (float(jnp.finfo(kind).eps) for kind in kinds if jnp.issubdtype(kind, jnp.inexact)),
        default=1e-7,
    )


def _is_inexact(x: Any) -> bool:
    import jax
    import jax.numpy as jnp

    if getattr(x, "dtype", None) == jax.dtypes.float0:
        return False
    return bool(jnp.issubdtype(jax.dtypes.result_type(x), jnp.inexact))


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


def _widen(x: Any) -> np.ndarray:
    host = np.asarray(x)
    return host.astype(np.complex128 if np.iscomplexobj(host) else np.float64)
