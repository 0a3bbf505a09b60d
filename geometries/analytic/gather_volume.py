"""`VolumeGather`: weighted backprojection of views into a volume, bilinear on the detector.

The gather of FDK, and of parallel scans whose rows see no single slice. Images, and slices with a
row each, are in `geometries/analytic/gather.py`; the loops in
`geometries/kernels/gather_volume.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from geometries.admission import admit
from geometries.analytic.frames import (
    distances,
    elevation_of,
    find_isocenter,
    fixed_frames,
    outward_normals,
    refuse_gradient,
)
from geometries.analytic.gather import check_equiangular
from geometries.analytic.weights import projection_space
from geometries.beams import Beam
from geometries.grid import Grid
from geometries.trajectory import Trajectory
from linops import numeric
from linops.arrays import Array
from linops.compiled import pool
from linops.compiled.hosted import apply_on_host
from linops.compiled.writeable import writeable
from linops.cost import Cost
from linops.elementary.axes import resized
from linops.elementary.plane_windows import PlaneMask
from linops.errors import GeometryError, ShapeError
from linops.linear_operator import LinearOperator
from linops.precision import Precision
from linops.relations import positions
from linops.rule import Relation

__all__ = ["VolumeGather"]

_CLEAR = 1e-6


class VolumeGather(LinearOperator):
    """From filtered views to a volume: for each voxel a weighted sum over the views.

    Parameters
    ----------
    geometry
        A cone scan on a flat detector, or on an equiangular one (`curvature` is the distance of
        source and detector); or a parallel scan of one elevation.
    grid
        The volume.
    isocenter
        Point `(x, y, z)` that the views look at; by default known from the constructor, or
        the least-squares point of the central rays.
    precision
        `"fast"`, `"float32"` or `"float64"`.
    slice_weights
        Fixed weights of the views for each slice, `(slices, views)`; by default all are 1.

    Raises
    ------
    GeometryError
        For other beams, another curvature, less than two rows or columns, an ambiguous
        isocenter.

    Notes
    -----
    With X a voxel's center, n the detector normal, d_n and a_n the distances from the source S
    along n to the detector and the isocenter, U = (X - S).n: the voxel reads at
    `S + (X - S) d_n / U` with the weight `a_n d_n / (2 pi U^2)`; zero outside the outermost cell
    centers (L. A. Feldkamp, L. C. Davis, J. W. Kress, JOSA A 1 (1984) 612). On an equiangular
    detector of radius R, with L the voxel's distance from the line through S along v: column
    `R atan2((X - S).u, U)`, row `R (X - S).v / L`, weight `a_n / (2 pi L^2)` (H. Turbell,
    "Cone-beam reconstruction using filtered backprojection", Linkoping 2001, on FDK for
    cylindrical detectors). A parallel beam of elevation e reads at the voxel's foot with the
    weight `cos e / (2 pi)`: in the Fourier domain a full turn covers each frequency twice with the
    density `1 / (cos e |w_u|)`, but for a cone about z where it covers none (G. Lauritsch, W. H.
    Haerer, Proc. SPIE 3338 (1998) 1127).
    """

    batched = True
    _host_arrays: ClassVar[Mapping[str, str]] = {
        "table": "float64",
        "first": "int64",
        "slice_weights": "float64",
    }

    def __init__(
        self,
        geometry: Beam | Trajectory,
        grid: Grid,
        isocenter: Any = None,
        precision: str | Precision = "fast",
        *,
        slice_weights: Any = None,
    ) -> None:
        admit(geometry, grid, "float64")
        frames = fixed_frames(geometry)
        detector = frames.detector
        if frames.dims != 3:
            raise GeometryError(f"VolumeGather takes scans of volumes, got a {frames.kind} beam")
        if min(detector.shape) < 2:
            raise GeometryError(
                f"a detector of shape {detector.shape} cannot be interpolated along both axes; it "
                "needs at least two detector bins along each"
            )
        chosen = Precision.of(precision)
        super().__init__(
            projection_space(frames, chosen.dtype),
            grid.space(chosen.dtype),
            "view row col -> z y x",
            precision=chosen,
        )
        if frames.kind == "parallel":
            table = _parallel_table(frames, grid)
        else:
            table = _table(frames, grid, find_isocenter(geometry, isocenter))
        table.setflags(write=False)
        self.radius = detector.curvature
        self.table = table
        self.first = np.zeros(3, np.int64)
        # Without weights there are no columns, so that a circular scan carries nothing.
        self.slice_weights = np.ones((frames.views, 0))
        if slice_weights is not None:
            self.slice_weights = _weights_by_view(slice_weights, grid.shape[0], frames.views)

    def _apply(self, y: Array) -> Array:
        return apply_on_host(self, y)

    def _apply_adjoint(self, x: Array) -> Array:
        return apply_on_host(self, x, adjoint=True)

    def _forward_host(self, y: np.ndarray) -> np.ndarray:
        from geometries.kernels.gather_volume import gather_slices

        (views, rows, columns), shape = (s.members[0].shape for s in (self.domain, self.codomain))
        batch = y.shape[: y.ndim - 3]
        count = math.prod(batch)
        flat = np.zeros((count, views, rows * columns + columns + 2), y.dtype)
        flat[..., : rows * columns] = y.reshape(count, views, rows * columns)
        out = np.empty((count, *shape), y.dtype)
        table, first = writeable(self.table), writeable(self.first)

        def fill(k: int) -> None:
            if not self.slice_weights.shape[1]:
                gather_slices(self.radius, table, first, k, k + 1, rows, columns, flat, out)
                return
            begin, end = _extent(self.slice_weights[:, k])
            weighted = table[begin:end].copy()
            weighted[:, 16] *= self.slice_weights[begin:end, k]
            for b in range(count):
                own = (flat[b : b + 1, begin:end], out[b : b + 1])
                gather_slices(self.radius, weighted, first, k, k + 1, rows, columns, *own)

        pool.run(fill, shape[0])
        return out.reshape(*batch, *shape)

    def _adjoint_host(self, x: np.ndarray) -> np.ndarray:
        from geometries.kernels.gather_volume import scatter_views

        (views, rows, columns), shape = (s.members[0].shape for s in (self.domain, self.codomain))
        batch = x.shape[: x.ndim - 3]
        volume = writeable(np.ascontiguousarray(x)).reshape(math.prod(batch), *shape)
        out = np.empty((len(volume), views, rows, columns), x.dtype)
        table, first = writeable(self.table), writeable(self.first)

        def fill(k: int) -> None:
            if not self.slice_weights.shape[1]:
                scatter_views(self.radius, table, first, k, k + 1, rows, columns, volume, out)
                return
            begin, end = _extent(self.slice_weights[k])
            share = self.slice_weights[k, begin:end, None, None].astype(x.dtype)
            slab = np.ascontiguousarray(volume[:, begin:end] * share)
            lifted = first + np.array([begin, 0, 0])
            scatter_views(self.radius, table, lifted, k, k + 1, rows, columns, slab, out)

        pool.run(fill, views)
        return out.reshape(*batch, views, rows, columns)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        from linops.algebra.composition import Product

        if axis in ("row", "col"):
            return None
        domain, codomain, table, first = self.domain, self.codomain, self.table, self.first
        if self.rule.relation(axis) is Relation.CONTRACTED:
            domain = resized(domain, positions(self.rule.domain, axis), stop - start)
            share = _planes(self.slice_weights, start, stop)
            table = _view_rows(table, start, stop)
            return self._with(domain=domain, table=table, slice_weights=share)
        cuts = positions(self.rule.codomain, axis)
        n = codomain.members[0].shape[cuts[0][1]]
        codomain = resized(codomain, cuts, stop - start)
        first = first + start * (np.arange(3) == cuts[0][1]).astype(np.int64)
        share = self.slice_weights
        if axis == "z" and share.shape[1]:
            share = _planes(share.T, start, stop).T
        part = self._with(
            domain=domain, codomain=codomain, table=table, first=first, slice_weights=share
        )
        if not padded:
            return part
        return Product([PlaneMask(codomain, cuts, -start, n - start), part])

    def _cost(self) -> Cost:
        streaming = Cost.streaming(self.domain, self.codomain)
        flops = 30.0 * self.codomain.size * self.domain.members[0].shape[0]
        return Cost(flops, streaming.read, streaming.written, streaming.read)


def _table(frames: Trajectory, grid: Grid, center: np.ndarray) -> np.ndarray:
    assert frames.sources is not None and frames.v is not None
    unit = min(grid.spacing)
    to_axis, to_detector = distances(frames, center, unit)
    back = frames.sources - frames.centers
    detector = frames.detector
    table = np.empty((frames.views, 18))
    for start, axis in ((0, frames.u), (4, outward_normals(frames)), (8, frames.v)):
        table[:, start : start + 4] = _affine(axis, frames.sources, grid)
    for start, axis, k in ((12, frames.u, 1), (14, frames.v, 0)):
        foot = np.einsum("ki,ki->k", back, axis)
        pitch, offset = detector.pitch[k], detector.offset[k]
        table[:, start] = (foot - offset) / pitch + (detector.shape[k] - 1) / 2
        table[:, start + 1] = to_detector / pitch
    table[:, 16] = to_axis * to_detector / (2 * math.pi)
    if detector.curvature is not None:
        check_equiangular(frames, to_detector, np.einsum("ki,ki->k", back, frames.u))
        table[:, 16] = to_axis / (2 * math.pi)
    table[:, 17] = _CLEAR * unit
    return table


def _parallel_table(frames: Trajectory, grid: Grid) -> np.ndarray:
    assert frames.v is not None
    detector = frames.detector
    if detector.curvature is not None:
        raise GeometryError("fbp has no formula for a curved detector in a parallel beam")
    table = np.zeros((frames.views, 18))
    table[:, 4] = 1.0  # the depth, of which places and weights are multiples in a cone
    for start, axis in ((0, frames.u), (8, frames.v)):
        table[:, start : start + 4] = _affine(axis, frames.centers, grid)
    for start, k in ((12, 1), (14, 0)):
        pitch, offset = detector.pitch[k], detector.offset[k]
        table[:, start] = (detector.shape[k] - 1) / 2 - offset / pitch
        table[:, start + 1] = 1 / pitch
    table[:, 16] = math.cos(elevation_of(frames)) / (2 * math.pi)
    return table


def _affine(axis: np.ndarray, points: np.ndarray, grid: Grid) -> np.ndarray:
    """`(X - P) . axis` as `p0 + px i + py j + pz k` of the voxel's indices."""
    step = np.array(grid.spacing[::-1])
    corner = np.array(grid.center[::-1]) - (np.array(grid.shape[::-1]) - 1) / 2 * step
    start = np.einsum("ki,ki->k", corner - points, axis)
    return np.concatenate([start[:, None], axis * step], axis=1)


def _view_rows(table: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Rows of a range of views; views outside the scan see nothing."""
    views = np.arange(start, stop)
    inert = (views < 0) | (views >= len(table))
    rows = np.array(table[np.where(inert, 0, views)])
    rows[inert, :17] = 0.0
    rows[inert, 17] = np.finfo(float).max
    rows.setflags(write=False)
    return rows


def _weights_by_view(weights: Any, slices: int, views: int) -> np.ndarray:
    refuse_gradient(weights, "view_weights")
    given = np.asarray(weights, float)
    if given.shape != (slices, views):
        raise ShapeError(
            f"view_weights has shape {given.shape}; it has one row a slice and one column a view, "
            f"({slices}, {views})"
        )
    numeric.require_finite("view_weights", given, GeometryError)
    return np.ascontiguousarray(given.T)


def _extent(weights: np.ndarray) -> tuple[int, int]:
    """The range outside of which all weights are zero."""
    used = np.flatnonzero(weights)
    return (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)


def _planes(weights: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Rows of a range; zeros outside."""
    rows = np.arange(start, stop)
    inside = (rows >= 0) & (rows < len(weights))
    return np.where(inside[:, None], weights[np.where(inside, rows, 0)], 0.0)
