"""Filtered backprojection from store to store: the image in memory, nothing half done."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import geometries
from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector
from linops.errors import DTypeError, GeometryError, ShapeError
from linops.stores import NumpyStore, ZarrStore

_ANGLES = 0.17 + np.arange(12) * 2 * np.pi / 12


class Blocks:
    """A store that raises on blocks of more planes of its first axis than allowed."""

    def __init__(self, array: np.ndarray, most: int = 99) -> None:
        self.held, self.most, self.read_planes, self.written = array, most, 0, 0
        self.shape, self.dtype = array.shape, array.dtype

    def read(self, slices: Any) -> np.ndarray:
        block = self.held[slices]
        assert len(block) <= self.most
        self.read_planes += len(block)
        return block.copy()

    def write(self, slices: Any, block: np.ndarray) -> None:
        assert len(block) <= self.most
        self.written += block.size
        self.held[slices] = block


def _scans() -> dict[str, tuple[str, Projector, dict[str, Any]]]:
    image, volume = Grid((7, 9), spacing=0.5), Grid((4, 7, 9), spacing=0.5)
    flat, cells = Detector(17, pitch=0.7), Detector((4, 17), pitch=(0.5, 0.7))
    short = np.linspace(0, 4.2, 15)
    weights = 1 + np.random.default_rng(4).random((15, 17))
    return {
        "parallel": ("fbp", Projector(ParallelBeam(_ANGLES / 2, flat), image), {"window": "hann"}),
        "slices": ("fbp", Projector(ParallelBeam(_ANGLES / 2, cells), volume), {}),
        "short fan": (
            "fbp",
            Projector(FanBeam(short, flat, 20, 40), image),
            {"projection_weights": weights},
        ),
        "cone": ("fdk", Projector(ConeBeam(_ANGLES, cells, 20, 40), volume), {"pad": 3}),
    }


@pytest.mark.parametrize("name", list(_scans()))
def test_the_image_does_not_depend_on_blocks(name: str) -> None:
    kind, A, options = _scans()[name]
    into, explain = (getattr(geometries, f"{p}{kind}_into") for p in ("", "explain_"))
    y = A.codomain.random(3)
    wanted = getattr(geometries, kind)(A, y, **options)
    tolerance = 2e-5 * np.abs(wanted).max()
    views = len(y)
    for chunks in (None, 1, 3, {"view": 5, "y": 2}):
        source, target = Blocks(y), Blocks(np.full_like(wanted, 73))
        if isinstance(chunks, int):
            source.most = target.most = chunks
        assert into(A, source, target, chunks=chunks, **options) is target
        np.testing.assert_allclose(target.held, wanted, rtol=0, atol=tolerance)
        assert source.read_planes == views and target.written == wanted.size
        assert "filtered once and held in memory" in explain(A, chunks=chunks, **options)
    # Too little memory for the filtered views: filtered anew for each tile, or held in a store.
    little = {"chunks": {"y": 3, "view": 4}, "memory": 1000, **options}
    assert "filtered anew" in explain(A, **little)
    source, target = Blocks(y, 4), Blocks(np.full_like(wanted, 73))
    into(A, source, target, **little)
    np.testing.assert_allclose(target.held, wanted, rtol=0, atol=tolerance)
    scratch, source = Blocks(np.zeros_like(y), 4), Blocks(y, 4)
    assert "held in scratch" in explain(A, scratch=scratch, **little)
    target = Blocks(np.full_like(wanted, 73))
    into(A, source, target, scratch=scratch, **little)
    assert source.read_planes == views and scratch.held.any()
    np.testing.assert_allclose(target.held, wanted, rtol=0, atol=tolerance)


def test_batches_and_blocks_of_a_scan() -> None:
    _, A, options = _scans()["cone"]
    y = np.stack([A.codomain.random(k) for k in (1, 2)])
    wanted = geometries.fdk(A, y, **options)
    out = np.full_like(wanted, 73)
    geometries.fdk_into(A, y, out, chunks=2, **options)
    np.testing.assert_allclose(out, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    part = A.block("z", 1, 3)
    geometries.fdk_into(part, y, out[:, 1:3], chunks=2, **options)
    np.testing.assert_allclose(out, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


def test_nothing_is_written_where_something_is_wrong(tmp_path: Path) -> None:
    _, A, _ = _scans()["cone"]
    y, x = A.codomain.random(1), np.full(A.domain.shape, 73, "float32")
    late = y.copy()
    late[-1, -1, -1] = np.nan
    fbp_into, fdk_into = geometries.fbp_into, geometries.fdk_into
    torch = pytest.importorskip("torch")
    trained = torch.ones(12, requires_grad=True)
    for call, error, words in (
        (lambda: fdk_into(A, late, x, chunks=2), ValueError, r"source\[11, 3, 16\] is nan"),
        (lambda: fdk_into(A, late, x, chunks=2, memory=99), ValueError, "is nan"),
        (lambda: fbp_into(A, y, x), GeometryError, "a cone beam takes fdk"),
        (lambda: fdk_into(A, y, x, window="none"), ValueError, "window"),
        (lambda: fdk_into(A, y, x, angular_weights=trained), DTypeError, "requires a gradient"),
        (lambda: fdk_into(A, torch.ones(y.shape, requires_grad=True), x), DTypeError, "gradient"),
        (lambda: fdk_into(A, y[1:], x), ShapeError, "source"),
        (lambda: fdk_into(A, y, x.astype("float64")), DTypeError, "create it with dtype float32"),
        (lambda: fdk_into(A, y, x, chunks={"q": 1}), ShapeError, "no axis 'q'"),
        (lambda: fdk_into(A, y, x, scratch=np.zeros(3)), DTypeError, "filtered views are"),
        (lambda: fdk_into(A, y, x, scratch=y), ShapeError, "scratch.*source"),
    ):
        with pytest.raises(error, match=words):
            call()
        assert (x == 73).all()


def test_a_volume_larger_than_the_address_space(tmp_path: Path) -> None:
    """From Zarr to .npy: the volume has three times the bytes that the process may still map."""
    pytest.importorskip("zarr")
    resource = pytest.importorskip("resource")
    assert resource.RLIMIT_AS is not None
    code = f"""
        import resource, numpy as np
        from geometries import Detector, Grid, ParallelBeam, Projector, fbp_into
        from linops.memory import address_space_left
        from linops.stores import NumpyStore, ZarrStore
        count, n = 384, 256
        beam = ParallelBeam(np.arange(3) * np.pi / 3, Detector((count, 32), pitch=(1.0, n / 32)))
        A = Projector(beam, Grid((count, n, n)))
        source = ZarrStore({str(tmp_path / "y.zarr")!r}, A.codomain.shape, chunks=(3, 16, 32))
        source.write(tuple(slice(0, k) for k in source.shape), np.ones(source.shape, "float32"))
        target = NumpyStore({str(tmp_path / "x.npy")!r}, A.domain.shape)
        beam = ParallelBeam(np.arange(3) * np.pi / 3, Detector((2, 32), pitch=(1.0, n / 32)))
        small = Projector(beam, Grid((2, n, n)))
        from geometries import fbp
        plane = fbp(small, np.ones((3, 2, 32), "float32"))[0]  # compiled before the limit
        room = 4 * A.domain.size // 3
        with open("/proc/self/statm") as pages:
            used = int(pages.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
        try:
            np.ones(A.domain.shape, "float32")
        except MemoryError:
            pass
        else:
            raise SystemExit("the limit does not hold")
        assert address_space_left() <= room
        assert fbp_into(A, source, target) is target
        for k in (0, 101, 383):
            got = target.read((slice(k, k + 1), slice(0, n), slice(0, n)))[0]
            assert np.allclose(got, plane, atol=1e-6 * abs(plane).max()), k
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_from_zarr_to_npy(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    _, A, options = _scans()["cone"]
    y = A.codomain.random(7)
    zarr.create_array(tmp_path / "y.zarr", data=y, chunks=(2, 4, 17))
    source = ZarrStore(tmp_path / "y.zarr", mode="r")
    target = NumpyStore(tmp_path / "x.npy", A.domain.shape)
    geometries.fdk_into(A, source, target, chunks=2, **options)
    wanted = geometries.fdk(A, y, **options)
    found = np.load(tmp_path / "x.npy")
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
