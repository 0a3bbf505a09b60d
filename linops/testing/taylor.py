"""The Taylor test: whether a nonlinear operator's Jacobian is its derivative."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from linops import arrays
from linops.arguments import checked
from linops.operator import Operator
from linops.space import ProductSpace

__all__ = ["taylor_test"]


@checked
def taylor_test(
    f: Operator, x: Any, dx: Any = None, *, step: float | None = None, seed: int = 0
) -> float:
    """The order at which `f(x + h dx) - f(x) - h f'(x) dx` vanishes, 2 for a right derivative.

    Parameters
    ----------
    f
        An `Operator` with a Jacobian.
    x, dx
        Point and direction, elements of the domain; a Gaussian direction by default.
    step
        The largest h, halved twice; by default eps ** (1/4) times |x| / |dx|.
    seed
        Of the direction.

    Returns
    -------
    float
        The smaller of the two observed orders; infinity where the remainder is rounding alone, as
        for a linear operator.

    Raises
    ------
    AssertionError
        Below an order of 1.5.
    """
    domain, codomain = f.domain, f.codomain
    dx = domain.random(seed) if dx is None else dx
    eps = float(np.finfo(f.dtype).eps)
    if step is None:
        step = eps**0.25 * max(float(domain.norm(x)), 1.0) / max(float(domain.norm(dx)), 1e-300)

    def at(point: Any) -> Any:
        value = f(point)  # a Python number where f is a functional
        return np.asarray(value, codomain.dtype) if isinstance(value, float) else value

    y, slope = at(x), f.jvp(x, dx)
    remainders, sizes = [], []
    for h in (step, step / 2, step / 4):
        moved = at(_sum(x, dx, h, domain))
        rest = _sum(_sum(moved, y, -1.0, codomain), slope, -h, codomain)
        remainders.append(float(codomain.norm(rest)))
        sizes.append(float(codomain.norm(moved)) + float(codomain.norm(y)))
    if all(r <= 16 * eps * s for r, s in zip(remainders, sizes, strict=True)):
        return float("inf")
    orders = [
        float(np.log2(a / b)) if b > 0 else float("inf") for a, b in itertools.pairwise(remainders)
    ]
    if not min(orders) >= 1.5:
        raise AssertionError(
            f"{f!r} fails the Taylor test: the remainders {remainders} shrink at the orders "
            f"{orders} instead of 2 as h is halved from {step:.3g}; its Jacobian is not its "
            "derivative"
        )
    return min(orders)


def _sum(a: Any, b: Any, factor: float, space: Any) -> Any:
    if isinstance(space, ProductSpace):
        return tuple(_sum(p, q, factor, m) for p, q, m in zip(a, b, space.spaces, strict=True))
    return np.asarray(a + factor * b) if arrays.is_numpy(a) else a + factor * b
