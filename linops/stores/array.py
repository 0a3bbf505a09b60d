"""`ArrayStore`: an array in memory, of any namespace, as a store."""

from __future__ import annotations

from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.errors import DTypeError
from linops.stores.protocol import BlockStore, Extent, Slices

__all__ = ["ArrayStore"]


class ArrayStore(BlockStore):
    """An array of NumPy (memory-mapped ones too), torch or JAX. JAX arrays are read-only.

    Parameters
    ----------
    array
        What is read, and written into in place. `read` gives views of it.

    Raises
    ------
    DTypeError
        For what is no array, and for masked arrays.
    """

    def __init__(self, array: Array) -> None:
        if not arrays.is_array(array):
            raise DTypeError(
                f"ArrayStore takes an array of NumPy, torch or JAX, got {type(array).__name__}"
            )
        if arrays.is_masked(array):
            raise arrays.masked_error("ArrayStore", "array")
        self.array = array
        self.shape = tuple(array.shape)
        self.dtype = arrays.dtype_of(array).newbyteorder("=")
        self.writable = not arrays.is_jax(array)
        if arrays.is_numpy(array):
            self.writable = bool(np.asarray(array).flags.writeable)

    def _read(self, slices: Slices) -> Array:
        return self.array[slices]

    def _write(self, slices: Slices, block: Array) -> None:
        if arrays.is_torch(self.array):
            self.array.detach()[slices] = arrays.convert(block, self.array).detach()
        else:
            self.array[slices] = arrays.to_numpy(block)

    def flush(self) -> None:
        mapped = _mapping(self.array)
        if mapped is not None and self.writable:
            mapped.flush()

    def memory(self) -> Any:
        return self.array

    def extents(self) -> list[Extent]:
        mapped = _mapping(self.array)
        if mapped is None or mapped.filename is None:
            return []
        from linops.stores.aliases import file_key

        root = mapped
        while isinstance(root.base, np.memmap):
            root = root.base
        low, high = np.lib.array_utils.byte_bounds(np.asarray(self.array))
        start = root.offset + low - np.lib.array_utils.byte_bounds(root)[0]
        return [Extent(file_key(mapped.filename), start, start + high - low)]

    def _advice(self) -> str:
        if arrays.is_jax(self.array):
            return "JAX arrays cannot be written into; give a NumPy or torch array"
        return "give an array that is writeable"


def _mapping(array: Any) -> Any:
    """The memory map that an array shows a part of, or None."""
    while array is not None and not isinstance(array, np.memmap):
        array = array.base if isinstance(array, np.ndarray) else None
    return array
