"""Conjugate gradients of positive semidefinite maps (Hestenes, Stiefel 1952), inside solvers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from linops.space import AnySpace
from solvers.elements import add_scaled, products, ratio, subtract

__all__ = ["conjugate_gradients"]


def conjugate_gradients(
    normal: Callable[[Any], Any],
    right: Any,
    x: Any,
    space: AnySpace,
    steps: int,
    rtol: float = 0.0,
) -> Any:
    """At most so many steps for `normal(x) = right` from x; each member of a batch has its own.

    They end where no residual is above `rtol` times its first one.
    """
    r = subtract(right, normal(x))
    p = r
    (rr,) = products((space, r, r))
    least = rtol**2 * np.asarray(rr)
    for _ in range(steps):
        if not np.any(rr > least):
            break
        q = normal(p)
        (curvature,) = products((space, p, q))
        length = ratio(rr, curvature, curvature > 0)
        x, r = add_scaled(x, length, p), add_scaled(r, -length, q)
        (after,) = products((space, r, r))
        p = add_scaled(r, ratio(after, rr, rr > 0), p)
        rr = after
    return x
