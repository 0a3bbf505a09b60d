"""One pass of coordinate descent: subsets of positions, moved one after the other.

`_move` is the update of a subset, on any executor. A pass is a loop over it: in Python, or one
compiled program where elements live on devices that are programmed as a whole. There the subsets
are data, and nothing is read by the host before the end of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from linops import arrays
from linops.elementary.replacement import Replacement
from linops.elementary.select import Restriction
from linops.functionals import Functional
from linops.linear_operator import LinearOperator
from linops.space import Space, inners
from linops.transforms.choice import Choice
from solvers.elements import clip, fits_float32, narrow, products
from solvers.loop import Solve

__all__ = ["Descent", "VoxelSubset"]


class VoxelSubset(NamedTuple):
    """What belongs to some positions of the plane, all their slices.

    `picks` takes their rows of a volume, `puts` maps a volume and rows to the volume with these;
    `terms` and `form` are those of the prior, as `Restricted` has them.
    """

    columns: LinearOperator
    picks: LinearOperator
    puts: Any
    terms: Any
    form: Any


class _UpdateTerms(NamedTuple):
    """What all updates share: roots of the weights, with which a quadratic form has one operand
    of the error's size, curvature of the data term, 1 / sigma_y^2, and controls."""

    root: Any
    curvature: Any
    c: float
    low: float | None
    high: float | None
    max_step: float
    means: Any = None
    """Of the domain: what is left of the mean of a subset's change in a slice; None for all."""


class Descent:
    """Volume and error as they descend.

    Parameters
    ----------
    run
        The solve.
    prior
        On the devices of the operator; None for none.
    w
        Weights of measurements; None for 1.
    sigma
        Standard deviation of a measurement of weight 1.
    bounds
        Of the volume.
    max_step
        The longest step.
    means
        What is left of the mean of a subset's change in each slice, broadcast against the last
        axis but one of the domain; None for all of it.
    """

    def __init__(
        self,
        run: Solve,
        prior: Functional | None,
        w: Any,
        sigma: float,
        bounds: tuple[float | None, float | None],
        max_step: float,
        means: np.ndarray | None = None,
    ) -> None:
        self._means = means
        self.run, self.prior, self.sigma = run, prior, sigma
        self._w = w
        self.c, self._bounds, self._max_step = 1.0 / sigma**2, bounds, max_step
        self._domain: Any = run.A.domain
        self._codomain: Any = run.A.codomain
        d: Any = self._domain
        self._plain = Space(d.shape, d.dtype, d.axes, d.spacing)
        donated = () if run.watched else ("x",)
        self._pass = self._domain.home.compile(_run_pass, (*donated, "e"))
        self._measure = self._domain.home.compile(_measure)

    def start(self, x: Any, image: Any = None) -> None:
        """Take the volume, its error, and the curvature of the data term.

        `image` is `A x` of a volume that was made for this solve, None where the run has one.
        """
        run = self.run
        run.keep_state(x=run.A.domain, e=run.A.codomain)
        if run.restored is not None:
            x = run.x
        # Both are written into, and the caller may hold what he gave.
        self.x = arrays.namespace(x).asarray(x, copy=True) if run.started else x
        if run.restored is not None:
            self.e = run.restored["e"]
        elif image is not None:
            self.e = run.y - image
        elif run.started:
            self.refresh()
        else:
            self.e = arrays.namespace(run.y).asarray(run.y, copy=True)
        (self._error,) = map(float, products((self._codomain, self.e, self.e)))
        self.mass = float(self._codomain.size)
        self._moved: Any = 0.0, 0.0
        curvature, root, w = None, None, self._w
        if run.iteration < run.limit:
            gram = run.A.gram(w) if w is not None else run.A.gram()
            curvature = arrays.convert(gram.diagonal(limit=None), x)
            if w is not None:
                xp = arrays.namespace(w)
                self.mass = float(products((self._codomain, w, xp.ones_like(w)))[0])
                root = xp.sqrt(w)
        self._w = None  # the roots stand for them
        means = None
        if self._means is not None:
            column = self._means.reshape(-1, 1, 1) if x.ndim > 2 else self._means
            every = np.broadcast_to(column, self._domain.shape).astype(self._domain.dtype)
            means = self._domain.home.put(arrays.convert(every, self.run.y))
        self._problem = _UpdateTerms(root, curvature, self.c, *self._bounds, self._max_step, means)
        # Where arrays lie on devices in shares, operators index them.
        self._apart = self._domain.home.holds(x)

    def refresh(self) -> None:
        """The error anew from the volume."""
        self.e = self.run.y - self.run.A @ self.x

    def subsets(self, dealt: Sequence[np.ndarray]) -> Any:
        """The subsets at these positions; all have one length."""
        made = [self._subset(index) for index in dealt]
        return made if self._pass is None else Choice(made)

    def advance(self, subsets: Any, visits: np.ndarray) -> None:
        """One pass: move the subsets in the order of `visits`."""
        self.count = len(visits)
        if not self.count:
            return
        run = self._pass or _run_pass
        self.x, self.e, *self._moved = run(subsets, visits, self.x, self.e, self._problem)

    def record(self) -> dict[str, float]:
        """The values of the histories after a pass."""
        run = self._measure or _measure
        numbers = run(self.run.A, self.x, self.e, self._problem.root, *self._moved)
        square, error, size, moved, steps = np.asarray(arrays.to_numpy(numbers), np.float64)
        if narrow(self.x) and not fits_float32([square, error]):
            root, rows = self._problem.root, self._codomain
            weighted = self.e if root is None else root * self.e
            square, error = products((rows, weighted, weighted), (rows, self.e, self.e))
        self._error = float(error)
        prior = 0.0 if self.prior is None else float(self.prior(self.x))
        return {
            "objective": 0.5 * self.c * float(square) + prior,
            "data_rms": float(np.sqrt(square / self.mass)) / self.sigma if self.mass > 0 else 0.0,
            "change": float(moved / size) if size > 0 else 0.0,
            "step": float(steps / self.count) if self.count else 0.0,
        }

    @property
    def residual(self) -> np.ndarray:
        """|y - A x|, as at the start or the last `record`."""
        return np.asarray(np.sqrt(self._error))

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"x": self.x, "e": self.e}

    def keep_volume(self) -> None:
        """A callback has seen the volume: what it kept must not change under it."""
        if self.run.watched and not arrays.is_jax(self.x):
            self.x = arrays.copy(self.x)

    def _subset(self, index: np.ndarray) -> VoxelSubset:
        columns = self.run.A.columns(index)
        places = Replacement(self._plain, index)
        picks: Any = Restriction(self._plain, index)
        puts: Any = places.into
        if self._apart:
            picks = self._domain.lower(picks)
            puts = self._domain.lower(places)
        if self.prior is None:
            return VoxelSubset(columns, picks, puts, None, None)
        seen = self.prior.restrict(index)
        return VoxelSubset(columns, picks, puts, seen.of_terms, seen.of_form)


def _run_pass(subsets: Any, visits: Any, x: Any, e: Any, problem: _UpdateTerms) -> tuple[Any, ...]:
    """Volume and error after a pass, the sum of |changes|, and that of the steps."""
    (square,) = inners((subsets[visits[0]].columns.codomain, e, e))
    zero = arrays.namespace(square).zeros_like(square)

    def body(i: Any, carried: Any) -> Any:
        x, e, moved, steps = carried
        x, e, change, step = _move(subsets[visits[i]], x, e, problem)
        return x, e, moved + change, steps + step

    state = x, e, zero, zero
    if arrays.is_traced(x):
        return tuple(arrays.loop(len(visits), body, state))
    for i in range(len(visits)):
        state = body(i, state)
    return state


def _move(subset: VoxelSubset, x: Any, e: Any, problem: _UpdateTerms) -> tuple[Any, Any, Any, Any]:
    """Move one subset: volume, error, sum of |changes|, and step."""
    root, curvature, c, low, high, max_step, means = problem
    A_S = subset.columns
    domain, codomain, whole = A_S.domain, A_S.codomain, subset.picks.domain
    assert isinstance(domain, Space) and isinstance(whole, Space)
    here = subset.picks @ x
    g = (A_S.H @ (e if root is None else root * (root * e))) * -c
    h = (subset.picks @ curvature) * c
    if subset.terms is not None:
        prior_g, prior_h = subset.terms((x, here))
        g, h = g + prior_g, h + prior_h
    xp = arrays.namespace(g)
    seen = h > 0
    d = xp.where(seen, -g / xp.where(seen, h, xp.ones_like(h)), xp.zeros_like(g))
    if means is not None:
        inverse = xp.where(seen, 1 / xp.where(seen, h, xp.ones_like(h)), xp.zeros_like(h))
        total = xp.sum(inverse, axis=-1, keepdims=True)
        mean = xp.sum(d, axis=-1, keepdims=True) / xp.where(total > 0, total, xp.ones_like(total))
        d = d - inverse * (1 - subset.picks @ means) * mean
    if low is not None or high is not None:
        lower = None if low is None else (low - here) * (1.0 / max_step)
        upper = None if high is None else (high - here) * (1.0 / max_step)
        d = d if lower is None else xp.where(d < lower, lower, d)
        d = d if upper is None else xp.where(d > upper, upper, d)
        d = xp.where(seen, d, xp.zeros_like(d))
    size = None
    if narrow(d):
        # Of directions of size 1 float32 holds the squares, however small or large the data.
        size = xp.max(xp.abs(d)) if d.size else xp.ones_like(xp.sum(d))
        size = xp.where(size > 0, size, xp.ones_like(size))
        d = d / size
    moved = A_S @ d
    weighted = moved if root is None else root * moved
    terms = [
        (domain, g, d),
        (domain, xp.abs(d), xp.ones_like(d)),
        (codomain, weighted, weighted),
    ]
    if subset.form is not None:
        terms.append((domain, d, subset.form((x, here, d))))
    along, length, data, *bend = inners(*terms)
    form = c * data + bend[0] if bend else c * data
    good = (form > 0) & (along < 0)
    ratio = xp.where(good, -along / xp.where(good, form, xp.ones_like(form)), along * 0)
    if size is not None:
        ratio, length = ratio / size, length * size
    best = xp.clip(ratio, 0.0, max_step)
    step = arrays.cast(xp.asarray(best if size is None else best * size), domain.dtype)
    step = float(step) if type(d) is np.ndarray else step
    x = subset.puts((x, clip(here + d * step, low, high)))
    if type(e) is np.ndarray and type(moved) is np.ndarray:
        moved *= step
        e -= moved
    else:
        e = e - moved * step
    return whole.home.pin(x), codomain.home.pin(e), length * best, best


def _measure(A: Any, x: Any, e: Any, root: Any, moved: Any, steps: Any) -> Any:
    """The numbers of a pass as one array: `<e, W e>`, `<e, e>`, `sum |x|`, and two that come in."""
    xp = arrays.namespace(e)
    weighted = e if root is None else root * e
    numbers = inners(
        (A.codomain, weighted, weighted),
        (A.codomain, e, e),
        (A.domain, xp.abs(x), xp.ones_like(x)),
    )
    like = numbers[0]
    return arrays.namespace(like).stack([*numbers, *(moved + 0 * like, steps + 0 * like)])
