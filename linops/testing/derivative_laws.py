"""Checks of derivatives: what JAX and torch make of an operator is its declared pair.

JAX transposes without conjugation, torch with it (`f = |Ax|^2` has the gradient
`conj(2 A.H A x)` in JAX and `2 A.H A x` in torch). Each library is imported by its check alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from linops.errors import DTypeError
from linops.linear_operator import LinearOperator
from linops.precision import real_of
from linops.testing.subject import Failure, NotApplicable, Subject, each, elements, host

__all__ = ["check_jax_arguments", "check_jax_derivatives", "check_torch_derivatives"]


def check_jax_derivatives(s: Subject) -> None:
    """Under `jax.jit`: the value, its dtype, jvp, vjp and vmap on the last axis."""
    jax = _jax(s)
    for B, x, y, name in _both(s):

        def program(x: Any, y: Any, many: Any, B: LinearOperator = B) -> tuple[Any, ...]:
            value, tangent = jax.jvp(B, (x,), (x,))
            back = jax.vjp(B, x)[1](y)[0]
            return value, tangent, back, jax.vmap(B, in_axes=-1)(many)

        many = each(lambda part: np.stack([part, 2 * part], axis=-1), x)
        found = jax.jit(program)(*(each(jax.numpy.asarray, part) for part in (x, y, many)))
        value, tangent, back, mapped = map(host, found)
        for part, member in zip(elements(value), B.codomain.members, strict=True):
            if part.dtype != member.dtype:
                raise Failure(f"{name} inside jax.jit gives {part.dtype}, not {member.dtype}")
        wanted, size = host(B(x)), float(B.domain.norm(x))
        s.close(B.codomain, value, wanted, size, f"{name} inside jax.jit is not {name} outside")
        s.close(B.codomain, tangent, wanted, size, f"jax.jvp of {name} is not {name}")
        for row in (0, 1):
            part = each(lambda p, row=row: p[row] / (row + 1), mapped)
            s.close(B.codomain, part, wanted, size, f"jax.vmap of {name} is not {name}")
        wanted = each(np.conj, host(B.H(each(np.conj, y))))
        size = float(B.codomain.norm(y))
        s.close(B.domain, back, wanted, size, f"jax.vjp of {name} is not {name}.T")


def check_jax_arguments(s: Subject) -> None:
    """The operator is a pytree: it passes through `jax.jit` as an argument."""
    from linops.transforms.pytree import register_jax

    jax = _jax(s)
    register_jax()
    A = s.operator
    leaves, tree = jax.tree.flatten(A)
    if not isinstance(jax.tree.unflatten(tree, leaves), type(A)):
        raise Failure("a pytree of its leaves is something else")
    found = jax.jit(lambda A, x: A(x))(A, each(jax.numpy.asarray, s.x))
    size = float(A.domain.norm(s.x))
    s.close(A.codomain, host(found), s.Ax, size, "as an argument of jax.jit it gives other numbers")


def check_torch_derivatives(s: Subject) -> None:
    """In torch: backward, twice, `func.jvp`, `func.vmap` on the last axis, `func.vjp`."""
    torch = s.library("torch")
    for B, x, y, name in _both(s):
        point = each(lambda part: torch.from_numpy(np.array(part)), x)
        weight = each(lambda part: torch.from_numpy(np.array(part)), y)
        wanted = host(B.H(y))
        size = float(B.codomain.norm(y))
        leaves = each(lambda part: part.clone().requires_grad_(), point)
        out = B(leaves)
        for _ in range(2):
            back = torch.autograd.grad(
                elements(out), elements(leaves), elements(weight), retain_graph=True,
                materialize_grads=True,
            )  # fmt: skip
            back = back if isinstance(x, tuple) else back[0]
            s.close(B.domain, host(back), wanted, size, f"torch's backward of {name} is not .H")
        back = torch.func.vjp(B, point)[1](weight)[0]
        s.close(B.domain, host(back), wanted, size, f"torch.func.vjp of {name} is not {name}.H")
        wanted, size = host(B(x)), float(B.domain.norm(x))
        tangent = torch.func.jvp(B, (point,), (point,))[1]
        s.close(B.codomain, host(tangent), wanted, size, f"torch.func.jvp of {name} is not {name}")
        many = each(lambda part: torch.stack([part, 2 * part], -1), point)
        mapped = host(torch.func.vmap(B, in_dims=-1)(many))
        for row in (0, 1):
            part = each(lambda p, row=row: p[row] / (row + 1), mapped)
            s.close(B.codomain, part, wanted, size, f"torch.func.vmap of {name} is not {name}")


def _both(s: Subject) -> Iterator[tuple[LinearOperator, Any, Any, str]]:
    yield s.operator, s.x, s.y, "A"
    if s.operator.H is not s.operator:
        yield s.operator.H, s.y, s.x, "A.H"


def _jax(s: Subject) -> Any:
    s.library("jax")
    jax = importlib.import_module("jax")
    A = s.operator
    wide = any(real_of(m.dtype).itemsize > 4 for m in (*A.domain.members, *A.codomain.members))
    if wide and not jax.config.jax_enable_x64:
        raise NotApplicable("it works in 64 bits, and JAX runs without x64")
    try:
        A(each(jax.numpy.asarray, s.x))
    except DTypeError as error:
        # A part of it works in 64 bits, or holds such numbers.
        raise NotApplicable(str(error)) from None
    return jax
