"""How arrays enter an operator and leave it: checked once, cast once, batch axes kept.

`call` is what `A @ x` does. `guarded` wraps the two functions of a user's leaf, which see one
element at a time and may return what they like, so that nodes can rely on shape and dtype.
`derivable` hands an operator to JAX or torch where they record a derivative.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from linops import arrays, autocast, tracing
from linops.arrays import Array
from linops.errors import DTypeError, ShapeError
from linops.precision import complex_of, real_of
from linops.space import AnySpace, ProductSpace, Space

if TYPE_CHECKING:
    from linops.operator import Operator

__all__ = [
    "adjoint_hook",
    "admitted",
    "arrayed",
    "as_arrays",
    "batch_shape",
    "call",
    "chained",
    "derivable",
    "entrance",
    "guarded",
]


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
        return _unaliased(y, x) if operator._aliases else y
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
    x = _each(lambda part, space: admit(operator, part, space), x, domain)
    if operator.linear:
        y = derivable(operator, x, adjoint=False)
        if y is not None:
            return y
    y = operator._forward(x)
    return _unaliased(y, x) if operator._aliases else y


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


def admitted(operator: Operator, x: Any) -> Any:
    """An element of the domain, of a checked shape, in the domain's dtype."""
    if isinstance(operator.domain, ProductSpace):
        x = tuple(x)
    return _each(lambda part, space: admit(operator, part, space), x, operator.domain)


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


def entrance(operator: Any, hook: Callable[[Any], Any], adjoint: bool) -> Callable[[Any], Any]:
    """`hook` of a user's leaf, guarded, and differentiable by the leaf's declared pair."""
    source, target, name = operator.domain, operator.codomain, operator.name
    if adjoint:
        source, target, name = target, source, f"{name}.H"
        hook = adjoint_hook(operator, hook)
    through = partial(derivable, operator, adjoint=adjoint) if operator.linear else None
    return guarded(hook, source, target, operator.batched, name, through)


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

    return lambda y: _each(real_part, hook(y), domain)


def arrayed(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`function` of a leaf with a result without axes, for which NumPy's arithmetic gives scalars
    and an operator arrays."""

    return lambda x: as_arrays(function(x))


def as_arrays(y: Any) -> Any:
    """`y`, or its members, with NumPy's scalars as arrays without axes."""
    if isinstance(y, tuple):
        return tuple(map(as_arrays, y))
    return np.asarray(y) if isinstance(y, np.generic) else y


def guarded(
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
    near = _beside(hook, owner)
    if isinstance(source, Space) and isinstance(target, Space):
        n, shape, dtype, ndarray = len(source.shape), target.shape, target.dtype, np.ndarray

        def run(x: Array) -> Array:
            if type(x) is ndarray and x.ndim == n:
                y = hook(x)
                if type(y) is ndarray and y.dtype is dtype and y.shape == shape:
                    return y
                return _held(y, target, (), owner)
            if through is not None and type(x) is not ndarray:
                y = through(x)
                if y is not None:
                    return y
            if x.ndim == n or batched:
                return _held(near(x), target, tuple(x.shape)[: x.ndim - n], owner)
            return _loop_over(near, x, source, target, owner)

        def held(y: Any) -> Array:
            return _held(y, target, (), owner)

        run.step = _Step(n, hook, shape, dtype, held)  # type: ignore[attr-defined]
        return run

    def run_product(x: Any) -> Any:
        if through is not None:
            y = through(x)
            if y is not None:
                return y
        batch = batch_shape(x, source)
        if not batch or batched:
            return _held(near(x), target, batch, owner)
        return _loop_over(near, x, source, target, owner)

    return run_product


def _beside(hook: Callable[[Any], Any], owner: str) -> Callable[[Any], Any]:
    """`hook` of a leaf that may be written in NumPy: what it makes comes back beside its argument,
    and where it cannot take that, the error says so."""

    def run(x: Any) -> Any:
        like = x[0] if isinstance(x, tuple) else x
        if arrays.is_numpy(like):
            return hook(x)
        try:
            y = hook(x)
        except Exception as error:
            if not _of_host_code(error, like):
                raise
            traced = "a traced array of JAX" if arrays.is_traced(like) else f"a {type(like)}"
            raise DTypeError(
                f"{owner} runs code for NumPy arrays on the host, got {traced} "
                f"({str(error).splitlines()[0]}). Write it with the functions of "
                "linops.arrays.namespace(x), which are those of any library; or give it NumPy "
                "arrays, on one machine with plan(..., executor='threads'); or declare the code by "
                "_forward_host and _adjoint_host and call linops.compiled.hosted.hosted"
            ) from error
        if not (arrays.is_jax(like) or arrays.is_torch(like)):
            return y
        if isinstance(y, tuple):
            return tuple(arrays.convert(p, like) if type(p) is np.ndarray else p for p in y)
        return arrays.convert(y, like) if type(y) is np.ndarray else y

    return run


def _of_host_code(error: Exception, like: Any) -> bool:
    """Whether code for NumPy arrays failed because it got something else."""
    if not (arrays.is_traced(like) or arrays.is_torch(like)) or isinstance(error, DTypeError):
        return False
    return (
        type(error).__name__ == "TracerArrayConversionError"
        or type(error).__module__.startswith("numba.")
        or "numpy" in str(error).lower()
    )


def chained(functions: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """`functions` one after another; what `guarded` checks is checked here, without a call each."""
    functions = tuple(functions)
    steps: list[_Step] = [f.step for f in functions if hasattr(f, "step")]

    def run(x: Any) -> Any:
        for function in functions:
            x = function(x)
        return x

    if len(steps) < len(functions):
        return run
    n, ndarray = steps[0].ndim, np.ndarray
    checks = [(step.hook, step.shape, step.dtype, step.held) for step in steps]

    def run_steps(x: Any) -> Any:
        if type(x) is not ndarray or x.ndim != n:
            return run(x)
        for hook, shape, dtype, held in checks:
            y = hook(x)
            if type(y) is ndarray and y.dtype is dtype and y.shape == shape:
                x = y
            else:
                x = held(y)
        return x

    return run_steps


def batch_shape(x: Any, space: AnySpace) -> tuple[int, ...]:
    """The leading batch axes of an element of `space`."""
    part = x[0] if isinstance(space, ProductSpace) else x
    return tuple(part.shape)[: part.ndim - space.members[0].ndim]


class _Step(NamedTuple):
    """What `guarded` does with one NumPy array without batch axes."""

    ndim: int
    hook: Callable[[Any], Any]
    shape: tuple[int, ...]
    dtype: np.dtype
    held: Callable[[Any], Any]


def _each(function: Callable[[Array, Space], Array], x: Any, space: AnySpace) -> Any:
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

        return call(operator, _each(take, x, operator.domain))

    real, imaginary = part("real"), part("imag")
    if isinstance(operator.codomain, ProductSpace):
        return tuple(arrays.combine(r, i) for r, i in zip(real, imaginary, strict=True))
    return arrays.combine(real, imaginary)


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
        y = _held(y, target, (), owner)
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
        y = _held(y, target, (), owner)
        return y if isinstance(target, ProductSpace) else (y,)

    try:
        rows = jax.vmap(one)(*flat)
    except NotImplementedError:  # something in the hook has no batching rule
        rows = jax.lax.map(lambda element: one(*element), tuple(flat))
    shaped = tuple(row.reshape((*batch, *row.shape[1:])) for row in rows)
    return shaped if isinstance(target, ProductSpace) else shaped[0]


def _held(y: Any, target: AnySpace, batch: tuple[int, ...], owner: str) -> Any:
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


def _unaliased(y: Any, x: Any) -> Any:
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
        taken.setdefault(_owner(part), []).append(part)

    def fresh(part: Array) -> Array:
        owner = _owner(part)
        near = taken.values() if owner == 0 else (taken.get(owner, ()), taken.get(0, ()))
        if any(arrays.may_share_memory(part, other) for others in near for other in others):
            part = arrays.copy(part)
            owner = _owner(part)
        taken.setdefault(owner, []).append(part)
        return part

    return tuple(map(fresh, y)) if isinstance(y, tuple) else fresh(y)


def _owner(x: Array) -> int:
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
