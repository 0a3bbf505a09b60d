"""Arrays that all workers of this process see: they stay whole, of the real shape, where they are.

A share is a view; there is no padding, so nothing has to be kept inert.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from linops import arrays, reproducible
from linops.reductions import dot

if TYPE_CHECKING:
    from sharding.array_backends import Term
    from sharding.placement import Placement

__all__ = ["BACKEND", "SharedMemory"]


class SharedMemory:
    """Worker threads."""

    apart = False

    def __init__(self) -> None:
        # What `own` has handed out, by identity: nothing else says of an array that it was put.
        self._handed: WeakValueDictionary[int, Any] = WeakValueDictionary()

    def put(self, placement: Placement, x: Any) -> Any:
        """`x` itself."""
        return x

    def own(self, placement: Placement, x: Any, placed: Any) -> Any:
        """`placed` in memory of its own: the caller may go on writing into his array. What was
        handed out before comes back as it is."""
        if self._handed.get(id(placed)) is placed:
            return placed
        copy = arrays.copy(placed)
        self._handed[id(copy)] = copy
        return copy

    def gather(self, placement: Placement, x: Any) -> Any:
        """`x` itself."""
        placement.check(x)
        return x

    def holds(self, placement: Placement, x: Any) -> bool:
        """Whether the cut axes have their real sizes."""
        if not arrays.is_array(x):
            return False
        for axis, size in zip(placement.axes, placement.real_sizes, strict=True):
            if axis is not None and size is not None:
                position = placement.position(axis, x.ndim)
                if not 0 <= position < x.ndim or x.shape[position] != size:
                    return False
        return True

    def full(
        self, placement: Placement, shape: tuple[int, ...], dtype: Any, value: Any, like: Any
    ) -> Any:
        """An array of the real shape."""
        made = arrays.zeros(shape, dtype, arrays.exemplar(like))
        return made if isinstance(value, (int, float)) and value == 0 else made + value

    def mask(self, placement: Placement, ndim: int) -> Any:
        """All true: there is no padding."""
        return np.ones((1,) * ndim, bool)

    def sharding(self, placement: Placement, ndim: int) -> None:
        """None."""

    def dots(self, terms: Sequence[Term], host: bool, ordered: bool) -> list[Any]:
        """The inner products of whole arrays."""
        found = reproducible.dot if ordered else dot
        return [found(a, b, ndim, host) for _, a, b, ndim in terms]


BACKEND = SharedMemory()
