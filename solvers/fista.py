"""Accelerated proximal gradients (FISTA; Beck, Teboulle 2009) for `f(x) + g(x)`."""

from __future__ import annotations

import math
from typing import Any, Unpack

import numpy as np

from linops import arrays
from linops.functionals import Functional
from solvers.compiled import iterate
from solvers.controls import non_negative, positive_or_none
from solvers.decorator import Controls, solver
from solvers.elements import add_scaled, choose, each, products, subtract
from solvers.loop import Solve
from solvers.minimization import begin_minimization, find_curvature, proximal
from solvers.result import SolverResult

__all__ = ["fista"]

_SHRINK = 0.5
_ROOM = 1.01


@solver("f")
def fista(
    f: Functional,
    g: Functional | None = None,
    *,
    iterations: int,
    x0: Any = None,
    step: float | None = None,
    backtracking: bool = False,
    restart: bool = True,
    strong_convexity: float = 0.0,
    **controls: Unpack[Controls],
) -> SolverResult:
    """Minimise `f(x) + g(x)`, f smooth, g with a proximal map.

    Parameters
    ----------
    f
        A functional with a gradient, such as `LeastSquares(A.codomain, y) @ A`.
    g
        A functional with a proximal map on the same domain: a norm, a constraint, a denoiser's.
    iterations
        The most to make; when resuming, in total.
    x0
        Start, an element of the domain, zero by default; leading batch axes are solved side by
        side.
    step
        Of the gradient. By default the inverse of the largest curvature of f at the start, from
        the norm of its Hessian; where f declares none, it is found by backtracking.
    backtracking
        Halve the step until `f` lies below its quadratic model; one more value of f an iteration.
    restart
        Forget the momentum where it points uphill (the gradient scheme of O'Donoghue, Candes
        2015, equation 12), for each member of a batch.
    strong_convexity
        mu >= 0 with `f - mu |x|^2 / 2` convex: the momentum is then constant (Nesterov 2004,
        scheme 2.2.11).
    **controls
        `rtol`, `atol`, `callback`, `progress`, `checkpoint_directory`, `resume`,
        `checkpoint_every`, `keep`, as for `cgls`. The residual is the length of the gradient
        mapping `(z - prox(z - s grad f(z))) / s`; the solve ends where it is at most
        `atol + rtol` times its value at the start.

    Returns
    -------
    SolverResult
        With backtracking a history `step`.

    Raises
    ------
    TypeError, NotImplementedError
        Where f has no gradient or g no proximal map.

    Examples
    --------
    >>> import numpy as np
    >>> import linops as lo
    >>> space = lo.Space(3, "float64")
    >>> f = lo.LeastSquares(space, np.array([3.0, -0.5, 1.0]))
    >>> print(fista(f, lo.L1(space), iterations=20).solution)
    [2. 0. 0.]
    """
    mu = non_negative("strong_convexity", strong_convexity)
    step = positive_or_none("step", step)
    run = begin_minimization(
        "fista", f.domain, {"f": f, "g": g}, x0, iterations,
        {"step": step, "options": [bool(backtracking), bool(restart), mu]}, controls,
    )  # fmt: skip
    prior = None if g is None else f.domain.lower(g)
    run.keep_state(x=f.domain, z=f.domain, t=None, step=None)
    if run.restored is None:
        x = z = run.x
        t, length = np.ones(run.batch), step
        if length is None:
            curvature = find_curvature(f, _member(run, x))
            backtracking = backtracking or not curvature
            length = 1.0 if not curvature else 1.0 / (_ROOM * curvature)
    else:
        x, z = run.restored["x"], run.restored["z"]
        t = np.asarray(run.restored["t"], np.float64)
        length = float(run.restored["step"])
        backtracking = backtracking or bool(run.histories.get("step"))
    residual = _mapping(f, prior, x, length)
    run.begin(residual, run.history[0] if run.history else residual)
    momentum = None
    if mu:
        q = math.sqrt(min(mu * length, 1.0))
        momentum = (1 - q) / (1 + q)
    if backtracking:
        return _backtrack(run, f, prior, x, z, t, length, momentum, restart)
    terms = f, prior, length, momentum, 1.0 if restart else None
    names = ("x", "z", "t", "step")
    return iterate(run, _accelerate, terms, (x, z, t, np.asarray(length)), names, measures=1)


def _accelerate(
    terms: tuple[Any, ...], state: tuple[Any, ...], active: Any, _: Any, dots: Any
) -> tuple[tuple[Any, ...], Any]:
    """One iteration with a fixed step: x, the point ahead, its counter, the step."""
    f, prior, length, momentum, restart = terms
    x, z, t, _ = state
    moved = proximal(prior, add_scaled(z, _like(-length, t), f.gradient(z)), length)
    return _advance(f.domain, x, z, t, moved, (length, momentum, restart), active, dots)


def _advance(
    space: Any, x: Any, z: Any, t: Any, moved: Any, how: tuple[Any, ...], active: Any, dots: Any
) -> tuple[tuple[Any, ...], Any]:
    length, momentum, restart = how
    xp = arrays.namespace(t)
    back, along = subtract(z, moved), subtract(moved, x)
    square, uphill = dots((space, back, back), (space, back, along))
    after = (1 + xp.sqrt(1 + 4 * t * t)) / 2
    share = (t - 1) / after if momentum is None else t * 0 + momentum
    if restart is not None:
        turns = xp.asarray(uphill) > 0
        share = xp.where(turns, share * 0, share)
        after = xp.where(turns, after * 0 + 1, after)
    ahead = add_scaled(moved, share, along)
    pin = space.home.pin
    x, z = pin(choose(active, moved, x)), pin(choose(active, ahead, z))
    return (x, z, after, _like(length, t)), [square / length**2]


def _backtrack(
    run: Solve,
    f: Any,
    prior: Any,
    x: Any,
    z: Any,
    t: Any,
    length: float,
    momentum: Any,
    restart: bool,
) -> SolverResult:
    """Steps that are shortened where f lies above its model; one step for all of a batch."""
    space = f.domain
    how_restart = 1.0 if restart else None
    while run.going:
        slope, value = f.gradient(z), np.asarray(f(z), np.float64)
        while True:
            moved = proximal(prior, add_scaled(z, np.asarray(-length), slope), length)
            along = subtract(moved, z)
            rise, square = products((space, slope, along), (space, along, along))
            model = value + rise + square / (2 * length)
            found = np.asarray(f(moved), np.float64)
            # Near the minimum both sides agree to rounding.
            room = (
                1e-6 * np.maximum(np.abs(value), np.abs(found))
                if _is_single(space)
                else 1e-12 * np.abs(value)
            )
            if np.all(~run.active | (found <= model + room)) or length < 1e-30:
                break
            length *= _SHRINK
        state, measured = _advance(
            space, x, z, t, moved, (length, momentum, how_restart), run.active, products
        )
        x, z, t, _ = state

        def snapshot(state: tuple[Any, ...] = state, length: float = length) -> dict[str, Any]:
            return {"x": state[0], "z": state[1], "t": state[2], "step": np.asarray(length)}

        run.record(np.sqrt(measured[0]), x, snapshot, {"step": length})
    return run.result()


def _mapping(f: Any, prior: Any, x: Any, length: float) -> np.ndarray:
    """The length of the gradient mapping at x."""
    moved = proximal(prior, add_scaled(x, np.asarray(-length), f.gradient(x)), length)
    back = subtract(x, moved)
    return np.asarray(np.sqrt(products((f.domain, back, back))[0]) / length)


def _member(run: Solve, x: Any) -> Any:
    """The first member of a batch."""
    if not run.batch:
        return x
    return each(lambda part: part[(0,) * len(run.batch)], x)


def _like(value: Any, t: Any) -> Any:
    return value + t * 0


def _is_single(space: Any) -> bool:
    return any(np.finfo(member.dtype).eps > 1e-10 for member in space.members)
