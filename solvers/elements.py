"""Vector arithmetic on elements of spaces: arrays or tuples of them, with batch axes in front.

Coefficients are NumPy float64 arrays of the batch's shape (0-d without a batch), so that each
member of a batch has its own step; in a compiled loop they are traced. Nothing is written into an
array that came from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.errors import DTypeError
from linops.precision import real_of
from linops.space import AnySpace, ProductSpace, inners

__all__ = [
    "add_scaled",
    "admit",
    "batch_of",
    "choose",
    "clip",
    "each",
    "first",
    "fits_float32",
    "hand_back",
    "hand_out",
    "narrow",
    "products",
    "ratio",
    "refuse_traced",
    "require_finite",
    "require_sums",
    "scale",
    "subtract",
    "sums",
    "zeros",
]

_LEAST, _MOST = 1e-26, 1e35


def each(function: Callable[..., Array], *elements: Any) -> Any:
    """`function` on arrays, or member by member on tuples."""
    if isinstance(elements[0], tuple):
        return tuple(function(*parts) for parts in zip(*elements, strict=True))
    return function(*elements)


def first(x: Any) -> Array:
    """The array, or the first of a tuple: what stands for namespace and device."""
    return x[0] if isinstance(x, tuple) else x


def admit(x: Any, space: AnySpace, name: str, like: Any = None) -> Any:
    """A private copy of `x` in the space's dtype and the namespace of `like`, off any graph.

    Raises
    ------
    ShapeError, DTypeError
        Where `x` is no element of `space`, or a tracer of JAX.
    """
    space.check_shape(x, name)
    parts = x if isinstance(space, ProductSpace) else (x,)
    copies = []
    for part, member in zip(parts, space.members, strict=True):
        if arrays.dtype_of(part).kind not in "biufc":
            raise DTypeError(f"{name} has dtype {part.dtype}; it is an array of numbers")
        if arrays.dtype_of(part).kind == "c" and not member.is_complex:
            raise DTypeError(f"{name} is {part.dtype}; the operator's space is {member.dtype}")
        if arrays.is_traced(part):
            raise DTypeError(
                f"{name} is traced by JAX, and a solver decides on the host by its values: call it "
                "outside of jit, grad and vmap (it compiles its iterations itself; batch axes are "
                "solved side by side)"
            )
        if hasattr(part, "detach"):
            part = part.detach()
        if like is not None and not member.home.holds(part):
            part = arrays.convert(part, first(like))
        part = arrays.cast(part, member.dtype)
        if type(part) is np.ndarray:
            part = np.array(part)
        elif not arrays.is_jax(part):
            part = arrays.namespace(part).asarray(part, copy=True)
        # What stands in the padding of placed measurements is nobody's data.
        copies.append(member.home.clear_padding(member.home.adopt(part)))
    return tuple(copies) if isinstance(space, ProductSpace) else copies[0]


def refuse_traced(name: str, y: Any) -> None:
    """Raise where the measurements are traced, and say what can be differentiated instead."""
    if any(map(arrays.is_traced, y if isinstance(y, tuple) else (y,))):
        raise DTypeError(
            f"{name}: y is traced by JAX, and a solver decides on the host by its values: call "
            f"{name} outside of jit, grad and vmap (it compiles its iterations itself; batch axes "
            "are solved side by side). For a derivative with respect to y, cgls and tv take "
            "differentiable=True outside of jit; or write the iterations out with A @ x and "
            "A.H @ r, which JAX and torch differentiate: 20 steps of "
            "x = x + step * (A.H @ (y - A @ x)), say"
        )


def require_finite(x: Any, name: str) -> None:
    """Raise a `ValueError` that names the first entry that is NaN or infinite."""
    parts = x if isinstance(x, tuple) else (x,)
    for number, part in enumerate(parts):
        xp = arrays.namespace(part)
        finite = xp.isfinite(part)
        if arrays.item(xp.all(finite)):
            continue
        bad = np.argwhere(~arrays.to_numpy(finite))
        index = tuple(int(i) for i in bad[0])
        where = f"{name}[{number}]" if isinstance(x, tuple) else name
        value = arrays.to_numpy(part)[index]
        raise ValueError(
            f"{where}[{', '.join(map(str, index))}] is {value} ({len(bad)} entries are not "
            "finite); repair or mask them (weight 0 does not hide them)"
        )


def require_sums(x: Any, name: str) -> None:
    """Raise a `ValueError` where an entry is NaN, infinite or negative."""
    require_finite(x, name)
    for part in x if isinstance(x, tuple) else (x,):
        if arrays.item(arrays.namespace(part).any(part < 0)):
            raise ValueError(f"{name} holds negative entries; they are >= 0")


def batch_of(x: Any, space: AnySpace) -> tuple[int, ...]:
    """The leading batch axes of an element."""
    part = first(x)
    return tuple(part.shape)[: part.ndim - space.members[0].ndim]


def zeros(space: AnySpace, batch: tuple[int, ...], like: Any) -> Any:
    """Zeros with batch axes in front."""
    return space.zeros(first(like), batch=batch)


def add_scaled(x: Any, factor: Array, p: Any) -> Any:
    """`x + factor * p`, a new element; one factor for each member of the batch."""

    def part(x: Array, p: Array) -> Array:
        a = _coefficient(factor, p)
        if type(p) is np.ndarray and type(x) is np.ndarray:
            out = p * a
            out += x
            return out
        return x + p * a

    return each(part, x, p)


def scale(factor: float, x: Any) -> Any:
    """`factor * x`, a new element of the same dtype."""
    return each(lambda part: arrays.cast(part * factor, arrays.dtype_of(part)), x)


def subtract(a: Any, b: Any) -> Any:
    """`a - b`, a new element."""
    return each(lambda left, right: left - right, a, b)


def clip(x: Array, low: float | None, high: float | None) -> Array:
    """`x` within bounds; itself where there are none."""
    if low is None and high is None:
        return x
    if type(x) is np.ndarray:
        return np.clip(x, low, high)
    return arrays.namespace(x).clip(x, low, high)


def products(*triples: tuple[AnySpace, Any, Any]) -> list[np.ndarray]:
    """Real parts of inner products `(space, a, b)`, all read to the host together.

    Float64 NumPy arrays of the batch's shape. Where the elements' namespace has no float64, those
    whose squares float32 does not hold are summed anew, of elements scaled by powers of two.
    """
    found = _read(sums(*triples))
    if narrow(first(triples[0][1])):
        for k, triple in enumerate(triples):
            if not fits_float32(found[k]):
                found[k] = _rescaled_product(*triple)
    return found


def fits_float32(values: Any) -> bool:
    """Whether float32 holds inner products without the loss of what they are summed of."""
    sizes = np.abs(np.asarray(values, np.float64))
    return bool(np.all((sizes > _LEAST) & (sizes < _MOST)))


def _read(values: list[Array]) -> list[np.ndarray]:
    if arrays.is_numpy(values[0]):
        return [np.asarray(value, np.float64) for value in values]
    stacked = arrays.namespace(*values).stack(values)
    return list(np.asarray(arrays.to_numpy(stacked), np.float64))


def narrow(x: Array) -> bool:
    """Whether inner products of such elements come in float32."""
    return arrays.is_jax(x) and not arrays.has_float64(x)


def _rescaled_product(space: AnySpace, a: Any, b: Any) -> np.ndarray:
    scales = [_power(space, x) for x in (a, b)]
    scaled = [add_scaled(zeros(space, batch_of(x, space), x), 1.0 / s, x)
              for s, x in zip(scales, (a, b), strict=True)]  # fmt: skip
    (value,) = _read(sums((space, *scaled)))
    return np.asarray(value * scales[0] * scales[1])


def _power(space: AnySpace, x: Any) -> np.ndarray:
    """The power of two next to the largest entry of each member, which float32 can divide by."""
    tops = []
    for part, member in zip(x if isinstance(x, tuple) else (x,), space.members, strict=True):
        xp = arrays.namespace(part)
        axes = tuple(range(-member.ndim, 0))
        sizes = xp.abs(member.home.clear_padding(part))
        tops.append(np.asarray(arrays.to_numpy(
            xp.max(sizes, axis=axes) if member.ndim and member.size else xp.sum(sizes, axis=axes)
        ), np.float64))  # fmt: skip
    top = np.max(np.stack(tops), axis=0)
    good = np.isfinite(top) & (top > 0)
    return np.asarray(2.0 ** np.clip(np.floor(np.log2(np.where(good, top, 1.0))), -125, 125))


def sums(*triples: tuple[AnySpace, Any, Any]) -> list[Array]:
    """Real parts of inner products as arrays of the elements' namespace: nothing is read."""
    return [v.real if arrays.dtype_of(v).kind == "c" else v for v in inners(*triples)]


def choose(condition: Array, new: Any, old: Any) -> Any:
    """`new` where a condition (of the batch's shape) holds, else `old`."""
    if type(condition) is np.ndarray and condition.all():
        return new

    def part(new: Array, old: Array) -> Array:
        shape = condition.shape + (1,) * (new.ndim - condition.ndim)
        mask = arrays.namespace(condition).reshape(condition, shape)
        return arrays.namespace(new).where(arrays.everywhere(mask, new), new, old)

    return each(part, new, old)


def ratio(above: Array, below: Array, where: Array) -> Array:
    """Quotients where `where` holds and `below` is not 0, else 0."""
    xp = arrays.namespace(above)
    good = where & (below != 0)
    return xp.where(good, above / xp.where(good, below, xp.ones_like(below)), xp.zeros_like(above))


def hand_out(x: Any) -> Any:
    """`x` as a callback may have it: NumPy arrays as read-only views, others that can be written
    into as copies."""

    def part(x: Array) -> Array:
        if type(x) is np.ndarray:
            # Of memory that is read-only: a view of its own could be made writeable again.
            return np.asarray(x.data.toreadonly())
        return x if arrays.is_jax(x) else arrays.copy(x)

    return each(part, x)


def hand_back(x: Any, space: AnySpace, given: Any, source: AnySpace) -> Any:
    """`x` where the measurements lived: plain, in their namespace, if they were plain."""
    parts = given if isinstance(source, ProductSpace) else (given,)
    apart = [m.home.holds(part) for m, part in zip(source.members, parts, strict=True)]
    if all(apart):
        return space.home.clear_padding(x)  # a clip to [1, 2] reaches padding too
    return each(lambda part: arrays.convert(part, first(given)), space.home.gather(x))


def _coefficient(factor: Array, like: Array) -> Any:
    dtype = real_of(arrays.dtype_of(like))
    if not arrays.is_traced(factor):
        if factor.ndim == 0:
            return float(factor)
        factor = np.asarray(factor, dtype)
    wide = arrays.cast(factor, dtype).reshape(factor.shape + (1,) * (like.ndim - factor.ndim))
    return arrays.everywhere(wide, like)
