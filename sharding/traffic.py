"""What runs of a plan read, copy and add up: predicted for a program, counted by the executors.

In shared memory shares and halos are views, so what is copied are results of blocks that are
written into the array of all, planes around a ring, and shares that are set among zeros; what is
reduced are the summands. Between devices it is what the movements send.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from linops.algebra.blocks import extent
from linops.cost import bytes_of
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from sharding.banding import bands
from sharding.mesh import groups
from sharding.program import Program
from sharding.states import (
    Replicated,
    Sharded,
    Windowed,
    overlaps,
    real_range,
    share_of,
    side_by_side,
)
from sharding.steps import (
    Add,
    AllReduce,
    Compute,
    Extend,
    HaloAdd,
    Loop,
    Movement,
    Ranges,
    ReduceScatter,
    Step,
    Value,
)

__all__ = ["Stats", "Traffic", "expected", "read_by", "wrapped"]


@dataclass(frozen=True)
class Traffic:
    """Of one run, or of several: blocks applied, and bytes, all devices together.

    Attributes
    ----------
    blocks
        How many blocks, or bands of them, were applied.
    read
        Bytes of the inputs of these blocks.
    copied, reduced
        Bytes moved as they are, and bytes moved (in shared memory: read) to be added up.
    """

    blocks: int = 0
    read: int = 0
    copied: int = 0
    reduced: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.blocks + other.blocks,
            self.read + other.read,
            self.copied + other.copied,
            self.reduced + other.reduced,
        )

    def times(self, n: int) -> Traffic:
        """Of arrays with `n` leading elements; blocks take them all at once."""
        return Traffic(self.blocks, n * self.read, n * self.copied, n * self.reduced)

    def __str__(self) -> str:
        return (
            f"{self.blocks:,} blocks, {self.read:,} bytes read, {self.copied:,} copied, "
            f"{self.reduced:,} reduced"
        )


class Stats:
    """What the runs of a plan's programs have read, copied and added up since it was made.

    In shared memory it is counted as it happens; between devices the movements are those that the
    program names, and runs are counted.

    Attributes
    ----------
    runs
        How many runs there were; one inside a compiled program of the caller is not seen.
    total
        `Traffic` of all of them.
    """

    def __init__(self) -> None:
        self.runs, self.total = 0, Traffic()
        self._lock = threading.Lock()
        self._known: dict[tuple[int, int], tuple[Program, Traffic]] = {}

    def ran(self, program: Program, batch: Sequence[int]) -> None:
        """A run on devices apart, whose collectives are those of the program."""
        key = id(program), math.prod(batch)
        if key not in self._known:
            self._known[key] = program, expected(program, False, key[1])
        self.add(self._known[key][1])

    def add(self, run: Traffic) -> None:
        """One run more."""
        with self._lock:
            self.runs += 1
            self.total += run

    def clear(self) -> None:
        """Begin at nothing."""
        with self._lock:
            self.runs, self.total = 0, Traffic()

    @property
    def blocks(self) -> int:
        """Blocks, or bands of them, that were applied."""
        return self.total.blocks

    @property
    def read(self) -> int:
        """Bytes of the inputs of blocks."""
        return self.total.read

    @property
    def copied(self) -> int:
        """Bytes that were moved as they are."""
        return self.total.copied

    @property
    def reduced(self) -> int:
        """Bytes that were moved to be added up."""
        return self.total.reduced

    def __str__(self) -> str:
        return f"{self.runs} runs: {self.total}"


def expected(program: Program, shared: bool, batch: int = 1) -> Traffic:
    """The traffic of one run of a program, from shapes alone.

    Parameters
    ----------
    program
        Its steps.
    shared
        Whether all devices see one memory.
    batch
        Leading elements of the arrays.
    """
    counted = _Shared(program).total() if shared else _apart(program)
    return counted.times(batch)


def read_by(blocks: Sequence[Operator], adjoint: bool) -> int:
    """Bytes of the inputs of blocks."""
    return int(sum(bytes_of(block.codomain if adjoint else block.domain) for block in blocks))


def wrapped(place: Ranges, value: Value) -> bool:
    """Whether a range of planes goes around a ring, so that no view shows it."""
    return any(lo < 0 or hi > n for (lo, hi), n in zip(place, value.space.shape, strict=True))


def _apart(program: Program) -> Traffic:
    """Where every device has a memory of its own: blocks on padded shares, and what is sent."""
    total = Traffic()
    for step in program.steps:
        sent = program.volume(step)
        if isinstance(step, Compute):
            n = math.prod(program.mesh)
            count, read = 1, sum(program.values[k].local_bytes(program.mesh) for k in step.inputs)
            if isinstance(step, Loop):
                parts = _parts(program, step, (0,) * len(program.mesh), padded=True)
                count, read = len(parts), read_by(parts, step.adjoint)
            total += Traffic(n * count, n * read)
        elif isinstance(step, (AllReduce, ReduceScatter, HaloAdd)):
            total += Traffic(reduced=sent)
        elif isinstance(step, Movement):
            total += Traffic(copied=sent)
    return total


def _parts(
    program: Program, step: Compute, at: tuple[int, ...], padded: bool = False
) -> list[Operator]:
    """The blocks, or bands, that a device applies in a step."""
    block: Operator = step.operator
    for m, name in enumerate(step.cuts):
        if name is None or (program.mesh[m] == 1 and not padded):
            continue
        n = extent(step.operator, name)
        share = share_of(n, program.mesh[m])
        lo, hi = real_range(n, program.mesh[m], at[m])
        if padded:
            lo, hi = at[m] * share, (at[m] + 1) * share
        if lo == hi:
            return []
        if (lo, hi) != (0, n):
            block = block.block(name, lo, hi, padded=padded)
    if isinstance(step, Loop) and isinstance(block, LinearOperator):
        return list(bands(block, *step.bands))
    return [block]


class _Shared:
    """A program in shared memory, without its arrays: which device has a piece of which value."""

    def __init__(self, program: Program) -> None:
        self.program, self.mesh = program, program.mesh
        self.coordinates = list(product(*(range(n) for n in program.mesh)))
        self.devices = set(range(len(self.coordinates)))
        self.there = dict.fromkeys(program.inputs, self.devices)
        self.whole = set(program.inputs)

    def total(self) -> Traffic:
        """Of all steps."""
        total = Traffic(copied=sum(map(self._rings, self.program.inputs)))
        for step in self.program.steps:
            total += self._of(step)
        return total

    def _of(self, step: Step) -> Traffic:
        if isinstance(step, Compute):
            return self._compute(step)
        out = step.outputs[0]
        present = [self.there[k] for k in step.inputs]
        self.there[out] = set.union(*present)
        if isinstance(step, Add):
            if side_by_side(self._value(out).states) or all(k in self.whole for k in step.inputs):
                self.whole.add(out)
                self.there[out] = self.devices
                size = int(bytes_of(self._value(out).space))
                return Traffic(copied=self._rings(out), reduced=len(step.inputs) * size)
            return Traffic(
                reduced=sum(self._bytes(k, d) for k in step.inputs for d in self.there[k])
            )
        assert isinstance(step, Movement)
        if isinstance(step, Extend):
            return self._extend(step)
        if isinstance(step, (AllReduce, ReduceScatter)):
            return self._reduce(step)
        if isinstance(step, HaloAdd):
            return self._halo_add(step)
        return self._recut(step)

    def _compute(self, step: Compute) -> Traffic:
        outs = [self._value(k) for k in step.outputs]
        active = set.intersection(*(self.there[k] for k in step.inputs))
        once = len(self.devices) == 1 or all(
            isinstance(s, Replicated) for value in outs for s in value.states
        )
        devices = [0] if once else sorted(active)
        total, made = Traffic(), set()
        for d in devices:
            parts = _parts(self.program, step, self.coordinates[d])
            if not parts:
                continue
            made.add(d)
            own = sum(self._bytes(k, d) for k in step.inputs)
            read = read_by(parts, step.adjoint) if len(parts) > 1 else own
            total += Traffic(len(parts), read)
        for k, value in zip(step.outputs, outs, strict=True):
            joined = once or side_by_side(value.states)
            self.there[k] = self.devices if joined else made
            if joined:
                self.whole.add(k)
            if joined and not once:
                total += Traffic(copied=sum(self._bytes(k, d) for d in made))
        return total

    def _recut(self, step: Movement) -> Traffic:
        source, out = step.inputs[0], step.outputs[0]
        if source in self.whole:
            self.whole.add(out)
            self.there[out] = self.devices
            return Traffic(copied=self._rings(out))
        state, copied = self._value(source).states[step.mesh_axis], 0
        self.there[out] = set()
        for line in groups(self.mesh, step.mesh_axis):
            if not self.there[source] & set(line):
                continue
            self.there[out] = self.there[out] | set(line)
            if isinstance(state, Sharded):
                copied += sum(self._bytes(source, d) for d in line)
        return Traffic(copied=copied + self._rings(out))

    def _extend(self, step: Movement) -> Traffic:
        source, out = step.inputs[0], step.outputs[0]
        there = self.there[source]
        if isinstance(self._value(source).states[step.mesh_axis], Replicated):
            first = {line[0] for line in groups(self.mesh, step.mesh_axis)}
            self.there[out] = there & first
            return Traffic()
        return Traffic(copied=sum(self._bytes(source, d) for d in there))

    def _reduce(self, step: Movement) -> Traffic:
        source, out = step.inputs[0], step.outputs[0]
        after = self._value(out)
        cut, joined = isinstance(after.states[step.mesh_axis], Sharded), side_by_side(after.states)
        self.there[out] = self.devices
        if joined:
            self.whole.add(out)
        seen: set[Ranges] = set()
        reduced = 0
        for line in groups(self.mesh, step.mesh_axis):
            summands = len(self.there[source] & set(line))
            for d in line if cut else line[:1]:
                place = self.program.places[out][d]
                if joined and place in seen:
                    continue
                seen.add(place)
                reduced += summands * self._bytes(out, d)
        return Traffic(reduced=reduced)

    def _halo_add(self, step: Movement) -> Traffic:
        source, out = step.inputs[0], step.outputs[0]
        window, after = self._value(source).states[step.mesh_axis], self._value(out)
        assert isinstance(window, Windowed)
        n, joined = after.space.shape[window.axis], side_by_side(after.states)
        self.there[out] = self.devices
        if joined:
            self.whole.add(out)
        jobs: dict[object, tuple[int, tuple[int, ...]]] = {}
        for line in groups(self.mesh, step.mesh_axis):
            for d in line:
                jobs.setdefault(self.program.places[out][d] if joined else d, (d, line))
        reduced = 0
        for d, line in jobs.values():
            first, last = real_range(n, self.mesh[step.mesh_axis], line.index(d))
            plane = self._bytes(out, d) // max(last - first, 1)
            for i, other in enumerate(line):
                if other in self.there[source]:
                    lo, hi = window.planes(i, n)
                    pieces = overlaps(lo, hi, first, last, n, window.periodic)
                    reduced += plane * sum(end - begin for begin, end, _ in pieces)
        return Traffic(reduced=reduced)

    def _value(self, k: int) -> Value:
        return self.program.values[k]

    def _bytes(self, k: int, d: int) -> int:
        """Bytes of a device's piece of a value."""
        sizes = (hi - lo for lo, hi in self.program.places[k][d])
        return math.prod(sizes) * self._value(k).space.dtype.itemsize

    def _rings(self, k: int) -> int:
        """Bytes of the pieces that no view shows."""
        places = self.program.places[k]
        return sum(self._bytes(k, d) for d in self.there[k] if wrapped(places[d], self._value(k)))
