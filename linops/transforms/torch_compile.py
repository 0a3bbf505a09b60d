"""Operators as nodes of the graphs that `torch.compile` makes.

    A(x)     one node of the graph, differentiable by the declared pair; with `fullgraph=True` too
    A @ x    a break: torch's tracer knows `@` beside a tensor as a product of tensors alone

The node stands for any operator that lives outside the compiled function and whose own arrays
require no gradient; its output is contiguous. Everything else breaks the graph and runs as in eager
mode, derivatives included (`linops/tracing.py`).
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Sequence
from typing import Any

from linops import tracing
from linops.errors import ShapeError
from linops.precision import complex_of
from linops.space import ProductSpace

__all__ = ["applied"]


def applied(operator: Any, x: Any) -> Any:
    """`operator(x)` as one node of the graph where that is possible, else outside of it."""
    key = _key(operator)
    if key == "":
        return tracing.outside(type(operator).__call__, operator, x)
    several = isinstance(x, (tuple, list))
    out = sys.modules["torch"].ops.linops.apply(list(x) if several else [x], key, False)
    return tuple(out) if isinstance(operator.codomain, ProductSpace) else out[0]


_numbers = itertools.count()
_operators: dict[str, Any] = {}  # a graph that applies an operator keeps it alive


def _key(operator: Any) -> str:
    """The name under which the op finds the operator; empty where the op does not serve it."""
    from linops.transforms.torch_function import records_in_constants

    _define()
    if not operator.linear or "_open" in operator.__dict__:
        return ""
    if records_in_constants(operator):
        return ""
    key = operator.__dict__.get("_cache_torch")
    if key is None:
        key = operator.__dict__["_cache_torch"] = str(next(_numbers))
        _operators[key] = operator
    found: str = key
    return found


# As torch.compiler.assume_constant_result has it: run while the graph is made, with a guard for the
# identity of the operator.
_key._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _define() -> None:
    """Register `torch.ops.linops.apply(Tensor[] parts, str key, bool adjoint) -> Tensor[]`."""
    import torch

    def applied_to(operator: Any, parts: Sequence[Any]) -> list[Any]:
        y = operator(tuple(parts) if isinstance(operator.domain, ProductSpace) else parts[0])
        several = isinstance(operator.codomain, ProductSpace)
        return [part.contiguous() for part in (y if several else (y,))]

    def chosen(key: str, adjoint: bool) -> Any:
        operator = _operators[key]
        return operator.H if adjoint else operator

    def run(parts: Sequence[Any], key: str, adjoint: bool) -> list[Any]:
        return applied_to(chosen(key, adjoint), parts)

    def shapes(parts: Sequence[Any], key: str, adjoint: bool) -> list[Any]:
        operator = chosen(key, adjoint)
        members, first = operator.domain.members, parts[0]
        if len(members) != len(parts):
            raise ShapeError(f"{operator.name} takes {len(members)} arrays, got {len(parts)}")
        for part, member in zip(parts, members, strict=True):
            member.check_shape(part, operator.name)
        batch = tuple(first.shape)[: first.ndim - members[0].ndim]
        extended = not operator.domain.is_complex and any(part.is_complex() for part in parts)
        found = []
        for space in operator.codomain.members:
            dtype = complex_of(space.dtype) if extended else space.dtype
            found.append(first.new_empty((*batch, *space.shape), dtype=getattr(torch, dtype.name)))
        return found

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        parts, ctx.key, ctx.adjoint = inputs
        ctx.dtypes = [part.dtype for part in parts]

    def backward(ctx: Any, gradients: Any) -> Any:
        back = torch.ops.linops.apply(list(gradients), ctx.key, not ctx.adjoint)
        found = [
            (part.real if part.is_complex() and not dtype.is_complex else part).to(dtype)
            for part, dtype in zip(back, ctx.dtypes, strict=True)
        ]
        return found, None, None

    schema = "(Tensor[] parts, str key, bool adjoint) -> Tensor[]"
    op = torch.library.custom_op("linops::apply", run, mutates_args=(), schema=schema)
    op.register_fake(shapes)
    op.register_autograd(backward, setup_context=setup_context)
