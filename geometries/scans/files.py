"""`load_scan`: measured scans from `.npz`, `.npy`, HDF5 (Data Exchange) and TIFF files.

Reads what a file says and nothing more: what it lacks (angles, a beam, distances) is None, for
the caller to give. Formats are in `geometries.scans.formats`; here are the checks that all share
and the choice of rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from geometries.scans.formats.arrays import open_npy, open_npz
from geometries.scans.formats.contents import Contents, Rows, Stored, of_numbers
from geometries.scans.formats.hdf5 import open_hdf5
from geometries.scans.formats.tiff import open_tiff
from geometries.scans.preprocess import LineIntegrals, line_integrals
from linops.errors import DTypeError, GeometryError, ShapeError

__all__ = ["Scan", "load_scan"]


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


def load_scan(
    path: str | os.PathLike[str], *, rows: int | slice | range | Sequence[int] | None = None
) -> Scan:
    """The scan in a file.

    Parameters
    ----------
    path
        `.npz` with an array named `projections` or `sinogram` and, where known, `angles` (radians)
        or `theta_deg` (degrees), `flats`, `darks`; `.npy` with the projections alone; `.h5`,
        `.hdf5`, `.hdf`, `.nxs` in the Data Exchange layout (`exchange/data`, `data_white`,
        `data_dark`, `theta` in degrees unless its units say otherwise: rad, mrad, deg, mdeg, gon,
        arcmin, arcsec, turn); `.tif`, `.tiff` with one page a view, or one page that is a sinogram.
        `~` is the home folder.
    rows
        Detector rows to read, of scans that have rows: one of them, which gives `(view, col)`, or a
        slice, a range or a sequence of them in the order that is wanted, steps negative too;
        negative numbers count from the end. Flats and darks, stacks or single pictures, are cut
        alike. From HDF5 only these are read.

    Returns
    -------
    Scan
        Arrays that are native, writeable and finite.

    Raises
    ------
    FileNotFoundError
        Where there is no such file.
    GeometryError
        For a suffix that is not served; a file without projections, with what it has; one that is
        damaged, cut or not of its suffix's format; colour pictures and pages that differ; units
        that are unknown; links that lead out of the file's folder; numbers that are NaN or
        infinite; rows that the scan has not. The message begins with the file's name.
    ShapeError
        Where the arrays do not fit each other.
    DTypeError
        Where `path` is no path, or `rows` no rows.
    ImportError
        Where a reader is not installed, with the command that installs it.
    """
    file = _path(path)
    known = _FORMATS.get(file.suffix.lower())
    if known is None:
        raise GeometryError(
            f"{file.name} has the suffix {file.suffix!r}; readable are {', '.join(_FORMATS)}"
        )
    if file.is_dir():
        raise GeometryError(f"{file.name} is a folder, not a file: {file}")
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}")
    open_contents, name = known
    reader = None if name is None else _library(name, file)
    with _named(file), open_contents(file, reader) as contents:
        _check_shapes(contents, file)
        return _read(contents, rows, file)


_FORMATS: dict[str, tuple[Callable[[Path, Any], AbstractContextManager[Contents]], str | None]] = {
    ".npz": (open_npz, None),
    ".npy": (open_npy, None),
    ".h5": (open_hdf5, "h5py"),
    ".hdf5": (open_hdf5, "h5py"),
    ".hdf": (open_hdf5, "h5py"),
    ".nxs": (open_hdf5, "h5py"),
    ".tif": (open_tiff, "tifffile"),
    ".tiff": (open_tiff, "tifffile"),
}
"""How a suffix is opened, and the library that it takes."""


def _path(path: Any) -> Path:
    try:
        return Path(os.fsdecode(path)).expanduser()
    except TypeError as error:
        raise DTypeError(f"path is {path!r}; it is a str or a pathlib.Path") from error


@contextmanager
def _named(file: Path) -> Iterator[None]:
    # Readers fail on damaged files with whatever breaks first: errors of zip, zlib, struct, the
    # parser of a header, memory. All of them say the same, once the file is named.
    try:
        yield
    except (GeometryError, ShapeError, DTypeError, ImportError):
        raise
    except Exception as error:
        raise GeometryError(
            f"{file.name} cannot be read as {file.suffix}; it is damaged or of another format: "
            f"{type(error).__name__}: {error}"
        ) from error


def _check_shapes(contents: Contents, file: Path) -> None:
    shape = contents.projections.shape
    if len(shape) not in (2, 3) or 0 in shape:
        raise ShapeError(
            f"{file.name}: projections of shape {shape}; they are (view, col) or (view, row, col)"
        )
    if contents.angles is not None and contents.angles.shape != shape[:1]:
        raise ShapeError(
            f"{file.name}: {contents.angles.shape} angles for {shape[0]} views; one a view"
        )
    for name, stack in (("flats", contents.flats), ("darks", contents.darks)):
        if stack is None:
            continue
        if stack.shape not in (shape[1:], (*stack.shape[:1], *shape[1:])) or 0 in stack.shape:
            raise ShapeError(
                f"{file.name}: {name} of shape {stack.shape} for views of shape {shape[1:]}"
            )


def _read(contents: Contents, rows: Any, file: Path) -> Scan:
    shape = contents.projections.shape
    index, single = None, False
    if rows is not None:
        index, single = _chosen(rows, shape[1] if len(shape) == 3 else None, file)

    def numbers(stored: Stored | None, name: str, axis: int) -> Any:
        if stored is None:
            return None
        chosen: Rows | None = None if index is None else (axis, index)
        values = of_numbers(stored, name, file, chosen)
        return values.squeeze(axis) if chosen is not None and single else values

    def images(stored: Stored | None, name: str) -> Any:
        # One picture has rows in front; a stack of them has them second, as the views have.
        return numbers(stored, name, 0 if stored is not None and stored.ndim < len(shape) else 1)

    angles = None
    if contents.angles is not None:
        stored = of_numbers(contents.angles, "angles", file)
        angles = stored.astype(np.float64) * contents.radians_per_unit
    return Scan(
        images(contents.projections, "projections"),
        angles,
        images(contents.flats, "flats"),
        images(contents.darks, "darks"),
        contents.extra,
    )


def _chosen(rows: Any, count: int | None, file: Path) -> tuple[np.ndarray | None, bool]:
    """The places of rows among so many, and whether it is one that stands for itself."""
    single = False
    if isinstance(rows, slice):
        try:
            index = np.arange(count or 0)[rows]
        except (TypeError, ValueError) as error:
            raise DTypeError(f"rows is {rows!r}; its ends and its step are integers") from error
    else:
        values = np.asarray(list(rows) if isinstance(rows, range) else rows)
        if (values.dtype.kind not in "iu" and values.size) or values.ndim > 1:
            raise DTypeError(
                f"rows is {rows!r}; it is an integer, a slice, a range or a sequence of integers"
            )
        single = values.ndim == 0
        index = values.reshape(-1).astype(np.int64)
    if count is None:
        return None, False  # one row, or a sinogram: there is nothing to choose from
    if len(index) == 0 or index.min() < -count or index.max() >= count:
        raise GeometryError(
            f"{file.name} has {count} detector rows, 0 to {count - 1}; rows={rows!r} "
            + ("chooses none of them" if len(index) == 0 else "lie outside")
        )
    return index % count, single


def _library(name: str, file: Path) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"reading {file.name} takes {name}, which is not installed: pip install 'linops[io]'"
        ) from error
