"""The primal-dual hybrid gradient method for smoothed total variation with x >= 0.

Minimises N times the objective of `solvers.tv`,

    f(A x) + lam * sum over voxels of sqrt(|G x|^2 + eps),   f(z) = |z - y|^2_W / 2

by ascent in the duals p of A and q of G and descent in x (Chambolle, Pock 2011, algorithm 1,
with one dual step for each of the two operators).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from linops import arrays
from linops.functionals import TotalVariation
from linops.operator import LinearOperator
from solvers.elements import products, subtract
from solvers.loop import Run
from solvers.result import SolverResult

__all__ = ["operator_norm", "primal_dual"]

_POWER_STEPS = 20
_SAFETY = 1.05
_NEWTON_STEPS = 6
_DATA_STEP = 0.25
_DATA_SHARE = 0.6


def primal_dual(run: Run, prior: TotalVariation, weight: float, W: Any) -> SolverResult:
    """Run the iteration on an admitted `run`; what `tv(method="pdhg")` does."""
    A, y = run.A, run.y
    G: Any = A.domain.lower(prior.differences)
    xp = arrays.namespace(y)
    N, size = max(A.codomain.size, 1), max(A.domain.size, 1)
    lam = weight * N / size
    run.keeps(x=A.domain, p=A.codomain, q=G.codomain)
    if run.restored is None:
        x = run.x
        z = A @ x if run.started else xp.zeros_like(y)
        p = xp.zeros_like(y)
        q = G @ x
        q = xp.zeros_like(q)
    else:
        x, p, q = (run.restored[name] for name in ("x", "p", "q"))
        z = A @ x
        run.x = x
    r = subtract(y, z)
    rr, yy = products((A.codomain, r, r), (A.codomain, y, y))
    run.begin(np.sqrt(rr), np.sqrt(yy))
    if run.going:
        # f* has curvature 1 / W, so a dual step in proportion to W is of the right size whatever
        # the units. The two shares of the step's budget were tuned on small scans.
        norm = operator_norm(A, y) * _SAFETY
        (space,) = prior.domain.members
        pitches = zip(space.shape, prior.spacing, strict=True)
        edge = math.sqrt(sum(4.0 / h**2 for n, h in pitches if n > 1))
        top = 1.0 if W is None else max(arrays.item(xp.max(W)), 1e-30)
        sigma = _DATA_STEP * top if norm > 0 else 0.0
        tau = _DATA_SHARE / (sigma * norm**2) if norm > 0 else 1.0
        sigma_edge = (1.0 - _DATA_SHARE) / (tau * edge**2) if edge > 0 else 0.0

    while run.going:
        slope = A.H @ p + G.H @ q
        moved = x - tau * slope
        moved = xp.where(moved > 0, moved, xp.zeros_like(moved))
        z_new = A @ moved
        edges = G @ moved
        objective, gap = _gap(run, prior, lam, W, moved, z_new, edges, p, q, slope)
        # Extrapolated: 2 new - old, applied to what is known already.
        ahead = 2.0 * z_new - z
        w = 1.0 if W is None else W
        p = w * (p + sigma * (ahead - y)) / (w + sigma) if sigma else p
        if sigma_edge and lam:
            q = _dual_edges(q + sigma_edge * (2.0 * edges - G @ x), sigma_edge, lam, prior)
        x, z = moved, z_new
        r = subtract(y, z)
        (rr,) = products((A.codomain, r, r))
        run.completed(
            np.sqrt(rr),
            x,
            lambda: {"x": x, "p": p, "q": q},
            {"objective": objective / N, "gap": gap / N},
        )
    run.x = x
    return run.result()


def operator_norm(A: LinearOperator, like: Any) -> float:
    """The largest singular value from below, by a few power steps on `A.H A`."""
    start: Any = A.domain.random(0, like)
    v = abs(start)
    value = 0.0
    for _ in range(_POWER_STEPS):
        length = math.sqrt(float(products((A.domain, v, v))[0]))
        if length == 0:
            return 0.0
        image = A @ (v * (1.0 / length))
        before, value = value, math.sqrt(float(products((A.codomain, image, image))[0]))
        if abs(value - before) <= 1e-3 * value:
            break
        v = A.H @ image
    return value


def _dual_edges(b: Any, sigma: float, lam: float, prior: TotalVariation) -> Any:
    """The proximal map of `sigma F*`, F = lam sum sqrt(|.|^2 + eps), by Moreau's identity."""
    n = len(prior.spacing)
    xp = arrays.namespace(b)
    a = xp.sqrt(xp.sum(b * b, axis=-n - 1)) * (1.0 / sigma)
    tau, eps = lam / sigma, prior.eps
    # t + tau t / sqrt(t^2 + eps) = a: increasing and concave, so Newton from the left of the
    # root climbs to it.
    low = a * (1.0 / (1.0 + tau / math.sqrt(eps)))
    t = xp.where(a - tau > low, a - tau, low)
    for _ in range(_NEWTON_STEPS):
        s = xp.sqrt(t * t + eps)
        value = t + tau * t / s - a
        t = t - value / (1.0 + tau * eps / (s * s * s))
    # b - sigma prox = b (1 - t / a); at the root 1 - t / a = tau / (tau + s).
    factor = tau / (tau + xp.sqrt(t * t + eps))
    return b * xp.expand_dims(factor, axis=-n - 1)


def _gap(
    run: Run,
    prior: TotalVariation,
    lam: float,
    W: Any,
    x: Any,
    z: Any,
    edges: Any,
    p: Any,
    q: Any,
    slope: Any,
) -> tuple[float, float]:
    """Objective at x, and its distance from the dual value of (p, q); both times N."""
    A, y = run.A, run.y
    xp = arrays.namespace(y)
    n = len(prior.spacing)
    r = z - y
    weighted = r if W is None else W * r
    lengths = xp.sqrt(xp.sum(edges * edges, axis=-n - 1) + prior.eps)
    size = xp.sum(q * q, axis=-n - 1)
    slack = lam * lam - size
    slack = xp.sqrt(xp.where(slack > 0, slack, xp.zeros_like(slack)))
    if W is None:
        square = p
    else:
        square = xp.where(W > 0, p / xp.where(W > 0, W, xp.ones_like(W)), xp.zeros_like(p))
    # Where the slope is negative the bound [0, 2 max x] on a minimiser enters.
    below = xp.where(slope < 0, -slope, xp.zeros_like(slope))
    one = xp.ones_like(lengths)
    data, edge, pp, py, free, out = products(
        (A.codomain, r, weighted),
        (A.domain, lengths, one),
        (A.codomain, p, square),
        (A.codomain, p, y),
        (A.domain, slack, one),
        (A.domain, below, one),
    )
    reach = 2.0 * arrays.item(xp.max(x)) if x.size else 0.0
    objective = 0.5 * data + lam * edge
    dual = -0.5 * pp - py + math.sqrt(prior.eps) * free - reach * out
    return float(np.sum(objective)), float(np.sum(objective - dual))
