"""TIFF: one page a view, or one page that is a sinogram. tifffile reads it.

tifffile mends what it can and logs the rest: pages after a damaged link are left out with a line
in the log. A scan that lacks views without a word is worse than none, so its errors are ours.
"""

from __future__ import annotations

import logging
import math
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from geometries.scans.formats.contents import Contents, Rows, Stored
from linops.errors import GeometryError

__all__ = ["open_tiff"]

_PALETTE = 3


@contextmanager
def open_tiff(file: Path, tifffile: Any) -> Iterator[Contents]:
    """Pages of one size and dtype, one sample a pixel."""
    with _errors_of_tifffile(file), tifffile.TiffFile(file) as tiff:
        pages = list(tiff.pages)
        if not pages:
            raise GeometryError(f"{file.name} has no pages")
        first = pages[0]
        for number, page in enumerate(pages):
            _admit(page, number, first, file)
        after = _link_after(tiff, pages[-1])
        if after:
            raise GeometryError(
                f"{file.name} is cut or damaged: after {len(pages)} pages it points to another at "
                f"byte {after}, where none is"
            )
        yield Contents(_stored(tiff, pages, file))


def _admit(page: Any, number: int, first: Any, file: Path) -> None:
    samples, photometric = page.samplesperpixel, int(page.photometric or 0)
    if samples != 1 or photometric == _PALETTE:
        raise GeometryError(
            f"{file.name}: page {number} is a colour picture, {samples} samples a pixel; a scan "
            "has one intensity a pixel"
        )
    if page.ndim != 2 or page.dtype is None or page.dtype.kind not in "biuf":
        raise GeometryError(
            f"{file.name}: page {number} of shape {page.shape} and dtype {page.dtype} is no "
            "picture of real numbers"
        )
    if (page.shape, page.dtype) != (first.shape, first.dtype):
        raise GeometryError(
            f"{file.name}: page {number} has shape {page.shape} and dtype {page.dtype}, page 0 has "
            f"{first.shape} and {first.dtype}; the pages of a scan are alike"
        )
    size = page.parent.filehandle.size
    places = list(zip(page.dataoffsets, page.databytecounts, strict=False))
    held = sum(int(count) for _, count in places)
    lacks = page.compression == 1 and page.bitspersample >= 8 and held < page.nbytes
    if not places or lacks or any(at <= 0 or n <= 0 or at + n > size for at, n in places):
        raise GeometryError(
            f"{file.name} is cut or damaged: data of page {number}, shape {page.shape} and dtype "
            f"{page.dtype}, lie outside its {size} bytes or are not there"
        )


def _stored(tiff: Any, pages: list[Any], file: Path) -> Stored:
    page, images = pages[0], len(pages)
    # Some programs write one page and the images after it in a row, and say so in the description.
    described = sum(math.prod(series.shape) for series in tiff.series) // math.prod(page.shape)
    if described > images:
        at, needed = page.dataoffsets[0], described * page.nbytes
        if images > 1 or not page.is_contiguous or at + needed > tiff.filehandle.size:
            raise GeometryError(
                f"{file.name} describes {described} images and has {images}: it is cut, or one of "
                "several files of a scan; join them in one"
            )
        images = described
    shape = (images, *page.shape) if images > 1 else page.shape

    def read(rows: Rows | None) -> np.ndarray:
        if images > len(pages):
            whole = tiff.series[0].asarray().reshape(shape)
            return np.asarray(whole if rows is None else np.take(whole, rows[1], rows[0]))
        kept = page.shape if rows is None else (len(rows[1]), *page.shape[1:])
        out = np.empty((images, *kept), page.dtype)
        for one, into in zip(pages, out, strict=True):
            picture = one.asarray()
            into[...] = picture if rows is None else picture[rows[1]]
        return out if images > 1 else out[0]

    return Stored(tuple(shape), np.dtype(page.dtype), read, whole=False)


def _link_after(tiff: Any, page: Any) -> int:
    """Where the page says the next one is; 0 after the last."""
    if page.offset is None:  # counted, not read
        return 0
    stream, form = tiff.filehandle, tiff.tiff
    stream.seek(page.offset)
    (tags,) = struct.unpack(form.tagnoformat, stream.read(form.tagnosize))
    stream.seek(page.offset + form.tagnosize + tags * form.tagsize)
    (offset,) = struct.unpack(form.offsetformat, stream.read(form.offsetsize))
    return int(offset)


@contextmanager
def _errors_of_tifffile(file: Path) -> Iterator[None]:
    logger, found = logging.getLogger("tifffile"), _Heard()
    logger.addFilter(found)
    try:
        yield
    finally:
        logger.removeFilter(found)
    if found.message is not None:
        raise GeometryError(f"{file.name} is damaged: {found.message}")


class _Heard(logging.Filter):
    """Takes the errors of this thread out of the log; the first is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.message: str | None = None
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread or record.levelno < logging.ERROR:
            return True
        self.message = self.message or record.getMessage()
        return False
