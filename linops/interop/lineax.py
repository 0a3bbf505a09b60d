"""Operators of ours for lineax: its solvers inside JAX transformations.

lineax derives the transpose from the function it is given; that is the declared adjoint.
"""

from __future__ import annotations

import functools
from typing import Any

from linops.arguments import checked
from linops.errors import DTypeError
from linops.linear_operator import LinearOperator
from linops.space import ProductSpace, Space

__all__ = ["to_lineax"]


@checked
def to_lineax(A: LinearOperator) -> Any:
    """`A` as a `lineax.FunctionLinearOperator` on JAX arrays.

    Parameters
    ----------
    A
        Tags `"psd"` (Hermitian where it is complex), `"self_adjoint"` (as symmetric, of a real
        operator) and `"diagonal"` become lineax's, without which its `CG` refuses.

    Raises
    ------
    ImportError
        Where lineax is not installed.
    DTypeError
        For an operator that is linear over the reals only, and for 64-bit numbers in JAX without
        x64.

    Notes
    -----
    `lineax.Normal(lineax.CG(...))` and `lineax.LSMR` give least-squares solutions. Function
    operators cannot be arguments of plain `jax.jit`: close over them, or use `equinox.filter_jit`.
    """
    import jax
    import lineax

    if "real_linear" in A.tags:
        raise DTypeError(
            f"{A.name} is linear over the reals only, which lineax has no word for; use "
            "solvers.cgls of linops"
        )
    is_real = not (A.domain.is_complex or A.codomain.is_complex)
    known = {
        "psd": lineax.positive_semidefinite_tag if is_real or _hermitian() else None,
        "self_adjoint": lineax.symmetric_tag if is_real else None,
        "diagonal": lineax.diagonal_tag,
    }
    square = A.domain.shape == A.codomain.shape and A.domain.dtype == A.codomain.dtype
    tags = frozenset(known[tag] for tag in A.tags if known.get(tag) is not None and square)

    def structure(space: Space) -> Any:
        if space.dtype.name in ("float64", "complex128") and not jax.config.jax_enable_x64:
            raise DTypeError(
                f"{A.name} works in {space.dtype}, and JAX runs without x64: call "
                "jax.config.update('jax_enable_x64', True) first, or build it in float32"
            )
        return jax.ShapeDtypeStruct(space.shape, space.dtype)

    domain = A.domain
    if isinstance(domain, ProductSpace):
        inputs: Any = tuple(map(structure, domain.spaces))
    else:
        inputs = structure(domain)
    return lineax.FunctionLinearOperator(lambda x: A(x), inputs, tags)


@functools.cache
def _hermitian() -> bool:
    """Whether this lineax knows that a complex matrix is not its transpose for being positive."""
    import jax
    import lineax

    entry = jax.ShapeDtypeStruct((1,), "complex64")
    tag = lineax.positive_semidefinite_tag
    return not lineax.is_symmetric(lineax.FunctionLinearOperator(lambda x: x, entry, tag))
