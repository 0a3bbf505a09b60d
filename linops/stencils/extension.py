"""The boundary itself as an operator: cells to cells with ghosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from linops.errors import ShapeError
from linops.space import Space
from linops.stencils.boundary import linear_part, sides
from linops.stencils.line import Line
from linops.stencils.slices import Tap
from linops.stencils.stencil import Stencil

__all__ = ["Extension"]


class Extension(Stencil):
    """`x` with `width` cells more on both sides of each axis, filled as the boundary says.

    Parameters
    ----------
    space
        The domain.
    width
        Cells on each side, one number or one an axis; wider than the axis is allowed.
    boundary
        As for `Stencil`.

    Notes
    -----
    Axes are extended one after the other, so corners hold the mirror of a mirror. The adjoint
    adds every ghost to the cell that it was read from. Axes that are extended do not split.

    >>> import numpy as np
    >>> E = Extension(Space(3), 2, boundary="odd")
    >>> E @ np.array([1, 2, 3], "float32")
    array([-2., -1.,  1.,  2.,  3., -3., -2.], dtype=float32)
    """

    def __init__(
        self, space: Space, width: int | Sequence[int], boundary: Any = "periodic"
    ) -> None:
        if not isinstance(space, Space) or space.ndim == 0:
            raise ShapeError(f"Extension takes a space with one or more axes, got {space}")
        given = (width,) * space.ndim if isinstance(width, (int, np.integer)) else tuple(width)
        if len(given) != space.ndim or any(int(w) != w or w < 0 for w in given):
            raise ShapeError(
                f"Extension: the width is a number of cells, one or one for each of the "
                f"{space.ndim} axes, got {width!r}"
            )
        pairs = linear_part(sides(boundary, space.ndim, "Extension"))
        self._extend(
            space,
            [
                Line(n, n + 2 * int(w), -int(w), 0, 0, pair)
                for n, w, pair in zip(space.shape, given, pairs, strict=True)
            ],
            "Extension",
        )

    @classmethod
    def _of_widths(
        cls, space: Space, widths: Mapping[int, tuple[int, int]], kind: str
    ) -> Extension:
        """Another width on both sides; `"reflect"` is the mirror about the last plane."""
        pair = ("even", "even") if kind == "reflect" else (kind, kind)
        lines = []
        for i, n in enumerate(space.shape):
            before, after = widths.get(i, (0, 0))
            lines.append(Line(n, n + before + after, -before, 0, 0, pair, kind == "reflect"))
        return cls._opened(lambda made: made._extend(space, lines, "Pad"))

    def _extend(self, space: Space, lines: Sequence[Line], name: str) -> None:
        taps = (Tap(0, 0, (0,) * space.ndim, 1.0, -1),)
        starts = np.zeros(space.ndim, np.int32)
        self._set_up(space, (tuple(lines),), taps, (), None, starts, name)
