"""`HDF5Store`: a data set of an HDF5 file as a store. h5py is imported on first use."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.errors import DTypeError
from linops.stores.aliases import file_key
from linops.stores.protocol import BlockStore, Extent, Slices, require_room

__all__ = ["HDF5Store"]


class HDF5Store(BlockStore):
    """A data set of an HDF5 file.

    Parameters
    ----------
    source
        An open `h5py.Dataset`, or the path of a file, which the store then opens and `close()`
        closes (or a `with` block).
    dataset
        Name of the data set within the file.
    shape, dtype
        Create it, in a file that may exist; a data set that exists is never replaced.
    mode
        `"r+"`, or `"r"` for a file that is only read.
    options
        What `h5py.Group.create_dataset` takes besides, such as `chunks`, `compression`.
    """

    def __init__(
        self,
        source: Any,
        dataset: str | None = None,
        shape: Any = None,
        dtype: Any = None,
        mode: str = "r+",
        **options: Any,
    ) -> None:
        h5py = _h5py()
        self._file: Any = None
        if isinstance(source, h5py.Dataset):
            self.dataset = source
        else:
            if dataset is None:
                raise ValueError(f"HDF5Store({source!r}) needs the name of a data set in that file")
            if mode not in ("r+", "r"):
                raise ValueError(f"mode is {mode!r}; it is 'r+' (read and write) or 'r' (read)")
            path = Path(source).expanduser()
            kind = np.dtype("float32" if dtype is None else dtype)
            if shape is not None:
                count = int(np.prod(shape)) * kind.itemsize
                require_room([(0 if "compression" in options else count, path.parent)])
            self._file = h5py.File(path, "a" if shape is not None else mode)
            try:
                self.dataset = self._found(dataset, shape, kind, options)
            except BaseException:
                self._file.close()
                raise
        self.shape = tuple(self.dataset.shape)
        self.dtype = np.dtype(self.dataset.dtype).newbyteorder("=")
        if self.dtype.kind not in "biufc":
            raise DTypeError(f"{self.dataset.name} holds {self.dtype}; a store holds numbers")
        self.writable = self.dataset.file.mode == "r+"

    def _found(self, dataset: str, shape: Any, dtype: np.dtype, options: Any) -> Any:
        if shape is not None:
            if dataset in self._file:
                raise FileExistsError(
                    f"{self._file.filename} has a data set {dataset!r}, and a store never replaces "
                    "one; leave out the shape to open it"
                )
            return self._file.create_dataset(dataset, shape, dtype, **options)
        if dataset not in self._file or not hasattr(self._file[dataset], "dtype"):
            raise KeyError(
                f"{self._file.filename} has no data set {dataset!r}; it has {sorted(self._file)}"
            )
        return self._file[dataset]

    def flush(self) -> None:
        """Hand what was written to the system."""
        if self.writable:
            self.dataset.file.flush()

    def close(self) -> None:
        """Close the file, if the store opened it."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> HDF5Store:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def extents(self) -> list[Extent]:
        file = self.dataset.file
        if file.driver == "core":
            key: tuple[Any, ...] = ("hdf5", file.id.id)
        else:
            key = file_key(file.filename)
        # A hard link within the file has the address of what it names.
        place = _h5py().h5o.get_info(self.dataset.id).addr
        return [Extent((*key, "hdf5", int(place)))]

    def unallocated(self) -> tuple[int, Path | None]:
        file, data = self.dataset.file, self.dataset
        if data.compression or file.driver == "core" or data.external or data.is_virtual:
            return 0, None
        return max(0, data.nbytes - data.id.get_storage_size()), Path(file.filename).parent

    def _read(self, slices: Slices) -> Array:
        return np.asarray(self.dataset[slices], self.dtype)

    def _write(self, slices: Slices, block: Array) -> None:
        self.dataset[slices] = arrays.to_numpy(block)

    def _place(self) -> str:
        return f"'{self.dataset.file.filename}', '{self.dataset.name}'"


def _h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise ImportError(
            "HDF5Store reads with h5py, which is not installed: pip install 'linops[io]'"
        ) from error
