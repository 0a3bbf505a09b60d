"""Joseph's model where detector columns are parallel to z: cone, helix, parallel beams.

Arrays in and out, work cut into tiles as in `columns`; `joseph_tiles` computes them. `joseph` takes
the other scans, and gram diagonals.

Scratch a thread: that of `columns`, without its three further sums a voxel.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geometries.kernels import joseph_tiles
from geometries.kernels.joseph import gram_diagonal
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

__all__ = ["adjoint", "forward", "gram_diagonal"]

Real = NDArray[np.floating]
_WORK = {"fast": np.zeros(2, np.float32)}
_EXACT = np.zeros(2, np.float64)
_PATCHES = (16, 8)
_SCRATCH = 3 << 18


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
        joseph_tiles.forward_tile(*packed, numbers, flat, lx, origin, plane, first_cell[0],
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
    held = max(1, slices[1] - slices[0]) * work.itemsize
    wide = [
        s for s in _PATCHES if s * s * held <= _SCRATCH and ly * lx >= 8 * pool.workers() * s**2
    ]
    side = wide[0] if wide and batch == 1 else _PATCHES[-1]
    share = max(1, _SCRATCH // (held * side * side))
    tiles = [(*some, *patch) for some in blocks(batch, share) for patch in patches(ly, lx, side)]

    def task(i: int) -> None:
        joseph_tiles.adjoint_tile(*packed, numbers, projections, first_column, first_row, out,
                                   origin, plane, first_cell[0], slices, tiles[i],
                                   work)  # fmt: skip

    pool.run(task, len(tiles))
