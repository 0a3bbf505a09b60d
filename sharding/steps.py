"""Values on a mesh, and the steps that make one from another.

Every step is linear (`Compute` of a nonlinear leaf apart) and knows its adjoint: the movement
between the dual states. Steps say what moves, and how many bytes; how it moves is an executor's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from linops.operator import Operator
from linops.space import Space
from sharding.states import (
    Partial,
    Replicated,
    Sharded,
    State,
    States,
    Windowed,
    dual,
    real_range,
    share_of,
)

__all__ = [
    "Add",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Compute",
    "Extend",
    "Halo",
    "HaloAdd",
    "Loop",
    "Movement",
    "Ranges",
    "ReduceScatter",
    "Slice",
    "Step",
    "Value",
    "movement",
]

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Value:
    """An array on a mesh: its space, of the real shape, and one state a mesh axis."""

    space: Space
    states: States

    def real(self, mesh: tuple[int, ...], at: tuple[int, ...]) -> Ranges:
        """For each array axis the planes on the device at mesh coordinates `at`; around a ring
        uncut."""
        ranges = [(0, n) for n in self.space.shape]
        for m, state in enumerate(self.states):
            if isinstance(state, Sharded):
                ranges[state.axis] = real_range(self.space.shape[state.axis], mesh[m], at[m])
            elif isinstance(state, Windowed):
                ranges[state.axis] = state.planes(at[m], self.space.shape[state.axis])
        return tuple(ranges)

    def local_shape(self, mesh: tuple[int, ...]) -> tuple[int, ...]:
        """The padded shape on each device."""
        shape = list(self.space.shape)
        for m, state in enumerate(self.states):
            if isinstance(state, Sharded):
                shape[state.axis] = share_of(shape[state.axis], mesh[m])
            elif isinstance(state, Windowed):
                lo, hi = state.padded[0]
                shape[state.axis] = hi - lo
        return tuple(shape)

    def local_bytes(self, mesh: tuple[int, ...]) -> int:
        """Bytes on each device, padding included."""
        return math.prod(self.local_shape(mesh)) * self.space.dtype.itemsize

    def dual(self) -> Value:
        """The cotangent's value."""
        return Value(self.space, tuple(map(dual, self.states)))

    def with_state(self, m: int, state: State) -> Value:
        """The same array in another state along mesh axis `m`."""
        return replace(self, states=(*self.states[:m], state, *self.states[m + 1 :]))

    def __str__(self) -> str:
        return f"{self.space.describe_shape()} {'x'.join(map(str, self.states))}"


@dataclass(frozen=True)
class Step:
    """One step: the numbers of the values that it reads and makes."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kind: ClassVar[str] = "Step"


@dataclass(frozen=True)
class Compute(Step):
    """A leaf on every device's block.

    Attributes
    ----------
    operator
        The leaf, as it stands in the forward program.
    cuts
        For each mesh axis the axis of the leaf's rule that it cuts, None where it cuts none.
    adjoint
        Whether the adjoints of the blocks are applied.
    number
        The leaf's number in the plan: blocks and linearisations are kept under it.
    """

    operator: Operator = field(repr=False)
    cuts: tuple[str | None, ...]
    number: int
    adjoint: bool = False
    kind: ClassVar[str] = "Compute"


@dataclass(frozen=True)
class Loop(Compute):
    """A leaf on every device's block, band after band: less workspace, the same result.

    Attributes
    ----------
    bands
        The axis of the leaf's rule that is cut into bands, and their length.
    """

    bands: tuple[str, int] = ("", 0)
    kind: ClassVar[str] = "Loop"


@dataclass(frozen=True)
class Add(Step):
    """The sum of its inputs, all in the state of the output."""

    kind: ClassVar[str] = "Add"


@dataclass(frozen=True)
class Movement(Step):
    """One value in another state along one mesh axis."""

    mesh_axis: int

    def volume(self, before: Value, after: Value, mesh: tuple[int, ...]) -> int:
        """Bytes that all devices move together, padding included."""
        return 0


class Slice(Movement):
    """Replicated to sharded or windowed: every device keeps its range."""

    kind: ClassVar[str] = "Slice"


class Extend(Movement):
    """To partial: a share stands among zeros; of copies one is kept, on the first device."""

    kind: ClassVar[str] = "Extend"


class AllGather(Movement):
    """Sharded to replicated."""

    kind: ClassVar[str] = "AllGather"

    def volume(self, before: Value, after: Value, mesh: tuple[int, ...]) -> int:
        """`(n - 1) B` in each group, with B bytes of the padded array."""
        n, groups = _groups(self.mesh_axis, mesh)
        return groups * n * (n - 1) * before.local_bytes(mesh)


class ReduceScatter(Movement):
    """Partial to sharded: summed in the order of the devices."""

    kind: ClassVar[str] = "ReduceScatter"

    def volume(self, before: Value, after: Value, mesh: tuple[int, ...]) -> int:
        """`(n - 1) B` in each group."""
        n, groups = _groups(self.mesh_axis, mesh)
        return groups * n * (n - 1) * after.local_bytes(mesh)


class AllReduce(Movement):
    """Partial to replicated: summed in the order of the devices."""

    kind: ClassVar[str] = "AllReduce"

    def volume(self, before: Value, after: Value, mesh: tuple[int, ...]) -> int:
        """`2 (n - 1) B` in each group."""
        n, groups = _groups(self.mesh_axis, mesh)
        return groups * 2 * (n - 1) * after.local_bytes(mesh)


class AllToAll(Movement):
    """Sharded along one array axis to sharded along another."""

    kind: ClassVar[str] = "AllToAll"

    def volume(self, before: Value, after: Value, mesh: tuple[int, ...]) -> int:
        """`(n - 1) B / n` in each group, with B bytes of the array padded along both axes."""
        n, groups = _groups(self.mesh_axis, mesh)
        source, target = before.states[self.mesh_axis], after.states[self.mesh_axis]
        assert isinstance(source, Sharded) and isinstance(target, Sharded)
        shape = list(before.local_shape(mesh))
        shape[target.axis] = after.local_shape(mesh)[target.axis]
        piece = math.prod(shape) * before.space.dtype.itemsize
        return groups * n * (n - 1) * piece


class Halo(Movement):
    """Sharded to windowed: planes come from the devices that own them."""

    kind: ClassVar[str] = "Halo"

    def volume(self, before: Value, after: Value, mesh: tuple[int, ...]) -> int:
        """Bytes of the planes that devices read and do not own."""
        return _exchanged(before, after, self.mesh_axis, mesh)


class HaloAdd(Movement):
    """Windowed to sharded: planes go back to their owners and are added there."""

    kind: ClassVar[str] = "HaloAdd"

    def volume(self, before: Value, after: Value, mesh: tuple[int, ...]) -> int:
        """As for `Halo`."""
        return _exchanged(after, before, self.mesh_axis, mesh)


def movement(source: State, target: State) -> type[Movement] | None:
    """The step from one state to another; None where there is nothing to do.

    Raises
    ------
    ValueError
        Where two steps are needed.
    """
    if source == target:
        return None
    kinds = (type(source), type(target))
    if kinds not in _TABLE:
        raise ValueError(f"no single step leads from {source} to {target}")
    return _TABLE[kinds]


_TABLE: dict[tuple[type, type], type[Movement]] = {
    (Replicated, Sharded): Slice,
    (Replicated, Windowed): Slice,
    (Replicated, Partial): Extend,
    (Sharded, Replicated): AllGather,
    (Sharded, Sharded): AllToAll,
    (Sharded, Windowed): Halo,
    (Sharded, Partial): Extend,
    (Windowed, Sharded): HaloAdd,
    (Windowed, Partial): Extend,
    (Partial, Replicated): AllReduce,
    (Partial, Sharded): ReduceScatter,
}


def _groups(m: int, mesh: tuple[int, ...]) -> tuple[int, int]:
    return mesh[m], math.prod(mesh) // mesh[m]


def _exchanged(owned: Value, wide: Value, m: int, mesh: tuple[int, ...]) -> int:
    window = wide.states[m]
    assert isinstance(window, Windowed)
    n, groups = _groups(m, mesh)
    extent = owned.space.shape[window.axis]
    planes = 0
    for i in range(n):
        first, last = real_range(extent, n, i)
        lo, hi = window.planes(i, extent)
        if extent:

            def own(end: int, first: int = first, count: int = last - first) -> int:
                # Planes before `end` that are its own, however often the axis wraps.
                return end // extent * count + min(max(end % extent - first, 0), count)

            planes += hi - lo - (own(hi) - own(lo))
    shape = [s for a, s in enumerate(owned.local_shape(mesh)) if a != window.axis]
    return groups * planes * math.prod(shape) * owned.space.dtype.itemsize
