"""Placed arrays read share by share: an export never holds more than one of them in one place."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from linops import arrays
from linops.arrays import Array

if TYPE_CHECKING:
    from sharding.placement import Placement

__all__ = ["shares"]

Place = tuple[slice, ...]


def shares(placement: Placement, x: Array) -> Iterator[tuple[Place, np.ndarray]]:
    """The real part of each share, and where it stands in the whole; of copies the first."""
    if not placement.holds(x):
        placement.check(x)
    real = placement.real_shape(tuple(x.shape))
    if arrays.is_distributed(x) and arrays.is_torch(x):
        found = _of_rank(placement, x)
    elif arrays.is_jax(x):
        found = ((s.index, s.data) for s in x.addressable_shards if s.replica_id == 0)
    else:
        found = ((place, x[place]) for place in _places(placement, real))
    for index, part in found:
        ranges = [cut.indices(n) for cut, n in zip(index, real, strict=True)]
        place = tuple(slice(lo, max(lo, hi)) for lo, hi, _ in ranges)
        sizes = tuple(cut.stop - cut.start for cut in place)
        if 0 not in sizes:
            yield place, arrays.to_numpy(part)[tuple(map(slice, sizes))]


def _of_rank(placement: Placement, x: Any) -> Iterator[tuple[Place, Any]]:
    # Ranks stand above placements, which know devices by their back ends alone.
    ranks = import_module("sharding.ranks").ranks_of(placement.mesh)
    if not any(at for at, axis in zip(ranks.at, placement.axes, strict=True) if axis is None):
        yield _place(placement, tuple(x.shape), ranks.position), x.detach().to_local()


def _places(placement: Placement, shape: tuple[int, ...]) -> Iterator[Place]:
    places = (_place(placement, shape, number) for number in range(len(placement.devices)))
    unique = {tuple((cut.start, cut.stop) for cut in place): place for place in places}
    yield from unique.values()


def _place(placement: Placement, shape: tuple[int, ...], number: int) -> Place:
    place = [slice(0, n) for n in shape]
    for axis, (lo, hi) in placement.ranges(number).items():
        place[placement.position(axis, len(shape))] = slice(lo, hi)
    return tuple(place)
