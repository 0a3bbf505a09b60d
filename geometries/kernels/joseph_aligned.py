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

import numpy as np
from numba import njit

from geometries.kernels.aligned import Aligned, add_listed
from geometries.kernels.joseph_rays import plane_samples
from geometries.kernels.rays3d import columns_of_box, plane_ray

__all__ = ["kernel"]

_compiled = njit(nogil=True, cache=True, error_model="numpy")
_LISTED = 8


@_compiled
def _forward(table, part, volume, out, cut, work):
    cone, frames, along, normal, _, spacing, counts, _, _, _ = table
    numbers, _, _, _, box, origin, local, first, common, _, _ = part
    view, left, right = cut
    number, cols, lx = numbers[view], along.shape[0], local[1]
    lists = _lists(box[1] - box[0], box[3] - box[2])
    flat, result = volume.reshape(-1), out.reshape(-1)
    for c in range(left, right):
        j = c + first[0]
        met = 0
        if 0 <= number < frames.shape[0] and 0 <= j < cols and common[2] > 0:
            line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
            met = _met(line, box[0], box[1], box[2], box[3], origin[0], origin[1], lx, lists)
        for b in range(out.shape[0]):
            out[b, view, c, :] = 0
            at = ((b * out.shape[1] + view) * out.shape[2] + c) * out.shape[3] + common[0]
            begin = b * local[0] * lx * local[2] + common[1]
            add_listed(result, at, flat, begin, local[2], common[2], lists[0], lists[1], met)


@_compiled
def _adjoint(table, part, projections, out, cut, work):
    cone, frames, along, normal, _, spacing, counts, sampling, curved, keys = table
    numbers, _, _, _, box, origin, _, first, common, squared, fresh = part
    y0, y1, x0, x1 = cut
    if fresh:
        out[:, y0:y1, x0:x1] = 0
    bx0, bx1 = max(x0 + origin[0], box[0]), min(x1 + origin[0], box[1])
    by0, by1 = max(y0 + origin[1], box[2]), min(y1 + origin[1], box[3])
    if bx0 >= bx1 or by0 >= by1 or common[2] == 0:
        return
    ny, nx, lc = by1 - by0, bx1 - bx0, projections.shape[2]
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
        j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, along.shape[0],
                                spacing, counts, bounds)  # fmt: skip
        for j in range(max(j0, first[0]), min(j1, first[0] + lc)):
            line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
            for m in range(_met(line, bx0, bx1, by0, by1, bx0, by0, nx, lists)):
                cell = cells[m]
                n = listed[cell]
                weights[cell, n] = shares[m] * shares[m] if squared else shares[m]
                lines[cell, n] = view * lc + j - first[0]
                listed[cell] = n + 1
                if n + 1 == _LISTED:
                    listed[cell] = 0
                    _flush(out, projections, part, by0 + cell // nx, bx0 + cell % nx, lines[cell],
                           weights[cell], _LISTED)  # fmt: skip
    for cell in range(ny * nx):
        _flush(out, projections, part, by0 + cell // nx, bx0 + cell % nx, lines[cell],
               weights[cell], listed[cell])  # fmt: skip


@_compiled
def _flush(out, projections, part, y, x, lines, weights, met):
    """Add the listed detector columns to one voxel column."""
    origin, local, common = part[5], part[6], part[8]
    views, lc, rows = projections.shape[1], projections.shape[2], projections.shape[3]
    for b in range(out.shape[0]):
        at = ((b * local[0] + y - origin[1]) * local[1] + x - origin[0]) * local[2] + common[1]
        begin = b * views * lc * rows + common[0]
        add_listed(out.reshape(-1), at, projections.reshape(-1), begin, rows, common[2], lines,
                   weights, met)  # fmt: skip


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


class _Joseph(Aligned):
    """Joseph's model of rows that are slices."""

    forward_tile = staticmethod(_forward)
    adjoint_tile = staticmethod(_adjoint)
    gram_tile = staticmethod(_adjoint)
    forward_subset = staticmethod(_forward_subset)
    adjoint_subset = staticmethod(_adjoint_subset)


kernel = _Joseph()
