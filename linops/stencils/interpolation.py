"""Interpolation between cells and faces, and from point values to averages over cells."""

from __future__ import annotations

from typing import Any

from linops.elementary.axes import axis_number
from linops.space import Space
from linops.stencils.declaration import offsets_along
from linops.stencils.faces import faces_of, named_sides
from linops.stencils.stencil import Stencil
from linops.stencils.weights import checked_order, interpolation

__all__ = ["Interpolation"]


class Interpolation(Stencil):
    """Values half a cell away, by polynomials of degree `order - 1`.

    Parameters
    ----------
    space
        The grid of cells.
    axis
        The axis along which values move, by name or number. For averages None is all axes.
    order
        Order of accuracy: 2, 4, 6 or 8.
    boundary
        As for `Stencil`, of the field that is interpolated.
    source, target
        `"cell"` to `"face"`, `"face"` to `"cell"`, or `"cell"` to `"average"`: from values in the
        middle of cells to means over them, `q + (q[i+1] - 2 q[i] + q[i-1]) / 24` along the axis.

    Notes
    -----
    Interpolation at scattered points is `linops.Interpolate`.
    """

    def __init__(
        self,
        space: Space,
        axis: str | int | None = None,
        order: int = 2,
        boundary: Any = "zero",
        source: str = "cell",
        target: str | None = None,
    ) -> None:
        order = checked_order(order, "Interpolation")
        pairs = named_sides("zero", space, "Interpolation")
        wanted = target or ("cell" if source == "face" else "face")
        if (source, wanted) not in (("cell", "face"), ("face", "cell"), ("cell", "average")):
            raise ValueError(
                "Interpolation leads from 'cell' to 'face' or 'average', or from 'face' to 'cell', "
                f"got {source!r} to {wanted!r}"
            )
        n = space.ndim
        axes = range(n) if axis is None else [axis_number(space, axis)]
        if wanted == "average":
            table: dict[tuple[int, ...], float] = {(0,) * n: 1.0 - len(axes) / 12}
            for a in axes:
                table.update(offsets_along(a, n, {-1: 1 / 24, 1: 1 / 24}))
            super().__init__(space, table, boundary, name="Interpolation")
            return
        if len(axes) > 1:
            raise ValueError(
                f"Interpolation between cells and faces is along one axis of {space}: name it"
            )
        moved = axes[0]
        where = ["face" if a == moved else "cell" for a in range(n)]
        row = interpolation(order)
        if source == "cell":
            super().__init__(
                space, offsets_along(moved, n, row), boundary, target=where, name="Interpolation"
            )
            return
        from linops.stencils.boundary import linear_part, sides

        pairs = linear_part(sides(boundary, n, "Interpolation"))
        super().__init__(
            faces_of(space, moved, pairs[moved]),
            offsets_along(moved, n, {o + 1: w for o, w in row.items()}),
            boundary,
            source=where,
            name="Interpolation",
        )
