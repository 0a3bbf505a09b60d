"""Checks of how arrays enter and leave: dtypes, memory layouts, batches, namespaces, devices."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any, TypeVar

import array_api_compat
import numpy as np

from linops import arrays
from linops.errors import DTypeError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.precision import complex_of, real_of
from linops.space import ProductSpace
from linops.testing.subject import Failure, Subject, each, elements, host, plain, same_bits

__all__ = [
    "check_batches",
    "check_device",
    "check_dtypes",
    "check_layouts",
    "check_namespace",
    "check_outputs",
    "check_spaces",
    "fresh",
    "layouts",
]


_O = TypeVar("_O", bound=Operator)


def check_spaces(s: Subject) -> None:
    """Results are elements of the declared spaces, and figures derived from them agree."""
    A = s.operator
    for B, x, name in ((A, s.x, "A"), (A.H, s.y, "A.H")):
        result = B(x)
        if isinstance(B.codomain, ProductSpace) != isinstance(result, tuple):
            raise Failure(f"{name} @ x is a {type(result).__name__}, the codomain {B.codomain}")
        for part, member in zip(elements(result), B.codomain.members, strict=True):
            if type(part) is not np.ndarray:
                raise Failure(f"{name} @ x is a {type(part).__name__} for NumPy input")
            if part.shape != member.shape or part.dtype != member.dtype:
                raise Failure(f"{name} @ x has {part.shape} {part.dtype}, declared is {member}")
        for members, space in ((B.rule.domain, B.domain), (B.rule.codomain, B.codomain)):
            if [len(row) for row in members] != [m.ndim for m in space.members]:
                raise Failure(f"{name} has the rule '{B.rule}' on {B.domain} -> {B.codomain}")
    if A.shape != (A.codomain.size, A.domain.size):
        raise Failure(f"A.shape is {A.shape} for {A.domain} -> {A.codomain}")
    if A.dtype != np.result_type(A.domain.dtype, A.codomain.dtype):
        raise Failure(f"A.dtype is {A.dtype} for {A.domain} -> {A.codomain}")


def check_dtypes(s: Subject) -> None:
    """Whatever number comes in, the codomain's dtype comes out; what is no number raises."""
    for B, name in ((s.operator, "A"), (s.operator.H, "A.H")):
        _numbers_are_cast(s, B, name)
        for bad in ("object", "U3", "datetime64[s]"):
            x = _tuple_like(B, [np.zeros(m.shape, bad) for m in B.domain.members])
            try:
                B(x)
            except DTypeError:
                continue
            raise Failure(f"{name} takes {bad} input without a DTypeError")


def _numbers_are_cast(s: Subject, B: LinearOperator, name: str) -> None:
    domain, codomain = B.domain, B.codomain
    base = plain(domain).random(s.generator(20))
    mixed = any(m.is_complex for m in domain.members) and not all(
        m.is_complex for m in domain.members
    )
    for dtype in map(np.dtype, ("bool", "int32", "float16", "float32", "float64", "complex64",
                                "complex128")):  # fmt: skip
        if dtype.kind == "c" and mixed:
            continue
        x = each(lambda part, dtype=dtype: _as(3 * part, dtype), base)
        higher = dtype.kind in "fc" and any(
            real_of(dtype).itemsize > real_of(m.dtype).itemsize for m in domain.members
        )
        extends = dtype.kind == "c" and not domain.is_complex
        operator = fresh(B)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if extends and "real_linear" in B.tags:
                try:
                    operator(x)
                except DTypeError:
                    continue
                raise Failure(f"{name} maps real to complex and takes {dtype} input")
            found = operator(x)
            operator(x)
        told = [w for w in caught if "cast" in str(w.message)]
        if len(told) != int(higher):
            raise Failure(
                f"{name} warns {len(told)} times of two {dtype} inputs, not {int(higher)}"
            )
        targets = [complex_of(m.dtype) if extends else m.dtype for m in codomain.members]
        for part, target in zip(elements(found), targets, strict=True):
            if part.dtype != target:
                raise Failure(f"{name} @ {dtype} gives {part.dtype}, not {target}")
        if not extends:
            same = _tuple_like(
                B,
                [p.astype(m.dtype) for p, m in zip(elements(x), domain.members, strict=True)],
            )
            s.close(codomain, found, B(same), float(domain.norm(same)), f"{name} @ {dtype}")
        elif not mixed:
            real, imag = each(lambda p: np.array(p.real), x), each(lambda p: np.array(p.imag), x)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wanted = _combine(B(real), B(imag))
            size = 2 * float(np.sqrt(sum(np.linalg.norm(p.ravel()) ** 2 for p in elements(x))))
            s.close(codomain, found, wanted, size, f"{name} @ {dtype} is not by real and imaginary")


def check_layouts(s: Subject) -> None:
    """Strides, memory order and read-only inputs change nothing, and no input is changed."""
    for B, x, name in ((s.operator, s.x, "A"), (s.operator.H, s.y, "A.H")):
        wanted = host(B(x))
        size = float(B.domain.norm(x))
        variants = [list(layouts(part)) for part in elements(x)]
        for number in range(len(variants[0])):
            label = variants[0][number][0]
            arranged = _tuple_like(B, [rows[number][1] for rows in variants])
            before = each(np.array, arranged)
            try:
                found = B(arranged)
            except ValueError as error:
                raise Failure(f"{name} fails on a {label} input: {error}") from error
            if not same_bits(before, arranged):
                raise Failure(f"{name} @ x changes its {label} input x")
            s.close(B.codomain, found, wanted, size, f"{name} on a {label} input")
            for part in elements(found):
                if any(np.shares_memory(part, own) for own in elements(arranged)):
                    raise Failure(f"{name} @ x shares memory with its {label} input")
        constant = _tuple_like(
            B, [np.broadcast_to(np.asarray(1, m.dtype), m.shape) for m in B.domain.members]
        )
        size = float(B.domain.norm(constant))
        plain = B(each(np.array, constant))
        s.close(B.codomain, B(constant), plain, size, f"{name} on a broadcast input")


def check_outputs(s: Subject) -> None:
    """Two equal calls give equal bits, whatever was written into the first result."""
    for B, x, name in ((s.operator, s.x, "A"), (s.operator.H, s.y, "A.H")):
        first = B(x)
        kept = each(np.array, first)
        for part in elements(first):
            if part.flags.writeable:
                part[...] = 7
        B(plain(B.domain).random(s.generator(21)))
        if not same_bits(B(x), kept):
            raise Failure(f"{name} gives other bits on the second call: it holds a state")


def check_batches(s: Subject) -> None:
    """Leading axes are batch axes, empty ones too, and a batch is what a loop gives."""
    for B, name in ((s.operator, "A"), (s.operator.H, "A.H")):
        for batch in ((3,), (2, 2), (1,), (0,), (2, 0)):
            x = _tuple_like(B, [_random(s, m, batch) for m in B.domain.members])
            result = host(B(x))
            for part, member in zip(elements(result), B.codomain.members, strict=True):
                if part.shape != (*batch, *member.shape) or part.dtype != member.dtype:
                    raise Failure(
                        f"{name} @ batch {batch} gives {part.shape} {part.dtype}, not "
                        f"{(*batch, *member.shape)} {member.dtype}"
                    )
            for index in np.ndindex(*batch):
                one = each(lambda part, index=index: part[index], x)
                got = each(lambda part, index=index: part[index], result)
                size = float(B.domain.norm(one))
                s.close(B.codomain, got, B(one), size, f"{name}: member {index} of batch {batch}")
            if batch == (3,):
                moved = each(_batch_innermost, x)
                size = float(np.max(B.domain.norm(x)))
                what = f"{name} on a batch whose batch axis is innermost in memory"
                s.close(B.codomain, B(moved), result, size, what)


def check_namespace(s: Subject, package: str) -> None:
    """Arrays of another library give arrays of that library, with the same numbers."""
    xp = s.library(package)
    for B, x, name in ((s.operator, s.x, "A"), (s.operator.H, s.y, "A.H")):
        wide = any(real_of(m.dtype).itemsize > 4 for m in (*B.domain.members, *B.codomain.members))
        if package == "jax" and wide and not importlib.import_module("jax").config.jax_enable_x64:
            _refuses_without_x64(B, x, name, xp)
            continue
        theirs = each(xp.asarray, each(np.array, x))
        before = host(each(lambda p: arrays.to_numpy(p).copy(), theirs))
        result = B(theirs)
        for part, member in zip(elements(result), B.codomain.members, strict=True):
            if arrays.namespace(part) is not arrays.namespace(elements(theirs)[0]):
                raise Failure(f"{name} on {package} arrays gives {type(part)}")
            if arrays.dtype_of(part) != member.dtype:
                raise Failure(f"{name} on {package} arrays gives {part.dtype}, not {member.dtype}")
        s.close(B.codomain, result, host(B(x)), float(B.domain.norm(x)), f"{name} on {package}")
        if not same_bits(host(theirs), before):
            raise Failure(f"{name} changes its {package} input")
        if package == "jax":
            continue  # jax_derivatives hands it batches, by vmap
        pair = each(lambda p: xp.stack([p, 2 * p]), theirs)
        wanted = host(B(host(pair)))
        size = 2 * float(B.domain.norm(x))
        s.close(B.codomain, B(pair), wanted, size, f"{name} on a batch of {package} arrays")


def check_device(s: Subject) -> None:
    """The result lives on the device of the input (the second device of array-api-strict)."""
    xp = s.library("array_api_strict")
    device = xp.Device("device1")
    for B, x, name in ((s.operator, s.x, "A"), (s.operator.H, s.y, "A.H")):
        there = each(lambda part: xp.asarray(np.array(part), device=device), x)
        for part in elements(B(there)):
            if array_api_compat.device(part) != device:
                raise Failure(f"{name} takes its input on {device}, its result is on {part.device}")


def fresh(operator: _O) -> _O:
    """The same operator without what it remembers, such as that it has warned."""
    return operator._with()


def _refuses_without_x64(B: LinearOperator, x: Any, name: str, xp: Any) -> None:
    theirs = each(lambda part: xp.asarray(_narrow(part)), x)
    try:
        B(theirs)
    except DTypeError:
        return
    raise Failure(f"{name} works in 64 bits and takes JAX arrays without x64 instead of raising")


def _narrow(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex64 if x.dtype.kind == "c" else np.float32)


def _tuple_like(operator: LinearOperator, parts: list[Any]) -> Any:
    return tuple(parts) if isinstance(operator.domain, ProductSpace) else parts[0]


def _as(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind != "c" and x.dtype.kind == "c":
        x = x.real
    elif dtype.kind == "c" and x.dtype.kind != "c":
        x = x + 1j * x[..., ::-1] if x.ndim else x + 1j * x
    return np.asarray(x, dtype)


def _combine(real: Any, imaginary: Any) -> Any:
    if isinstance(real, tuple):
        return tuple(_combine(r, i) for r, i in zip(real, imaginary, strict=True))
    return real + 1j * imaginary


def layouts(x: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Copies of an array that lie in memory in other ways, with what each is called."""
    yield "plain", x.copy()
    locked = x.copy()
    locked.setflags(write=False)
    yield "read-only", locked
    yield "Fortran-ordered", np.array(x, order="F")
    wide: Any = np.zeros(tuple(2 * n + 1 for n in x.shape), x.dtype)
    strided = wide[(..., *(slice(1, 2 * n + 1, 2) for n in x.shape))]
    strided[...] = x
    yield "strided", strided
    every: Any = (..., *(slice(None, None, -1),) * x.ndim)
    yield "reversed", np.array(x[every], order="C")[every]
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)[...]
    raw[...] = x
    yield "misaligned", raw


def _random(s: Subject, member: Any, batch: tuple[int, ...]) -> np.ndarray:
    generator = s.generator(22)
    values = generator.standard_normal((*batch, *member.shape))
    if member.is_complex:
        values = values + 1j * generator.standard_normal(values.shape)
    return np.asarray(values, member.dtype)


def _batch_innermost(part: np.ndarray) -> np.ndarray:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(part, 0, -1)), -1, 0)
