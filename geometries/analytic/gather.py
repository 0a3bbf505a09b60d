"""`Gather`: weighted backprojection by linear interpolation, voxel by voxel.

It is not the projector's adjoint: it carries the distance weights of filtered backprojection and
1 / (2 pi). Its own adjoint is exact. The loops are in `geometries/kernels/gather.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from geometries.admission import admit
from geometries.analytic.frames import distances, find_isocenter, fixed_frames, outward_normals
from geometries.analytic.weights import projection_space
from geometries.beams import Beam
from geometries.grid import Grid
from geometries.trajectory import Trajectory
from linops.arrays import Array
from linops.compiled import pool
from linops.compiled.hosted import apply_on_host
from linops.compiled.writeable import writeable
from linops.cost import Cost
from linops.elementary.axes import resized
from linops.elementary.plane_windows import PlaneMask
from linops.errors import GeometryError
from linops.linear_operator import LinearOperator
from linops.precision import Precision
from linops.relations import positions
from linops.rule import Relation

__all__ = ["Gather", "rows_are_slices"]

_PARALLEL, _FLAT, _EQUIANGULAR = 0, 1, 2
_CLEAR = 1e-6
_ALIGNED = 1e-9


class Gather(LinearOperator):
    """From filtered projections to an image: for each voxel a weighted sum over the views.

    Parameters
    ----------
    geometry
        A parallel or fan scan of images, or a parallel scan of a volume whose detector rows
        coincide with the slices.
    grid
        Where the image lies.
    isocenter
        Point `(x, y)` that the views look at; by default known from the constructor, or
        the least-squares point of the central rays.
    precision
        `"fast"`, `"float32"` or `"float64"`.

    Raises
    ------
    GeometryError
        For less than two detector bins, an ambiguous isocenter, a curvature that is not
        equiangular, and beams without a formula here.

    Notes
    -----
    With X a voxel's center, n the detector normal, d_n and a_n the distances from the source S
    along n to the detector and the isocenter, U = (X - S).n:

        parallel       s = (X - C).u                              weight 1 / (2 pi)
        flat fan       s = (S - C).u + (X - S).u d_n / U          weight a_n d_n / (2 pi U^2)
        equiangular    s = R atan2((X - S).u, U)                  weight a_n / (2 pi |X - S|^2)

    Zero outside the outermost column *centers*, and where U is not positive.
    """

    batched = True
    _host_arrays: ClassVar[Mapping[str, str]] = {"table": "float64", "first": "int64"}

    def __init__(
        self,
        geometry: Beam | Trajectory,
        grid: Grid,
        isocenter: Any = None,
        precision: str | Precision = "fast",
    ) -> None:
        admit(geometry, grid, "float64")
        frames = fixed_frames(geometry)
        if frames.detector.shape[-1] < 2:
            raise GeometryError(
                f"a detector of shape {frames.detector.shape} cannot be interpolated along its "
                "columns; it needs at least two detector bins"
            )
        chosen = Precision.of(precision)
        if frames.dims == 3:
            _check_aligned(frames, grid)
        rule = "view col -> y x" if frames.dims == 2 else "view z col -> z y x"
        super().__init__(
            projection_space(frames, chosen.dtype),
            grid.space(chosen.dtype),
            rule,
            precision=chosen,
        )
        if frames.kind == "parallel":
            self.mode, table = _PARALLEL, _parallel_table(frames, grid)
        else:
            center = find_isocenter(geometry, isocenter)
            self.mode, table = _fan_table(frames, grid, center)
        table.setflags(write=False)
        self.table = table
        self.first = np.zeros(2, np.int64)

    def _apply(self, y: Array) -> Array:
        return apply_on_host(self, y)

    def _apply_adjoint(self, x: Array) -> Array:
        return apply_on_host(self, x, adjoint=True)

    def _forward_host(self, y: np.ndarray) -> np.ndarray:
        from geometries.kernels.gather import gather_lines

        space, shape = self.domain.members[0], self.codomain.members[0].shape
        batch = y.shape[: y.ndim - space.ndim]
        flat = _slices_first(y, batch, space.shape)
        rows = np.zeros((*flat.shape[:2], flat.shape[2] + 2), flat.dtype)
        rows[..., :-2] = flat
        out = np.empty((len(rows), *shape[-2:]), rows.dtype)
        many = max(1, min(16, shape[-2] // 8))
        table, first = writeable(self.table), writeable(self.first)

        def fill(i: int) -> None:
            begin, end = i * many, min((i + 1) * many, shape[-2])
            gather_lines(self.mode, table, first, begin, end, rows, out)

        pool.run(fill, -(-shape[-2] // many))
        return out.reshape(*batch, *shape)

    def _adjoint_host(self, x: np.ndarray) -> np.ndarray:
        from geometries.kernels.gather import scatter_views

        space, shape = self.domain.members[0], self.codomain.members[0].shape
        batch = x.shape[: x.ndim - len(shape)]
        count = math.prod((*batch, *shape[:-2]))
        image = writeable(np.ascontiguousarray(x)).reshape(count, *shape[-2:])
        views, columns = space.shape[0], space.shape[-1]
        out = np.empty((count, views, columns), image.dtype)
        many = max(1, min(8, views // 8))
        table, first = writeable(self.table), writeable(self.first)

        def fill(i: int) -> None:
            begin, end = i * many, min((i + 1) * many, views)
            scatter_views(self.mode, table, first, begin, end, image, out)

        pool.run(fill, -(-views // many))
        if len(space.shape) == 3:
            out = np.moveaxis(out.reshape(*batch, space.shape[1], views, columns), -3, -2)
        return np.ascontiguousarray(out).reshape(*batch, *space.shape)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        from linops.algebra.composition import Product

        if axis == "col":
            return None
        domain, codomain, table, first = self.domain, self.codomain, self.table, self.first
        inside, outside = positions(self.rule.domain, axis), positions(self.rule.codomain, axis)
        relation = self.rule.relation(axis)
        if inside:
            domain = resized(domain, inside, stop - start)
        if outside:
            n = codomain.members[0].shape[outside[0][1]]
            codomain = resized(codomain, outside, stop - start)
        if relation is Relation.CONTRACTED:
            table = _view_rows(table, start, stop)
        if relation is Relation.PRODUCED:
            step = np.array((axis == "y", axis == "x"), np.int64)
            first = first + start * step
        part = self._with(domain=domain, codomain=codomain, table=table, first=first)
        if not padded or relation is Relation.CONTRACTED:
            return part
        return Product([PlaneMask(codomain, outside, -start, n - start), part])

    def _cost(self) -> Cost:
        streaming = Cost.streaming(self.domain, self.codomain)
        views = self.domain.members[0].shape[0]
        flops = 12.0 * self.codomain.size * views
        return Cost(flops, streaming.read, streaming.written, streaming.read)


def _slices_first(y: np.ndarray, batch: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Batches and rows in front: `(B, views, columns)`."""
    if len(shape) == 3:
        y = np.moveaxis(y, -2, -3)
        batch = (*batch, shape[1])
    return y.reshape(math.prod(batch), shape[0], shape[-1])


def _parallel_table(frames: Trajectory, grid: Grid) -> np.ndarray:
    table = np.zeros((frames.views, 10))
    table[:, 0:3] = _affine(frames.u, -np.einsum("ki,ki->k", frames.centers, frames.u), grid)
    table[:, 6], table[:, 7] = _columns(frames, 0.0, 1.0)
    table[:, 8] = 1 / (2 * math.pi)
    return table


def _fan_table(frames: Trajectory, grid: Grid, center: np.ndarray) -> tuple[int, np.ndarray]:
    if frames.sources is None or frames.dims != 2:
        raise GeometryError(f"no gather for a {frames.kind} beam in {frames.dims} dimensions here")
    unit = min(grid.spacing)
    to_axis, to_detector = distances(frames, center, unit)
    n = outward_normals(frames)
    table = np.zeros((frames.views, 10))
    table[:, 0:3] = _affine(frames.u, -np.einsum("ki,ki->k", frames.sources, frames.u), grid)
    table[:, 3:6] = _affine(n, -np.einsum("ki,ki->k", frames.sources, n), grid)
    table[:, 9] = _CLEAR * unit
    shift = np.einsum("ki,ki->k", frames.sources - frames.centers, frames.u)
    radius = frames.detector.curvature
    if radius is None:
        table[:, 6], table[:, 7] = _columns(frames, shift, to_detector)
        table[:, 8] = to_axis * to_detector / (2 * math.pi)
        return _FLAT, table
    check_equiangular(frames, to_detector, shift)
    table[:, 6], table[:, 7] = _columns(frames, 0.0, radius)
    table[:, 8] = to_axis / (2 * math.pi)
    return _EQUIANGULAR, table


def check_equiangular(frames: Trajectory, to_detector: np.ndarray, shift: np.ndarray) -> None:
    """Raise unless every source stands at the center of the detector's circle."""
    radius = frames.detector.curvature
    assert radius is not None
    n = frames.normals
    ray = frames.centers - np.asarray(frames.sources)
    bad = (np.abs(to_detector - radius) > 1e-6 * radius) | (np.abs(shift) > 1e-6 * radius)
    bad |= np.einsum("ki,ki->k", ray, n) < 0
    if bad.any():
        view = int(np.argmax(bad))
        raise GeometryError(
            f"view {view}: a curvature of {radius:g} with the source {to_detector[view]:g} away "
            "is neither flat nor equiangular (curvature = source_to_detector), and has no "
            "formula; resample the projections to a flat detector"
        )


def _affine(axis: np.ndarray, constant: np.ndarray, grid: Grid) -> np.ndarray:
    """`X . axis + constant` as `p0 + px i + py j` of the voxel's indices."""
    (ny, nx), (dy, dx), (cy, cx) = grid.shape[-2:], grid.spacing[-2:], grid.center[-2:]
    x0, y0 = cx - (nx - 1) / 2 * dx, cy - (ny - 1) / 2 * dy
    start = constant + axis[:, 0] * x0 + axis[:, 1] * y0
    return np.stack([start, axis[:, 0] * dx, axis[:, 1] * dy], axis=1)


def _columns(frames: Trajectory, shift: Any, scale: Any) -> tuple[Any, Any]:
    """Start and step of `column = (shift + scale * ratio - u0) / du + (n - 1) / 2`."""
    detector = frames.detector
    pitch, offset = detector.pitch[-1], detector.offset[-1]
    return (shift - offset) / pitch + (detector.shape[-1] - 1) / 2, scale / pitch


def _view_rows(table: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Rows of a range of views; views outside the scan see nothing."""
    views = np.arange(start, stop)
    inert = (views < 0) | (views >= len(table))
    rows = np.array(table[np.where(inert, 0, views)])
    rows[inert] = 0.0
    rows[inert, 6] = -1.0
    rows.setflags(write=False)
    return rows


def rows_are_slices(frames: Trajectory, grid: Grid) -> bool:
    """Whether each detector row of a parallel scan sees one slice of the grid, row i slice i."""
    slices, rows = grid.coordinates("z"), frames.detector.rows()
    height = frames.centers[:, 2]
    assert frames.v is not None
    return bool(
        frames.directions is not None
        and len(slices) == len(rows)
        and np.abs(frames.directions[:, 2]).max() <= _ALIGNED
        and np.abs(frames.u[:, 2]).max() <= _ALIGNED
        and np.abs(frames.v - (0.0, 0.0, 1.0)).max() <= _ALIGNED
        and np.abs(height[:, None] + rows - slices).max() <= _ALIGNED * grid.spacing[0]
    )


def _check_aligned(frames: Trajectory, grid: Grid) -> None:
    if not rows_are_slices(frames, grid):
        slices, rows = grid.coordinates("z"), frames.detector.rows()
        raise GeometryError(
            "Gather of a volume takes a parallel beam whose detector rows coincide with the slices "
            f"(as many, same pitch and offset along z); rows at {_range(rows)}, slices at "
            f"{_range(slices)}, beam {frames.kind!r}; VolumeGather takes others"
        )


def _range(values: np.ndarray) -> str:
    return f"{values[0]:g}..{values[-1]:g} ({len(values)})"
