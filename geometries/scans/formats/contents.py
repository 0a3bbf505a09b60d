"""What every format tells of a file before its numbers are read: arrays by shape and dtype.

A format opens a file and gives `Contents`; `load_scan` checks shapes, dtypes and sizes on it, and
then reads what it wants. The names under which archives keep a scan are here too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from linops.errors import GeometryError

__all__ = ["Contents", "Rows", "Stored", "deflates", "of_numbers"]

_DEFLATE = 1100  # No deflate stream grows by more than 1032 to 1.

Rows = tuple[int, np.ndarray]
"""An axis and the indices along it that are wanted, in the order in which they are wanted."""


@dataclass(frozen=True)
class Stored:
    """An array in a file.

    Attributes
    ----------
    shape, dtype
        As the file states them.
    read
        Gives its numbers, all of them or those of some rows.
    whole
        Whether all of it is read, whatever rows are wanted.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[Rows | None], np.ndarray]
    whole: bool = True

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def bytes_for(self, rows: Rows | None) -> int:
        """Bytes that reading those rows takes in memory."""
        size = math.prod(self.shape) * self.dtype.itemsize
        if rows is None or self.whole:
            return size
        axis, index = rows
        return size // max(self.shape[axis], 1) * len(index)


@dataclass(frozen=True)
class Contents:
    """What a file holds of a scan, unread; angles are in units of `radians_per_unit`."""

    projections: Stored
    angles: Stored | None = None
    radians_per_unit: float = 1.0
    flats: Stored | None = None
    darks: Stored | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def of_numbers(stored: Stored, name: str, file: Path, rows: Rows | None = None) -> np.ndarray:
    """The numbers of an array, native, finite, or an error that says which they are not."""
    if stored.dtype.kind not in "biuf":
        raise GeometryError(
            f"{file.name}: {name} has dtype {stored.dtype}; it is an array of real numbers"
        )
    size, memory = stored.bytes_for(rows), _memory()
    if memory is not None and size > memory:
        raise GeometryError(
            f"{file.name}: {name} of shape {stored.shape} and dtype {stored.dtype} takes {size} "
            f"bytes, more than the {memory} of this machine; read some of its rows, rows=..., "
            "from HDF5, .npy or TIFF, or the file is damaged"
        )
    values = np.asarray(stored.read(rows))
    values = np.require(values, values.dtype.newbyteorder("="), ("W", "C"))
    if values.dtype.kind == "f":
        # View by view: a mask of the whole would take a quarter of the scan again.
        parts = values if values.ndim > 1 else (values,)
        bad = [k for k, part in enumerate(parts) if not np.isfinite(part).all()]
        if bad:
            count = sum(int(np.size(parts[k]) - np.isfinite(parts[k]).sum()) for k in bad)
            place = f"the first in {name}[{bad[0]}]" if values.ndim > 1 else "of its entries"
            raise GeometryError(
                f"{file.name}: {name} has {count} values that are NaN or infinite, {place}; repair "
                "them in the file, or read it yourself and build a Scan"
            )
    return values


def deflates(inside: int, stored: int) -> bool:
    """Whether so many stored bytes can be a deflate stream of so many."""
    return inside <= _DEFLATE * stored + 1024


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return None
