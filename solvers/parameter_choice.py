"""Choosing the strength of a regularisation, whatever the solver.

All take `solve(y, parameter)`, which gives a `SolverResult`; its last residual is `|y - A x|`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from linops import arrays
from linops.linear_operator import LinearOperator
from linops.space import Space
from solvers.controls import positive, positive_count
from solvers.elements import add_scaled, products, subtract
from solvers.result import SolverResult

__all__ = [
    "ParameterChoice",
    "discrepancy_principle",
    "generalized_cross_validation",
    "l_curve",
    "sure",
]

Solver = Callable[[Any, float], SolverResult]


class ParameterChoice(NamedTuple):
    """A parameter, what its solve gave, and the scores of all that were tried, in order."""

    parameter: float
    result: SolverResult
    parameters: list[float]
    scores: list[float]


def discrepancy_principle(
    solve: Solver, y: Any, noise: float, low: float, high: float, *, rtol: float = 1e-2,
    iterations: int = 40,
) -> ParameterChoice:  # fmt: skip
    """The parameter whose residual is the norm of the noise (Morozov 1966), by bisection.

    Parameters
    ----------
    solve
        See the module; its residual grows with the parameter.
    y
        Measurements.
    noise
        `|y - A x|` of the truth: `sigma sqrt(n)`.
    low, high
        Parameters > 0 between which it lies; their logarithm is halved.
    rtol, iterations
        Ends where the residual is `noise` within this share, or after so many solves.

    Raises
    ------
    ValueError
        Where the residual is above `noise` at `low` already, or below it at `high`.
    """
    noise, low, high = positive("noise", noise), positive("low", low), positive("high", high)
    tried: dict[float, tuple[float, SolverResult]] = {}

    def residual(parameter: float) -> float:
        result = solve(y, parameter)
        tried[parameter] = float(result.residual_history[-1]), result
        return tried[parameter][0]

    for end, beyond in ((low, residual(low) > noise), (high, residual(high) < noise)):
        if beyond and abs(tried[end][0] - noise) > rtol * noise:
            raise ValueError(
                f"noise is {noise}, but the residual at {end} is {tried[end][0]}; residuals of low "
                "and high lie on both sides of it"
            )
    for _ in range(positive_count("iterations", iterations)):
        middle = math.sqrt(low * high)
        found = residual(middle)
        if abs(found - noise) <= rtol * noise:
            break
        low, high = (middle, high) if found < noise else (low, middle)
    scores = {p: abs(value - noise) for p, (value, _) in tried.items()}
    return _least(scores, {p: result for p, (_, result) in tried.items()})


def l_curve(
    solve: Solver, y: Any, parameters: Sequence[float], size: Callable[[Any], float]
) -> ParameterChoice:
    """The corner of `(log |y - A x|, log size(x))`, where it bends most (Hansen 1992).

    Parameters
    ----------
    solve, y
        See the module.
    parameters
        Five or more > 0, rising.
    size
        What the regularisation holds small: `A.domain.norm`, or a prior. > 0.
    """
    at = np.log([positive("parameters", p) for p in parameters])
    if at.size < 5 or (np.diff(at) <= 0).any():
        raise ValueError(f"parameters are {list(parameters)}; they are five or more, rising")
    results = [solve(y, float(p)) for p in parameters]
    rho = np.log([float(result.residual_history[-1]) for result in results])
    eta = np.log([float(size(result.solution)) for result in results])
    d_rho, d_eta = np.gradient(rho, at), np.gradient(eta, at)
    bend = d_rho * np.gradient(d_eta, at) - d_eta * np.gradient(d_rho, at)
    curvature = bend / np.maximum((d_rho**2 + d_eta**2) ** 1.5, 1e-300)
    curvature[[0, -1]] = -np.inf  # one-sided differences make corners of their own
    keys = [float(p) for p in parameters]
    scores = dict(zip(keys, (-curvature).tolist(), strict=True))
    return _least(scores, dict(zip(keys, results, strict=True)))


def generalized_cross_validation(
    A: LinearOperator, solve: Solver, y: Any, parameters: Sequence[float], *, probes: int = 4,
    seed: int = 0,
) -> ParameterChoice:  # fmt: skip
    """The parameter of the least `n |y - A x|^2 / (n - trace)^2` (Golub, Heath, Wahba 1979).

    The trace of the linear map from y to A x is estimated with random signs (Girard 1989), one
    more solve a probe.

    Parameters
    ----------
    A
        The operator of `solve`, its codomain one real array.
    solve, y, parameters
        See the module; the solution is linear in y.
    probes, seed
        How many random vectors, and their seed.
    """
    n = _real_space(A).size
    signs = [_signs(A, y, seed + k) for k in range(positive_count("probes", probes))]
    scores, results = {}, {}
    for p in map(float, parameters):
        results[p] = solve(y, p)
        traces = [_inner(A, b, A @ solve(b, p).solution) for b in signs]
        freedom = n - sum(traces) / len(traces)
        square = float(results[p].residual_history[-1]) ** 2
        scores[p] = n * square / freedom**2 if freedom > 0 else math.inf
    return _least(scores, results)


def sure(
    A: LinearOperator, solve: Solver, y: Any, sigma: float, parameters: Sequence[float], *,
    step: float | None = None, seed: int = 0,
) -> ParameterChoice:  # fmt: skip
    """The parameter of the least unbiased estimate of `|A x - A truth|^2` (Stein 1981).

    `|y - A x|^2 - n sigma^2 + 2 sigma^2 div`, the divergence of A x in y from one random
    direction (Ramani, Blu, Unser 2008), one more solve.

    Parameters
    ----------
    A
        The operator of `solve`, its codomain one real array.
    solve, y, parameters
        See the module; the solution need not be linear in y.
    sigma
        Deviation of the noise of y, white and Gaussian.
    step
        Length of the change of y, `sigma / 10` by default.
    seed
        Of the direction.
    """
    n, sigma = _real_space(A).size, positive("sigma", sigma)
    length = sigma / 10 if step is None else positive("step", step)
    b = _signs(A, y, seed)
    scores, results = {}, {}
    for p in map(float, parameters):
        results[p] = solve(y, p)
        near = solve(add_scaled(y, np.asarray(length), b), p).solution
        moved = A @ subtract(near, results[p].solution)
        divergence = _inner(A, b, moved) / length
        square = float(results[p].residual_history[-1]) ** 2
        scores[p] = square - n * sigma**2 + 2 * sigma**2 * divergence
    return _least(scores, results)


def _least(scores: dict[float, float], results: dict[float, SolverResult]) -> ParameterChoice:
    if not scores:
        raise ValueError("parameters is empty; pass those to try")
    best = min(scores, key=lambda p: scores[p])
    return ParameterChoice(best, results[best], list(scores), list(scores.values()))


def _real_space(A: LinearOperator) -> Space:
    space = A.codomain
    if not isinstance(space, Space) or space.is_complex:
        raise ValueError(f"measurements are one real array, got {space} of {A.name}")
    return space


def _signs(A: LinearOperator, y: Any, seed: int) -> Any:
    """Random signs like y."""
    drawn: Any = A.codomain.random(seed, y)
    xp = arrays.namespace(drawn)
    return xp.where(drawn > 0, xp.ones_like(drawn), -xp.ones_like(drawn))


def _inner(A: LinearOperator, a: Any, b: Any) -> float:
    return float(products((A.codomain, a, b))[0])
