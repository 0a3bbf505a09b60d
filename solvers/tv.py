"""Total-variation reconstruction with x >= 0, by Adam or by a primal-dual method.

    |A x - y|^2_W / (2 N) + weight * mean-TV(x),   x >= 0

N is the number of measurements, TV that of `linops.functionals.TotalVariation`. Adam (Kingma,
Ba 2015) is a quick descent with steps of one size; the primal-dual method (Chambolle, Pock
2011) finds the minimum and says how far off it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from linops import arrays
from linops.arguments import checking
from linops.functionals import TotalVariation
from linops.operator import LinearOperator
from linops.space import Space
from solvers.compiled import iterate
from solvers.controls import non_negative, positive
from solvers.elements import (
    add_scaled,
    admit,
    chosen,
    products,
    require_finite,
    subtract,
)
from solvers.loop import Run, no_graph
from solvers.pdhg import primal_dual
from solvers.result import SolverResult

__all__ = ["tv"]

_EPS = 1e-6


@no_graph()
@checking("A")
def tv(
    A: LinearOperator,
    y: Any,
    *,
    iterations: int,
    x0: Any = None,
    weight: float = 1.0,
    method: str = "adam",
    learning_rate: float = 0.1,
    spacing: float | Sequence[float] | None = None,
    weights: Any = None,
    rtol: float = 0.0,
    atol: float = 0.0,
    callback: Any = None,
    progress: bool = False,
    checkpoint_directory: Any = None,
    resume: Any = None,
    checkpoint_every: int = 1,
    keep: int | None = None,
) -> SolverResult:
    """Reconstruct with a total-variation prior and x >= 0.

    Parameters
    ----------
    A
        A linear operator between real spaces, its domain one array.
    y
        Measurements; leading batch axes are solved side by side.
    weight
        Of the prior, >= 0.
    method
        `"adam"` or `"pdhg"`.
    learning_rate
        Size of Adam's steps, in units of x.
    spacing
        Pitch of each axis in the prior; by default that of the domain.
    weights
        Statistical weights W >= 0, an array of the codomain's shape.
    iterations, x0, rtol, atol, callback, progress
        As for `cgls`.
    checkpoint_directory, resume, checkpoint_every, keep
        As for `cgls`.

    Returns
    -------
    SolverResult
        By PDHG with histories `objective` and `gap`. The gap bounds how far the objective lies
        above its minimum, as long as a minimiser lies in [0, 2 max x]. For a batch they are
        summed over its members.

    Raises
    ------
    ValueError
        For bad controls or measurements that are not finite, before A is applied.
    CheckpointError
        As for `cgls`.
    """
    weight = non_negative("weight", weight)
    learning_rate = positive("learning_rate", learning_rate)
    if method not in ("adam", "pdhg"):
        raise ValueError(f"method is {method!r}; it is 'adam' or 'pdhg'")
    if not (isinstance(A.domain, Space) and isinstance(A.codomain, Space)):
        raise ValueError("tv takes an operator between single arrays; stack terms by concat")
    if A.domain.is_complex or A.codomain.is_complex:
        raise ValueError(f"tv wants real values, got {A.domain} -> {A.codomain}")
    prior = TotalVariation(A.domain, spacing, eps=_EPS, reduction="mean")
    W = None
    if weights is not None:
        W = admit(weights, A.codomain, "weights", like=y)
        require_finite(W, "weights")
        if arrays.item(arrays.namespace(W).any(W < 0)):
            raise ValueError("weights holds negative entries; they are >= 0")
    settings = {"weight": weight, "spacing": list(prior.spacing), "weights": W}
    if method == "adam":
        settings["learning_rate"] = learning_rate
    run = Run(
        f"tv-{method}",
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
        settings=settings,
    )
    if method == "pdhg":
        return primal_dual(run, prior, weight, W)
    return _adam(run, prior, weight, W, learning_rate)


def _adam(
    run: Run, prior: TotalVariation, weight: float, W: Any, learning_rate: float
) -> SolverResult:
    A, y = run.A, run.y
    N = max(A.codomain.size, 1)
    edges: Any = A.domain.lower(prior)
    run.keeps(x=A.domain, m=A.domain, v=A.domain)
    if run.restored is None:
        x = run.x
        m = v = arrays.namespace(x).zeros_like(x)
        r = subtract(A @ x, y) if run.started else -y
    else:
        x, m, v = (run.restored[name] for name in ("x", "m", "v"))
        r = subtract(A @ x, y)
        run.x = x
    rr, yy = products((A.codomain, r, r), (A.codomain, y, y))
    run.begin(np.sqrt(rr), np.sqrt(yy))
    terms = A, edges.gradient if weight else None, y, W, 1.0 / N, np.asarray(weight)

    def table(k: np.ndarray) -> np.ndarray:
        """Step lengths and the bias corrections of the second moments."""
        return np.stack([learning_rate / (1 - 0.9**k), 1 - 0.999**k], axis=-1)

    return iterate(run, _moved, terms, (x, m, v, r), ("x", "m", "v"), table=table)


def _moved(
    terms: tuple[Any, ...], state: tuple[Any, ...], active: Any, at: Any, dots: Any
) -> tuple[tuple[Any, ...], Any]:
    """One iteration: x, its first and second moments, and A x - y; and |A x - y|^2."""
    A, slope, y, W, share, weight = terms
    x, m, v, r = state
    rate, correction = at
    xp = arrays.namespace(x)
    g = (A.H @ (r if W is None else W * r)) * share
    if slope is not None:
        g = add_scaled(g, weight, slope(x))
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * (g * g)
    moved = x - rate * m / (xp.sqrt(v * (1.0 / correction)) + 1e-8)
    moved = xp.where(moved > 0, moved, xp.zeros_like(moved))
    x, m, v = map(A.domain.pinned, (chosen(active, moved, x), m, v))
    r = A.codomain.pinned(subtract(A @ x, y))
    return (x, m, v, r), dots((A.codomain, r, r))
