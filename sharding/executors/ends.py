"""What goes into a compiled program and comes out of it: global arrays of the padded shape."""

from __future__ import annotations

from typing import Any

from linops.arrays import Array
from linops.errors import PlacementError
from linops.space import Space
from sharding.array_backends.jax_devices import named_sharding
from sharding.mesh import Mesh
from sharding.states import Partial, Sharded, Windowed
from sharding.steps import Value

__all__ = ["End"]


class End:
    """A value as the caller sees it: a global array of the padded shape."""

    def __init__(self, mesh: Mesh, value: Value) -> None:
        self.mesh, self.value = mesh, value
        for state in value.states:
            if isinstance(state, (Partial, Windowed)):
                raise PlacementError(f"a program ends in {state}; only shares and copies leave it")
        self.cut = tuple(s.axis if isinstance(s, Sharded) else None for s in value.states)

    def global_shape(self) -> tuple[int, ...]:
        """The padded shape, without batch axes."""
        shape = list(self.value.local_shape(self.mesh.shape))
        for m, axis in enumerate(self.cut):
            if axis is not None:
                shape[axis] *= self.mesh.shape[m]
        return tuple(shape)

    def space(self) -> Space:
        """The space of such arrays."""
        return Space(self.global_shape(), self.value.space.dtype)

    def batch(self, x: Array) -> tuple[int, ...]:
        """The batch axes of an array of it."""
        return tuple(x.shape)[: x.ndim - self.value.space.ndim]

    def sharding(self, batch: tuple[int, ...]) -> Any:
        """The `NamedSharding` with these batch axes in front."""
        ndim = len(batch) + self.value.space.ndim
        if self.mesh.deals(batch):
            return named_sharding(self.mesh, (0,), ndim)
        cut = tuple(None if axis is None else len(batch) + axis for axis in self.cut)
        return named_sharding(self.mesh, cut, ndim)
