"""`TensorStore`: an array opened by the library tensorstore as a store, imported on first use."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.errors import DTypeError
from linops.stores.aliases import file_key
from linops.stores.protocol import BlockStore, Extent, Slices

__all__ = ["TensorStore"]


class TensorStore(BlockStore):
    """An array of the library tensorstore: Zarr, N5, neuroglancer, on disks or in the cloud.

    Parameters
    ----------
    source
        An open `tensorstore.TensorStore`, or a specification that `tensorstore.open` takes.
    options
        What `tensorstore.open` takes besides, such as `create=True, shape=..., dtype=...`.
    """

    def __init__(self, source: Any, **options: Any) -> None:
        ts = _tensorstore()
        self.array = source
        if not isinstance(source, ts.TensorStore):
            self.array = ts.open(source, **options).result()
        if any(self.array.domain.origin):
            self.array = self.array[ts.d[:].translate_to[0]]
        self.shape = tuple(self.array.shape)
        self.dtype = np.dtype(self.array.dtype.numpy_dtype)
        if self.dtype.kind not in "biufc":
            raise DTypeError(f"{source} holds {self.dtype}; a store holds numbers")
        self.writable = bool(self.array.writable)

    def extents(self) -> list[Extent]:
        kept = self.array.kvstore
        if kept is None:
            return []
        spec = kept.spec().to_json()
        if isinstance(spec, dict) and spec.get("driver") == "file":
            return [Extent(file_key(spec["path"]))]
        if isinstance(spec, str) and spec.startswith("file://"):
            return [Extent(file_key(spec.removeprefix("file://")))]
        return [Extent(("tensorstore", json.dumps(spec, sort_keys=True)))]

    def _read(self, slices: Slices) -> Array:
        return np.asarray(self.array[slices].read().result())

    def _write(self, slices: Slices, block: Array) -> None:
        self.array[slices] = np.ascontiguousarray(arrays.to_numpy(block), self.dtype)

    def _place(self) -> str:
        return str(Path(str(getattr(self.array.kvstore, "url", "memory"))))

    def _advice(self) -> str:
        return "open it with write=True"


def _tensorstore() -> Any:
    try:
        return importlib.import_module("tensorstore")
    except ImportError as error:
        raise ImportError(
            "TensorStore reads with tensorstore, which is not installed: pip install 'linops[io]'"
        ) from error
