"""How the 3-D kernels cut their work: which part of grid and detector is real, and who owns what.

An output is cut into tiles that one task each computes alone, so no sum depends on threads or
tiles. Local arrays may start before the whole grid or detector and end beyond it; `overlap` says
which of their planes are real. The kernels zero the others and never read them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geometries.kernels.volume_scan import VolumeScan
from linops.errors import ShapeError

__all__ = [
    "blocks",
    "boxes",
    "check",
    "common_rows",
    "detector_cuts",
    "overlap",
    "patches",
    "plane_of",
    "real_box",
    "view_numbers",
]


def overlap(first: int, local: int, whole: int) -> tuple[int, int]:
    """Whole-axis indices [start, stop) that a local axis of `local` planes from `first` has."""
    start = min(max(first, 0), whole)
    return start, max(start, min(first + local, whole))


def view_numbers(scan: VolumeScan, views: ArrayLike | None) -> NDArray[np.int64]:
    """Numbers of the views to compute, all by default; outside [0, scan.views) means inert."""
    if views is None:
        return np.arange(scan.views, dtype=np.int64)
    return np.ascontiguousarray(views, dtype=np.int64).reshape(-1)


def blocks(count: int, size: int) -> list[tuple[int, int]]:
    """Cut range(count) into pieces [start, stop) of at most `size`."""
    size = max(1, size)
    return [(start, min(start + size, count)) for start in range(0, count, size)]


def patches(ly: int, lx: int, side: int) -> list[tuple[int, int, int, int]]:
    """Tiles (y start, y stop, x start, x stop) of at most `side` by `side` voxel columns."""
    return [(*y, *x) for y in blocks(ly, side) for x in blocks(lx, side)]


def boxes(
    batch: int, ly: int, lx: int, lz: int, tile: tuple[int, int, int]
) -> list[tuple[int, int, int, int, int, int, int]]:
    """Tiles (member, y start, y stop, x start, x stop, z start, z stop) of at most `tile` voxels,
    given as (y, x, z)."""
    return [
        (b, *y, *x, *z)
        for b in range(batch)
        for y in blocks(ly, tile[0])
        for x in blocks(lx, tile[1])
        for z in blocks(lz, tile[2])
    ]


def real_box(
    scan: VolumeScan, first_cell: tuple[int, int, int], local: tuple[int, int, int]
) -> tuple[int, ...]:
    """The real cells (x0, x1, y0, y1, z0, z1) of a local box (z, y, x), numbered in the whole
    grid."""
    result: list[int] = []
    for axis in (2, 1, 0):
        result.extend(overlap(first_cell[axis], local[axis], scan.grid_shape[axis]))
    return tuple(result)


def common_rows(
    scan: VolumeScan, shift: int, first_row: int, rows: int, first_slice: int, slices: int
) -> tuple[int, int, int]:
    """(first local row, first local slice, count) of the planes that rows and slices share, where
    row i sees slice i + `shift`."""
    i0, i1 = overlap(first_row, rows, scan.shape[0])
    k0, k1 = overlap(first_slice, slices, scan.grid_shape[0])
    start, stop = max(i0, k0 - shift), min(i1, k1 - shift)
    if start >= stop:
        return 0, 0, 0
    return start - first_row, start + shift - first_slice, stop - start


def plane_of(
    scan: VolumeScan, first_cell: tuple[int, int, int], ly: int, lx: int
) -> tuple[tuple[int, int, int, int], tuple[int, int]]:
    """The real cells (x0, x1, y0, y1) of a local plane in the whole grid, and its first (x, y)."""
    return (
        *overlap(first_cell[2], lx, scan.grid_shape[2]),
        *overlap(first_cell[1], ly, scan.grid_shape[1]),
    ), (first_cell[2], first_cell[1])


def detector_cuts(
    views: Sequence[int], columns: int, workers: int, most: int | None = None
) -> list[tuple[int, int, int]]:
    """Cuts (view, column start, column stop), several for each worker.

    Views are cut along columns where they alone are too few, or where `most` bounds the columns of
    a cut.
    """
    if not len(views) or columns == 0:
        return []
    pieces = -(-8 * workers // len(views))
    size = -(-columns // min(pieces, columns))
    if most is not None:
        size = min(size, most)
    return [(v, c, d) for v in views for c, d in blocks(columns, size)]


def check(name: str, array: NDArray[np.floating], shape: Sequence[int | None]) -> None:
    """Refuse an array whose shape (None: any) or order a kernel cannot take."""
    fits = array.ndim == len(shape) and all(
        want is None or have == want for have, want in zip(array.shape, shape, strict=True)
    )
    if not fits:
        raise ShapeError(f"{name} has shape {array.shape}, the kernel wants {tuple(shape)}")
    if not array.flags.c_contiguous:
        raise ShapeError(f"{name} is not C-contiguous; pass np.ascontiguousarray({name})")
