"""What a store is: a shape, a dtype, and blocks that are read and written.

`Store` is the whole of what a user's own class needs. `BlockStore` is the base of the stores of
this library: it checks slices and blocks once for all of them.
"""

from __future__ import annotations

import errno
import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.errors import DTypeError, ShapeError

__all__ = [
    "BlockStore",
    "Extent",
    "Slices",
    "Store",
    "as_store",
    "flush",
    "pieces",
    "require_room",
    "require_writable",
]

Slices = tuple[slice, ...]
"""One slice an axis, `slice(start, stop)` with `0 <= start <= stop <= extent` and no step."""


@runtime_checkable
class Store(Protocol):
    """An array that is read and written in blocks.

    Optional besides: `flush()`, called when all is written; `writable`, where False refuses the
    store as a target.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of all axes."""

    @property
    def dtype(self) -> Any:
        """What `numpy.dtype` takes."""

    def read(self, slices: Slices, /) -> Array:
        """The block, an array of the slices' shape, of any namespace."""

    def write(self, slices: Slices, block: Array, /) -> None:
        """Put a block of the slices' shape there."""


class Extent(NamedTuple):
    """A range of bytes of what `key` identifies: a file, a folder, a data set."""

    key: tuple[Any, ...]
    start: float = 0.0
    stop: float = math.inf


class BlockStore(ABC):
    """Base of the library's stores: slices and blocks are checked here.

    Attributes
    ----------
    shape, dtype
        Of the whole array; the dtype in native byte order.
    writable
        Whether it may be a target.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    writable: bool = True

    def read(self, slices: Slices) -> Array:
        """The block at `slices`, one slice an axis.

        Raises
        ------
        ShapeError
            Where the slices are no block of the array.
        """
        return self._read(self._check_slices(slices))

    def write(self, slices: Slices, block: Array, accumulate: bool = False) -> None:
        """Put `block` at `slices`, or with `accumulate` add it to what is there.

        Raises
        ------
        ShapeError
            Where the block's shape is not that of the slices, which are then left as they were.
        DTypeError
            Where complex values meet a real store, or the store is read-only.
        """
        slices = self._check_slices(slices)
        if not self.writable:
            raise DTypeError(f"{self!r} is read-only; {self._advice()}")
        wanted = tuple(s.stop - s.start for s in slices)
        if tuple(block.shape) != wanted:
            raise ShapeError(f"{self!r} takes a block of shape {wanted}, got {tuple(block.shape)}")
        if arrays.dtype_of(block).kind == "c" and self.dtype.kind != "c":
            raise DTypeError(f"{self!r} is real, the block is {block.dtype}; take its real part")
        if accumulate:
            there = self._read(slices)
            block = there + arrays.convert(block, there)
        self._write(slices, block)

    def flush(self) -> None:  # noqa: B027
        """Hand what was written to the system, so that other readers see it."""

    def extents(self) -> list[Extent]:
        """Where on a disk it lies, for the check that two stores are apart."""
        return []

    def memory(self) -> Any:
        """The array in memory that it shows, for the same check; None where it shows none."""
        return None

    def unallocated(self) -> tuple[int, Path | None]:
        """Bytes that writing all of it will still take, and the folder that they take them from."""
        return 0, None

    @abstractmethod
    def _read(self, slices: Slices) -> Array: ...

    @abstractmethod
    def _write(self, slices: Slices, block: Array) -> None: ...

    def _advice(self) -> str:
        return "open it with mode='r+'"

    def _check_slices(self, slices: Any) -> Slices:
        given = slices if isinstance(slices, tuple) else (slices,)
        good = len(given) == len(self.shape)
        made = []
        for s, n in zip(given, self.shape, strict=False):
            good = good and isinstance(s, slice) and s.step in (None, 1)
            if not good:
                break
            start, stop = (0 if s.start is None else s.start), (n if s.stop is None else s.stop)
            good = 0 <= start <= stop <= n
            made.append(slice(int(start), int(stop)))
        if not good:
            raise ShapeError(
                f"{self!r} takes one slice(start, stop) an axis within {self.shape}, got {slices!r}"
            )
        return tuple(made)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._place()}, {self.shape}, {self.dtype})"

    def _place(self) -> str:
        return "array"


def as_store(value: Any, name: str) -> Any:
    """`value` itself where it is a store, else the store of a plain array or data set.

    Raises
    ------
    DTypeError
        Naming what a store needs and `value` lacks.
    """
    needed = ("shape", "dtype", "read", "write")
    if all(hasattr(value, part) for part in needed) and callable(value.read):
        if type(value).__module__.split(".")[0] not in ("h5py", "zarr", "tensorstore"):
            return value
    if arrays.is_array(value):
        from linops.stores.array import ArrayStore

        return ArrayStore(value)
    room = {"h5py": "HDF5Store", "zarr": "ZarrStore", "tensorstore": "TensorStore"}
    kind = room.get(type(value).__module__.split(".")[0])
    if kind is not None:
        import linops.stores as stores

        return getattr(stores, kind)(value)
    lacks = ", ".join(part for part in needed if not hasattr(value, part)) or "a read to call"
    raise DTypeError(
        f"{name} is a {type(value).__name__} without {lacks}; a store has shape, dtype, "
        "read(slices) and write(slices, block), as linops.stores.NumpyStore(path) or "
        "ArrayStore(array) have"
    )


def require_writable(store: Any, name: str) -> None:
    """Raise a `DTypeError` where a store says that it cannot be written into."""
    if not getattr(store, "writable", True):
        advice = store._advice() if isinstance(store, BlockStore) else "give one that is writable"
        raise DTypeError(f"{name}, {store!r}, is read-only; {advice}")


def require_room(wanted: list[tuple[int, Path | None]]) -> None:
    """Raise an `OSError` where the disks have not so many free bytes."""
    by_disk: dict[int, tuple[int, Path]] = {}
    for count, folder in wanted:
        if count and folder is not None:
            disk = folder.stat().st_dev
            by_disk[disk] = (by_disk.get(disk, (0, folder))[0] + count, folder)
    for count, folder in by_disk.values():
        free = shutil.disk_usage(folder).free
        if free < count:
            raise OSError(
                errno.ENOSPC,
                f"{count} bytes are to be written to {folder}, where {free} are free; make room "
                "or choose another folder",
                str(folder),
            )


def flush(store: Any) -> None:
    """`store.flush()` where there is one."""
    if callable(getattr(store, "flush", None)):
        store.flush()


def pieces(shape: tuple[int, ...], count: int) -> Iterator[Slices]:
    """An array cut into blocks of at most `count` entries, each a run of its C order, in order."""
    if not shape:
        yield ()
        return
    inner = math.prod(shape[1:])
    if inner > count and len(shape) > 1:
        for i in range(shape[0]):
            for rest in pieces(shape[1:], count):
                yield (slice(i, i + 1), *rest)
        return
    step = max(1, count // max(inner, 1))
    whole = tuple(slice(0, n) for n in shape[1:])
    for start in range(0, shape[0] if inner else 0, step):
        yield (slice(start, min(start + step, shape[0])), *whole)
