"""`NumpyStore`: a .npy file, of which only the block in hand is mapped into memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.errors import DTypeError, ShapeError
from linops.stores.aliases import file_key
from linops.stores.protocol import BlockStore, Extent, Slices, require_room

__all__ = ["NumpyStore"]

_WINDOW = 1 << 26
"""Bytes of a file that are mapped at a time: the address space may be smaller than the file."""

_MODES = ("r+", "r")


class NumpyStore(BlockStore):
    """An array in a .npy file, read and written through memory maps of the blocks asked for.

    Parameters
    ----------
    path
        The file.
    shape, dtype
        Create the file, of zeros; where it exists already it stays as it is. Without a shape the
        file is opened. dtype is float32 by default.
    mode
        `"r+"`, or `"r"` for a file that is only read.

    Raises
    ------
    FileExistsError
        Where a file is to be created and exists.
    OSError
        Where the disk has not enough free space, before anything is made.
    ShapeError, DTypeError
        For a file that is no .npy file of numbers or shorter than it says.

    Examples
    --------
    >>> store = NumpyStore("volume.npy", (512, 512, 512))  # doctest: +SKIP
    """

    def __init__(self, path: Any, shape: Any = None, dtype: Any = None, mode: str = "r+") -> None:
        if mode not in _MODES:
            raise ValueError(f"mode is {mode!r}; it is 'r+' (read and write) or 'r' (read)")
        self.path = Path(path).expanduser()
        if shape is None and dtype is not None:
            raise ShapeError(
                f"a dtype without a shape for {self.path}: give both to create the file, neither "
                "to open it"
            )
        if shape is not None:
            _create(self.path, shape, np.dtype("float32" if dtype is None else dtype))
        stored, self._stored, fortran, self._offset = _header(self.path)
        self.shape, self._fortran = stored, fortran
        self.dtype = self._stored.newbyteorder("=")
        self.writable = mode == "r+"
        if self.writable and not os.access(self.path, os.W_OK):
            raise PermissionError(f"{self.path} cannot be written; open it with mode='r'")

    @classmethod
    def create(cls, path: Any, shape: Any, dtype: Any = "float32") -> NumpyStore:
        """A new file of zeros; one that exists is never replaced."""
        return cls(path, shape, dtype)

    def flush(self) -> None:
        """Wait until what was written is on the disk."""
        if self.writable:
            handle = os.open(self.path, os.O_RDWR)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def extents(self) -> list[Extent]:
        size = self._offset + math.prod(self.shape) * self.dtype.itemsize
        return [Extent(file_key(self.path), self._offset, size)]

    def unallocated(self) -> tuple[int, Path | None]:
        found = self.path.stat()
        return max(0, found.st_size - found.st_blocks * 512), self.path.parent

    def _read(self, slices: Slices) -> Array:
        out = np.empty(tuple(s.stop - s.start for s in slices), self.dtype)
        for window, there in self._windows(slices, "r"):
            out[there] = window
        return out

    def _write(self, slices: Slices, block: Array) -> None:
        host = arrays.to_numpy(block)
        for window, there in self._windows(slices, "r+"):
            window[...] = host[there]

    def _windows(self, slices: Slices, mode: Any) -> Iterator[tuple[np.ndarray, Any]]:
        """The block in parts whose maps are small: each part, and its place in the block."""
        shape, at = self.shape, slices
        if self._fortran:
            shape, at = shape[::-1], at[::-1]
        for start, extents, inside, there in _spans(shape, at, _WINDOW // self.dtype.itemsize):
            if math.prod(extents) == 0:
                continue
            offset = self._offset + start * self.dtype.itemsize
            mapped = np.memmap(self.path, self._stored, mode, offset, extents)
            part = mapped[inside]
            yield (part.T, there[::-1]) if self._fortran else (part, there)

    def _place(self) -> str:
        return f"'{self.path}'"


def _spans(
    shape: tuple[int, ...], at: Slices, limit: int
) -> Iterator[tuple[int, tuple[int, ...], Slices, Slices]]:
    """Runs of C order that hold a block: first entry, extents of the run, the block's place in
    it, and the run's place in the block."""
    if not shape:
        yield 0, (), (), ()
        return
    inner = math.prod(shape[1:])
    first, last = at[0].start, at[0].stop
    if inner > limit and len(shape) > 1:
        for i in range(first, last):
            for start, extents, inside, there in _spans(shape[1:], at[1:], limit):
                yield (
                    i * inner + start,
                    (1, *extents),
                    (slice(0, 1), *inside),
                    (slice(i - first, i - first + 1), *there),
                )
        return
    step = max(1, limit // max(inner, 1))
    whole = tuple(slice(0, s.stop - s.start) for s in at[1:])
    for i in range(first, last, step):
        end = min(i + step, last)
        yield (
            i * inner,
            (end - i, *shape[1:]),
            (slice(0, end - i), *at[1:]),
            (slice(i - first, end - first), *whole),
        )


def _create(path: Path, shape: Any, dtype: np.dtype) -> None:
    extents = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    extents = tuple(int(n.__index__()) for n in extents)
    if any(n < 0 for n in extents):
        raise ShapeError(f"{path} cannot have the shape {extents}; extents are not negative")
    if dtype.hasobject:
        raise DTypeError(f"{path} cannot hold {dtype}; a store holds numbers")
    count = math.prod(extents) * dtype.itemsize
    if not path.exists():
        require_room([(count, path.parent)])
    description = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": extents,
    }
    try:
        path.touch(exist_ok=False)
    except FileExistsError as error:
        raise FileExistsError(
            f"{path} exists, and a store never replaces a file; open it with NumpyStore(path), or "
            "choose another path"
        ) from error
    try:
        with open(path, "r+b") as file:
            np.lib.format.write_array_header_2_0(file, description)
            end = file.tell() + count
            file.flush()
            # Room that is taken now cannot be missing when a map is written.
            if count and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, end)
            file.truncate(end)
    except BaseException:
        path.unlink()
        raise


def _header(path: Path) -> tuple[tuple[int, ...], np.dtype, bool, int]:
    with open(path, "rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0
            if version != (1, 0):
                read = np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
        except (ValueError, EOFError) as error:
            raise ShapeError(f"{path} is no .npy file: {error}") from error
        offset = file.tell()
    if dtype.hasobject or dtype.names:
        raise DTypeError(f"{path} holds {dtype}; a store holds numbers")
    wanted = offset + math.prod(shape) * dtype.itemsize
    if path.stat().st_size < wanted:
        raise ShapeError(
            f"{path} is damaged: {path.stat().st_size} bytes, where {dtype} {shape} takes {wanted}"
        )
    return shape, dtype, fortran, offset
