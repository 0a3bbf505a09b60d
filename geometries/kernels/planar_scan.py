"""The scan of a planar projector, and what of a call is real: arguments of the planar kernels.

The whole detector and the whole grid stand in a `PlanarScan`, whatever block is computed;
`Job` meets a call's block with them. Loops and their drivers are `planar` and its neighbors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from linops.compiled.writeable import writeable

from .planar_rays import Beam

__all__ = ["Job", "Pair", "PlanarScan", "cut", "plain"]

Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class PlanarScan:
    """Frames, detector and grid of a planar scan, float64, world lengths.

    Points are (x, y), the grid's tuples (y, x).
    """

    kind: Literal["parallel", "fan"]
    origins: Array  # (V, 2): sources of a fan
    directions: Array  # (V, 2): unit directions of a parallel beam
    centers: Array  # (V, 2)
    u: Array  # (V, 2)
    columns: int
    pitch: float
    offset: float
    points: Array | None  # (V, columns, 2): detector cells of a curved detector
    grid_shape: Pair
    spacing: tuple[float, float]
    center: tuple[float, float]
    model: Literal["siddon", "joseph"] = "siddon"
    beam: Beam = field(init=False, repr=False)
    tables: list[tuple[Array, Array]] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        middle = np.array(self.center[::-1], np.float64)
        parallel = self.kind == "parallel"
        frames = np.empty((len(self.centers), 6))
        frames[:, :2] = self.directions if parallel else self.origins - middle
        frames[:, 2:4] = self.centers - middle
        frames[:, 4:] = self.u
        points = np.zeros((1, 0, 2)) if self.points is None else self.points - middle
        dy, dx = self.spacing
        lengths = (dx, dy, self.pitch, self.offset, (self.columns - 1) / 2)
        beam = Beam(
            parallel,
            frames,
            np.ascontiguousarray(points, np.float64),
            np.array(lengths, np.float64),
            np.array(self.grid_shape[::-1], np.int64),
        )
        object.__setattr__(self, "beam", beam)

    @property
    def joseph(self) -> bool:
        """Whether weights are those of Joseph's model."""
        return self.model == "joseph"


class Job:
    """What of a call is real: views, cells and columns, as slices and in whole-scan counts."""

    def __init__(
        self,
        scan: PlanarScan,
        cells: tuple[int, ...],
        columns: int,
        first_cell: Pair = (0, 0),
        first_column: int = 0,
        views: Array | None = None,
        real_cells: tuple[Pair, Pair] | None = None,
        real_columns: Pair | None = None,
    ) -> None:
        ny, nx = scan.grid_shape
        (y0, y1), (x0, x1) = real_cells or ((0, ny), (0, nx))
        k0, k1 = real_columns or (0, scan.columns)
        y0, y1 = _meet(first_cell[0], cells[0], max(y0, 0), min(y1, ny))
        x0, x1 = _meet(first_cell[1], cells[1], max(x0, 0), min(x1, nx))
        k0, k1 = _meet(first_column, columns, max(k0, 0), min(k1, scan.columns))
        self.ys = slice(y0 - first_cell[0], y1 - first_cell[0])
        self.xs = slice(x0 - first_cell[1], x1 - first_cell[1])
        self.ks = slice(k0 - first_column, k1 - first_column)
        self.box = np.array((x0, x1, y0, y1), np.int64)
        self.columns = np.array((k0, k1 - k0), np.int64)
        if views is None:
            views = np.arange(len(scan.centers))
        self.views = np.ascontiguousarray(views, np.int64)
        self.empty = y0 >= y1 or x0 >= x1 or k0 >= k1 or not np.any(self.views >= 0)


def _meet(first: int, count: int, start: int, stop: int) -> Pair:
    low = max(first, start)
    return low, max(low, min(first + count, stop))


def plain(array: Array) -> Array:
    """The array as kernels are compiled for: C order, writeable."""
    return writeable(np.ascontiguousarray(array))


def cut(count: int, parts: int) -> list[int]:
    """Bounds of at most `parts` nearly equal pieces."""
    parts = max(1, min(count, parts))
    return [count * i // parts for i in range(parts + 1)]
