"""Adjoints of planar projections, and the sums of exact weights that they need.

Rays with exact weights are added up for one driving axis after the other, so that sums for one
axis alone are in memory: two float64 a cell. Views are taken in blocks, whose tables of rays
stay in the cache; tiles own slabs of the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from linops.compiled import pool

from .planar_exact import driven, scatter_slabs, tabulate_views
from .planar_gather import classify, gather, leave, prepare
from .planar_models import PAD, SPARE, TAIL
from .planar_scan import Job, PlanarScan, cut

__all__ = ["exact", "fast"]

Array = np.ndarray[Any, np.dtype[Any]]
Tables = tuple[Array, Array, Array]

_TABLE = 1 << 21  # bytes of ray tables that an exact adjoint holds at a time
_VIEWS = 64  # views that a fast adjoint takes at a time: they stay in the cache


def exact(
    scan: PlanarScan, job: Job, sinogram: Array, out: Array, *, squared: bool = False
) -> None:
    """Write the adjoint of the exact weights, or of their squares, to `out` (B, ly, lx)."""
    by = np.empty((len(job.views), 2), np.bool_)
    driven(scan.beam, job.views, job.columns, by)

    def tabulate(chosen: Array, begin: int, end: int, tables: Tables) -> None:
        views = job.views[chosen]
        tabulate_views(scan.joseph, scan.beam, views, begin, end, job.box, job.columns, *tables)

    total = out if out.dtype == np.float64 else np.zeros(out.shape)
    _add(scan, job, sinogram, by, tabulate, squared, total)
    if total is not out:
        out[...] = total


def fast(scan: PlanarScan, job: Job, sinogram: Array, out: Array) -> None:
    """Write the adjoint in float32 to `out` (B, ly, lx), zeros at first; B is 1 or 2."""
    image = out if out.flags.c_contiguous else np.zeros(out.shape, np.float32)
    count = len(job.views)
    gathers = np.zeros(count, np.bool_)
    lines = np.zeros((11, count))
    shapes = np.zeros((4, count), np.float32)
    if scan.points is None:
        classify(scan.beam, job.views, gathers, lines, shapes)
    left = np.repeat(~gathers, int(job.columns[1])).reshape(count, -1)
    by = np.zeros((count, 2), np.bool_)
    driven(scan.beam, np.where(gathers, -1, job.views), job.columns, by)
    gathered = np.flatnonzero(gathers)
    for w in range(0, len(gathered), _VIEWS):
        _gather(scan, job, sinogram, gathered[w : w + _VIEWS], lines, shapes, left, by, image)

    def tabulate(chosen: Array, begin: int, end: int, tables: Tables) -> None:
        views = job.views[chosen]
        leave(scan.beam, views, begin, end, job.box, job.columns, left[chosen], *tables)

    _add(scan, job, sinogram, by, tabulate, False, image)
    if image is not out:
        out[...] = image


def _gather(
    scan: PlanarScan,
    job: Job,
    sinogram: Array,
    chosen: Array,
    lines: Array,
    shapes: Array,
    left: Array,
    by: Array,
    image: Array,
) -> None:
    """Add the chosen views to `image`; in `left` and `by` which rays are not gathered."""
    width = PAD + int(job.columns[1]) + TAIL
    data = np.zeros((len(sinogram), len(chosen), width), np.float32)
    views = cut(len(chosen), 4 * pool.workers())
    rows = cut(image.shape[1], 8 * pool.workers())
    line, shape = (np.ascontiguousarray(table[:, chosen]) for table in (lines, shapes))

    def make(i: int) -> None:
        prepare(
            scan.beam, job.views, chosen, views[i], views[i + 1], job.columns, sinogram, lines,
            data, left, by,
        )  # fmt: skip

    def take(i: int) -> None:
        gather(scan.beam, rows[i], rows[i + 1], line, shape, data, job.box, job.columns, image)

    pool.run(make, len(views) - 1)
    pool.run(take, len(rows) - 1)


def _add(
    scan: PlanarScan,
    job: Job,
    sinogram: Array,
    by: Array,
    tabulate: Callable[[Array, int, int, Tables], None],
    squared: bool,
    image: Array,
) -> None:
    """Add to `image` what rays with exact weights give.

    `by` (v, 2): whether a view has such rays, driven by y, by x. ``tabulate(chosen, begin, end,
    tables)`` fills the tables of `tabulate_views` for the views `chosen[begin:end]`.
    """
    if not by.any():
        return
    count = int(job.columns[1])
    block = max(1, _TABLE // (100 * count))
    tables = (
        np.empty((block, 6, count + SPARE)),
        np.empty((block, 4, count), np.int32),
        np.empty((block, count + 1, 6), np.int64),
    )
    batch, ny, nx = image.shape
    slabs, cells = (ny, nx), (nx, ny)
    shapes = [(batch, slabs[i], 2 * (PAD + cells[i] + TAIL)) for i in (0, 1)]
    # One for both axes, since a worker that wakes late may hold the first a while.
    room = np.empty(max(math.prod(shapes[axis]) for axis in (0, 1) if by[:, axis].any()))
    for axis in (0, 1):
        views = np.flatnonzero(by[:, axis])
        if len(views):
            sums = room[: math.prod(shapes[axis])].reshape(shapes[axis])
            # Written here: threads that meet fresh pages together wait for each other.
            sums[...] = 0.0
            for w in range(0, len(views), block):
                chosen = views[w : w + block]
                _scatter(scan, job, sinogram, chosen, axis, tabulate, tables, squared, sums)
            _fold(sums, axis, image)


def _scatter(
    scan: PlanarScan,
    job: Job,
    sinogram: Array,
    chosen: Array,
    axis: int,
    tabulate: Callable[[Array, int, int, Tables], None],
    tables: Tables,
    squared: bool,
    sums: Array,
) -> None:
    """Add the rays of the chosen views that `axis` drives to `sums`."""
    pieces = cut(len(chosen), 4 * pool.workers())
    # Narrow tiles stay in the cache, but a few views do not pay for handing out many.
    slabs = sums.shape[1]
    tiles = cut(slabs, max(2 * pool.workers(), slabs // (16 if len(chosen) > 8 else 64)))

    def list_rays(i: int) -> None:
        tabulate(chosen, pieces[i], pieces[i + 1], tables)

    def scatter(i: int) -> None:
        scatter_slabs(
            scan.joseph, axis, tiles[i], tiles[i + 1], *tables, scan.beam.shape, job.box, chosen,
            sinogram, squared, sums,
        )  # fmt: skip

    pool.run(list_rays, len(pieces) - 1)
    pool.run(scatter, len(tiles) - 1)


def _fold(sums: Array, axis: int, image: Array) -> None:
    """Add the two numbers a cell of `sums`, slabs along `axis`, to `image`."""
    one = slice(2 * PAD, -2 * TAIL, 2)
    two = slice(2 * PAD - 1, -2 * TAIL - 1, 2)
    bands = cut(sums.shape[1], 4 * pool.workers())

    def task(i: int) -> None:
        band = slice(bands[i], bands[i + 1])
        part = sums[:, band, one] + sums[:, band, two]
        if axis == 0:
            image[:, band] += part
        else:
            image[:, :, band] += part.transpose(0, 2, 1)

    pool.run(task, len(bands) - 1)
