"""How an operator is cut for stores: tiles of its output, and the blocks of input each reads.

Output axes that the rule lets be split make tiles; axes that are summed over make parts of a tile.
Blocks, their halos and the ends of axes follow the law of `Operator.block`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from linops import memory, numeric
from linops.algebra.blocks import axis_name, extent, has_block, runs_whole
from linops.algebra.composition import Product, flat_product
from linops.algebra.stacks import BlockDiagonal, VerticalStack, VStack
from linops.errors import ShapeError
from linops.operator import Operator
from linops.relations import extent_of, positions
from linops.rule import Relation
from linops.space import AnySpace

__all__ = ["BlockReads", "BlockRow", "Cutting", "Tile", "budget", "rows"]

_LEAST, _MOST = 8 << 20, 256 << 20
_Ranges = tuple[tuple[int, int], ...]
"""Begin and end along each axis of one member; where an axis wraps, past the array's ends too."""


@dataclass(frozen=True)
class BlockReads:
    """One block of the operator, and what of each member of the domain it reads."""

    operator: Operator
    reads: tuple[_Ranges, ...]


@dataclass(frozen=True)
class Tile:
    """What of each member of the codomain one tile is; its parts add up."""

    writes: tuple[_Ranges, ...]
    cuts: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class BlockRow:
    """A part of an operator that computes some members of the codomain from some of the domain."""

    operator: Operator
    domain: slice
    codomain: slice


def rows(A: Operator) -> list[BlockRow]:
    """The rows of a stack or a block diagonal, which need not be in memory together."""
    if type(A) is Product and isinstance(A.terms[0], VerticalStack):
        # What its members share was taken out of them; here each runs for itself.
        A = VStack([flat_product([term, *A.terms[1:]]) for term in A.terms[0].terms])
    if not isinstance(A, (VerticalStack, BlockDiagonal)):
        return [BlockRow(A, slice(0, len(A.domain.members)), slice(0, len(A.codomain.members)))]
    found, left, right = [], 0, 0
    for term in A.terms:
        for row in rows(term):
            found.append(
                BlockRow(
                    row.operator,
                    slice(left + row.domain.start, left + row.domain.stop),
                    slice(right + row.codomain.start, right + row.codomain.stop),
                )
            )
        right += len(term.codomain.members)
        left += len(term.domain.members) if isinstance(A, BlockDiagonal) else 0
    return found


def budget() -> float:
    """Bytes for blocks where none are given: a quarter of what is free, 8 to 256 MiB."""
    known = (memory.host_free(), memory.address_space_left())
    free = min((value for value in known if value is not None), default=math.inf)
    return max(_LEAST, min(free / 4, _MOST))


class Cutting:
    """The tiles of an operator.

    Parameters
    ----------
    A
        The operator.
    chunks
        Planes of a block, by the name of an axis; or one number, for the first axis of the output
        and the first that is summed over. None: as many as `limit` holds.
    limit
        Bytes of blocks in hand: a tile, the part that is added to it, and a block of input.
    elements
        The most entries of a block, besides.
    """

    def __init__(
        self,
        A: Operator,
        chunks: int | Mapping[str, int] | None = None,
        limit: float | None = None,
        elements: int | None = None,
    ) -> None:
        self.A = A
        self.outer = _axes(A, (Relation.ALIGNED, Relation.PRODUCED))
        self.inner = _axes(A, (Relation.CONTRACTED,))
        given = self._admit_chunks(chunks)
        limit = budget() if limit is None else limit
        unbounded = math.inf if elements is None else float(elements)
        self.planes: dict[str, int] = {}
        # Four blocks: a tile, the part added to it, the input, and a cast or padded copy of it.
        wide = max(member.dtype.itemsize for member in A.codomain.members)
        self._fit(self.outer, A.codomain, given, min(limit / 4 / wide, unbounded), None)
        tile = next(iter(self.tiles()), None)
        self._first = tile
        if tile is not None:
            cut, _ = self._cut(tile)
            wide = max(member.dtype.itemsize for member in A.domain.members)
            names = [name for name in self.inner if name in cut.rule.names]
            self.inner = names
            self._fit(names, cut.domain, given, min(limit / 4 / wide, unbounded), cut)

    def tiles(self) -> Iterator[Tile]:
        """All tiles, in the order of the output's axes."""
        names = [name for name in self.outer if name in self.planes]
        rule, codomain = self.A.rule, self.A.codomain
        for ranges in itertools.product(*(self._ranges(n, extent(self.A, n)) for n in names)):
            writes = _whole(codomain)
            for name, (start, stop) in zip(names, ranges, strict=True):
                for m, p in positions(rule.codomain, name):
                    writes[m][p] = (start, stop)
            cuts = tuple((n, *r) for n, r in zip(names, ranges, strict=True))
            yield Tile(tuple(map(tuple, writes)), cuts)

    def parts(self, tile: Tile) -> Iterator[BlockReads]:
        """The blocks that add up to a tile."""
        block, reads = self._cut(tile)
        names = [name for name in self.inner if name in self.planes]
        extents = [extent_of(block.domain, block.rule.domain, name) for name in names]
        every = [self._ranges(name, n) for name, n in zip(names, extents, strict=True)]
        for ranges in itertools.product(*every):
            part, taken = block, [list(member) for member in reads]
            for name, (start, stop), n in zip(names, ranges, extents, strict=True):
                if (start, stop) == (0, n):
                    continue
                rule = part.rule
                halo, wraps = rule.halo(name), rule.periodic(name)
                for m, p in positions(rule.domain, name):
                    first = reads[m][p][0]
                    lo, hi = start - halo, stop + halo
                    if not wraps:
                        lo, hi = max(lo, 0), min(hi, n)
                    taken[m][p] = (first + lo, first + hi)
                part = part.block(name, start, stop)
            yield BlockReads(part, tuple(map(tuple, taken)))

    @property
    def reads_all_first(self) -> bool:
        """Whether the first tile reads the whole input."""
        return not any(
            self.A.rule.relation(name) is Relation.ALIGNED
            and self.planes[name] < extent(self.A, name)
            for name in self.outer
            if name in self.planes
        )

    def explain(self) -> str:
        """Tiles and parts with their shapes, and the bytes that are read and written."""
        domain, codomain = self.A.domain, self.A.codomain
        tiles, parts, read, largest = 0, 0, 0, 0
        for tile in self.tiles():
            tiles += 1
            for part in self.parts(tile):
                parts += 1
                size = _bytes(part.reads, domain)
                read, largest = read + size, max(largest, size)
        written = sum(member.size * member.dtype.itemsize for member in codomain.members)
        whole = sum(member.size * member.dtype.itemsize for member in domain.members)
        cut = ", ".join(f"{name} by {planes}" for name, planes in self.planes.items()) or "nothing"
        times = f" ({read / whole:.2f} times the input)" if whole else ""
        return "\n".join(
            (
                f"{self.A.name}: {domain} -> {codomain}, rule '{self.A.rule}'",
                f"  cut          {cut}",
                f"  tiles        {tiles}, of at most {self._largest_tile()} bytes",
                f"  parts        {parts}, each reads at most {largest} bytes",
                f"  reads        {read} bytes{times}",
                f"  writes       {written} bytes, each once",
            )
        )

    # --- privately -----------------------------------------------------------------------

    def _largest_tile(self) -> int:
        sizes = (_bytes(tile.writes, self.A.codomain) for tile in self.tiles())
        return max(sizes, default=0)

    def _cut(self, tile: Tile) -> tuple[Operator, list[list[tuple[int, int]]]]:
        """The block of a tile, and what of the input it reads."""
        block, reads = self.A, _whole(self.A.domain)
        for name, start, stop in tile.cuts:
            rule = block.rule
            if (start, stop) == (0, extent(block, name)) and not rule.periodic(name):
                # The block may read less than all of an aligned axis; the whole reads it all.
                continue
            if rule.relation(name) is Relation.ALIGNED:
                lo, hi = block._input_range(name, start, stop)
                for m, p in positions(rule.domain, name):
                    n = block.domain.members[m].shape[p]
                    inside = (lo, hi) if rule.periodic(name) else (max(lo, 0), min(hi, n))
                    reads[m][p] = (inside[0], max(inside))
            block = block.block(name, start, stop)
        return block, reads

    def _ranges(self, name: str, n: int) -> list[tuple[int, int]]:
        step = self.planes[name]
        return [(i, min(i + step, n)) for i in range(0, n, step)] or [(0, n)]

    def _admit_chunks(self, chunks: Any) -> dict[str, int] | None:
        if chunks is None:
            return None
        if not isinstance(chunks, Mapping):
            count = numeric.whole("chunks", chunks, 1)
            return {axes[0]: count for axes in (self.outer, self.inner) if axes}
        given = {}
        for axis, count in chunks.items():
            name = axis_name(self.A, axis)
            if name not in (*self.outer, *self.inner):
                raise ShapeError(
                    f"{self.A.name} must not be split along {name!r}: its rule is "
                    f"'{self.A.rule}'; chunks takes {', '.join((*self.outer, *self.inner))}"
                )
            given[name] = numeric.whole(f"chunks[{axis!r}]", count, 1)
        return given

    def _fit(
        self,
        names: list[str],
        space: AnySpace,
        given: dict[str, int] | None,
        entries: float,
        inner: Operator | None,
    ) -> None:
        """Choose planes so that blocks of `space` have at most so many entries."""
        rule = (self.A if inner is None else inner).rule
        members = rule.codomain if inner is None else rule.domain
        if given is not None:
            for name in names:
                if name in given:
                    self.planes[name] = max(1, given[name])
            return
        if any(n == 0 for member in space.members for n in member.shape):
            return
        size = float(max(member.size for member in space.members))
        whole = [name for name in names if runs_whole(self.A, name)]
        # An axis whose blocks run all of the operator saves no memory inside it; it comes last.
        for name in sorted(names, key=lambda name: name in whole):
            if size <= entries:
                break
            n = extent_of(space, members, name)
            planes = max(1, int(n * entries / size))
            if planes < n:
                self.planes[name] = planes
                size *= planes / n


def _axes(A: Operator, relations: tuple[Relation, ...]) -> list[str]:
    rule = A.rule
    members = rule.domain if Relation.CONTRACTED in relations else rule.codomain
    names = dict.fromkeys(axis.name for member in members for axis in member)
    found = [
        name for name in names if rule.relation(name) in relations and has_block(A, name, False)
    ]
    if members is rule.domain:
        return found
    # A member without the axis would be computed and written anew for each tile.
    return [name for name in found if all(name in {a.name for a in member} for member in members)]


def _whole(space: AnySpace) -> list[list[tuple[int, int]]]:
    return [[(0, n) for n in member.shape] for member in space.members]


def _bytes(ranges: tuple[_Ranges, ...], space: AnySpace) -> int:
    return sum(
        math.prod(stop - start for start, stop in member) * own.dtype.itemsize
        for member, own in zip(ranges, space.members, strict=True)
    )
