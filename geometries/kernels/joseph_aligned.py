"""Joseph's model for parallel beams whose detector rows coincide with slices.

Row i sees slice i + shift alone, so one walk in the (x, y) plane serves all rows, and with z
fastest in memory the inner loops are contiguous. The forward task owns detector columns; the
adjoint task owns a patch of voxel columns, walks the rays that cross it and sums, for each voxel
column, the detector columns in the order of views. `structure.aligned_shift` says whether a scan
is of this kind; other scans belong to `columns` and `oblique`. Arrays and their places are those
of `volume_driver`.

Weights are set up in float64 and rounded once to the dtype of the data, the same in both
directions, so all precisions run the same code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit

from geometries.kernels.joseph_rays import plane_samples
from geometries.kernels.rays3d import columns_of_box, plane_ray
from geometries.kernels.structure import aligned_shift
from geometries.kernels.volume_driver import Cuts, Part, Real, VolumeKernel
from geometries.kernels.volume_scan import VolumeScan
from geometries.kernels.volume_tiles import detector_cuts, patches
from linops.compiled import pool
from linops.errors import GeometryError

__all__ = ["kernel"]

_compiled = njit(nogil=True, cache=True, error_model="numpy")
_PATCH = 16
_LISTED = 8
_COLUMNS = 256


@_compiled
def _forward(table, part, source, out, cut, work):
    cone, frames, along, normal, _, spacing, counts, _, _, _ = table
    numbers, _, _, _, box, origin, local, first, common, _, _ = part
    view, left, right = cut
    number, cols, lx = numbers[view], along.shape[0], local[1]
    row, slice_, count = common
    volume = source.reshape(source.shape[0], local[0] * lx, local[2])
    lists = _lists(box[1] - box[0], box[3] - box[2])
    cells, shares = lists[0], lists[1]
    weights = np.empty(shares.shape[0], out.dtype)
    for c in range(left, right):
        j = c + first[0]
        met = 0
        if 0 <= number < frames.shape[0] and 0 <= j < cols and count > 0:
            line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
            met = _met(line, box[0], box[1], box[2], box[3], origin[0], origin[1], lx, lists)
            for m in range(met):
                weights[m] = shares[m]
        for b in range(out.shape[0]):
            out[b, view, c, :] = 0
            total = out[b, view, c, row : row + count]
            m = 0
            while m + 4 <= met:
                w0, w1, w2, w3 = weights[m], weights[m + 1], weights[m + 2], weights[m + 3]
                p0 = volume[b, cells[m], slice_ : slice_ + count]
                p1 = volume[b, cells[m + 1], slice_ : slice_ + count]
                p2 = volume[b, cells[m + 2], slice_ : slice_ + count]
                p3 = volume[b, cells[m + 3], slice_ : slice_ + count]
                for k in range(count):
                    total[k] += (w0 * p0[k] + w1 * p1[k]) + (w2 * p2[k] + w3 * p3[k])
                m += 4
            while m < met:
                w0 = weights[m]
                p0 = volume[b, cells[m], slice_ : slice_ + count]
                for k in range(count):
                    total[k] += w0 * p0[k]
                m += 1


@_compiled
def _adjoint(table, part, source, out, cut, work):
    cone, frames, along, normal, _, spacing, counts, sampling, curved, keys = table
    numbers, _, _, _, box, origin, _, first, common, squared, fresh = part
    y0, y1, x0, x1 = cut
    ny, nx = y1 - y0, x1 - x0
    row, slice_, count = common
    if fresh:
        out[:, y0:y1, x0:x1] = 0
    fx, fy = x0 + origin[0], y0 + origin[1]
    bx0, bx1 = max(fx, box[0]), min(fx + nx, box[1])
    by0, by1 = max(fy, box[2]), min(fy + ny, box[3])
    if bx0 >= bx1 or by0 >= by1 or count == 0:
        return
    cols, lc = along.shape[0], source.shape[2]
    projections = source.reshape(source.shape[0], numbers.shape[0] * lc, source.shape[3])
    bounds = _seen(bx0, bx1, by0, by1, counts)
    lists = _lists(nx, ny)
    cells, shares = lists[0], lists[1]
    listed = np.zeros(ny * nx, np.int64)
    lines = np.empty((ny * nx, _LISTED), np.int64)
    weights = np.empty((ny * nx, _LISTED), out.dtype)
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if number < 0 or number >= frames.shape[0]:
            continue
        j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                counts, bounds)  # fmt: skip
        for j in range(max(j0, first[0]), min(j1, first[0] + lc)):
            line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
            met = _met(line, bx0, bx1, by0, by1, fx, fy, nx, lists)
            for m in range(met):
                cell = cells[m]
                n = listed[cell]
                weight = shares[m]
                weights[cell, n] = weight * weight if squared else weight
                lines[cell, n] = view * lc + j - first[0]
                listed[cell] = n + 1
                if n + 1 == _LISTED:
                    listed[cell] = 0
                    for b in range(out.shape[0]):
                        total = out[b, y0 + cell // nx, x0 + cell % nx, slice_ : slice_ + count]
                        _add(total, projections, b, row, count, lines, weights, cell, _LISTED)
    for cell in range(ny * nx):
        for b in range(out.shape[0]):
            total = out[b, y0 + cell // nx, x0 + cell % nx, slice_ : slice_ + count]
            _add(total, projections, b, row, count, lines, weights, cell, listed[cell])


@_compiled
def _lists(nx, ny):
    """Room for what `_met` lists of nx by ny cells, and for what it works with."""
    room = max(1, max(nx, ny))
    slabs, parts = np.empty((2, room), np.int64), np.empty((2, room))
    return np.empty(2 * room, np.int64), np.empty(2 * room), slabs, parts, np.empty(room)


@_compiled
def _met(line, x0, x1, y0, y1, fx, fy, lx, lists):
    """List the cells of [x0, x1) x [y0, y1) on a ray and their physical weights; their number."""
    cells, weights, slabs, parts, middles = lists
    met = 0
    for m in range(plane_samples(line, x0, x1, y0, y1, fx, fy, lx, slabs, parts, middles)):
        for side in range(2):
            if slabs[side, m] >= 0:
                cells[met], weights[met] = slabs[side, m], parts[side, m] * line[6]
                met += 1
    return met


@_compiled
def _seen(x0, x1, y0, y1, counts):
    """The box whose rays have weights in [x0, x1) x [y0, y1)."""
    return x0 - 1.0, x1 + 1.0, y0 - 1.0, y1 + 1.0, 0.0, float(counts[2])


@_compiled
def _add(total, projections, b, row, count, lines, weights, cell, listed):
    """Add the listed detector columns to one voxel column."""
    m = 0
    while m + 4 <= listed:
        w0, w1 = weights[cell, m], weights[cell, m + 1]
        w2, w3 = weights[cell, m + 2], weights[cell, m + 3]
        p0 = projections[b, lines[cell, m], row : row + count]
        p1 = projections[b, lines[cell, m + 1], row : row + count]
        p2 = projections[b, lines[cell, m + 2], row : row + count]
        p3 = projections[b, lines[cell, m + 3], row : row + count]
        for k in range(count):
            total[k] += (w0 * p0[k] + w1 * p1[k]) + (w2 * p2[k] + w3 * p3[k])
        m += 4
    while m < listed:
        w0 = weights[cell, m]
        p0 = projections[b, lines[cell, m], row : row + count]
        for k in range(count):
            total[k] += w0 * p0[k]
        m += 1


@_compiled
def _forward_subset(table, part, values, out, cut, work):
    cone, frames, along, normal, _, spacing, counts, sampling, curved, keys = table
    numbers, _, _, positions, _, _, _, first, common, _, _ = part
    view, left, right = cut
    number, cols = numbers[view], along.shape[0]
    row, slice_, count = common
    start, stop = first[0] + left, first[0] + right
    lists = _lists(1, 1)
    out[:, view, left:right] = 0
    if number < 0 or number >= frames.shape[0]:
        return
    for s in range(positions.shape[0]):
        if positions[s] < 0:
            continue
        y, x = positions[s] // counts[0], positions[s] % counts[0]
        bounds = _seen(x, x + 1, y, y + 1, counts)
        j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                counts, bounds)  # fmt: skip
        for j in range(max(j0, start), min(j1, stop)):
            line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
            if _met(line, x, x + 1, y, y + 1, x, y, 1, lists) == 0:
                continue
            weight = values.dtype.type(lists[1][0])
            for b in range(out.shape[0]):
                total = out[b, view, j - first[0], row : row + count]
                p = values[b, s, slice_ : slice_ + count]
                for k in range(count):
                    total[k] += weight * p[k]


@_compiled
def _adjoint_subset(table, part, projections, out, cut, work):
    cone, frames, along, normal, _, spacing, counts, sampling, curved, keys = table
    numbers, _, _, positions, _, _, _, first, common, _, fresh = part
    row, slice_, count = common
    cols, lc = along.shape[0], projections.shape[2]
    lists = _lists(1, 1)
    if fresh:
        out[:, cut[0] : cut[1]] = 0
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if number < 0 or number >= frames.shape[0]:
            continue
        for s in range(cut[0], cut[1]):
            if positions[s] < 0:
                continue
            y, x = positions[s] // counts[0], positions[s] % counts[0]
            bounds = _seen(x, x + 1, y, y + 1, counts)
            j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                    counts, bounds)  # fmt: skip
            for j in range(max(j0, first[0]), min(j1, first[0] + lc)):
                line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
                if _met(line, x, x + 1, y, y + 1, x, y, 1, lists) == 0:
                    continue
                weight = out.dtype.type(lists[1][0])
                for b in range(out.shape[0]):
                    total = out[b, s, slice_ : slice_ + count]
                    p = projections[b, view, j - first[0], row : row + count]
                    for k in range(count):
                        total[k] += weight * p[k]


class _Aligned(VolumeKernel):
    """Joseph's model of rows that are slices."""

    forward_tile = staticmethod(_forward)
    adjoint_tile = staticmethod(_adjoint)
    gram_tile = staticmethod(_adjoint)
    forward_subset = staticmethod(_forward_subset)
    adjoint_subset = staticmethod(_adjoint_subset)

    def _shift(self, scan: VolumeScan) -> int:
        shift = aligned_shift(scan)
        if shift is None:
            raise GeometryError(
                "the detector's rows are not aligned with slices; use kernel columns"
            )
        return shift

    def _adjoint_cuts(self, part: Part, out: Real, work: Real) -> Cuts:
        return patches(out.shape[1], out.shape[2], _PATCH)

    def _forward_subset_cuts(self, views: Sequence[int], out: Real, work: Real) -> Cuts:
        return detector_cuts(views, out.shape[2], pool.workers(), most=_COLUMNS)


kernel = _Aligned()
