"""Vectorised coordinate descent (VCD): weighted least squares with a prior, subset by subset.

    F(x) = 1 / (2 sigma_y^2) sum w (y - A x)^2 + R(x)

Each update moves a subset of the plane's positions (all their slices) along the scaled negative
gradient, by the step that minimises the whole quadratic form of the surrogate; so F never rises.
The prior is any functional with `restrict`; the operator any with `columns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from linops import arrays
from linops.elementary.identity import Identity
from linops.functionals import Functional
from linops.operator import LinearOperator
from linops.space import Space, inners
from solvers.controls import bounds_pair, non_negative, positive, whole
from solvers.elements import admit, clipped, products, require_finite
from solvers.loop import Run, no_graph
from solvers.partitions import Partitions, checked, partition, plane_of, region
from solvers.result import CHANGE_REACHED, SolverResult
from solvers.weights import measurement_weights

__all__ = ["vcd"]

_REFRESH = 10


@no_graph()
def vcd(
    A: LinearOperator,
    y: Any,
    prior: Functional | None = None,
    weights: Any = None,
    sigma_y: float | None = None,
    iterations: int = 15,
    partitions: Any = None,
    seed: int = 0,
    x0: Any = None,
    bounds: tuple[float | None, float | None] | None = None,
    max_step: float = 1.5,
    rtol: float = 0.0,
    roi: Any = None,
    *,
    callback: Any = None,
    progress: bool = False,
    checkpoint_directory: Any = None,
    resume: Any = None,
    checkpoint_every: int = 1,
    keep: int | None = None,
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
        number or numbers of subsets; an order of `solvers.partitions`; a `Partitions`; or the
        subsets themselves, index arrays for every pass.
    seed
        For partitions and the order of subsets.
    x0
        Start, zero by default. Positions outside `roi` keep its values.
    bounds
        `(low, high)`, None for no bound; x0 is clipped to it.
    max_step
        The longest step in units of the scaled gradient, below 2.
    rtol
        Ends where `sum |change| < rtol * sum |x|` over a pass.
    roi
        None, `"ellipse"` (inscribed in the plane), or a 0/1 mask of the plane.
    callback, progress, checkpoint_directory, resume, checkpoint_every, keep
        As for `cgls`; one call a pass.

    Returns
    -------
    SolverResult
        With histories, one value a pass: `objective`, `data_rms`
        (`sqrt(sum w e^2 / (mean(w) N)) / sigma_y`), `change` (relative) and `step` (mean).

    Raises
    ------
    ValueError
        For bad controls, weights or measurements that are not finite, before A is applied.
    CheckpointError
        As for `cgls`.
    """
    domain, codomain = A.domain, A.codomain
    if not (isinstance(domain, Space) and isinstance(codomain, Space)):
        raise ValueError("vcd takes an operator between single arrays; stack terms by concat")
    if domain.is_complex or codomain.is_complex or domain.ndim == 0:
        raise ValueError(f"vcd wants real values and one or more axes, got {domain} -> {codomain}")
    if prior is not None and (
        not isinstance(prior, Functional) or prior.domain.shape != domain.shape
    ):
        raise ValueError(f"prior is {prior!r}; it is a functional on {domain}, or None")
    sigma = 1.0 if sigma_y is None else positive("sigma_y", sigma_y)
    low, high = bounds_pair(bounds)
    max_step = positive("max_step", max_step)
    if max_step >= 2:
        raise ValueError(f"max_step is {max_step}; from 2 on the objective may rise")
    seed = whole("seed", seed)
    change_rtol = non_negative("rtol", rtol)
    plane = plane_of(domain)
    positions = region(roi, plane)
    schedule = Partitions.of(partitions)
    explicit = checked(schedule, positions) if isinstance(schedule, list) else None
    w = _weights(weights, y, codomain)
    run = Run(
        "vcd",
        A,
        y,
        iterations=iterations,
        x0=x0,
        callback=callback,
        progress=progress,
        checkpoint_directory=checkpoint_directory,
        resume=resume,
        checkpoint_every=checkpoint_every,
        keep=keep,
        settings={
            "prior": prior,
            "weights": w,
            "sigma_y": sigma,
            "partitions": schedule,
            "seed": seed,
            "bounds": [low, high],
            "max_step": max_step,
            "positions": positions,
        },
        tolerances={"change": change_rtol},
        by_residual=False,
    )
    x = clipped(run.x, low, high) if run.started else run.x
    lowered: Any = None if prior is None else domain.lower(prior)
    state = _State(run, lowered, w, 1.0 / sigma**2, (low, high), max_step, positions.size)
    state.start(x)
    run.begin(state.residual())
    deals = _Deals(schedule, explicit, positions, plane, seed, state)

    while run.going:
        number = run.iteration
        subsets = deals.subsets(number)
        changes, steps = [], []
        for place in _visits(seed, number, len(subsets)):
            change, step = state.update(subsets[place])
            changes.append(change)
            steps.append(step)
        # Not at the last pass too: a resumed run has another last pass, and equal bits.
        if (number + 1) % _REFRESH == 0:
            state.refresh()
        record = state.record(changes, steps, sigma)
        small = np.asarray(record["change"] < change_rtol)
        run.completed(state.residual(), state.x, state.saved, record, (small, CHANGE_REACHED))
        state.handed_out()
    run.x = state.x
    return run.result()


class _Subset:
    """What stays the same for a subset in all passes."""

    def __init__(self, state: _State, index: np.ndarray) -> None:
        self.index = index
        self._state = state
        self.columns = state.run.A.columns(index)
        self.prior = None if state.prior is None else state.prior.restrict(index)
        # What lives on devices in shares is not indexed by positions: there an operator does it.
        self._scatter: Any = None
        domain: Any = state.run.A.domain
        if domain.lives_apart(state.curvature):
            self._scatter = domain.lower(Identity(domain)).columns(index)
        self.h = self.rows(state.curvature) * state.c

    def rows(self, x: Any) -> Any:
        """The subset's entries of a volume."""
        if self._scatter is None:
            return arrays.take_last(self._state.flat(x), self.index)
        return self._scatter.H @ x

    def added(self, x: Any, change: Any) -> Any:
        """A volume with a change of the subset."""
        if self._scatter is not None:
            return x + self._scatter @ change
        flat = self._state.flat(x)
        flat = flat + arrays.scatter_add(change, self.index, flat.shape[-1])
        return arrays.namespace(flat).reshape(flat, tuple(x.shape))


class _State:
    """Volume, error, and one subset's update."""

    def __init__(
        self,
        run: Run,
        prior: Functional | None,
        w: Any,
        c: float,
        bounds: tuple[float | None, float | None],
        max_step: float,
        positions: int,
    ) -> None:
        self.run, self.prior, self.w, self.c = run, prior, w, c
        self.low, self.high = bounds
        self.max_step = max_step
        self.positions = positions
        domain = run.A.domain
        assert isinstance(domain, Space)
        self._flat = (*domain.shape[:-2], -1) if domain.ndim > 1 else (-1,)
        self._dtype = domain.dtype

    def start(self, x: Any) -> None:
        """Take the volume, its error, and the curvature of the data term."""
        run = self.run
        run.keeps(x=run.A.domain, e=run.A.codomain)
        if run.restored is not None:
            x = run.restored["x"]
            run.x = x
        self.x = x
        if run.restored is not None:
            self.e = run.restored["e"]
        elif run.started:
            self.refresh()
        else:
            self.e = arrays.namespace(run.y).asarray(run.y, copy=True)
        self.curvature = None
        if run.iteration < run.limit:
            gram = run.A.gram(self.w) if self.w is not None else run.A.gram()
            self.curvature = arrays.convert(gram.diagonal(limit=None), x)

    def flat(self, x: Any) -> Any:
        """The volume with its plane as one axis."""
        return arrays.namespace(x).reshape(x, self._flat)

    def refresh(self) -> None:
        """The error anew from the volume."""
        self.e = self.run.y - self.run.A @ self.x

    def update(self, subset: _Subset) -> tuple[Any, Any]:
        """Move one subset; sum of |changes| and step, as 0-d arrays."""
        A_S, c = subset.columns, self.c
        domain, codomain = A_S.domain, self.run.A.codomain
        weighted = self.e if self.w is None else self.w * self.e
        slope = A_S.H @ weighted
        g = slope * -c
        h = subset.h
        if subset.prior is not None:
            prior_g, prior_h = subset.prior.terms(self.x)
            g, h = g + prior_g, h + prior_h
        xp = arrays.namespace(g)
        seen = h > 0
        d = xp.where(seen, -g / xp.where(seen, h, xp.ones_like(h)), xp.zeros_like(g))
        bounded = self.low is not None or self.high is not None
        if bounded:
            here = subset.rows(self.x)
            lower = None if self.low is None else (self.low - here) * (1.0 / self.max_step)
            upper = None if self.high is None else (self.high - here) * (1.0 / self.max_step)
            d = d if lower is None else xp.where(d < lower, lower, d)
            d = d if upper is None else xp.where(d > upper, upper, d)
            d = xp.where(seen, d, xp.zeros_like(d))
        moved = A_S @ d
        bent = moved if self.w is None else self.w * moved
        along, data = inners((domain, g, d), (codomain, moved, bent))
        form = c * data
        if subset.prior is not None:
            form = form + subset.prior.quadratic(self.x, d)
        good = (form > 0) & (along < 0)
        ratio = xp.where(good, -along / xp.where(good, form, xp.ones_like(form)), along * 0)
        step = arrays.cast(xp.asarray(xp.clip(ratio, 0.0, self.max_step)), self._dtype)
        step = float(step) if type(d) is np.ndarray else step
        change = d * step
        self._add(subset, change, bounded)
        if type(self.e) is np.ndarray and type(moved) is np.ndarray:
            moved *= step
            self.e -= moved
        else:
            self.e = self.e - moved * step
        return xp.sum(xp.abs(change)), step

    def record(
        self, changes: Sequence[Any], steps: Sequence[Any], sigma: float
    ) -> dict[str, float]:
        """The histories' values after a pass."""
        run, e = self.run, self.e
        xp = arrays.namespace(e)
        weighted = e if self.w is None else self.w * e
        codomain = run.A.codomain
        if self.w is None:
            (square,) = products((codomain, e, weighted))
            mass = float(codomain.size)
        else:
            square, total = products((codomain, e, weighted), (codomain, self.w, xp.ones_like(e)))
            mass = float(total)
        moved = float(np.sum([float(arrays.item(change)) for change in changes]))
        size = float(arrays.item(arrays.namespace(self.x).sum(abs(self.x))))
        prior = 0.0 if self.prior is None else float(self.prior(self.x))
        return {
            "objective": 0.5 * self.c * float(square) + prior,
            "data_rms": float(np.sqrt(square / mass)) / sigma if mass > 0 else 0.0,
            "change": moved / size if size > 0 else 0.0,
            "step": float(np.mean([float(step) for step in steps])) if steps else 0.0,
        }

    def residual(self) -> np.ndarray:
        """|y - A x|."""
        norm: np.ndarray = np.sqrt(products((self.run.A.codomain, self.e, self.e))[0])
        return norm

    def saved(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"x": self.x, "e": self.e}

    def handed_out(self) -> None:
        """A callback has seen the volume: what it kept must not change under it."""
        if self.run.watched and type(self.x) is np.ndarray:
            self.x = self.x.copy()

    def _add(self, subset: _Subset, change: Any, bounded: bool) -> None:
        if type(self.x) is np.ndarray:
            index = subset.index
            kept = index >= 0
            rows = self.x.reshape(self._flat)
            values = rows[..., index[kept]] + change[..., kept]
            rows[..., index[kept]] = clipped(values, self.low, self.high)
            return
        x = subset.added(self.x, change)
        self.x = clipped(x, self.low, self.high) if bounded else x


class _Deals:
    """The subsets of each pass, made once for each number of them."""

    def __init__(
        self,
        schedule: Any,
        explicit: list[np.ndarray] | None,
        positions: np.ndarray,
        plane: tuple[int, int],
        seed: int,
        state: _State,
    ) -> None:
        self._schedule, self._explicit = schedule, explicit
        self._positions, self._plane, self._seed, self._state = positions, plane, seed, state
        self._made: dict[int, list[_Subset]] = {}

    def subsets(self, number: int) -> list[_Subset]:
        """Those of pass `number`."""
        if not self._positions.size:
            return []
        count = (
            0 if self._explicit is not None else self._schedule.count(number, self._positions.size)
        )
        if count not in self._made:
            dealt = self._explicit or partition(
                self._positions, self._plane, count, self._schedule.order, self._seed
            )
            # Earlier, coarser partitions do not come again.
            self._made = {count: [_Subset(self._state, index) for index in dealt]}
        return self._made[count]


def _weights(weights: Any, y: Any, codomain: Space) -> Any:
    """The weights of measurements that are fit."""
    y = admit(y, codomain, "y")
    if y.ndim != codomain.ndim:
        raise ValueError(
            f"vcd takes measurements without batch axes, shape {codomain.shape}, got "
            f"{tuple(y.shape)}; solve the members one by one"
        )
    require_finite(y, "y")
    return measurement_weights(weights, y, codomain)


def _visits(seed: int, number: int, count: int) -> Sequence[int]:
    if count < 2:
        return range(count)
    return [int(i) for i in np.random.default_rng([seed, 1, number]).permutation(count)]
