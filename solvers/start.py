"""Where iterations begin, and how large things are there.

An operator may know an estimate of its inverse in closed form (`_approximate_inverse`; projectors
have filtered backprojection). Its image, scaled to fit the measurements, is a start that is a
stone's throw from the solution; sizes of steps and strengths of priors follow from it, so that a
scan in millimetres and the same scan in metres are solved alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linops import arrays
from linops.linear_operator import LinearOperator
from linops.space import AnySpace
from solvers.elements import (
    add_scaled,
    admit,
    batch_of,
    clip,
    each,
    first,
    products,
    ratio,
    require_finite,
    zeros,
)

__all__ = ["admit_start", "analytic_start", "spread_start", "typical_size"]


def admit_start(x0: Any) -> Any:
    """`x0` as `Solve` takes it, and whether the analytic start is asked for (by None).

    Raises
    ------
    ValueError
        For a word that is not "zero".
    """
    if isinstance(x0, str):
        if x0 != "zero":
            raise ValueError(f"x0 is {x0!r}; it is an array, 'zero', or None: the analytic start")
        return None, False
    return x0, x0 is None


def spread_start(x0: Any, space: AnySpace, batch: tuple[int, ...], like: Any) -> Any:
    """A private copy of `x0`, the same one for each member of the batch if it has none."""
    x = admit(x0, space, "x0", like=like)
    given = batch_of(x, space)
    if given != batch:
        if given:
            raise ValueError(f"x0 has the batch axes {given}, y has {batch}")
        x = each(lambda a, b: a + b, zeros(space, batch, like), x)
    require_finite(x, "x0")
    return x


def analytic_start(
    A: LinearOperator,
    y: Any,
    W: Any = None,
    low: float | None = None,
    high: float | None = None,
    mask: np.ndarray | None = None,
) -> tuple[Any, Any] | None:
    """`a x` and `a A x` with x the analytic estimate within bounds and
    `a = <W A x, y> / <W A x, A x>`; None where there is no estimate.

    Parameters
    ----------
    A
        The operator, lowered or not.
    y
        Admitted measurements; each member of a batch has its own a.
    W
        Statistical weights, an array like y, or None.
    low, high
        Bounds that the estimate is clipped to.
    mask
        Of 0 and 1, broadcast against the last axes of the domain: the estimate is 0 outside.
    """
    whole: Any = A._identity()
    inverse = whole._approximate_inverse() if isinstance(whole, LinearOperator) else None
    if inverse is None:
        return None
    estimate = inverse(A.codomain.home.gather(y))
    x = each(lambda part, like: arrays.convert(part, first(y)), estimate, estimate)
    if mask is not None:
        x = each(
            lambda part: part * arrays.cast(arrays.convert(mask, part), arrays.dtype_of(part)), x
        )
    x = A.domain.home.put(each(lambda part: clip(part, low, high), x))
    return _fit(A, y, x, W, low, high)


def _fit(
    A: LinearOperator, y: Any, x: Any, W: Any, low: float | None, high: float | None
) -> tuple[Any, Any] | None:
    image = A @ x
    weighted = image if W is None else W * image
    along, square = products((A.codomain, weighted, y), (A.codomain, weighted, image))
    good = np.isfinite(along) & np.isfinite(square) & (along > 0)
    factor = ratio(np.where(good, along, 0.0), np.where(good, square, 0.0), good)
    nothing = zeros(A.domain, along.shape, y), zeros(A.codomain, along.shape, y)
    if not good.any():
        return nothing
    start = add_scaled(nothing[0], factor, x)
    if low or high is not None:  # bounds other than 0 do not scale
        start = each(lambda part: clip(part, low, high), start)
        return start, A @ start
    return start, add_scaled(nothing[1], factor, image)


def typical_size(A: LinearOperator, y: Any, x: Any, image: Any, W: Any = None) -> np.ndarray:
    """How large entries of a solution are, for each member of a batch; 0 for measurements of 0.

    The root mean square of the positive entries of x, scaled to fit y; where `A x` is 0, that of
    the backprojection. `image` is `A x`.
    """
    weighted = y if W is None else W * y
    size = _size(A, weighted, x, image, W)
    if (size > 0).all():
        return size
    back = A.H @ weighted
    return np.where(size > 0, size, _size(A, weighted, back, A @ back, W))


def _size(A: LinearOperator, weighted: Any, x: Any, image: Any, W: Any) -> np.ndarray:
    xp = arrays.namespace(first(x))
    above = each(lambda part: xp.where(part > 0, part, xp.zeros_like(part)), x)
    ones = each(lambda part: arrays.cast(part > 0, arrays.dtype_of(part)), x)
    along, square, total, count = products(
        (A.codomain, image, weighted),
        (A.codomain, image, image if W is None else W * image),
        (A.domain, above, above),
        (A.domain, ones, ones),
    )
    everywhere = np.ones(along.shape, bool)
    scale, mean = ratio(along, square, everywhere), ratio(total, count, everywhere)
    return np.asarray(abs(scale) * np.sqrt(mean))
