"""Simultaneous iterative reconstruction (SIRT) with row and column sums as weights."""

from __future__ import annotations

from typing import Any, Unpack

from linops import arrays
from linops.linear_operator import LinearOperator
from linops.space import AnySpace
from solvers.compiled import iterate
from solvers.controls import bounds_pair, positive
from solvers.decorator import Controls, solver
from solvers.elements import (
    admit,
    choose,
    clip,
    each,
    first,
    require_sums,
    subtract,
    zeros,
)
from solvers.loop import Solve
from solvers.measurement_weights import GRAZING, reciprocal
from solvers.result import SolverResult

__all__ = ["sirt"]


@solver("A")
def sirt(
    A: LinearOperator,
    y: Any,
    *,
    iterations: int,
    x0: Any = None,
    relaxation: float = 1.0,
    bounds: tuple[float | None, float | None] | None = (0, None),
    row_sums: Any = None,
    column_sums: Any = None,
    **controls: Unpack[Controls],
) -> SolverResult:
    """Iterate `x += relaxation C A.H (R (y - A x))`, clipped to `bounds`.

    R is 1 / (A 1), C is 1 / (A.H 1), and 0 where a sum is not positive. R is 0 too where a ray's
    sum is below 1e-6 of the largest: a ray that grazes a corner says nothing about it, and what
    else it carries would be divided by that length.

    Parameters
    ----------
    A
        A linear operator whose entries are not negative (tag `"nonnegative"`); another one
        needs `row_sums` and `column_sums`.
    y
        Measurements; leading batch axes are solved side by side.
    relaxation
        Step, > 0; it converges below 2.
    bounds
        `(low, high)`, None for no bound.
    row_sums, column_sums
        Sums of |A| along rows (an element of the codomain) and columns (of the domain).
    iterations, x0
        As for `cgls`.
    **controls
        The residual is `|y - A x|`.

    Raises
    ------
    ValueError
        For bad controls, measurements that are not finite, or an operator without the tag and
        without sums, before A is applied.
    CheckpointError
        As for `cgls`.
    """
    relaxation = positive("relaxation", relaxation)
    low, high = bounds_pair(bounds)
    bounded = low is not None or high is not None
    if bounded and A.domain.is_complex:
        raise ValueError(f"bounds {bounds!r} order real numbers; pass bounds=None on {A.domain}")
    if (row_sums is None or column_sums is None) and "nonnegative" not in A.tags:
        raise ValueError(
            f"SIRT weighs by the sums of |A|, which A @ 1 gives only where no entry is negative: "
            f"{A.name} has no tag 'nonnegative'. Declare it (tags=('nonnegative',)), or pass "
            "row_sums and column_sums"
        )
    run = Solve(
        "sirt",
        A,
        y,
        true_adjoint=False,
        iterations=iterations,
        x0=x0,
        settings={
            "relaxation": relaxation,
            "bounds": [low, high],
            "row_sums": row_sums,
            "column_sums": column_sums,
        },
        **controls,
    )
    sums = [
        None if given is None else admit(given, space, name, like=run.y)
        for given, space, name in (
            (row_sums, A.codomain, "row_sums"),
            (column_sums, A.domain, "column_sums"),
        )
    ]
    for found, name in zip(sums, ("row_sums", "column_sums"), strict=True):
        if found is not None:
            require_sums(found, name)
    run.keep_state(x=A.domain)
    r = run.first_residual()
    run.begin_at(r)
    R = C = None
    if run.going:
        like = first(run.y)
        rows = A @ _ones(A.domain, like) if sums[0] is None else sums[0]
        R = _reciprocal(rows, A.codomain, 1.0, GRAZING)
        # Relaxation travels with C: one multiplication less in every iteration.
        columns = A.H @ _ones(A.codomain, like) if sums[1] is None else sums[1]
        C = _reciprocal(columns, A.domain, relaxation)
    return iterate(run, _iteration, (A, run.y, R, C, low, high), (run.x, r), ("x",))


def _iteration(
    terms: tuple[Any, ...], state: tuple[Any, Any], active: Any, _: Any, dots: Any
) -> tuple[tuple[Any, Any], Any]:
    """One iteration: x and its residual, and |r|^2."""
    A, y, R, C, low, high = terms
    x, r = state
    update = A.H @ each(_times, R, r)
    moved = each(lambda x, c, u: clip(x + c * u, low, high), x, C, update)
    x = A.domain.home.pin(choose(active, moved, x))
    r = A.codomain.home.pin(subtract(y, A @ x))
    return (x, r), dots((A.codomain, r, r))


def _times(weights: Any, x: Any) -> Any:
    return weights * x


def _ones(space: Any, like: Any) -> Any:
    return each(lambda part: arrays.namespace(part).ones_like(part), zeros(space, (), like))


def _reciprocal(sums: Any, space: AnySpace, factor: float, share: float = 0.0) -> Any:
    """`factor / sums`, 0 where they are not positive or below a share of the largest."""

    def part(s: Any) -> Any:
        if arrays.dtype_of(s).kind == "c":
            s = arrays.namespace(s).real(s)
        return reciprocal(s, factor, share * arrays.largest(s) if share else 0.0)

    return each(part, space.home.clear_padding(sums))
