"""The driver of the 3-D kernels: checks, the place of local arrays, views, tiles, threads.

A kernel is a `VolumeKernel`: compiled tile functions, and how its outputs are cut into what one
tile owns. Everything that surrounds them is here, once. What a tile computes is left to the
modules of the models (`aligned`, `columns`, `oblique`), `mixed` gives the views of one scan to
several kernels.

Arrays: volumes (batch, y, x, z), projections (batch, view, column, row), C-contiguous, float32 or
float64. `first_cell` (z, y, x), `first_row`, `first_column` place local arrays in the whole grid
and detector; planes outside are never read, and written as zeros. `views` selects views of the
scan, a number outside it is inert. `precision` "fast" permits float32 arithmetic. With
`fresh=False` the output holds what other kernels made of other views: an adjoint adds to it, and a
forward projection leaves its inert views alone.

Tile functions are called as ``tile(table, part, source, out, cut, work)`` with the plain tuples of
`_table` and `Part` (Numba types those in C, but named tuples in Python); `work` (2,) has the dtype
of the arithmetic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geometries.kernels.volume_scan import VolumeScan, pack
from geometries.kernels.volume_tiles import (
    blocks,
    check,
    common_rows,
    detector_cuts,
    real_box,
    view_numbers,
)
from geometries.surfaces import view_blocks
from linops.compiled import pool
from linops.compiled.writeable import writeable

__all__ = ["Cuts", "Part", "Real", "VolumeKernel"]

Real = NDArray[np.floating]
Cuts = Sequence[tuple[int, ...]]
_WORK = {"fast": np.zeros(2, np.float32)}
_EXACT = np.zeros(2, np.float64)


class Part(NamedTuple):
    """Which part of a scan a call computes; compiled tiles unpack it as a plain tuple.

    Parameters
    ----------
    numbers : (views,) the number in the scan of each local view; outside the scan it is inert.
    start, places : for surfaces, the first local view of `places` (views, cols, rows, 3), where
        the cells stand from the grid's center; else 0 and no views.
    positions : (n,) in-plane positions ``iy * nx + ix`` of a subset, -1 for inert ones; else none.
    box : the real cells (x0, x1, y0, y1, z0, z1) of the local grid, in the whole grid.
    origin : (x, y, z), the first cell of the local grid; of a subset z alone counts.
    local : (y, x, z), its extent.
    first : (column, row), the first cell of the local detector.
    common : (first local row, first local slice, count) that rows and slices share, where rows are
        slices; else zeros.
    squared : whether an adjoint takes the squares of weights.
    fresh : whether the output is to be cleared.
    """

    numbers: NDArray[np.int64]
    start: int
    places: NDArray[np.float64]
    positions: NDArray[np.int64]
    box: tuple[int, ...]
    origin: tuple[int, int, int]
    local: tuple[int, int, int]
    first: tuple[int, int]
    common: tuple[int, int, int]
    squared: bool
    fresh: bool


class VolumeKernel(ABC):
    """The calls of a 3-D kernel; a final class gives tile functions (in `staticmethod`) and cuts.

    Attributes
    ----------
    forward_tile : of (B, y, x, z) into a cut (view, first column, last + 1) of `out`.
    adjoint_tile, gram_tile : of (B, view, column, row) into a cut that `_adjoint_cuts` made.
    forward_subset, adjoint_subset : the same for (B, n, z) at `Part.positions`; None where a model
        has none.
    kept : bytes of volumes that are projected together, where a walk costs less than to read them
        from memory again for every view; None for the whole batch.
    """

    forward_tile: ClassVar[Any]
    adjoint_tile: ClassVar[Any]
    gram_tile: ClassVar[Any]
    forward_subset: ClassVar[Any] = None
    adjoint_subset: ClassVar[Any] = None
    kept: ClassVar[int | None] = None

    def forward(
        self,
        scan: VolumeScan,
        volume: Real,
        out: Real,
        *,
        first_cell: tuple[int, int, int] = (0, 0, 0),
        first_row: int = 0,
        first_column: int = 0,
        views: ArrayLike | None = None,
        precision: str = "fast",
        fresh: bool = True,
    ) -> None:
        """Project `volume` (B, ly, lx, lz) into `out` (B, views, columns, rows)."""
        check("volume", volume, (None, None, None, None))
        numbers = view_numbers(scan, views)
        check("out", out, (len(volume), numbers.size, None, None))
        first = (first_column, first_row)
        part = self._part(scan, numbers, volume.shape[1:], first_cell, first, out.shape[3], fresh)
        table, work = self._table(scan), _WORK.get(precision, _EXACT)
        share = len(out)
        if self.kept is not None and share:
            share = max(1, self.kept // max(1, volume.nbytes // share))
        for some in _blocks(scan, part):
            cuts = self._forward_cuts(_owned(scan, some), out, work)
            for b, c in blocks(len(out), share):
                _run(self.forward_tile, table, some, volume[b:c], out[b:c], cuts, work)

    def adjoint(
        self,
        scan: VolumeScan,
        projections: Real,
        out: Real,
        *,
        first_cell: tuple[int, int, int] = (0, 0, 0),
        first_row: int = 0,
        first_column: int = 0,
        views: ArrayLike | None = None,
        precision: str = "fast",
        fresh: bool = True,
    ) -> None:
        """The transpose: `projections` (B, views, columns, rows) to `out` (B, ly, lx, lz)."""
        check("projections", projections, (None, None, None, None))
        first = (first_column, first_row)
        self._back(
            scan, projections, out, first_cell, first, views, precision, squared=False, fresh=fresh
        )

    def gram_diagonal(
        self,
        scan: VolumeScan,
        weights: Real,
        out: Real,
        *,
        first_cell: tuple[int, int, int] = (0, 0, 0),
        first_row: int = 0,
        first_column: int = 0,
        views: ArrayLike | None = None,
        fresh: bool = True,
    ) -> None:
        """Sum over rays of w a^2 for each cell, `out` (B, y, x, z); `weights` as projections.

        Weights a are those of "float64".
        """
        check("weights", weights, (None, None, None, None))
        first = (first_column, first_row)
        self._back(
            scan, weights, out, first_cell, first, views, "float64", squared=True, fresh=fresh
        )

    def forward_columns(
        self,
        scan: VolumeScan,
        values: Real,
        index: ArrayLike,
        out: Real,
        *,
        first_slice: int = 0,
        first_row: int = 0,
        first_column: int = 0,
        views: ArrayLike | None = None,
        precision: str = "fast",
        fresh: bool = True,
    ) -> None:
        """`forward` of a volume that is zero but for `values` (B, n, lz) at positions `index`.

        `index` (n,) holds ``iy * nx + ix`` of the whole grid, -1 for inert entries; positions may
        repeat. Costs what the rays through these positions cost.
        """
        numbers, positions = view_numbers(scan, views), _positions(index)
        check("values", values, (None, positions.size, None))
        check("out", out, (len(values), numbers.size, None, None))
        part = self._subset(scan, numbers, positions, values.shape[2], first_slice,
                            (first_column, first_row), out.shape[3], fresh)  # fmt: skip
        work = _WORK.get(precision, _EXACT)
        cuts = self._forward_subset_cuts(_owned(scan, part), out, work)
        _run(self.forward_subset, self._table(scan), part, values, out, cuts, work)

    def adjoint_columns(
        self,
        scan: VolumeScan,
        projections: Real,
        index: ArrayLike,
        out: Real,
        *,
        first_slice: int = 0,
        first_row: int = 0,
        first_column: int = 0,
        views: ArrayLike | None = None,
        precision: str = "fast",
        fresh: bool = True,
    ) -> None:
        """The transpose of `forward_columns`, into `out` (B, n, lz)."""
        numbers, positions = view_numbers(scan, views), _positions(index)
        check("projections", projections, (None, numbers.size, None, None))
        check("out", out, (len(projections), positions.size, None))
        part = self._subset(scan, numbers, positions, out.shape[2], first_slice,
                            (first_column, first_row), projections.shape[3], fresh)  # fmt: skip
        work = _WORK.get(precision, _EXACT)
        cuts = self._adjoint_subset_cuts(part, out, work)
        _run(self.adjoint_subset, self._table(scan), part, projections, out, cuts, work)

    # --- hooks ---------------------------------------------------------------------------

    def _table(self, scan: VolumeScan) -> tuple[Any, ...]:
        """What compiled tiles read of a scan."""
        return tuple(pack(scan))

    def _shift(self, scan: VolumeScan) -> int | None:
        """The number s with row i in slice i + s, for a kernel whose rows are slices."""
        return None

    def _forward_cuts(self, views: Sequence[int], out: Real, work: Real) -> Cuts:
        return detector_cuts(views, out.shape[2], pool.workers())

    @abstractmethod
    def _adjoint_cuts(self, part: Part, out: Real, work: Real) -> Cuts:
        """What each tile of an adjoint, or of squares where `part.squared`, owns of `out`."""

    def _forward_subset_cuts(self, views: Sequence[int], out: Real, work: Real) -> Cuts:
        return self._forward_cuts(views, out, work)

    def _adjoint_subset_cuts(self, part: Part, out: Real, work: Real) -> Cuts:
        """Ranges of positions."""
        return blocks(part.positions.size, -(-part.positions.size // (4 * pool.workers())))

    # --- parts -----------------------------------------------------------------------------

    def _back(
        self,
        scan: VolumeScan,
        projections: Real,
        out: Real,
        first_cell: tuple[int, int, int],
        first: tuple[int, int],
        views: ArrayLike | None,
        precision: str,
        *,
        squared: bool,
        fresh: bool,
    ) -> None:
        numbers = view_numbers(scan, views)
        check("projections", projections, (None, numbers.size, None, None))
        check("out", out, (len(projections), None, None, None))
        rows = projections.shape[3]
        part = self._part(scan, numbers, out.shape[1:], first_cell, first, rows, fresh)
        part = part._replace(squared=squared)
        table, work = self._table(scan), _WORK.get(precision, _EXACT)
        tile = self.gram_tile if squared else self.adjoint_tile
        for some in _blocks(scan, part):
            _run(tile, table, some, projections, out, self._adjoint_cuts(some, out, work), work)

    def _part(
        self,
        scan: VolumeScan,
        numbers: NDArray[np.int64],
        local: tuple[int, ...],
        first_cell: tuple[int, int, int],
        first: tuple[int, int],
        rows: int,
        fresh: bool,
    ) -> Part:
        ly, lx, lz = local
        shift = self._shift(scan)
        common = (0, 0, 0)
        if shift is not None:
            common = common_rows(scan, shift, first[1], rows, first_cell[0], lz)
        z, y, x = first_cell
        return Part(
            numbers=numbers,
            start=0,
            places=np.zeros((0, 0, 0, 3)),
            positions=np.zeros(0, np.int64),
            box=real_box(scan, first_cell, (lz, ly, lx)),
            origin=(x, y, z),
            local=(ly, lx, lz),
            first=first,
            common=common,
            squared=False,
            fresh=fresh,
        )

    def _subset(
        self,
        scan: VolumeScan,
        numbers: NDArray[np.int64],
        positions: NDArray[np.int64],
        slices: int,
        first_slice: int,
        first: tuple[int, int],
        rows: int,
        fresh: bool,
    ) -> Part:
        whole = (*scan.grid_shape[1:], slices)
        part = self._part(scan, numbers, whole, (first_slice, 0, 0), first, rows, fresh)
        return part._replace(positions=positions)


def _positions(index: ArrayLike) -> NDArray[np.int64]:
    return writeable(np.ascontiguousarray(index, dtype=np.int64).reshape(-1))


def _owned(scan: VolumeScan, part: Part) -> Sequence[int]:
    """The local views that a forward projection writes: the real ones, or all of a fresh output."""
    if part.fresh:
        return range(part.numbers.size)
    owned: list[int] = np.flatnonzero((part.numbers >= 0) & (part.numbers < scan.views)).tolist()
    return owned


def _blocks(scan: VolumeScan, part: Part) -> Iterator[Part]:
    """The part; for a surface its blocks of views, whose size follows from the detector alone."""
    if scan.points is None or not part.numbers.size:
        yield part
        return
    for start, stop in view_blocks(scan.shape, part.numbers.size):
        numbers = np.full_like(part.numbers, -1)
        numbers[start:stop] = part.numbers[start:stop]
        yield part._replace(
            numbers=numbers,
            start=start,
            places=scan.places(numbers[start:stop]),
            fresh=part.fresh and start == 0,
        )


def _run(
    tile: Any, table: tuple[Any, ...], part: Part, source: Real, out: Real, cuts: Cuts, work: Real
) -> None:
    plain, source = tuple(part), writeable(source)

    def task(i: int) -> None:
        tile(table, plain, source, out, cuts[i], work)

    pool.run(task, len(cuts) if len(out) else 0)
