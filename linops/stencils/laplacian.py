"""The Laplacian of orders 2 to 8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from linops.errors import ShapeError
from linops.space import Space
from linops.stencils.declaration import added_tables, offsets_along
from linops.stencils.stencil import Stencil
from linops.stencils.weights import checked_order, second

__all__ = ["Laplacian"]


class Laplacian(Stencil):
    """`sum_d k_d d^2/dx_d^2` by central differences.

    Parameters
    ----------
    space
        The domain; distances are its spacing, 1 where it has none.
    order
        Order of accuracy: 2, 4, 6 or 8; the reach is half of it.
    boundary
        As for `Stencil`.
    weights
        `k_d`, one number or one an axis; 0 leaves an axis out.

    Notes
    -----
    Symmetric and negative semidefinite for every mixture of `"periodic"`, `"zero"`, `"even"` and
    `"odd"`; definite unless every axis is periodic, or even on both sides.

    >>> import numpy as np
    >>> L = Laplacian(Space(4, spacing=0.5), boundary="odd")
    >>> L @ np.ones(4, "float32")
    array([-8.,  0.,  0., -8.], dtype=float32)
    """

    def __init__(
        self,
        space: Space,
        order: int = 2,
        boundary: Any = "zero",
        weights: float | Sequence[float] = 1.0,
    ) -> None:
        if not isinstance(space, Space) or space.ndim == 0:
            raise ShapeError(f"Laplacian takes a space with one or more axes, got {space}")
        order = checked_order(order, "Laplacian")
        factors = np.broadcast_to(np.asarray(weights, float), (space.ndim,))
        steps = space.spacing or (1.0,) * space.ndim
        tables = [
            offsets_along(axis, space.ndim, {o: k * (w / h**2) for o, w in second(order).items()})
            for axis, (k, h) in enumerate(zip(factors.tolist(), steps, strict=True))
            if k
        ]
        table = added_tables({(0,) * space.ndim: 0.0}, *tables)
        super().__init__(space, table, boundary, name="Laplacian")
