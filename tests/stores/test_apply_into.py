"""Operators from store to store: values of `A @ x`, small blocks alone, refusals before writing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linops as lo
from geometries import ConeBeam, Detector, Grid, ParallelBeam, Projector
from linops.errors import DTypeError, ShapeError
from linops.stores import ArrayStore, HDF5Store, NumpyStore, TensorStore, ZarrStore, explain_into
from linops.testing.strategies import compositions

_GRID = Grid((6, 8, 9))


class Blocks:
    """A user's own store, which also counts, and raises on blocks of more entries than allowed."""

    def __init__(self, array: np.ndarray, most: int = 1 << 30) -> None:
        self.held, self.most = array, most
        self.shape, self.dtype = array.shape, array.dtype
        self.reads: list[tuple[slice, ...]] = []
        self.writes: list[tuple[slice, ...]] = []

    def read(self, slices: tuple[slice, ...]) -> np.ndarray:
        assert self.held[slices].size <= self.most
        self.reads.append(slices)
        return self.held[slices].copy()

    def write(self, slices: tuple[slice, ...], block: np.ndarray) -> None:
        assert self.held[slices].shape == block.shape and block.size <= self.most
        self.writes.append(slices)
        self.held[slices] = block


def cone() -> Projector:
    return Projector(ConeBeam(np.linspace(0, 6, 7), Detector((7, 11)), 20, 40), _GRID)


def parallel() -> Projector:
    return Projector(ParallelBeam(np.linspace(0, 3, 7), Detector((6, 11))), _GRID)


def _cases() -> dict[str, Any]:
    space = lo.Space((6, 8, 9), axes=("z", "y", "x"), spacing=(1.0, 2.0, 0.5))
    gradient = lo.Gradient(space)
    two = lo.Space((6, 8, 9), "complex64", axes=("z", "y", "x"))
    return {
        "cone": cone(),
        "cone adjoint": cone().H,
        "aligned rows": parallel(),
        "gram": parallel().gram(),
        "gradient": gradient,
        "laplacian": gradient.H @ gradient,
        "stack": lo.vstack([parallel(), 2.0 * gradient]),
        "diagonal of blocks": lo.block_diagonal([parallel(), gradient]),
        "adjoint of a stack": lo.vstack([parallel(), gradient]).H,
        "fourier": lo.FFT(two, axes=("y", "x")),
        "pointwise": lo.Exp(space),
        "of no axes": lo.SumOver(space, ("z", "y", "x")),
    }


@pytest.mark.parametrize("name", list(_cases()))
def test_values_are_those_in_memory_whatever_the_chunks(name: str) -> None:
    A = _cases()[name]
    x = [member.random(k) for k, member in enumerate(A.domain.members)]
    product = isinstance(A.domain, lo.ProductSpace), isinstance(A.codomain, lo.ProductSpace)
    expected = A(tuple(x) if product[0] else x[0])
    expected = expected if product[1] else (expected,)
    for chunks in (None, 1, 4, 100):
        sources = [Blocks(part) for part in x]
        targets = [Blocks(np.full(m.shape, 73, m.dtype)) for m in A.codomain.members]
        given_target: Any = tuple(targets) if product[1] else targets[0]
        back = A.apply_into(tuple(sources) if product[0] else sources[0], given_target, chunks)
        assert back is given_target
        for target, wanted in zip(targets, expected, strict=True):
            scale = np.abs(wanted).max()
            np.testing.assert_allclose(target.held, wanted, rtol=0, atol=2e-6 * scale)
            # Every entry is written once.
            assert sum(target.held[at].size for at in target.writes) == target.held.size


@settings(max_examples=15)
@given(drawn=compositions(max_depth=2), chunks=st.integers(1, 4))
def test_values_of_any_operator(drawn: Any, chunks: int) -> None:
    A, _ = drawn
    product = isinstance(A.domain, lo.ProductSpace), isinstance(A.codomain, lo.ProductSpace)
    x = [m.random(k) for k, m in enumerate(A.domain.members)]
    y = [np.full(m.shape, 73, m.dtype) for m in A.codomain.members]
    A.apply_into(tuple(x) if product[0] else x[0], tuple(y) if product[1] else y[0], chunks)
    expected = A(tuple(x) if product[0] else x[0])
    for found, wanted in zip(y, expected if product[1] else (expected,), strict=True):
        scale = max(1.0, float(np.abs(wanted).max(initial=0)))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * scale)


def test_blocks_are_no_larger_than_asked_and_read_as_often_as_said() -> None:
    A = cone()
    x, y = A.domain.random(1), np.zeros(A.codomain.shape, "float32")
    source, target = Blocks(x, 2 * 8 * 9), Blocks(y, 3 * 7 * 11)
    A.apply_into(source, target, {"view": 3, "z": 2})
    # Forward: each part of the volume once a block of views.
    assert len(target.writes) == 3 and len(source.reads) == 3 * 3
    np.testing.assert_allclose(y, A @ x, rtol=0, atol=1e-5)
    source, target = Blocks(y, 7 * 11), Blocks(np.zeros_like(x), 3 * 4 * 9)
    A.H.apply_into(source, target, {"z": 3, "y": 4, "view": 1})
    assert len(target.writes) == 4 and len(source.reads) == 4 * 7
    text = explain_into(A.H, {"z": 3, "y": 4, "view": 1})
    for said in ("z by 3, y by 4, view by 1", "tiles        4", "parts        28",
                 f"reads        {4 * y.nbytes} bytes (4.00 times the input)",
                 f"writes       {x.nbytes} bytes"):  # fmt: skip
        assert said in text


def test_blocks_fit_in_the_memory_that_is_given() -> None:
    A = cone()
    source = Blocks(A.domain.random(1), 2 * 7 * 11)
    target = Blocks(np.zeros(A.codomain.shape, "float32"), 2 * 7 * 11)
    A.apply_into(source, target, memory=4 * 4 * 2 * 7 * 11)
    assert len(target.writes) > 1
    np.testing.assert_allclose(target.held, A @ source.held, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["numpy", "hdf5", "zarr", "tensorstore", "torch", "jax"])
def test_every_store_serves_on_both_sides(kind: str, tmp_path: Path) -> None:
    A = parallel()
    x = np.stack([A.domain.random(k) for k in (1, 2)])  # a batch
    out = (2, *A.codomain.shape)
    target: Any
    if kind == "numpy":
        np.save(tmp_path / "x.npy", x)
        source: Any = NumpyStore(tmp_path / "x.npy", mode="r")
        target = NumpyStore(tmp_path / "y.npy", out)
    elif kind == "hdf5":
        h5py = pytest.importorskip("h5py")
        file = h5py.File(tmp_path / "a.h5", "w")
        source, target = file.create_dataset("x", data=x), file.create_dataset("y", out, "f4")
    elif kind == "zarr":
        zarr = pytest.importorskip("zarr")
        source = zarr.create_array(tmp_path / "x.zarr", data=x)
        target = ZarrStore(tmp_path / "y.zarr", out)
    elif kind == "tensorstore":
        ts = pytest.importorskip("tensorstore")
        source = ts.array(x)
        spec = {"driver": "n5", "kvstore": {"driver": "memory"}}
        target = TensorStore(spec, create=True, shape=out, dtype="float32")
    elif kind == "torch":
        torch = pytest.importorskip("torch")
        source, target = torch.from_numpy(x), torch.full(out, 73.0)
    else:
        jax = pytest.importorskip("jax")
        source, target = jax.numpy.asarray(x), np.full(out, 73, "float32")
        with pytest.raises(DTypeError, match="JAX arrays cannot be written into"):
            A.apply_into(source, jax.numpy.zeros(out, "float32"))
    assert A.apply_into(source, target, chunks=4) is target
    whole = tuple(slice(0, n) for n in out)
    found = target.read(whole) if hasattr(target, "write") and kind != "torch" else target[whole]
    np.testing.assert_allclose(np.asarray(found), A @ x, rtol=0, atol=1e-5)


def _links(folder: Path) -> list[tuple[str, Any, Any]]:
    """Pairs of a source and a target that are one, each by another way."""
    square = np.full((6, 6), 73.0, "float32")
    wide = np.full(80, 73.0, "float32")
    view = np.lib.stride_tricks.as_strided
    cases: list[tuple[str, Any, Any]] = [
        ("the same array", square, square),
        ("views that overlap", wide[:36].reshape(6, 6), wide[10:46].reshape(6, 6)),
        ("expanded", square.copy(), np.lib.stride_tricks.as_strided(wide, (6, 6), (0, 4))),
        ("overlapping windows", square.copy(), view(wide, (6, 6), (12, 4))),
        ("its transpose", square, square.T),
    ]
    path = folder / "x.npy"
    np.save(path, square)
    os.symlink(path, folder / "soft.npy")
    os.link(path, folder / "hard.npy")
    store = NumpyStore(path)
    cases += [
        ("one file opened twice", NumpyStore(path), store),
        ("a symbolic link", NumpyStore(folder / "soft.npy", mode="r"), store),
        ("a hard link", NumpyStore(folder / "hard.npy"), store),
        ("the folder's other name", NumpyStore(folder / ".." / folder.name / "x.npy"), store),
        ("a map of the file", np.load(path, mmap_mode="r"), store),
        ("two maps", np.load(path, mmap_mode="r"), np.load(folder / "hard.npy", mmap_mode="r+")),
    ]
    try:
        import h5py
    except ImportError:
        pass
    else:
        file = h5py.File(folder / "a.h5", "w")
        file["x"] = square
        file["link"] = file["x"]
        cases.append(("a link within HDF5", file["x"], HDF5Store(file["link"])))
    try:
        import zarr
    except ImportError:
        pass
    else:
        zarr.create_array(folder / "a.zarr", data=square)
        os.symlink(folder / "a.zarr", folder / "b.zarr")
        cases.append(
            ("a linked folder", ZarrStore(folder / "a.zarr"), ZarrStore(folder / "b.zarr"))
        )
    return cases


def test_a_target_that_is_the_source_is_refused(tmp_path: Path) -> None:
    A = lo.Identity(lo.Space((6, 6)))
    whole = (slice(0, 6), slice(0, 6))
    for name, source, target in _links(tmp_path):
        with pytest.raises(ShapeError, match="write to a"):
            A.apply_into(source, target)
        left = target.read(whole) if hasattr(target, "read") else target
        assert (np.asarray(left) == 73.0).all(), name


def test_parts_that_do_not_meet_are_accepted(tmp_path: Path) -> None:
    A = 2.0 * lo.Identity(lo.Space((6, 6)))
    backing = np.arange(72, dtype="float32").reshape(12, 6)
    expected = 2 * backing[::2]
    A.apply_into(backing[::2], backing[1::2], chunks=1)
    np.testing.assert_array_equal(backing[1::2], expected)
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = expected, np.zeros_like(expected)
        A.apply_into(file["x"], file["y"])
        np.testing.assert_array_equal(file["y"][:], 2 * expected)


def _refused(tmp_path: Path) -> list[tuple[str, Any, Any, type[Exception], str]]:
    x = np.ones((6, 8, 9), "float32")
    y = np.full((7, 7, 11), 73.0, "float32")
    late = x.copy()
    late[5, 7, 8] = np.nan
    fixed = y.copy()
    fixed.flags.writeable = False
    return [
        ("source shape", x[:5], y, ShapeError, r"source .* has shape \(5, 8, 9\); it has \(z=6"),
        ("target shape", x, y[:6], ShapeError, "target .* has shape"),
        ("batches", x[None], y, ShapeError, "batch axes"),
        ("target dtype", x, y.astype("float64"), DTypeError, "create it with dtype float32"),
        ("complex", x.astype("complex64"), y, DTypeError, "real part"),
        ("read-only", x, fixed, DTypeError, "read-only"),
        ("no store", x, "y.npy", DTypeError, "a str without shape, dtype, read, write"),
        ("no numbers", x, None, DTypeError, "target is a NoneType"),
        ("a value at the end", late, y, ValueError, r"source\[5, 7, 8\] is nan"),
    ]


def test_nothing_is_written_where_something_is_wrong(tmp_path: Path) -> None:
    for name, source, target, error, words in _refused(tmp_path):
        with pytest.raises(error, match=words):
            cone().apply_into(source, target, chunks=2)
        if isinstance(target, np.ndarray):
            assert (target == 73.0).all(), name
    x, y = np.ones((6, 8, 9), "float32"), np.full((7, 7, 11), 73.0, "float32")
    for chunks, error in ((0, ValueError), (True, ValueError), ({"q": 2}, ShapeError),
                          ({"z": 0}, ValueError), (1.5, ValueError)):  # fmt: skip
        with pytest.raises(error, match=r"chunks|axis 'q'"):
            cone().apply_into(x, y, chunks)
    # A gradient reads a part for each tile, so its values are looked at before.
    G = lo.Gradient(cone().domain)
    x[5, 7, 8] = np.inf
    z = np.full(G.codomain.shape, 73.0, "float32")
    with pytest.raises(ValueError, match=r"source\[5, 7, 8\] is inf"):
        G.apply_into(x, z, chunks=1)
    assert (z == 73.0).all() and (y == 73.0).all()
    G.apply_into(x, z, chunks=1, check_finite=False)
    assert not np.isfinite(z).all()


def test_a_disk_without_room_is_found_before_writing(tmp_path: Path) -> None:
    n = 1 << 20
    path = tmp_path / "y.npy"
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (n, n)}
        )
        try:
            file.truncate(file.tell() + 4 * n * n)
        except OSError:
            pytest.skip("no sparse file of that size here")

    class Zeros:
        shape, dtype = (n, n), np.dtype("float32")

        def read(self, slices: Any) -> Any:
            raise AssertionError("read before the disk was looked at")

        write = read

    with pytest.raises(OSError, match="are free; make room"):
        lo.Identity(lo.Space((n, n))).apply_into(Zeros(), NumpyStore(path))
    assert path.stat().st_blocks * 512 < 1 << 20


def test_gradients_are_refused_by_name() -> None:
    torch = pytest.importorskip("torch")
    A = lo.Identity(lo.Space(4))
    free, tracked = torch.full((4,), 73.0), torch.ones(4, requires_grad=True)
    with pytest.raises(DTypeError, match="requires a gradient.*detach"):
        A.apply_into(tracked, free)
    with pytest.raises(DTypeError, match="requires a gradient.*detach"):
        A.apply_into(free, tracked)
    weights = lo.Diagonal(torch.ones(4, requires_grad=True), lo.Space(4))
    with pytest.raises(DTypeError, match="an array of Diagonal.*requires a gradient"):
        weights.apply_into(torch.ones(4), free)
    assert (free == 73.0).all()


def test_wider_sources_are_cast_with_one_warning() -> None:
    A = cone()
    x, y = np.ones((6, 8, 9)), np.empty((7, 7, 11), "float32")
    with pytest.warns(RuntimeWarning, match="float64 blocks of its source") as seen:
        A.apply_into(x, y, chunks=1)
    assert len(seen) == 1 and seen[0].filename == __file__
    counts = np.arange(432, dtype="uint16").reshape(6, 8, 9)
    A.apply_into(ArrayStore(counts), y, chunks=2)
    np.testing.assert_allclose(y, A @ counts.astype("float32"), rtol=1e-5)


def test_a_bar_counts_tiles(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    A = lo.Identity(lo.Space((6, 6)))
    A.apply_into(np.ones((6, 6), "float32"), np.empty((6, 6), "float32"), 2, progress=True)
    assert "3/3" in capsys.readouterr().err
    with pytest.raises(ValueError, match="progress is 1"):
        A.apply_into(np.ones((6, 6), "float32"), np.empty((6, 6), "float32"), progress=1)
