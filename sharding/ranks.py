"""Ranks of a process group of torch: the mesh that they form, and what they send each other.

Tensors here are plain ones of a rank, without a graph. Sums are taken in the order of the ranks, so
that two runs give equal bits. Derivatives of these movements are made in
`sharding/executors/torch_machine.py`; who agrees on what is in `sharding/agreement.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from linops.arrays import Array
from linops.errors import PlacementError
from sharding import agreement, signature
from sharding.devices import host_memory, world
from sharding.mesh import Mesh, groups
from sharding.states import Windowed, real_range, share_of

if TYPE_CHECKING:
    from sharding.plans import Plan

__all__ = ["Line", "Ranks", "device_of", "planned_together", "ranks_of"]


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
    words = agreement.settle(f"plan with {options}", None, (int(free or -1),))
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
            Line(
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


class Line:
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
        if self.n == 1:
            return x
        rows = _rows(x, axis, share_of(size, self.n))
        return self._gathered(rows)[:size].movedim(0, axis)

    def reduce_scatter(self, x: Array, axis: int, size: int) -> Array:
        """This rank's share of the sum over all ranks."""
        if self.n == 1:
            return x
        rows = _rows(x, axis, self.n * share_of(size, self.n))
        total = _ordered_sum(self._exchanged(rows))
        lo, hi = real_range(size, self.n, self.i)
        return total[: hi - lo].movedim(0, axis)

    def all_reduce(self, x: Array) -> Array:
        """The sum over all ranks, everywhere."""
        if self.n == 1:
            return x
        flat = x.reshape(-1)
        count = flat.numel()
        if count <= self.n:
            gathered = self._gathered(flat.contiguous())
            return _ordered_sum(gathered.reshape(self.n, count)).reshape(x.shape)
        # Everybody adds up a piece, and hands it round.
        pieces = [hi - lo for lo, hi in (real_range(count, self.n, k) for k in range(self.n))]
        mine = [pieces[self.i]] * self.n
        got = self._dealt(flat.contiguous(), pieces, mine).reshape(self.n, pieces[self.i])
        total = _ordered_sum(got)
        return self._dealt(total.repeat(self.n), mine, pieces).reshape(x.shape)

    def all_to_all(self, x: Array, source: tuple[int, int], target: tuple[int, int]) -> Array:
        """From shares of one axis to shares of another; both as (axis, planes)."""
        if self.n == 1:
            return x
        (a, size_a), (b, size_b) = source, target
        wide = _padded(x, a, share_of(size_a, self.n))
        got = self._exchanged(_rows(wide, b, self.n * share_of(size_b, self.n)))
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

    def _gathered(self, rows: Array) -> Array:
        out = rows.new_empty((self.n * rows.shape[0], *rows.shape[1:]))
        if out.numel():
            agreement.gather_rows(_wire(out), _wire(rows), self.group)
        return out

    def _exchanged(self, rows: Array) -> Array:
        """Part k of the rows goes to rank k; the parts that came, stacked by their senders."""
        out = rows.new_empty(rows.shape)
        if out.numel():
            _dist().all_to_all_single(_wire(out), _wire(rows), group=self.group)
        return out.reshape(self.n, rows.shape[0] // self.n, *rows.shape[1:])

    def _dealt(self, x: Array, sends: list[int], receives: list[int]) -> Array:
        """Entries of one axis, so many to and from each rank."""
        out = x.new_empty(sum(receives))
        _dist().all_to_all_single(_wire(out), _wire(x), receives, sends, group=self.group)
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


def device_of(kind: str) -> Any:
    """The torch device of this rank."""
    torch = _torch()
    return torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else kind


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
