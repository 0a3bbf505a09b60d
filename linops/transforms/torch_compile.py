"""Operators as nodes of the graphs that `torch.compile` makes.

    A(x)     one node of the graph, differentiable by the declared pair; with `fullgraph=True` too
    A @ x    a break: torch's tracer knows `@` beside a tensor as a product of tensors alone

The node stands for any operator that lives outside the compiled function and whose own arrays
require no gradient: a linear map, another map, a functional (an array without axes then, no Python
float) or a gradient. Its output is contiguous. Backward, a linear map is the other one of its pair;
any other map is the adjoint of its Jacobian, a functional its gradient. Everything else breaks the
graph and runs as in eager mode, derivatives included (`linops/tracing.py`).
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from linops import arrays, autocast, tracing
from linops.errors import ShapeError
from linops.precision import complex_of
from linops.space import ProductSpace, Space
from linops.transforms.torch_function import recording, records_in_constants

__all__ = ["applied"]


def applied(operator: Any, x: Any) -> Any:
    """`operator(x)` as one node of the graph where that is possible, else outside of it."""
    key = _key(operator)
    if key == "":
        return tracing.outside(type(operator).__call__, operator, x)
    parts, ops = list(x) if isinstance(x, (tuple, list)) else [x], sys.modules["torch"].ops.linops
    out = ops.apply(parts, key, False) if operator.linear else ops.map(parts, key)
    return tuple(out) if isinstance(operator.codomain, ProductSpace) else out[0]


_numbers = itertools.count()
_operators: dict[str, Any] = {}  # a graph that applies an operator keeps it alive


@tracing.as_constant
def _key(operator: Any) -> str:
    """The name under which the op finds the operator; empty where the op does not serve it."""
    _define()
    if "_open" in operator.__dict__:
        return ""
    if records_in_constants(operator):
        return ""
    key = operator.__dict__.get("_cache_torch")
    if key is None:
        key = operator.__dict__["_cache_torch"] = str(next(_numbers))
        _operators[key] = operator
    found: str = key
    return found


@functools.cache
def _define() -> None:
    """Register the ops, all of which take and give lists of tensors:

    apply(parts, key, adjoint)           a linear operator, or its adjoint
    map(parts, key)                      any other
    pull_back(parts, cotangents, key)    the adjoint of its derivative
    """
    import torch

    def run(parts: Sequence[Any], key: str, adjoint: bool) -> list[Any]:
        return _apply(_choose(key, adjoint), parts)

    def fake(parts: Sequence[Any], key: str, adjoint: bool) -> list[Any]:
        return _empty(_choose(key, adjoint), parts)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        parts, ctx.key, ctx.adjoint = inputs
        ctx.dtypes = [part.dtype for part in parts]

    def backward(ctx: Any, gradients: Any) -> Any:
        back = torch.ops.linops.apply(list(gradients), ctx.key, not ctx.adjoint)
        return _like(back, ctx.dtypes), None, None

    schema = "(Tensor[] parts, str key, bool adjoint) -> Tensor[]"
    op = torch.library.custom_op("linops::apply", run, mutates_args=(), schema=schema)
    op.register_fake(fake)
    op.register_autograd(backward, setup_context=keep)

    def run_map(parts: Sequence[Any], key: str) -> list[Any]:
        return _apply(_operators[key], parts)

    def fake_map(parts: Sequence[Any], key: str) -> list[Any]:
        return _empty(_operators[key], parts)

    def keep_parts(ctx: Any, inputs: Any, output: Any) -> None:
        parts, ctx.key = inputs
        ctx.save_for_backward(*parts)

    def backward_of_map(ctx: Any, gradients: Any) -> Any:
        parts = list(ctx.saved_tensors)
        back = torch.ops.linops.pull_back(parts, list(gradients), ctx.key)
        return _like(back, [part.dtype for part in parts]), None

    schema = "(Tensor[] parts, str key) -> Tensor[]"
    op = torch.library.custom_op("linops::map", run_map, mutates_args=(), schema=schema)
    op.register_fake(fake_map)
    op.register_autograd(backward_of_map, setup_context=keep_parts)

    def pull(parts: Sequence[Any], cotangents: Sequence[Any], key: str) -> list[Any]:
        return _pull_back(_operators[key], parts, cotangents)

    def fake_pull(parts: Sequence[Any], cotangents: Sequence[Any], key: str) -> list[Any]:
        members = _operators[key].domain.members
        return [
            part.new_empty(tuple(part.shape), dtype=getattr(torch, member.dtype.name))
            for part, member in zip(parts, members, strict=True)
        ]

    schema = "(Tensor[] parts, Tensor[] cotangents, str key) -> Tensor[]"
    op = torch.library.custom_op("linops::pull_back", pull, mutates_args=(), schema=schema)
    op.register_fake(fake_pull)


def _choose(key: str, adjoint: bool) -> Any:
    operator = _operators[key]
    return operator.H if adjoint else operator


def _apply(operator: Any, parts: Sequence[Any]) -> list[Any]:
    y = operator(tuple(parts) if isinstance(operator.domain, ProductSpace) else parts[0])
    found = list(y) if isinstance(operator.codomain, ProductSpace) else [y]
    for number in range(len(found)):
        if not arrays.is_torch(found[number]):  # the value of a functional, a Python float
            found[number] = arrays.convert(np.asarray(found[number], "float64"), parts[0])
    return [
        arrays.cast(part, _dtype(operator, space, parts)).contiguous()
        for part, space in zip(found, operator.codomain.members, strict=True)
    ]


def _empty(operator: Any, parts: Sequence[Any]) -> list[Any]:
    """What `_apply` gives, without values."""
    members, first = operator.domain.members, parts[0]
    if len(members) != len(parts):
        raise ShapeError(f"{operator.name} takes {len(members)} arrays, got {len(parts)}")
    for part, member in zip(parts, members, strict=True):
        member.check_shape(part, operator.name)
    batch = tuple(first.shape)[: first.ndim - members[0].ndim]
    torch = sys.modules["torch"]
    return [
        first.new_empty(
            (*batch, *space.shape), dtype=getattr(torch, _dtype(operator, space, parts).name)
        )
        for space in operator.codomain.members
    ]


def _dtype(operator: Any, space: Space, parts: Sequence[Any]) -> np.dtype:
    if operator._accumulated:  # as the Python float that it is in eager mode
        return np.dtype("float64")
    extended = not operator.domain.is_complex and any(part.is_complex() for part in parts)
    return complex_of(space.dtype) if extended else space.dtype


def _pull_back(operator: Any, parts: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """The adjoint of the derivative at `parts`, which may have batch axes, for each cotangent."""
    members = operator.domain.members
    batch = tuple(parts[0].shape)[: parts[0].ndim - members[0].ndim]
    several = isinstance(operator.domain, ProductSpace)
    several_out = isinstance(operator.codomain, ProductSpace)
    torch = sys.modules["torch"]

    def one(index: tuple[int, ...]) -> list[Any]:
        x = tuple(part[index] for part in parts)
        y = tuple(
            # Those of a functional are as wide as its value, wider than its codomain.
            arrays.cast(part[index], member.dtype).contiguous()
            for part, member in zip(cotangents, operator.codomain.members, strict=True)
        )
        try:
            with autocast.off(parts[0].device.type):
                back = operator.jacobian(x if several else x[0]).H(y if several_out else y[0])
        except TypeError:  # declares none: what eager mode records
            return _pull_back_record(operator, x, y)
        return list(back) if several else [back]

    rows = [one(index) for index in np.ndindex(*batch)]
    found = []
    for number, (part, member) in enumerate(zip(parts, members, strict=True)):
        shape, dtype = tuple(part.shape), getattr(torch, member.dtype.name)
        if not rows:
            found.append(part.new_zeros(shape, dtype=dtype))
            continue
        stacked = torch.stack([row[number].to(dtype) for row in rows])
        found.append(stacked.reshape(shape).contiguous())
    return found


def _pull_back_record(operator: Any, x: Sequence[Any], y: Sequence[Any]) -> list[Any]:
    """The same by torch's own record of the operator's array code."""
    torch = sys.modules["torch"]

    def run() -> list[Any]:
        leaves = [part.detach().requires_grad_() for part in x]
        out = operator(tuple(leaves) if isinstance(operator.domain, ProductSpace) else leaves[0])
        outs = list(out) if isinstance(operator.codomain, ProductSpace) else [out]
        # Of what does not depend on x nothing is recorded.
        pairs = [pair for pair in zip(outs, y, strict=True) if recording(pair[0])]
        if not pairs:
            return [torch.zeros_like(leaf) for leaf in leaves]
        grads = torch.autograd.grad(
            [out for out, _ in pairs],
            leaves,
            [cotangent.to(out.dtype) for out, cotangent in pairs],
            materialize_grads=True,
        )
        return list(grads)

    with ThreadPoolExecutor(1) as thread:  # within an op torch records nothing
        return thread.submit(run).result()


def _like(parts: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    """Gradients in the dtypes of what they belong to."""
    return [
        (part.real if part.is_complex() and not dtype.is_complex else part).to(dtype)
        for part, dtype in zip(parts, dtypes, strict=True)
    ]
