"""Joseph's model where detector columns are parallel to z: cone, helix, unaligned parallel.

A slab of the walk takes the same two voxel columns for every row of a detector column, and rows
lie on straight lines ``q(i) = level + step i`` over the centers of slices. Forward, the two are
put together once and rows interpolate along z; adjoint, what rows give to slices is summed once and
added to both. Rows that are steeper than one slice a slab are driven by z, and sampled one by one
as in `oblique`, which also makes gram diagonals and subsets. Arrays and their places are those of
`volume_driver`, sums and arithmetic of the dtype of `work`.

Scratch a thread: `_SCRATCH` or 64 voxel columns, whichever is more, for what an adjoint owns, and
some numbers a row and a slice.
"""

from __future__ import annotations

import math

import numpy as np

from geometries.kernels.affine_lanes import MARGIN, STEEPEST, hat, hat_back, spread_of
from geometries.kernels.columns_tiles import real_rows
from geometries.kernels.compiling import compiled
from geometries.kernels.joseph_rays import SIDES, plane_samples, samples
from geometries.kernels.oblique import joseph as rays
from geometries.kernels.rays3d import columns_of_box, leads, plane_ray, ray
from geometries.kernels.volume_driver import Cuts, Part, Real, VolumeKernel
from geometries.kernels.volume_tiles import blocks, patches
from linops.compiled import pool
from linops.compiled.noalias import add, load, store

__all__ = ["kernel"]

_VIEWS = 64  # views after which an adjoint clears its sums
_PATCHES = (16, 8)
_SCRATCH = 3 << 18


@compiled
def _forward(table, part, source, out, cut, work):
    cone, frames, along, normal, heights, spacing, counts, sampling, _, _ = table
    numbers, _, _, _, box, origin, local, first, _, _, _ = part
    view, left, right = cut
    number, cols, batch, lx = numbers[view], along.shape[0], out.shape[0], local[1]
    volume = source.reshape(batch, local[0] * lx, local[2])
    i0, n = real_rows(first[1], out.shape[3], heights.shape[0])
    k0, k1 = box[4], box[5]
    out[:, view, left:right] = 0
    if number < 0 or number >= frames.shape[0] or n * (k1 - k0) == 0:
        return
    room = max(1, max(box[1] - box[0], box[3] - box[2]))
    cells, shares, middles = np.empty((2, room), np.int64), np.empty((2, room)), np.empty(room)
    column = np.zeros((batch, k1 - k0 + 2 * MARGIN), work.dtype)
    total = np.zeros((batch, n + 16), work.dtype)
    factor = np.empty(n + 16, work.dtype)
    at = MARGIN - k0
    for c in range(left, right):
        j = c + first[0]
        if not 0 <= j < cols:
            continue
        line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
        lift = _lift(cone, frames, number, along[j], normal[j], line, heights.shape[0],
                     sampling, spacing, counts)  # fmt: skip
        top = heights.shape[0] - i0 - n if lift[6] else i0
        begin, end = _gentle(line, lift, top, top + n)
        met = plane_samples(line, box[0], box[1], box[2], box[3], origin[0], origin[1], lx, cells,
                            shares, middles)  # fmt: skip
        shift = top & -8
        total[:] = 0
        for m in range(met):
            level, step = _rows_at(line, lift, middles[m])
            r0, r1 = _rows_met(level, step, k0, k1, begin, end)
            if r0 >= r1:
                continue
            # All slices that whole groups of rows look at.
            ka = max(k0, int(math.floor(level + step * (r0 & -8))) - 1)
            kb = min(k1, int(math.floor(level + step * ((r1 + 7) & -8))) + 3)
            for b in range(batch):
                _merge(column[b], at, volume[b], origin[2], cells[0, m], cells[1, m],
                       work.dtype.type(shares[0, m]), work.dtype.type(shares[1, m]),
                       ka, kb)  # fmt: skip
            if step > STEEPEST:
                _interpolate(column, at, total, shift, level, step, r0, r1)
            else:
                hat(column, at, total, shift, r0 - shift, r1 - shift, level, step, 0.0, 0.0,
                    2, spread_of(step))  # fmt: skip
        _lengths(line, lift, spacing[2], shift, factor)
        for b in range(batch):
            seen = out[b, view, c][i0 - first[1] :]
            for r in range(begin, end):
                i = top + n - 1 - r if lift[6] else r - top
                store(seen, i, out.dtype.type(load(total[b], r - shift)
                                              * load(factor, r - shift)))  # fmt: skip
        if end - begin < n:
            _sample(cone, frames, number, along[j], normal[j], heights, spacing, counts, lift,
                    top, begin, end, n, volume, lx, origin, box, out, view, c, i0,
                    first[1])  # fmt: skip


@compiled
def _adjoint(table, part, projections, out, cut, work):
    cone, frames, along, normal, heights, spacing, counts, sampling, curved, keys = table
    numbers, _, _, _, box, origin, _, first, _, _, fresh = part
    b0, b1, y0, y1, x0, x1 = cut
    nb, rows, cols = b1 - b0, heights.shape[0], along.shape[0]
    i0, n = real_rows(first[1], projections.shape[3], rows)
    k0, k1 = box[4], box[5]
    bx0, bx1 = max(x0 + origin[0], box[0]), min(x1 + origin[0], box[1])
    by0, by1 = max(y0 + origin[1], box[2]), min(y1 + origin[1], box[3])
    if fresh:
        out[b0:b1, y0:y1, x0:x1] = 0
    if bx0 >= bx1 or by0 >= by1 or n * (k1 - k0) == 0:
        return
    ny, nx, count = by1 - by0, bx1 - bx0, k1 - k0
    bounds = (bx0 - 1.0, bx1 + 1.0, by0 - 1.0, by1 + 1.0, -1.0, counts[2] + 1.0)
    room = max(nx, ny)
    cells, shares, middles = np.empty((2, room), np.int64), np.empty((2, room)), np.empty(room)
    values = np.zeros((nb, n + 16 + 2 * MARGIN), work.dtype)
    factor = np.empty(n + 16, work.dtype)
    column = np.zeros((nb, count + 16), work.dtype)
    sums = np.zeros((nb, ny * nx * count), work.dtype)
    patch = (bx0, bx1, by0, by1, k0, k1)
    listed = SIDES * max(room, count)
    places, weights = np.empty(listed, np.int64), np.empty(listed)
    dirty = False
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if 0 <= number < frames.shape[0]:
            j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, cols, spacing,
                                    counts, bounds)  # fmt: skip
            for j in range(max(j0, first[0]), min(j1, first[0] + projections.shape[2])):
                line = plane_ray(cone, frames, number, along[j], normal[j], spacing, counts)
                lift = _lift(cone, frames, number, along[j], normal[j], line, rows, sampling,
                             spacing, counts)  # fmt: skip
                top = rows - i0 - n if lift[6] else i0
                begin, end = _gentle(line, lift, top, top + n)
                dirty = True
                if end - begin < n:
                    for r in range(top, top + n):
                        if begin <= r < end:
                            continue
                        i = rows - 1 - r if lift[6] else r
                        steep = ray(cone, frames, number, along[j], normal[j], heights[i], spacing,
                                    counts)  # fmt: skip
                        hits = samples(steep, patch, (bx0, by0, k0), (ny, nx, count), places,
                                       weights)  # fmt: skip
                        for b in range(nb):
                            value = projections[b0 + b, view, j - first[0], i - first[1]]
                            for m in range(hits):
                                sums[b, places[m]] += work.dtype.type(weights[m] * value)
                met = plane_samples(line, bx0, bx1, by0, by1, bx0, by0, nx, cells, shares, middles)
                if met == 0 or begin >= end:
                    continue
                shift = top & -8
                _lengths(line, lift, spacing[2], shift, factor)
                for b in range(nb):
                    seen = projections[b0 + b, view, j - first[0]][i0 - first[1] :]
                    values[b] = 0
                    target = values[b][MARGIN:]
                    for r in range(begin, end):
                        i = top + n - 1 - r if lift[6] else r - top
                        store(target, r - shift, work.dtype.type(load(seen, i))
                              * load(factor, r - shift))  # fmt: skip
                for m in range(met):
                    level, step = _rows_at(line, lift, middles[m])
                    r0, r1 = _rows_met(level, step, k0, k1, begin, end)
                    if r0 >= r1:
                        continue
                    ka = max(k0, int(math.floor(level + step * r0)))
                    kb = min(k1, int(math.floor(level + step * (r1 - 1))) + 2)
                    _collect(values, MARGIN - shift, column, k0 & -8, level, step, r0, r1, ka, kb)
                    for b in range(nb):
                        for side in range(2):
                            if cells[side, m] >= 0:
                                _add(sums[b][cells[side, m] * count + ka - k0 :],
                                     work.dtype.type(shares[side, m]),
                                     column[b][ka - (k0 & -8) :], kb - ka)  # fmt: skip
        if dirty and (view % _VIEWS == _VIEWS - 1 or view == numbers.shape[0] - 1):
            dirty = False
            for b in range(nb):
                for cell in range(ny * nx):
                    y, x = by0 + cell // nx - origin[1], bx0 + cell % nx - origin[0]
                    target, source = out[b0 + b, y, x][k0 - origin[2] :], sums[b][cell * count :]
                    for k in range(count):
                        add(target, k, out.dtype.type(load(source, k)))
            sums[:] = 0


@compiled
def _lift(cone, frames, view, along, normal, line, rows, sampling, spacing, counts):
    """(base, pitch, rise, fall, height of row 0, step of heights, flipped) of a detector column.

    Along the walk the ray of height h is at ``base + pitch h + (rise + fall h) (t - anchor)``, in
    slices from the center of slice 0. Flipped rows are counted from the last, so that they rise.
    """
    base, pitch = frames[view, 2] / spacing[2], 0.0
    if not (cone and line[7] == line[4]):
        base = (frames[view, 5] + along * frames[view, 8] + normal * frames[view, 11]) / spacing[2]
        pitch = frames[view, 14] / spacing[2]
    height, step = sampling[2] - 0.5 * (rows - 1) * sampling[3], sampling[3]
    flipped = step * frames[view, 14] < 0.0
    if flipped:
        height, step = height + (rows - 1) * step, -step
    return base + 0.5 * (counts[2] - 1), pitch, line[8], line[9], height, step, flipped


@compiled
def _rows_at(line, lift, t):
    """(level, step): rows ``level + step i`` in slices at parameter t of the walk."""
    base, pitch, rise, fall, height, each, _ = lift
    lead = t - line[7]
    climb = pitch + fall * lead
    return base + rise * lead + height * climb, each * climb


@compiled
def _gentle(line, lift, begin, end):
    """The rows of [begin, end) that climb at most one slice a slab."""
    _, _, rise, fall, height, each, _ = lift
    most = max(abs(line[2]), abs(line[3]))
    if (
        begin < end
        and leads(most, abs(rise + fall * (height + each * begin)))
        and leads(most, abs(rise + fall * (height + each * (end - 1))))
    ):
        return begin, end
    while begin < end and not leads(most, abs(rise + fall * (height + each * begin))):
        begin += 1
    while begin < end and not leads(most, abs(rise + fall * (height + each * (end - 1)))):
        end -= 1
    return begin, end


@compiled
def _rows_met(level, step, k0, k1, begin, end):
    """The rows of [begin, end) that may look at slices [k0, k1)."""
    if not step > 1e-9:
        return begin, end
    first = min(max((k0 - 1 - level) / step - 1e-3, float(begin)), float(end))
    last = min(max((k1 - level) / step + 1e-3, float(begin)), float(end))
    return int(math.floor(first)), int(math.ceil(last))


@compiled
def _lengths(line, lift, tall, shift, factor):
    """Physical length of t = 1 for the rows from `shift` on."""
    _, _, rise, fall, height, each, _ = lift
    level = line[6] * line[6]
    for q in range(factor.shape[0]):
        climb = (rise + fall * (height + each * float(np.int32(shift + q)))) * tall
        store(factor, q, np.sqrt(factor.dtype.type(level + climb * climb)))


@compiled
def _merge(target, at, volume, first, one, two, left, right, ka, kb):
    """Slices [ka, kb) of two voxel columns, weighed and added; of one where a position is -1."""
    line = target[at + ka :]
    if one >= 0 and two >= 0:
        here, there = volume[one][ka - first :], volume[two][ka - first :]
        for k in range(kb - ka):
            value = left * target.dtype.type(load(here, k))
            store(line, k, value + right * target.dtype.type(load(there, k)))
        return
    weight = left if one >= 0 else right
    here = volume[max(one, two)][ka - first :]
    for k in range(kb - ka):
        store(line, k, weight * target.dtype.type(load(here, k)))


@compiled
def _add(target, weight, source, count):
    for k in range(count):
        add(target, k, weight * load(source, k))


@compiled
def _collect(values, at, column, shift, level, step, r0, r1, ka, kb):
    """The transpose of `hat`, of rows [r0, r1) for slices [ka, kb), into `column`."""
    if step * STEEPEST < 1.0:
        column[:, ka - shift : kb - shift] = 0
        for r in range(r0, r1):
            place = level + step * r
            below = math.floor(place)
            share = place - below
            for upper in range(2):
                k = int(below) + upper
                weight = column.dtype.type(share if upper else 1.0 - share)
                if ka <= k < kb and weight > 0.0:
                    for b in range(column.shape[0]):
                        column[b, k - shift] += weight * values[b, at + r]
        return
    long = 1.0 / step
    taps = int(math.ceil(2.0 * long)) + (0 if column.itemsize == 4 else 2)
    hat_back(values, at, column, shift, ka - shift, kb - shift, -(1.0 + level) * long, long, level,
             step, taps, spread_of(long))  # fmt: skip


@compiled
def _interpolate(column, at, total, shift, level, step, r0, r1):
    """`hat`, row by row."""
    for r in range(r0, r1):
        place = level + step * r
        below = math.floor(place)
        share = place - below
        for upper in range(2):
            weight = total.dtype.type(share if upper else 1.0 - share)
            if weight > 0.0:
                for b in range(total.shape[0]):
                    total[b, r - shift] += weight * column[b, at + int(below) + upper]


@compiled
def _sample(cone, frames, number, along, normal, heights, spacing, counts, lift, top, begin, end, n,
            volume, lx, origin, box, out, view, c, i0, first_row):  # fmt: skip
    """The rows of [top, top + n) outside [begin, end), ray by ray."""
    extent = max(box[1] - box[0], max(box[3] - box[2], box[5] - box[4]))
    places, weights = np.empty(SIDES * extent, np.int64), np.empty(SIDES * extent)
    lz = volume.shape[2]
    local = (volume.shape[1] // lx, lx, lz)
    for r in range(top, top + n):
        if begin <= r < end:
            continue
        i = heights.shape[0] - 1 - r if lift[6] else r
        line = ray(cone, frames, number, along, normal, heights[i], spacing, counts)
        hits = samples(line, box, origin, local, places, weights)
        for b in range(out.shape[0]):
            total = 0.0
            for m in range(hits):
                total += weights[m] * volume[b, places[m] // lz, places[m] % lz]
            out[b, view, c, i - first_row] = total


class _Columns(VolumeKernel):
    """Joseph's model of detector columns parallel to z."""

    forward_tile = staticmethod(_forward)
    adjoint_tile = staticmethod(_adjoint)

    # Ray by ray, with the same weights to rounding.
    gram_diagonal = rays.gram_diagonal
    forward_columns = rays.forward_columns
    adjoint_columns = rays.adjoint_columns

    def _adjoint_cuts(self, part: Part, out: Real, work: Real) -> Cuts:
        batch, ly, lx, _ = out.shape
        held = max(1, part.box[5] - part.box[4]) * work.itemsize
        wide = [
            s for s in _PATCHES if s * s * held <= _SCRATCH and ly * lx >= 8 * pool.workers() * s**2
        ]
        side = wide[0] if wide and batch == 1 else _PATCHES[-1]
        share = max(1, _SCRATCH // (held * side * side))
        return [(*some, *patch) for some in blocks(batch, share) for patch in patches(ly, lx, side)]


kernel = _Columns()
