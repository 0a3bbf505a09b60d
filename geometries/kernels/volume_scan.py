"""What a 3-D kernel knows of a scan: frames, one detector and one grid, all in float64.

`VolumeScan` is the plain description that a projector hands to the kernels `aligned`, `columns`
and `oblique`; `pack` turns it into the arrays that compiled code reads. Everything refers to the
*whole* grid and the *whole* detector: a kernel that computes a part of either takes the first
index of the part beside it, so no block or tile changes a weight. Validation of frames is left to
the trajectory, the choice of kernel to the projector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from geometries.detector import Detector
from geometries.grid import Grid
from geometries.surfaces import cell_points

__all__ = ["Packed", "VolumeScan", "pack"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class VolumeScan:
    """A scan of a volume; float64 NumPy, world units, points (x, y, z), grid tuples (z, y, x).

    The ray of cell (i, j) of view k ends at (cone) or runs through (parallel)
    ``P = centers[k] + u_j u[k] + v_i v[k]``, ``u_j = (j - (cols - 1)/2) du + u0`` and
    ``v_i = (i - (rows - 1)/2) dv + v0``. On a cylinder of radius R = `curvature` the first offset
    becomes ``R sin(u_j/R) u + R (cos(u_j/R) - 1) n`` with ``n = v x u``.

    Parameters
    ----------
    kind : "parallel" or "cone"
    origins : (views, 3); the sources of a cone, unused for parallel beams.
    directions : (views, 3); the unit directions of parallel beams, unused for cones.
    centers, u, v : (views, 3); center of the detector and its axes along a row and a column.
    shape, pitch, offset : (rows, cols), (dv, du), (v0, u0) of the whole detector.
    curvature : None for a flat detector, else the radius of a cylinder with axis parallel to v.
    grid_shape, spacing, center : (nz, ny, nx), (dz, dy, dx), (cz, cy, cx) of the whole grid.
    points : None, or for a detector that is a surface, which have kernels ray by ray:
        from positions of n views to where their cells stand, (n, rows, cols, 3).
    """

    kind: Literal["parallel", "cone"]
    origins: Array
    directions: Array
    centers: Array
    u: Array
    v: Array
    shape: tuple[int, int]
    pitch: tuple[float, float]
    offset: tuple[float, float]
    curvature: float | None
    grid_shape: tuple[int, int, int]
    spacing: tuple[float, float, float]
    center: tuple[float, float, float]
    points: Callable[[NDArray[np.int64]], Array] | None = None

    @property
    def views(self) -> int:
        """Number of views."""
        return int(self.centers.shape[0])

    def of_views(self, views: NDArray[np.intp]) -> VolumeScan:
        """The scan of some views, whose cells are no surface."""
        names = ("origins", "directions", "centers", "u", "v")
        return replace(self, **{name: getattr(self, name)[views] for name in names})

    def places(self, numbers: NDArray[np.int64]) -> Array:
        """Where the cells of a surface stand from the grid's center, (views, cols, rows, 3).

        Inert numbers have the places of view 0.
        """
        assert self.points is not None
        local = np.where((numbers >= 0) & (numbers < self.views), numbers, 0)
        middle = np.asarray(self.center[::-1], np.float64)
        return np.ascontiguousarray(np.swapaxes(self.points(local) - middle, 1, 2))

    @classmethod
    def from_frames(cls, kind: str, frames: Array, detector: Detector, grid: Grid) -> VolumeScan:
        """The scan of frames `(views, 4, 3)`: source or direction, center, u and v of each view.

        For a surface `(views, 5, 3)`: the last row begins with the number of the view and the
        count of views of the scan that the surface belongs to.
        """
        points = None
        if detector.surface is not None:

            def points(local: NDArray[np.int64]) -> Array:
                part = frames[local]
                numbers = part[:, 4, 0].astype(np.int64)
                axes = (part[:, 1], part[:, 2], part[:, 3])
                return cell_points(detector, axes, numbers, int(frames[0, 4, 1]))

        parallel = kind == "parallel"
        unused = np.zeros_like(frames[:, 0])
        return cls(
            kind="parallel" if parallel else "cone",
            origins=unused if parallel else frames[:, 0],
            directions=frames[:, 0] if parallel else unused,
            centers=frames[:, 1],
            u=frames[:, 2],
            v=frames[:, 3],
            shape=(detector.shape[0], detector.shape[1]),
            pitch=(detector.pitch[0], detector.pitch[1]),
            offset=(detector.offset[0], detector.offset[1]),
            curvature=None if detector.surface is not None else detector.curvature,
            grid_shape=(grid.shape[0], grid.shape[1], grid.shape[2]),
            spacing=(grid.spacing[0], grid.spacing[1], grid.spacing[2]),
            center=(grid.center[0], grid.center[1], grid.center[2]),
            points=points,
        )


class Packed(NamedTuple):
    """A scan as compiled code reads it.

    `frames` (views, 24) holds per view: source relative to the grid center or direction (0:3),
    detector center relative to the grid center (3:6), u (6:9), n (9:12), v (12:15), and the plane
    perpendicular to v for finding the columns that see a box: its axes e1, e2 (15:18, 18:21), in
    that plane relative to the detector center the source or the direction (21:23), u.e1 (23).
    `along`, `normal` (cols) and `heights` (rows) are the offsets of the whole detector's cells
    along u, n and v. `spacing` and `counts` are in (x, y, z) order. `sampling` is
    (u0, du, v0, dv). `keys` (views, cols) orders the columns of a curved detector as a box
    sees them (angle about the source, or distance across the beam); no rows where the detector is
    flat or a view's columns are not in order.
    """

    cone: bool
    frames: Array
    along: Array
    normal: Array
    heights: Array
    spacing: Array
    counts: NDArray[np.int64]
    sampling: Array
    curved: bool
    keys: Array


def pack(scan: VolumeScan) -> Packed:
    """A scan as arrays for compiled code, made once (small: a few hundred bytes a view)."""
    found: Packed | None = scan.__dict__.get("_packed")
    if found is None:
        found = _packed(scan)
        scan.__dict__["_packed"] = found
    return found


def _packed(scan: VolumeScan) -> Packed:
    rows, cols = scan.shape
    cone = scan.kind == "cone"
    middle = np.asarray(scan.center[::-1], np.float64)
    u, v = np.asarray(scan.u, np.float64), np.asarray(scan.v, np.float64)
    n = np.cross(v, u)
    centers = np.asarray(scan.centers, np.float64) - middle
    ends = np.asarray(scan.origins, np.float64) - middle if cone else np.asarray(scan.directions)
    arc = sampled(cols, scan.pitch[1], scan.offset[1])
    if scan.curvature is None:
        along, normal = arc, np.zeros(cols)
    else:
        radius = float(scan.curvature)
        along = radius * np.sin(arc / radius)
        normal = -2.0 * radius * np.sin(0.5 * arc / radius) ** 2
    frames = np.zeros((scan.views, 24))
    for slot, part in enumerate((ends, centers, u, n, v)):
        frames[:, 3 * slot : 3 * slot + 3] = part
    frames[:, 15:24] = _across_rows(frames, cone)
    keys = np.zeros((0, cols))
    if scan.curvature is not None:
        keys = _column_keys(frames, along, normal, cone)
    return Packed(
        cone,
        frames,
        along,
        normal,
        sampled(rows, scan.pitch[0], scan.offset[0]),
        np.asarray(scan.spacing[::-1], np.float64),
        np.asarray(scan.grid_shape[::-1], np.int64),
        np.array([scan.offset[1], scan.pitch[1], scan.offset[0], scan.pitch[0]], np.float64),
        scan.curvature is not None,
        keys,
    )


def sampled(count: int, pitch: float, offset: float) -> Array:
    """Coordinates of detector cells along one axis, (k - (count - 1)/2) pitch + offset."""
    return np.asarray((np.arange(count) - 0.5 * (count - 1)) * pitch + offset, np.float64)


def _across_rows(frames: Array, cone: bool) -> Array:
    """Per view e1, e2, source or direction in that plane, u.e1: columns 15 to 23 of `frames`."""
    u, v = frames[:, 6:9], frames[:, 12:15]
    e1 = u - np.sum(u * v, axis=1, keepdims=True) / np.sum(v * v, axis=1, keepdims=True) * v
    e1 = e1 / np.linalg.norm(e1, axis=1, keepdims=True)
    e2 = np.cross(v, e1)
    e2 = e2 / np.linalg.norm(e2, axis=1, keepdims=True)
    end = frames[:, 0:3] - frames[:, 3:6] if cone else frames[:, 0:3]
    plane = np.stack([np.sum(end * e, axis=1) for e in (e1, e2)] + [np.sum(u * e1, axis=1)], axis=1)
    return np.concatenate([e1, e2, plane], axis=1)


def _column_keys(frames: Array, along: Array, normal: Array, cone: bool) -> Array:
    """Keys of the columns of a curved detector; no views if in one of them they have no order."""
    e1, e2 = frames[:, 15:18], frames[:, 18:21]
    u, n = frames[:, 6:9], frames[:, 9:12]
    first = along * np.sum(u * e1, axis=1)[:, None] + normal * np.sum(n * e1, axis=1)[:, None]
    second = along * np.sum(u * e2, axis=1)[:, None] + normal * np.sum(n * e2, axis=1)[:, None]
    end1, end2 = frames[:, 21:22], frames[:, 22:23]
    if cone:
        # angle about the source from the direction to the detector's center
        ahead1, ahead2 = -end1, -end2
        first, second = first - end1, second - end2
        keys = np.arctan2(ahead1 * second - ahead2 * first, ahead1 * first + ahead2 * second)
    else:
        keys = first * end2 - second * end1
    if keys.shape[1] > 1:
        steps = np.diff(keys, axis=1) * np.sign(keys[:, -1:] - keys[:, :1])
        if not np.all(steps > 0):
            return np.zeros((0, along.shape[0]))
    return np.asarray(keys)
