"""Scans from files of each kind, written here with the libraries that own the formats."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geometries.scans.files import load_scan
from linops.errors import GeometryError, ShapeError

DATA = np.arange(24, dtype=np.uint16).reshape(4, 2, 3)
THETA = np.array([0.0, 45, 90, 135])


def test_npz_in_degrees_and_radians(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", projections=DATA, theta_deg=THETA, flats=DATA[:2], sod_mm=110.0)
    scan = load_scan(tmp_path / "a.npz")
    np.testing.assert_array_equal(scan.projections, DATA)
    np.testing.assert_allclose(scan.angles, np.deg2rad(THETA))
    assert scan.extra["sod_mm"] == 110
    assert scan.darks is None
    np.savez(tmp_path / "b.npz", sinogram=DATA[:, 0], angles=THETA / 50)
    again = load_scan(str(tmp_path / "b.npz"))
    np.testing.assert_array_equal(again.angles, THETA / 50)
    assert again.projections.shape == (4, 3)


def test_npy_and_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", DATA)
    assert load_scan(tmp_path / "a.npy").angles is None
    np.testing.assert_array_equal(load_scan(tmp_path / "a.npy", rows=1).projections, DATA[:, 1])


@pytest.mark.parametrize("units", [None, "deg", b"degrees", "rad"])
def test_hdf5_data_exchange(tmp_path: Path, units: Any) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["exchange/data"] = DATA
        file["exchange/data_white"] = DATA[:2] + 100
        file["exchange/data_dark"] = DATA[:1] * 0
        file["exchange/theta"] = THETA / 50 if units == "rad" else THETA
        if units is not None:
            file["exchange/theta"].attrs["units"] = units
    scan = load_scan(tmp_path / "a.h5")
    np.testing.assert_allclose(scan.angles, THETA / 50 if units == "rad" else np.deg2rad(THETA))
    np.testing.assert_array_equal(scan.projections, DATA)
    one = load_scan(tmp_path / "a.h5", rows=1)
    np.testing.assert_array_equal(one.projections, DATA[:, 1])
    assert one.flats is not None
    assert one.flats.shape == (2, 3)
    np.testing.assert_allclose(
        one.line_integrals(floor=1e-9).data[1:], -np.log(DATA[1:, 1] / one.flats.mean(0)), rtol=1e-6
    )


def test_tiff_stack(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.tif", DATA, photometric="minisblack")
    np.testing.assert_array_equal(load_scan(tmp_path / "a.tif").projections, DATA)
    np.testing.assert_array_equal(load_scan(tmp_path / "a.tif", rows=0).projections, DATA[:, 0])


def test_faults_name_the_file_and_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(GeometryError, match=r"'.xyz'; readable are .npz"):
        load_scan(tmp_path / "a.xyz")
    with pytest.raises(FileNotFoundError, match="nothing.npz"):
        load_scan(tmp_path / "nothing.npz")
    np.savez(tmp_path / "a.npz", volume=DATA)
    with pytest.raises(GeometryError, match="it has volume"):
        load_scan(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", sinogram=DATA[:, 0], theta_deg=THETA[:3])
    with pytest.raises(ShapeError, match=r"\(3,\) angles for 4 views"):
        load_scan(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", projections=DATA, flats=np.ones((2, 5)))
    with pytest.raises(ShapeError, match="flats"):
        load_scan(tmp_path / "c.npz")
    np.save(tmp_path / "d.npy", np.ones(5))
    with pytest.raises(ShapeError, match="projections of shape"):
        load_scan(tmp_path / "d.npy")
    (tmp_path / "e.npz").write_bytes(b"not a zip")
    with pytest.raises(GeometryError, match="e.npz"):
        load_scan(tmp_path / "e.npz")
    np.save(tmp_path / "f.npy", np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(GeometryError, match="objects"):
        load_scan(tmp_path / "f.npy")
    (tmp_path / "g.npz").write_bytes(pickle.dumps([1]))
    with pytest.raises(GeometryError, match="g.npz"):
        load_scan(tmp_path / "g.npz")


@pytest.mark.parametrize(("suffix", "library"), [(".h5", "h5py"), (".tif", "tifffile")])
def test_damaged_files_are_named(tmp_path: Path, suffix: str, library: str) -> None:
    pytest.importorskip(library)
    (tmp_path / f"a{suffix}").write_bytes(b"nonsense" * 20)
    with pytest.raises(GeometryError, match="a" + suffix):
        load_scan(tmp_path / f"a{suffix}")


def test_a_file_of_another_layout_lists_its_groups(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["entry/data"] = DATA
    with pytest.raises(GeometryError, match="it has entry"):
        load_scan(tmp_path / "a.h5")


def test_a_missing_reader_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.h5").write_bytes(b"")

    def refuse(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("geometries.scans.files.import_module", refuse)
    with pytest.raises(ImportError, match=r"linops\[io\]"):
        load_scan(tmp_path / "a.h5")
