"""Devices in a row or a rectangle, with a name for each of its axes.

A mesh is static data: it compares by value, pickles its devices by name, and is never ambient.
Which devices there are is in `sharding/devices.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from linops.arguments import describe
from linops.errors import PlacementError
from sharding.devices import portable, returned

__all__ = ["Mesh"]


@dataclass(frozen=True)
class Mesh:
    """Devices on a grid of one or two axes, the last axis fastest.

    Attributes
    ----------
    devices
        All devices, flat.
    shape
        Devices along each axis of the mesh.
    names
        A name for each axis of the mesh, such as `("view", "z")`.

    Raises
    ------
    PlacementError
        For a shape that does not hold the devices, or a device that stands there twice.
    """

    devices: tuple[Any, ...]
    shape: tuple[int, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        for name, what in (("devices", "devices"), ("shape", "numbers"), ("names", "names")):
            value = getattr(self, name)
            if not isinstance(value, (tuple, list)):
                raise PlacementError(
                    f"{name} of a mesh is {describe(value)}; it is a tuple of {what}"
                )
            object.__setattr__(self, name, tuple(value))
        if len(self.shape) not in (1, 2) or len(self.names) != len(self.shape):
            raise PlacementError(
                f"a mesh has one or two axes with a name each, got {self.shape} and {self.names}"
            )
        if math.prod(self.shape) != len(self.devices):
            raise PlacementError(
                f"a mesh of shape {self.shape} has {math.prod(self.shape)} devices, got "
                f"{len(self.devices)}"
            )
        if len(set(self.devices)) != len(self.devices):
            raise PlacementError(f"a device stands twice in {list(self.devices)}; name each once")

    @classmethod
    def row(cls, devices: tuple[Any, ...], name: str = "devices") -> Mesh:
        """A mesh of one axis."""
        return cls(tuple(devices), (len(devices),), (name,))

    @classmethod
    def like(cls, mesh: Any) -> Mesh:
        """The mesh of the devices and names of a `jax.sharding.Mesh`."""
        return cls(tuple(mesh.devices.flat), mesh.devices.shape, tuple(mesh.axis_names))

    @property
    def size(self) -> int:
        """The number of devices."""
        return len(self.devices)

    @cached_property
    def coordinates(self) -> tuple[tuple[int, ...], ...]:
        """The place of each device on the mesh, in the order of `devices`."""
        return tuple(product(*(range(n) for n in self.shape)))

    @property
    def by_batch(self) -> bool:
        """Whether its devices share the leading axis of arrays: nothing else is cut then."""
        return self.names == ("batch",)

    def deals(self, batch: tuple[int, ...]) -> bool:
        """Whether arrays with these batch axes in front lie in equal shares of the first one; where
        it does not divide, every device has all of it."""
        return self.by_batch and bool(batch) and batch[0] > 0 and batch[0] % self.size == 0

    def groups(self, axis: int) -> Iterator[tuple[int, ...]]:
        """The devices that differ in one coordinate only, in its order, by number."""
        yield from groups(self.shape, axis)

    def __reduce__(self) -> Any:
        return _unpickled, (tuple(map(portable, self.devices)), self.shape, self.names)


def _unpickled(devices: tuple[Any, ...], shape: tuple[int, ...], names: tuple[str, ...]) -> Mesh:
    return Mesh(tuple(map(returned, devices)), shape, names)


def groups(shape: tuple[int, ...], axis: int) -> Iterator[tuple[int, ...]]:
    """For each line of a mesh along one axis the numbers of its devices, in order."""
    strides = [math.prod(shape[m + 1 :]) for m in range(len(shape))]
    others = [range(n) if m != axis else range(1) for m, n in enumerate(shape)]
    for corner in product(*others):
        base = sum(c * s for c, s in zip(corner, strides, strict=True))
        yield tuple(base + i * strides[axis] for i in range(shape[axis]))
