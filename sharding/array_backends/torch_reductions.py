"""Inner products of DTensors: sums of all ranks in the order of ranks, copies counted once.

Numbers without batch axes and without a graph travel with the agreement of the ranks, several in
one exchange. Reproducible ones (deterministic plans) have the bits of `linops.reproducible`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from linops import arrays, reproducible
from linops.reductions import dot
from linops.transforms.torch_function import apply_pair, recording
from sharding import agreement
from sharding.array_backends import Term
from sharding.array_backends.torch_ranks import opened
from sharding.placement import Placement
from sharding.ranks import Ranks, ranks_of

__all__ = ["dots"]

_TOGETHER = agreement.WORDS // 2


def dots(terms: Sequence[Term], host: bool, ordered: bool) -> list[Any]:
    """The inner products of placed operands `(placement, a, b, axes)`.

    Parameters
    ----------
    terms
        All on one mesh.
    host
        Whether numbers without batch axes are Python numbers; else 0-d tensors, the same on every
        rank.
    ordered
        Whether results are to be the same bits on any number of ranks. Where a derivative is
        recorded they are sums in the order of ranks all the same.
    """
    free = [k for k, term in enumerate(terms) if not any(map(recording, term[1:3]))]
    # A batch of numbers has a size of its own: it goes by itself.
    single = [k for k in free if not ordered and terms[k][1].ndim == terms[k][3]]
    found: list[Any] = [None] * len(terms)
    for start in range(0, len(single), _TOGETHER):
        group = single[start : start + _TOGETHER]
        for k, value in zip(group, _travelled([terms[k] for k in group]), strict=True):
            found[k] = value
    for k, (placement, a, b, ndim) in enumerate(terms):
        if k in single:
            continue
        ranks = _ranks(placement)
        agreement.agree_or_raise(_text(terms[k]))
        if k not in free:
            left, right = (opened(placement, ranks, part) for part in (a, b))
            found[k] = _scalar(ranks, _sum_up(placement, ranks, dot(left, right, ndim, False)))
        elif ordered:
            found[k] = _reproducible(placement, ranks, a, b, ndim)
        else:
            found[k] = _sum_up(placement, ranks, dot(a.to_local(), b.to_local(), ndim, False))
    return [_given(value, term[1], host) for value, term in zip(found, terms, strict=True)]


def _travelled(terms: Sequence[Term]) -> list[Any]:
    """Numbers, one a rank and term, sent as two words each with the agreement."""
    values = [dot(a.to_local(), b.to_local(), ndim, True) for _, a, b, ndim in terms]
    pairs = np.asarray([(v.real, v.imag) for v in values], np.float64).view(np.int64)
    words = agreement.agree_or_raise(
        "; ".join(map(_text, terms)), None, tuple(int(word) for word in pairs.ravel())
    )
    rows = [np.asarray(row, np.int64).view(np.float64).reshape(-1, 2) for row in words]
    found: list[Any] = []
    for k, (value, (placement, *_)) in enumerate(zip(values, terms, strict=True)):
        total = np.complex128(0)
        for device, at in zip(placement.devices, _mesh(placement).coordinates, strict=True):
            if any(at[m] for m, axis in enumerate(placement.axes) if axis is None):
                continue  # a copy
            total = total + complex(*rows[device.number][k])
        found.append(complex(total) if isinstance(value, complex) else float(total.real))
    return found


def _reproducible(placement: Placement, ranks: Ranks, a: Any, b: Any, ndim: int) -> Any:
    """One inner product in bits that no cut changes; one value for each member of a batch."""
    terms = reproducible.products(a.to_local(), b.to_local(), ndim)
    peak = _everywhere(ranks, reproducible.largest(terms)).amax(dim=0)
    count = math.prod(a.shape[a.ndim - ndim :])
    sums = _sum_up(placement, ranks, reproducible.slices(terms, peak, count))
    return reproducible.total(sums, peak)


def _everywhere(ranks: Ranks, x: Any) -> Any:
    """What every rank has, along a new leading axis."""
    import torch.distributed as dist

    out = x.new_empty((ranks.mesh.size * x.numel(),))
    if out.numel():
        agreement.gather_rows(out, x.contiguous().reshape(-1), dist.group.WORLD)
    return out.reshape(ranks.mesh.size, *x.shape)


def _given(value: Any, like: Any, host: bool) -> Any:
    if not arrays.is_array(value):
        return value if host else arrays.convert(np.asarray(value), like.to_local())
    if host and not value.ndim and not recording(value) and not arrays.is_distributed(value):
        return value.item()
    return value


def _sum_up(placement: Placement, ranks: Ranks, value: Any) -> Any:
    for line, axis in zip(ranks.lines, placement.axes, strict=True):
        if axis is not None:
            value = (
                apply_pair(value, line.all_reduce, line.all_reduce)
                if recording(value)
                else line.all_reduce(value)
            )
    return value


def _scalar(ranks: Ranks, value: Any) -> Any:
    """A number that all ranks have, as a DTensor with derivatives."""
    from torch.distributed.tensor import DTensor, Replicate

    whole = (Replicate(),) * len(ranks.lines)

    def wrap(value: Any) -> Any:
        return DTensor.from_local(value, ranks.device_mesh, whole, run_check=False)

    def keep(g: Any) -> Any:
        if arrays.is_distributed(g):
            g = g.redistribute(placements=whole).to_local()
        return g if not any(ranks.at) else g.new_zeros(g.shape)

    return apply_pair(value, wrap, keep)


def _text(term: Term) -> str:
    placement, a, b, _ = term
    return f"inner product {tuple(a.shape)} {a.dtype} {b.dtype} on {placement}"


def _ranks(placement: Placement) -> Ranks:
    return ranks_of(_mesh(placement))


def _mesh(placement: Placement) -> Any:
    assert placement.mesh is not None
    return placement.mesh
