"""Projection of a few cells of an image, and its transpose: the drivers of `planar_cells`.

`index` (n,) int64 counts the whole grid flat, row by row; -1 stands for no cell. Weights are
those of "float64". Work follows n times views, beside the zeros; the first call for a scan also
tabulates its rays, which the scan keeps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linops.compiled import pool

from . import planar_cells as cells
from .planar_scan import PlanarScan, cut, plain

__all__ = ["adjoint_cells", "forward_cells"]

Array = np.ndarray[Any, np.dtype[Any]]

_KEPT = 1 << 25  # bytes of rays that a scan keeps for lists of cells


def forward_cells(scan: PlanarScan, values: Array, index: Array, out: Array) -> None:
    """Line integrals of a few cells: `values` (B, n) at `index` to `out` (B, V, columns).

    `out` is overwritten; what `values` hold where `index` is -1 is never read.
    """
    real, xs, ys = _places(scan, index)
    values = plain(values if real is None else values[:, real])
    if out.size == 0:
        return
    target = plain(out)
    shadows, rays = _tables(scan)
    tiles = cut(len(scan.centers), _parts(len(xs) * len(scan.centers) + target.size // 32))

    def task(i: int) -> None:
        cells.forward_cells(
            scan.beam, tiles[i], tiles[i + 1], shadows, rays, xs, ys, values, target
        )

    pool.run(task, len(tiles) - 1)
    if target is not out:
        out[...] = target


def adjoint_cells(scan: PlanarScan, sinogram: Array, index: Array, out: Array) -> None:
    """The transpose of `forward_cells`: `sinogram` (B, V, columns) to `out` (B, n)."""
    real, xs, ys = _places(scan, index)
    sinogram = plain(sinogram)
    if real is not None:
        out[...] = 0
    if len(xs) == 0 or out.size == 0:
        return
    target = plain(out) if real is None else np.empty((len(out), len(xs)), out.dtype)
    shadows, rays = _tables(scan)
    tiles = cut(len(xs), _parts(len(xs) * len(scan.centers)))

    def task(i: int) -> None:
        cells.adjoint_cells(
            scan.beam, tiles[i], tiles[i + 1], shadows, rays, xs, ys, sinogram, target
        )

    pool.run(task, len(tiles) - 1)
    if real is not None:
        out[:, real] = target
    elif target is not out:
        out[...] = target


def _tables(scan: PlanarScan) -> tuple[Array, Array]:
    """What `planar_cells` wants of views (V, ...) and, unless too large, of rays (V, ...)."""
    if not scan.tables:
        views = len(scan.centers)
        shadows = np.zeros((views, cells.SHADOW))
        kept = views * scan.columns * cells.RAY * 8 <= _KEPT
        rays = np.zeros((views, scan.columns * cells.RAY) if kept else (0, 0))
        tiles = cut(views, _parts(views * scan.columns))

        def task(i: int) -> None:
            cells.tabulate_scan(scan.beam, tiles[i], tiles[i + 1], scan.columns, shadows, rays)

        pool.run(task, len(tiles) - 1)
        scan.tables.append((shadows, rays))
    return scan.tables[0]


def _places(scan: PlanarScan, index: Array) -> tuple[Array | None, Array, Array]:
    """Which entries are cells (None: all), and x and y of these."""
    index = np.asarray(index, np.int64)
    real = None
    if index.size and index.min() < 0:
        real = np.flatnonzero(index >= 0)
        index = index[real]
    y, x = np.divmod(index, scan.grid_shape[1])
    return real, x.astype(np.float64), y.astype(np.float64)


def _parts(pairs: int) -> int:
    """Tiles for so many pairs of cells and views: none so short that handing it out counts."""
    return min(8 * pool.workers(), 1 + pairs // 4096)
