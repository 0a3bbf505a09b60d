"""What the two engines for JAX devices share: blocks of equal structure, and tables of planes.

One compiled program serves every device, so every share has the padded length and blocks are
taken in the padded form: what differs between them are arrays, which stand in the order of the
mesh along a leading axis. Planes of padding may hold anything; no block reads them.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.errors import DTypeError, PlacementError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.structure import Skeleton, skeleton
from linops.transforms.pytree import pack
from sharding.array_backends.jax_devices import named_sharding, send, stacked
from sharding.banding import banded
from sharding.executors import overlap
from sharding.executors.band_loop import loops_of
from sharding.executors.exchanged_loop import Exchange, exchanged_loops
from sharding.executors.share import Share
from sharding.machine import Machine
from sharding.mesh import Mesh
from sharding.program import Program
from sharding.states import Windowed, real_range, share_of
from sharding.steps import Compute, Loop, Step

__all__ = ["PaddedBlocks", "Segment", "Slot", "description", "segments", "window_cells"]


@dataclass(frozen=True)
class Slot:
    """The padded blocks of one leaf: what they share, and on each device their arrays.

    `exchanged` where their bands are gathered or scattered one by one.
    """

    skeleton: Skeleton
    leaves: tuple[tuple[Array, ...], ...]
    linear: bool
    exchanged: bool = False


class PaddedBlocks:
    """The padded blocks of a plan's leaves, made once.

    Parameters
    ----------
    mesh
        The devices. Along a mesh axis of one device nothing is cut.
    machine
        Of an engine that computes and exchanges at one time: its rates.
    """

    def __init__(self, mesh: Mesh, machine: Machine | None = None) -> None:
        self.mesh, self.machine = mesh, machine
        self._slots: dict[Hashable, Slot] = {}
        self._stacks: dict[int, tuple[Array, ...]] = {}
        self._kept: list[Operator] = []
        self._lock = threading.RLock()

    def of(self, step: Compute, exchange: Exchange | None = None) -> Slot:
        """The blocks of a step's leaf; with `exchange` as a loop that moves its bands, if so."""
        bands = step.bands if isinstance(step, Loop) else None
        key = (id(step.operator), step.cuts, bands, exchange)
        with self._lock:
            if key not in self._slots:
                self._slots[key] = self._make(step, exchange)
                self._kept.append(step.operator)  # so that nobody else gets its id
            return self._slots[key]

    def stacked(self, slot: Slot) -> tuple[Array, ...]:
        """The arrays of all devices, along a leading axis over the mesh."""
        with self._lock:
            if id(slot) not in self._stacks:
                rows = zip(*slot.leaves, strict=True)
                self._stacks[id(slot)] = tuple(stacked(self.mesh, list(row)) for row in rows)
            return self._stacks[id(slot)]

    def described(self, slot: Slot) -> tuple[Any, ...]:
        """The shapes, dtypes and shardings of `stacked`, which nothing is allocated for."""
        import jax

        everywhere = tuple(0 for _ in self.mesh.shape)
        return tuple(
            jax.ShapeDtypeStruct(
                (self.mesh.size, *leaf.shape),
                arrays.dtype_of(leaf),
                sharding=named_sharding(self.mesh, everywhere, leaf.ndim + 1),
            )
            for leaf in slot.leaves[0]
        )

    def _make(self, step: Compute, exchange: Exchange | None) -> Slot:
        shares = [Share(step, self.mesh.shape, at) for at in self.mesh.coordinates]
        blocks: Sequence[Any] = [share.whole for share in shares]
        exchanged = None
        if isinstance(step, Loop) and exchange is not None:
            exchanged = exchanged_loops(shares, *step.bands, exchange, _split)
        if exchanged is not None:
            blocks = exchanged
        elif isinstance(step, Loop):
            loops = loops_of(shares, *step.bands, _split)
            blocks = loops or [banded(block, *step.bands) for block in blocks]
        elif self.machine is not None and overlap.worthwhile(step, blocks[0], self.machine):
            blocks = overlap.apart(step, shares) or blocks
        parts = [_split(block) for block in blocks]
        if any(shown != parts[0][0] for shown, _ in parts):
            raise PlacementError(
                f"{blocks[0].name}: its padded blocks by {step.cuts} differ in structure, so one "
                "program cannot serve all devices; take executor='threads' on workers, or "
                "another partition"
            )
        linear = isinstance(step.operator, LinearOperator)
        return Slot(
            parts[0][0], tuple(leaves for _, leaves in parts), linear, exchanged is not None
        )

    def on_devices(self, slot: Slot) -> tuple[tuple[Array, ...], ...]:
        """The arrays of each device, on it."""
        with self._lock:
            key = -id(slot)
            if key not in self._stacks:
                self._stacks[key] = tuple(
                    tuple(send(leaf, device) for leaf in row)
                    for row, device in zip(slot.leaves, self.mesh.devices, strict=True)
                )
            return self._stacks[key]


def _split(block: Operator) -> tuple[Skeleton, tuple[Array, ...]]:
    return skeleton(block, _takes_all, _packed, alike=True)


def description(program: Program, slots: Sequence[Slot | None]) -> Hashable:
    """What two programs share that one compiled program serves; leaves by their structure."""
    values = tuple((v.space.shape, v.space.dtype.str, v.states) for v in program.values)
    steps = tuple(_described(step, slot) for step, slot in zip(program.steps, slots, strict=True))
    return program.mesh, values, steps, program.inputs, program.outputs


@dataclass(frozen=True)
class Segment:
    """Neighboring planes that a window takes from one share.

    `owner` and `first` say which share and its first plane, `place` where they stand in the
    window, `count` how many there are.
    """

    owner: int
    first: int
    place: int
    count: int


def segments(window: Windowed, n: int, devices: int) -> tuple[tuple[Segment, ...], ...]:
    """For each device the segments of its window into an axis of `n` planes in equal shares."""
    share = share_of(n, devices)
    found = []
    for i in range(devices):
        own: list[Segment] = []
        for place, plane in window_cells(window, n, i):
            owner, first = divmod(plane, share)
            last = own[-1] if own else None
            if (
                last is not None
                and last.owner == owner
                and last.first + last.count == first
                and last.place + last.count == place
            ):
                own[-1] = Segment(owner, last.first, last.place, last.count + 1)
            else:
                own.append(Segment(owner, first, place, 1))
        found.append(tuple(own))
    return tuple(found)


def window_cells(window: Windowed, n: int, i: int) -> list[tuple[int, int]]:
    """The places in the window of device `i` that planes of the array fill, and these planes."""
    begin = window.padded[i][0]
    lo, hi = window.planes(i, n)
    return [(p - begin, p % n) for p in range(lo, hi)] if n else []


def regular(window: Windowed, n: int, devices: int) -> tuple[int, int] | None:
    """How many planes before and after its share every window has; None where that differs."""
    if window.periodic:
        return None
    share = share_of(n, devices)
    before, after = -window.padded[0][0], window.padded[0][1] - share
    wanted = tuple((i * share - before, (i + 1) * share + after) for i in range(devices))
    if before < 0 or after < 0 or window.padded != wanted:
        return None
    for i in range(devices):
        lo, hi = window.planes(i, n)
        first, last = real_range(n, devices, i)
        if lo < hi and not (lo <= first and last <= hi):
            return None
    return before, after


def _described(step: Step, slot: Slot | None) -> Hashable:
    if isinstance(step, Compute):
        assert slot is not None
        return step.kind, step.inputs, step.outputs, step.adjoint, slot.skeleton, slot.linear
    return step.kind, step.inputs, step.outputs, getattr(step, "mesh_axis", None)


def _takes_all(_: Array) -> bool:
    return True


def _packed(table: Array) -> Array:
    """A table that compiled code reads as float64: its bits."""
    if arrays.is_jax(table) and np.dtype(table.dtype) != np.uint32:
        if arrays.is_traced(table):
            raise DTypeError(
                f"compiled code reads its tables as float64 on the host, got a traced "
                f"{table.dtype}; make the plan outside of the trace"
            )
        table = arrays.to_numpy(table)
    return pack(table)
