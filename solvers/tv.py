"""Total-variation reconstruction with x >= 0, by Adam or by a primal-dual method.

    |A x - y|^2_W / (2 N) + weight * mean over voxels of sqrt(|G x|^2 + eps),   x >= 0

N is the number of measurements, G x the differences over the spacing, as in
`linops.functionals.TotalVariation`. Adam (Kingma, Ba 2015) is a quick descent with steps of one
size; the primal-dual method (Chambolle, Pock 2011) finds the minimum and says how far off it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np

from linops import arrays
from linops.functionals import TotalVariation
from linops.linear_operator import LinearOperator
from linops.space import Space
from solvers.compiled import iterate
from solvers.conjugate_gradients import conjugate_gradients
from solvers.controls import non_negative, positive_or_none, require_real_arrays
from solvers.decorator import Controls, solver
from solvers.elements import (
    add_scaled,
    admit,
    choose,
    products,
    ratio,
    require_sums,
    subtract,
)
from solvers.implicit import AdjointSolve
from solvers.loop import Solve
from solvers.regularization import automatic_weight
from solvers.result import SolverResult
from solvers.start import admit_start, analytic_start, typical_size
from solvers.tv_primal_dual import primal_dual

__all__ = ["tv"]

_EPS = 1e-6
_FLOOR = 1e-8
_STEP = 0.05
_TURNED = 1e-10  # of the cotangent, where conjugate gradients end


def _differentiate(
    *,
    iterations: int,
    weight: float | str = "auto",
    spacing: Any = None,
    data_weights: Any = None,
    eps: float | None = None,
    **_: Any,
) -> Callable[[LinearOperator, Any, Any], AdjointSolve]:
    """By the second derivative among the voxels above 0; the others stay there."""
    if isinstance(weight, str):
        raise ValueError(
            "tv: differentiable=True takes weight as a number: the automatic one depends on y"
        )
    share = np.asarray(weight)

    def adjoint(A: LinearOperator, x: Any, v: Any) -> AdjointSolve:
        space: Any = A.domain
        smoothing = _EPS if eps is None else eps
        prior: Any = TotalVariation(space, spacing=spacing, eps=smoothing, reduction="mean")
        curvature = space.lower(prior).gradient.jacobian(x)
        W = None
        if data_weights is not None:
            W = admit(data_weights, A.codomain, "data_weights", like=v)
        free = arrays.cast(x > 0, space.dtype)

        def weigh(r: Any) -> Any:
            return (r if W is None else W * r) * (1.0 / max(A.codomain.size, 1))

        def normal(p: Any) -> Any:
            return free * add_scaled(A.H @ weigh(A @ p), share, curvature @ p)

        start = arrays.namespace(v).zeros_like(v)
        w = conjugate_gradients(normal, free * v, start, space, iterations, _TURNED)
        return AdjointSolve(weigh(A @ w), lambda: w, weigh)

    return adjoint


@solver("A", derivative=_differentiate)
def tv(
    A: LinearOperator,
    y: Any,
    *,
    iterations: int,
    x0: Any = None,
    weight: float | str = "auto",
    method: str = "adam",
    learning_rate: float | None = None,
    spacing: float | Sequence[float] | None = None,
    data_weights: Any = None,
    eps: float | None = None,
    **controls: Unpack[Controls],
) -> SolverResult:
    """Minimise `|A x - y|^2_W / (2 N) + weight * mean(sqrt(|G x|^2 + eps))` over x >= 0.

    N is the number of measurements, the mean runs over the voxels, and G x are the differences of
    neighbors over the spacing. With the defaults start, weight, eps and steps scale with the data:
    a scan in millimetres and the same scan in metres give one picture.

    Parameters
    ----------
    A
        A linear operator between real spaces, its domain one array.
    y
        Measurements; leading batch axes are solved side by side.
    weight
        Of the prior, >= 0, in units of `y^2 spacing / x`; larger is smoother. `"auto"` is
        `2 sigma^2 voxels spacing / (N b)`: sigma is the deviation of the noise of y (from second
        differences along its last axis, at least 1 % of the signal), b the typical size of x.
        It is a starting point, as `automatic_regularization` is for `vcd`. The members of a batch
        share it.
    method
        `"adam"` or `"pdhg"`.
    learning_rate
        Size of Adam's steps, in units of x; by default a twentieth of the typical size of x.
    eps
        Smoothing under the root, > 0, in units of `(x / spacing)^2`; by default 1e-6, with the
        automatic weight `(x / (1000 spacing))^2` for the typical size of x.
    spacing
        Pitch of each axis in the prior; by default that of the domain.
    data_weights
        Statistical weights W >= 0, an array of the codomain's shape.
    x0
        Start; by default the analytic reconstruction, scaled to fit y, where A knows one
        (projectors), else zero. `"zero"` for zero.
    iterations
        The most to make; when resuming, in total.
    **controls
        The residual is `|y - A x|`.

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
    if not (isinstance(weight, str) and weight == "auto"):
        weight = non_negative("weight", weight)
    learning_rate = positive_or_none("learning_rate", learning_rate)
    eps = positive_or_none("eps", eps)
    x0, analytic = admit_start(x0)
    if method not in ("adam", "pdhg"):
        raise ValueError(f"method is {method!r}; it is 'adam' or 'pdhg'")
    require_real_arrays(A, "tv")
    assert isinstance(A.domain, Space)
    prior = TotalVariation(
        A.domain, spacing=spacing, eps=_EPS if eps is None else eps, reduction="mean"
    )
    W = None
    if data_weights is not None:
        W = admit(data_weights, A.codomain, "data_weights", like=y)
        require_sums(W, "data_weights")
    settings = {"weight": weight, "spacing": list(prior.spacing), "weights": W, "eps": eps}
    settings["start"] = "analytic" if analytic else "given"
    if method == "adam":
        settings["learning_rate"] = learning_rate
    run = Solve(
        f"tv-{method}",
        A,
        y,
        iterations=iterations,
        x0=x0,
        settings=settings,
        **controls,
    )
    begun = _start(run, analytic, W)
    size = np.asarray(1.0)
    if learning_rate is None or weight == "auto":
        size = typical_size(A, run.y, *begun, W)
    if weight == "auto":
        b = float(np.sqrt(np.mean(np.square(size)))) if size.size else 0.0
        b = b or 1.0  # measurements of zeros
        weight = automatic_weight(A, run.y, W, prior.spacing, b)
        if eps is None:
            step = np.exp(np.mean(np.log(prior.spacing)))
            prior = TotalVariation(
                A.domain, spacing=spacing, eps=float(1e-3 * b / step) ** 2, reduction="mean"
            )
    assert not isinstance(weight, str)
    if method == "pdhg":
        return primal_dual(run, prior, weight, W, begun)
    weighted = run.y if W is None else W * run.y
    along, square = products((A.codomain, run.y, weighted), (A.codomain, weighted, weighted))
    N = max(A.codomain.size, 1)
    if learning_rate is not None:
        # The slope is in proportion to y: where y is small, so is the floor of its size.
        rate, floor = np.asarray(learning_rate), _FLOOR * np.minimum(1.0, 1e3 * np.sqrt(square / N))
    else:
        rate = _STEP * size
        floor = 1e-6 * ratio(along / N, size, size > 0) / max(A.domain.size, 1)
    return _adam(run, prior, weight, W, (rate, floor), begun)


def _start(run: Solve, analytic: bool, W: Any) -> tuple[Any, Any]:
    """Where the solve began, resumed or not, and its image."""
    A, y = run.A, run.y
    if run.started:
        return run.x, A @ run.x
    found = analytic_start(A, y, W, low=0.0) if analytic else None
    return found or (run.x, arrays.namespace(y).zeros_like(y))


def _adam(
    run: Solve,
    prior: TotalVariation,
    weight: float,
    W: Any,
    sizes: tuple[np.ndarray, np.ndarray],
    begun: tuple[Any, Any],
) -> SolverResult:
    """`sizes` are those of a step and of the smallest slope that is told from 0."""
    A, y = run.A, run.y
    N = max(A.codomain.size, 1)
    edges: Any = A.domain.lower(prior)
    run.keep_state(x=A.domain, m=A.domain, v=A.domain)
    if run.restored is None:
        x, image = begun
        m = v = arrays.namespace(x).zeros_like(x)
    else:
        x, m, v = (run.restored[name] for name in ("x", "m", "v"))
        image = A @ x
    run.x = x
    r = subtract(image, y)
    run.begin_at(r)
    slope = edges.gradient if weight else None
    terms = A, slope, y, W, 1.0 / N, np.asarray(weight), *sizes

    def table(k: np.ndarray) -> np.ndarray:
        """Corrections of the bias of the first and second moments."""
        return np.stack([1 / (1 - 0.9**k), 1 / np.sqrt(1 - 0.999**k)], axis=-1)

    return iterate(run, _iteration, terms, (x, m, v, r), ("x", "m", "v"), table=table)


def _iteration(
    terms: tuple[Any, ...], state: tuple[Any, ...], active: Any, at: Any, dots: Any
) -> tuple[tuple[Any, ...], Any]:
    """One iteration: x, its first moment, the root of the second, and A x - y; and |A x - y|^2."""
    A, slope, y, W, share, weight, rate, floor = terms
    x, m, v, r = state
    first, second = at
    xp = arrays.namespace(x)
    g = (A.H @ (r if W is None else W * r)) * share
    if slope is not None:
        g = add_scaled(g, weight, slope(x))
    m = 0.9 * m + 0.1 * g
    v = _root_mean(xp, v, xp.abs(g))
    size = add_scaled(v * second, floor, xp.ones_like(v))
    step = xp.where(size > 0, m / xp.where(size > 0, size, xp.ones_like(size)), xp.zeros_like(m))
    moved = add_scaled(x, -1.0 * rate, step * first)
    moved = xp.where(moved > 0, moved, xp.zeros_like(moved))
    x, m, v = map(A.domain.home.pin, (choose(active, moved, x), m, v))
    r = A.codomain.home.pin(subtract(A @ x, y))
    return (x, m, v, r), dots((A.codomain, r, r))


def _root_mean(xp: Any, v: Any, g: Any) -> Any:
    """`sqrt(.999 v^2 + .001 g^2)` of entries whose squares float32 may not hold."""
    top = xp.where(v > g, v, g)
    safe = xp.where(top > 0, top, xp.ones_like(top))
    a, b = v / safe, g / safe
    return top * xp.sqrt(0.999 * (a * a) + 0.001 * (b * b))
