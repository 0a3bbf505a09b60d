"""A function with a declared derivative, for JAX and torch: first derivatives in both modes.

Where an operator of linops is a function of arrays that it holds, such as a geometry, its
derivative in them is a linear operator too. `apply` tells JAX and torch so: nothing of the function
is recorded, and the derivative is that operator, or its adjoint. `refuse` marks what must not be
differentiated again.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from linops import arrays
from linops.arrays import Array
from linops.transforms.torch_function import recording

__all__ = ["apply", "refuse", "refuse_derivative"]

Derivatives = Callable[..., Sequence[tuple[tuple[int, ...], Any]]]


def apply(value: Callable[..., Array], derivatives: Derivatives, arguments: Sequence[Array]) -> Any:
    """`value(*arguments)`, differentiable.

    Parameters
    ----------
    value
        From arrays to one array; plain code, which is not recorded.
    derivatives
        `derivatives(*arguments)` gives pairs `(numbers, operator)`: a linear operator from the
        tangents of these arguments (one array, or a tuple of several) to the tangent of the value.
        Arguments that no pair names are constants.
    arguments
        Arrays of one namespace.
    """
    if any(map(arrays.is_jax, arguments)):
        return _in_jax(value, derivatives)(*arguments)
    if any(map(recording, arguments)):
        return _function().apply(value, derivatives, *arguments)
    return value(*arguments)


def refuse(array: Array, message: str) -> Array:
    """`array`, whose derivative raises `RuntimeError(message)`; JAX alone."""
    return _refusing(message)(array)


def _in_jax(value: Callable[..., Array], derivatives: Derivatives) -> Callable[..., Any]:
    jax = sys.modules["jax"]
    function = jax.custom_jvp(value)

    def rule(primals: Any, tangents: Any) -> Any:
        out = function(*primals)
        total = None
        for numbers, operator in derivatives(*primals):
            moves = [tangents[k] for k in numbers]
            if all(map(_is_zero, moves)):
                continue
            whole = [
                jax.numpy.zeros_like(primals[k]) if _is_zero(move) else move
                for k, move in zip(numbers, moves, strict=True)
            ]
            term = operator(tuple(whole) if len(numbers) > 1 else whole[0])
            total = term if total is None else total + term
        return out, jax.numpy.zeros_like(out) if total is None else total

    function.defjvp(rule, symbolic_zeros=True)
    return function  # type: ignore[no-any-return]


def _is_zero(tangent: Any) -> bool:
    return type(tangent).__name__ == "SymbolicZero" or str(tangent.dtype) == "float0"


@functools.cache
def _refusing(message: str) -> Callable[[Array], Array]:
    jax = sys.modules["jax"]

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def same(array: Array) -> Array:
        return array

    @same.defjvp  # type: ignore[untyped-decorator]
    def rule(primals: Any, tangents: Any) -> Any:
        raise RuntimeError(message)

    return same  # type: ignore[no-any-return]


def refuse_derivative(result: Any, message: str, held: Sequence[Array]) -> Any:
    """A tensor, or a tuple of them, that depends on `held` in a way that nobody differentiates."""
    parts = result if isinstance(result, tuple) else (result,)
    marked = tuple(_refusal().apply(message, len(held), *held, part) for part in parts)
    return marked if isinstance(result, tuple) else marked[0]


@functools.cache
def _refusal() -> Any:
    import torch

    class Refusal(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(message: str, count: int, *parts: Any) -> Any:
            return parts[-1].clone()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.message = inputs[0]

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            raise RuntimeError(ctx.message)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            if any(tangent is not None for tangent in tangents[2:-1]):
                raise RuntimeError(ctx.message)
            return tangents[-1].clone()

        @staticmethod
        def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
            return Refusal.apply(*inputs), in_dims[-1]

    return Refusal


@functools.cache
def _function() -> Any:
    import torch

    class Declared(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(value: Any, derivatives: Any, *arguments: Any) -> Any:
            return value(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            _, ctx.derivatives, *arguments = inputs
            ctx.save_for_backward(*arguments)
            ctx.save_for_forward(*arguments)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            arguments = ctx.saved_tensors
            found: list[Any] = [None] * (2 + len(arguments))
            for numbers, operator in ctx.derivatives(*arguments):
                if not any(ctx.needs_input_grad[2 + k] for k in numbers):
                    continue
                back = operator.H(gradient)
                for k, part in zip(numbers, back if len(numbers) > 1 else (back,), strict=True):
                    found[2 + k] = part
            return tuple(found)

        @staticmethod
        def jvp(ctx: Any, _value: Any, _derivatives: Any, *tangents: Any) -> Any:
            arguments = ctx.saved_tensors
            total = None
            for numbers, operator in ctx.derivatives(*arguments):
                moves = [tangents[k] for k in numbers]
                if all(move is None for move in moves):
                    continue
                whole = [
                    torch.zeros_like(arguments[k]) if move is None else move
                    for k, move in zip(numbers, moves, strict=True)
                ]
                term = operator(tuple(whole) if len(numbers) > 1 else whole[0])
                total = term if total is None else total + term
            return total

        @staticmethod
        def vmap(info: Any, in_dims: Any, value: Any, derivatives: Any, *arguments: Any) -> Any:
            found = []
            for k in range(info.batch_size):
                parts = [
                    part if axis is None else part.select(axis, k)
                    for part, axis in zip(arguments, in_dims[2:], strict=True)
                ]
                found.append(Declared.apply(value, derivatives, *parts))
            return torch.stack(found), 0

    return Declared
