"""What one run in shared memory has read, copied and added up, counted as it happens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.operator import Operator
from sharding.program import Program
from sharding.states import Windowed
from sharding.steps import Compute
from sharding.traffic import Traffic, read_by, wrapped

__all__ = ["Counters"]


class Counters:
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
        # Blocks, bytes read, copied, reduced; workers append, which is atomic.
        self._found: list[tuple[int, int, int, int]] = []

    def total(self) -> Traffic:
        """All of it."""
        return Traffic(*map(sum, zip(*self._found, strict=True)))

    def applied(self, step: Compute, blocks: Sequence[Operator], inputs: Sequence[Array]) -> None:
        """A block, or the bands that it runs in."""
        read = sum(map(_bytes, inputs))
        if len(blocks) > 1:
            read = self.batch * read_by(blocks, step.adjoint)
        self._found.append((max(len(blocks), 1), read, 0, 0))

    def cut(self, k: int) -> None:
        """The pieces of a whole array: those around a ring are copies."""
        value = self.program.values[k]
        if not any(isinstance(state, Windowed) for state in value.states):
            return
        for place in self.program.places[k]:
            if wrapped(place, value):
                size = math.prod(hi - lo for lo, hi in place) * value.space.dtype.itemsize
                self._found.append((0, 0, self.batch * size, 0))

    def copied(self, x: Array) -> None:
        """An array that was copied."""
        self._found.append((0, 0, _bytes(x), 0))

    def reduced(self, parts: Sequence[Array]) -> None:
        """Arrays that were added up."""
        self._found.append((0, 0, 0, sum(map(_bytes, parts))))


def _bytes(x: Any) -> int:
    if isinstance(x, np.ndarray):
        return x.nbytes
    if not arrays.is_array(x):
        return 8  # a number: the value of a functional
    return int(math.prod(x.shape) * arrays.dtype_of(x).itemsize)
