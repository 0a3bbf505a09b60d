"""A linear map and its adjoint as one torch autograd function: its derivatives are the map again.

Serves backward, double backward and `torch.func.jvp`, `vjp`, `vmap`, `jacrev`, `jacfwd`,
`hessian`. The maps run without a graph, so tensors that they hold get no gradient: where an array
of an operator requires one, `apply_operator` leaves the operator to plain array code.

The old batching of torch (`is_grads_batched=True`, `functional.jacobian(vectorize=True)`) does not
reach the batching rule; use `torch.func.jacrev`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from linops import apply, arrays, autocast, guard
from linops.operator import Operator
from linops.structure import flatten

Around = Callable[[Callable[[Any], Any], Any, Any], Callable[[Any], Any]]

__all__ = ["apply_operator", "apply_pair", "recording", "records_in_constants"]


def apply_operator(operator: Any, x: Any, adjoint: bool, around: Around | None = None) -> Any:
    """The operator, or its adjoint, with derivatives by the declared pair.

    `around(map, source, target)` may take the place of each of the two maps on plain tensors.

    None where plain array code is right: no derivative is recorded, or an array that the operator
    holds, also in the closure of a function it was made from, requires a gradient.
    """
    parts = x if isinstance(x, tuple) else (x,)
    if not any(map(recording, parts)) or records_in_constants(operator):
        return None
    forward, backward = _maps(operator)
    if around is not None:
        forward = around(forward, operator.domain, operator.codomain)
        backward = around(backward, operator.codomain, operator.domain)
    return apply_pair(x, backward, forward) if adjoint else apply_pair(x, forward, backward)


def apply_pair(x: Any, forward: Callable[[Any], Any], adjoint: Callable[[Any], Any]) -> Any:
    """`forward(x)`, differentiable; leading axes of `x` beyond the operator's are batch axes.

    `x` and the result are tensors, or tuples of them for product spaces.
    """
    several = isinstance(x, tuple)
    return _function().apply(forward, adjoint, several, *(x if several else (x,)))


def recording(x: Any) -> bool:
    """Whether torch records a derivative through `x`, or maps over it."""
    if not arrays.is_torch(x):
        return False
    torch = sys.modules["torch"]
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return True
    if torch.autograd.forward_ad._current_level >= 0:
        if torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
            return True
    return bool(x.requires_grad) and torch.is_grad_enabled()


def records_in_constants(operator: Any) -> bool:
    """Whether torch records a derivative through an array that the operator holds."""
    return any(map(recording, _constants(operator)))


def _maps(operator: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """The two maps on plain tensors."""
    if operator._exact:
        return _fresh(operator._forward, operator), _fresh(operator._backward, operator)
    spaces, batched = (operator.domain, operator.codomain), operator.batched
    backward = guard.adjoint_hook(operator, operator._apply_adjoint)
    return (
        guard.guard(operator._apply, *spaces, batched, operator.name),
        guard.guard(backward, *spaces[::-1], batched, f"{operator.name}.H"),
    )


def _fresh(function: Callable[[Any], Any], operator: Any) -> Callable[[Any], Any]:
    if not operator._aliases:
        return function
    return lambda x: apply.unalias(function(x), x)


def _constants(operator: Any) -> list[Any]:
    """The arrays of the tree, and tensors that its functions hold.

    `_runs` of a lowered operator is the one whose arrays it uses.
    """
    found: list[Any] = []
    data, static = flatten(operator)
    for value in data.values():
        for part in value if isinstance(value, tuple) else (value,):
            found += _constants(part) if isinstance(part, Operator) else [part]
    for _, value in static:
        if callable(value):
            found += _find_tensors(value)
    inner = getattr(operator, "_runs", None)
    return found if inner is None else found + _constants(inner)


def _find_tensors(function: Any) -> list[Any]:
    """Tensors that a function reaches by closure, default, partial application or method."""
    found: list[Any] = []
    if isinstance(function, functools.partial):
        found += [*function.args, *function.keywords.values(), *_find_tensors(function.func)]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue
    found += getattr(function, "__defaults__", None) or ()
    owner = getattr(function, "__self__", None)
    if owner is not None:
        found += list(getattr(owner, "__dict__", {}).values())
    return found


@functools.cache
def _function() -> Any:
    import torch

    class LinearPair(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(forward: Any, adjoint: Any, several: bool, *parts: Any) -> Any:
            kind = autocast.device(parts)  # of a backward pass, which may run under another
            with nullcontext() if kind is None else autocast.off(kind):
                return forward(parts if several else parts[0])

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.forward_map, ctx.adjoint_map, ctx.several, *parts = inputs
            ctx.several_out = isinstance(output, tuple)
            ctx.likes = [(part.shape, part.dtype, part.device) for part in parts]

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            back = LinearPair.apply(ctx.adjoint_map, ctx.forward_map, ctx.several_out, *gradients)
            return None, None, None, *(back if ctx.several else (back,))

        @staticmethod
        def jvp(ctx: Any, _forward: Any, _adjoint: Any, _several: Any, *tangents: Any) -> Any:
            whole = [
                torch.zeros(shape, dtype=dtype, device=device) if tangent is None else tangent
                for tangent, (shape, dtype, device) in zip(tangents, ctx.likes, strict=True)
            ]
            return LinearPair.apply(ctx.forward_map, ctx.adjoint_map, ctx.several, *whole)

        @staticmethod
        def vmap(
            info: Any, in_dims: Any, forward: Any, adjoint: Any, several: bool, *parts: Any
        ) -> Any:
            moved = [
                part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)
                for part, dim in zip(parts, in_dims[3:], strict=True)
            ]
            out = LinearPair.apply(forward, adjoint, several, *moved)
            return out, tuple(0 for _ in out) if isinstance(out, tuple) else 0

    return LinearPair
