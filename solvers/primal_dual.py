"""The primal-dual hybrid gradient method (Chambolle, Pock 2011) for `f(K x) + g(x)`."""

from __future__ import annotations

import math
from typing import Any, Unpack

import numpy as np

from linops.functionals import Functional
from linops.linear_operator import LinearOperator
from solvers.controls import non_negative, positive_or_none
from solvers.decorator import Controls, solver
from solvers.elements import add_scaled, choose, products, scale, subtract, zeros
from solvers.minimization import begin_minimization, proximal
from solvers.result import SolverResult

__all__ = ["pdhg"]

_ROOM = 1.01


@solver("f", "K")
def pdhg(
    f: Functional,
    g: Functional | None,
    K: LinearOperator,
    *,
    iterations: int,
    x0: Any = None,
    tau: float | None = None,
    sigma: float | None = None,
    adaptive: bool = False,
    strong_convexity: float = 0.0,
    **controls: Unpack[Controls],
) -> SolverResult:
    """Minimise `f(K x) + g(x)`, both with proximal maps.

    Parameters
    ----------
    f
        A functional on the codomain of K; `separable([...])` on a stack.
    g
        A functional on the domain of K; None for 0.
    K
        A linear operator.
    iterations, x0
        As for `fista`.
    tau, sigma
        Steps of x and of the dual, `tau sigma |K|^2 <= 1`; one alone or neither given, they follow
        from `K.norm()`, equal where neither is.
    adaptive
        Balance the two steps by the primal and dual residuals (Goldstein, Li, Yuan, Esser,
        Baraniuk 2015, algorithm 2), `tau sigma` constant.
    strong_convexity
        gamma > 0 with `g - gamma |x|^2 / 2` convex: steps that converge as 1/k^2 (Chambolle, Pock
        2011, algorithm 2).
    **controls
        The residual is that of the optimality conditions,
        `sqrt(|(x - x+) / tau - K.H (p - p+)|^2 + |(p - p+) / sigma - K (x - x+)|^2)`; the solve
        ends where it is at most `atol + rtol` times its first value.

    Returns
    -------
    SolverResult
        With histories `primal_residual`, `dual_residual` and `tau`.

    Raises
    ------
    NotImplementedError
        Where f or g has no proximal map.

    Examples
    --------
    >>> import numpy as np
    >>> import linops as lo
    >>> space = lo.Space(4, "float64")
    >>> g = lo.LeastSquares(space, np.array([0.0, 0.0, 4.0, 4.0]))
    >>> D = lo.Gradient(space)
    >>> found = pdhg(lo.L1(D.codomain), g, D, iterations=400)
    >>> print(found.solution.round(4))
    [0.5 0.5 3.5 3.5]
    """
    gamma = non_negative("strong_convexity", strong_convexity)
    tau, sigma = positive_or_none("tau", tau), positive_or_none("sigma", sigma)
    run = begin_minimization(
        "pdhg", K.domain, {"K": K, "f": f, "g": g}, x0, iterations,
        {"steps": [tau, sigma], "options": [bool(adaptive), gamma]}, controls,
    )  # fmt: skip
    rows, columns = K.codomain, K.domain
    data: Any = rows.lower(f)
    prior: Any = None if g is None else columns.lower(g)
    run.keep_state(x=columns, p=rows, steps=None)
    if run.restored is None:
        x = run.x
        p = zeros(rows, run.batch, x)
        tau, sigma = _steps(K, tau, sigma)
        balance = 0.5
    else:
        x, p = run.restored["x"], run.restored["p"]
        tau, sigma, balance = map(float, run.restored["steps"])
    image, back = K @ x, K.H @ p
    if run.restored is not None:
        run.begin(run.history[-1], run.history[1] if len(run.history) > 1 else run.history[0])
    while run.going:
        moved = proximal(prior, add_scaled(x, np.asarray(-tau), back), tau)
        theta, tau_next = 1.0, tau
        if gamma:
            theta = 1 / math.sqrt(1 + 2 * gamma * tau)
            tau_next, sigma = theta * tau, sigma / theta
        ahead = K @ moved
        bar = add_scaled(ahead, np.asarray(theta), subtract(ahead, image))
        dual = data.conjugate_prox(add_scaled(p, np.asarray(sigma), bar), sigma)
        back_next = K.H @ dual
        first = subtract(scale(1 / tau, subtract(x, moved)), subtract(back, back_next))
        second = subtract(scale(1 / sigma, subtract(p, dual)), scale(theta, subtract(image, ahead)))
        primal, slack = products((columns, first, first), (rows, second, second))
        x, p = choose(run.active, moved, x), choose(run.active, dual, p)
        image, back = choose(run.active, ahead, image), choose(run.active, back_next, back)
        if adaptive and not gamma:
            tau_next, sigma, balance = _balance(
                tau, sigma, balance, float(np.sum(np.sqrt(primal))), float(np.sum(np.sqrt(slack)))
            )
        tau = tau_next
        residual = np.sqrt(primal + slack)
        if not run.history:
            run.begin(residual, residual)

        def snapshot(x: Any = x, p: Any = p, steps: Any = (tau, sigma, balance)) -> dict[str, Any]:
            return {"x": x, "p": p, "steps": np.asarray(steps)}

        record = {
            "primal_residual": float(np.sqrt(np.sum(primal))),
            "dual_residual": float(np.sqrt(np.sum(slack))),
            "tau": tau,
        }
        run.record(residual, x, snapshot, record)
    if not run.history:
        run.begin(np.zeros(run.batch))
    return run.result()


def _steps(K: LinearOperator, tau: float | None, sigma: float | None) -> tuple[float, float]:
    if tau is not None and sigma is not None:
        return tau, sigma
    square = (_ROOM * float(K.norm())) ** 2 or 1.0
    if tau is not None:
        return tau, 1 / (tau * square)
    if sigma is not None:
        return 1 / (sigma * square), sigma
    return 1 / math.sqrt(square), 1 / math.sqrt(square)


def _balance(
    tau: float, sigma: float, balance: float, primal: float, dual: float
) -> tuple[float, float, float]:
    """Longer steps on the side that lags, by factors that tend to 1."""
    if primal > 1.5 * dual:
        return tau / (1 - balance), sigma * (1 - balance), balance * 0.95
    if dual > 1.5 * primal:
        return tau * (1 - balance), sigma / (1 - balance), balance * 0.95
    return tau, sigma, balance
