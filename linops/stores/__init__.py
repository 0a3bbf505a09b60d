"""Stores: arrays larger than memory, read and written block by block; operators applied to them.

Any object with `shape`, `dtype`, `read(slices)` and `write(slices, block)` is a store
(`linops.stores.protocol`). Those here wrap an array, a .npy file, and data sets of HDF5, Zarr and
TensorStore, whose libraries are imported on first use. What may not be read and written at once is
in `linops.stores.aliases`, the cutting of an operator in `linops.stores.tiles`, and the streaming
in `linops.stores.tilewise`.
"""

from __future__ import annotations

from linops.stores.array import ArrayStore
from linops.stores.hdf5 import HDF5Store
from linops.stores.numpy_file import NumpyStore
from linops.stores.protocol import BlockStore, Store
from linops.stores.tensor import TensorStore
from linops.stores.tilewise import apply_into, explain_into
from linops.stores.zarr_array import ZarrStore

__all__ = [
    "ArrayStore",
    "BlockStore",
    "HDF5Store",
    "NumpyStore",
    "Store",
    "TensorStore",
    "ZarrStore",
    "apply_into",
    "explain_into",
]
