"""`Placement`: the only word on where an array lives.

It names devices, the axis that is cut, and its real and padded size; it puts arrays there, takes
them back, and makes zeros and masks in place. What putting means for worker threads, JAX devices
and ranks is in `sharding/array_backends/`; nobody else moves an array to a device.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from linops import arrays
from linops.arguments import describe
from linops.arrays import Array
from linops.errors import PlacementError
from sharding.array_backends import ArrayBackend, backend_of, forbid, refuse, taken
from sharding.mesh import Mesh

__all__ = ["Placement"]


@dataclass(frozen=True)
class Placement:
    """Where an array lives: equal shares of one axis, or of two, on a mesh of devices.

    Parameters
    ----------
    devices
        The devices, in order.
    axis
        The array axis that is cut, counted from the first axis of the element (batch axes stand
        before it); None where every device holds a copy. On a mesh of two axes a pair, one entry
        a mesh axis.
    real_size
        Entries of that axis; a pair as `axis` is.
    padded_size
        Entries with padding, a multiple of the number of devices along the mesh axis; by default
        the smallest.
    mesh
        The devices on their grid, a `Mesh` or one of JAX; by default a row.
    ndim
        Axes of an element without batch axes; None where arrays come without batch axes.

    Raises
    ------
    PlacementError
        For entries that contradict each other.

    Examples
    --------
    >>> p = Placement(("a", "b", "c"), 0, 7)
    >>> p.padded_size, [p.real_range(i) for i in range(3)]
    (9, [(0, 3), (3, 6), (6, 7)])
    """

    devices: tuple[Any, ...]
    axis: int | tuple[int | None, ...] | None
    real_size: int | tuple[int | None, ...] | None = None
    padded_size: int | tuple[int | None, ...] | None = None
    mesh: Mesh | None = None
    ndim: int | None = field(default=None)

    def __post_init__(self) -> None:
        if isinstance(self.devices, str) or not isinstance(self.devices, Iterable):
            raise PlacementError(
                f"devices of a placement is {describe(self.devices)}; it is a tuple of devices"
            )
        object.__setattr__(self, "devices", tuple(self.devices))
        if not self.devices:
            raise PlacementError("a placement has one or more devices, got none")
        for name in ("axis", "real_size", "padded_size"):
            object.__setattr__(self, name, _whole(getattr(self, name), name))
        if self.mesh is None:
            object.__setattr__(self, "mesh", Mesh.row(self.devices))
        elif not isinstance(self.mesh, Mesh):
            object.__setattr__(self, "mesh", Mesh.like(self.mesh))
        assert self.mesh is not None
        if self.mesh.devices != self.devices:
            raise PlacementError(
                f"the mesh holds {list(self.mesh.devices)}, the placement {list(self.devices)}"
            )
        axes, real, padded = (
            self._entries(value, name)
            for value, name in (
                (self.axis, "axis"),
                (self.real_size, "real_size"),
                (self.padded_size, "padded_size"),
            )
        )
        sizes: list[int | None] = []
        for m, (axis, size, wide) in enumerate(zip(axes, real, padded, strict=True)):
            n = self._parts(axes, m)
            if axis is None:
                sizes.append(None)
                continue
            if axis < 0 or (self.ndim is not None and axis >= self.ndim):
                raise PlacementError(
                    f"axis {axis} is no axis of an element; count from 0, its first axis"
                    + ("" if self.ndim is None else f", to {self.ndim - 1}")
                )
            if size is None or size < 0:
                raise PlacementError(f"axis {axis} is cut: its real_size is a count, got {size!r}")
            least = math.ceil(size / n) * n
            total = least if wide is None else wide
            sizes.append(total)
            if total < size or total % n:
                raise PlacementError(
                    f"padded_size {total} of axis {axis} is no multiple of {n} devices that "
                    f"holds {size} planes; the smallest is {least}"
                )
        object.__setattr__(self, "padded_size", sizes[0] if self._flat else tuple(sizes))

    # --- what it says --------------------------------------------------------------------

    @property
    def axes(self) -> tuple[int | None, ...]:
        """The array axis that each mesh axis cuts."""
        return self._entries(self.axis, "axis")

    @property
    def real_sizes(self) -> tuple[int | None, ...]:
        """`real_size`, one entry a mesh axis."""
        return self._entries(self.real_size, "real_size")

    @property
    def padded_sizes(self) -> tuple[int | None, ...]:
        """`padded_size`, one entry a mesh axis."""
        return self._entries(self.padded_size, "padded_size")

    @property
    def share(self) -> Any:
        """Planes of one share, padding included; a pair on a mesh of two axes."""
        shares = tuple(
            None if size is None else size // self._parts(self.axes, m)
            for m, size in enumerate(self.padded_sizes)
        )
        return shares[0] if self._flat else shares

    @property
    def replicas(self) -> int:
        """Copies of each element over the devices."""
        assert self.mesh is not None
        return math.prod(
            n for n, axis in zip(self.mesh.shape, self.axes, strict=True) if axis is None
        )

    def real_range(self, i: int, mesh_axis: int = 0) -> tuple[int, int]:
        """The planes that share `i` along a mesh axis really holds; it may be empty."""
        begin, end = self.padded_range(i, mesh_axis)
        size = self.real_sizes[mesh_axis]
        assert size is not None
        return min(begin, size), min(end, size)

    def padded_range(self, i: int, mesh_axis: int = 0) -> tuple[int, int]:
        """The planes of share `i` along a mesh axis, padding included."""
        size = self.padded_sizes[mesh_axis]
        if size is None:
            raise PlacementError(f"no axis is cut along mesh axis {mesh_axis}: {self}")
        parts = self._parts(self.axes, mesh_axis)
        if not 0 <= i < parts:
            raise PlacementError(f"there is no share {i}: there are {parts}")
        share = size // parts
        return i * share, (i + 1) * share

    def ranges(self, i: int) -> dict[int, tuple[int, int]]:
        """For device `i` the real planes of each array axis that is cut."""
        return {
            axis: (min(lo, size), min(hi, size))
            for axis, (lo, hi, size) in self._device_ranges(i).items()
        }

    def padded_ranges(self, i: int) -> dict[int, tuple[int, int]]:
        """For device `i` the planes of each array axis that is cut, padding included."""
        return {axis: (lo, hi) for axis, (lo, hi, _) in self._device_ranges(i).items()}

    def padded_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The padded shape of an array of a real shape, batch axes in front."""
        out = list(shape)
        for axis, size in zip(self.axes, self.padded_sizes, strict=True):
            if axis is not None and size is not None:
                out[self.position(axis, len(shape))] = size
        return tuple(out)

    def real_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The real shape of an array of a padded shape."""
        out = list(shape)
        for axis, size in zip(self.axes, self.real_sizes, strict=True):
            if axis is not None and size is not None:
                out[self.position(axis, len(shape))] = size
        return tuple(out)

    def position(self, axis: int, ndim: int) -> int:
        """The number of an element's axis in an array with batch axes."""
        return axis if self.ndim is None else ndim - self.ndim + axis

    # --- what it does --------------------------------------------------------------------

    def put(self, x: Array) -> Array:
        """The array on its devices, in equal shares with a zero tail.

        Parameters
        ----------
        x
            An array of the real shape, of any namespace; batch axes in front. One that was put
            here already is returned as it is; of any other the memory stays the caller's alone,
            who may go on writing into it.

        Raises
        ------
        PlacementError
            Where the axis has another length.
        """
        own = getattr(self.backend, "own", None)
        return self.adopt(x) if own is None else own(self, x, self.adopt(x))

    def adopt(self, x: Array) -> Array:
        """`put` of an array that nobody writes into while it is used: its memory may be shared.

        For operands of one run, and for arrays that their maker gives away.
        """
        if arrays.is_masked(x):
            raise arrays.masked_error("a placement", "array")
        if self.holds(x):
            return taken(self, x)
        try:
            forbid(self, x)
            self.check(x)
        except PlacementError as error:
            refuse(self.backend, error)
            raise
        return self.backend.put(self, x)

    def gather(self, x: Array) -> Array:
        """The array of the real shape, on one device; `gather(put(x))` is x, bit for bit.

        Raises
        ------
        PlacementError
            For an array that lies elsewhere, unless it is plain and of the real shape.
        """
        return self.backend.gather(self, x)

    def shares(self, x: Array) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
        """The shares of `x` one by one, on the host: an export gathers nothing.

        Yields
        ------
        place, part
            Where in an array of the real shape a share stands, and its real part as NumPy. What
            several devices have a copy of comes once; of several processes each yields its own.
        """
        from sharding.export import shares

        return shares(self, x)

    def holds(self, x: Array) -> bool:
        """Whether `x` lives here: a fact of the array, never a guess from its length."""
        return self.backend.holds(self, x)

    def zeros(self, shape: tuple[int, ...], dtype: Any = "float32", like: Any = None) -> Array:
        """Zeros of a real shape, made share by share on the devices."""
        return self.backend.full(self, tuple(shape), np.dtype(dtype), 0, like)

    def full(
        self, value: Any, shape: tuple[int, ...] | None = None, dtype: Any = "float32"
    ) -> Array:
        """`value` in every real entry, zero in the padding.

        Without `shape` the array has the axes up to the cut ones, all others of length 1.
        """
        return self.backend.full(self, self._shape(shape), np.dtype(dtype), value, None)

    def mask(self, ndim: int | None = None) -> Array:
        """Booleans, true at real entries, that broadcast against arrays of `ndim` axes."""
        return self.backend.mask(self, ndim or self._least)

    @property
    def sharding(self) -> Any:
        """The devices' own word for it: a NamedSharding, DTensor placements, or None."""
        return self.backend.sharding(self, self.ndim or self._least)

    @cached_property
    def backend(self) -> ArrayBackend:
        """How this kind of devices takes and gives arrays."""
        return backend_of(self.devices[0])

    def check(self, x: Array) -> None:
        """Raise unless the cut axes of `x` have their real sizes."""
        if not arrays.is_array(x):
            raise PlacementError(f"put takes an array, got {type(x).__name__}")
        for axis, size, wide in zip(self.axes, self.real_sizes, self.padded_sizes, strict=True):
            if axis is None:
                continue
            position = self.position(axis, x.ndim)
            if not 0 <= position < x.ndim or x.shape[position] != size:
                came = x.shape[position] if 0 <= position < x.ndim else "none"
                raise PlacementError(
                    f"axis {axis} has {came} planes, the placement takes {size} real ones "
                    f"(padded to {wide}); pass the array of the real shape, or one that was put "
                    "on this placement"
                )

    def agrees(self, other: Placement) -> bool:
        """Whether arrays lie the same way here and there; names of mesh axes may differ."""
        return bool(self._where == other._where)

    @property
    def _where(self) -> Any:
        assert self.mesh is not None
        parts = enumerate(zip(self.axes, self.padded_sizes, self.mesh.shape, strict=True))
        cuts = tuple((m, axis, size) for m, (axis, size, n) in parts if axis is not None and n > 1)
        return self.devices, self.mesh.shape, cuts

    def __str__(self) -> str:
        cuts = ", ".join(
            "a copy each" if axis is None else f"axis {axis}: {real} in {wide}"
            for axis, real, wide in zip(self.axes, self.real_sizes, self.padded_sizes, strict=True)
        )
        return f"{len(self.devices)} devices ({cuts})"

    # --- inside --------------------------------------------------------------------------

    def __reduce__(self) -> Any:
        parts = self.axis, self.real_size, self.padded_size, self.mesh, self.ndim
        return _unpickled, parts

    @property
    def _flat(self) -> bool:
        return not isinstance(self.axis, tuple)

    @property
    def _least(self) -> int:
        return max((axis + 1 for axis in self.axes if axis is not None), default=1)

    def _shape(self, shape: tuple[int, ...] | None) -> tuple[int, ...]:
        if shape is not None:
            return tuple(shape)
        out = [1] * (self.ndim or self._least)
        for axis, size in zip(self.axes, self.real_sizes, strict=True):
            if axis is not None and size is not None:
                out[axis] = size
        return tuple(out)

    def _entries(self, value: Any, name: str) -> tuple[Any, ...]:
        assert self.mesh is not None
        count = len(self.mesh.shape)
        if not isinstance(value, tuple):
            if count == 1 or value is None:
                return (value,) * count
            raise PlacementError(f"{name} is {value!r}; on a mesh of two axes it is a pair")
        if len(value) != count:
            raise PlacementError(f"{name} is {value!r}; it has one entry for each of {count} axes")
        return value

    def _parts(self, axes: tuple[int | None, ...], m: int) -> int:
        """Shares of the axis that mesh axis `m` cuts: the other mesh axis may cut it too."""
        assert self.mesh is not None
        if axes[m] is None:
            return self.mesh.shape[m]
        return math.prod(n for n, a in zip(self.mesh.shape, axes, strict=True) if a == axes[m])

    def _device_ranges(self, i: int) -> dict[int, tuple[int, int, int]]:
        assert self.mesh is not None
        at = self.mesh.coordinates[i]
        found: dict[int, tuple[int, int, int]] = {}
        for m, axis in enumerate(self.axes):
            if axis is None or axis in found:
                continue
            number = 0
            for k, other in enumerate(self.axes):
                if other == axis:
                    number = number * self.mesh.shape[k] + at[k]
            lo, hi = self.padded_range(number, m)
            size = self.real_sizes[m]
            assert size is not None
            found[axis] = lo, hi, size
        return found


def _unpickled(
    axis: Any, real_size: Any, padded_size: Any, mesh: Mesh, ndim: int | None
) -> Placement:
    return Placement(mesh.devices, axis, real_size, padded_size, mesh, ndim)


def _whole(value: Any, name: str) -> Any:
    """Counts as Python's, so that placements compare by value; a list is a tuple."""
    if isinstance(value, (tuple, list)):
        return tuple(_whole(entry, name) for entry in value)
    try:
        return None if value is None else operator.index(value)
    except TypeError:
        raise PlacementError(f"{name} is {value!r}; it is a whole number or None") from None
