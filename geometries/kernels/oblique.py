"""Any frames and detectors, ray by ray: exact Siddon, cell after cell, and Joseph's model.

The general path, right for any orientation of source, detector and axes; `columns` and `aligned`
are faster where their conditions hold. The forward task owns detector cells and gathers along
each ray; the adjoint task owns a box of voxels and walks, in one fixed order, the rays that can
meet it. Both take their weights from `rays3d.walk` or `joseph_rays.samples`, in float64, and sum
in float64, for every precision. Arrays and their places are those of `volume_driver`.

Where the detector is a surface, cells stand at the places that come with a block of views; nothing
is known of where a cell's neighbors stand, so an adjoint box looks at every ray, but for detector
columns that all pass it, and boxes are wide. Subsets of voxels have no kernel there.

Scratch a thread: 128 KiB for a box of the adjoint (of a surface 4 MiB), and 64 bytes a cell along
each axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from geometries.kernels.compiling import compiled
from geometries.kernels.joseph_rays import SIDES, samples
from geometries.kernels.rays3d import columns_of_box, ray, rows_of_box, walk
from geometries.kernels.volume_driver import Cuts, Part, Real, VolumeKernel
from geometries.kernels.volume_scan import VolumeScan
from geometries.kernels.volume_tiles import blocks, boxes, detector_cuts
from linops.compiled import pool

__all__ = ["joseph", "kernel"]

_TILE = (16, 16, 64)  # y, x, z
_WIDE = (64, 64, 128)
_COLUMNS = 64


@compiled
def _forward(table, part, source, out, cut, work):
    cone, frames, along, normal, heights, spacing, counts, _, _, _, smooth = table
    numbers, start, places, _, box, origin, local, first, _, _, _ = part
    view, left, right = cut
    number = numbers[view]
    cols, rows = along.shape[0], heights.shape[0]
    volume = source.reshape(source.shape[0], local[0] * local[1] * local[2])
    cells, pieces = _lists(box[1] - box[0] + box[3] - box[2] + box[5] - box[4])
    surface, frame = places.shape[0] > 0, np.zeros((1, 24))
    rays, at, share = (frame, 0, 0.0) if surface else (frames, number, 1.0)
    for c in range(left, right):
        j = c + first[0]
        for r in range(out.shape[3]):
            i = r + first[1]
            count = 0
            if 0 <= number < frames.shape[0] and 0 <= j < cols and 0 <= i < rows:
                if surface:
                    _place(frame, frames, number, places, view - start, j, i)
                line = ray(cone, rays, at, share * along[j], share * normal[j],
                           share * heights[i], spacing, counts)  # fmt: skip
                count = _met(smooth, line, box[0], box[1], box[2], box[3], box[4], box[5],
                             origin[0], origin[1], origin[2], local[0], local[1], local[2],
                             cells, pieces)  # fmt: skip
            for b in range(out.shape[0]):
                total = 0.0
                for m in range(count):
                    total += pieces[m] * volume[b, cells[m]]
                out[b, view, c, r] = total


@compiled
def _adjoint(table, part, projections, out, cut, work):
    cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys, smooth = table
    numbers, start, places, _, box, origin, _, first, _, squared, fresh = part
    b, y0, y1, x0, x1, z0, z1 = cut
    ny, nx, nz = y1 - y0, x1 - x0, z1 - z0
    if fresh:
        out[b, y0:y1, x0:x1, z0:z1] = 0
    fx, fy, fz = x0 + origin[0], y0 + origin[1], z0 + origin[2]
    bx0, bx1 = max(fx, box[0]), min(fx + nx, box[1])
    by0, by1 = max(fy, box[2]), min(fy + ny, box[3])
    bz0, bz1 = max(fz, box[4]), min(fz + nz, box[5])
    if bx0 >= bx1 or by0 >= by1 or bz0 >= bz1:
        return
    total = np.zeros(ny * nx * nz, np.float64)
    cols, rows = along.shape[0], heights.shape[0]
    bounds = _seen(smooth, bx0, bx1, by0, by1, bz0, bz1)
    cells, pieces = _lists(nx + ny + nz)
    surface, frame = places.shape[0] > 0, np.zeros((1, 24))
    rays, share = (frame, 0.0) if surface else (frames, 1.0)
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if number < 0 or number >= frames.shape[0]:
            continue
        at, j0, j1, i0, i1 = 0 if surface else number, 0, cols, 0, rows
        if not surface:
            j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                    counts, bounds)  # fmt: skip
        for j in range(max(j0, first[0]), min(j1, first[0] + projections.shape[2])):
            if not surface:
                i0, i1 = rows_of_box(cone, frames, number, along[j], normal[j], sampling, rows,
                                     spacing, counts, bounds)  # fmt: skip
            elif cone and _passes(frames, number, places, view - start, j, spacing, counts, bounds):
                continue
            for i in range(max(i0, first[1]), min(i1, first[1] + projections.shape[3])):
                if surface:
                    _place(frame, frames, number, places, view - start, j, i)
                line = ray(cone, rays, at, share * along[j], share * normal[j],
                           share * heights[i], spacing, counts)  # fmt: skip
                count = _met(smooth, line, bx0, bx1, by0, by1, bz0, bz1, fx, fy, fz, ny, nx, nz,
                             cells, pieces)  # fmt: skip
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
                out[b, y, x, z] += total[m]
                m += 1


@compiled
def _forward_subset(table, part, values, out, cut, work):
    cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys, smooth = table
    numbers, _, _, positions, box, origin, _, first, _, _, _ = part
    view, left, right = cut
    number = numbers[view]
    cols, rows = along.shape[0], heights.shape[0]
    lr, lz = out.shape[3], values.shape[2]
    cells, pieces = _lists(box[5] - box[4] + 2)
    total = np.empty((right - left, lr), np.float64)
    for b in range(out.shape[0]):
        total[:] = 0.0
        for s in range(positions.shape[0]):
            if positions[s] < 0 or number < 0 or number >= frames.shape[0]:
                continue
            y, x = positions[s] // counts[0], positions[s] % counts[0]
            bounds = _seen(smooth, x, x + 1, y, y + 1, box[4], box[5])
            j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                    counts, bounds)  # fmt: skip
            for j in range(max(j0, first[0] + left), min(j1, first[0] + right)):
                i0, i1 = rows_of_box(cone, frames, number, along[j], normal[j], sampling, rows,
                                     spacing, counts, bounds)  # fmt: skip
                for i in range(max(i0, first[1]), min(i1, first[1] + lr)):
                    line = ray(
                        cone, frames, number, along[j], normal[j], heights[i], spacing, counts
                    )
                    count = _met(smooth, line, x, x + 1, y, y + 1, box[4], box[5], x, y, origin[2],
                                 1, 1, lz, cells, pieces)  # fmt: skip
                    for m in range(count):
                        total[j - first[0] - left, i - first[1]] += (
                            pieces[m] * values[b, s, cells[m]]
                        )
        for c in range(left, right):
            for r in range(lr):
                out[b, view, c, r] = total[c - left, r]


@compiled
def _adjoint_subset(table, part, projections, out, cut, work):
    cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys, smooth = table
    numbers, _, _, positions, box, origin, _, first, _, _, fresh = part
    cols, rows = along.shape[0], heights.shape[0]
    lc, lr, lz = projections.shape[2], projections.shape[3], out.shape[2]
    cells, pieces = _lists(box[5] - box[4] + 2)
    total = np.empty(lz, np.float64)
    if fresh:
        out[:, cut[0] : cut[1]] = 0
    for b in range(out.shape[0]):
        for s in range(cut[0], cut[1]):
            total[:] = 0.0
            for view in range(numbers.shape[0]):
                number = numbers[view]
                if positions[s] < 0 or number < 0 or number >= frames.shape[0]:
                    continue
                y, x = positions[s] // counts[0], positions[s] % counts[0]
                bounds = _seen(smooth, x, x + 1, y, y + 1, box[4], box[5])
                j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols,
                                        spacing, counts, bounds)  # fmt: skip
                for j in range(max(j0, first[0]), min(j1, first[0] + lc)):
                    i0, i1 = rows_of_box(cone, frames, number, along[j], normal[j], sampling, rows,
                                         spacing, counts, bounds)  # fmt: skip
                    for i in range(max(i0, first[1]), min(i1, first[1] + lr)):
                        line = ray(
                            cone, frames, number, along[j], normal[j], heights[i], spacing, counts
                        )
                        count = _met(smooth, line, x, x + 1, y, y + 1, box[4], box[5], x, y,
                                     origin[2], 1, 1, lz, cells, pieces)  # fmt: skip
                        value = float(projections[b, view, j - first[0], i - first[1]])
                        for m in range(count):
                            total[cells[m]] += pieces[m] * value
            for z in range(lz):
                out[b, s, z] += total[z]


@compiled
def _lists(extents):
    """Room for the cells and weights of a ray through a box, given the sum of its extents."""
    return np.empty(SIDES * max(1, extents), np.int64), np.empty(SIDES * max(1, extents))


@compiled
def _met(smooth, line, x0, x1, y0, y1, z0, z1, fx, fy, fz, ly, lx, lz, cells, weights):
    """List the cells of a box on a ray and their physical weights; their number."""
    if not smooth:
        return walk(line, x0, x1, y0, y1, z0, z1, fx, fy, fz, ly, lx, lz, cells, weights)
    return samples(line, (x0, x1, y0, y1, z0, z1), (fx, fy, fz), (ly, lx, lz), cells, weights)


@compiled
def _seen(smooth, x0, x1, y0, y1, z0, z1):
    """The box whose rays have weights in another."""
    more = 1.0 if smooth else 0.0
    return x0 - more, x1 + more, y0 - more, y1 + more, z0 - more, z1 + more


@compiled
def _place(frame, frames, number, places, view, j, i):
    """Make `frame` that of one cell of a surface, its center where the cell stands."""
    for a in range(3):
        frame[0, a] = frames[number, a]
        frame[0, 3 + a] = places[view, j, i, a]


@compiled
def _passes(frames, number, places, view, j, spacing, counts, bounds):
    """Whether all segments of a surface's column lie beside a box, on one side of it."""
    for a in range(3):
        least = frames[number, a]
        most = least
        for i in range(places.shape[2]):
            least = min(least, places[view, j, i, a])
            most = max(most, places[view, j, i, a])
        slack = 1e-6 * (abs(least) + abs(most)) / spacing[a]
        if least / spacing[a] + 0.5 * counts[a] - slack > bounds[2 * a + 1]:
            return True
        if most / spacing[a] + 0.5 * counts[a] + slack < bounds[2 * a]:
            return True
    return False


class _Oblique(VolumeKernel):
    """Rays one by one; `smooth` for Joseph's model."""

    def __init__(self, smooth: bool) -> None:
        self._smooth = smooth

    forward_tile = staticmethod(_forward)
    adjoint_tile = staticmethod(_adjoint)
    gram_tile = staticmethod(_adjoint)
    forward_subset = staticmethod(_forward_subset)
    adjoint_subset = staticmethod(_adjoint_subset)

    def _table(self, scan: VolumeScan) -> tuple[Any, ...]:
        return (*super()._table(scan), self._smooth)

    def _adjoint_cuts(self, part: Part, out: Real, work: Real) -> Cuts:
        tile = _TILE
        if len(part.places):
            tile = (min(_WIDE[0], -(-out.shape[1] // (2 * pool.workers()))), *_WIDE[1:])
        batch, ly, lx, lz = out.shape
        return boxes(batch, ly, lx, lz, tile)

    def _forward_subset_cuts(self, views: Sequence[int], out: Real, work: Real) -> Cuts:
        return detector_cuts(views, out.shape[2], pool.workers(), most=_COLUMNS)

    def _adjoint_subset_cuts(self, part: Part, out: Real, work: Real) -> Cuts:
        return blocks(part.positions.size, part.positions.size // (8 * pool.workers()))


kernel = _Oblique(smooth=False)
joseph = _Oblique(smooth=True)
