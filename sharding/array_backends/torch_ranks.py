"""Arrays on the ranks of a process group: DTensors of the real shape, cut as `distribute_tensor`.

Every rank passes the same plain array and keeps its share, so putting moves nothing; a DTensor in
another state is redistributed. Under autograd both directions carry derivatives of global arrays:
copies count once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from linops import arrays
from linops.errors import PlacementError
from linops.transforms.torch_function import apply_pair, recording
from sharding import agreement
from sharding.devices import device_of
from sharding.rank_movements import move
from sharding.ranks import Ranks, ranks_of
from sharding.states import PARTIAL, REPLICATED, Sharded, State

if TYPE_CHECKING:
    from sharding.array_backends import Term
    from sharding.placement import Placement

__all__ = ["BACKEND", "RankMemory", "opened", "wrapped"]


class RankMemory:
    """Ranks."""

    apart = True

    def put(self, placement: Placement, x: Any) -> Any:
        """A DTensor with this rank's share of `x`, or `x` redistributed."""
        ranks = ranks_of(_mesh(placement))
        if arrays.is_distributed(x):
            try:
                return _redistributed(placement, ranks, x)
            except PlacementError as error:
                agreement.refuse(error)
                raise
        agreement.agree_or_raise(f"put {tuple(x.shape)} {x.dtype} on {placement}")
        if recording(x):
            refuse_transform(x)
            return apply_pair(
                x, lambda x: _cut(placement, ranks, x), lambda g: _joined(placement, ranks, g)
            )
        return _cut(placement, ranks, x)

    def gather(self, placement: Placement, x: Any) -> Any:
        """The whole array, on every rank; a plain one as it is."""
        if not arrays.is_distributed(x):
            placement.check(x)
            return x
        ranks = ranks_of(_mesh(placement))
        if recording(x):
            return apply_pair(
                x, lambda x: _joined(placement, ranks, x), lambda g: _cut(placement, ranks, g)
            )
        return _joined(placement, ranks, x)

    def holds(self, placement: Placement, x: Any) -> bool:
        """Whether `x` is a DTensor of the real shape on this mesh in this state."""
        if not arrays.is_distributed(x) or x.ndim < (placement.ndim or 0):
            return False
        if placement.real_shape(tuple(x.shape)) != tuple(x.shape):
            return False
        same = x.device_mesh == ranks_of(_mesh(placement)).device_mesh
        return bool(same and tuple(x.placements) == self.sharding(placement, x.ndim))

    def full(
        self, placement: Placement, shape: tuple[int, ...], dtype: Any, value: Any, like: Any
    ) -> Any:
        """A DTensor made from this rank's share alone."""
        import torch

        ranks = ranks_of(_mesh(placement))
        local = torch.full(
            _local_shape(placement, ranks, shape),
            value,
            dtype=getattr(torch, np.dtype(dtype).name),
            device=device_of(placement.devices[0].kind),
        )
        return wrapped(placement, ranks, local, shape)

    def mask(self, placement: Placement, ndim: int) -> Any:
        """All true: a DTensor has no padding."""
        shape = (1,) * ndim
        ranks = ranks_of(_mesh(placement))
        import torch
        from torch.distributed.tensor import DTensor, Replicate

        local = torch.ones(shape, dtype=torch.bool, device=device_of(placement.devices[0].kind))
        whole = (Replicate(),) * len(ranks.lines)
        return DTensor.from_local(local, ranks.device_mesh, whole, run_check=False)

    def sharding(self, placement: Placement, ndim: int) -> tuple[Any, ...]:
        """DTensor placements, one a mesh axis."""
        from torch.distributed.tensor import Replicate, Shard

        cut = [axis for axis in placement.axes if axis is not None]
        if len(set(cut)) < len(cut):
            raise PlacementError(
                f"axis {cut[0]} is cut along both mesh axes; DTensors cut it otherwise than equal "
                "shares: use a mesh of one axis"
            )
        return tuple(
            Replicate() if axis is None else Shard(placement.position(axis, ndim))
            for axis in placement.axes
        )

    def dots(self, terms: Sequence[Term], host: bool, ordered: bool) -> list[Any]:
        """Several inner products, by one exchange where they can."""
        from sharding.array_backends.torch_reductions import dots

        return dots([(p, p.adopt(a), p.adopt(b), ndim) for p, a, b, ndim in terms], host, ordered)

    def forbid(self, placement: Placement, x: Any) -> None:
        """Raise for a DTensor within `torch.func`."""
        import torch

        functorch = torch._C._functorch
        inner = x
        while arrays.is_torch(inner) and functorch.is_functorch_wrapped_tensor(inner):
            inner = functorch.get_unwrapped(inner)
        if inner is not x and arrays.is_distributed(inner):
            refuse_transform(x)

    def refuse(self, error: Exception) -> None:
        """Tell the other ranks that this one raises."""
        agreement.refuse(error)


def opened(placement: Placement, ranks: Ranks, x: Any) -> Any:
    """This rank's tensor of a placed DTensor, with derivatives: copies of a cotangent add up."""
    if not recording(x):
        return x.to_local()
    shape = tuple(x.shape)

    def close(g: Any) -> Any:
        return wrapped(placement, ranks, over_copies(placement, ranks, g), shape)

    return apply_pair(x, lambda x: x.to_local(), close)


def wrapped(placement: Placement, ranks: Ranks, local: Any, shape: tuple[int, ...]) -> Any:
    """The DTensor of a real shape of which this rank has `local`; no derivatives."""
    return _dtensor(ranks, local, BACKEND.sharding(placement, len(shape)), shape)


def _dtensor(ranks: Ranks, local: Any, placements: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    from torch.distributed.tensor import DTensor

    strides = [math.prod(shape[a + 1 :]) for a in range(len(shape))]
    return DTensor.from_local(
        local,
        ranks.device_mesh,
        placements,
        run_check=False,
        shape=_size(shape),
        stride=tuple(strides),
    )


def over_copies(placement: Placement, ranks: Ranks, x: Any) -> Any:
    """The sum over the mesh axes along which every rank has a copy."""
    for line, axis in zip(ranks.lines, placement.axes, strict=True):
        if axis is None:
            x = line.all_reduce(x)
    return x


def refuse_transform(x: Any) -> None:
    """Raise where `torch.func` maps over or differentiates `x`."""
    import torch

    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        raise PlacementError(
            "torch.func does not see through DTensors: apply B.local, the same operator on this "
            "rank's parts, inside torch.func"
        )


def _mesh(placement: Placement) -> Any:
    assert placement.mesh is not None
    return placement.mesh


def _cut(placement: Placement, ranks: Ranks, x: Any) -> Any:
    if arrays.is_distributed(x):
        return _redistributed(placement, ranks, x)
    import torch

    shape = tuple(x.shape)
    held = x if arrays.is_torch(x) else torch.from_numpy(np.array(arrays.to_numpy(x)))
    device = device_of(placement.devices[0].kind)
    for axis, (lo, hi) in placement.ranges(ranks.position).items():
        held = held.narrow(placement.position(axis, len(shape)), lo, hi - lo)
    # Its own memory: the caller may go on writing into his array.
    held = held.detach().to(device, copy=True, memory_format=torch.contiguous_format)
    return wrapped(placement, ranks, held, shape)


def _joined(placement: Placement, ranks: Ranks, x: Any) -> Any:
    if not arrays.is_distributed(x):
        return x
    local = _redistributed(placement, ranks, x).to_local()
    ndim = x.ndim
    for line, axis in zip(ranks.lines, placement.axes, strict=True):
        if axis is not None:
            position = placement.position(axis, ndim) - ndim
            local = line.all_gather(local, position, int(x.shape[position]))
    return local.contiguous()


def _redistributed(placement: Placement, ranks: Ranks, x: Any) -> Any:
    from torch.distributed.tensor import DTensor, Replicate

    mesh, wanted = x.device_mesh, BACKEND.sharding(placement, x.ndim)
    if mesh != ranks.device_mesh:
        theirs, ours = mesh.mesh, ranks.device_mesh.mesh
        if tuple(theirs.shape) != tuple(ours.shape) or not bool((theirs == ours).all()):
            raise PlacementError(
                f"this DTensor lives on the mesh {theirs.tolist()}, the plan on {ours.tolist()}: "
                "gather it with full_tensor() first"
            )
        x = DTensor.from_local(
            x.to_local(), ranks.device_mesh, x.placements, run_check=False, shape=x.shape,
            stride=x.stride(),
        )  # fmt: skip
    if tuple(x.placements) == wanted:
        return x
    if not recording(x):
        return _moved(ranks, x, wanted)
    # A cotangent of summands is one of their sum: every rank has it whole.
    source = tuple(Replicate() if p.is_partial() else p for p in x.placements)
    return apply_pair(x, lambda x: _moved(ranks, x, wanted), lambda g: _moved(ranks, g, source))


def _moved(ranks: Ranks, x: Any, wanted: tuple[Any, ...]) -> Any:
    """A DTensor in other placements, by the movements of programs: sums are in the order of ranks,
    and from one axis to another nobody gets more than his share.

    What these do not know, such as an axis cut along both mesh axes, is left to DTensor.
    """
    found, states = [_state(p) for p in x.placements], [_state(p) for p in wanted]
    local, shape = x.to_local(), tuple(x.shape)
    for m, line in enumerate(ranks.lines):
        source, target = found[m], states[m]
        others = {s.axis for s in (*found[:m], *found[m + 1 :]) if isinstance(s, Sharded)}
        ends = {s.axis for s in (source, target) if isinstance(s, Sharded)}
        if source is None or target is None or ends & others:
            return x.redistribute(placements=wanted)
        if source != target:
            local = move(line, shape, len(shape), source, target, local)
        found[m] = target
    if arrays.may_share_memory(local, x.to_local()):
        local = local.clone()  # the caller may go on writing into his array
    return _dtensor(ranks, local, wanted, shape)


def _state(placement: Any) -> State | None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    if type(placement) is Shard:
        return Sharded(placement.dim)
    if type(placement) is Partial and placement.reduce_op == "sum":
        return PARTIAL
    return REPLICATED if type(placement) is Replicate else None


def _local_shape(placement: Placement, ranks: Ranks, shape: tuple[int, ...]) -> tuple[int, ...]:
    local = list(shape)
    for axis, (lo, hi) in placement.ranges(ranks.position).items():
        local[placement.position(axis, len(shape))] = hi - lo
    return tuple(local)


def _size(shape: tuple[int, ...]) -> Any:
    import torch

    return torch.Size(shape)


BACKEND = RankMemory()
