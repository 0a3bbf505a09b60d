"""A leaf's functions held to what it declares: results checked, cast, batches looped over.

`guard` wraps a function that sees one element at a time and may return what it likes, so that nodes
can rely on shape and dtype. How arrays enter an operator is in `linops.apply`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from linops import arrays
from linops.apply import derivable, map_members
from linops.arrays import Array
from linops.errors import DTypeError, ShapeError
from linops.precision import complex_of
from linops.space import AnySpace, ProductSpace, Space

__all__ = ["adjoint_hook", "as_arrays", "batch_shape", "chain", "entrance", "guard", "wrap_scalars"]


def entrance(operator: Any, hook: Callable[[Any], Any], adjoint: bool) -> Callable[[Any], Any]:
    """`hook` of a user's leaf, guarded, and differentiable by the leaf's declared pair."""
    source, target, name = operator.domain, operator.codomain, operator.name
    if adjoint:
        source, target, name = target, source, f"{name}.H"
        hook = adjoint_hook(operator, hook)
    through = partial(derivable, operator, adjoint=adjoint) if operator.linear else None
    return guard(hook, source, target, operator.batched, name, through)


def adjoint_hook(operator: Any, hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`hook`, the adjoint of a user's leaf, with its real part taken where a real domain meets a
    complex codomain: there the adjoint is one in the real part of the inner product."""
    domain = operator.domain
    if not operator.codomain.is_complex or all(space.is_complex for space in domain.members):
        return hook

    def real_part(part: Any, space: Space) -> Any:
        part = part if arrays.is_array(part) else np.asarray(part)
        if space.is_complex or arrays.dtype_of(part).kind != "c":
            return part
        return arrays.namespace(part).real(part)

    return lambda y: map_members(real_part, hook(y), domain)


def wrap_scalars(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`function` of a leaf with a result without axes, for which NumPy's arithmetic gives scalars
    and an operator arrays."""

    return lambda x: as_arrays(function(x))


def as_arrays(y: Any) -> Any:
    """`y`, or its members, with NumPy's scalars as arrays without axes."""
    if isinstance(y, tuple):
        return tuple(map(as_arrays, y))
    return np.asarray(y) if isinstance(y, np.generic) else y


def guard(
    hook: Callable[[Any], Any],
    source: AnySpace,
    target: AnySpace,
    batched: bool,
    owner: str,
    through: Callable[[Any], Any] | None = None,
) -> Callable[[Any], Any]:
    """`hook` with batches looped over and its result held to the declared space.

    Parameters
    ----------
    hook
        The leaf's `_apply` or `_apply_adjoint`.
    source, target
        The spaces that it maps between.
    batched
        Whether `hook` takes leading batch axes itself.
    owner
        Name for messages.
    through
        `derivable` of the leaf: where it gives a result, that is taken.
    """
    near = _run_beside(hook, owner)
    if isinstance(source, Space) and isinstance(target, Space):
        n, shape, dtype, ndarray = len(source.shape), target.shape, target.dtype, np.ndarray

        def run(x: Array) -> Array:
            if type(x) is ndarray and x.ndim == n:
                y = hook(x)
                if type(y) is ndarray and y.dtype is dtype and y.shape == shape:
                    return y
                return _hold(y, target, (), owner)
            if through is not None and type(x) is not ndarray:
                y = through(x)
                if y is not None:
                    return y
            if x.ndim == n or batched:
                return _hold(near(x), target, tuple(x.shape)[: x.ndim - n], owner)
            return _loop_over(near, x, source, target, owner)

        def hold(y: Any) -> Array:
            return _hold(y, target, (), owner)

        run.step = _Step(n, hook, shape, dtype, hold)  # type: ignore[attr-defined]
        return run

    def run_product(x: Any) -> Any:
        if through is not None:
            y = through(x)
            if y is not None:
                return y
        batch = batch_shape(x, source)
        if not batch or batched:
            return _hold(near(x), target, batch, owner)
        return _loop_over(near, x, source, target, owner)

    return run_product


def _run_beside(hook: Callable[[Any], Any], owner: str) -> Callable[[Any], Any]:
    """`hook` of a leaf that may be written in NumPy: what it makes comes back beside its argument,
    and where it cannot take that, the error says so."""

    def run(x: Any) -> Any:
        like = x[0] if isinstance(x, tuple) else x
        if arrays.is_numpy(like):
            return hook(x)
        try:
            y = hook(x)
        except Exception as error:
            if not _failed_on_host_code(error, like):
                raise
            traced = "a traced array of JAX" if arrays.is_traced(like) else f"a {type(like)}"
            raise DTypeError(
                f"{owner} runs code for NumPy arrays on the host, got {traced} "
                f"({str(error).splitlines()[0]}). Write it with the functions of "
                "linops.arrays.namespace(x), which are those of any library; or give it NumPy "
                "arrays, on one machine with plan(..., executor='threads'); or declare the code by "
                "_forward_host and _adjoint_host and call linops.compiled.hosted.apply_on_host"
            ) from error
        if not (arrays.is_jax(like) or arrays.is_torch(like)):
            return y
        if isinstance(y, tuple):
            return tuple(arrays.convert(p, like) if type(p) is np.ndarray else p for p in y)
        return arrays.convert(y, like) if type(y) is np.ndarray else y

    return run


def _failed_on_host_code(error: Exception, like: Any) -> bool:
    """Whether code for NumPy arrays failed because it got something else."""
    if not (arrays.is_traced(like) or arrays.is_torch(like)) or isinstance(error, DTypeError):
        return False
    return (
        type(error).__name__ == "TracerArrayConversionError"
        or type(error).__module__.startswith("numba.")
        or "numpy" in str(error).lower()
    )


def chain(functions: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """`functions` one after another; what `guard` checks is checked here, without a call each."""
    functions = tuple(functions)
    steps: list[_Step] = [f.step for f in functions if hasattr(f, "step")]

    def run(x: Any) -> Any:
        for function in functions:
            x = function(x)
        return x

    if len(steps) < len(functions):
        return run
    n, ndarray = steps[0].ndim, np.ndarray
    checks = [(step.hook, step.shape, step.dtype, step.hold) for step in steps]

    def run_steps(x: Any) -> Any:
        if type(x) is not ndarray or x.ndim != n:
            return run(x)
        for hook, shape, dtype, hold in checks:
            y = hook(x)
            if type(y) is ndarray and y.dtype is dtype and y.shape == shape:
                x = y
            else:
                x = hold(y)
        return x

    return run_steps


def batch_shape(x: Any, space: AnySpace) -> tuple[int, ...]:
    """The leading batch axes of an element of `space`."""
    part = x[0] if isinstance(space, ProductSpace) else x
    return tuple(part.shape)[: part.ndim - space.members[0].ndim]


class _Step(NamedTuple):
    """What `guard` does with one NumPy array without batch axes."""

    ndim: int
    hook: Callable[[Any], Any]
    shape: tuple[int, ...]
    dtype: np.dtype
    hold: Callable[[Any], Any]


def _loop_over(
    hook: Callable[[Any], Any], x: Any, source: AnySpace, target: AnySpace, owner: str
) -> Any:
    batch = batch_shape(x, source)
    parts = x if isinstance(source, ProductSpace) else (x,)
    xp = arrays.namespace(*parts)
    flat = [
        xp.reshape(part, (-1, *member.shape)) if part.size else part
        for part, member in zip(parts, source.members, strict=True)
    ]
    count = int(np.prod(batch))
    if count == 0:
        empty = [
            arrays.zeros((*batch, *member.shape), member.dtype, parts[0])
            for member in target.members
        ]
        return tuple(empty) if isinstance(target, ProductSpace) else empty[0]
    if any(part.size == 0 for part in parts):
        flat = [
            xp.reshape(part, (count, *member.shape))
            for part, member in zip(parts, source.members, strict=True)
        ]
    if arrays.is_jax(flat[0]):
        try:
            return _map_over(hook, flat, batch, source, target, owner)
        except TypeError:
            # Host code, which takes values and no tracers: one element at a time.
            if any(map(arrays.is_traced, flat)):
                raise
    results = []
    for i in range(count):
        element = tuple(part[i, ...] for part in flat)
        y = hook(element if isinstance(source, ProductSpace) else element[0])
        y = _hold(y, target, (), owner)
        results.append(y if isinstance(target, ProductSpace) else (y,))
    stacked = [
        xp.reshape(xp.stack([row[k] for row in results]), (*batch, *member.shape))
        for k, member in enumerate(target.members)
    ]
    return tuple(stacked) if isinstance(target, ProductSpace) else stacked[0]


def _map_over(
    hook: Callable[[Any], Any],
    flat: list[Array],
    batch: tuple[int, ...],
    source: AnySpace,
    target: AnySpace,
    owner: str,
) -> Any:
    """`_loop_over` in JAX: one traced call of the hook, not one an element."""
    jax = sys.modules["jax"]

    def one(*element: Array) -> tuple[Array, ...]:
        y = hook(element if isinstance(source, ProductSpace) else element[0])
        y = _hold(y, target, (), owner)
        return y if isinstance(target, ProductSpace) else (y,)

    try:
        rows = jax.vmap(one)(*flat)
    except NotImplementedError:  # something in the hook has no batching rule
        rows = jax.lax.map(lambda element: one(*element), tuple(flat))
    shaped = tuple(row.reshape((*batch, *row.shape[1:])) for row in rows)
    return shaped if isinstance(target, ProductSpace) else shaped[0]


def _hold(y: Any, target: AnySpace, batch: tuple[int, ...], owner: str) -> Any:
    parts = y if isinstance(target, ProductSpace) else (y,)
    if len(parts) != len(target.members):
        raise ShapeError(f"{owner} returned {len(parts)} arrays; it declares {target}")
    held = []
    for part, space in zip(parts, target.members, strict=True):
        if not arrays.is_array(part) or isinstance(part, np.generic):
            part = np.asarray(part)
        if tuple(part.shape) != (*batch, *space.shape):
            raise ShapeError(
                f"{owner} returned shape {tuple(part.shape)}; it declares "
                f"{space.describe_shape()}{f' after the batch axes {batch}' if batch else ''}"
            )
        dtype = arrays.dtype_of(part)
        if dtype != space.dtype:
            if dtype.kind == "c" and not space.is_complex:
                raise DTypeError(
                    f"{owner} returned {dtype} values for the real space {space}: their imaginary "
                    "part would be lost; return the real part if that is meant, or declare a "
                    f"space of dtype {complex_of(space.dtype)}"
                )
            part = arrays.cast(part, space.dtype)
        held.append(part)
    return tuple(held) if isinstance(target, ProductSpace) else held[0]
