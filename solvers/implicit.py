"""Derivatives of a solution in the data and in the operator, by the implicit function theorem.

A solution fulfils `A.H S (A x - y) + R'(x) = 0`, S the weights of the data and R the prior. With v
the cotangent of x and `w = H^-1 v`, H the second derivative of the objective, that of y is `S A w`,
and that of a parameter p of A is the derivative of `-<A(p) w, S (A(p) x - y)>`. A solver says how
`S A w` and w are found, with one more solve; nothing of its iterations is kept.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from linops import arrays
from linops.algebra.origins import tensors
from linops.linear_operator import LinearOperator
from linops.space import inners
from solvers.elements import each, subtract
from solvers.result import SolverResult

__all__ = ["AdjointSolve", "Derivative", "solve_implicitly"]


class AdjointSolve(NamedTuple):
    """What a solver's derivative gives back for a cotangent v of its solution."""

    measurements: Any
    """`S A w`."""
    direction: Callable[[], Any]
    """w, found when it is asked for."""
    weigh: Callable[[Any], Any]
    """S."""


Derivative = Callable[..., Callable[[LinearOperator, Any, Any], AdjointSolve]]
"""`derivative(**options)(A, x, v)`: made from the options of the solve, before it runs."""


def solve_implicitly(
    solve: Callable[..., SolverResult],
    derivative: Derivative,
    A: LinearOperator,
    y: Any,
    options: dict[str, Any],
) -> SolverResult:
    """`solve(A, y, **options)` with a solution that JAX or torch differentiate.

    Reverse mode, once. In y, and in the arrays of A that are traced or require a gradient.
    """
    adjoint = derivative(**options)
    parts = y if isinstance(y, tuple) else (y,)
    if "jax" in sys.modules:
        leaves = (*parts, *sys.modules["jax"].tree_util.tree_leaves(A))
        if any(map(arrays.is_traced, leaves)):
            return _in_jax(solve, adjoint, A, y, options)
    if "torch" in sys.modules:
        trained = {id(t): t for _, t in tensors(A) if t.requires_grad}
        given = [part for part in parts if arrays.requires_gradient(part)]
        if sys.modules["torch"].is_grad_enabled() and (trained or given):
            return _in_torch(solve, adjoint, A, y, options, list(trained.values()))
    return solve(A, y, **options)


def _misfit(A: LinearOperator, w: Any, found: AdjointSolve, x: Any, y: Any) -> Any:
    """`-<A w, S (A x - y)>`, a function of A."""
    (product,) = inners((A.codomain, A @ w, found.weigh(subtract(A @ x, y))))
    return -arrays.real(product)


def _in_jax(
    solve: Callable[..., SolverResult],
    adjoint: Callable[..., AdjointSolve],
    A: LinearOperator,
    y: Any,
    options: dict[str, Any],
) -> SolverResult:
    jax = sys.modules["jax"]
    # As an argument an operator is a tree of JAX arrays: only where one of them is traced.
    traced = any(map(arrays.is_traced, jax.tree_util.tree_leaves(A)))
    results: list[SolverResult] = []

    def run(held: LinearOperator | None, y: Any) -> Any:
        results.append(solve(A if held is None else held, y, **options))
        return results[-1].solution

    def forward(held: LinearOperator | None, y: Any) -> Any:
        x = run(held, y)
        return x, (held, y, x)

    def backward(saved: Any, v: Any) -> Any:
        held, y, x = saved
        # JAX pairs cotangents without conjugation, spaces with it.
        found = adjoint(A if held is None else held, x, each(arrays.conj, v))
        at_data = each(arrays.conj, found.measurements)
        if held is None:
            return None, at_data
        w = found.direction()
        value, pull = jax.vjp(lambda operator: _misfit(operator, w, found, x, y), held)
        return pull(value * 0 + 1)[0], at_data

    solved = jax.custom_vjp(run)
    solved.defvjp(forward, backward)
    solution = solved(A if traced else None, y)
    return replace(results[-1], solution=solution)


def _in_torch(
    solve: Callable[..., SolverResult],
    adjoint: Callable[..., AdjointSolve],
    A: LinearOperator,
    y: Any,
    options: dict[str, Any],
    trained: list[Any],
) -> SolverResult:
    torch = sys.modules["torch"]
    several = isinstance(y, tuple)
    results: list[SolverResult] = []

    def run(parts: tuple[Any, ...]) -> tuple[Any, ...]:
        results.append(solve(A, parts if several else parts[0], **options))
        x = results[-1].solution
        return x if isinstance(x, tuple) else (x,)

    def pull(x: Any, parts: Any, v: Any) -> tuple[Any, ...]:
        joined = isinstance(results[-1].solution, tuple)
        x, v = (x, v) if joined else (x[0], v[0])
        found = adjoint(A, x, v)
        at_data = found.measurements if several else (found.measurements,)
        at_operator: tuple[Any, ...] = ()
        if trained:
            w = found.direction()  # a number, not a function of A
            with torch.enable_grad():
                value = _misfit(A, w, found, x, parts if several else parts[0])
                at_operator = torch.autograd.grad(value, trained, allow_unused=True)
        return (*at_data, *at_operator)

    parts = y if several else (y,)
    found = _function().apply(run, pull, len(parts), *parts, *trained)
    joined = isinstance(results[-1].solution, tuple)
    return replace(results[-1], solution=found if joined else found[0])


@functools.cache
def _function() -> Any:
    torch = sys.modules["torch"]

    class Solution(torch.autograd.Function):  # type: ignore[misc, name-defined]
        """Of `run(data)`, with `pull(solution, data, cotangents)` as its adjoint."""

        @staticmethod
        def forward(ctx: Any, run: Any, pull: Any, count: int, *inputs: Any) -> Any:
            data = tuple(part.detach() for part in inputs[:count])
            found = run(data)
            ctx.save_for_backward(*data, *found)
            ctx.pull, ctx.count = pull, count
            return found

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *cotangents: Any) -> Any:
            # A saved result carries the graph that leads back here.
            saved = [tensor.detach() for tensor in ctx.saved_tensors]
            data, found = tuple(saved[: ctx.count]), tuple(saved[ctx.count :])
            v = tuple(
                torch.zeros_like(x) if c is None else c
                for c, x in zip(cotangents, found, strict=True)
            )
            return None, None, None, *ctx.pull(found, data, v)

    return Solution
