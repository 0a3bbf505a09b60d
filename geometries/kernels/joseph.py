"""Joseph's interpolating projection, compiled, for any frames: the weights of the portable model.

A ray's part in a slab of cells across its longest axis counts with its length, and takes the field
that interpolates between cell centres across the slab, at the middle of that part (Joseph 1982);
`geometries/kernels/portable_models.py` has the formula. The forward task owns detector cells; the
adjoint task owns a box of voxels and samples, in one fixed order, the rays that pass it or a cell
beside it. Weights and sums are float64 in every precision. Images are volumes of one slice. Subsets
of voxels have no kernel here.

Arrays and their places as in `oblique`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from geometries.kernels.oblique import _origin, _real_box
from geometries.kernels.rays3d import columns_of_box, ray, rows_of_box
from geometries.kernels.volume_scan import VolumeScan, pack
from geometries.kernels.volume_tiles import blocks, check, detector_tiles, view_numbers
from linops.compiled import pool

__all__ = ["PlanarJoseph", "adjoint", "forward", "gram_diagonal"]

Real = NDArray[np.floating]
_compiled = njit(nogil=True, cache=True, error_model="numpy")
_TILE = (16, 16, 64)


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
    batch, ly, lx, lz = volume.shape
    check("out", out, (batch, numbers.size, None, None))
    packed, origin = pack(scan), _origin(first_cell)
    box = _real_box(scan, first_cell, (lz, ly, lx))
    flat = volume.reshape(batch, ly * lx * lz)
    tiles = detector_tiles(numbers.size, out.shape[2], pool.workers())

    def task(i: int) -> None:
        _forward(*packed, numbers, flat, (ly, lx, lz), origin, box, out, first_column, first_row,
                 tiles[i])  # fmt: skip

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
    check("projections", projections, (out.shape[0], numbers.size, None, None))
    _back(scan, numbers, projections, out, first_cell, (first_column, first_row), False)


def gram_diagonal(scan: VolumeScan, weights: Real | None, out: Real) -> None:
    """Sum over rays of w a^2 for each cell, `out` (B, y, x, z); no weights mean ones."""
    numbers = view_numbers(scan, None)
    if weights is None:
        weights = np.ones((out.shape[0], numbers.size, scan.shape[1], scan.shape[0]), out.dtype)
    _back(scan, numbers, weights, out, (0, 0, 0), (0, 0), True)


class PlanarJoseph:
    """The functions above for images and sinograms, as `PlanarRunner` calls them."""

    def __init__(self, scan: VolumeScan) -> None:
        self._scan = scan

    def forward(self, _: Any, image: Real, out: Real, **options: Any) -> None:
        """`(B, y, x)` into `(B, views, columns)`."""
        y, x = options.pop("first_cell")
        forward(self._scan, image[..., None], out[..., None], first_cell=(0, y, x), **options)

    def adjoint(self, _: Any, sinogram: Real, out: Real, **options: Any) -> None:
        """The transpose of `forward`."""
        y, x = options.pop("first_cell")
        adjoint(self._scan, sinogram[..., None], out[..., None], first_cell=(0, y, x), **options)

    def gram_diagonal(self, _: Any, weights: Real | None, out: Real) -> None:
        """Of the whole scan, into `(y, x)`."""
        whole = None if weights is None else np.ascontiguousarray(weights[None, ..., None])
        gram_diagonal(self._scan, whole, out[None, ..., None])


def _back(
    scan: VolumeScan,
    numbers: NDArray[np.int64],
    projections: Real,
    out: Real,
    first_cell: tuple[int, int, int],
    first: tuple[int, int],
    squared: bool,
) -> None:
    packed, origin = pack(scan), _origin(first_cell)
    batch, ly, lx, lz = out.shape
    box = _real_box(scan, first_cell, (lz, ly, lx))
    tiles = [
        (b, y0, y1, x0, x1, z0, z1)
        for b in range(batch)
        for y0, y1 in blocks(ly, _TILE[0])
        for x0, x1 in blocks(lx, _TILE[1])
        for z0, z1 in blocks(lz, _TILE[2])
    ]

    def task(i: int) -> None:
        _adjoint(*packed, numbers, projections, first, out, origin, box, tiles[i], squared)

    pool.run(task, len(tiles))


@_compiled
def _forward(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
             numbers, volume, local, origin, box, out, first_column, first_row, tile):  # fmt: skip
    batch, lr = out.shape[0], out.shape[3]
    cols, rows = along.shape[0], heights.shape[0]
    room = 4 * max(1, box[1] - box[0], box[3] - box[2], box[5] - box[4])
    cells = np.empty(room, np.int64)
    pieces = np.empty(room, np.float64)
    for view in range(tile[0], tile[1]):
        number = numbers[view]
        for c in range(tile[2], tile[3]):
            j = c + first_column
            for r in range(lr):
                i = r + first_row
                count = 0
                if 0 <= number < frames.shape[0] and 0 <= j < cols and 0 <= i < rows:
                    line = ray(
                        cone, frames, number, along[j], normal[j], heights[i], spacing, counts
                    )
                    count = _samples(line, box, origin, local, cells, pieces)
                for b in range(batch):
                    total = 0.0
                    for m in range(count):
                        total += pieces[m] * volume[b, cells[m]]
                    out[b, view, c, r] = total


@_compiled
def _adjoint(cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys,
             numbers, projections, first, out, origin, box, tile, squared):  # fmt: skip
    b, y0, y1, x0, x1, z0, z1 = tile
    local = (y1 - y0, x1 - x0, z1 - z0)
    total = np.zeros(local[0] * local[1] * local[2], np.float64)
    corner = (x0 + origin[0], y0 + origin[1], z0 + origin[2])
    part = (
        max(corner[0], box[0]), min(corner[0] + local[1], box[1]),
        max(corner[1], box[2]), min(corner[1] + local[0], box[3]),
        max(corner[2], box[4]), min(corner[2] + local[2], box[5]),
    )  # fmt: skip
    if part[0] < part[1] and part[2] < part[3] and part[4] < part[5]:
        cols, rows = along.shape[0], heights.shape[0]
        # A ray counts in cells up to one beside it.
        reach = (part[0] - 1.0, part[1] + 1.0, part[2] - 1.0, part[3] + 1.0,
                 part[4] - 1.0, part[5] + 1.0)  # fmt: skip
        room = 4 * max(local[0], local[1], local[2])
        cells = np.empty(room, np.int64)
        pieces = np.empty(room, np.float64)
        for view in range(numbers.shape[0]):
            number = numbers[view]
            if number < 0 or number >= frames.shape[0]:
                continue
            j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                    counts, reach)  # fmt: skip
            for j in range(max(j0, first[0]), min(j1, first[0] + projections.shape[2])):
                i0, i1 = rows_of_box(cone, frames, number, along[j], normal[j], sampling, rows,
                                     spacing, counts, reach)  # fmt: skip
                for i in range(max(i0, first[1]), min(i1, first[1] + projections.shape[3])):
                    line = ray(
                        cone, frames, number, along[j], normal[j], heights[i], spacing, counts
                    )
                    count = _samples(line, part, corner, local, cells, pieces)
                    value = float(projections[b, view, j - first[0], i - first[1]])
                    for m in range(count):
                        weight = pieces[m]
                        if squared:
                            weight *= weight
                        total[cells[m]] += weight * value
    m = 0
    for y in range(y0, y1):
        for x in range(x0, x1):
            for z in range(z0, z1):
                out[b, y, x, z] = total[m]
                m += 1


@_compiled
def _samples(line, box, first, local, cells, pieces):
    """Cells of a box that a ray takes its samples from, in a (y, x, z) array; returns how many."""
    ox, oy, oz, dx, dy, dz, start, stop, metre = line
    ax, ay, az = abs(dx), abs(dy), abs(dz)
    if not max(ax, ay, az) > 0.0:
        return 0
    stride_x, stride_y = local[2], local[1] * local[2]
    if ax >= ay and ax >= az:
        q, d, low, high, base, stride = ox, dx, box[0], box[1], first[0], stride_x
        q1, d1, low1, high1, base1, stride1 = oy, dy, box[2], box[3], first[1], stride_y
        q2, d2, low2, high2, base2, stride2 = oz, dz, box[4], box[5], first[2], 1
    elif ay >= az:
        q, d, low, high, base, stride = oy, dy, box[2], box[3], first[1], stride_y
        q1, d1, low1, high1, base1, stride1 = oz, dz, box[4], box[5], first[2], 1
        q2, d2, low2, high2, base2, stride2 = ox, dx, box[0], box[1], first[0], stride_x
    else:
        q, d, low, high, base, stride = oz, dz, box[4], box[5], first[2], 1
        q1, d1, low1, high1, base1, stride1 = ox, dx, box[0], box[1], first[0], stride_x
        q2, d2, low2, high2, base2, stride2 = oy, dy, box[2], box[3], first[1], stride_y
    count = 0
    for slab in range(low, high):
        one, two = (slab - q) / d, (slab + 1.0 - q) / d
        begin = min(max(min(one, two), start), stop)
        end = min(max(max(one, two), start), stop)
        if not begin < end:
            continue
        middle = 0.5 * (begin + end)
        length = (end - begin) * metre
        place1, place2 = q1 + middle * d1 - 0.5, q2 + middle * d2 - 0.5
        if not (low1 - 1.0 < place1 < high1 and low2 - 1.0 < place2 < high2):
            continue
        cell1, cell2 = int(math.floor(place1)), int(math.floor(place2))
        part1, part2 = place1 - cell1, place2 - cell2
        flat = (slab - base) * stride
        for k1 in range(2):
            if not low1 <= cell1 + k1 < high1:
                continue
            share1 = part1 if k1 == 1 else 1.0 - part1
            for k2 in range(2):
                share2 = part2 if k2 == 1 else 1.0 - part2
                if low2 <= cell2 + k2 < high2 and share1 * share2 > 0.0:
                    cells[count] = (
                        flat + (cell1 + k1 - base1) * stride1 + (cell2 + k2 - base2) * stride2
                    )
                    pieces[count] = length * share1 * share2
                    count += 1
    return count
