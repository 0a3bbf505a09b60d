"""Files that hold less than they say, or something else: named and refused, whatever breaks in
the library that owns the format. Damage is done to small files of each kind, byte by byte."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geometries.scans.files import load_scan
from linops.errors import GeometryError, ShapeError

h5py = pytest.importorskip("h5py")
tifffile = pytest.importorskip("tifffile")

DATA = np.random.default_rng(0).random((5, 4, 6)).astype("float32")


def written(folder: Path, suffix: str) -> Path:
    file = folder / f"whole{suffix}"
    if suffix == ".npz":
        np.savez(file, projections=DATA)
    elif suffix == ".npy":
        np.save(file, DATA)
    elif suffix == ".h5":
        with h5py.File(file, "w") as archive:
            archive["exchange/data"] = DATA
    else:
        for number, page in enumerate(DATA):
            tifffile.imwrite(file, page, append=number > 0)
    return file


def refused(file: Path) -> str:
    with pytest.raises(GeometryError) as caught:
        load_scan(file)
    assert file.name in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".h5", ".tif"])
def test_every_cut_is_refused(tmp_path: Path, suffix: str) -> None:
    whole = written(tmp_path, suffix).read_bytes()
    cuts = {0, 1, 7, 64, len(whole) - 1, *np.linspace(2, len(whole) - 2, 25).astype(int).tolist()}
    for length in sorted(cuts):
        file = tmp_path / f"cut{length}{suffix}"
        file.write_bytes(whole[:length])
        refused(file)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".npz", ".npy", ".h5", ".tif"])
def test_a_flipped_byte_is_refused_or_harmless(tmp_path: Path, suffix: str) -> None:
    """An archive's checksum tells of every one; other formats may give other numbers, no more."""
    whole = written(tmp_path, suffix).read_bytes()
    file = tmp_path / f"flip{suffix}"
    generator = np.random.default_rng(1)
    for place in generator.choice(len(whole), 120, replace=False):
        bad = bytearray(whole)
        bad[place] ^= int(generator.integers(1, 256))
        file.write_bytes(bad)
        got: Any = None
        try:
            got = load_scan(file).projections
        except (GeometryError, ShapeError) as error:
            named = file.name in str(error)
        else:
            named = suffix != ".npz" or np.array_equal(got, DATA)
        assert named, place


def test_silenced_logs_hide_no_lost_page(tmp_path: Path) -> None:
    whole = written(tmp_path, ".tif").read_bytes()
    with tifffile.TiffFile(tmp_path / "whole.tif") as tiff:
        fourth = tiff.pages[3].offset
    file = tmp_path / "lost.tif"
    file.write_bytes(whole[: fourth - 4])
    logger = logging.getLogger("tifffile")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        refused(file)
    finally:
        logger.setLevel(before)


def _npy_header(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _hdf5(**data: Any) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        with h5py.File(file, "w") as archive:
            group = archive.create_group("exchange")
            for name, value in data.items():
                if callable(value):
                    value(group)
                else:
                    group[name] = value

    return write


def _npz(**data: Any) -> Callable[[Path], None]:
    return lambda file: np.savez(file, **data)


def _tiff(*pages: np.ndarray, **options: Any) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        for number, page in enumerate(pages):
            tifffile.imwrite(file, page, append=number > 0, **options)

    return write


def _as(file: Path, save: Callable[..., None]) -> None:
    with file.open("wb") as stream:
        save(stream, DATA)


def _bomb(file: Path) -> None:
    header = _npy_header("(99999, 99999, 9999)")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("projections.npy", header + bytes(400))


def _records(file: Path) -> None:
    np.save(file, np.zeros((3, 4), [("a", "f4"), ("b", "i2")]))


def _pickled(file: Path) -> None:
    np.save(file, np.full((3, 4), None), allow_pickle=True)


BAD: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "text": (".npy", lambda f: f.write_text("1 2 3\n4 5 6\n"), "another format"),
    "text in an archive's place": (".npz", lambda f: f.write_text("1 2 3"), "another format"),
    "an archive as an array": (".npy", lambda f: _as(f, np.savez), "another format"),
    "an array as an archive": (".npz", lambda f: _as(f, np.save), "another format"),
    "a picture as HDF5": (".h5", lambda f: f.write_bytes(b"\x89PNG" + bytes(99)), "another format"),
    "nothing": (".tif", lambda f: f.write_bytes(b""), "another format"),
    "a folder": (".h5", lambda f: f.mkdir(), "is a folder"),
    "pickled": (".npy", _pickled, "objects"),
    "pickled in an archive": (".npz", _npz(projections=DATA, notes=np.array([{}])), "objects"),
    "records": (".npy", _records, "real numbers"),
    "complex": (".npz", _npz(projections=DATA + 0j), "projections has dtype complex64"),
    "words for angles": (".npz", _npz(projections=DATA, theta_deg=np.array(list("abcde"))), "<U1"),
    "a NaN": (".npz", _npz(projections=np.where(DATA > 0.9, np.nan, DATA)), "NaN or infinite"),
    "an infinite angle": (
        ".npz",
        _npz(projections=DATA, angles=np.full(5, np.inf)),
        "angles has 5",
    ),
    "a NaN in a flat": (".npz", _npz(projections=DATA, flats=DATA * np.nan), "flats has 120"),
    "an absurd array": (".npy", lambda f: f.write_bytes(_npy_header("(99999, 99999)")), "is cut"),
    "a negative size": (
        ".npy",
        lambda f: f.write_bytes(_npy_header("(-5, 4)")),
        r"shape \(-5, 4\)",
    ),
    "an absurd member": (".npz", _bomb, "damaged"),
    "two kinds of angles": (
        ".npz",
        _npz(projections=DATA, angles=np.arange(5.0), theta_deg=np.arange(5.0)),
        "other angles",
    ),
    "a group": (".h5", _hdf5(data=lambda g: g.create_group("data")), "is a group"),
    "text in HDF5": (".h5", _hdf5(data="words"), "projections of shape"),
    "texts in HDF5": (".h5", _hdf5(data=np.full((2, 3), "a", object)), "dtype object"),
    "never written": (
        ".h5",
        _hdf5(data=lambda g: g.create_dataset("data", (10**6,) * 3, "f4", chunks=(64,) * 3)),
        "never written",
    ),
    "half written": (
        ".h5",
        _hdf5(
            data=lambda g: g.create_dataset("data", (4, 2, 3), "f4", chunks=(1, 2, 3)).write_direct(
                DATA[:2, :2, :3].copy(), dest_sel=np.s_[:2]
            )
        ),
        "2 of its 4 chunks",
    ),
    "a missing file": (".h5", _hdf5(data=h5py.ExternalLink("gone.h5", "/x")), "not there"),
    "a way out": (".h5", _hdf5(data=h5py.ExternalLink("../whole.h5", "/x")), "out of the folder"),
    "a missing name": (".h5", _hdf5(data=h5py.SoftLink("/exchange/none")), "not there"),
    "a circle": (".h5", _hdf5(data=h5py.SoftLink("/exchange/data")), "circle"),
    "raw data elsewhere": (
        ".h5",
        _hdf5(data=lambda g: g.create_dataset("data", (2, 3), "f4", external="/etc/hostname")),
        "out of the folder",
    ),
    "unknown units": (
        ".h5",
        _hdf5(
            data=DATA,
            theta=lambda g: g.create_dataset("theta", data=np.arange(5.0)).attrs.__setitem__(
                "units", "furlong"
            ),
        ),
        "units 'furlong'",
    ),
    "pages of two sizes": (".tif", _tiff(DATA[0], DATA[0, :2]), "page 1 has shape"),
    "pages of two dtypes": (".tif", _tiff(DATA[0], DATA[0].astype("u2")), "dtype uint16"),
    "colours": (".tif", _tiff(np.zeros((20, 30, 3), "u1"), photometric="rgb"), "colour"),
    "colours by plane": (
        ".tif",
        _tiff(np.zeros((3, 20, 30), "u1"), photometric="rgb", planarconfig="separate"),
        "colour",
    ),
    "a palette": (
        ".tif",
        _tiff(np.zeros((4, 5), "u1"), photometric="palette", colormap=np.zeros((3, 256), "u2")),
        "colour",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_scan_is_named(tmp_path: Path, kind: str) -> None:
    suffix, write, message = BAD[kind]
    folder = tmp_path / "scans"
    folder.mkdir()
    file = folder / f"bad{suffix}"
    write(file)
    with pytest.raises(ValueError, match=message) as caught:
        load_scan(file)
    assert type(caught.value).__module__ == "linops.errors"
    assert str(caught.value).startswith(file.name)


def test_links_within_the_folder_are_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["entry/frames"] = DATA
        file["also"] = h5py.SoftLink("entry")
    with h5py.File(tmp_path / "linked.h5", "w") as file:
        file["exchange/data"] = h5py.ExternalLink("raw.h5", "/also/frames")
        file["exchange/angles"] = np.arange(5)
        file["exchange/theta"] = h5py.SoftLink("/exchange/angles")
    scan = load_scan(tmp_path / "linked.h5", rows=slice(None, None, -1))
    np.testing.assert_array_equal(scan.projections, DATA[:, ::-1])
    np.testing.assert_allclose(scan.angles, np.deg2rad(np.arange(5)))
    layout = h5py.VirtualLayout(DATA.shape, "f4")
    layout[:] = h5py.VirtualSource("raw.h5", "entry/frames", DATA.shape)
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        file.create_group("exchange").create_virtual_dataset("data", layout)
    np.testing.assert_array_equal(load_scan(tmp_path / "virtual.h5").projections, DATA)
    (tmp_path / "raw.h5").rename(tmp_path / "away.h5")
    assert "not there" in refused(tmp_path / "virtual.h5")
