"""Exact 3-D Siddon where detector columns are parallel to z: cone, helical, unaligned parallel.

All rays of one detector column lie in one vertical plane, so they share the walk through (x, y).
The forward task owns detector columns, the adjoint task a patch of voxel columns. This module
cuts the work into tiles; `columns_tiles` computes them, `columns_subsets` those of some positions,
`columns_squares` gram diagonals. Arithmetic is float32 in precision "fast", else float64.
`structure.columns_upright` says which scans are of this kind; `oblique` takes the others. Arrays
and their places are those of `volume_driver`.

Scratch a thread: at most 1 KiB x (nz + 4) (twice that in float64) or `_SCRATCH`, whichever is
more, for what an adjoint owns, and 64 bytes a detector row.
"""

from __future__ import annotations

from collections.abc import Sequence

from geometries.kernels import columns_squares, columns_subsets, columns_tiles
from geometries.kernels.volume_driver import Cuts, Part, Real, VolumeKernel
from geometries.kernels.volume_tiles import blocks, detector_cuts, patches
from linops.compiled import pool

__all__ = ["kernel"]

_PATCHES = (16, 8)
_SCRATCH = 3 << 18  # bytes of sums that an adjoint keeps, unless its smallest patch needs more
_COLUMNS = 64


class _Columns(VolumeKernel):
    """Detector columns parallel to z."""

    forward_tile = staticmethod(columns_tiles.forward_tile)
    adjoint_tile = staticmethod(columns_tiles.adjoint_tile)
    gram_tile = staticmethod(columns_squares.gram_tile)
    forward_subset = staticmethod(columns_subsets.forward_subset)
    adjoint_subset = staticmethod(columns_subsets.adjoint_subset)

    def _adjoint_cuts(self, part: Part, out: Real, work: Real) -> Cuts:
        batch, ly, lx, _ = out.shape
        if part.squared:
            return [(b, *patch) for b in range(batch) for patch in patches(ly, lx, _PATCHES[-1])]
        held = _held(part, work)
        # Wide patches set up fewer rows; narrow ones leave more tiles, and room for a batch.
        wide = [
            s for s in _PATCHES if s * s * held <= _SCRATCH and ly * lx >= 8 * pool.workers() * s**2
        ]
        side = wide[0] if wide and batch == 1 else _PATCHES[-1]
        share = max(1, _SCRATCH // (held * side * side))
        return [(*some, *patch) for some in blocks(batch, share) for patch in patches(ly, lx, side)]

    def _forward_subset_cuts(self, views: Sequence[int], out: Real, work: Real) -> Cuts:
        return detector_cuts(views, out.shape[2], pool.workers(), most=_COLUMNS)

    def _adjoint_subset_cuts(self, part: Part, out: Real, work: Real) -> Cuts:
        count, held = part.positions.size, _held(part, work)
        most = min(count, max(1, _SCRATCH // held))
        share = min(len(out), max(1, _SCRATCH // (held * max(most, 1))))
        size = max(1, min(most, -(-count // (2 * pool.workers()))))
        return [(*b, *s) for b in blocks(len(out), share) for s in blocks(count, size)]


def _held(part: Part, work: Real) -> int:
    """Bytes of sums that the adjoint of one voxel column keeps."""
    return 4 * (part.box[5] - part.box[4] + 4) * work.itemsize


kernel = _Columns()
