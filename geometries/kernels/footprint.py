"""The separable footprint of volumes: arrays in and out, work cut into tiles.

A `Footprint` holds the numbers of a scan (`footprint_views`). Where a voxel column meets detector
columns slice by slice (rows that are slices) tiles are those of `footprint_level`, else of
`footprint_tiles`, with the row rule. Formulas are in `footprint_profile` and `footprint_rows`;
images have an entry of their own, `footprint_image`.

Arrays and their places are those of `volume_driver`. Every sum has one owner and one order, so
results do not depend on threads or tiles.

Scratch a thread: forward two tiles of the detector of at most 1 MiB each (and a column at least),
adjoint 64 voxel columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from geometries.kernels import footprint_level as level
from geometries.kernels import footprint_tiles as tiles
from geometries.kernels.footprint_views import groups_of, table
from geometries.kernels.mixed import MixedKernel
from geometries.kernels.structure import aligned_shift
from geometries.kernels.volume_driver import Cuts, Part, Real, VolumeKernel
from geometries.kernels.volume_scan import VolumeScan
from geometries.kernels.volume_tiles import blocks, detector_cuts
from linops.compiled import pool

__all__ = ["Footprint", "LevelFootprint", "footprint"]

_TILE = 1 << 20  # bytes of a forward tile
_PATCH = (4, 16)  # lines and columns of voxels that an adjoint task owns


def footprint(scan: VolumeScan, name: str, box: bool) -> Any:
    """The kernel of a name that `footprint_views.kernel_of` gave to the whole, for a part."""
    named: dict[str, Any] = {
        "aligned rows": LevelFootprint,
        "aligned": LevelFootprint,
        "rows": Footprint,
    }
    if name in named:
        return named[name](scan, box)
    return MixedKernel(
        scan, [(named[each](scan.of_views(views), box), views) for each, views in groups_of(scan)]
    )


class Footprint(VolumeKernel):
    """The footprint of one scan, which the calls take again; `box` for that profile."""

    forward_tile = staticmethod(tiles.forward_tile)
    adjoint_tile = staticmethod(tiles.adjoint_tile)
    gram_tile = staticmethod(tiles.adjoint_tile)
    forward_subset = staticmethod(tiles.forward_subset)
    adjoint_subset = staticmethod(tiles.adjoint_subset)

    def __init__(self, scan: VolumeScan, box: bool) -> None:
        self.table = tuple(table(scan, box))

    def _table(self, scan: VolumeScan) -> tuple[Any, ...]:
        return self.table

    def _forward_cuts(self, views: Sequence[int], out: Real, work: Real) -> Cuts:
        most = max(1, _TILE // max(1, len(out) * out.shape[3] * work.itemsize))
        return detector_cuts(views, out.shape[2], pool.workers(), most=most)

    def _adjoint_cuts(self, part: Part, out: Real, work: Real) -> Cuts:
        batch, ly, lx, _ = out.shape
        return [
            (b, *y, *x)
            for b in range(batch)
            for y in blocks(ly, _PATCH[0])
            for x in blocks(lx, _PATCH[1])
        ]


class LevelFootprint(Footprint):
    """The same where rows are slices; for images, those of a single slice."""

    forward_tile = staticmethod(level.forward_tile)
    adjoint_tile = staticmethod(level.adjoint_tile)
    gram_tile = staticmethod(level.adjoint_tile)
    forward_subset = staticmethod(level.forward_subset)
    adjoint_subset = staticmethod(level.adjoint_subset)

    def _shift(self, scan: VolumeScan) -> int:
        shift = aligned_shift(scan)
        return 0 if shift is None else shift

    def _forward_cuts(self, views: Sequence[int], out: Real, work: Real) -> Cuts:
        return detector_cuts(views, out.shape[2], pool.workers())
