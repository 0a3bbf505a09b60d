"""One device's padded share of a leaf, and parts of it: bands, faces, what lies between."""

from __future__ import annotations

from functools import cached_property

from linops.algebra.blocks import extent
from linops.operator import Operator
from sharding.states import share_of
from sharding.steps import Compute

__all__ = ["Share"]


class Share:
    """The padded blocks of a step's leaf at mesh coordinates `at`.

    Parts along an axis that is cut are blocks of the leaf itself, for a block of a block may do the
    work of the whole.
    """

    def __init__(self, step: Compute, mesh: tuple[int, ...], at: tuple[int, ...]) -> None:
        self._operator = step.operator
        self._ranges: dict[str, tuple[int, int]] = {}
        for m, name in enumerate(step.cuts):
            if name is not None and mesh[m] > 1:
                share = share_of(extent(step.operator, name), mesh[m])
                self._ranges[name] = at[m] * share, (at[m] + 1) * share

    @cached_property
    def whole(self) -> Operator:
        """The block of the share."""
        return self._block(self._ranges)

    def part(self, name: str, first: int, last: int) -> Operator:
        """The block of some planes of the share."""
        begin = self._ranges.get(name, (0, 0))[0]
        # In the order of the mesh, and another axis last.
        return self._block({**self._ranges, name: (begin + first, begin + last)})

    def reads(self, name: str, first: int, last: int) -> tuple[int, int]:
        """The planes that such a part of an aligned axis reads, counted in what `whole` reads."""
        if name not in self._ranges:
            return self.whole._input_range(name, first, last)
        begin, end = self._ranges[name]
        origin = self._operator._input_range(name, begin, end)[0]
        lo, hi = self._operator._input_range(name, begin + first, begin + last)
        return lo - origin, hi - origin

    def _block(self, ranges: dict[str, tuple[int, int]]) -> Operator:
        block = self._operator
        for name, (first, last) in ranges.items():
            block = block.block(name, first, last, padded=True)
        return block
