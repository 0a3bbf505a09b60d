"""Checks of a scan that need a grid and a precision, made before any kernel call.

Frames themselves are checked by `Trajectory`; here stands what a working precision can resolve.
All checks are closed-form, a few points a view. A source inside the volume is legal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from geometries.grid import Grid
from geometries.trajectory import Trajectory
from linops.errors import GeometryError
from linops.precision import Precision

__all__ = ["admit", "pitch_limit"]

_NEAR = 1e6
_FAR = 1e15
_PITCH = (1e-6, 1e6)
_RATIO = 1e4


def admit(geometry: Any, grid: Grid, precision: str | Precision) -> None:
    """Raise unless kernels of that precision can trace the scan through the grid.

    Parameters
    ----------
    geometry
        A `Trajectory`, or a beam that becomes one.
    grid
        The volume or image.
    precision
        `"fast"`, `"float32"` or `"float64"`.

    Raises
    ------
    GeometryError
        For a geometry and a grid of different dimensions; in the float32 modes for fan and cone
        beams with both end points farther than 1e6 voxels from the grid's centre, or one farther
        than 1e15, and for detector cells whose coordinates exceed float32.

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
    if not frames.concrete:
        return
    frames = frames.host
    _check_reach(frames, np.finfo(np.float32 if single else np.float64))
    if single and frames.sources is not None:
        _check_distance(frames, grid)


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


def _check_distance(frames: Trajectory, grid: Grid) -> None:
    assert frames.sources is not None
    source = _voxels(frames.sources, grid)
    for points in _ends(frames):
        end = _voxels(points, grid)
        near, far = np.minimum(source, end), np.maximum(source, end)
        _reject(near > _NEAR, "1e6 voxels", "both ends of its rays lie farther than", near)
        _reject(far > _FAR, "1e15 voxels", "an end of its rays lies farther than", far)


def _ends(frames: Trajectory) -> list[np.ndarray]:
    if frames.detector.curvature is None:
        return [frames.centers]
    along, depth = frames.detector.column_offsets()
    rows = frames.detector.rows()[[0, -1]]
    ends = []
    for column in (0, len(along) // 2, len(along) - 1):
        line = frames.centers + along[column] * frames.u + depth[column] * frames.normals
        ends += [line] if frames.v is None else [line + b * frames.v for b in rows]
    return ends


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
            "bring source, centre, pitch and offset to a smaller unit"
        )


def _reject(bad: np.ndarray, bound: str, fault: str, distance: np.ndarray) -> None:
    if bad.any():
        view = int(np.argmax(bad))
        raise GeometryError(
            f"view {view}: {fault} {bound} from the grid's centre ({distance[view]:.6g} voxels), "
            "which float32 cannot resolve; use precision='float64'"
        )
