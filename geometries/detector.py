"""`Detector`: the cells that rays end in, on a plane or on a cylinder.

Where each view's detector stands in the world is the trajectory's business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from geometries.grid import cell_centers, extents, lengths, short
from linops.errors import GeometryError

__all__ = ["Detector"]


@dataclass(frozen=True, init=False, repr=False)
class Detector:
    """Equal cells in columns along u and, for volumes, rows along v.

    The ray of cell (row i, column j) runs through `C + a u + b v` with
    `a = (j - (cols - 1) / 2) * du + u0`, `b = (i - (rows - 1) / 2) * dv + v0`.

    Parameters
    ----------
    shape
        `(cols,)` or a number for images, `(rows, cols)` for volumes.
    pitch
        Size of a cell in physical length: one number or one for each axis, row first.
    offset
        Position `u0` of the detector's middle along u (`(v0, u0)` with rows), in physical
        length, not in cells. One number stands for every axis.
    curvature
        None for a flat detector. A radius R > 0 makes a cylinder with its axis parallel to v: the
        column at arc length a stands at `C + R sin(a/R) u + R (cos(a/R) - 1) n`, n pointing away
        from the source; `R = source_to_detector` is the equiangular detector.

    Raises
    ------
    GeometryError
        Naming the argument.

    Examples
    --------
    >>> Detector(4).columns()
    array([-1.5, -0.5,  0.5,  1.5])
    """

    shape: tuple[int, ...]
    pitch: tuple[float, ...]
    offset: tuple[float, ...]
    curvature: float | None

    def __init__(
        self,
        shape: int | Sequence[int],
        pitch: float | Sequence[float] = 1.0,
        offset: float | Sequence[float] = 0.0,
        curvature: float | None = None,
    ) -> None:
        cells = extents(shape, "Detector shape")
        if len(cells) not in (1, 2):
            raise GeometryError(f"Detector shape is {shape!r}; it is (cols,) or (rows, cols)")
        steps = lengths(pitch, len(cells), "Detector pitch", positive=True)
        shift = lengths(offset, len(cells), "Detector offset")
        radius = None
        if curvature is not None:
            radius = lengths(curvature, 1, "Detector curvature", positive=True)[0]
            reach = max(abs(x) for x in _ends(cells[-1], steps[-1], shift[-1]))
            if reach > math.pi * radius:
                raise GeometryError(
                    f"Detector curvature is {curvature!r}: columns at an arc length of {reach:g} "
                    f"go round more than half of that circle; the radius is at least "
                    f"{reach / math.pi:g}"
                )
        object.__setattr__(self, "shape", cells)
        object.__setattr__(self, "pitch", steps)
        object.__setattr__(self, "offset", shift)
        object.__setattr__(self, "curvature", radius)

    @property
    def dims(self) -> int:
        """2 where it looks at images, 3 where it looks at volumes."""
        return len(self.shape) + 1

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, in array order."""
        return ("row", "col")[-len(self.shape) :]

    def columns(self) -> np.ndarray:
        """Positions of the columns along u (arc lengths if curved): float64, `(cols,)`."""
        return cell_centers(self.shape[-1], self.pitch[-1], self.offset[-1])

    def rows(self) -> np.ndarray:
        """Positions of the rows along v: float64, `(rows,)`; one row at 0 for images."""
        if len(self.shape) == 1:
            return np.zeros(1)
        return cell_centers(self.shape[0], self.pitch[0], self.offset[0])

    def column_offsets(self) -> tuple[np.ndarray, np.ndarray]:
        """Offsets of the columns from C along u and along n, float64, `(cols,)` each."""
        arc = self.columns()
        if self.curvature is None:
            return arc, np.zeros_like(arc)
        turn = arc / self.curvature
        # cos - 1 = -2 sin^2(half): no digits are lost near the middle.
        return (
            self.curvature * np.sin(turn),
            -2 * self.curvature * np.sin(turn / 2) ** 2,
        )

    def __repr__(self) -> str:
        text = f"Detector({self.shape}, pitch={short(self.pitch)}"
        if any(self.offset):
            text += f", offset={short(self.offset)}"
        if self.curvature is not None:
            text += f", curvature={self.curvature:g}"
        return text + ")"


def _ends(count: int, pitch: float, offset: float) -> tuple[float, float]:
    half = (count - 1) / 2 * pitch
    return offset - half, offset + half
