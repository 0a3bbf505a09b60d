"""A pair of functions as one torch autograd function: every derivative of a linear map is the map.

Serves backward, double backward and `torch.func.jvp`, `vjp`, `vmap`, `jacrev`, `jacfwd`. The
functions run without a graph: tensors they close over get no gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["apply_pair"]


def apply_pair(x: Any, forward: Callable[[Any], Any], adjoint: Callable[[Any], Any]) -> Any:
    """`forward(x)`, differentiable; leading axes of `x` beyond the operator's are batch axes."""
    return _function().apply(x, forward, adjoint)


@functools.cache
def _function() -> Any:
    import torch

    class LinearPair(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(x: Any, forward: Any, adjoint: Any) -> Any:
            return forward(x)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            _, ctx.forward_map, ctx.adjoint_map = inputs

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return LinearPair.apply(gradient, ctx.adjoint_map, ctx.forward_map), None, None

        @staticmethod
        def jvp(ctx: Any, tangent: Any, *_: Any) -> Any:
            return LinearPair.apply(tangent, ctx.forward_map, ctx.adjoint_map)

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Any, forward: Any, adjoint: Any) -> Any:
            return LinearPair.apply(x.movedim(in_dims[0], 0), forward, adjoint), 0

    return LinearPair
