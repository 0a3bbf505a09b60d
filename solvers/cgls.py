"""Conjugate gradients on the normal equations (CGLS; Hestenes, Stiefel 1952; Bjorck 1996)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from linops import arrays
from linops.linear_operator import LinearOperator
from solvers.compiled import LONGEST, steps
from solvers.controls import non_negative
from solvers.decorator import Controls, solver
from solvers.elements import (
    add_scaled,
    choose,
    first,
    fits_float32,
    narrow,
    products,
    ratio,
    scale,
    subtract,
    sums,
)
from solvers.implicit import AdjointSolve
from solvers.loop import Solve
from solvers.result import BREAKDOWN, LEAST_SQUARES_REACHED, SolverResult

__all__ = ["cgls"]

_REFRESH = LONGEST


def _differentiate(
    *, iterations: int, damp: float = 0.0, normal_rtol: float = 0.0, **_: Any
) -> Callable[[LinearOperator, Any, Any], AdjointSolve]:
    """`A (A.H A + damp^2)^-1 v` is the minimiser u of `|v - A.H u|^2 + damp^2 |u|^2`."""

    def solve(A: LinearOperator, y: Any) -> Any:
        return cgls(A, y, iterations=iterations, damp=damp, normal_rtol=normal_rtol).solution

    def adjoint(A: LinearOperator, x: Any, v: Any) -> AdjointSolve:
        u = solve(A.H, v)

        def direction() -> Any:
            return scale(1 / damp**2, subtract(v, A.H @ u)) if damp else solve(A, u)

        return AdjointSolve(u, direction, lambda r: r)

    return adjoint


@solver("A", derivative=_differentiate)
def cgls(
    A: LinearOperator,
    y: Any,
    *,
    iterations: int,
    x0: Any = None,
    damp: float = 0.0,
    normal_rtol: float = 0.0,
    **controls: Unpack[Controls],
) -> SolverResult:
    """Minimise `|y - A x|^2 + damp^2 |x|^2`.

    Parameters
    ----------
    A
        Any linear operator; its spaces may be complex, or products.
    y
        Measurements, an element of the codomain; leading batch axes are solved side by side,
        each member with its own steps and its own end.
    iterations
        The most to make; when resuming, in total.
    x0
        Start, zero by default.
    damp
        Tikhonov parameter.
    normal_rtol
        Ends where `|A.H r - damp^2 x| <= normal_rtol |A.H y|`: what inconsistent data can reach.
    **controls
        The residual is `|y - A x|`.

    Returns
    -------
    SolverResult

    Raises
    ------
    ValueError
        For bad controls or measurements that are not finite, before A is applied.
    CheckpointError
        Where a checkpoint belongs to another solve, is damaged, or would be overwritten.

    Notes
    -----
    The residual is recomputed from `y - A x` every 50 iterations and before convergence is
    claimed, so the history is that of true residuals.
    """
    damp = non_negative("damp", damp)
    normal_rtol = non_negative("normal_rtol", normal_rtol)
    run = Solve(
        "cgls",
        A,
        y,
        iterations=iterations,
        x0=x0,
        settings={"damp": damp},
        tolerances={"normal_rtol": normal_rtol},
        **controls,
    )
    square = np.asarray(damp * damp) if damp else None
    rows, columns = A.codomain, A.domain
    run.keep_state(x=columns, r=rows, p=columns, g=None)
    if run.restored is None:
        x, r = run.x, run.first_residual()
        run.begin_at(r)
        p = _normal(A, x, r, square) if run.going else x
        (g,) = products((columns, p, p))
    else:
        x, r, p = (run.restored[name] for name in ("x", "r", "p"))
        g = np.asarray(run.restored["g"], np.float64)
        run.begin(run.history[-1])
    bound = np.zeros(run.batch)
    if normal_rtol and run.going:
        bound = np.sqrt(g)
        if run.started or run.restored is not None:
            back = A.H @ run.y
            bound = np.sqrt(products((columns, back, back))[0])
        bound = normal_rtol * bound
        run.stop(np.sqrt(g) <= bound, LEAST_SQUARES_REACHED, True)

    def snapshot() -> dict[str, Any]:
        return {"x": x, "r": r, "p": p, "g": g}

    def close() -> tuple[np.ndarray, Any, np.ndarray]:
        """|r|^2 now, and the next p and its g where they are asked for."""
        if run.last and not normal_rtol:
            return products((rows, r, r))[0], p, g
        return _turn(A, (x, r, p, g), run.active, square, products)

    several = columns.home.compile(_several)
    rr = run.history[-1] ** 2
    if narrow(first(x)) and not all(map(fits_float32, (rr, g, g * ratio(g, rr, rr > 0)))):
        several = None  # no traced scalar would hold such squares
    while run.going:
        plain = run.ahead(_REFRESH - 1 - run.iteration % _REFRESH)
        if several is not None and plain:
            (x, r, p, g), made, notes = several(
                A, (x, r, p, g), plain, run.active, run.bound, bound if normal_rtol else None,
                square,
            )  # fmt: skip
            g = np.asarray(g, np.float64)
            for (rr,) in np.asarray(notes, np.float64)[: int(made)]:
                run.record(np.sqrt(rr), x, snapshot)
            if made == plain:
                continue
        run.stop(g == 0, BREAKDOWN, False)
        if not run.going:
            break
        refreshed = (run.iteration + 1) % _REFRESH == 0
        along, reduced, curvature = _along(A, (x, r, p, g), run.active, square, products)
        run.stop(curvature == 0, BREAKDOWN, False)
        if not run.going:
            break
        x, r = along, subtract(run.y, A @ along) if refreshed else reduced
        rr, following, turned = close()
        if not refreshed and np.any(run.active & (np.sqrt(rr) <= run.bound)):
            r = subtract(run.y, A @ x)
            rr, following, turned = close()
        p, g = following, turned
        small = (np.sqrt(g) <= bound, LEAST_SQUARES_REACHED) if normal_rtol else None
        run.record(np.sqrt(rr), x, snapshot, ended=small)
    return run.result()


def _several(
    A: LinearOperator,
    state: tuple[Any, Any, Any, Any],
    count: Any,
    active: Any,
    bound: Any,
    normal_bound: Any,
    square: Any,
) -> tuple[Any, Any, Any]:
    """At most `count` plain iterations as one loop: x, r, p, g, how many were made, and |r|^2.

    It ends before one after which a member converges or breaks down: that one is the host's.
    """
    pin, pin_rows = A.domain.home.pin, A.codomain.home.pin
    xp = arrays.namespace(first(state[0]))

    def step(_: Any, state: Any) -> Any:
        _, _, p, g = state
        x, r, curvature = _along(A, state, active, square, sums)
        rr, following, turned = _turn(A, (x, r, p, g), active, square, sums)
        ends = (g == 0) | (curvature == 0)
        if normal_bound is not None:
            ends = ends | (xp.sqrt(turned) <= normal_bound)
        return (pin(x), pin_rows(r), pin(following), turned), (rr,), ends

    *elements, g = state
    return steps(step, (*elements, xp.asarray(g)), count, active, bound, discard=True)


def _along(
    A: LinearOperator, state: tuple[Any, Any, Any, Any], active: Any, square: Any, dots: Any
) -> tuple[Any, Any, Any]:
    """x and r after the best step along p, and the curvature there."""
    x, r, p, g = state
    q = A @ p
    if square is None:
        (curvature,) = dots((A.codomain, q, q))
    else:
        qq, pp = dots((A.codomain, q, q), (A.domain, p, p))
        curvature = qq + square * pp
    length = ratio(g, curvature, active)
    return add_scaled(x, length, p), add_scaled(r, -length, q), curvature


def _turn(
    A: LinearOperator, state: tuple[Any, Any, Any, Any], active: Any, square: Any, dots: Any
) -> tuple[Any, Any, Any]:
    """|r|^2, the direction that follows p, and its g."""
    x, r, p, g = state
    s = _normal(A, x, r, square)
    rr, following = dots((A.codomain, r, r), (A.domain, s, s))
    return rr, add_scaled(s, ratio(following, g, active), p), choose(active, following, g)


def _normal(A: LinearOperator, x: Any, r: Any, square: Any) -> Any:
    """The residual of the normal equations."""
    s = A.H @ r
    return s if square is None else add_scaled(s, -square, x)
