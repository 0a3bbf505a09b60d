"""Ranks of a process group of torch: the mesh that they form, and what they send each other.

Tensors here are plain ones of a rank, without a graph. Sums are taken in the order of the ranks, so
that two runs give equal bits. Derivatives of these movements are made in
`sharding/executors/torch_machine.py`; who agrees on what is in `sharding/agreement.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from linops.arrays import Array
from linops.errors import PlacementError
from sharding import agreement, signature
from sharding.async_exchange import Journey, landed, streamed
from sharding.devices import host_memory, world
from sharding.mesh import Mesh, groups
from sharding.states import Windowed, real_range, share_of

if TYPE_CHECKING:
    from sharding.plans import Plan

__all__ = ["RankLine", "Ranks", "planned_together", "ranks_of"]

_PIECES = 16  # in which a sum over ranks is taken
_LEAST = 1 << 20  # bytes of a piece: an exchange costs the processor half a millisecond in gloo


def ranks_of(mesh: Mesh) -> Ranks:
    """This rank's view of a mesh; made once for each mesh and process group, by all ranks.

    Raises
    ------
    PlacementError
        Where no process group runs, or the mesh does not hold all of its ranks.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise PlacementError(
            "these devices are ranks: call torch.distributed.init_process_group on every rank "
            "first, e.g. under torchrun"
        )
    return _ranks_of(mesh, dist.group.WORLD)


@functools.lru_cache(maxsize=64)
def _ranks_of(mesh: Mesh, world: Any) -> Ranks:
    return Ranks(mesh)


def planned_together(make: Callable[[float | None], Plan], options: str) -> Plan:
    """The plan of all ranks, for the least memory that one of them has free.

    Parameters
    ----------
    make
        Makes a plan, for so many free bytes.
    options
        What was asked for, to be equal on all ranks.
    """
    free = host_memory(world())
    words = agreement.agree_or_raise(f"plan with {options}", None, (int(free or -1),))
    known = [float(word) for (word,) in words if word >= 0]
    limit = min(known) if len(known) == len(words) else None

    def described(plan: Plan) -> str:
        return signature.of_plan(plan)

    found = agreement.made_together(lambda: make(limit), described)
    ranks_of(found.mesh)
    return found


class Ranks:
    """A mesh of all ranks of the default process group, seen from one of them.

    Attributes
    ----------
    position
        The number of this rank in the mesh.
    at
        Its coordinates there.
    lines
        For each mesh axis the ranks that differ in that coordinate alone.
    device_mesh
        The `DeviceMesh`.
    """

    def __init__(self, mesh: Mesh) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh

        numbers = [device.number for device in mesh.devices]
        world = dist.get_world_size()
        if numbers != list(range(world)):
            # DeviceMesh sorts the ranks of its groups: permuted ones hand out wrong shares.
            raise PlacementError(
                f"a plan for ranks takes all {world} of the default process group in their order, "
                f"got {numbers}; start fewer processes for a smaller mesh"
            )
        self.mesh = mesh
        self.position = numbers.index(dist.get_rank())
        self.at = mesh.coordinates[self.position]
        self.device_mesh = DeviceMesh(
            mesh.devices[0].kind, torch.tensor(numbers).reshape(mesh.shape)
        )
        self.lines = tuple(
            RankLine(
                self.device_mesh.get_group(m),
                [numbers[d] for d in next(g for g in groups(mesh.shape, m) if self.position in g)],
                self.at[m],
            )
            for m in range(len(mesh.shape))
        )

    def total(self, x: Array) -> Array:
        """The sum over all ranks, everywhere."""
        for line in self.lines:
            x = line.all_reduce(x)
        return x


class RankLine:
    """The ranks along one mesh axis, this one among them.

    Axes of tensors are negative: leading batch axes do not count.
    """

    def __init__(self, group: Any, members: Sequence[int], i: int) -> None:
        self.group, self.members, self.i = group, tuple(members), i

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self.members)

    def all_gather(self, x: Array, axis: int, size: int) -> Array:
        """The whole of `size` planes from everybody's share."""
        return landed(self.gathering(x, axis, size))

    def gathering(self, x: Array, axis: int, size: int) -> Journey:
        """`all_gather`, under way."""
        if self.n == 1:
            return x
        rows = _rows(x, axis, share_of(size, self.n))
        out = yield from self._gathered(rows)
        return out[:size].movedim(0, axis)

    def reduce_scatter(self, x: Array, axis: int, size: int) -> Array:
        """This rank's share of the sum over all ranks."""
        lo, hi = real_range(size, self.n, self.i)
        return self._in_pieces(x, axis, hi - lo, lambda part: self.scattering(part, axis, size))

    def scattering(self, x: Array, axis: int, size: int) -> Journey:
        """`reduce_scatter`, under way."""
        if self.n == 1:
            return x
        exchanged = self._exchanged(_rows(x, axis, self.n * share_of(size, self.n)))
        total = _ordered_sum((yield from exchanged))
        lo, hi = real_range(size, self.n, self.i)
        return total[: hi - lo].movedim(0, axis)

    def all_reduce(self, x: Array) -> Array:
        """The sum over all ranks, everywhere."""
        return self._in_pieces(x, None, 0, self.summing)

    def summing(self, x: Array) -> Journey:
        """`all_reduce`, under way."""
        if self.n == 1:
            return x
        count = x.numel()
        if count <= self.n:
            gathered = yield from self._gathered(x.reshape(-1).contiguous())
            return _ordered_sum(gathered.reshape(self.n, count)).reshape(x.shape)
        # Everybody adds up a piece, and hands it round. Nothing is named that is needed no more.
        pieces = [hi - lo for lo, hi in (real_range(count, self.n, k) for k in range(self.n))]
        mine = [pieces[self.i]] * self.n
        got = yield from self._dealt(x.reshape(-1).contiguous(), pieces, mine)
        got = _ordered_sum(got.reshape(self.n, pieces[self.i]))
        out = yield from self._dealt(got.repeat(self.n), mine, pieces)
        return out.reshape(x.shape)

    def owning(self, x: Array, axis: int, size: int, first: int) -> Journey:
        """Of planes from `first` on, which all ranks have a summand of, the sum of this rank's."""
        rows = x.movedim(axis, 0).contiguous()
        counts = [hi - lo for lo, hi in self._owned(size, first, first + x.shape[axis])]
        plane = math.prod(rows.shape[1:])
        mine = counts[self.i]
        sends, receives = [n * plane for n in counts], [mine * plane] * self.n
        got = yield from self._dealt(rows.reshape(-1), sends, receives)
        return _ordered_sum(got.reshape(self.n, mine, *rows.shape[1:])).movedim(0, axis)

    def lending(self, x: Array, axis: int, size: int, first: int, last: int) -> Journey:
        """Planes `[first, last)` of an axis of which every rank has a share."""
        ranges = self._owned(size, first, last)
        begin = real_range(size, self.n, self.i)[0]
        lo, hi = ranges[self.i]
        rows = _narrow(x, axis, lo - begin, hi - begin).movedim(axis, 0).contiguous()
        plane = math.prod(rows.shape[1:])
        sends, receives = [(hi - lo) * plane] * self.n, [(b - a) * plane for a, b in ranges]
        got = yield from self._dealt(rows.reshape(-1).repeat(self.n), sends, receives)
        return got.reshape(last - first, *rows.shape[1:]).movedim(0, axis)

    def all_to_all(self, x: Array, source: tuple[int, int], target: tuple[int, int]) -> Array:
        """From shares of one axis to shares of another; both as (axis, planes)."""
        if self.n == 1:
            return x
        (a, size_a), (b, size_b) = source, target
        wide = _padded(x, a, share_of(size_a, self.n))
        got = landed(self._exchanged(_rows(wide, b, self.n * share_of(size_b, self.n))))
        lo, hi = real_range(size_b, self.n, self.i)
        pieces = [piece[: hi - lo].movedim(0, b) for piece in got]
        return _torch().cat(pieces, dim=a).narrow(x.ndim + a, 0, size_a)

    def taken(self, x: Array, axis: int, size: int, planes: tuple[int, int]) -> Array:
        """Planes `[lo, hi)` of a whole axis, which wraps around beyond its ends."""
        lo, hi = planes
        if lo >= 0 and hi <= size:
            return _narrow(x, axis, lo, hi)
        parts = []
        while lo < hi:
            start = lo % size
            stop = min(size, start + hi - lo)
            parts.append(_narrow(x, axis, start, stop))
            lo += stop - start
        return _torch().cat(parts, dim=axis)

    def spread(self, x: Array, axis: int, size: int, planes: tuple[int, int]) -> Array:
        """The adjoint of `taken`: zeros into which the planes are added."""
        out = _like(x, axis, size)
        lo, hi = planes
        begin = lo
        while begin < hi:
            start = begin % size
            stop = min(size, start + hi - begin)
            part = _narrow(x, axis, begin - lo, begin - lo + stop - start)
            _narrow(out, axis, start, stop).add_(part)
            begin += stop - start
        return out

    def halo(self, x: Array, axis: int, size: int, window: Windowed) -> Array:
        """The planes of this rank's window, from the ranks that own them."""
        lo, hi = window.planes(self.i, size)
        out = _like(x, axis, max(hi - lo, 0))
        sends, receives = {}, {}
        for k in range(self.n):
            theirs = self._shared(window, size, k, self.i)
            mine = self._shared(window, size, self.i, k)
            if k == self.i:
                for begin, end, at in mine:
                    _narrow(out, axis, begin, end).copy_(_narrow(x, axis, at, at + end - begin))
                continue
            if theirs:
                parts = [_narrow(x, axis, at, at + end - begin) for begin, end, at in theirs]
                sends[k] = _torch().cat(parts, dim=axis).contiguous()
            if mine:
                receives[k] = _like(x, axis, sum(end - begin for begin, end, _ in mine))
        self._messages(sends, receives)
        for k, got in receives.items():
            start = 0
            for begin, end, _ in self._shared(window, size, self.i, k):
                _narrow(out, axis, begin, end).copy_(_narrow(got, axis, start, start + end - begin))
                start += end - begin
        return out

    def halo_add(self, x: Array, axis: int, size: int, window: Windowed) -> Array:
        """The sum, on this rank's share, of what all windows hold of its planes."""
        first, last = real_range(size, self.n, self.i)
        out = _like(x, axis, last - first)
        sends, receives = {}, {}
        for k in range(self.n):
            if k == self.i:
                continue
            theirs = self._shared(window, size, self.i, k)
            mine = self._shared(window, size, k, self.i)
            if theirs:
                parts = [_narrow(x, axis, begin, end) for begin, end, _ in theirs]
                sends[k] = _torch().cat(parts, dim=axis).contiguous()
            if mine:
                receives[k] = _like(x, axis, sum(end - begin for begin, end, _ in mine))
        self._messages(sends, receives)
        for k in range(self.n):
            start = 0
            for begin, end, at in self._shared(window, size, k, self.i):
                if k == self.i:
                    part = _narrow(x, axis, begin, end)
                else:
                    part = _narrow(receives[k], axis, start, start + end - begin)
                _narrow(out, axis, at, at + end - begin).add_(part)
                start += end - begin
        return out

    # --- inside --------------------------------------------------------------------------

    def _shared(
        self, window: Windowed, size: int, reader: int, owner: int
    ) -> tuple[tuple[int, int, int], ...]:
        return _shared(window, size, self.n, reader, owner)

    def _owned(self, size: int, first: int, last: int) -> list[tuple[int, int]]:
        """For each rank its planes among `[first, last)`; an empty range lies within its share."""
        shares = (real_range(size, self.n, k) for k in range(self.n))
        return [
            (a, max(a, b))
            for a, b in ((max(lo, min(first, hi)), min(hi, last)) for lo, hi in shares)
        ]

    def _in_pieces(
        self, x: Array, axis: int | None, share: int, journey: Callable[[Array], Journey]
    ) -> Array:
        """A sum over ranks, piece by piece of an axis other than `axis`, of which this rank gets
        `share` planes: beside `x` and the result only pieces are held."""
        if self.n == 1:
            return x
        others = [a for a in range(-x.ndim, 0) if a != axis]
        along = max(others, key=lambda a: int(x.shape[a]), default=None)
        count = 0 if along is None else min(_PIECES, x.shape[along], x.nbytes // _LEAST)
        if along is None or count < 2:
            return landed(journey(x))
        shape = list(x.shape)
        if axis is not None:
            shape[axis] = share
        out = x.new_empty(shape)
        step = -(-x.shape[along] // count)
        starts = range(0, x.shape[along], step)
        ends = [min(k + step, x.shape[along]) for k in starts]

        def place(i: int, made: Array) -> None:
            _narrow(out, along, starts[i], ends[i]).copy_(made)

        streamed(
            (journey(_narrow(x, along, a, b)) for a, b in zip(starts, ends, strict=True)), place
        )
        return out

    def _gathered(self, rows: Array) -> Journey:
        out = rows.new_empty((self.n * rows.shape[0], *rows.shape[1:]))
        if out.numel():
            yield agreement.posted(agreement.gather_rows, _wire(out), _wire(rows), self.group)
        return out

    def _exchanged(self, rows: Array) -> Journey:
        """Part k of the rows goes to rank k; the parts that came, stacked by their senders."""
        out = rows.new_empty(rows.shape)
        if out.numel():
            exchange = _dist().all_to_all_single
            yield agreement.posted(exchange, _wire(out), _wire(rows), group=self.group)
        return out.reshape(self.n, rows.shape[0] // self.n, *rows.shape[1:])

    def _dealt(self, x: Array, sends: list[int], receives: list[int]) -> Journey:
        """Entries of one axis, so many to and from each rank."""
        out = x.new_empty(sum(receives))
        ends = _wire(out), _wire(x), receives, sends
        yield agreement.posted(_dist().all_to_all_single, *ends, group=self.group)
        return out

    def _messages(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        dist = _dist()
        # One message for each ordered pair, told apart by its sender.
        posted = [
            dist.P2POp(operation, _wire(tensor), self.members[k], self.group, tag)
            for operation, table, tag_of in (
                (dist.isend, sends, lambda _: self.i),
                (dist.irecv, receives, lambda k: k),
            )
            for k, tensor in table.items()
            if tensor.numel()
            for tag in (tag_of(k),)
        ]
        with agreement.waiting():
            for work in dist.batch_isend_irecv(posted) if posted else ():
                work.wait()


@functools.lru_cache(maxsize=4096)
def _shared(
    window: Windowed, size: int, n: int, reader: int, owner: int
) -> tuple[tuple[int, int, int], ...]:
    """What a reader's window takes from an owner's share: `(begin, end, at)`, planes of the window
    and the plane of the share where they begin."""
    lo, hi = window.planes(reader, size)
    first, last = real_range(size, n, owner)
    shifts = [0]
    if window.periodic and size and hi > lo:
        shifts = [-k * size for k in range(lo // size, (hi - 1) // size + 1)]
    found = []
    for shift in shifts:
        begin, end = max(lo, first - shift), min(hi, last - shift)
        if begin < end:
            found.append((begin - lo, end - lo, begin + shift - first))
    return tuple(found)


def _ordered_sum(parts: Array) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _rows(x: Array, axis: int, count: int) -> Array:
    """`x` with an axis in front, padded by zeros to `count`, in one piece of memory."""
    return _padded(x.movedim(axis, 0), -x.ndim, count).contiguous()


def _padded(x: Array, axis: int, count: int) -> Array:
    missing = count - x.shape[axis]
    if not missing:
        return x
    return _torch().cat([x, _like(x, axis, missing)], dim=axis)


def _like(x: Array, axis: int, count: int) -> Array:
    shape = list(x.shape)
    shape[axis] = count
    return x.new_zeros(shape)


def _narrow(x: Array, axis: int, begin: int, end: int) -> Array:
    return x.narrow(x.ndim + axis, begin, end - begin)


def _wire(x: Array) -> Array:
    """What goes over the wire: gloo has no complex numbers."""
    x = x.resolve_conj() if x.is_conj() else x
    return _torch().view_as_real(x) if x.is_complex() else x


def _torch() -> Any:
    import torch

    return torch


def _dist() -> Any:
    import torch.distributed as dist

    return dist
