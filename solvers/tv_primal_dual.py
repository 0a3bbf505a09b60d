"""The primal-dual hybrid gradient method for smoothed total variation with x >= 0.

Minimises N times the objective of `solvers.tv`,

    f(A x) + lam * sum over voxels of sqrt(|G x|^2 + eps),   f(z) = |z - y|^2_W / 2

by ascent in the duals p of A and q of G and descent in x (Chambolle, Pock 2011, algorithm 1,
with one dual step for each of the two operators).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from linops import arrays
from linops.functionals import TotalVariation
from solvers.compiled import iterate
from solvers.elements import choose, subtract
from solvers.loop import Solve
from solvers.result import SolverResult

__all__ = ["primal_dual"]

_SAFETY = 1.05
_NEWTON_STEPS = 6
_DATA_STEP = 0.25
_DATA_SHARE = 0.6


def primal_dual(
    run: Solve, prior: TotalVariation, weight: float, W: Any, begun: tuple[Any, Any]
) -> SolverResult:
    """Run the iteration on an admitted `run`; what `tv(method="pdhg")` does.

    `begun` is the start and its image under A.
    """
    A, y = run.A, run.y
    G: Any = A.domain.lower(prior.differences)
    xp = arrays.namespace(y)
    N, size = max(A.codomain.size, 1), max(A.domain.size, 1)
    lam = weight * N / size
    run.keep_state(x=A.domain, p=A.codomain, q=G.codomain)
    if run.restored is None:
        (x, z), p = begun, xp.zeros_like(y)
        edges = G @ x
        q = xp.zeros_like(edges)
    else:
        x, p, q = (run.restored[name] for name in ("x", "p", "q"))
        z, edges = A @ x, G @ x
    run.x = x
    run.begin_at(subtract(y, z))
    if not run.going:
        return run.result()
    # f* has curvature 1 / W, so a dual step in proportion to W is of the right size whatever the
    # units. The two shares of the step's budget were tuned on small scans.
    norm = float(A.norm()) * _SAFETY
    (space,) = prior.domain.members
    pitches = zip(space.shape, prior.spacing, strict=True)
    edge = math.sqrt(sum(4.0 / h**2 for n, h in pitches if n > 1))
    top = 1.0 if W is None else max(arrays.item(xp.max(W)), 1e-30)
    sigma = _DATA_STEP * top
    tau = _DATA_SHARE / (sigma * norm**2) if norm > 0 else 1.0
    terms = _Terms(
        A, G, y, W, lam, tau, sigma if norm > 0 else None,
        (1.0 - _DATA_SHARE) / (tau * edge**2) if edge > 0 and lam else None, prior.eps,
    )  # fmt: skip

    def record(values: np.ndarray) -> dict[str, float]:
        _, data, lengths, pp, py, slack, below, highest = values
        objective = 0.5 * data + lam * lengths
        # Where the slope is negative the bound [0, 2 max x] on a minimiser enters.
        dual = -0.5 * pp - py + math.sqrt(prior.eps) * slack - 2.0 * highest * below
        return {
            "objective": float(np.sum(objective)) / N,
            "gap": float(np.sum(objective - dual)) / N,
        }

    state = x, p, q, z, edges
    return iterate(run, _iteration, terms, state, ("x", "p", "q"), measures=8, record=record)


class _Terms(NamedTuple):
    """What iterations share: operators, data, weights, and steps, None of a dual that rests."""

    A: Any
    G: Any
    y: Any
    W: Any
    lam: Any
    tau: Any
    sigma: Any
    sigma_edge: Any
    eps: Any


def _iteration(
    terms: _Terms, state: tuple[Any, ...], active: Any, _: Any, dots: Any
) -> tuple[tuple[Any, ...], Any]:
    """One iteration: x, p, q, A x, G x; and what the objective and the dual value are made of."""
    A, G, y, W, lam, tau, sigma, sigma_edge, eps = terms
    x, p, q, z, edges = state
    xp = arrays.namespace(x)
    slope = A.H @ p + G.H @ q
    moved = x - tau * slope
    moved = choose(active, xp.where(moved > 0, moved, xp.zeros_like(moved)), x)
    ahead, bent = A @ moved, G @ moved
    values = _measure(terms, moved, ahead, bent, p, q, slope, dots)
    # Extrapolated: 2 new - old, applied to what is known already.
    if sigma is not None:
        w = 1.0 if W is None else W
        p = w * (p + sigma * (2.0 * ahead - z - y)) / (w + sigma)
    if sigma_edge is not None:
        q = _dual_edges(
            q + sigma_edge * (2.0 * bent - edges), -G.codomain.ndim, sigma_edge, lam, eps
        )
    rows, faces = A.codomain.home.pin, G.codomain.home.pin
    return (A.domain.home.pin(moved), rows(p), faces(q), rows(ahead), faces(bent)), values


def _dual_edges(b: Any, axis: int, sigma: Any, lam: Any, eps: Any) -> Any:
    """The proximal map of `sigma F*`, F = lam sum sqrt(|.|^2 + eps), by Moreau's identity."""
    xp = arrays.namespace(b)
    a = xp.sqrt(xp.sum(b * b, axis=axis)) * (1.0 / sigma)
    tau = lam / sigma
    # t + tau t / sqrt(t^2 + eps) = a: increasing and concave, so Newton from the left of the
    # root climbs to it.
    low = a * (1.0 / (1.0 + tau / eps**0.5))
    t = xp.where(a - tau > low, a - tau, low)
    for _ in range(_NEWTON_STEPS):
        s = xp.sqrt(t * t + eps)
        value = t + tau * t / s - a
        t = t - value / (1.0 + tau * eps / (s * s * s))
    # b - sigma prox = b (1 - t / a); at the root 1 - t / a = tau / (tau + s).
    factor = tau / (tau + xp.sqrt(t * t + eps))
    return b * xp.expand_dims(factor, axis=axis)


def _measure(
    terms: _Terms, x: Any, z: Any, edges: Any, p: Any, q: Any, slope: Any, dots: Any
) -> tuple[Any, ...]:
    """|A x - y|^2, and the terms of the objective at x and of the dual value at (p, q)."""
    A, G, y, W, lam = terms[:5]
    xp = arrays.namespace(y)
    axis = -G.codomain.ndim
    r = z - y
    weighted = r if W is None else W * r
    lengths = xp.sqrt(xp.sum(edges * edges, axis=axis) + terms.eps)
    slack = lam * lam - xp.sum(q * q, axis=axis)
    slack = xp.sqrt(xp.where(slack > 0, slack, xp.zeros_like(slack)))
    if W is None:
        square = p
    else:
        square = xp.where(W > 0, p / xp.where(W > 0, W, xp.ones_like(W)), xp.zeros_like(p))
    below = xp.where(slope < 0, -slope, xp.zeros_like(slope))
    one = xp.ones_like(lengths)
    found = dots(
        (A.codomain, r, r),
        (A.codomain, r, weighted),
        (A.domain, lengths, one),
        (A.codomain, p, square),
        (A.codomain, p, y),
        (A.domain, slack, one),
        (A.domain, below, one),
    )
    axes = tuple(range(axis + 1, 0))
    highest = xp.max(x, axis=axes) if A.domain.size else found[0] * 0
    return *found, highest
