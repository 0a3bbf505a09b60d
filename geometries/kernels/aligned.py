"""Parallel beams whose detector rows coincide with slices: exact Siddon, and Joseph's model.

Row i sees slice i + shift alone, so one walk in the (x, y) plane serves all rows, and with z
fastest in memory the inner loops are contiguous. The forward task owns detector columns and walks;
the adjoint task owns a patch of voxel columns and sums, for each of them, the detector columns that
cross it in the order of views, after the tables of `aligned_rays`. `structure.view_shifts` says
which views are of this kind; others belong to `columns` and `oblique`. Arrays and their places are
those of `volume_driver`.

Weights are set up in float64 and rounded once to the dtype of the data, the same in both
directions, so all precisions run the same code.

Scratch a thread: 28 bytes a cell that a column's walk meets (forward), 512 a detector column
(adjoint).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from geometries.kernels.aligned_rays import VIEWS, crossing, empty_rays, real_views, set_rays
from geometries.kernels.compiling import compiled
from geometries.kernels.joseph_rays import plane_samples
from geometries.kernels.rays3d import plane_ray, plane_walk
from geometries.kernels.structure import aligned_shift
from geometries.kernels.volume_driver import Cuts, Part, Real, VolumeKernel
from geometries.kernels.volume_scan import VolumeScan
from geometries.kernels.volume_tiles import blocks, detector_cuts, patches
from linops.compiled import pool
from linops.compiled.noalias import add, load
from linops.errors import GeometryError

__all__ = ["joseph", "kernel"]

_PATCH = 16
_COLUMNS = 256
_LINES = 1 << 20  # bytes of projections that a patch sees in the views of a table


@compiled
def _forward(table, part, volume, out, cut, work):
    cone, frames, along, normal, _, spacing, counts, _, _, _, smooth = table
    numbers, _, _, _, box, origin, local, first, common, _, _ = part
    view, left, right = cut
    number, cols, lx = numbers[view], along.shape[0], local[1]
    lists = _lists(box[1] - box[0] + box[3] - box[2])
    flat, result = volume.reshape(-1), out.reshape(-1)
    for c in range(left, right):
        j = c + first[0]
        met = 0
        if 0 <= number < frames.shape[0] and 0 <= j < cols and common[2] > 0:
            line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
            met = _met(smooth, line, box, origin, lx, lists)
        for b in range(out.shape[0]):
            out[b, view, c, :] = 0
            at = ((b * out.shape[1] + view) * out.shape[2] + c) * out.shape[3] + common[0]
            begin = b * local[0] * lx * local[2] + common[1]
            _add(result, at, flat, begin, local[2], common[2], lists[0], lists[1], met)


@compiled
def _lists(room):
    """Room for the cells and weights of a ray, and for what `_met` works with."""
    room = max(1, room)
    return (np.empty(2 * room, np.int64), np.empty(2 * room), np.empty((2, room), np.int64),
            np.empty((2, room)), np.empty(room))  # fmt: skip


@compiled
def _met(smooth, line, box, origin, lx, lists):
    """List the cells of the box on a ray and their physical weights; returns their number."""
    cells, weights, slabs, parts, middles = lists
    x0, x1, y0, y1, fx, fy = box[0], box[1], box[2], box[3], origin[0], origin[1]
    if not smooth:
        met = plane_walk(line, x0, x1, y0, y1, fx, fy, lx, cells, parts[0], parts[1])
        for m in range(met):
            weights[m] = (parts[1, m] - parts[0, m]) * line[6]
        return met
    met = 0
    for m in range(plane_samples(line, x0, x1, y0, y1, fx, fy, lx, slabs, parts, middles)):
        for side in range(2):
            if slabs[side, m] >= 0:
                cells[met], weights[met] = slabs[side, m], parts[side, m] * line[6]
                met += 1
    return met


@compiled
def _adjoint(table, part, projections, out, cut, work):
    numbers, _, _, _, box, origin, _, first, common, squared, fresh = part
    smooth = table[10]
    b0, b1, y0, y1, x0, x1 = cut
    if fresh:
        out[b0:b1, y0:y1, x0:x1] = 0
    bx0, bx1 = max(x0 + origin[0], box[0]), min(x1 + origin[0], box[1])
    by0, by1 = max(y0 + origin[1], box[2]), min(y1 + origin[1], box[3])
    if bx0 >= bx1 or by0 >= by1 or common[2] == 0:
        return
    # Joseph's model also takes the rays beside a cell.
    bounds = (bx0 - 1.0, bx1 + 1.0, by0 - 1.0, by1 + 1.0, 0.0, float(table[6][2]))
    _, ly, lx, lz = out.shape
    _, some, lc, lr = projections.shape
    real = real_views(numbers, table[1].shape[0])
    rays, lines, weights = empty_rays(VIEWS, lc)
    flat, result = projections.reshape(-1), out.reshape(-1)
    for start in range(0, real.shape[0], VIEWS):
        views = real[start : start + VIEWS]
        set_rays(table, numbers, views, bounds, first[0], lc, rays)
        for y in range(by0 - origin[1], by1 - origin[1]):
            for x in range(bx0 - origin[0], bx1 - origin[0]):
                met = crossing(smooth, x + origin[0], y + origin[1], views.shape[0], rays,
                               lines, weights)  # fmt: skip
                if squared:
                    for m in range(met):
                        weights[m] *= weights[m]
                for b in range(b0, b1):
                    at = ((b * ly + y) * lx + x) * lz + common[1]
                    begin = b * some * lc * lr + common[0]
                    _add(result, at, flat, begin, lr, common[2], lines, weights, met)


@compiled
def _forward_subset(table, part, values, out, cut, work):
    numbers, _, _, positions, _, _, _, first, common, _, _ = part
    smooth = table[10]
    view, left, right = cut
    counts = table[6]
    out[:, view, left:right] = 0
    if numbers[view] < 0 or numbers[view] >= table[1].shape[0]:
        return
    bounds = (-1.0, counts[0] + 1.0, -1.0, counts[1] + 1.0, 0.0, float(counts[2]))
    rays, lines, weights = empty_rays(1, right - left)
    set_rays(table, numbers[view : view + 1], np.zeros(1, np.int64), bounds, first[0] + left,
             right - left, rays)  # fmt: skip
    flat, result = values.reshape(-1), out.reshape(-1)
    source = np.zeros(1, np.int64)
    for s in range(positions.shape[0]):
        if positions[s] < 0:
            continue
        y, x = positions[s] // counts[0], positions[s] % counts[0]
        met = crossing(smooth, x, y, 1, rays, lines, weights)
        for m in range(met):
            for b in range(out.shape[0]):
                at = (b * out.shape[1] + view) * out.shape[2] + left + lines[m]
                begin = (b * values.shape[1] + s) * values.shape[2] + common[1]
                _add(result, at * out.shape[3] + common[0], flat, begin, 0, common[2], source,
                     weights[m:], 1)  # fmt: skip


@compiled
def _adjoint_subset(table, part, projections, out, cut, work):
    numbers, _, _, positions, _, _, _, first, common, _, fresh = part
    smooth = table[10]
    counts = table[6]
    if fresh:
        out[:, cut[0] : cut[1]] = 0
    bounds = (-1.0, counts[0] + 1.0, -1.0, counts[1] + 1.0, 0.0, float(counts[2]))
    _, some, lc, lr = projections.shape
    real = real_views(numbers, table[1].shape[0])
    rays, lines, weights = empty_rays(VIEWS, lc)
    flat, result = projections.reshape(-1), out.reshape(-1)
    for start in range(0, real.shape[0], VIEWS):
        views = real[start : start + VIEWS]
        set_rays(table, numbers, views, bounds, first[0], lc, rays)
        for s in range(cut[0], cut[1]):
            if positions[s] < 0:
                continue
            y, x = positions[s] // counts[0], positions[s] % counts[0]
            met = crossing(smooth, x, y, views.shape[0], rays, lines, weights)
            for b in range(out.shape[0]):
                at = (b * out.shape[1] + s) * out.shape[2] + common[1]
                begin = b * some * lc * lr + common[0]
                _add(result, at, flat, begin, lr, common[2], lines, weights, met)


@compiled
def _add(total, at, source, begin, width, count, lines, weights, met):
    """Add `met` weighted lines of `count` numbers to those at `total[at]`.

    Line m starts at ``source[begin + lines[m] * width]``.
    """
    real = total.dtype.type
    m = 0
    while m + 4 <= met:
        w0, w1, w2, w3 = (real(weights[m]), real(weights[m + 1]), real(weights[m + 2]),
                          real(weights[m + 3]))  # fmt: skip
        p0, p1 = begin + lines[m] * width, begin + lines[m + 1] * width
        p2, p3 = begin + lines[m + 2] * width, begin + lines[m + 3] * width
        for k in range(count):
            add(total, at + k, (w0 * load(source, p0 + k) + w1 * load(source, p1 + k))
                + (w2 * load(source, p2 + k) + w3 * load(source, p3 + k)))  # fmt: skip
        m += 4
    while m < met:
        w0, p0 = real(weights[m]), begin + lines[m] * width
        for k in range(count):
            add(total, at + k, w0 * load(source, p0 + k))
        m += 1


class _Aligned(VolumeKernel):
    """Rows that are slices; `smooth` for Joseph's model."""

    def __init__(self, smooth: bool) -> None:
        self._smooth = smooth

    forward_tile = staticmethod(_forward)
    adjoint_tile = staticmethod(_adjoint)
    gram_tile = staticmethod(_adjoint)
    forward_subset = staticmethod(_forward_subset)
    adjoint_subset = staticmethod(_adjoint_subset)
    kept = 1 << 23

    def _table(self, scan: VolumeScan) -> tuple[Any, ...]:
        return (*super()._table(scan), self._smooth)

    def _shift(self, scan: VolumeScan) -> int:
        shift = aligned_shift(scan)
        if shift is None:
            raise GeometryError(
                "the detector's rows are not aligned with slices; use kernel columns"
            )
        return shift

    def _adjoint_cuts(self, part: Part, out: Real, work: Real) -> Cuts:
        batch, ly, lx, lz = out.shape
        share = max(1, _LINES // (2 * _PATCH * VIEWS * max(1, lz) * out.itemsize))
        return [(*b, *patch) for b in blocks(batch, share) for patch in patches(ly, lx, _PATCH)]

    def _forward_subset_cuts(self, views: Sequence[int], out: Real, work: Real) -> Cuts:
        return detector_cuts(views, out.shape[2], pool.workers(), most=_COLUMNS)


kernel = _Aligned(smooth=False)
joseph = _Aligned(smooth=True)
