"""Conjugate gradients on the normal equations (CGLS; Hestenes, Stiefel 1952; Bjorck 1996)."""

from __future__ import annotations

from typing import Any

import numpy as np

from linops import arrays
from linops.operator import LinearOperator
from solvers.compiled import LONGEST, noted
from solvers.controls import non_negative
from solvers.elements import (
    add_scaled,
    chosen,
    first,
    products,
    ratio,
    subtract,
    sums,
)
from solvers.loop import Run, no_graph
from solvers.result import BREAKDOWN, LEAST_SQUARES_REACHED, SolverResult

__all__ = ["cgls"]

_REFRESH = LONGEST


@no_graph()
def cgls(
    A: LinearOperator,
    y: Any,
    *,
    iterations: int,
    x0: Any = None,
    damp: float = 0.0,
    rtol: float = 0.0,
    atol: float = 0.0,
    normal_rtol: float = 0.0,
    callback: Any = None,
    progress: bool = False,
    checkpoint_directory: Any = None,
    resume: Any = None,
    checkpoint_every: int = 1,
    keep: int | None = None,
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
    rtol, atol
        Ends where `|y - A x| <= atol + rtol |y|`, at the start too.
    normal_rtol
        Ends where `|A.H r - damp^2 x| <= normal_rtol |A.H y|`: what inconsistent data can reach.
    callback
        `callback(iteration, residual, solution)` after each iteration, counted from 1; `False`
        ends the solve.
    progress
        Whether to draw a bar (needs tqdm).
    checkpoint_directory, resume, checkpoint_every, keep
        Where to save steps; a directory, step or rank's folder to go on from; how often; how
        many to keep (None: all).

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
    run = Run(
        "cgls",
        A,
        y,
        iterations=iterations,
        x0=x0,
        rtol=rtol,
        atol=atol,
        callback=callback,
        progress=progress,
        checkpoint_directory=checkpoint_directory,
        resume=resume,
        checkpoint_every=checkpoint_every,
        keep=keep,
        settings={"damp": damp},
        tolerances={"normal_rtol": normal_rtol},
    )
    square = damp * damp
    rows, columns = A.codomain, A.domain

    def normal(r: Any, x: Any) -> Any:
        s = A.H @ r
        return add_scaled(s, np.asarray(-square), x) if square else s

    run.keeps(x=columns, r=rows, p=columns)
    if run.restored is None:
        x = run.x
        r = subtract(run.y, A @ x) if run.started else run.y
        rr, yy = products((rows, r, r), (rows, run.y, run.y))
        run.begin(np.sqrt(rr), np.sqrt(yy))
        s = p = normal(r, x) if run.going else x
        (g,) = products((columns, s, s))
    else:
        x, r, p = (run.restored[name] for name in ("x", "r", "p"))
        g = np.asarray(run.restored["g"], np.float64)
        run.x = x
        run.begin(run.history[-1])
    bound = np.zeros(run.batch)
    if normal_rtol and run.going:
        bound = np.sqrt(g)
        if run.started or run.restored is not None:
            back = A.H @ run.y
            bound = np.sqrt(products((columns, back, back))[0])
        bound = normal_rtol * bound
        run.stop(np.sqrt(g) <= bound, LEAST_SQUARES_REACHED, True)

    def saved() -> dict[str, Any]:
        return {"x": x, "r": r, "p": p, "g": g}

    several = columns.compiled(_several)
    while run.going:
        plain = run.ahead(_REFRESH - 1 - run.iteration % _REFRESH)
        if several is not None and plain:
            (x, r, p, g), made, history = several(
                A, (x, r, p, g), plain, run.active, run.bound, bound if normal_rtol else None,
                square or None,
            )  # fmt: skip
            g = np.asarray(g, np.float64)
            for rr in np.asarray(history, np.float64)[: int(made)]:
                run.completed(np.sqrt(rr), x, saved)
            if made == plain:
                continue
        run.stop(g == 0, BREAKDOWN, False)
        if not run.going:
            break
        q = A @ p
        if square:
            qq, pp = products((rows, q, q), (columns, p, p))
            curvature = qq + square * pp
        else:
            (curvature,) = products((rows, q, q))
        run.stop(curvature == 0, BREAKDOWN, False)
        if not run.going:
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.where(run.active, g / curvature, 0.0)
        x = add_scaled(x, step, p)
        refreshed = (run.iteration + 1) % _REFRESH == 0
        r = subtract(run.y, A @ x) if refreshed else add_scaled(r, -step, q)
        if run.last and not normal_rtol:
            (rr,) = products((rows, r, r))
            following = g
        else:
            s = normal(r, x)
            rr, following = products((rows, r, r), (columns, s, s))
        if not refreshed and np.any(run.active & (np.sqrt(rr) <= run.bound)):
            r = subtract(run.y, A @ x)
            if not (run.last and not normal_rtol):
                s = normal(r, x)
                (following,) = products((columns, s, s))
            (rr,) = products((rows, r, r))
        with np.errstate(divide="ignore", invalid="ignore"):
            turn = np.where(run.active & (g > 0), following / g, 0.0)
        if not run.last:
            p = add_scaled(s, turn, p)
        g = np.where(run.active, following, g)
        small = (np.sqrt(following) <= bound, LEAST_SQUARES_REACHED) if normal_rtol else None
        run.completed(np.sqrt(rr), x, saved, ended=small)
    run.x = x
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
    rows, columns = A.codomain, A.domain
    xp = arrays.namespace(first(state[0]))

    def body(k: Any, carried: Any) -> Any:
        *old, made, history, _ = carried
        x, r, p, g = old
        q = A @ p
        curvature, *more = sums((rows, q, q), *([(columns, p, p)] if square is not None else []))
        if more:
            curvature = curvature + square * more[0]
        step = ratio(g, curvature, active)
        x, r = add_scaled(x, step, p), add_scaled(r, -step, q)
        s = A.H @ r
        if square is not None:
            s = add_scaled(s, -square, x)
        rr, following = sums((rows, r, r), (columns, s, s))
        p = add_scaled(s, ratio(following, g, active), p)
        special = (xp.sqrt(rr) <= bound) | (g == 0) | (curvature == 0)
        if normal_bound is not None:
            special = special | (xp.sqrt(following) <= normal_bound)
        ends = xp.any(active & special)
        new = columns.pinned(x), rows.pinned(r), columns.pinned(p), xp.where(active, following, g)
        kept = [chosen(ends, a, b) for a, b in zip(old, new, strict=True)]
        return *kept, made + ~ends, noted(history, k, rr), ends

    (start,) = sums((rows, state[1], state[1]))
    history = xp.zeros((_REFRESH, *start.shape), dtype=start.dtype)
    g = arrays.cast(xp.asarray(state[3]), start.dtype)
    *made, count, history, _ = arrays.loop(
        count, body, (*state[:3], g, xp.asarray(0), history, xp.asarray(False)),
        going=lambda carried: ~carried[-1],
    )  # fmt: skip
    return tuple(made), count, history
