"""The movements of a program inside `shard_map`: local arrays in, local arrays out.

Shares and windows have their padded lengths. What stands in planes that are not of the array is
selected away wherever planes are added up, cropped where an axis becomes whole, and else left
alone: blocks do not read it. Which planes go where is known beforehand, so tables are static.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linops.arrays import Array
from sharding.executors.padded import Segment, regular, segments, window_cells
from sharding.mesh import Mesh
from sharding.states import Replicated, Sharded, Windowed, share_of
from sharding.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Extend,
    Halo,
    HaloAdd,
    Movement,
    ReduceScatter,
    Slice,
    Value,
)

__all__ = ["masked", "moved"]


def moved(
    step: Movement, x: Array, before: Value, after: Value, mesh: tuple[int, ...], name: str
) -> Array:
    """The local part of `after`, from that of `before`.

    Parameters
    ----------
    step
        A movement along one mesh axis.
    x
        The local part, batch axes in front.
    before, after
        What it is a part of.
    mesh
        Devices along each mesh axis.
    name
        Of the mesh axis.
    """
    if mesh[step.mesh_axis] == 1:
        return x
    line = _DeviceLine(before, after, step.mesh_axis, mesh[step.mesh_axis], name)
    return _MOVES[type(step)](line, x)


def masked(x: Array, value: Value, mesh: Mesh) -> Array:
    """The local part with zeros in the planes that are not of the array."""
    import jax

    for m, state in enumerate(value.states):
        if not isinstance(state, Sharded):
            continue
        n, devices = value.space.shape[state.axis], mesh.shape[m]
        share = share_of(n, devices)
        if share * devices != n:
            axis = state.axis - value.space.ndim
            first = jax.lax.axis_index(mesh.names[m]) * share
            x = _kept(x, axis, first + np.arange(share) < n)
    return x


class _DeviceLine:
    """The devices along one mesh axis, and how a value changes its state there."""

    def __init__(self, before: Value, after: Value, m: int, devices: int, name: str) -> None:
        self.source, self.target = before.states[m], after.states[m]
        self.shape, self.n, self.name = before.space.shape, devices, name

    @property
    def here(self) -> Any:
        import jax

        return jax.lax.axis_index(self.name)

    def axis(self, state: Any) -> tuple[int, int, int]:
        """Of the axis that a state cuts: its negative number, its planes, those of a share."""
        n = self.shape[state.axis]
        return state.axis - len(self.shape), n, share_of(n, self.n)

    def slice(self, x: Array) -> Array:
        import jax

        axis, n, share = self.axis(self.target)
        if isinstance(self.target, Sharded):
            x = _widen(x, axis, 0, share * self.n - n)
            return jax.lax.dynamic_slice_in_dim(x, self.here * share, share, x.ndim + axis)
        assert isinstance(self.target, Windowed)
        return _take(x, axis, self.table(self.target, n)[self.here])

    def table(self, window: Windowed, n: int, outside: int = 0) -> Any:
        """For each device the plane at every place of its window, `outside` where there is none."""
        lo, hi = window.padded[0]
        table = np.full((self.n, hi - lo), outside, np.int32)
        for i in range(self.n):
            for place, plane in window_cells(window, n, i):
                table[i, place] = plane
        return _constant(table)

    def all_gather(self, x: Array) -> Array:
        import jax

        axis, n, _ = self.axis(self.source)
        x = jax.lax.all_gather(x, self.name, axis=x.ndim + axis, tiled=True)
        return _narrowed(x, axis, 0, n)

    def reduce_scatter(self, x: Array) -> Array:
        import jax

        axis, n, share = self.axis(self.target)
        x = _widen(x, axis, 0, share * self.n - n)
        return jax.lax.psum_scatter(x, self.name, scatter_dimension=x.ndim + axis, tiled=True)

    def all_reduce(self, x: Array) -> Array:
        import jax

        return jax.lax.psum(x, self.name)

    def all_to_all(self, x: Array) -> Array:
        import jax

        old, n, _ = self.axis(self.source)
        new, m, share = self.axis(self.target)
        x = _widen(x, new, 0, share * self.n - m)
        x = jax.lax.all_to_all(x, self.name, x.ndim + new, x.ndim + old, tiled=True)
        return _narrowed(x, old, 0, n)

    def extend(self, x: Array) -> Array:
        import jax

        jnp = jax.numpy
        if isinstance(self.source, Replicated):
            return jnp.where(self.here == 0, x, jnp.zeros((), x.dtype))
        axis, n, share = self.axis(self.source)
        shape = list(x.shape)
        if isinstance(self.source, Sharded):
            shape[axis] = share * self.n
            whole = jnp.zeros(shape, x.dtype)
            whole = jax.lax.dynamic_update_slice_in_dim(whole, x, self.here * share, x.ndim + axis)
            return _narrowed(whole, axis, 0, n)
        assert isinstance(self.source, Windowed)
        shape[axis] = n
        return _put_back(
            jnp.zeros(shape, x.dtype), x, axis, self.table(self.source, n, n)[self.here]
        )

    def halo(self, x: Array) -> Array:
        import jax

        window = self.target
        assert isinstance(window, Windowed)
        axis, n, share = self.axis(window)
        widths = regular(window, n, self.n)
        if widths is None:
            return self._exchanged(x, window, axis, n)
        parts = [x]
        for side, width in zip((1, -1), widths, strict=True):
            for hop in range(1, -(-width // share) + 1):
                count = min(share, width - (hop - 1) * share)
                # A window's planes before the share are the last ones of the devices before.
                first = share - count if side > 0 else 0
                piece = _narrowed(x, axis, first, first + count)
                piece = jax.lax.ppermute(piece, self.name, self.pairs(window, n, side * hop))
                parts.insert(0 if side > 0 else len(parts), piece)
        return jax.numpy.concatenate(parts, axis=axis)

    def pairs(self, window: Windowed, n: int, hop: int) -> list[tuple[int, int]]:
        """Which device sends to the one `hop` further on, where that one reads its planes."""
        found = []
        for i, own in enumerate(segments(window, n, self.n)):
            if any(segment.owner == i - hop for segment in own):
                found.append((i - hop, i))
        return found

    def halo_add(self, x: Array) -> Array:
        import jax

        window = self.source
        assert isinstance(window, Windowed)
        axis, n, share = self.axis(window)
        widths = regular(window, n, self.n)
        if widths is None:
            return self._returned(x, window, axis, n, share)
        x = _kept(x, axis, self.table(window, n, n)[self.here] < n)
        before, after = widths
        total = _narrowed(x, axis, before, before + share)
        for side, width in ((1, before), (-1, after)):
            for hop in range(1, -(-width // share) + 1):
                count = min(share, width - (hop - 1) * share)
                if side > 0:
                    start = before - (hop - 1) * share - count
                else:
                    start = before + hop * share
                piece = _narrowed(x, axis, start, start + count)
                back = [(j, i) for i, j in self.pairs(window, n, side * hop)]
                piece = jax.lax.ppermute(piece, self.name, back)
                rest = share - count
                total = total + _widen(piece, axis, *((rest, 0) if side > 0 else (0, rest)))
        return total

    def _exchanged(self, x: Array, window: Windowed, axis: int, n: int) -> Array:
        """Windows of any form: planes are picked, sent, and put in their places by tables."""
        import jax

        lo, hi = window.padded[0]
        places = np.zeros((self.n, hi - lo), np.int32)
        parts, length = [], 0
        for hop, rows in self._messages(window, n):
            width = max(len(row) for row in rows)
            sent = np.zeros((self.n, width), np.int32)
            pairs = []
            for i, row in enumerate(rows):
                owner = (i + hop) % self.n
                for k, (place, plane) in enumerate(row):
                    sent[owner, k] = plane
                    places[i, place] = length + k
                if row:
                    pairs.append((owner, i))
            piece = _take(x, axis, _constant(sent)[self.here])
            parts.append(jax.lax.ppermute(piece, self.name, pairs) if hop else piece)
            length += width
        if not parts:
            return _narrowed(_widen(x, axis, 0, hi - lo), axis, 0, hi - lo)
        whole = jax.numpy.concatenate(parts, axis=axis)
        return _take(whole, axis, _constant(places)[self.here])

    def _returned(self, x: Array, window: Windowed, axis: int, n: int, share: int) -> Array:
        import jax

        shape = list(x.shape)
        shape[axis] = share
        total = jax.numpy.zeros(shape, x.dtype)
        for hop, rows in self._messages(window, n):
            width = max(len(row) for row in rows)
            sent = np.zeros((self.n, width), np.int32)
            target = np.full((self.n, width), share, np.int32)
            pairs = []
            for i, row in enumerate(rows):
                owner = (i + hop) % self.n
                for k, (place, plane) in enumerate(row):
                    sent[i, k] = place
                    target[owner, k] = plane
                if row:
                    pairs.append((i, owner))
            piece = _take(x, axis, _constant(sent)[self.here])
            if hop:
                piece = jax.lax.ppermute(piece, self.name, pairs)
            total = _put_back(total, piece, axis, _constant(target)[self.here])
        return total

    def _messages(self, window: Windowed, n: int) -> list[tuple[int, list[list[tuple[int, int]]]]]:
        """For each distance to an owner, and each device, places and the owner's planes there."""
        found: dict[int, list[list[tuple[int, int]]]] = {}
        for i, own in enumerate(segments(window, n, self.n)):
            for segment in own:
                hop = (segment.owner - i) % self.n
                rows = found.setdefault(hop, [[] for _ in range(self.n)])
                rows[i] += _cells(segment)
        return sorted(found.items())


_MOVES: dict[type, Any] = {
    Slice: _DeviceLine.slice,
    AllGather: _DeviceLine.all_gather,
    ReduceScatter: _DeviceLine.reduce_scatter,
    AllReduce: _DeviceLine.all_reduce,
    AllToAll: _DeviceLine.all_to_all,
    Extend: _DeviceLine.extend,
    Halo: _DeviceLine.halo,
    HaloAdd: _DeviceLine.halo_add,
}


def _cells(segment: Segment) -> list[tuple[int, int]]:
    return [(segment.place + k, segment.first + k) for k in range(segment.count)]


def _constant(table: np.ndarray) -> Array:
    import jax

    return jax.numpy.asarray(table)


def _narrowed(x: Array, axis: int, start: int, stop: int) -> Array:
    import jax

    if start == 0 and stop == x.shape[axis]:
        return x
    return jax.lax.slice_in_dim(x, start, stop, axis=x.ndim + axis)


def _widen(x: Array, axis: int, before: int, after: int) -> Array:
    import jax

    if before == 0 and after == 0:
        return x
    widths = [(0, 0)] * x.ndim
    widths[axis] = (before, after)
    return jax.numpy.pad(x, widths)


def _take(x: Array, axis: int, index: Array) -> Array:
    import jax

    return jax.numpy.take(x, index, axis=x.ndim + axis, mode="clip")


def _kept(x: Array, axis: int, inside: Array) -> Array:
    """Planes where `inside` is true, zeros elsewhere: selected, for NaN times 0 is NaN."""
    import jax

    jnp = jax.numpy
    return jnp.where(inside.reshape(-1, *(1,) * (-axis - 1)), x, jnp.zeros((), x.dtype))


def _put_back(whole: Array, x: Array, axis: int, planes: Array) -> Array:
    """`whole` with the planes of `x` added at `planes`; those beyond the end are dropped."""
    index = (..., planes, *(slice(None),) * (-axis - 1))
    return whole.at[index].add(x, mode="drop")
