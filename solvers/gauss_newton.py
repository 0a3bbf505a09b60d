"""Damped Gauss-Newton steps for nonlinear least squares (Levenberg 1944, Marquardt 1963)."""

from __future__ import annotations

import math
from typing import Any, Unpack

import numpy as np

from linops.operator import Operator
from solvers.cgls import cgls
from solvers.controls import non_negative, positive_count
from solvers.decorator import Controls, solver
from solvers.elements import add_scaled, products, subtract
from solvers.loop import Solve
from solvers.result import BREAKDOWN, SolverResult

__all__ = ["gauss_newton"]

_EASE, _TIGHTEN = 1 / 3, 4.0
_FIRST = 1e-3


@solver("N")
def gauss_newton(
    N: Operator,
    y: Any,
    *,
    iterations: int,
    x0: Any = None,
    damping: float | None = None,
    inner_iterations: int = 20,
    inner_rtol: float = 0.0,
    **controls: Unpack[Controls],
) -> SolverResult:
    """Minimise `|y - N(x)|^2 / 2` for a nonlinear N.

    Each iteration solves `min |r - J d|^2 + mu |d|^2` for the change d, with the residual r and
    the Jacobian J of where x stands. A change that lowers the residual is taken, and mu falls to a
    third; another is not, and mu grows fourfold.

    Parameters
    ----------
    N
        An operator with a Jacobian; its spaces may be complex, or products.
    y
        Measurements, an element of the codomain, without batch axes.
    iterations
        The most to make, changes that are not taken included; when resuming, in total.
    x0
        Start, zero by default.
    damping
        mu >= 0 at the start, by default a thousandth of `|J.H r|^2 / |r|^2`, a size of `|J|^2`;
        0 is kept until a change fails.
    inner_iterations, inner_rtol
        The most steps of `cgls` for a change, and the `normal_rtol` at which they end.
    **controls
        The residual is `|y - N(x)|`.

    Returns
    -------
    SolverResult
        With a history `damping`; the residual never rises.

    Examples
    --------
    >>> import numpy as np
    >>> import linops as lo
    >>> print(gauss_newton(lo.Exp(lo.Space(2, "float64")), np.array([1.0, 2.0]), iterations=9)
    ...       .solution.round(6))
    [0.       0.693147]
    """
    mu = None if damping is None else non_negative("damping", damping)
    inner = positive_count("inner_iterations", inner_iterations)
    inner_rtol = non_negative("inner_rtol", inner_rtol)
    problem: Any = N
    run = Solve(
        "gauss-newton", problem, y, iterations=iterations, x0=x0,
        settings={"damping": mu, "inner": [inner, inner_rtol]}, **controls,
    )  # fmt: skip
    if run.batch:
        raise ValueError(f"gauss_newton takes no batch axes, got {run.batch}; solve one by one")
    rows, columns = N.codomain, N.domain
    run.keep_state(x=columns, mu=None)
    x = run.x
    if run.restored is not None:
        mu = float(run.restored["mu"])
    r = subtract(run.y, N(x))
    rr = run.begin_at(r)
    J = None
    while run.going:
        if J is None:
            J = N.jacobian(x)
            slope = J.H @ r
            (steep,) = products((columns, slope, slope))
            if not steep:
                run.stop(run.active, BREAKDOWN, False)
                break
            least = _FIRST * float(steep) / float(rr)
            mu = least if mu is None else mu
        assert mu is not None
        d = cgls(J, r, iterations=inner, damp=math.sqrt(mu), normal_rtol=inner_rtol).solution
        moved = add_scaled(x, np.asarray(1.0), d)
        with np.errstate(over="ignore", invalid="ignore"):  # a change too long is not taken
            after = subtract(run.y, N(moved))
            (square,) = products((rows, after, after))
        record = {"damping": mu}
        if square < rr:  # not where it is no number
            x, r, rr, J, mu = moved, after, square, None, mu * _EASE
        else:
            mu = max(mu * _TIGHTEN, least)
        run.record(np.sqrt(rr), x, lambda x=x, mu=mu: {"x": x, "mu": np.asarray(mu)}, record)  # type: ignore[misc]
    return run.result()
