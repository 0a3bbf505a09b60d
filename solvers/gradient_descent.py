"""Gradient steps: of any functional, and Landweber's for least squares."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from linops.functionals import Functional, LeastSquares
from linops.linear_operator import LinearOperator
from solvers.controls import bounds_pair, positive_or_none
from solvers.decorator import Controls, solver
from solvers.elements import (
    add_scaled,
    admit,
    choose,
    clip,
    each,
    products,
    ratio,
    scale,
    subtract,
)
from solvers.loop import Solve
from solvers.minimization import begin_minimization, find_curvature
from solvers.result import SolverResult

__all__ = ["gradient_descent", "landweber"]

_ROOM = 1.01


@solver("f")
def gradient_descent(
    f: Functional,
    *,
    iterations: int,
    x0: Any = None,
    step: float | None = None,
    barzilai_borwein: bool = False,
    bounds: tuple[float | None, float | None] | None = None,
    **controls: Unpack[Controls],
) -> SolverResult:
    """Minimise a smooth `f(x)`, within bounds, by projected gradient steps.

    Parameters
    ----------
    f
        A functional with a gradient.
    iterations, x0
        As for `fista`.
    step
        By default the inverse of the curvature of f at the start; required where f declares no
        second derivative.
    barzilai_borwein
        Steps `|s|^2 / <s, d>` from the last changes s of x and d of the gradient (Barzilai,
        Borwein 1988, their second formula), for each member of a batch.
    bounds
        `(low, high)`, None where there is no bound.
    **controls
        The residual is the length of the projected gradient.

    Returns
    -------
    SolverResult
    """
    low, high = bounds_pair(bounds)
    length = positive_or_none("step", step)
    run = begin_minimization(
        "gradient-descent", f.domain, {"f": f}, x0, iterations,
        {"step": length, "options": [bool(barzilai_borwein), low, high]}, controls,
    )  # fmt: skip
    space = f.domain
    return _descend(run, f.gradient, space, length, barzilai_borwein, low, high, f)


@solver("A")
def landweber(
    A: LinearOperator,
    y: Any,
    *,
    iterations: int,
    x0: Any = None,
    step: float | None = None,
    weights: Any = None,
    barzilai_borwein: bool = False,
    bounds: tuple[float | None, float | None] | None = None,
    **controls: Unpack[Controls],
) -> SolverResult:
    """Minimise `|y - A x|^2_W / 2` by `x + step A.H W (y - A x)` (Landweber 1951), within bounds.

    Parameters
    ----------
    A
        A linear operator.
    y
        Measurements, an element of the codomain; leading batch axes are solved side by side.
    iterations, x0
        As for `cgls`.
    step
        At most `2 / |A|^2_W`; by default the inverse of that norm's square.
    weights
        Statistical weights >= 0, an array of the codomain's shape.
    barzilai_borwein, bounds
        As for `gradient_descent`.
    **controls
        The residual is `|y - A x|`, the solve ends where it is at most
        `atol + rtol |y|`.

    Returns
    -------
    SolverResult
    """
    low, high = bounds_pair(bounds)
    length = positive_or_none("step", step)
    W = None
    if weights is not None:
        W = admit(weights, A.codomain, "weights", like=y)
        parts = W if isinstance(W, tuple) else (W,)
        for part, member in zip(parts, A.codomain.members, strict=True):
            LeastSquares(member, weights=part)  # refuses weights that cannot be
    run = Solve(
        "landweber", A, y, iterations=iterations, x0=x0,
        settings={"step": length, "weights": W, "options": [bool(barzilai_borwein), low, high]},
        **controls,
    )  # fmt: skip
    rows, columns = A.codomain, A.domain
    run.keep_state(x=columns, before=columns, slope=columns, step=None)
    if run.restored is None:
        x = before = run.x
        slope: Any = None
    else:
        x, before, slope = (run.restored[name] for name in ("x", "before", "slope"))
        length = float(np.max(run.restored["step"]))
    r = run.first_residual()
    run.begin_at(r)
    if length is None and run.going:
        norm = float((A.gram(W) if W is not None else A.gram()).norm())
        length = 1.0 / (_ROOM * norm) if norm else 1.0
    while run.going:
        assert length is not None
        after = scale(-1.0, A.H @ (r if W is None else each(lambda w, r: w * r, W, r)))
        pace = np.full(run.batch, length)
        if barzilai_borwein and slope is not None:
            pace = _spectral_step(columns, subtract(x, before), subtract(after, slope), length)
        moved = _within(add_scaled(x, -pace, after), low, high)
        before, slope = x, after
        x = choose(run.active, moved, x)
        r = subtract(run.y, A @ x)
        (rr,) = products((rows, r, r))

        def snapshot(x: Any = x, before: Any = before, slope: Any = slope) -> dict[str, Any]:
            return {"x": x, "before": before, "slope": slope, "step": np.asarray(length)}

        run.record(np.sqrt(rr), x, snapshot)
    return run.result()


def _descend(
    run: Solve,
    gradient: Any,
    space: Any,
    length: float | None,
    spectral: bool,
    low: float | None,
    high: float | None,
    f: Any,
) -> SolverResult:
    run.keep_state(x=space, before=space, slope=space, step=None)
    if run.restored is None:
        x = before = run.x = _within(run.x, low, high)
        if length is None:
            curvature = find_curvature(f, each(lambda part: part[(0,) * len(run.batch)], x))
            if not curvature:
                raise ValueError(
                    f"gradient_descent finds no step for {f.name}, which declares no curvature at "
                    "the start; pass step="
                )
            length = 1.0 / (_ROOM * curvature)
        old: Any = None
    else:
        x, before, old = (run.restored[name] for name in ("x", "before", "slope"))
        length = float(run.restored["step"])
    slope = gradient(x)
    residual = _projected_norm(space, x, slope, length, low, high)
    run.begin(residual, run.history[0] if run.history else residual)
    while run.going:
        pace = np.full(run.batch, length)
        if spectral and old is not None:
            pace = _spectral_step(space, subtract(x, before), subtract(slope, old), length)
        moved = _within(add_scaled(x, -pace, slope), low, high)
        before, old = x, slope
        x = choose(run.active, moved, x)
        slope = gradient(x)
        residual = _projected_norm(space, x, slope, length, low, high)

        def snapshot(x: Any = x, before: Any = before, old: Any = old) -> dict[str, Any]:
            return {"x": x, "before": before, "slope": old, "step": np.asarray(length)}

        run.record(residual, x, snapshot)
    return run.result()


def _spectral_step(space: Any, along: Any, turned: Any, usual: float) -> np.ndarray:
    square, both = products((space, along, along), (space, along, turned))
    good = both > 0
    return np.where(good, ratio(square, both, good), usual)


def _projected_norm(
    space: Any, x: Any, slope: Any, length: float, low: float | None, high: float | None
) -> np.ndarray:
    if low is None and high is None:
        return np.asarray(np.sqrt(products((space, slope, slope))[0]))
    back = subtract(x, _within(add_scaled(x, np.asarray(-length), slope), low, high))
    return np.asarray(np.sqrt(products((space, back, back))[0]) / length)


def _within(x: Any, low: float | None, high: float | None) -> Any:
    return each(lambda part: clip(part, low, high), x)
