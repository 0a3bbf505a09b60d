"""Exact 3-D Siddon where detector columns are parallel to z: cone, helical, unaligned parallel.

All rays of one detector column lie in one vertical plane, so they share the walk through (x, y).
The forward task owns detector columns, the adjoint task a patch of voxel columns. This module
cuts the work into tiles; `columns_tiles` computes them, `columns_subsets` those of some positions,
`columns_squares` gram diagonals. Arithmetic is float32 in precision "fast", else float64.
`structure.columns_upright` says which
scans are of this kind; `oblique` takes the others.

Arrays: volumes (batch, y, x, z), projections (batch, view, column, row), C-contiguous, float32 or
float64. `first_cell` (z, y, x), `first_row`, `first_column` place local arrays in the whole grid
and detector; planes outside are never read, and written as zeros. `views` selects views of the
scan.

Scratch a thread: at most 1 KiB x (nz + 4) (twice that in float64) or `_SCRATCH`, whichever is
more, for what an adjoint owns, and 64 bytes a detector row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geometries.kernels import columns_squares, columns_subsets, columns_tiles
from geometries.kernels.volume_scan import VolumeScan, pack
from geometries.kernels.volume_tiles import (
    blocks,
    check,
    detector_tiles,
    overlap,
    patches,
    plane_of,
    view_numbers,
)
from linops.compiled import pool

__all__ = ["adjoint", "adjoint_columns", "forward", "forward_columns", "gram_diagonal"]

Real = NDArray[np.floating]
_WORK = {"fast": np.zeros(2, np.float32)}
_EXACT = np.zeros(2, np.float64)
_PATCHES = (16, 8)
_SCRATCH = 3 << 18  # bytes of sums that an adjoint keeps, unless its smallest patch needs more
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
    plane, origin = plane_of(scan, first_cell, ly, lx)
    slices = overlap(first_cell[0], lz, scan.grid_shape[0])
    flat = volume.reshape(batch, ly * lx, lz)
    work = _WORK.get(precision, _EXACT)
    tiles = detector_tiles(numbers.size, out.shape[2], pool.workers())

    def task(i: int) -> None:
        columns_tiles.forward_tile(*packed, numbers, flat, lx, origin, plane, first_cell[0],
                                   slices, out, first_column, first_row, tiles[i],
                                   work)  # fmt: skip

    pool.run(task, len(tiles) if batch else 0)


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
    batch, ly, lx, lz = out.shape
    packed = pack(scan)
    plane, origin = plane_of(scan, first_cell, ly, lx)
    slices = overlap(first_cell[0], lz, scan.grid_shape[0])
    work = _WORK.get(precision, _EXACT)
    held = _held(slices, work)
    # Wide patches set up fewer rows; narrow ones leave more tiles, and room for a batch.
    wide = [
        s for s in _PATCHES if s * s * held <= _SCRATCH and ly * lx >= 8 * pool.workers() * s**2
    ]
    side = wide[0] if wide and batch == 1 else _PATCHES[-1]
    share = max(1, _SCRATCH // (held * side * side))
    tiles = [(*some, *patch) for some in blocks(batch, share) for patch in patches(ly, lx, side)]

    def task(i: int) -> None:
        columns_tiles.adjoint_tile(*packed, numbers, projections, first_column, first_row, out,
                                   origin, plane, first_cell[0], slices, tiles[i],
                                   work)  # fmt: skip

    pool.run(task, len(tiles))


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
    batch, ly, lx, lz = out.shape
    packed = pack(scan)
    plane, origin = plane_of(scan, first_cell, ly, lx)
    slices = overlap(first_cell[0], lz, scan.grid_shape[0])
    side = _PATCHES[-1]
    tiles = [(b, *patch) for b in range(batch) for patch in patches(ly, lx, side)]

    def task(i: int) -> None:
        columns_squares.gram_tile(*packed, numbers, weights, first_column, first_row, out, origin,
                                  plane, first_cell[0], slices, tiles[i])  # fmt: skip

    pool.run(task, len(tiles))


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

    work = _WORK.get(precision, _EXACT)

    def task(i: int) -> None:
        columns_subsets.forward_subset(*packed, numbers, values, positions, first_slice, slices,
                                       out, first_column, first_row, tiles[i], work)  # fmt: skip

    pool.run(task, len(tiles) if len(out) else 0)


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
    work = _WORK.get(precision, _EXACT)
    held = _held(slices, work)
    most = min(positions.size, max(1, _SCRATCH // held))
    share = min(out.shape[0], max(1, _SCRATCH // (held * max(most, 1))))
    size = max(1, min(most, -(-positions.size // (2 * pool.workers()))))
    tiles = [
        (*some, *part)
        for some in blocks(out.shape[0], share)
        for part in blocks(positions.size, size)
    ]

    def task(i: int) -> None:
        columns_subsets.adjoint_subset(*packed, numbers, projections, positions, first_slice,
                                       slices, out, first_column, first_row, tiles[i],
                                       work)  # fmt: skip

    pool.run(task, len(tiles))


def _held(slices: tuple[int, int], work: Real) -> int:
    """Bytes of sums that the adjoint of one voxel column keeps."""
    return 4 * (slices[1] - slices[0] + 4) * work.itemsize
