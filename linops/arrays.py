"""Arrays of any namespace: the one room that knows NumPy, JAX and torch apart.

Everything else in the library asks here for the namespace of an array, for a dtype in
NumPy's terms (`linops.namespaces`), for conversion between libraries (`linops.conversions`), and
for the few operations that the array-API standard lacks: planes and entries moved along an axis,
and loops that JAX compiles.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from linops.conversions import (
    cast,
    combine,
    constant,
    convert,
    copy,
    everywhere,
    exemplar,
    item,
    largest,
    may_share_memory,
    ones,
    own,
    resident,
    snapshot,
    to_numpy,
    unify,
    zeros,
)
from linops.namespaces import (
    Array,
    asarray,
    dtype_of,
    has_float64,
    is_array,
    is_concrete,
    is_distributed,
    is_first_process,
    is_jax,
    is_masked,
    is_numpy,
    is_readable,
    is_torch,
    is_traced,
    masked_error,
    namespace,
    on_host,
    requires_gradient,
    said_by_all,
    tell_all,
    trainable,
)

__all__ = [
    "Array",
    "add_at",
    "asarray",
    "cast",
    "combine",
    "compiled",
    "conj",
    "constant",
    "convert",
    "copy",
    "dtype_of",
    "everywhere",
    "exemplar",
    "framed",
    "gather_planes",
    "has_float64",
    "is_array",
    "is_concrete",
    "is_distributed",
    "is_first_process",
    "is_jax",
    "is_masked",
    "is_nonnegative",
    "is_numpy",
    "is_readable",
    "is_real",
    "is_torch",
    "is_traced",
    "item",
    "largest",
    "loop",
    "mapped",
    "masked_error",
    "may_share_memory",
    "namespace",
    "narrow",
    "on_host",
    "ones",
    "own",
    "put_last",
    "real",
    "requires_gradient",
    "resident",
    "row_major",
    "said_by_all",
    "scatter_add",
    "snapshot",
    "stacked",
    "take_last",
    "tell_all",
    "to_numpy",
    "trainable",
    "unify",
    "when",
    "widen",
    "written",
    "zeros",
]


def compiled(function: Callable[..., Any], *operands: Array, **static: Any) -> Any:
    """`function(*operands, **static)`; of JAX arrays with values as one program, which calls with
    such shapes and static values share. `function` is one of a module, static values hash."""
    if type(operands[0]) is np.ndarray or not all(map(is_jax, operands)):
        return function(*operands, **static)
    if any(map(is_traced, operands)):
        return function(*operands, **static)
    return _jit(function, tuple(static))(*operands, **static)


@functools.cache
def _jit(function: Callable[..., Any], static: tuple[str, ...]) -> Any:
    return sys.modules["jax"].jit(function, static_argnames=static)


def stacked(parts: Sequence[np.ndarray], like: Array) -> Array:
    """Arrays of the host along a new first axis; where `like`, one of them, lies on devices of
    JAX, the others go there in the same shares."""
    whole = np.stack(parts)
    if not is_jax(like):
        return whole
    jax = sys.modules["jax"]
    place = like.sharding
    if isinstance(place, jax.sharding.NamedSharding):
        place = jax.sharding.NamedSharding(
            place.mesh, jax.sharding.PartitionSpec(None, *place.spec)
        )
    return jax.device_put(whole, place)


def conj(x: Array) -> Array:
    """The complex conjugate; real arrays as they are."""
    return namespace(x).conj(x) if dtype_of(x).kind == "c" else x


def real(x: Array) -> Array:
    """The real part; real arrays as they are."""
    return namespace(x).real(x) if dtype_of(x).kind == "c" else x


def is_real(x: Array) -> bool:
    """Whether `x` is real, or complex with no imaginary part that will not change."""
    if dtype_of(x).kind != "c":
        return True
    if trainable(x) or not is_readable(x):
        return False
    return not bool(namespace(x).any(namespace(x).imag(x) != 0))


def is_nonnegative(x: Array) -> bool:
    """Whether `x` is real, no entry of it negative, and nothing will change that."""
    if is_traced(x) or trainable(x) or not is_real(x):
        return False
    return bool(namespace(x).all(real(x) >= 0))


def narrow(x: Array, axis: int, start: int, stop: int) -> Array:
    """The planes `start` to `stop` along a negative `axis`; a view where the library has them."""
    if stop <= start:
        start = stop = 0  # no namespace has to take an empty slice beyond the end
    return x[(..., slice(start, stop)) + (slice(None),) * (-axis - 1)]


def widen(x: Array, axis: int, before: int, after: int) -> Array:
    """`x` with planes of zeros put before and after it along a negative `axis`."""
    if before == 0 and after == 0:
        return x
    if type(x) is np.ndarray:
        shape = list(x.shape)
        n = shape[axis]
        shape[axis] = n + before + after
        out = np.zeros(shape, x.dtype)
        out[(..., slice(before, before + n)) + (slice(None),) * (-axis - 1)] = x
        return out
    xp = namespace(x)
    parts = []
    for planes in (before, after):
        shape = list(x.shape)
        shape[axis] = planes
        parts.append(zeros(tuple(shape), dtype_of(x), x))
    return xp.concat([parts[0], x, parts[1]], axis=axis)


def framed(x: Array, before: Sequence[int], after: Sequence[int]) -> Array:
    """`x` in a frame of zeros, so many planes before and after it along each of the last axes.

    The frame is the caller's own, to be written into with `written`.
    """
    shape = list(x.shape)
    first = len(shape) - len(before)
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        shape[first + axis] += low + high
    inner = tuple(slice(low, low + x.shape[first + a]) for a, low in enumerate(before))
    if is_jax(x):
        lax, frame = sys.modules["jax"].lax, zeros(tuple(shape), dtype_of(x), x)
        return lax.dynamic_update_slice(frame, x, (*(0,) * first, *before))
    frame = x.new_zeros(shape) if is_torch(x) else zeros(tuple(shape), dtype_of(x), x)
    frame[(..., *inner)] = x
    return frame


def written(x: Array, axis: int, start: int, values: Array) -> Array:
    """`x` with the planes from `start` on along a negative `axis` replaced by `values`.

    It is written in place where the library writes: go on with what is returned.
    """
    if is_jax(x):
        lax = sys.modules["jax"].lax
        return lax.dynamic_update_slice_in_dim(x, values, start, x.ndim + axis)
    stop = start + values.shape[axis]
    x[(..., slice(start, stop)) + (slice(None),) * (-axis - 1)] = values
    return x


def gather_planes(x: Array, axis: int, index: Array, valid: Array) -> Array:
    """Planes `index` along a negative `axis`, zero where `valid` is false.

    What stands in a plane that is not valid is selected away, never multiplied: NaN there
    does not reach the result. `index` must be in range everywhere.
    """
    xp = namespace(x)
    index, valid = convert(index, x), convert(valid, x)
    planes = xp.take(x, index, axis=x.ndim + axis)
    mask = xp.reshape(valid, (-1,) + (1,) * (-axis - 1))
    return xp.where(mask, planes, zeros((), dtype_of(x), x))


def row_major(x: Array) -> Array:
    """`x`, laid out in C order where JAX traces it: what XLA's FFT on the CPU takes.

    Beside a compiled kernel that has another order XLA would choose that one, and fail.
    """
    if not is_traced(x):
        return x
    constrained: Array = importlib.import_module("linops.transforms.order").in_c_order(x)
    return constrained


def take_last(x: Array, index: Array) -> Array:
    """Entries `index` of the last axis, zero where the index is -1."""
    if x.shape[-1] == 0:
        return zeros((*x.shape[:-1], index.shape[0]), dtype_of(x), x)
    if is_numpy(x):
        index = to_numpy(index)
        out = x[..., np.maximum(index, 0)]
        out[..., index < 0] = 0
        return out
    xp = namespace(x)
    index = convert(index, x)
    inside = index >= 0
    taken = xp.take(x, xp.where(inside, index, xp.zeros_like(index)), axis=x.ndim - 1)
    return xp.where(inside, taken, zeros((), dtype_of(x), x))


def scatter_add(values: Array, index: Array, size: int) -> Array:
    """An array with last axis `size` into which `values` are added at `index`; -1 is inert."""
    shape = (*values.shape[:-1], size)
    if is_numpy(values):
        out = np.zeros(shape, values.dtype)
        index = to_numpy(index)
        inside = index >= 0
        if not inside.all():
            values, index = values[..., inside], index[inside]
        # One dimension at a time: NumPy's fast path.
        for k in np.ndindex(*values.shape[:-1]):
            np.add.at(out[k], index, values[k])
        return out
    out = zeros(shape, dtype_of(values), values)
    if is_jax(values):
        # Under contention hundreds of times slower on NVIDIA in jax 0.10.2 to 0.11.0 (jax#38806).
        jnp = sys.modules["jax"].numpy
        return out.at[..., jnp.where(index < 0, size, index)].add(values, mode="drop")
    if is_torch(values):
        index = convert(index, values)
        kept = index >= 0
        return out.index_add(out.ndim - 1, index[kept], values[..., kept])
    return _scatter_rounds(values, to_numpy(index), size)


def add_at(out: Array, row: Any, values: Array, index: Array) -> Array:
    """`out`, `(n, size)`, with `values` added to one row of it at `index`; -1 is inert.

    It is written in place where the library writes: go on with what is returned.
    """
    if is_jax(out):
        jnp = sys.modules["jax"].numpy
        return out.at[row, jnp.where(index < 0, out.shape[1], index)].add(values, mode="drop")
    kept = index >= 0
    if is_numpy(out):
        np.add.at(out[row], index[kept], values[kept])
    elif is_torch(out):
        if sys.modules["torch"]._C._functorch.is_functorch_wrapped_tensor(values):
            # What is mapped over cannot be written into what is not.
            flat = out.reshape(-1).index_add(0, index[kept] + row * out.shape[1], values[kept])
            return flat.reshape(out.shape)
        out[row].index_add_(0, index[kept], values[kept])
    else:
        out[row, ...] += _scatter_rounds(values, to_numpy(index), out.shape[1])
    return out


def put_last(x: Array, index: Array, values: Array) -> Array:
    """`x` with its entries `index` of the last axis replaced; no position twice, -1 is inert.

    It is written in place where the library writes: go on with what is returned.
    """
    if is_jax(x):
        jnp = sys.modules["jax"].numpy
        return x.at[..., jnp.where(index < 0, x.shape[-1], index)].set(values, mode="drop")
    index = convert(index, x)
    kept = index >= 0
    if is_numpy(x) or is_torch(x):
        x[..., index[kept]] = values[..., kept]
        return x
    xp, size = namespace(x), x.shape[-1]
    there = scatter_add(xp.astype(kept, x.dtype), index, size) != 0
    return xp.where(there, scatter_add(values, index, size), x)


def loop(
    count: Any,
    body: Callable[[Any, Any], Any],
    state: Any,
    going: Callable[[Any], Any] | None = None,
) -> Any:
    """`state = body(i, state)` for i in range(count): compiled in JAX, else a Python loop.

    With `going(state)`, a boolean, it ends where that is false.
    """
    leaves = state if isinstance(state, (tuple, list)) else (state,)
    if any(is_jax(leaf) for leaf in leaves):
        lax = sys.modules["jax"].lax
        if going is None:
            return lax.fori_loop(0, count, body, state)
        return lax.while_loop(
            lambda pair: (pair[0] < count) & going(pair[1]),
            lambda pair: (pair[0] + 1, body(*pair)),
            (0, state),
        )[1]
    for i in range(count):
        if going is not None and not going(state):
            break
        state = body(i, state)
    return state


def when(condition: Array, change: Callable[[Any], Any], state: Any) -> Any:
    """`change(state)` where the 0-d `condition` holds, else `state`: a branch in JAX too."""
    if is_jax(condition):
        return sys.modules["jax"].lax.cond(condition, change, lambda same: same, state)
    return change(state) if bool(condition) else state


def mapped(count: int, body: Callable[[Any], Any], like: Array) -> Any:
    """`body(i)` for i in range(count), stacked: compiled in JAX, else a Python loop."""
    if is_jax(like) and count != 1:
        jax = sys.modules["jax"]
        # Never with batch_size=, which has given wrong results (jax#27591).
        return jax.lax.map(body, jax.numpy.arange(count))
    return namespace(like).stack([body(i) for i in range(count)])


def _scatter_rounds(values: Array, index: np.ndarray, size: int) -> Array:
    # The standard has no scatter: add one gather for each repetition of an index.
    xp = namespace(values)
    out = zeros((*values.shape[:-1], size), dtype_of(values), values)
    left = np.flatnonzero(index >= 0)
    while left.size:
        _, first = np.unique(index[left], return_index=True)
        now = left[first]
        inverse = np.full(size, -1)
        inverse[index[now]] = now
        out = xp.add(out, take_last(values, inverse))
        left = np.delete(left, first)
    return out
