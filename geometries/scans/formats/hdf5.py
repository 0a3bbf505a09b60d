"""HDF5 in the Data Exchange layout. h5py reads it; links are followed within the folder alone."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from geometries.scans.formats.contents import Contents, Rows, Stored
from geometries.scans.formats.units import radians_in
from linops.errors import GeometryError

__all__ = ["open_hdf5"]

_DEPTH = 16  # of links that lead to links


@contextmanager
def open_hdf5(file: Path, h5py: Any) -> Iterator[Contents]:
    """`exchange/data`, `data_white`, `data_dark`, `theta` in degrees unless its units say else."""
    with ExitStack() as opened:
        links = _Links(h5py, file, opened)
        archive = opened.enter_context(h5py.File(file, "r"))

        def found(name: str) -> Any:
            return links.follow(archive, f"exchange/{name}")

        data = found("data")
        if data is None:
            raise GeometryError(
                f"{file.name} has no dataset exchange/data (Data Exchange); at its top it has "
                f"{', '.join(archive) or 'nothing'}"
            )
        theta, flats, darks = found("theta"), found("data_white"), found("data_dark")
        factor = 1.0
        if theta is not None:
            names = [name for name in theta.attrs if name.lower() in ("units", "unit")]
            units = theta.attrs[names[0]] if names else "deg"
            factor = radians_in(units, f"{file.name}: exchange/theta")
        yield Contents(
            _stored(data, "data", file),
            None if theta is None else _stored(theta, "theta", file),
            factor,
            None if flats is None else _stored(flats, "data_white", file),
            None if darks is None else _stored(darks, "data_dark", file),
            dict(archive.attrs),
        )


class _Links:
    """Follows soft and external links one name at a time, so that each can be looked at."""

    def __init__(self, h5py: Any, file: Path, opened: ExitStack) -> None:
        self._h5py, self._file, self._opened = h5py, file, opened
        self._folder = file.resolve().parent

    def follow(self, start: Any, path: str, depth: int = 0) -> Any:
        """The dataset at a path below a group; None where there is no such name."""
        node = self._walk(start, path, depth)
        if node is None:
            return None
        if not isinstance(node, self._h5py.Dataset):
            raise GeometryError(f"{self._file.name}: {path} is a group, not a dataset")
        if node.external:
            for name, _, _ in node.external:
                self._admitted(name, node.file, path)
        if node.is_virtual:
            for source in node.virtual_sources():
                other = node.file
                if source.file_name != ".":
                    # A pattern of files counts from 0; the first stands for all.
                    name = source.file_name.replace("%b", "0")
                    other = self._open(self._admitted(name, node.file, path))
                if depth >= _DEPTH or self.follow(other, source.dset_name, depth + 1) is None:
                    raise GeometryError(
                        f"{self._file.name}: {path} is put together from {source.dset_name} of "
                        f"{source.file_name}, which is not there"
                    )
        return node

    def _walk(self, start: Any, path: str, depth: int) -> Any:
        h5py = self._h5py
        if depth > _DEPTH:
            raise GeometryError(f"{self._file.name}: links of {path} lead in a circle")
        node = start.file if path.startswith("/") else start
        for name in filter(None, path.split("/")):
            if name == ".":
                continue
            if not isinstance(node, h5py.Group):
                return None
            link = node.get(name, getlink=True)
            if link is None:
                return None
            if isinstance(link, h5py.SoftLink):
                target = self._walk(node, link.path, depth + 1)
            elif isinstance(link, h5py.ExternalLink):
                other = self._open(self._admitted(link.filename, node.file, path))
                target = self._walk(other, link.path, depth + 1)
            else:
                node = node[name]
                continue
            if target is None:
                raise GeometryError(
                    f"{self._file.name}: {path} is a link to {link.path}, which is not there"
                )
            node = target
        return node

    def _admitted(self, name: str, owner: Any, path: str) -> Path:
        beside = Path(os.fsdecode(owner.filename)).resolve().parent
        target = (beside / os.fsdecode(name)).resolve()
        if not target.is_relative_to(self._folder):
            raise GeometryError(
                f"{self._file.name}: {path} lies in {name}, out of the folder of the scan; links "
                "are followed within it alone: copy the file there"
            )
        if not target.is_file():
            raise GeometryError(f"{self._file.name}: {path} lies in {name}, which is not there")
        return target

    def _open(self, file: Path) -> Any:
        return self._opened.enter_context(self._h5py.File(file, "r"))


def _stored(dataset: Any, name: str, file: Path) -> Stored:
    where = f"{file.name}: exchange/{name}"
    shape, dtype = dataset.shape, dataset.dtype
    if shape is None:
        raise GeometryError(f"{where} is empty")
    size = math.prod(shape) * dtype.itemsize
    if not dataset.is_virtual and size:
        if dataset.chunks is not None:
            parts = [-(-n // c) for n, c in zip(shape, dataset.chunks, strict=True)]
            wanted, there = math.prod(parts), dataset.id.get_num_chunks()
            kind = "chunks"
        else:
            wanted, there, kind = size, dataset.id.get_storage_size(), "bytes"
        if there < wanted:
            raise GeometryError(
                f"{where} of shape {shape} has {there} of its {wanted} {kind}: the rest was never "
                "written; crop it to what was measured"
            )

    def read(rows: Rows | None) -> np.ndarray:
        if rows is None:
            return np.asarray(dataset[()])
        axis, index = rows
        # HDF5 takes increasing places only, and ranges much faster than lists.
        places, order = np.unique(index, return_inverse=True)
        steps = np.diff(places)
        step = int(np.gcd.reduce(steps)) if len(steps) else 1
        span = slice(int(places[0]), int(places[-1]) + 1, step)
        if len(range(span.start, span.stop, step)) > 2 * len(places):
            part = dataset[(slice(None),) * axis + (places,)]
        else:
            part = dataset[(slice(None),) * axis + (span,)]
            order = (index - places[0]) // step
        return np.take(part, order, axis)

    return Stored(tuple(shape), dtype, read, whole=False)
