"""Scans from files of each kind, written here with the libraries that own the formats."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geometries.scans.files import load_scan
from geometries.scans.formats.units import radians_in
from linops.errors import DTypeError, GeometryError, ShapeError

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


def test_tiff_pages_however_they_were_written(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.tif", DATA, photometric="minisblack")
    tifffile.imwrite(tmp_path / "b.tif", DATA, imagej=True)
    tifffile.imwrite(tmp_path / "c.tif", DATA, photometric="minisblack", truncate=True)
    tifffile.imwrite(tmp_path / "d.tif", DATA, photometric="minisblack", bigtiff=True)
    tifffile.imwrite(tmp_path / "e.tif", DATA, photometric="minisblack", byteorder=">", ome=True)
    for number, page in enumerate(DATA):
        tifffile.imwrite(tmp_path / "f.tif", page, append=number > 0)
    for name in "abcdef":
        scan = load_scan(tmp_path / f"{name}.tif")
        np.testing.assert_array_equal(scan.projections, DATA, err_msg=name)
        assert scan.projections.dtype.isnative
    tifffile.imwrite(tmp_path / "g.tif", DATA[0])
    np.testing.assert_array_equal(load_scan(tmp_path / "g.tif", rows=7).projections, DATA[0])


def test_rows_of_every_format(tmp_path: Path) -> None:
    """What NumPy gives for the same indices; flats are one picture, darks a stack of them."""
    h5py, tifffile = pytest.importorskip("h5py"), pytest.importorskip("tifffile")
    data = np.random.default_rng(0).random((3, 7, 4))
    flats, darks = 2 + data[0], data[1:] / 8
    np.savez(tmp_path / "a.npz", projections=data, flats=flats, darks=darks)
    np.save(tmp_path / "a.npy", data)
    tifffile.imwrite(tmp_path / "a.tif", data, photometric="minisblack")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("exchange/data", data=data, chunks=(1, 3, 4), compression="gzip")
        file["exchange/data_white"], file["exchange/data_dark"] = flats, darks
    wanted: list[tuple[Any, Any]] = [
        (rows, rows)
        for rows in (
            0, 6, -1, np.int64(2), np.array(3), slice(None), slice(5, 1, -2), slice(-2, None),
            [4, 0, 4], [-1, 2], np.array([6, 5, 0], np.uint8), slice(np.int32(1), np.int32(4)),
        )
    ] + [(range(6, -1, -3), [6, 3, 0]), ((1, 5), [1, 5])]  # fmt: skip
    for suffix in ("npz", "npy", "tif", "h5"):
        for rows, plain in wanted:
            scan = load_scan(tmp_path / f"a.{suffix}", rows=rows)
            np.testing.assert_array_equal(scan.projections, data[:, plain], err_msg=repr(rows))
            if suffix in ("npz", "h5"):
                np.testing.assert_array_equal(scan.flats, flats[plain], err_msg=repr(rows))
                np.testing.assert_array_equal(scan.darks, darks[:, plain], err_msg=repr(rows))
        for rows in (7, -8, [0, 7], [], slice(3, 3)):
            with pytest.raises(GeometryError, match=rf"a.{suffix} has 7 detector rows, 0 to 6"):
                load_scan(tmp_path / f"a.{suffix}", rows=rows)
    for rows in (1.0, True, "1", [True, False], [[1]], slice(0.5, 2)):
        with pytest.raises(DTypeError, match="rows is"):
            load_scan(tmp_path / "a.npy", rows=rows)
    for path in (None, 5, [tmp_path]):
        with pytest.raises(DTypeError, match="path is"):
            load_scan(path)


def test_one_flat_of_a_row_is_that_row(tmp_path: Path) -> None:
    """Counts made with a flat that differs from row to row give the line integrals back."""
    h5py = pytest.importorskip("h5py")
    flat = np.repeat([[100.0], [200.0], [400.0]], 4, axis=1)
    counts = flat * np.exp(-np.full((2, 3, 4), 0.5))
    np.savez(tmp_path / "a.npz", projections=counts, flats=flat)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["exchange/data"], file["exchange/data_white"] = counts, flat
    for name in ("a.npz", "a.h5"):
        for rows in (2, [0, 2]):
            data = load_scan(tmp_path / name, rows=rows).line_integrals().data
            np.testing.assert_allclose(data, 0.5, rtol=1e-12)


@pytest.mark.parametrize(
    ("units", "turn"),
    [
        (np.array([b"rad"]), 2 * np.pi), (" Radians ", 2 * np.pi), ("[rad]", 2 * np.pi),
        (np.bytes_("mrad"), 2000 * np.pi), ("deg.", 360), ("\u00b0", 360), (b"[deg]\0", 360),
        (["degree"], 360), ("gon", 400), ("arcsec", 1296000), ("turn", 1),
    ],
)  # fmt: skip
def test_units_of_angles(tmp_path: Path, units: Any, turn: float) -> None:
    assert radians_in(units, "theta") * turn == pytest.approx(2 * np.pi, rel=1e-15)
    for unknown in ("", "mm", 1.0, None, ["deg", "rad"], "radius"):
        with pytest.raises(GeometryError, match="theta has the units"):
            radians_in(unknown, "theta")
    np.savez(tmp_path / "a.npz", sinogram=DATA[:, 0], theta=np.arange(4) * turn, theta_units=units)
    np.testing.assert_allclose(load_scan(tmp_path / "a.npz").angles, np.arange(4) * 2 * np.pi)


def test_home_and_byte_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    np.savez(tmp_path / "a.npz", projections=DATA.astype(">f4"), theta_deg=THETA.astype(">f8"))
    np.save(tmp_path / "a.npy", np.asfortranarray(DATA.astype(">i2")))
    for name in ("~/a.npz", Path("~/a.npy"), b"~/a.npy"):
        scan = load_scan(name)
        np.testing.assert_array_equal(scan.projections, DATA)
        assert scan.projections.dtype.isnative
        assert scan.projections.flags.c_contiguous and scan.projections.flags.writeable


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
