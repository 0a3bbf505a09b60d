"""Weights of central, second and staggered differences and of interpolation, orders 2 to 8.

Exact fractions of the classical formulas on a uniform grid (B. Fornberg, Math. Comp. 51, 1988),
as tables `{offset: weight}` for spacing 1.
"""

from __future__ import annotations

from fractions import Fraction as F
from typing import Any

__all__ = ["ORDERS", "central", "checked_order", "interpolation", "second", "staggered"]

ORDERS = (2, 4, 6, 8)

_CENTRAL = {
    2: (F(1, 2),),
    4: (F(2, 3), F(-1, 12)),
    6: (F(3, 4), F(-3, 20), F(1, 60)),
    8: (F(4, 5), F(-1, 5), F(4, 105), F(-1, 280)),
}
_SECOND = {
    2: (F(-2), F(1)),
    4: (F(-5, 2), F(4, 3), F(-1, 12)),
    6: (F(-49, 18), F(3, 2), F(-3, 20), F(1, 90)),
    8: (F(-205, 72), F(8, 5), F(-1, 5), F(8, 315), F(-1, 560)),
}
_STAGGERED = {
    2: (F(1),),
    4: (F(9, 8), F(-1, 24)),
    6: (F(75, 64), F(-25, 384), F(3, 640)),
    8: (F(1225, 1024), F(-245, 3072), F(49, 5120), F(-5, 7168)),
}
_INTERPOLATION = {
    2: (F(1, 2),),
    4: (F(9, 16), F(-1, 16)),
    6: (F(150, 256), F(-25, 256), F(3, 256)),
    8: (F(1225, 2048), F(-245, 2048), F(49, 2048), F(-5, 2048)),
}


def checked_order(order: Any, owner: str) -> int:
    """The order of accuracy, if there is a table for it.

    Raises
    ------
    ValueError
        For another order; nothing is rounded up.
    """
    if isinstance(order, bool) or order not in ORDERS:
        raise ValueError(f"{owner}: the order of accuracy is one of 2, 4, 6, 8, got {order!r}")
    return int(order)


def central(order: int) -> dict[int, float]:
    """First derivative at the points: `sum c_m (u[i+m] - u[i-m])`."""
    table: dict[int, float] = {}
    for m, c in enumerate(_CENTRAL[order], 1):
        table[-m], table[m] = float(-c), float(c)
    return table


def second(order: int) -> dict[int, float]:
    """Second derivative: `a_0 u[i] + sum a_m (u[i+m] + u[i-m])`."""
    table = {0: float(_SECOND[order][0])}
    for m, a in enumerate(_SECOND[order][1:], 1):
        table[-m] = table[m] = float(a)
    return table


def staggered(order: int) -> dict[int, float]:
    """First derivative at the left face of a cell: `sum s_m (u[f+m-1] - u[f-m])`."""
    table: dict[int, float] = {}
    for m, s in enumerate(_STAGGERED[order], 1):
        table[m - 1], table[-m] = float(s), float(-s)
    return table


def interpolation(order: int) -> dict[int, float]:
    """Value at the left face of a cell: `sum b_m (u[f+m-1] + u[f-m])`."""
    table: dict[int, float] = {}
    for m, b in enumerate(_INTERPOLATION[order], 1):
        table[m - 1] = table[-m] = float(b)
    return table


def symbol(order: int, angle: Any) -> Any:
    """`h^2` times the eigenvalue of the second derivative for the wave `exp(i angle j)`."""
    import numpy as np

    a = _SECOND[order]
    total = np.full(np.shape(angle), float(a[0]))
    for m, weight in enumerate(a[1:], 1):
        total = total + 2.0 * float(weight) * np.cos(m * np.asarray(angle))
    return total
