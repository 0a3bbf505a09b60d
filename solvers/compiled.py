"""Iterations as one compiled loop, where elements live on devices that are programmed as a whole.

`Space.compiled` says whether they do. Inside nothing is read by the host: residuals are noted in an
array, and the loop ends where a member of the batch meets its tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from linops import arrays
from linops.operator import LinearOperator
from solvers.elements import chosen, first, sums

__all__ = ["LONGEST", "noted", "steps"]

LONGEST = 50
"""Iterations of one loop at most."""


def steps(
    A: LinearOperator,
    step: Callable[[Any, Any], Any],
    state: tuple[Any, ...],
    count: Any,
    active: Any,
    bound: Any,
) -> tuple[tuple[Any, ...], Any, Any]:
    """`state = step(k, state)` at most `count` times; it ends after one that meets `bound`.

    Parameters
    ----------
    A
        Says where elements live.
    step
        One iteration.
    state
        Elements of the domain, and last the residual.
    count
        At most `LONGEST`.
    active, bound
        The members of the batch that are still solved for, and the norms they are to reach.

    Returns
    -------
    state, made, history
        How many iterations were made, and the square of the residual's norm after each.
    """
    xp = arrays.namespace(first(state[-1]))
    rows, pinned = A.codomain, A.domain.pinned

    def body(k: Any, carried: Any) -> Any:
        state, _, history, _ = carried
        *front, r = step(k, state)
        (rr,) = sums((rows, r, r))
        ends = xp.any(active & (xp.sqrt(rr) <= bound))
        return (*map(pinned, front), rows.pinned(r)), k + 1, noted(history, k, rr), ends

    (start,) = sums((rows, state[-1], state[-1]))
    history = xp.zeros((LONGEST, *start.shape), dtype=start.dtype)
    found, made, history, _ = arrays.loop(
        count, body, (state, 0, history, xp.asarray(False)), going=lambda carried: ~carried[-1]
    )
    return found, made, history


def noted(history: Any, k: Any, value: Any) -> Any:
    """A history with `value` at place `k`."""
    xp = arrays.namespace(history)
    return chosen(xp.arange(history.shape[0]) == k, xp.broadcast_to(value, history.shape), history)
