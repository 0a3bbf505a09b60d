"""Exact 3-D Siddon where detector columns are parallel to z: cone, helical, unaligned parallel.

All rays of one detector column lie in one vertical plane, so they share the walk through (x, y).
The forward task owns detector columns, the adjoint task a patch of voxel columns. This module
cuts the work into tiles; `columns_exact` computes them in float64 ("float32", "float64", subsets
and gram diagonals), `columns_fast` in float32 ("fast"). `structure.columns_upright` says which
scans are of this kind; `oblique` takes the others.

Arrays: volumes (batch, y, x, z), projections (batch, view, column, row), C-contiguous, float32 or
float64. `first_cell` (z, y, x), `first_row`, `first_column` place local arrays in the whole grid
and detector; planes outside are never read, and written as zeros. `views` selects views of the
scan.

Scratch a thread: (nz + 2) x 1 KiB for the patch of an adjoint, and 80 bytes a detector row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geometries.kernels import columns_exact, columns_fast
from geometries.kernels.volume_scan import VolumeScan, pack
from geometries.kernels.volume_tiles import blocks, check, detector_tiles, overlap, view_numbers
from linops.compiled import pool

__all__ = ["adjoint", "adjoint_columns", "forward", "forward_columns", "gram_diagonal"]

Real = NDArray[np.floating]
_PATCH = {"fast": 8, "float32": 8, "float64": 8}
_COLUMNS = 64


def forward(
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
    """Line integrals of `volume` (B, ly, lx, lz) into `out` (B, views, columns, rows)."""
    numbers = view_numbers(scan, views)
    check("volume", volume, (None, None, None, None))
    batch, ly, lx, lz = volume.shape
    check("out", out, (batch, numbers.size, None, None))
    packed = pack(scan)
    plane, origin = _plane(scan, first_cell, ly, lx)
    slices = overlap(first_cell[0], lz, scan.grid_shape[0])
    flat = volume.reshape(batch, ly * lx, lz)
    fast = precision == "fast"
    compute = columns_fast.forward_tile if fast else columns_exact.forward_tile
    tiles = detector_tiles(numbers.size, out.shape[2], pool.workers())

    def task(i: int) -> None:
        compute(*packed, numbers, flat, lx, origin, plane, first_cell[0], slices, out,
                first_column, first_row, tiles[i])  # fmt: skip

    pool.run(task, len(tiles))


def adjoint(
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
    """The transpose of `forward`: `projections` (B, views, columns, rows) to `out` (B, y, x, z)."""
    numbers = view_numbers(scan, views)
    check("projections", projections, (None, numbers.size, None, None))
    check("out", out, (projections.shape[0], None, None, None))
    _back(scan, numbers, projections, out, first_cell, first_row, first_column, precision)


def gram_diagonal(
    scan: VolumeScan,
    weights: Real | None,
    out: Real,
    *,
    first_cell: tuple[int, int, int] = (0, 0, 0),
    first_row: int = 0,
    first_column: int = 0,
    views: ArrayLike | None = None,
) -> None:
    """Sum over rays of w a^2 for each cell, `out` (B, y, x, z); `weights` as projections, or None.

    None means ones on the whole detector.
    """
    numbers = view_numbers(scan, views)
    if weights is None:
        first_row, first_column = 0, 0
        rows, cols = scan.shape
        weights = np.ones((out.shape[0], numbers.size, cols, rows), out.dtype)
    check("weights", weights, (None, numbers.size, None, None))
    check("out", out, (weights.shape[0], None, None, None))
    _back(scan, numbers, weights, out, first_cell, first_row, first_column, "float64", squared=True)


def forward_columns(
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
    """`forward` of a volume that is zero but for `values` (B, n, lz) at in-plane positions `index`.

    `index` (n,) holds ``iy * nx + ix`` of the whole grid, -1 for inert entries; positions may
    repeat. Costs what the rays through these positions cost.
    """
    numbers = view_numbers(scan, views)
    positions = np.ascontiguousarray(index, dtype=np.int64).reshape(-1)
    check("values", values, (None, positions.size, None))
    check("out", out, (values.shape[0], numbers.size, None, None))
    packed = pack(scan)
    slices = overlap(first_slice, values.shape[2], scan.grid_shape[0])
    tiles = detector_tiles(numbers.size, out.shape[2], pool.workers(), most=_COLUMNS)

    def task(i: int) -> None:
        columns_exact.forward_subset(
            *packed,
            numbers,
            values,
            positions,
            first_slice,
            slices,
            out,
            first_column,
            first_row,
            tiles[i],
        )

    pool.run(task, len(tiles))


def adjoint_columns(
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
    packed = pack(scan)
    slices = overlap(first_slice, out.shape[2], scan.grid_shape[0])
    tiles = blocks(positions.size, -(-positions.size // (4 * pool.workers())))

    def task(i: int) -> None:
        columns_exact.adjoint_subset(
            *packed,
            numbers,
            projections,
            positions,
            first_slice,
            slices,
            out,
            first_column,
            first_row,
            tiles[i],
        )

    pool.run(task, len(tiles))


def _back(
    scan: VolumeScan,
    numbers: NDArray[np.int64],
    projections: Real,
    out: Real,
    first_cell: tuple[int, int, int],
    first_row: int,
    first_column: int,
    precision: str,
    *,
    squared: bool = False,
) -> None:
    batch, ly, lx, lz = out.shape
    packed = pack(scan)
    plane, origin = _plane(scan, first_cell, ly, lx)
    slices = overlap(first_cell[0], lz, scan.grid_shape[0])
    tiles = [
        (b, y0, y1, x0, x1)
        for b in range(batch)
        for y0, y1 in blocks(ly, _PATCH[precision])
        for x0, x1 in blocks(lx, _PATCH[precision])
    ]

    def task(i: int) -> None:
        if precision == "fast":
            columns_fast.adjoint_tile(
                *packed, numbers, projections, first_column, first_row, out, origin, plane,
                first_cell[0], slices, tiles[i],
            )  # fmt: skip
        else:
            columns_exact.adjoint_tile(
                *packed, numbers, projections, first_column, first_row, out, origin, plane,
                first_cell[0], slices, tiles[i], squared,
            )  # fmt: skip

    pool.run(task, len(tiles))


def _plane(
    scan: VolumeScan, first_cell: tuple[int, int, int], ly: int, lx: int
) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
    """The real cells (x0, x1, y0, y1) of a local plane in the whole grid, and its first (x, y)."""
    return (
        *overlap(first_cell[2], lx, scan.grid_shape[2]),
        *overlap(first_cell[1], ly, scan.grid_shape[1]),
    ), (first_cell[2], first_cell[1])
