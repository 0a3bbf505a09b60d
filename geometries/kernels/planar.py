"""Projection of images by parallel and fan beams along rays: NumPy arrays in and out.

The entry points of the planar kernels. They check nothing: shapes, dtypes and frames are the
projector's. Forward stands here; adjoints are `planar_adjoint`, lists of cells `planar_subsets`.
Weights come from `planar_rays` and `planar_models`, loops are `planar_exact`, `planar_fast` and
`planar_gather`.

Positions always follow from the whole grid and the whole detector, so blocks and tiles change
no weight. Every sum has one owner and one order: results do not depend on threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linops.compiled import pool

from . import planar_adjoint
from .planar_exact import forward_views
from .planar_fast import forward_fast
from .planar_models import PAD, TAIL
from .planar_scan import Job, Pair, PlanarScan, cut, plain
from .planar_subsets import adjoint_cells, forward_cells

__all__ = [
    "PlanarScan",
    "adjoint",
    "adjoint_cells",
    "forward",
    "forward_cells",
    "gram_diagonal",
]

Array = np.ndarray[Any, np.dtype[Any]]

_BATCH = {True: 2, False: 4}  # images that share a traversal, "fast" or not: of more, cells and
# sums would leave the caches


def forward(
    scan: PlanarScan,
    image: Array,
    out: Array,
    *,
    first_cell: Pair = (0, 0),
    first_column: int = 0,
    views: Array | None = None,
    precision: str = "fast",
    real_cells: tuple[Pair, Pair] | None = None,
    real_columns: Pair | None = None,
) -> None:
    """Line integrals of the cells given, along the rays asked for.

    Parameters
    ----------
    scan
        The whole scan.
    image
        (B, ly, lx), contiguous, float32 or float64: the cells from `first_cell` (y, x) on. Cells
        outside the grid, or outside `real_cells`, are never read.
    out
        (B, v, lc), same dtype, overwritten: the columns from `first_column` on of the views.
        Views, columns that do not exist are written as zeros.
    views
        Positions of the v views in the scan, all by default; -1 stands for none.
    precision
        "fast" marches in float32, the others with weights and sums in float64.
    real_cells
        ((y0, y1), (x0, x1)), counted in the whole grid: cells that exist.
    real_columns
        (start, stop), counted in the whole detector: columns that exist.
    """
    job = Job(
        scan,
        image.shape[1:],
        out.shape[2],
        first_cell,
        first_column,
        views,
        real_cells,
        real_columns,
    )
    out[...] = 0
    fast = precision == "fast" and not scan.joseph
    for part in _parts(job, len(out), fast):
        _project(scan, job, image[part, job.ys, job.xs], out[part, :, job.ks], fast)


def adjoint(
    scan: PlanarScan,
    sinogram: Array,
    out: Array,
    *,
    first_cell: Pair = (0, 0),
    first_column: int = 0,
    views: Array | None = None,
    precision: str = "fast",
    real_cells: tuple[Pair, Pair] | None = None,
    real_columns: Pair | None = None,
) -> None:
    """The transpose of `forward`, same arguments: `sinogram` (B, v, lc) to `out` (B, ly, lx)."""
    job = Job(
        scan,
        out.shape[1:],
        sinogram.shape[2],
        first_cell,
        first_column,
        views,
        real_cells,
        real_columns,
    )
    out[...] = 0
    fast = precision == "fast" and not scan.joseph
    add = planar_adjoint.fast if fast else planar_adjoint.exact
    for part in _parts(job, len(out), fast):
        add(scan, job, plain(sinogram[part, :, job.ks]), out[part, job.ys, job.xs])


def gram_diagonal(
    scan: PlanarScan,
    weights: Array,
    out: Array,
    *,
    first_cell: Pair = (0, 0),
    first_column: int = 0,
    views: Array | None = None,
) -> None:
    """Diagonal of A.H W A: `out` (ly, lx) = sum over rays of w * length ** 2.

    `weights` (v, lc) and the rest as for `adjoint`. Weights of cells are those of "float64".
    """
    job = Job(scan, out.shape, weights.shape[1], first_cell, first_column, views)
    out[...] = 0
    if not job.empty:
        data, cells = plain(weights[None, :, job.ks]), out[None, job.ys, job.xs]
        planar_adjoint.exact(scan, job, data, cells, squared=True)


def _parts(job: Job, batch: int, fast: bool) -> list[slice]:
    """The parts of a batch whose traversal is shared."""
    step = _BATCH[fast]
    return [slice(b, b + step) for b in range(0, 0 if job.empty else batch, step)]


def _project(scan: PlanarScan, job: Job, image: Array, out: Array, fast: bool) -> None:
    padded = _padded(image)
    target = plain(out)
    tiles = cut(len(job.views), 4 * pool.workers())

    def task(i: int) -> None:
        views = (scan.beam, job.views, tiles[i], tiles[i + 1])
        if fast:
            forward_fast(*views, job.box, job.columns, *padded, target)
        else:
            forward_views(scan.joseph, *views, job.box, job.columns, *padded, target)

    pool.run(task, len(tiles) - 1)
    if target is not out:
        out[...] = target


def _padded(cells: Array) -> tuple[Array, Array]:
    """The cells between zeros as the kernels want them, and the same of their transpose."""
    batch, ny, nx = cells.shape
    rows = np.zeros((batch, ny, PAD + nx + TAIL), cells.dtype)
    cols = np.zeros((batch, nx, PAD + ny + TAIL), cells.dtype)
    rows[:, :, PAD:-TAIL] = cells
    cols[:, :, PAD:-TAIL] = cells.transpose(0, 2, 1)
    return rows, cols
