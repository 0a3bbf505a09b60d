"""Iterations: one by one, or as one compiled loop where elements live on devices that are
programmed as a whole.

`Home.compile` says where they do. In a compiled loop nothing is read by the host: what an
iteration measures is noted in an array, and the loop ends where a member of the batch meets its
tolerance. The same function makes an iteration either way; only its sums are read, or not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from linops import arrays
from solvers.elements import choose, first, fits_float32, narrow, products, sums
from solvers.loop import Solve
from solvers.result import SolverResult

__all__ = ["LONGEST", "iterate", "steps"]

LONGEST = 50
"""Iterations of one loop at most."""

Iteration = Callable[..., tuple[tuple[Any, ...], Sequence[Any]]]


def iterate(
    run: Solve,
    iteration: Iteration,
    terms: Any,
    state: tuple[Any, ...],
    names: Sequence[str],
    *,
    measures: int = 1,
    table: Callable[[np.ndarray], np.ndarray] | None = None,
    record: Callable[[np.ndarray], dict[str, float]] | None = None,
) -> SolverResult:
    """Iterate until the run ends.

    Parameters
    ----------
    run
        Begun.
    iteration
        `iteration(terms, state, active, at, dots)` gives the next state and what it measured, one
        number a member of the batch each, first `|r|^2`. `dots` is `products` or `sums`; `at` is a
        row of `table`. A function of its module: loops of equal structure share a program.
    terms
        What the iterations share: operators, arrays and floats.
    state
        Elements, first the solution.
    names
        By which a checkpoint has the first of them.
    measures
        How many numbers an iteration measures.
    table
        For the numbers of iterations, counted from 1, rows of numbers that differ from one to the
        next.
    record
        Entries of the result's `histories`, from what was measured.
    """
    several = run.A.domain.home.compile(_several(iteration, measures))
    if narrow(first(state[0])) and not fits_float32(run.history[-1] ** 2):
        several = None  # no traced scalar would hold the squares of such residuals
    rows = 1 if several is None else LONGEST

    def snapshot() -> dict[str, Any]:
        return dict(zip(names, state, strict=False))

    while run.going:
        numbers = run.iteration + 1 + np.arange(rows)
        at = np.zeros((rows, 0)) if table is None else table(numbers)
        made: list[np.ndarray]
        if several is None:
            state, found = iteration(terms, state, run.active, at[0].tolist(), products)
            made = [np.stack([np.asarray(arrays.to_numpy(v), np.float64) for v in found])]
        else:
            count = run.ahead(LONGEST)
            state, count, notes = several(terms, state, at, count, run.active, run.bound)
            made = list(np.asarray(notes, np.float64)[: int(count)])
        for values in made:
            noted = None if record is None else record(values)
            run.record(np.sqrt(values[0]), state[0], snapshot, noted)
    run.x = state[0]
    return run.result()


def steps(
    step: Callable[[Any, Any], tuple[tuple[Any, ...], Sequence[Any], Any]],
    state: tuple[Any, ...],
    count: Any,
    active: Any,
    bound: Any,
    measures: int = 1,
    discard: bool = False,
) -> tuple[tuple[Any, ...], Any, Any]:
    """`state, measured, ends = step(k, state)` at most `count` times, as one loop.

    Parameters
    ----------
    step
        One iteration. It is the last where an active member meets `bound`, or `ends`.
    state
        Elements and numbers; those placed on devices are held there by the step.
    count
        At most `LONGEST`.
    active, bound
        The members of the batch that are still solved for, and the norms they are to reach.
    measures
        How many numbers a step measures for each member, first `|r|^2`.
    discard
        Whether an iteration that ended the loop is taken back.

    Returns
    -------
    state, made, notes
        How many iterations were made, and what each measured, `(LONGEST, measures, *batch)`.
    """
    xp = arrays.namespace(active)
    bound = xp.asarray(bound)
    # The host, in float64, has the last word: this may only be early.
    near = bound * (1 + 8 * float(np.finfo(arrays.dtype_of(bound)).eps))
    places = xp.arange(LONGEST)

    def body(k: Any, carried: Any) -> Any:
        old, made, notes, _ = carried
        new, values, ends = step(k, old)
        ends = xp.any(active & ((xp.sqrt(values[0]) <= near) | ends))
        row = xp.stack([arrays.cast(value, arrays.dtype_of(notes)) for value in values])
        notes = choose(places == k, xp.broadcast_to(row, notes.shape), notes)
        if discard:
            return tuple(map(functools.partial(choose, ends), old, new)), made + ~ends, notes, ends
        return new, made + 1, notes, ends

    notes = xp.zeros((LONGEST, measures, *active.shape), dtype=bound.dtype)
    start = state, xp.asarray(0), notes, xp.asarray(False)
    found, made, notes, _ = arrays.loop(count, body, start, going=lambda carried: ~carried[-1])
    return found, made, notes


@functools.cache
def _several(iteration: Iteration, measures: int) -> Callable[..., Any]:
    """At most `count` iterations as one loop."""

    def several(terms: Any, state: Any, at: Any, count: Any, active: Any, bound: Any) -> Any:
        at = arrays.cast(at, terms[0].domain.dtype)

        def step(k: Any, state: Any) -> Any:
            return *iteration(terms, state, active, at[k], sums), False

        return steps(step, state, count, active, bound, measures)

    return several
