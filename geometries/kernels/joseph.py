"""Joseph's model in 3-D for any frames and detectors: every ray is sampled by itself.

Forward, a task owns detector cells and gathers along each ray; adjoint, a task owns a box of voxels
and takes, in one fixed order, the rays that can meet it. Both take their weights from
`joseph_rays.samples`, in float64, and sum in float64, for every precision. Where the detector is a
surface, places of cells are sampled for a bounded block of views at a time, and an adjoint box
looks at every ray.

Arrays: volumes (batch, y, x, z), projections (batch, view, column, row), C-contiguous, float32 or
float64. `first_cell` (z, y, x), `first_row`, `first_column` place local arrays in the whole grid
and detector; planes outside are never read, and written as zeros. `views` selects views of the
scan.

Scratch a thread: 128 KiB for a box of the adjoint, and 64 bytes a cell along the longest axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from geometries.kernels.joseph_rays import SIDES, samples
from geometries.kernels.rays3d import columns_of_box, ray, rows_of_box
from geometries.kernels.volume_scan import VolumeScan, pack
from geometries.kernels.volume_tiles import (
    boxes,
    check,
    detector_tiles,
    real_box,
    view_numbers,
)
from geometries.surfaces import view_blocks
from linops.compiled import pool

__all__ = ["adjoint", "forward", "gram_diagonal"]

Real = NDArray[np.floating]
_compiled = njit(nogil=True, cache=True, error_model="numpy")
_TILE = (16, 16, 64)  # y, x, z


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
    """Line integrals of `volume` (B, ly, lx, lz) into `out` (B, views, columns, rows).

    `precision` changes nothing here but the dtype of the arrays that the caller chose.
    """
    numbers = view_numbers(scan, views)
    check("volume", volume, (None, None, None, None))
    batch, ly, lx, lz = volume.shape
    check("out", out, (batch, numbers.size, None, None))
    packed, origin = pack(scan), first_cell[::-1]
    box = real_box(scan, first_cell, (lz, ly, lx))
    flat = volume.reshape(batch, ly * lx * lz)
    for start, stop, places in _blocks(scan, numbers):
        tiles = detector_tiles(stop - start, out.shape[2], pool.workers())

        def task(
            i: int, start: int = start, stop: int = stop, places: Any = places, tiles: Any = tiles
        ) -> None:
            _forward(*packed, places, numbers[start:stop], start, flat, (ly, lx, lz), origin, box,
                     out, first_column, first_row, tiles[i])  # fmt: skip

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
    _back(scan, numbers, projections, out, first_cell, (first_column, first_row), squared=False)


def gram_diagonal(scan: VolumeScan, weights: Real | None, out: Real) -> None:
    """Sum over rays of w a^2 for each cell, `out` (B, y, x, z); None stands for ones."""
    rows, cols = scan.shape
    numbers = view_numbers(scan, None)
    if weights is None:
        weights = np.ones((out.shape[0], numbers.size, cols, rows), out.dtype)
    check("weights", weights, (out.shape[0], numbers.size, cols, rows))
    _back(scan, numbers, weights, out, (0, 0, 0), (0, 0), squared=True)


def _back(
    scan: VolumeScan,
    numbers: NDArray[np.int64],
    projections: Real,
    out: Real,
    first_cell: tuple[int, int, int],
    first: tuple[int, int],
    *,
    squared: bool,
) -> None:
    batch, ly, lx, lz = out.shape
    packed, origin = pack(scan), first_cell[::-1]
    box = real_box(scan, first_cell, (lz, ly, lx))
    tiles = boxes(batch, ly, lx, lz, _TILE)
    out[...] = 0
    for start, stop, places in _blocks(scan, numbers):

        def task(i: int, start: int = start, stop: int = stop, places: Any = places) -> None:
            _adjoint(*packed, places, numbers[start:stop], start, projections, first, out, origin,
                     box, tiles[i], squared)  # fmt: skip

        pool.run(task, len(tiles))


def _blocks(
    scan: VolumeScan, numbers: NDArray[np.int64]
) -> Iterator[tuple[int, int, NDArray[np.float64]]]:
    """Views to take at a time, and where the cells of a surface stand from the grid's centre.

    Places are (views, columns, rows, 3); of other detectors there are none.
    """
    if scan.points is None:
        yield 0, numbers.size, np.zeros((0, 0, 0, 3))
        return
    for start, stop in view_blocks(scan.shape, numbers.size):
        yield start, stop, scan.places(numbers[start:stop])


@_compiled
def _forward(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
             places, numbers, start, volume, local, origin, box, out, first_column, first_row,
             tile):  # fmt: skip
    batch, lr = out.shape[0], out.shape[3]
    cols, rows = along.shape[0], heights.shape[0]
    room = max(1, SIDES * max(box[1] - box[0], max(box[3] - box[2], box[5] - box[4])))
    cells = np.empty(room, np.int64)
    weights = np.empty(room, np.float64)
    frame = np.zeros((1, 24))
    for view in range(tile[0], tile[1]):
        number = numbers[view]
        for c in range(tile[2], tile[3]):
            j = c + first_column
            for r in range(lr):
                i = r + first_row
                count = 0
                if 0 <= number < frames.shape[0] and 0 <= j < cols and 0 <= i < rows:
                    line = _ray(cone, frames, number, along, normal, heights, spacing, counts,
                                places, view, j, i, frame)  # fmt: skip
                    count = samples(line, box, origin, local, cells, weights)
                for b in range(batch):
                    total = 0.0
                    for m in range(count):
                        total += weights[m] * volume[b, cells[m]]
                    out[b, start + view, c, r] = total


@_compiled
def _adjoint(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
             places, numbers, start, projections, first, out, origin, box, tile,
             squared):  # fmt: skip
    b, y0, y1, x0, x1, z0, z1 = tile
    local = (y1 - y0, x1 - x0, z1 - z0)
    corner = (x0 + origin[0], y0 + origin[1], z0 + origin[2])
    x, xe = max(corner[0], box[0]), min(corner[0] + local[1], box[1])
    y, ye = max(corner[1], box[2]), min(corner[1] + local[0], box[3])
    z, ze = max(corner[2], box[4]), min(corner[2] + local[2], box[5])
    if x >= xe or y >= ye or z >= ze:
        return
    part = (x, xe, y, ye, z, ze)
    bounds = (x - 1.0, xe + 1.0, y - 1.0, ye + 1.0, z - 1.0, ze + 1.0)
    total = np.zeros(local[0] * local[1] * local[2], np.float64)
    cols, rows = along.shape[0], heights.shape[0]
    cells = np.empty(SIDES * max(local[0], max(local[1], local[2])), np.int64)
    weights = np.empty(cells.shape[0], np.float64)
    frame = np.zeros((1, 24))
    surface = places.shape[0] > 0
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if number < 0 or number >= frames.shape[0]:
            continue
        j0, j1, i0, i1 = 0, cols, 0, rows
        if not surface:
            j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                    counts, bounds)  # fmt: skip
        for j in range(max(j0, first[0]), min(j1, first[0] + projections.shape[2])):
            if not surface:
                i0, i1 = rows_of_box(cone, frames, number, along[j], normal[j], sampling, rows,
                                     spacing, counts, bounds)  # fmt: skip
            for i in range(max(i0, first[1]), min(i1, first[1] + projections.shape[3])):
                line = _ray(cone, frames, number, along, normal, heights, spacing, counts,
                            places, view, j, i, frame)  # fmt: skip
                count = samples(line, part, corner, local, cells, weights)
                value = float(projections[b, start + view, j - first[0], i - first[1]])
                for m in range(count):
                    weight = weights[m]
                    if squared:
                        weight *= weight
                    total[cells[m]] += weight * value
    m = 0
    for y in range(y0, y1):
        for x in range(x0, x1):
            for z in range(z0, z1):
                out[b, y, x, z] += total[m]
                m += 1


@_compiled
def _ray(cone, frames, number, along, normal, heights, spacing, counts, places, view, j, i,
         frame):  # fmt: skip
    """The ray of cell (i, j), from the frames or, for a surface, from its place."""
    if places.shape[0] == 0:
        return ray(cone, frames, number, along[j], normal[j], heights[i], spacing, counts)
    for a in range(3):
        frame[0, a] = frames[number, a]
        frame[0, 3 + a] = places[view, j, i, a]
    return ray(cone, frame, 0, 0.0, 0.0, 0.0, spacing, counts)
