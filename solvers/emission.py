"""Maximum likelihood for Poisson counts (Shepp, Vardi 1982), on ordered subsets too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.linear_operator import LinearOperator
from solvers.controls import require_real_arrays
from solvers.decorator import Controls, solver
from solvers.elements import admit, choose, products, require_finite, subtract
from solvers.loop import Solve
from solvers.ordered_subsets import cut_subsets
from solvers.result import SolverResult

__all__ = ["mlem", "osem"]


@solver("A")
def mlem(
    A: LinearOperator,
    counts: Any,
    background: Any = 0.0,
    *,
    iterations: int,
    x0: Any = None,
    **controls: Unpack[Controls],
) -> SolverResult:
    """Maximise the likelihood of Poisson counts with mean `A x + background`, x >= 0.

        x <- x / (A.H 1) * A.H (counts / (A x + background))

    Parameters
    ----------
    A
        A linear operator between real arrays, with entries >= 0.
    counts
        Counts >= 0, an element of the codomain; leading batch axes are solved side by side.
    background
        Expected counts from elsewhere (scatter, randoms, darks), >= 0: a number, or an array of
        the codomain's shape.
    iterations
        The most to make; when resuming, in total.
    x0
        Start > 0, by default ones.
    **controls
        The residual is `|counts - background - A x|`.

    Returns
    -------
    SolverResult
        With a history `divergence`, the Kullback-Leibler divergence of the counts from their mean,
        which does not rise.

    Raises
    ------
    ValueError
        For counts, a background or a start that are negative, and where `A.H 1` is.

    Notes
    -----
    Voxels that no measurement sees keep their start. L. A. Shepp, Y. Vardi, IEEE Trans. Med.
    Imaging 1 (1982), equation 2.13; with a background, Politte, Snyder 1991.
    """
    return osem(A, counts, background, iterations=iterations, x0=x0, subsets=1, **controls)


@solver("A")
def osem(
    A: LinearOperator,
    counts: Any,
    background: Any = 0.0,
    *,
    iterations: int,
    x0: Any = None,
    subsets: int | Sequence[Sequence[int]] = 8,
    axis: str | int = 0,
    **controls: Unpack[Controls],
) -> SolverResult:
    """`mlem` with one subset of the measurements after the other (Hudson, Larkin 1994).

    Parameters
    ----------
    A, counts, background, x0
        As for `mlem`.
    iterations
        Passes over all subsets.
    subsets, axis
        How many subsets of which axis of the codomain: subset s has the planes s, s + n, ...; or
        the planes of each.
    **controls
        As for `mlem`.

    Returns
    -------
    SolverResult
        As of `mlem`; with more than one subset it need not converge, and the divergence may rise.
    """
    require_real_arrays(A, "osem (or mlem)")
    known = _background(A, background, counts)
    parts = cut_subsets(A, subsets, axis)
    name = "mlem" if len(parts) == 1 else "osem"
    run = Solve(
        name, A, counts, iterations=iterations, x0=x0,
        settings={
            "background": known, "subsets": [part.planes for part in parts],
            "axis": parts[0].axis,
        },
        **controls,
    )  # fmt: skip
    _require_positive(run.y, "counts")
    run.keep_state(x=A.domain)
    if run.restored is None:
        _require_positive(run.x, "x0")
        if not run.started:
            run.x = arrays.namespace(run.x).ones_like(run.x)
    x = run.x
    mean = A @ x + known
    run.begin_at(subtract(run.y, mean))
    seen: list[Array] = []
    if run.going:
        for part in parts:
            like = part.take(run.y)[(0,) * len(run.batch)]
            seen.append(part.A.H @ arrays.namespace(like).ones_like(like))
            _require_positive(seen[-1], f"{A.name}.H @ 1")
    while run.going:
        moved = x
        for part, sums in zip(parts, seen, strict=True):
            y = part.take(run.y)
            expected = mean if len(parts) == 1 else part.A @ moved + part.take(known)
            moved = _times(moved, part.A.H @ _quotient(y, expected), sums)
        x = choose(run.active, moved, x)
        mean = A @ x + known
        r = subtract(run.y, mean)
        (rr,) = products((A.codomain, r, r))
        record = {"divergence": float(np.sum(_divergence(A.codomain, run.y, mean)))}
        run.record(np.sqrt(rr), x, lambda x=x: {"x": x}, record)  # type: ignore[misc]
    return run.result()


def _background(A: LinearOperator, background: Any, counts: Any) -> Array:
    space: Any = A.codomain
    if not arrays.is_array(background):
        value = float(background)
        like = space.zeros(counts) if arrays.is_array(counts) else space.zeros()
        background = arrays.namespace(like).full_like(like, value)
    known = admit(background, space, "background", like=counts)
    require_finite(known, "background")
    _require_positive(known, "background")
    return known


def _require_positive(x: Array, name: str) -> None:
    if x.size and arrays.item(arrays.namespace(x).any(x < 0)):
        raise ValueError(f"{name} holds negative entries; wanted values >= 0")


def _quotient(y: Array, mean: Array) -> Array:
    """`y / mean`; 0 / 0, of a measurement that nothing reaches, counts as 1."""
    xp = arrays.namespace(y)
    good = mean > 0
    return xp.where(good, y / xp.where(good, mean, xp.ones_like(mean)), xp.ones_like(y) * (y <= 0))


def _times(x: Array, back: Array, sums: Array) -> Array:
    xp = arrays.namespace(x)
    good = sums > 0
    return xp.where(good, x * back / xp.where(good, sums, xp.ones_like(sums)), x)


def _divergence(space: Any, y: Array, mean: Array) -> Any:
    """`sum mean - y + y log(y / mean)`."""
    xp = arrays.namespace(y)
    one = xp.ones_like(y)
    logs = xp.where(
        (y > 0) & (mean > 0),
        xp.log(xp.where(y > 0, y, one) / xp.where(mean > 0, mean, one)),
        0 * one,
    )
    first, second = products((space, mean - y, one), (space, y, logs))
    return first + second
