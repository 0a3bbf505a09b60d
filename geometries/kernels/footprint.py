"""The separable footprint of volumes: arrays in and out, work cut into tiles.

A `Footprint` holds the numbers of a scan (`footprint_views`) and hands out tiles: `footprint_level`
where a voxel column meets detector columns slice by slice (rows that are slices), and
`footprint_tiles` with the row rule. Formulas are in `footprint_profile` and `footprint_rows`;
images have an entry of their own, `footprint_image`.

Arrays: volumes (batch, y, x, z), projections (batch, view, column, row), C-contiguous, float32 or
float64. `first_cell` (z, y, x), `first_row`, `first_column` place local arrays in the whole grid
and detector; planes outside are never read, and written as zeros. `views` selects views of the
scan. Every sum has one owner and one order, so results do not depend on threads or tiles.

Scratch a thread: forward two tiles of the detector of at most 1 MiB each (and a column at least),
adjoint 64 voxel columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geometries.kernels import footprint_level as level
from geometries.kernels import footprint_tiles as tiles
from geometries.kernels.footprint_views import table
from geometries.kernels.structure import aligned_shift
from geometries.kernels.volume_scan import VolumeScan
from geometries.kernels.volume_tiles import (
    blocks,
    check,
    common_rows,
    detector_tiles,
    overlap,
    plane_of,
    view_numbers,
)
from linops.compiled import pool

__all__ = ["Footprint"]

Real = NDArray[np.floating]
_TILE = 1 << 20  # bytes of a forward tile
_PATCH = (4, 16)  # lines and columns of voxels that an adjoint task owns


class Footprint:
    """The footprint of one scan, with the interface of the Siddon kernels of volumes.

    Parameters
    ----------
    scan
        The scan, which the methods take again; for images one of a single slice
        (`footprint_views.embedded`).
    kernel
        `"planar"` for images, else what `footprint_views.kernel_of` says.
    box
        The profile of constant height instead of the trapezoid.
    """

    def __init__(self, scan: VolumeScan, kernel: str, box: bool) -> None:
        self.table = table(scan, box)
        self._shift: int | None = 0 if kernel == "planar" else None
        if kernel.startswith("aligned"):
            self._shift = aligned_shift(scan) if scan.views else 0

    def forward(
        self,
        scan: VolumeScan,
        volume: Real,
        out: Real,
        *,
        first_cell: tuple[int, int, int] = (0, 0, 0),
        first_row: int = 0,
        first_column: int = 0,
        views: ArrayLike | None = None,
        precision: str = "fast",
    ) -> None:
        """Project `volume` (B, ly, lx, lz) into `out` (B, views, columns, rows)."""
        numbers = view_numbers(scan, views)
        check("volume", volume, (None, None, None, None))
        batch, ly, lx, lz = volume.shape
        check("out", out, (batch, numbers.size, None, None))
        flat = volume.reshape(batch, ly * lx, lz)
        plane = (*plane_of(scan, first_cell, ly, lx)[0], lx)
        if self._shift is not None:
            common = common_rows(scan, self._shift, first_row, out.shape[3], first_cell[0], lz)
            cuts = detector_tiles(numbers.size, out.shape[2], pool.workers())

            def task(i: int) -> None:
                level.forward_tile(
                    *self.table, numbers, flat, first_cell, plane, out, first_column, common,
                    _of_one(cuts[i]),
                )  # fmt: skip

        else:
            zero = _zero(precision)
            most = max(1, _TILE // max(1, batch * out.shape[3] * zero.itemsize))
            cuts = detector_tiles(numbers.size, out.shape[2], pool.workers(), most=most)
            slices = overlap(first_cell[0], lz, scan.grid_shape[0])

            def task(i: int) -> None:
                tiles.forward_tile(
                    *self.table, numbers, flat, first_cell, plane, slices, out, first_column,
                    first_row, _of_one(cuts[i]), precision == "fast", zero,
                )  # fmt: skip

        pool.run(task, len(cuts))

    def adjoint(
        self,
        scan: VolumeScan,
        projections: Real,
        out: Real,
        *,
        first_cell: tuple[int, int, int] = (0, 0, 0),
        first_row: int = 0,
        first_column: int = 0,
        views: ArrayLike | None = None,
        precision: str = "fast",
    ) -> None:
        """The transpose: `projections` (B, views, columns, rows) to `out` (B, ly, lx, lz)."""
        self._back(
            scan,
            projections,
            out,
            first_cell,
            first_row,
            first_column,
            views,
            precision,
            squared=False,
        )

    def gram_diagonal(self, scan: VolumeScan, weights: Real | None, out: Real) -> None:
        """Sum over cells of w a^2 for each voxel of the grid, `out` (1, y, x, z); None for ones.

        Weights a are those of "float64".
        """
        rows, cols = scan.shape
        if weights is None:
            weights = np.ones((1, scan.views, cols, rows), out.dtype)
        self._back(scan, weights, out, (0, 0, 0), 0, 0, None, "float64", squared=True)

    def forward_columns(
        self,
        scan: VolumeScan,
        values: Real,
        index: ArrayLike,
        out: Real,
        *,
        first_slice: int = 0,
        first_row: int = 0,
        first_column: int = 0,
        views: ArrayLike | None = None,
        precision: str = "fast",
    ) -> None:
        """`forward` of a volume that is zero but for `values` (B, n, lz) at positions `index`.

        `index` (n,) holds ``iy * nx + ix`` of the whole grid, -1 for inert entries; positions may
        repeat.
        """
        numbers = view_numbers(scan, views)
        positions = np.ascontiguousarray(index, dtype=np.int64).reshape(-1)
        check("values", values, (None, positions.size, None))
        check("out", out, (values.shape[0], numbers.size, None, None))
        width = scan.grid_shape[2]
        cuts = detector_tiles(numbers.size, out.shape[2], pool.workers())
        if self._shift is not None:
            common = common_rows(
                scan, self._shift, first_row, out.shape[3], first_slice, values.shape[2]
            )

            def task(i: int) -> None:
                level.forward_subset(
                    *self.table, numbers, values, positions, width, out, first_column, common,
                    _of_one(cuts[i]),
                )  # fmt: skip

        else:
            slices = overlap(first_slice, values.shape[2], scan.grid_shape[0])

            def task(i: int) -> None:
                tiles.forward_subset(
                    *self.table, numbers, values, positions, width, first_slice, slices, out,
                    first_column, first_row, _of_one(cuts[i]), precision == "fast",
                    _zero(precision),
                )  # fmt: skip

        pool.run(task, len(cuts))

    def adjoint_columns(
        self,
        scan: VolumeScan,
        projections: Real,
        index: ArrayLike,
        out: Real,
        *,
        first_slice: int = 0,
        first_row: int = 0,
        first_column: int = 0,
        views: ArrayLike | None = None,
        precision: str = "fast",
    ) -> None:
        """The transpose of `forward_columns`, into `out` (B, n, lz)."""
        numbers = view_numbers(scan, views)
        positions = np.ascontiguousarray(index, dtype=np.int64).reshape(-1)
        check("projections", projections, (None, numbers.size, None, None))
        check("out", out, (projections.shape[0], positions.size, None))
        width = scan.grid_shape[2]
        cuts = blocks(positions.size, -(-positions.size // (4 * pool.workers())))
        if self._shift is not None:
            common = common_rows(
                scan, self._shift, first_row, projections.shape[3], first_slice, out.shape[2]
            )

            def task(i: int) -> None:
                level.adjoint_subset(
                    *self.table, numbers, projections, first_column, positions, width, out,
                    common, cuts[i],
                )  # fmt: skip

        else:
            slices = overlap(first_slice, out.shape[2], scan.grid_shape[0])

            def task(i: int) -> None:
                tiles.adjoint_subset(
                    *self.table, numbers, projections, first_column, first_row, positions, width,
                    first_slice, slices, out, cuts[i], precision == "fast", _zero(precision),
                )  # fmt: skip

        pool.run(task, len(cuts))

    def _back(
        self,
        scan: VolumeScan,
        projections: Real,
        out: Real,
        first_cell: tuple[int, int, int],
        first_row: int,
        first_column: int,
        views: ArrayLike | None,
        precision: str,
        *,
        squared: bool,
    ) -> None:
        numbers = view_numbers(scan, views)
        check("projections", projections, (None, numbers.size, None, None))
        batch, ly, lx, lz = out.shape
        check("out", out, (projections.shape[0], None, None, None))
        plane, _ = plane_of(scan, first_cell, ly, lx)
        cuts = [
            (b, y0, y1, x0, x1)
            for b in range(batch)
            for y0, y1 in blocks(ly, _PATCH[0])
            for x0, x1 in blocks(lx, _PATCH[1])
        ]
        if self._shift is not None:
            common = common_rows(
                scan, self._shift, first_row, projections.shape[3], first_cell[0], lz
            )

            def task(i: int) -> None:
                level.adjoint_tile(
                    *self.table, numbers, projections, first_column, out, first_cell, plane,
                    common, cuts[i], squared,
                )  # fmt: skip

        else:
            slices = overlap(first_cell[0], lz, scan.grid_shape[0])

            def task(i: int) -> None:
                tiles.adjoint_tile(
                    *self.table, numbers, projections, first_column, first_row, out, first_cell,
                    plane, slices, cuts[i], squared, precision == "fast", _zero(precision),
                )  # fmt: skip

        pool.run(task, len(cuts))


def _of_one(tile: tuple[int, int, int, int]) -> tuple[int, int, int]:
    view, _, start, stop = tile
    return view, start, stop


def _zero(precision: str) -> NDArray[Any]:
    return np.zeros(1, np.float32 if precision == "fast" else np.float64)
