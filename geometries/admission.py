"""Checks of a scan that need a grid and a precision, made before any kernel call.

Frames themselves are checked by `Trajectory`; here stands what a working precision can resolve,
and where the cells of curved detectors are. A flat detector takes closed forms, one or two points
a view; a cylinder the ends of its columns; a surface all its cells, in blocks of bounded size that
do not depend on how a projection is computed. A source inside the volume is legal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from geometries.grid import Grid
from geometries.surfaces import cell_points, view_blocks
from geometries.trajectory import Trajectory
from linops import arrays
from linops.errors import DTypeError, GeometryError
from linops.precision import Precision

__all__ = ["Admitted", "admit", "pitch_limit"]

_NEAR = 1e6
_FAR = 1e15
_PITCH = (1e-6, 1e6)
_RATIO = 1e4
_COLUMNS = 1 << 18  # columns of a cylinder that are looked at together


class Admitted(NamedTuple):
    """What an admission looked at: so many points of rays, at most so many of them at once."""

    points: int
    largest_block: int


def admit(geometry: Any, grid: Grid, precision: str | Precision) -> Admitted:
    """Raise unless kernels of that precision can trace the scan through the grid.

    Parameters
    ----------
    geometry
        A `Trajectory`, or a beam that becomes one.
    grid
        The volume or image.
    precision
        `"fast"`, `"float32"` or `"float64"`.

    Returns
    -------
    Admitted
        The count of points that were checked.

    Raises
    ------
    GeometryError
        For a geometry and a grid of different dimensions; for cells whose coordinates exceed the
        precision; in the float32 modes for fan and cone beams with both end points farther than
        1e6 voxels from the grid's center, or one farther than 1e15; for a surface with a cell
        that is not finite, stands on the source, or leaves the plane in 2-D. The view is named.
    ShapeError, DTypeError
        For a surface whose sampler returns something else than offsets; for frames of a library
        without float64 where the precision is `"float64"`.

    Notes
    -----
    Works on host copies of the frames. Under a trace, where values are unknown, only dimensions
    are checked.
    """
    if not isinstance(grid, Grid):
        raise GeometryError(f"grid is {grid!r}; it is a Grid")
    frames = getattr(geometry, "trajectory", None)
    if not isinstance(frames, Trajectory):
        raise GeometryError(
            f"geometry is {geometry!r}; it is a beam such as ParallelBeam, or a Trajectory"
        )
    if frames.dims != grid.dims:
        raise GeometryError(
            f"a detector of shape {frames.detector.shape} looks at "
            f"{'images (y, x)' if frames.dims == 2 else 'volumes (z, y, x)'}, the grid has shape "
            f"{grid.shape}; give both 2 or both 3 dimensions"
        )
    single = Precision.of(precision) is not Precision.FLOAT64
    if not single and not arrays.has_float64(frames.centers):
        raise DTypeError(
            "precision 'float64' takes frames in float64, got frames of "
            f"{arrays.namespace(frames.centers).__name__} in {frames.centers.dtype}, which has no "
            "float64 here; build the scan from NumPy arrays, or switch float64 on "
            "(jax.config.update('jax_enable_x64', True))"
        )
    if not frames.concrete:
        return Admitted(0, 0)
    frames = frames.host
    _check_reach(frames, np.finfo(np.float32 if single else np.float64))
    if frames.detector.surface is not None:
        return _check_surface(frames, grid, single)
    if not single or frames.sources is None:
        return Admitted(frames.views, frames.views)
    return _check_distance(frames, grid)


def pitch_limit(grid: Grid, precision: str | Precision) -> str | None:
    """Why the compiled float32 kernels cannot take the grid's spacing; None where they can.

    Unequal pitches lie within [1e-6, 1e6] ("range") and differ by at most 1e4 ("ratio").
    Equal pitches only scale, and float64 has no limit.
    """
    if Precision.of(precision) is Precision.FLOAT64 or len(set(grid.spacing)) == 1:
        return None
    low, high = min(grid.spacing), max(grid.spacing)
    if low < _PITCH[0] or high > _PITCH[1]:
        return (
            f"spacing {grid.spacing} leaves the range [{_PITCH[0]:g}, {_PITCH[1]:g}] of unequal "
            "pitches in float32"
        )
    if high / low > _RATIO:
        return (
            f"spacing {grid.spacing} has a ratio of {high / low:g}, above the {_RATIO:g} of float32"
        )
    return None


def _check_distance(frames: Trajectory, grid: Grid) -> Admitted:
    assert frames.sources is not None
    source = _voxels(frames.sources, grid)
    if frames.detector.curvature is None:
        _check_ends(source, _voxels(frames.centers, grid), 0)
        return Admitted(2 * frames.views, 2 * frames.views)
    # A row is a straight line, and distance along it is largest at its ends.
    along, depth = frames.detector.column_offsets()
    rows = frames.detector.rows()[[0, -1]]
    step = max(1, _COLUMNS // (2 * len(along)))
    for start in range(0, frames.views, step):
        part = slice(start, start + step)
        line = frames.centers[part, None] + along[:, None] * frames.u[part, None]
        line = line + depth[:, None] * frames.normals[part, None]
        ends = [line]
        if frames.v is not None:
            ends = [line + b * frames.v[part, None] for b in rows]
        for points in ends:
            far = _voxels(points.reshape(-1, frames.dims), grid).reshape(points.shape[:2])
            _check_ends(source[part], far.max(axis=1), start)
    count = 1 + len(along) * (1 if frames.v is None else 2)
    return Admitted(count * frames.views, count * min(step, frames.views))


def _check_surface(frames: Trajectory, grid: Grid, single: bool) -> Admitted:
    detector, surface = frames.detector, frames.detector.surface
    assert surface is not None
    limit = float(np.finfo(np.float32 if single else np.float64).max)
    blocks = view_blocks(detector.shape, frames.views)
    for start, stop in blocks:
        views = np.arange(start, stop)
        part = slice(start, stop)
        axes: tuple[np.ndarray, ...] = (frames.centers[part], frames.u[part])
        if frames.v is not None:
            axes += (frames.v[part],)
        offsets = surface.on_host(detector, views, frames.views).reshape(len(views), -1, 3)
        _fault(~np.isfinite(offsets), start, "the surface is not finite")
        if frames.dims == 2:
            _fault(offsets[..., 1] != 0, start, "the surface leaves the plane: middle offset")
        with np.errstate(over="ignore"):
            points = cell_points(detector, axes, views, frames.views)
        points = points.reshape(len(views), -1, frames.dims)
        _fault(~(np.abs(points) <= limit), start, "a detector cell overflows the precision")
        if frames.sources is None:
            continue
        source = frames.sources[part, None]
        size = np.maximum(np.abs(points), np.abs(source)).max(axis=2)
        apart = np.abs(points - source).max(axis=2)
        _fault(apart <= 1e-12 * size, start, "a detector cell stands on the source")
        if single:
            far = _voxels(points.reshape(-1, frames.dims), grid).reshape(points.shape[:2])
            _check_ends(_voxels(frames.sources[part], grid), far.max(axis=1), start)
    count = int(np.prod(detector.shape))
    return Admitted(count * frames.views, count * (blocks[0][1] - blocks[0][0]))


def _fault(bad: np.ndarray, start: int, text: str) -> None:
    views = bad.reshape(len(bad), -1).any(axis=1)
    if views.any():
        raise GeometryError(f"view {start + int(np.argmax(views))}: {text}")


def _check_ends(source: np.ndarray, end: np.ndarray, start: int) -> None:
    near, far = np.minimum(source, end), np.maximum(source, end)
    _reject(near > _NEAR, "1e6 voxels", "both ends of its rays lie farther than", near, start)
    _reject(far > _FAR, "1e15 voxels", "an end of its rays lies farther than", far, start)


def _voxels(points: np.ndarray, grid: Grid) -> np.ndarray:
    offsets = (points - np.array(grid.center[::-1])) / np.array(grid.spacing[::-1])
    scale = np.maximum(np.abs(offsets).max(axis=1), 1.0)
    return np.asarray(np.linalg.norm(offsets / scale[:, None], axis=1) * scale)


def _check_reach(frames: Trajectory, limits: np.finfo) -> None:
    detector = frames.detector
    with np.errstate(over="ignore"):
        reach = np.abs(frames.centers) + np.abs(detector.columns()).max() * np.abs(frames.u)
        if frames.v is not None:
            reach = reach + np.abs(detector.rows()).max() * np.abs(frames.v)
        if frames.sources is not None:
            reach = reach + np.abs(frames.sources)
    bad = ~(reach <= float(limits.max)).all(axis=1)
    if bad.any():
        raise GeometryError(
            f"view {int(np.argmax(bad))}: a detector cell or its ray overflows {limits.dtype}; "
            "bring source, center, pitch and offset to a smaller unit"
        )


def _reject(bad: np.ndarray, bound: str, fault: str, distance: np.ndarray, start: int) -> None:
    if bad.any():
        view = int(np.argmax(bad))
        raise GeometryError(
            f"view {start + view}: {fault} {bound} from the grid's center "
            f"({distance[view]:.6g} voxels), which float32 cannot resolve; use precision='float64'"
        )
