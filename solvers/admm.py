"""The alternating direction method of multipliers for `f(x) + sum_i g_i(K_i x)`.

Scaled form (Boyd, Parikh, Chu, Peleato, Eckstein 2011, sections 3.1 and 3.4), x by conjugate
gradients that start from the last x and need not converge (Eckstein, Yao 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from linops.arguments import describe, hold
from linops.errors import DTypeError
from linops.functionals import Functional
from linops.linear_operator import LinearOperator
from solvers.conjugate_gradients import conjugate_gradients
from solvers.controls import positive, positive_count
from solvers.decorator import Controls, solver
from solvers.elements import add_scaled, choose, each, products, scale, subtract, zeros
from solvers.minimization import begin_minimization
from solvers.result import SolverResult

__all__ = ["admm"]

_RELATIVE = 10.0
_FACTOR = 2.0


@solver("f")
def admm(
    f: Functional | None,
    terms: Sequence[tuple[Functional, LinearOperator]],
    *,
    iterations: int,
    x0: Any = None,
    rho: float = 1.0,
    adaptive: bool = True,
    inner_iterations: int = 10,
    **controls: Unpack[Controls],
) -> SolverResult:
    """Minimise `f(x) + sum_i g_i(K_i x)`, f quadratic, the g_i with proximal maps.

    Parameters
    ----------
    f
        A functional whose gradient is affine, such as `LeastSquares(A.codomain, y) @ A`; None for
        0. Data terms that are not quadratic belong among the terms.
    terms
        Pairs `(g_i, K_i)`; all K_i have one domain. `(g, Identity(space))` is a plain prior.
    iterations, x0
        As for `fista`.
    rho
        Penalty > 0 at the start.
    adaptive
        Keep the primal and the dual residual within a factor of 10 of each other (Boyd et al.,
        equation 3.13).
    inner_iterations
        Steps of conjugate gradients for x in each iteration.
    **controls
        The residual is `sqrt(sum |K_i x - z_i|^2 + |rho sum K_i.H (z_i - z_i-)|^2)`
        with the last z_i-; the solve ends where it is at most `atol + rtol` times its first value.

    Returns
    -------
    SolverResult
        With histories `primal_residual`, `dual_residual`, `rho`.

    Examples
    --------
    >>> import numpy as np
    >>> import linops as lo
    >>> space = lo.Space(3, "float64")
    >>> f = lo.LeastSquares(space, np.array([3.0, -0.5, 1.0]))
    >>> print(admm(f, [(lo.L1(space), lo.Identity(space))], iterations=60).solution.round(6))
    [ 2. -0.  0.]
    """
    pairs = _pairs(terms)
    operators = [K for _, K in pairs]
    space = operators[0].domain
    for K in operators[1:]:
        if K.domain.shape != space.shape:
            raise ValueError(
                f"the operators of admm's terms have one domain: {operators[0].name} has {space}, "
                f"{K.name} has {K.domain}"
            )
    rho = positive("rho", rho)
    inner = positive_count("inner_iterations", inner_iterations)
    parts: dict[str, Any] = {} if f is None else {"f": f}
    for i, (g, K) in enumerate(pairs):
        parts |= {f"K{i}": K, f"g{i}": g}
    run = begin_minimization(
        "admm", space, parts, x0, iterations,
        {"rho": rho, "options": [bool(adaptive), inner]}, controls,
    )  # fmt: skip
    priors: list[Any] = [K.codomain.lower(g) for g, K in pairs]
    spaces = [K.codomain for K in operators]
    names = [f"{kind}{i}" for i in range(len(pairs)) for kind in ("z", "u")]
    kept = [space for space in spaces for _ in range(2)]
    run.keep_state(x=space, rho=None, **dict(zip(names, kept, strict=True)))
    if run.restored is None:
        x = run.x
        zs = [K @ x for K in operators]
        us = [zeros(K.codomain, run.batch, x) for K in operators]
    else:
        x, rho = run.restored["x"], float(run.restored["rho"])
        zs = [run.restored[f"z{i}"] for i in range(len(pairs))]
        us = [run.restored[f"u{i}"] for i in range(len(pairs))]
        run.begin(run.history[-1], run.history[1] if len(run.history) > 1 else run.history[0])
    origin = zeros(space, run.batch, x)
    shift: Any = None
    hessian: Any = None
    if f is not None:
        smooth: Any = space.lower(f)
        slope = smooth.gradient
        shift = slope(origin)
        hessian = slope.jacobian(each(lambda part: part[(0,) * len(run.batch)], x))
    while run.going:
        right = None if shift is None else scale(-1.0, shift)
        for K, z, u in zip(operators, zs, us, strict=True):
            part = K.H @ subtract(z, u)
            right = scale(rho, part) if right is None else add_scaled(right, np.asarray(rho), part)

        def normal(x: Any, rho: float = rho) -> Any:
            total = None if hessian is None else hessian @ x
            for K in operators:
                part = K.H @ (K @ x)
                total = (
                    scale(rho, part) if total is None else add_scaled(total, np.asarray(rho), part)
                )
            return total

        moved = choose(run.active, conjugate_gradients(normal, right, x, space, inner), x)
        gaps, change, before = [], None, zs
        zs, images = [], [K @ moved for K in operators]
        for K, prior, image, u, old in zip(operators, priors, images, us, before, strict=True):
            z = prior.prox(add_scaled(image, np.asarray(1.0), u), 1 / rho)
            z = choose(run.active, z, old)
            part = K.H @ subtract(z, old)
            change = part if change is None else add_scaled(change, np.asarray(1.0), part)
            zs.append(z)
            gaps.append(subtract(image, z))
        us = [
            choose(run.active, add_scaled(u, np.asarray(1.0), gap), u)
            for u, gap in zip(us, gaps, strict=True)
        ]
        x = moved
        found = products(
            (space, change, change),
            *((rows, gap, gap) for rows, gap in zip(spaces, gaps, strict=True)),
        )
        dual, primal = rho * np.sqrt(found[0]), np.sqrt(np.sum(found[1:], axis=0))
        if not run.history:
            first = np.hypot(primal, dual)
            run.begin(first, first)
        record = {
            "primal_residual": float(np.linalg.norm(primal)),
            "dual_residual": float(np.linalg.norm(dual)),
            "rho": rho,
        }
        if adaptive:
            factor = 1.0
            if record["primal_residual"] > _RELATIVE * record["dual_residual"]:
                factor = _FACTOR
            elif record["dual_residual"] > _RELATIVE * record["primal_residual"]:
                factor = 1 / _FACTOR
            if factor != 1.0:
                rho *= factor
                us = [scale(1 / factor, u) for u in us]

        def snapshot(x: Any = x, zs: Any = zs, us: Any = us, rho: float = rho) -> dict[str, Any]:
            state: dict[str, Any] = {"x": x, "rho": np.asarray(rho)}
            for i, (z, u) in enumerate(zip(zs, us, strict=True)):
                state |= {f"z{i}": z, f"u{i}": u}
            return state

        run.record(np.hypot(primal, dual), x, snapshot, record)
    if not run.history:
        run.begin(np.zeros(run.batch))
    return run.result()


def _pairs(terms: Any) -> list[tuple[Any, Any]]:
    """The terms, each a functional and an operator.

    Raises
    ------
    DTypeError
        Naming what is neither.
    """
    listed = list(terms) if isinstance(terms, (tuple, list)) else []
    if not listed or any(not isinstance(one, (tuple, list)) or len(one) != 2 for one in listed):
        raise DTypeError(
            f"terms of admm is {describe(terms)}; it is a list of pairs [(g, K), ...] of a "
            "functional and a linear operator; (g, Identity(space)) is a plain prior"
        )
    return [
        (
            hold("Functional", g, "admm", f"terms[{i}][0]"),
            hold("LinearOperator", K, "admm", f"terms[{i}][1]"),
        )
        for i, (g, K) in enumerate(listed)
    ]
