"""Stores by themselves: what is read was written, nothing is replaced, mistakes are named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linops.errors import DTypeError, ShapeError
from linops.stores import (
    ArrayStore,
    HDF5Store,
    NumpyStore,
    Store,
    TensorStore,
    ZarrStore,
    numpy_file,
)
from linops.stores.protocol import pieces

_SHAPE = (3, 4, 5)


def made(kind: str, folder: Path, shape: tuple[int, ...] = _SHAPE, dtype: str = "float32") -> Any:
    """A new store of zeros."""
    if kind == "array":
        return ArrayStore(np.zeros(shape, dtype))
    if kind == "torch":
        torch = pytest.importorskip("torch")
        return ArrayStore(torch.zeros(shape, dtype=getattr(torch, dtype)))
    if kind == "numpy":
        return NumpyStore(folder / "a.npy", shape, dtype)
    if kind == "hdf5":
        pytest.importorskip("h5py")
        return HDF5Store(folder / "a.h5", "volume", shape, dtype)
    if kind == "zarr":
        pytest.importorskip("zarr")
        return ZarrStore(folder / "a.zarr", shape, dtype, chunks=(2,) * len(shape))
    pytest.importorskip("tensorstore")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder / 'a.ts'}/"}}
    return TensorStore(spec, create=True, shape=shape, dtype=dtype)


KINDS = ("array", "torch", "numpy", "hdf5", "zarr", "tensorstore")


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_come_back_as_they_were_written(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numpy_file, "_WINDOW", 44)  # maps of 11 numbers: every kind of run
    store = made(kind, tmp_path)
    assert isinstance(store, Store) and store.shape == _SHAPE and store.dtype == np.float32
    expected = np.zeros(_SHAPE, "float32")
    rng = np.random.default_rng(1)
    for at in (
        (slice(0, 3), slice(0, 4), slice(0, 5)),
        (slice(1, 3), slice(1, 2), slice(2, 5)),
        (slice(2, 2), slice(0, 4), slice(0, 5)),
        (slice(0, 1), slice(0, 4), slice(4, 5)),
    ):
        block = rng.random(expected[at].shape, dtype="float32")
        expected[at] = block
        store.write(at, block)
        store.write(at, block, accumulate=True)
        expected[at] += block
        np.testing.assert_array_equal(np.asarray(store.read(at)), expected[at])
    store.flush()
    everything = tuple(slice(0, n) for n in _SHAPE)
    np.testing.assert_array_equal(np.asarray(store.read(everything)), expected)
    if kind == "numpy":
        np.testing.assert_array_equal(np.load(store.path), expected)
        opened: Any = NumpyStore(store.path, mode="r")
    elif kind == "hdf5":
        store.close()
        opened = HDF5Store(tmp_path / "a.h5", "volume", mode="r")
    elif kind == "zarr":
        opened = ZarrStore(tmp_path / "a.zarr", mode="r")
    elif kind == "tensorstore":
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path / 'a.ts'}/"}}
        opened = TensorStore(spec, open=True, read=True, write=False)
    else:
        return
    assert not opened.writable
    np.testing.assert_array_equal(opened.read(everything), expected)
    with pytest.raises(DTypeError, match="read-only; open it with"):
        opened.write(everything, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_slices_and_blocks_that_do_not_fit_are_refused(kind: str, tmp_path: Path) -> None:
    store = made(kind, tmp_path)
    whole = tuple(slice(0, n) for n in _SHAPE)
    for bad in (whole[:2], (slice(0, 4), *whole[1:]), (slice(-1, 3), *whole[1:]), (0, *whole[1:]),
                (slice(0, 3, 2), *whole[1:]), (slice(2, 1), *whole[1:])):  # fmt: skip
        with pytest.raises(ShapeError, match="one slice"):
            store.read(bad)
    with pytest.raises(ShapeError, match=r"takes a block of shape \(3, 4, 5\), got \(1, 4, 5\)"):
        store.write(whole, np.ones((1, 4, 5), "float32"))
    with pytest.raises(DTypeError, match="real part"):
        store.write(whole, np.ones(_SHAPE, "complex64"))
    assert not np.asarray(store.read(whole)).any()


def test_a_store_never_replaces_what_exists(tmp_path: Path) -> None:
    for kind in ("numpy", "hdf5", "zarr"):
        store = made(kind, tmp_path)
        store.write(tuple(slice(0, n) for n in _SHAPE), np.full(_SHAPE, 73.0, "float32"))
        if kind == "hdf5":
            store.close()
        with pytest.raises(FileExistsError, match="never replaces"):
            made(kind, tmp_path)
    with pytest.raises(FileExistsError, match="never replaces"):
        NumpyStore.create(tmp_path / "a.npy", (2,))
    assert (np.load(tmp_path / "a.npy") == 73.0).all()
    with HDF5Store(tmp_path / "a.h5", "volume") as kept:
        assert (kept.read(tuple(slice(0, n) for n in _SHAPE)) == 73.0).all()
    with pytest.raises(KeyError, match=r"no data set 'other'; it has \['volume'\]"):
        HDF5Store(tmp_path / "a.h5", "other")


def test_npy_files_of_other_layouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_file, "_WINDOW", 80)
    values = np.arange(24.0).reshape(2, 3, 4)
    for name, array in (("fortran", np.asfortranarray(values)), ("big", values.astype(">f8"))):
        path = tmp_path / f"{name}.npy"
        np.save(path, array)
        store = NumpyStore(path)
        assert store.dtype == np.dtype("float64") and store.dtype.isnative
        at = (slice(0, 2), slice(1, 3), slice(1, 4))
        np.testing.assert_array_equal(store.read(at), values[at])
        store.write(at, -values[at])
        expected = values.copy()
        expected[at] *= -1
        np.testing.assert_array_equal(np.load(path), expected)


def test_npy_files_that_are_none_or_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"no array")
    with pytest.raises(ShapeError, match="is no .npy file"):
        NumpyStore(path)
    np.save(path, np.zeros(10))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ShapeError, match="is damaged: .* where float64"):
        NumpyStore(path)
    np.save(path, np.array([{}]), allow_pickle=True)
    with pytest.raises(DTypeError, match="a store holds numbers"):
        NumpyStore(path)
    with pytest.raises(ShapeError, match="not negative"):
        NumpyStore(tmp_path / "b.npy", (-1, 2))
    with pytest.raises(ShapeError, match="dtype without a shape"):
        NumpyStore(path, dtype="float32")
    with pytest.raises(ValueError, match="mode is 'w'"):
        NumpyStore(path, mode="w")
    with pytest.raises(FileNotFoundError):
        NumpyStore(tmp_path / "none.npy")
    with pytest.raises(OSError, match="are free; make room"):
        NumpyStore(tmp_path / "b.npy", (1 << 40, 1 << 10))
    assert sorted(os.listdir(tmp_path)) == ["a.npy"]


def test_room_for_a_new_file_is_taken_at_once(tmp_path: Path) -> None:
    store = NumpyStore(tmp_path / "a.npy", (1 << 18,))
    assert store.unallocated()[0] == 0  # a write into a map cannot meet a full disk
    with open(tmp_path / "sparse.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 18,)}
        )
        file.truncate(file.tell() + (1 << 20))
    assert NumpyStore(tmp_path / "sparse.npy").unallocated()[0] > 1_000_000


def test_pieces_run_through_an_array_in_its_order() -> None:
    numbers = np.arange(60).reshape(3, 4, 5)
    for count in (1, 3, 5, 7, 12, 20, 41, 60, 99):
        found = [numbers[at].ravel() for at in pieces(numbers.shape, count)]
        np.testing.assert_array_equal(np.concatenate(found), np.arange(60))
        assert max(map(len, found)) <= count
    assert list(pieces((), 4)) == [()] and list(pieces((0, 3), 4)) == []


def test_libraries_are_imported_on_first_use() -> None:
    code = (
        "import sys, linops.stores; "
        "bad = {'h5py', 'zarr', 'tensorstore', 'torch', 'jax'} & set(sys.modules); assert not bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
