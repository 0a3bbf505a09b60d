"""What one run in shared memory has read, copied and added up, counted as it happens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from linops import arrays
from linops.arrays import Array
from linops.operator import Operator
from sharding.program import Program
from sharding.steps import Compute
from sharding.traffic import Traffic, read_by, wrapped

__all__ = ["Tally"]


class Tally:
    """The counts of one run of a program.

    Parameters
    ----------
    program
        What runs.
    batch
        The leading axes of its arrays.
    """

    def __init__(self, program: Program, batch: tuple[int, ...]) -> None:
        self.program, self.batch = program, math.prod(batch)
        self._found: list[Traffic] = []  # workers append, which is atomic

    def total(self) -> Traffic:
        """All of it."""
        return sum(self._found, Traffic())

    def applied(self, step: Compute, blocks: Sequence[Operator], inputs: Sequence[Array]) -> None:
        """A block, or the bands that it runs in."""
        read = sum(map(_bytes, inputs))
        if len(blocks) > 1:
            read = self.batch * read_by(blocks, step.adjoint)
        self._found.append(Traffic(max(len(blocks), 1), read))

    def cut(self, k: int) -> None:
        """The pieces of a whole array: those around a ring are copies."""
        value = self.program.values[k]
        for place in self.program.places[k]:
            if wrapped(place, value):
                size = math.prod(hi - lo for lo, hi in place) * value.space.dtype.itemsize
                self._found.append(Traffic(copied=self.batch * size))

    def copied(self, x: Array) -> None:
        """An array that was copied."""
        self._found.append(Traffic(copied=_bytes(x)))

    def reduced(self, parts: Sequence[Array]) -> None:
        """Arrays that were added up."""
        self._found.append(Traffic(reduced=sum(map(_bytes, parts))))


def _bytes(x: Any) -> int:
    if not arrays.is_array(x):
        return 8  # a number: the value of a functional
    return int(math.prod(x.shape) * arrays.dtype_of(x).itemsize)
