"""Derivatives of Siddon's projections in the geometry, compiled: one walk along each ray.

Let f be the values of the cells along a ray `P + s E`, E from source to cell (or the direction),
and c_j = f_before - f_after at the face that it crosses at s_j, outside the grid f = 0. Then

    p  = |E| sum_j c_j s_j
    dp = - sum_a |E| / E_a (A_a dP_a + B_a dE_a) + p E.dE / |E|^2

where A_a sums c_j and B_a sums c_j s_j over the faces across axis a; ends of a segment within the
grid have a fixed s and belong to none. So both modes follow from seven sums a ray. Rays, faces and
sums are in float64 for every precision. A task owns a view: results do not depend on the number of
threads.

The chain from rays to frames is that of `geometries/kernels/portable_gradient.py`; images are
volumes of one slice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from geometries.kernels.compiling import compiled
from geometries.kernels.portable_gradient import Chain, MovingFrames
from geometries.kernels.portable_scan import Setup
from geometries.kernels.rays3d import BIG, crossing_range, first_cell, inverse, ray
from linops.compiled import pool

__all__ = ["pull", "push"]

Real = NDArray[np.floating[Any]]


def push(setup: Setup, window: np.ndarray, at: MovingFrames, move: MovingFrames, x: Real) -> Real:
    """How the projections of `x` `(n, *voxels)` change where the geometry moves: `(n, *cells)`."""
    chain = Chain.of(setup, at, move)
    scan = _Scan(setup, window, chain)
    assert chain.moved is not None and chain.turned is not None
    moves = _table(chain.moved, chain.turned)
    steps = _offsets(chain.moved)
    flat = np.ascontiguousarray(x).reshape(len(x), -1)
    out = np.zeros((len(x), setup.cells[0], setup.rows, setup.cells[-1]), x.dtype)

    def task(view: int) -> None:
        _push(*scan.parts, view, moves, *steps, flat, out)

    pool.run(task, setup.cells[0])
    return out.reshape(len(x), *setup.cells)


def pull(
    setup: Setup, window: np.ndarray, at: MovingFrames, x: Real, y: Real, cells: bool
) -> tuple[np.ndarray, ...]:
    """The gradient of `<A x, y>` in frames and, where `cells`, in offsets and heights."""
    chain = Chain.of(setup, at)
    scan = _Scan(setup, window, chain)
    views, dims = at.u.shape
    flat = np.ascontiguousarray(x).reshape(len(x), -1)
    given = np.ascontiguousarray(y).reshape(len(y), views, setup.rows, setup.cells[-1])
    sums = np.zeros((views, 5, 3))
    _, rows, cols, _ = at.offsets.shape
    shares = np.zeros((views, rows, cols, 3) if cells else (0, 1, 1, 3))
    heights = np.zeros((views if cells else 0, setup.rows))

    def task(view: int) -> None:
        _pull(*scan.parts, view, flat, given, sums, shares, heights)

    pool.run(task, views)
    to_frames = chain.pulled(at, tuple(sums[:, k, :dims] for k in range(5)))
    if not cells:
        return to_frames
    total = shares if at.offsets.shape[0] > 1 else shares.sum(axis=0, keepdims=True)
    return (*to_frames, total, heights.sum(axis=0))


class _Scan:
    """What the kernels take of a scan: `parts`."""

    def __init__(self, setup: Setup, window: np.ndarray, chain: Chain) -> None:
        dims = len(setup.voxels)
        sizes = np.ones(3, np.int64)
        counts, first = np.ones(3, np.int64), np.zeros(3, np.int64)
        spacing, center = np.ones(3), np.zeros(3)
        sizes[:dims], counts[:dims] = setup.voxels[::-1], setup.grid[::-1]
        first[:dims] = np.asarray(window)[2 + len(setup.detector) :][::-1]
        spacing[:dims], center[:dims] = setup.spacing[::-1], setup.center[::-1]
        low, high = np.maximum(first, 0), np.minimum(first + sizes, counts)
        places = [0, 0, *np.asarray(window)[2 : 2 + len(setup.detector)]][-2:]
        shape = (1, *setup.detector)[-2:]
        real = [int(window[0]), int(window[1])]
        for start, count, size in zip(places, shape, (setup.rows, setup.cells[-1]), strict=True):
            begin = min(max(-int(start), 0), size)
            real += [begin, max(min(int(count) - int(start), size), begin)]
        table = _table(chain.frames, chain.normal)
        table[:, 3:6] -= center
        if not setup.parallel:
            table[:, :3] -= center
        box = np.stack([low, np.maximum(high, low), first, sizes])
        offsets = _offsets(chain.frames)
        self.parts = (
            not setup.parallel, table, *offsets, spacing, counts, box, np.array(real, np.int64)
        )  # fmt: skip


def _table(frames: MovingFrames, normal: np.ndarray) -> np.ndarray:
    """Source or direction, center, u, n and v in one row a view, as `rays3d.ray` takes them."""
    views, dims = frames.u.shape
    table = np.zeros((views, 15))
    parts = (frames.first, frames.middle, frames.u, normal, frames.v)
    for k, part in enumerate(parts):
        if part is not None:
            table[:, 3 * k : 3 * k + dims] = part
    return table


def _offsets(frames: MovingFrames) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.ascontiguousarray(frames.offsets, np.float64),
        np.ascontiguousarray(frames.heights, np.float64),
    )


@compiled
def _push(cone, table, offsets, heights, spacing, counts, box, real, view, moves, steps, rises,
          x, out):  # fmt: skip
    """Changes of the rays of one view."""
    if view < real[0] or view >= real[1]:
        return
    at, to = np.empty(3), np.empty(3)
    sums, weights = np.empty(7), np.ones(x.shape[0])
    k = view if offsets.shape[0] > 1 else 0
    m = view if steps.shape[0] > 1 else 0
    for row in range(real[2], real[3]):
        i = row if offsets.shape[1] > 1 else 0
        for col in range(real[4], real[5]):
            a, c = offsets[k, i, col, 0], offsets[k, i, col, 2]
            b = offsets[k, i, col, 1] + heights[row]
            da, dc = steps[m, i, col, 0], steps[m, i, col, 2]
            db = steps[m, i, col, 1] + rises[row]
            line = ray(cone, table, view, a, c, b, spacing, counts)
            if not line[8] > 0.0:
                continue
            norm, foot = _scale(cone, table, view, a, c, b, spacing, counts, line)
            for axis in range(3):
                to[axis] = (
                    moves[view, 3 + axis] + a * moves[view, 6 + axis] + c * moves[view, 9 + axis]
                    + b * moves[view, 12 + axis] + da * table[view, 6 + axis]
                    + dc * table[view, 9 + axis] + db * table[view, 12 + axis]
                )  # fmt: skip
                at[axis] = moves[view, axis]
                if cone:
                    at[axis] = to[axis] - moves[view, axis]
            whole = norm * line[8]
            for n in range(x.shape[0]):
                _traced(line, norm, foot, box, x, weights, n, n + 1, sums)
                change, inner = 0.0, 0.0
                for axis in range(3):
                    e = line[3 + axis] * norm * spacing[axis]
                    inner += e * at[axis]
                    if e != 0.0:
                        change -= whole / e * (sums[axis] * to[axis] + sums[3 + axis] * at[axis])
                out[n, view, row, col] = change + sums[6] * line[8] * inner / (whole * whole)


@compiled
def _pull(cone, table, offsets, heights, spacing, counts, box, real, view, x, y, found, shares,
          rises):  # fmt: skip
    """Gradients of one view: of first, middle, u, v and n, and of offsets and heights."""
    if view < real[0] or view >= real[1]:
        return
    sums, weights = np.empty(7), np.empty(x.shape[0])
    k = view if offsets.shape[0] > 1 else 0
    for row in range(real[2], real[3]):
        i = row if offsets.shape[1] > 1 else 0
        for col in range(real[4], real[5]):
            a, c = offsets[k, i, col, 0], offsets[k, i, col, 2]
            b = offsets[k, i, col, 1] + heights[row]
            line = ray(cone, table, view, a, c, b, spacing, counts)
            if not line[8] > 0.0:
                continue
            norm, foot = _scale(cone, table, view, a, c, b, spacing, counts, line)
            for n in range(x.shape[0]):
                weights[n] = y[n, view, row, col]
            _traced(line, norm, foot, box, x, weights, 0, x.shape[0], sums)
            whole = norm * line[8]
            for axis in range(3):
                e = line[3 + axis] * norm * spacing[axis]
                to_point = 0.0
                to_way = sums[6] * line[8] * e / (whole * whole)
                if e != 0.0:
                    to_point -= whole / e * sums[axis]
                    to_way -= whole / e * sums[3 + axis]
                cell = to_point + to_way if cone else to_point
                found[view, 0, axis] += -to_way if cone else to_way
                found[view, 1, axis] += cell
                found[view, 2, axis] += a * cell
                found[view, 3, axis] += b * cell
                found[view, 4, axis] += c * cell
                if shares.shape[0] > 0:
                    shares[view, i, col, 0] += cell * table[view, 6 + axis]
                    shares[view, i, col, 1] += cell * table[view, 12 + axis]
                    shares[view, i, col, 2] += cell * table[view, 9 + axis]
                    rises[view, row] += cell * table[view, 12 + axis]


@compiled
def _scale(cone, table, view, along, normal, height, spacing, counts, line):
    """The length of E in cells, and the parameter t of the detector cell."""
    if cone:
        return line[7] - line[6], line[7]
    norm, foot = 0.0, 0.0
    for axis in range(3):
        e = table[view, axis] / spacing[axis]
        norm += e * e
        point = (
            table[view, 3 + axis] + along * table[view, 6 + axis]
            + normal * table[view, 9 + axis] + height * table[view, 12 + axis]
        ) / spacing[axis]  # fmt: skip
        foot += (point + 0.5 * counts[axis] - line[axis]) * line[3 + axis]
    return np.sqrt(norm), foot


@compiled
def _traced(line, norm, foot, box, x, weights, begin, end, sums):
    """A_a, B_a and sum f (s_exit - s_entry) of `sum_n weights[n] x[n]`, into `sums`; s = t / norm
    from the detector cell, and the last one in t."""
    sums[:] = 0.0
    ox, oy, oz, dx, dy, dz, start, stop, _ = line
    ix, sx, nx = inverse(dx)
    iy, sy, ny = inverse(dy)
    iz, sz, nz = inverse(dz)
    ax, bx = crossing_range(ox, dx, ix, box[0, 0], box[1, 0])
    ay, by = crossing_range(oy, dy, iy, box[0, 1], box[1, 1])
    az, bz = crossing_range(oz, dz, iz, box[0, 2], box[1, 2])
    here = max(max(start, ax), max(ay, az))
    last = min(min(stop, bx), min(by, bz))
    if not here < last:
        return
    i = first_cell(ox, dx, ix, box[0, 0], box[1, 0], here)
    j = first_cell(oy, dy, iy, box[0, 1], box[1, 1], here)
    k = first_cell(oz, dz, iz, box[0, 2], box[1, 2], here)
    ex = (i + nx - ox) * ix if sx != 0 else BIG
    ey = (j + ny - oy) * iy if sy != 0 else BIG
    ez = (k + nz - oz) * iz if sz != 0 else BIG
    step_y, step_z = box[3, 0], box[3, 0] * box[3, 1]
    cell = (k - box[2, 2]) * step_z + (j - box[2, 1]) * step_y + (i - box[2, 0])
    # The axis of the face that is crossed; -1 at an end of the ray, which stays where it is.
    via = -1
    if here > start:
        via = 0 if here == ax else (1 if here == ay else 2)
    before = 0.0
    while True:
        value = 0.0
        for n in range(begin, end):
            value += weights[n] * x[n, cell]
        if via >= 0:
            sums[via] += before - value
            sums[3 + via] += (before - value) * ((here - foot) / norm)
        there = min(min(ex, ey), min(ez, last))
        if there > here:
            sums[6] += value * (there - here)
            here = there
        if there >= last:
            if last < stop:
                via = 0 if last == bx else (1 if last == by else 2)
                sums[via] += value
                sums[3 + via] += value * ((last - foot) / norm)
            return
        before = value
        if ex <= ey and ex <= ez:
            via = 0
            i += sx
            cell += sx
            ex = (i + nx - ox) * ix
        elif ey <= ez:
            via = 1
            j += sy
            cell += sy * step_y
            ey = (j + ny - oy) * iy
        else:
            via = 2
            k += sz
            cell += sz * step_z
            ez = (k + nz - oz) * iz
