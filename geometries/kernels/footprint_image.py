"""The separable footprint of images: arrays in and out, work cut into tiles.

Images (B, y, x), sinograms (B, view, column), with the interface of the Siddon kernel `planar`.
Lines of pixels are projected by `footprint_lines` in precision "fast", else by `footprint_planar`;
subsets are those of a volume of one slice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geometries.kernels import footprint_lines, footprint_planar
from geometries.kernels.footprint import LevelFootprint
from geometries.kernels.volume_scan import VolumeScan
from geometries.kernels.volume_tiles import blocks, detector_cuts, plane_of, view_numbers
from linops.compiled import pool
from linops.compiled.writeable import writeable

__all__ = ["PlanarFootprint"]

Real = NDArray[np.floating]


class PlanarFootprint:
    """The footprint of one planar scan.

    Parameters
    ----------
    scan
        The scan as one of a single slice (`footprint_views.embedded`). The methods are also handed
        the planar scan of the other models, and have no use for it.
    box
        The profile of constant height instead of the trapezoid.
    """

    def __init__(self, scan: VolumeScan, box: bool) -> None:
        self._scan = scan
        self._solid = LevelFootprint(scan, box)

    def forward(
        self,
        scan: Any,
        image: Real,
        out: Real,
        *,
        first_cell: tuple[int, int] = (0, 0),
        first_column: int = 0,
        views: ArrayLike | None = None,
        precision: str = "fast",
    ) -> None:
        """Project `image` (B, ly, lx) into `out` (B, views, columns)."""
        numbers = view_numbers(self._scan, views)
        batch, ly, lx = image.shape
        image = writeable(image)
        turned = np.ascontiguousarray(np.swapaxes(image, 1, 2))
        place = (0, *first_cell)
        plane, _ = plane_of(self._scan, place, ly, lx)
        cuts = detector_cuts(range(numbers.size), out.shape[2], pool.workers())
        tile = (footprint_lines if precision == "fast" else footprint_planar).forward_tile

        def task(i: int) -> None:
            tile(*self._solid.table, numbers, image, turned, place, plane, out[..., None],
                 first_column, cuts[i])  # fmt: skip

        if batch:
            pool.run(task, len(cuts))

    def adjoint(
        self,
        scan: Any,
        sinogram: Real,
        out: Real,
        *,
        first_cell: tuple[int, int] = (0, 0),
        first_column: int = 0,
        views: ArrayLike | None = None,
        precision: str = "fast",
    ) -> None:
        """The transpose: `sinogram` (B, views, columns) to `out` (B, ly, lx)."""
        numbers = view_numbers(self._scan, views)
        tile = footprint_lines.adjoint_tile
        if precision != "fast":
            tile = partial(footprint_planar.adjoint_tile, squared=False)
        self._back(tile, sinogram, out, first_cell, first_column, numbers)

    def gram_diagonal(
        self,
        scan: Any,
        weights: Real,
        out: Real,
        *,
        first_cell: tuple[int, int] = (0, 0),
        first_column: int = 0,
        views: ArrayLike | None = None,
    ) -> None:
        """Sum over cells of w a^2 for each pixel, `out` (ly, lx); `weights` (views, columns)."""
        numbers = view_numbers(self._scan, views)
        data = np.ascontiguousarray(weights)[None]
        tile = partial(footprint_planar.adjoint_tile, squared=True)
        self._back(tile, data, out[None], first_cell, first_column, numbers)

    def forward_cells(self, scan: Any, values: Real, index: ArrayLike, out: Real) -> None:
        """Project the pixels `index` with `values` (B, n); -1 is inert."""
        self._solid.forward_columns(self._scan, values[..., None], index, out[..., None])

    def adjoint_cells(self, scan: Any, sinogram: Real, index: ArrayLike, out: Real) -> None:
        """The transpose of `forward_cells`."""
        self._solid.adjoint_columns(self._scan, sinogram[..., None], index, out[..., None])

    def _back(
        self,
        tile: Callable[..., None],
        sinogram: Real,
        out: Real,
        first_cell: tuple[int, int],
        first_column: int,
        numbers: NDArray[np.int64],
    ) -> None:
        sinogram = writeable(sinogram)
        batch, ly, lx = out.shape
        place = (0, *first_cell)
        plane, _ = plane_of(self._scan, place, ly, lx)
        cuts = blocks(ly, -(-ly // (8 * pool.workers())))

        def task(i: int) -> None:
            tile(*self._solid.table, numbers, sinogram[..., None], first_column, out[..., None],
                 place, plane, cuts[i])  # fmt: skip

        if batch:
            pool.run(task, len(cuts))
