"""`ZarrStore`: an array of zarr-python as a store. zarr is imported on first use."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.errors import DTypeError
from linops.stores.aliases import file_key
from linops.stores.protocol import BlockStore, Extent, Slices

__all__ = ["ZarrStore"]


class ZarrStore(BlockStore):
    """An array of Zarr.

    Parameters
    ----------
    source
        An open `zarr.Array`, or the folder (or address) of one.
    shape, dtype
        Create it; an array that exists is never replaced. dtype is float32 by default.
    mode
        `"r+"`, or `"r"` for an array that is only read.
    options
        What `zarr.create_array` takes besides, such as `chunks`, `compressors`.

    Notes
    -----
    Zarr reads and writes whole chunks: blocks that cut chunks apart cost more of both.
    """

    def __init__(
        self, source: Any, shape: Any = None, dtype: Any = None, mode: str = "r+", **options: Any
    ) -> None:
        zarr = _zarr()
        if mode not in ("r+", "r"):
            raise ValueError(f"mode is {mode!r}; it is 'r+' (read and write) or 'r' (read)")
        if isinstance(source, zarr.Array):
            self.array = source
        elif shape is not None:
            kind = np.dtype("float32" if dtype is None else dtype)
            place = source if "://" in str(source) else Path(source).expanduser()
            if isinstance(place, Path) and place.exists():
                raise FileExistsError(
                    f"{place} exists, and a store never replaces an array; leave out the shape to "
                    "open it, or choose another path"
                )
            self.array = zarr.create_array(place, shape=shape, dtype=kind, **options)
        else:
            self.array = zarr.open_array(source, mode=mode)
        self.shape = tuple(self.array.shape)
        self.dtype = np.dtype(self.array.dtype).newbyteorder("=")
        if self.dtype.kind not in "biufc":
            raise DTypeError(f"{source} holds {self.dtype}; a store holds numbers")
        self.writable = mode == "r+" and not self.array.read_only

    def extents(self) -> list[Extent]:
        store, path = self.array.store, self.array.path
        root = getattr(store, "root", None)
        if root is not None:
            return [Extent(file_key(Path(root) / path))]
        held = getattr(store, "_store_dict", store)
        return [Extent(("zarr", id(held), path))]

    def _read(self, slices: Slices) -> Array:
        return np.asarray(self.array[slices], self.dtype)

    def _write(self, slices: Slices, block: Array) -> None:
        self.array[slices] = arrays.to_numpy(block)

    def _place(self) -> str:
        return f"'{self.array.store_path}'"


def _zarr() -> Any:
    try:
        return importlib.import_module("zarr")
    except ImportError as error:
        raise ImportError(
            "ZarrStore reads with zarr, which is not installed: pip install 'linops[io]'"
        ) from error
