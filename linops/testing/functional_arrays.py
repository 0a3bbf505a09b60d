"""How arrays enter a functional and what leaves it: dtypes, layouts, batches, libraries."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import array_api_compat
import numpy as np

from linops import arrays
from linops.errors import DTypeError
from linops.precision import real_of
from linops.testing.functional_subject import FunctionalSubject, norm
from linops.testing.handling import fresh, layouts
from linops.testing.subject import Failure, NotApplicable, each, elements, host, same_bits

__all__ = [
    "check_batches",
    "check_device",
    "check_dtypes",
    "check_jax_arguments",
    "check_jax_derivatives",
    "check_layouts",
    "check_namespace",
    "check_nan",
    "check_torch_derivatives",
    "check_value",
]


def check_value(s: FunctionalSubject) -> None:
    """The value is a real number, the codomain the real scalars, and no state is kept."""
    f = s.functional
    if f.codomain.shape != () or f.codomain.dtype != real_of(f.domain.dtype):
        raise Failure(f"its codomain is {f.codomain}, not real scalars")
    value = f(s.x)
    if type(value) is not float:
        raise Failure(f"f(x) is a {type(value).__name__}, not a float")
    if np.isnan(value):
        raise Failure("f(x) is NaN")
    kept = {name: host(each(np.array, apply(s.x))) for name, apply in s.maps.items() if name != "f"}
    for name, result in kept.items():
        for part, member in zip(elements(result), s.space.members, strict=True):
            if part.shape != member.shape or part.dtype != member.dtype:
                raise Failure(f"{name}(x) has {part.shape} {part.dtype}, declared is {member}")
    for apply in s.maps.values():
        apply(s.point(160))
    if f(s.x) != value or any(not same_bits(s.maps[n](s.x), r) for n, r in kept.items()):
        raise Failure("it gives other bits on the second call: it holds a state")


def check_nan(s: FunctionalSubject) -> None:
    """NaN never becomes a number."""
    with np.errstate(all="ignore"):
        value = s.functional(each(lambda part: part * np.nan, s.x))
    if np.isfinite(value):
        raise Failure(f"of NaN it is {value}")


def check_batches(s: FunctionalSubject) -> None:
    """Leading axes are batch axes, empty ones too, and a batch is what a loop gives."""
    for name, apply in s.maps.items():
        for batch in ((3,), (2, 1), (0,)):
            members = [s.point(170 + k) for k in range(int(np.prod(batch)))]
            stacked = _stack(s, members, batch)
            result = host(apply(stacked))
            for part, member in zip(elements(result), s.space.members, strict=False):
                inner = () if name == "f" else member.shape
                if part.shape != (*batch, *inner):
                    raise Failure(f"{name} of batch {batch} has the shape {part.shape}")
            for number, index in enumerate(np.ndindex(*batch)):
                got = each(lambda part, index=index: part[index], result)
                one = host(apply(members[number]))
                what = f"{name}: member {index} of batch {batch}"
                s.close_maps(name, got, one, members[number], what)


def check_dtypes(s: FunctionalSubject) -> None:
    """Numbers are cast to the domain's dtype, with one warning from higher ones; text raises."""
    f = s.functional
    for bad in ("object", "U3", "datetime64[s]"):
        _refuses(f, [np.zeros(m.shape, bad) for m in s.space.members], s, f"{bad} input")
    if not any(m.is_complex for m in s.space.members):
        parts = [np.ones(m.shape, "complex64") for m in s.space.members]
        _refuses(f, parts, s, "complex values on a real space")
    base = s.point(180)
    for dtype in map(np.dtype, ("int32", "float16", "float32", "float64")):
        parts = [np.asarray(3 * part.real, dtype) for part in elements(base)]
        if s.given is not None and dtype.kind == "i":
            continue
        higher = dtype.kind == "f" and any(
            dtype.itemsize > real_of(m.dtype).itemsize for m in s.space.members
        )
        tested: Any = fresh(f)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = tested(_like(s, parts))
            tested(_like(s, parts))
        told = [w for w in caught if "cast" in str(w.message)]
        if len(told) != int(higher):
            raise Failure(f"it warns {len(told)} times of two {dtype} inputs, not {int(higher)}")
        cast = [p.astype(m.dtype) for p, m in zip(parts, s.space.members, strict=True)]
        s.close_values(found, f(_like(s, cast)), _like(s, cast), f"f of {dtype} input")


def check_layouts(s: FunctionalSubject) -> None:
    """Strides, memory order and read-only inputs change nothing, and no input is changed."""
    for name, apply in s.maps.items():
        wanted = host(apply(s.x))
        rows = [list(layouts(part)) for part in elements(s.x)]
        for number, (label, _) in enumerate(rows[0]):
            arranged = _like(s, [row[number][1] for row in rows])
            before = each(np.array, arranged)
            try:
                found = apply(arranged)
            except ValueError as error:
                raise Failure(f"{name} fails on a {label} input: {error}") from error
            if not same_bits(before, arranged):
                raise Failure(f"{name} changes its {label} input")
            s.close_maps(name, found, wanted, s.x, f"{name} of a {label} input")
            for part in elements(found) if name != "f" else ():
                if any(np.shares_memory(part, own) for own in elements(arranged)):
                    raise Failure(f"{name} shares memory with its {label} input")


def check_namespace(s: FunctionalSubject, package: str) -> None:
    """Arrays of another library give a number, and gradients and prox in that library."""
    xp = s.library(package)
    _needs_narrow(s, package)
    theirs = each(xp.asarray, each(np.array, s.x))
    for name, apply in s.maps.items():
        result = apply(theirs)
        s.close_maps(name, host(result), host(apply(s.x)), s.x, f"{name} on {package}")
        if name == "f":
            if type(result) is not float:
                raise Failure(f"f on {package} arrays is a {type(result).__name__}, not a float")
            continue
        for part, member in zip(elements(result), s.space.members, strict=True):
            if arrays.namespace(part) is not arrays.namespace(elements(theirs)[0]):
                raise Failure(f"{name} on {package} arrays gives {type(part)}")
            if arrays.dtype_of(part) != member.dtype:
                raise Failure(f"{name} on {package} arrays gives {part.dtype}, not {member.dtype}")
    if not same_bits(host(theirs), s.x):
        raise Failure(f"its {package} input is changed")


def check_device(s: FunctionalSubject) -> None:
    """Gradient and prox live on the device of the input (the second of array-api-strict)."""
    xp = s.library("array_api_strict")
    device = xp.Device("device1")
    there = each(lambda part: xp.asarray(np.array(part), device=device), s.x)
    for name, apply in s.maps.items():
        result = apply(there)
        for part in elements(result) if name != "f" else ():
            if array_api_compat.device(part) != device:
                raise Failure(f"{name} takes its input on {device}, its result is on {part.device}")


def check_torch_derivatives(s: FunctionalSubject) -> None:
    """In torch, backward gives the gradient."""
    torch = s.library("torch")
    wanted = s.gradient
    leaves = each(lambda part: torch.from_numpy(np.array(part)).requires_grad_(), s.x)
    value = s.functional(leaves)
    s.close_values(value.detach(), s.value, s.x, "f where torch records")
    back = torch.autograd.grad(value, elements(leaves))
    found = back if isinstance(s.x, tuple) else back[0]
    s.close(s.space, host(found), wanted, norm(s.x), "torch's backward is not the gradient")


def check_jax_derivatives(s: FunctionalSubject) -> None:
    """Under `jax.jit`: the value, `jax.grad` (the conjugate of the gradient), `vmap`."""
    s.library("jax")
    _needs_narrow(s, "jax")
    jax = importlib.import_module("jax")
    wanted = s.gradient
    f = s.functional
    many = each(lambda part: np.stack([part, part]), s.x)

    def program(x: Any, many: Any) -> Any:
        return *jax.value_and_grad(f)(x), jax.vmap(f)(many)

    value, slope, mapped = jax.jit(program)(each(jax.numpy.asarray, s.x), many)
    s.close_values(value, s.value, s.x, "f inside jax.jit is not f outside")
    conjugate = each(np.conj, host(slope))
    s.close(s.space, conjugate, wanted, norm(s.x), "jax.grad is not the conjugate of the gradient")
    for entry in mapped:
        s.close_values(entry, s.value, s.x, "jax.vmap of f is not f")


def check_jax_arguments(s: FunctionalSubject) -> None:
    """The functional is a pytree: it passes through `jax.jit` as an argument."""
    from linops.transforms.pytree import register_jax

    s.library("jax")
    _needs_narrow(s, "jax")
    jax = importlib.import_module("jax")
    register_jax()
    found = jax.jit(lambda f, x: f(x))(s.functional, each(jax.numpy.asarray, s.x))
    s.close_values(found, s.value, s.x, "as an argument of jax.jit it gives other numbers")


def _needs_narrow(s: FunctionalSubject, package: str) -> None:
    wide = any(real_of(m.dtype).itemsize > 4 for m in s.space.members)
    if package == "jax" and wide and not importlib.import_module("jax").config.jax_enable_x64:
        raise NotApplicable("it works in 64 bits, and JAX runs without x64")


def _refuses(f: Any, parts: list[Any], s: FunctionalSubject, what: str) -> None:
    try:
        f(_like(s, parts))
    except DTypeError:
        return
    raise Failure(f"it takes {what} without a DTypeError")


def _like(s: FunctionalSubject, parts: list[Any]) -> Any:
    return tuple(parts) if isinstance(s.x, tuple) else parts[0]


def _stack(s: FunctionalSubject, members: list[Any], batch: tuple[int, ...]) -> Any:
    rows = [elements(member) for member in members]
    parts = []
    for number, member in enumerate(s.space.members):
        every = [row[number] for row in rows]
        flat = np.stack(every) if every else np.zeros((0, *member.shape), member.dtype)
        parts.append(flat.reshape(*batch, *member.shape))
    return _like(s, parts)
