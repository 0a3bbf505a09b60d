"""`load_scan`: measured scans from `.npz`, `.npy`, HDF5 (Data Exchange) and TIFF files.

Reads what a file says and nothing more: what it lacks (angles, a beam, distances) is None, for
the caller to give. h5py and tifffile are imported when a file needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from geometries.scans.preprocess import LineIntegrals, line_integrals
from linops.errors import GeometryError, ShapeError

__all__ = ["Scan", "load_scan"]

_DATA = ("projections", "sinogram", "sinogram_u16", "aligned", "data")
_RADIANS = ("angles", "angles_rad", "theta_rad")
_DEGREES = ("theta_deg", "angles_deg", "tilt_deg", "theta")
_FLATS = ("flats", "flat", "data_white", "white")
_DARKS = ("darks", "dark", "data_dark")


@dataclass(frozen=True, eq=False)
class Scan:
    """What a file holds of a scan.

    Attributes
    ----------
    projections
        `(view, col)` or `(view, row, col)`, as stored.
    angles
        Radians, float64, `(view,)`; None where the file has none.
    flats, darks
        Images without object and without beam, or None.
    extra
        Everything else: distances, pitches, attributes.
    """

    projections: np.ndarray
    angles: np.ndarray | None = None
    flats: np.ndarray | None = None
    darks: np.ndarray | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def line_integrals(self, *, floor: float = 1e-4) -> LineIntegrals:
        """The projections flat-corrected and logarithmic; see `geometries.line_integrals`.

        Raises
        ------
        GeometryError
            Where the file has no flats.
        """
        if self.flats is None:
            raise GeometryError("the scan has no flats; projections may be line integrals already")
        darks = 0.0 if self.darks is None else self.darks
        return line_integrals(self.projections, self.flats, darks, floor=floor)


def load_scan(path: str | Path, *, rows: slice | int | None = None) -> Scan:
    """The scan in a file.

    Parameters
    ----------
    path
        `.npz` with an array named `projections` or `sinogram` and, where known, `angles` (radians)
        or `theta_deg` (degrees), `flats`, `darks`; `.npy` with the projections alone; `.h5`,
        `.hdf5`, `.hdf`, `.nxs` in the Data Exchange layout (`exchange/data`, `data_white`,
        `data_dark`, `theta` in degrees unless its units say otherwise); `.tif`, `.tiff` with one
        page a view, or one page that is a sinogram.
    rows
        Detector rows to read, of scans that have rows: a slice, or one row, which gives
        `(view, col)`. From HDF5 only these are read.

    Raises
    ------
    FileNotFoundError
        Where there is no such file.
    GeometryError
        For a suffix that is not served and a file without projections; the message lists what
        it has.
    ShapeError
        Where the arrays do not fit each other.
    ImportError
        Where a reader is not installed, with the command that installs it.
    """
    file = Path(path)
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise GeometryError(
            f"{file.name} has the suffix {file.suffix!r}; readable are {', '.join(_READERS)}"
        )
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}")
    try:
        scan = reader(file, rows)
    except (OSError, EOFError) as error:
        raise GeometryError(f"{file.name} cannot be read as {file.suffix}: {error}") from error
    return _checked(scan, file)


def _read_npz(file: Path, rows: slice | int | None) -> Scan:
    try:
        with np.load(file, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except ValueError as error:
        raise GeometryError(f"{file.name} holds objects, not plain arrays: {error}") from error
    data = _take(found, _DATA)
    if data is None:
        raise GeometryError(
            f"{file.name} has no array named {' or '.join(_DATA[:2])}; it has "
            f"{', '.join(sorted(found)) or 'nothing'}"
        )
    angles, degrees = _take(found, _RADIANS), _take(found, _DEGREES)
    if angles is None and degrees is not None:
        angles = np.deg2rad(degrees.astype(np.float64))
    flats, darks = _take(found, _FLATS), _take(found, _DARKS)
    extra = {name: value[()] if value.ndim == 0 else value for name, value in found.items()}
    return Scan(_rows(data, rows), angles, _rows(flats, rows), _rows(darks, rows), extra)


def _read_npy(file: Path, rows: slice | int | None) -> Scan:
    try:
        data = np.load(file, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise GeometryError(f"{file.name} holds objects, not a plain array: {error}") from error
    return Scan(np.array(_rows(data, rows)))


def _read_hdf5(file: Path, rows: slice | int | None) -> Scan:
    h5py = _library("h5py", file)
    with h5py.File(file, "r") as archive:
        if "exchange/data" not in archive:
            raise GeometryError(
                f"{file.name} has no dataset exchange/data (Data Exchange); at its top it has "
                f"{', '.join(archive) or 'nothing'}"
            )
        group = archive["exchange"]

        def read(name: str) -> np.ndarray | None:
            if name not in group:
                return None
            stored = group[name]
            chosen = rows if rows is not None and stored.ndim == 3 else slice(None)
            return np.asarray(stored[:, chosen] if stored.ndim == 3 else stored[()])

        angles = None
        if "theta" in group:
            units = group["theta"].attrs.get("units", "deg")
            units = units.decode() if isinstance(units, bytes) else str(units)
            angles = np.asarray(group["theta"][()], np.float64)
            if not units.lower().startswith("rad"):
                angles = np.deg2rad(angles)
        extra = dict(archive.attrs)
        data = read("data")
        assert data is not None
        return Scan(data, angles, read("data_white"), read("data_dark"), extra)


def _read_tiff(file: Path, rows: slice | int | None) -> Scan:
    tifffile = _library("tifffile", file)
    try:
        data = np.asarray(tifffile.imread(file))
    except tifffile.TiffFileError as error:
        raise GeometryError(f"{file.name} cannot be read as TIFF: {error}") from error
    return Scan(_rows(data, rows))


_READERS: dict[str, Callable[[Path, slice | int | None], Scan]] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".h5": _read_hdf5,
    ".hdf5": _read_hdf5,
    ".hdf": _read_hdf5,
    ".nxs": _read_hdf5,
    ".tif": _read_tiff,
    ".tiff": _read_tiff,
}


def _take(found: dict[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray | None:
    return next((found.pop(name) for name in names if name in found), None)


def _rows(data: Any, rows: slice | int | None) -> Any:
    if data is None or rows is None or data.ndim != 3:
        return data
    return data[:, rows]


def _checked(scan: Scan, file: Path) -> Scan:
    shape = scan.projections.shape
    if len(shape) not in (2, 3) or 0 in shape or scan.projections.dtype.kind not in "biuf":
        raise ShapeError(
            f"{file.name}: projections of shape {shape} and dtype {scan.projections.dtype}; they "
            "are real numbers, (view, col) or (view, row, col)"
        )
    if scan.angles is not None and scan.angles.shape != shape[:1]:
        raise ShapeError(
            f"{file.name}: {scan.angles.shape} angles for {shape[0]} views; one a view"
        )
    for name, stack in (("flats", scan.flats), ("darks", scan.darks)):
        if stack is not None and stack.shape not in (shape[1:], (len(stack), *shape[1:])):
            raise ShapeError(
                f"{file.name}: {name} of shape {stack.shape} for views of shape {shape[1:]}"
            )
    return scan


def _library(name: str, file: Path) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"reading {file.name} takes {name}, which is not installed: pip install 'linops[io]'"
        ) from error
