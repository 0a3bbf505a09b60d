"""Vectorised coordinate descent (VCD): weighted least squares with a prior, subset by subset.

    F(x) = 1 / (2 sigma_y^2) sum w (y - A x)^2 + R(x)

Each update moves a subset of the plane's positions (all their slices) along the scaled negative
gradient, by the step that minimises the whole quadratic form of the surrogate; so F never rises.
The prior is any functional with `restrict`; the operator any with `columns`. The update of a
subset, and how a pass of them runs, is in `solvers/subsets.py`.
"""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from linops.functionals import Functional
from linops.linear_operator import LinearOperator
from linops.space import Space
from solvers.beam import damp_means, rotates, warn_of_truncation
from solvers.controls import bounds_pair, non_negative, positive, require_real_arrays, whole
from solvers.decorator import Controls, solver
from solvers.elements import admit, clip, refuse_traced, require_finite
from solvers.loop import Solve
from solvers.measurement_weights import measurement_weights
from solvers.plane_partitions import Partitions, pad_subsets, partition, plane_of, region
from solvers.result import CHANGE_REACHED, SolverResult
from solvers.start import admit_start, analytic_start
from solvers.subsets import Descent

__all__ = ["vcd"]

_REFRESH = 10


@solver("A")
def vcd(
    A: LinearOperator,
    y: Any,
    prior: Functional | None = None,
    *,
    weights: Any = None,
    sigma_y: float | None = None,
    iterations: int = 15,
    partitions: Any = None,
    seed: int = 0,
    x0: Any = None,
    bounds: tuple[float | None, float | None] | None = None,
    max_step: float = 1.5,
    change_rtol: float = 0.0,
    roi: Any = "auto",
    damping: bool | str = "auto",
    **controls: Unpack[Controls],
) -> SolverResult:
    """Minimise `sum w (y - A x)^2 / (2 sigma_y^2) + prior(x)` by coordinate descent.

    Parameters
    ----------
    A
        A linear operator between real single arrays; its domain's last two axes are the plane
        (the only axis in one dimension).
    y
        Measurements, without batch axes.
    prior
        A functional on the domain, such as `QGGMRF`; None for none.
    weights
        w >= 0: an array of the codomain's shape, a number, `"transmission"` (e^-y),
        `"transmission_root"` (e^(-y/2)) or `"emission"` (1 / (|y| + 0.1)); None for 1.
    sigma_y
        Standard deviation of a measurement of weight 1; 1 where it is not given.
        `automatic_regularization` estimates it.
    iterations
        Passes over all positions at most; when resuming, in total.
    partitions
        None for 4, 16, 64 and then 128 subsets (fewer, so that a subset keeps 64 positions); a
        number or numbers of subsets; an order of `solvers.plane_partitions`; a `Partitions`; or the
        subsets themselves, index arrays for every pass.
    seed
        For partitions and the order of subsets.
    x0
        Start. None: the analytic reconstruction, where the operator knows one (projectors have
        filtered backprojection), 0 outside `roi`, scaled to fit the measurements; else zero, as
        for `"zero"`. Positions outside `roi` keep their values.
    bounds
        `(low, high)`, None for no bound; x0 is clipped to it.
    max_step
        The longest step in units of the scaled gradient, below 2.
    change_rtol
        Ends where `sum |change| < change_rtol * sum |x|` over a pass.
    roi
        Which positions move: `"auto"` is `"ellipse"` (inscribed in the plane) for beams that go
        around an axis, and else None (all of them); or a 0/1 mask of the plane.
    damping
        Whether the mean of the changes of a subset in a slice is damped (see `solvers.beam`):
        `"auto"` for diverging beams that go around an axis, of which the lowest frequencies along
        the axis converge last. The minimiser is the same with and without.
    **controls
        An iteration is a pass; the residual is `|y - A x|`.

    Returns
    -------
    SolverResult
        With histories, one value a pass: `objective`, `data_rms`
        (`sqrt(sum w e^2 / (mean(w) N)) / sigma_y`), `change` (relative) and `step` (mean).

    Warns
    -----
    RuntimeWarning
        Where the object reaches the edge columns of a rotating scan: it is truncated.

    Raises
    ------
    ValueError
        For bad controls, weights or measurements that are not finite, before A is applied.
    CheckpointError
        As for `cgls`.
    """
    domain, codomain = A.domain, A.codomain
    require_real_arrays(A, "vcd")
    assert isinstance(domain, Space) and isinstance(codomain, Space)
    if domain.ndim == 0:
        raise ValueError(f"vcd wants one or more axes, got {domain} -> {codomain}")
    if prior is not None and (
        not isinstance(prior, Functional) or prior.domain.shape != domain.shape
    ):
        raise ValueError(f"prior is {prior!r}; it is a functional on {domain}, or None")
    sigma = 1.0 if sigma_y is None else positive("sigma_y", sigma_y)
    if not 1e-150 <= sigma <= 1e150:
        raise ValueError(f"sigma_y is {sigma_y!r}; its square leaves the range of float64")
    low, high = bounds_pair(bounds)
    max_step = positive("max_step", max_step)
    if max_step >= 2:
        raise ValueError(f"max_step is {max_step}; from 2 on the objective may rise")
    seed = whole("seed", seed)
    change_rtol = non_negative("change_rtol", change_rtol)
    plane = plane_of(domain)
    if isinstance(roi, str) and roi == "auto":
        roi = "ellipse" if rotates(A) else None
    positions = region(roi, plane)
    means = _damping(damping, A)
    x0, analytic = admit_start(x0)
    schedule = Partitions.of(partitions)
    explicit = pad_subsets(schedule, positions) if isinstance(schedule, list) else None
    w = _weights(weights, y, codomain)
    run = Solve(
        "vcd",
        A,
        y,
        iterations=iterations,
        x0=x0,
        settings={
            "prior": prior,
            "weights": w,
            "sigma_y": sigma,
            "partitions": schedule,
            "seed": seed,
            "bounds": [low, high],
            "max_step": max_step,
            "positions": positions,
            "damping": means is not None,
            "start": "analytic" if analytic else "given",
        },
        tolerances={"change": change_rtol},
        by_residual=False,
        **controls,
    )
    x, image = clip(run.x, low, high) if run.started else run.x, None
    if analytic and run.restored is None:
        warn_of_truncation(A, run.y)
        mask = _mask(positions, plane, domain.ndim)
        x, image = analytic_start(A, run.y, w, low, high, mask) or (x, None)
    lowered: Any = None if prior is None else domain.lower(prior)
    descent = Descent(run, lowered, w, sigma, (low, high), max_step, means)
    descent.start(x, image)
    del w  # the size of the measurements
    run.begin(descent.residual)
    deals = _Deals(schedule, explicit, positions, plane, seed, descent)

    while run.going:
        number = run.iteration
        subsets, count = deals.subsets(number)
        descent.advance(subsets, _visits(seed, number, count))
        # Not at the last pass too: a resumed run has another last pass, and equal bits.
        if (number + 1) % _REFRESH == 0:
            descent.refresh()
        record = descent.record()
        small = np.asarray(record["change"] < change_rtol)
        run.record(descent.residual, descent.x, descent.snapshot, record, (small, CHANGE_REACHED))
        descent.keep_volume()
    run.x = descent.x
    return run.result()


class _Deals:
    """The subsets of each pass, made once for each number of them."""

    def __init__(
        self,
        schedule: Any,
        explicit: list[np.ndarray] | None,
        positions: np.ndarray,
        plane: tuple[int, int],
        seed: int,
        descent: Descent,
    ) -> None:
        self._schedule, self._explicit = schedule, explicit
        self._positions, self._plane, self._seed, self._descent = positions, plane, seed, descent
        self._made: dict[int, tuple[Any, int]] = {}

    def subsets(self, number: int) -> tuple[Any, int]:
        """Those of pass `number`, and how many they are."""
        if not self._positions.size:
            return [], 0
        count = (
            0 if self._explicit is not None else self._schedule.count(number, self._positions.size)
        )
        if count not in self._made:
            dealt = self._explicit or partition(
                self._positions, self._plane, count, self._schedule.order, self._seed
            )
            # Earlier, coarser partitions do not come again.
            self._made = {count: (self._descent.subsets(dealt), len(dealt))}
        return self._made[count]


def _damping(damping: Any, A: LinearOperator) -> np.ndarray | None:
    if not (isinstance(damping, (bool, np.bool_)) or damping == "auto"):
        raise ValueError(f"damping is {damping!r}; it is True, False or 'auto'")
    means = damp_means(A) if damping else None
    if damping is True and means is None:
        raise ValueError(
            f"{A.name} is no diverging beam around an axis, whose subsets' means could be damped: "
            "leave damping at 'auto'"
        )
    return means


def _mask(positions: np.ndarray, plane: tuple[int, int], ndim: int) -> np.ndarray | None:
    """1 at positions that move, or None where all of them do."""
    if positions.size == plane[0] * plane[1]:
        return None
    mask = np.zeros(plane[0] * plane[1])
    mask[positions] = 1
    return mask.reshape(plane if ndim > 1 else plane[1:])


def _weights(weights: Any, y: Any, codomain: Space) -> Any:
    """The weights of measurements that are fit."""
    refuse_traced("vcd", y)
    y = admit(y, codomain, "y")
    if y.ndim != codomain.ndim:
        raise ValueError(
            f"vcd takes measurements without batch axes, shape {codomain.shape}, got "
            f"{tuple(y.shape)}; solve the members one by one"
        )
    require_finite(y, "y")
    return measurement_weights(weights, y, codomain)


def _visits(seed: int, number: int, count: int) -> np.ndarray:
    if count < 2:
        return np.arange(count)
    return np.random.default_rng([seed, 1, number]).permutation(count)
