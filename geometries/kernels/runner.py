"""From a projector to its kernel: memory order, batches, and the window that a block covers.

Kernels want z fastest, `(y, x, z)` and `(view, col, row)`; users have `(z, y, x)` and
`(view, row, col)`. Results come back as strided arrays in the user's order, and an input that is
already in the kernel's order is not copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from geometries.kernels.mixed import MixedKernel
from geometries.kernels.planar import PlanarScan
from geometries.kernels.structure import groups_of
from geometries.kernels.volume_scan import VolumeScan
from geometries.surfaces import cell_points

if TYPE_CHECKING:
    from geometries.projector import Projector

__all__ = ["PlanarRunner", "VolumeRunner", "make"]

_KERNELS = {
    ("siddon", "aligned rows"): "aligned.kernel",
    ("siddon", "aligned"): "aligned.kernel",
    ("siddon", "columns"): "columns.kernel",
    ("siddon", "oblique"): "oblique.kernel",
    ("siddon", "sampled"): "oblique.kernel",
    ("joseph", "aligned rows"): "aligned.joseph",
    ("joseph", "aligned"): "aligned.joseph",
    ("joseph", "columns"): "joseph_columns.kernel",
    ("joseph", "oblique"): "oblique.joseph",
    ("joseph", "sampled"): "oblique.joseph",
}


def make(projector: Projector) -> Any:
    """The runner of a projector."""
    return _RUNNERS[projector.model, projector.backend](projector)


class PlanarRunner:
    """Images `(y, x)` and sinograms `(view, col)`, any batch axes in front.

    `kernel` has the functions of the module `planar`, which is the default.
    """

    def __init__(self, projector: Projector, kernel: Any = None) -> None:
        self._kernel = import_module("geometries.kernels.planar") if kernel is None else kernel
        grid, detector = projector.grid, projector._seen.detector.host
        frames = np.asarray(projector.frames)
        parallel = projector._seen.kind == "parallel"
        unused = np.zeros_like(frames[:, 0])
        points = None
        if detector.surface is not None:
            numbers = frames[:, 3, 0].astype(np.int64)
            count = int(frames[0, 3, 1]) if len(frames) else 0
            points = cell_points(detector, (frames[:, 1], frames[:, 2]), numbers, count)
        elif detector.curvature is not None:
            along, depth = detector.column_offsets()
            u = frames[:, 2]
            n = np.stack([-u[:, 1], u[:, 0]], axis=1)
            points = (
                frames[:, 1, None]
                + along[None, :, None] * u[:, None]
                + depth[None, :, None] * n[:, None]
            )
        self._scan = PlanarScan(
            kind="parallel" if parallel else "fan",
            origins=unused if parallel else frames[:, 0],
            directions=frames[:, 0] if parallel else unused,
            centers=frames[:, 1],
            u=frames[:, 2],
            columns=detector.shape[0],
            pitch=detector.pitch[0],
            offset=detector.offset[0],
            points=points,
            grid_shape=(grid.shape[0], grid.shape[1]),
            spacing=(grid.spacing[0], grid.spacing[1]),
            center=(grid.center[0], grid.center[1]),
            model="joseph" if projector.model == "joseph" else "siddon",
        )
        self._dtype = projector.domain.dtype
        self._image, self._sinogram = projector.domain.shape, projector.codomain.shape
        window = [int(n) for n in np.asarray(projector.window)]
        self._part: dict[str, Any] = {
            "first_cell": (window[3], window[4]),
            "first_column": window[2],
            "views": _real_views(self._sinogram[0], window),
        }
        self._options = {**self._part, "precision": str(projector.precision)}

    def forward(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Line integrals of `x` `(..., y, x)`, shape `(..., view, col)`; into `out` in C order."""
        batch = x.shape[:-2]
        shape = (math.prod(batch), *self._sinogram)
        made = np.empty(shape, self._dtype) if out is None else out.reshape(shape)
        image = np.ascontiguousarray(x.reshape(len(made), *self._image))
        self._kernel.forward(self._scan, image, made, **self._options)
        return made.reshape(*batch, *self._sinogram) if out is None else out

    def adjoint(self, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The transpose: `(..., view, col)` to `(..., y, x)`; into `out` in C order."""
        batch = y.shape[:-2]
        shape = (math.prod(batch), *self._image)
        made = np.empty(shape, self._dtype) if out is None else out.reshape(shape)
        sinogram = np.ascontiguousarray(y.reshape(len(made), *self._sinogram))
        self._kernel.adjoint(self._scan, sinogram, made, **self._options)
        return made.reshape(*batch, *self._image) if out is None else out

    def forward_columns(self, x: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Line integrals of the cells `index` with values `x` `(..., s)`."""
        batch = x.shape[:-1]
        out = np.empty((math.prod(batch), *self._sinogram), self._dtype)
        values = np.ascontiguousarray(x.reshape(len(out), len(index)))
        self._kernel.forward_cells(self._scan, values, index, out)
        return out.reshape(*batch, *self._sinogram)

    def adjoint_columns(self, y: np.ndarray, index: np.ndarray) -> np.ndarray:
        """The transpose of `forward_columns`."""
        batch = y.shape[:-2]
        out = np.empty((math.prod(batch), len(index)), self._dtype)
        sinogram = np.ascontiguousarray(y.reshape(len(out), *self._sinogram))
        self._kernel.adjoint_cells(self._scan, sinogram, index, out)
        return out.reshape(*batch, len(index))

    def gram_diagonal(self, weights: np.ndarray | None) -> np.ndarray:
        """`sum_i w_i a_ij^2` for every cell, shape `(y, x)`; 1 for every weight by default."""
        out = np.empty(self._image, self._dtype)
        if weights is None:
            weights = np.ones(self._sinogram, self._dtype)
        self._kernel.gram_diagonal(self._scan, weights, out, **self._part)
        return out


class VolumeRunner:
    """Volumes `(z, y, x)` and projections `(view, row, col)`, any batch axes in front.

    `kernel` is a `VolumeKernel`; by default the one that the projector's frames allow.
    """

    def __init__(self, projector: Projector, kernel: Any = None) -> None:
        grid, detector = projector.grid, projector._seen.detector.host
        self._scan = VolumeScan.from_frames(
            projector._seen.kind, np.asarray(projector.frames), detector, grid
        )
        if kernel is None:
            kernel = _kernel_of(projector.model, projector._kernel, self._scan)
        self._kernel = kernel
        self._dtype = projector.domain.dtype
        self._volume, self._projections = projector.domain.shape, projector.codomain.shape
        window = [int(n) for n in np.asarray(projector.window)]
        self._first_slice = window[4]
        self._part: dict[str, Any] = {
            "first_row": window[2],
            "first_column": window[3],
            "views": _real_views(self._projections[0], window),
        }
        self._options = {**self._part, "precision": str(projector.precision)}
        self._first_cell = (window[4], window[5], window[6])

    def forward(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Line integrals of `x` `(..., z, y, x)`, shape `(..., view, row, col)`.

        `out` has rows innermost in memory.
        """
        batch = x.shape[:-3]
        volume = self._zfast(x, self._volume)
        views, rows, cols = self._projections
        if out is None:
            made = self._empty(len(volume), self._projections)
        else:
            made = np.swapaxes(out, -1, -2).reshape(len(volume), views, cols, rows)
        if made.size:
            self._kernel.forward(
                self._scan, volume, made, first_cell=self._first_cell, **self._options
            )
        return _split_batch(np.swapaxes(made, -1, -2), batch) if out is None else out

    def adjoint(self, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The transpose: `(..., view, row, col)` to `(..., z, y, x)`; `out` has z innermost."""
        batch = y.shape[:-3]
        # (view, row, col) to (view, col, row): the same move of the middle axis to the end.
        rows = np.swapaxes(y, -1, -2).reshape(
            math.prod(batch), self._projections[0], self._projections[2], self._projections[1]
        )
        projections = np.ascontiguousarray(rows)
        nz, ny, nx = self._volume
        shape = (len(projections), ny, nx, nz)
        if out is None:
            made = np.zeros(shape, self._dtype)
        else:
            made = np.moveaxis(out, -3, -1).reshape(shape)
            made[...] = 0
        if projections.size:
            self._kernel.adjoint(
                self._scan, projections, made, first_cell=self._first_cell, **self._options
            )
        return _split_batch(np.moveaxis(made, -1, 1), batch) if out is None else out

    def forward_columns(self, x: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Line integrals of in-plane positions `index` with values `x` `(..., z, s)`."""
        batch = x.shape[:-2]
        values = np.ascontiguousarray(
            np.swapaxes(x, -1, -2).reshape(math.prod(batch), len(index), self._volume[0])
        )
        out = self._empty(len(values), self._projections)
        if out.size:
            self._kernel.forward_columns(
                self._scan, values, index, out, first_slice=self._first_slice, **self._options
            )
        return _split_batch(np.swapaxes(out, -1, -2), batch)

    def adjoint_columns(self, y: np.ndarray, index: np.ndarray) -> np.ndarray:
        """The transpose of `forward_columns`, shape `(..., z, s)`."""
        batch = y.shape[:-3]
        rows = np.swapaxes(y, -1, -2).reshape(
            math.prod(batch), self._projections[0], self._projections[2], self._projections[1]
        )
        out = np.zeros((len(rows), len(index), self._volume[0]), self._dtype)
        if rows.size:
            self._kernel.adjoint_columns(
                self._scan,
                np.ascontiguousarray(rows),
                index,
                out,
                first_slice=self._first_slice,
                **self._options,
            )
        return _split_batch(np.swapaxes(out, -1, -2), batch)

    def gram_diagonal(self, weights: np.ndarray | None) -> np.ndarray:
        """`sum_i w_i a_ij^2` for every voxel, shape `(z, y, x)`; 1 for every weight by default."""
        nz, ny, nx = self._volume
        out = np.zeros((1, ny, nx, nz), self._dtype)
        if weights is None:
            weights = np.ones(self._projections, self._dtype)
        if weights.size:
            self._kernel.gram_diagonal(
                self._scan,
                np.ascontiguousarray(np.swapaxes(weights, -1, -2)[None]),
                out,
                first_cell=self._first_cell,
                **self._part,
            )
        return np.asarray(np.moveaxis(out[0], -1, 0))

    def _zfast(self, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        batch = math.prod(x.shape[:-3])
        moved = np.moveaxis(x, -3, -1)
        return np.ascontiguousarray(moved.reshape(batch, shape[1], shape[2], shape[0]))

    def _empty(self, batch: int, shape: tuple[int, ...]) -> np.ndarray:
        views, rows, cols = shape
        return np.empty((batch, views, cols, rows), self._dtype)


def _kernel_of(model: str, name: str, scan: VolumeScan) -> Any:
    """The kernel of a name that `structure.kernel_of` gave to the whole of a scan, for a part."""
    if (model, name) in _KERNELS:
        return _named(model, name)
    return MixedKernel(scan, [(_named(model, each), views) for each, views in groups_of(scan)])


def _named(model: str, name: str) -> Any:
    module, kernel = _KERNELS[model, name].split(".")
    return getattr(import_module(f"geometries.kernels.{module}"), kernel)


def _split_batch(x: np.ndarray, batch: tuple[int, ...]) -> np.ndarray:
    """The flat first axis as batch axes; a view, whatever the strides of the others."""
    strides = [x.strides[0]]
    for n in reversed(batch[1:]):
        strides.insert(0, strides[0] * n)
    if not batch:
        return np.asarray(x[0])
    return np.lib.stride_tricks.as_strided(x, (*batch, *x.shape[1:]), (*strides, *x.strides[1:]))


def _real_views(count: int, window: list[int]) -> np.ndarray:
    views = np.arange(count)
    views[: window[0]] = -1
    views[window[1] :] = -1
    return views


def _along_rays(projector: Projector) -> PlanarRunner | VolumeRunner:
    return PlanarRunner(projector) if projector.grid.dims == 2 else VolumeRunner(projector)


def _footprint(projector: Projector) -> PlanarRunner | VolumeRunner:
    from geometries.kernels.footprint import footprint
    from geometries.kernels.footprint_image import PlanarFootprint
    from geometries.kernels.footprint_views import embedded

    kind, frames = projector._seen.kind, np.asarray(projector.frames)
    detector, grid = projector._seen.detector.host, projector.grid
    box = projector.profile == "box"
    if grid.dims == 2:
        scan = embedded(kind, frames, detector, grid)
        return PlanarRunner(projector, PlanarFootprint(scan, box))
    scan = VolumeScan.from_frames(kind, frames, detector, grid)
    return VolumeRunner(projector, footprint(scan, projector._kernel, box))


_RUNNERS: dict[tuple[str, str], Callable[[Projector], Any]] = {
    ("siddon", "numba"): _along_rays,
    ("joseph", "numba"): _along_rays,
    ("footprint", "numba"): _footprint,
}
