"""One axis of a stencil: its extents, how far the taps reach, and what is beyond its ends.

Tables of planes only; which arrays are moved by them is in `linops/stencils/slices.py` and
`linops/stencils/rows.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from linops.stencils.boundary import CUT, ghost

__all__ = ["Line", "PlaneRun"]


class PlaneRun(NamedTuple):
    """So many `planes` from `target` on that are read from `source` on, upwards or downwards."""

    target: int
    source: int
    planes: int
    step: int
    sign: int


@dataclass(frozen=True)
class Line:
    """An axis of the input and of the output, as a stencil or one of its blocks sees it.

    Attributes
    ----------
    extent, count
        Planes of the input and of the output.
    lead
        The input plane that output plane 0 reads with offset 0.
    low, high
        Reach: offsets run from `-low` to `high`.
    pair
        The boundary of the lower and the upper side; `"cut"` where planes come with the input.
    faces
        Whether the input stands on faces.
    whole
        Of a padded block: planes of the whole input and of the whole output; else None.
    closing
        Whether the whole output has a plane more than the input, as faces of cells have.
    """

    extent: int
    count: int
    lead: int
    low: int
    high: int
    pair: tuple[str, str]
    faces: bool = False
    whole: tuple[int, int] | None = None
    closing: bool = False

    @property
    def halo(self) -> int:
        """The larger side of the reach; the closing face reads the mirror of what it reaches."""
        return max(self.low, self.high + int(self.closing))

    @property
    def splits(self) -> bool:
        """Whether it may be cut: not where the output is extended beyond the input."""
        return self.lead >= 0 and self.count <= self.extent + int(self.closing)

    @property
    def ring(self) -> bool:
        """Whether the axis wraps."""
        return self.pair[0] == "periodic"

    @property
    def before(self) -> int:
        """Planes that are read before the first of the input."""
        return 0 if self.whole else max(self.low - self.lead, 0)

    @property
    def after(self) -> int:
        """Planes that are read after the last of the input."""
        if self.whole or self.count == 0:
            return 0
        return max(self.lead + self.count + self.high - self.extent, 0)

    @cached_property
    def _sources(self) -> tuple[tuple[int, int, int], ...]:
        # (plane of the input, plane it is read from, sign), where that is not the plane itself
        found = []
        for plane in (*range(-self.before, 0), *range(self.extent, self.extent + self.after)):
            where = ghost(plane, self.extent, self.pair, self.faces)
            if where is not None:
                found.append((plane, *where))
        return tuple(found)

    @cached_property
    def runs(self) -> tuple[PlaneRun, ...]:
        """What is beyond the ends, in the longest runs; planes count from the first ghost."""
        runs: list[PlaneRun] = []
        for plane, source, sign in self._sources:
            target, source = plane + self.before, source + self.before
            last = runs[-1] if runs else None
            if last is not None and last.sign == sign and target == last.target + last.planes:
                step = source - (last.source + (last.planes - 1) * last.step)
                if step in (-1, 1) and (last.planes == 1 or step == last.step):
                    runs[-1] = last._replace(planes=last.planes + 1, step=step)
                    continue
            runs.append(PlaneRun(target, source, 1, 1, sign))
        return tuple(runs)

    @property
    def blanks(self) -> tuple[int, ...]:
        """Planes of the input that are read as zero: faces on an odd wall."""
        if not self.faces or self.whole or self.extent == 0:
            return ()
        ends = {0: self.pair[0], self.extent - 1: self.pair[1]}
        if self.extent == 1:
            return (0,) if "odd" in self.pair else ()
        return tuple(plane for plane, kind in ends.items() if kind == "odd")

    @property
    def plain(self) -> bool:
        """Whether the input is read as it is, with nothing beyond its ends."""
        return not (self.before or self.after or self.blanks or self.whole)

    def block(self, start: int, stop: int, padded: bool) -> tuple[Line, int, int] | None:
        """The line of a block and its range of input planes; None for a block of a block."""
        cut = CUT in self.pair and not self.ring
        if self.whole or cut or self.lead:
            return None
        n, halo = self.extent, self.halo
        lo, hi = start - halo, stop + halo
        if not padded and not self.ring:
            lo = min(max(lo, 0), n)
            hi = max(min(hi, n), lo)
        if padded:
            pair, whole = self.pair, (n, self.count)
        elif self.ring:
            pair, whole = (CUT, CUT), None
        else:
            pair = CUT if lo > 0 else self.pair[0], CUT if hi < n else self.pair[1]
            whole = None
        line = replace(
            self, extent=hi - lo, count=stop - start, lead=start - lo, pair=pair, whole=whole
        )
        return line, lo, hi

    # --- of padded blocks, whose place is data: tables over the planes of the whole axis ------

    @cached_property
    def table(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Source and sign of the planes `-halo` to `n + halo` of the whole axis, sign 0 for
        nothing; None where no plane is read from another place."""
        assert self.whole is not None
        n, halo = self.whole[0], self.halo
        if self.ring or (set(self.pair) <= {"zero", CUT}):
            return None
        found = [ghost(plane, n, self.pair, self.faces) for plane in range(-halo, n + halo)]
        return (
            tuple(0 if where is None else where[0] for where in found),
            tuple(0 if where is None else where[1] for where in found),
        )

    @cached_property
    def readers(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """For every plane of the whole axis, those beyond its ends that are read from it: as many
        tables of planes and signs as one plane has readers at most, sign 0 for none."""
        assert self.whole is not None
        n, halo = self.whole[0], self.halo
        lists: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        if self.table is not None:
            for plane in (*range(-halo, 0), *range(n, n + halo)):
                source, sign = self.table[0][plane + halo], self.table[1][plane + halo]
                if sign:
                    lists[source].append((plane, sign))
        depth = max(map(len, lists), default=0)
        return tuple(
            (
                tuple(found[k][0] if k < len(found) else 0 for found in lists),
                tuple(found[k][1] if k < len(found) else 0 for found in lists),
            )
            for k in range(depth)
        )

    @property
    def walls(self) -> tuple[bool, bool]:
        """Whether the first and the last plane of the whole axis are read as zero."""
        odd = tuple(self.faces and kind == "odd" for kind in self.pair)
        return odd[0], odd[1]
