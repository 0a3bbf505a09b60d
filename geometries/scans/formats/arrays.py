"""`.npz` and `.npy`: headers first, so that a lying one allocates nothing; nothing is unpickled."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from geometries.scans.formats.contents import Contents, Rows, Stored, deflates
from geometries.scans.formats.units import radians_in
from linops.errors import GeometryError

__all__ = ["open_npy", "open_npz"]

_DATA = ("projections", "sinogram", "sinogram_u16", "aligned", "data")
_RADIANS = ("angles", "angles_rad", "theta_rad")
_DEGREES = ("theta_deg", "angles_deg", "tilt_deg", "theta")
_FLATS = ("flats", "flat", "data_white", "white")
_DARKS = ("darks", "dark", "data_dark")


@contextmanager
def open_npz(file: Path, _: Any) -> Iterator[Contents]:
    """An archive with an array named `projections`, `sinogram` or like Data Exchange."""
    with zipfile.ZipFile(file) as archive:
        found = {
            info.filename.removesuffix(".npy"): _member(archive, info, file)
            for info in archive.infolist()
            if info.filename.endswith(".npy")
        }
        listed = ", ".join(sorted(found)) or "nothing"
        data = _take(found, _DATA)
        if data is None:
            raise GeometryError(
                f"{file.name} has no array named {' or '.join(_DATA[:2])}; it has {listed}"
            )
        angles, factor = _angles(found, file)
        flats, darks = _take(found, _FLATS), _take(found, _DARKS)
        extra = {name: _plain(stored.read(None)) for name, stored in found.items()}
        yield Contents(
            data[1],
            angles,
            factor,
            None if flats is None else flats[1],
            None if darks is None else darks[1],
            extra,
        )


@contextmanager
def open_npy(file: Path, _: Any) -> Iterator[Contents]:
    """An array of projections alone."""
    with open(file, "rb") as stream:
        shape, dtype = _header(stream, file.name)
        held = file.stat().st_size - stream.tell()
    size = math.prod(shape) * dtype.itemsize
    if held < size:
        raise GeometryError(f"{file.name} is cut: {held} of the {size} bytes of its array are left")

    def read(rows: Rows | None) -> np.ndarray:
        mapped = np.load(file, mmap_mode="r", allow_pickle=False)
        return np.array(mapped) if rows is None else np.take(mapped, rows[1], rows[0])

    yield Contents(Stored(shape, dtype, read, whole=False))


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: Path) -> Stored:
    where = f"{file.name}: {info.filename}"
    with archive.open(info) as stream:
        shape, dtype = _header(stream, where)
        size = stream.tell() + math.prod(shape) * dtype.itemsize
    packed = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    if size != info.file_size or (packed and not deflates(size, info.compress_size)):
        raise GeometryError(
            f"{where} of shape {shape} and dtype {dtype} takes {size} bytes, and the archive has "
            f"{info.file_size} in {info.compress_size}: it is damaged"
        )

    def read(rows: Rows | None) -> np.ndarray:
        with archive.open(info) as stream:
            values = np.lib.format.read_array(stream, allow_pickle=False)
            stream.read()  # at its end the checksum is compared
        return np.asarray(values if rows is None else np.take(values, rows[1], rows[0]))

    return Stored(shape, dtype, read)


def _header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise GeometryError(f"{where} has version {version} of the format, which is for records")
    shape, _, dtype = read(stream)
    if min(shape, default=0) < 0:
        raise GeometryError(f"{where} has the shape {shape}: it is damaged")
    if dtype.hasobject:
        raise GeometryError(f"{where} holds objects, not a plain array; they are not unpickled")
    return shape, dtype


def _angles(found: dict[str, Stored], file: Path) -> tuple[Stored | None, float]:
    given = [(_take(found, names), unit) for names, unit in ((_RADIANS, "rad"), (_DEGREES, "deg"))]
    factors = []
    for entry, unit in given:
        if entry is None:
            continue
        name, stored = entry
        stated = found.get(f"{name}_units") or found.get(f"{name}_unit")
        units: Any = unit if stated is None else _plain(stated.read(None))
        factors.append((name, stored, radians_in(units, f"{file.name}: {name}")))
    if len(factors) == 2:
        (name, one, factor), (other, two, another) = factors
        if one.shape != two.shape or not np.allclose(
            one.read(None) * factor, two.read(None) * another, rtol=0, atol=1e-4
        ):
            raise GeometryError(
                f"{file.name} has {name} and {other}, and they are other angles; keep one of them"
            )
    return factors[0][1:] if factors else (None, 1.0)


def _take(found: dict[str, Stored], names: tuple[str, ...]) -> tuple[str, Stored] | None:
    return next(((name, found.pop(name)) for name in names if name in found), None)


def _plain(value: np.ndarray) -> Any:
    return value[()] if value.ndim == 0 else value
