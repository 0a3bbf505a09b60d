"""What the footprint kernels know of each view, from its frames, in float64.

Sources: Long, Fessler and Balter 2010 (separable footprints); De Man and Basu 2004 for the box.
A voxel at index (k, y, x) of the whole grid has along the columns of view w, in units of cells, a
profile from `a = t0 + t1 x + t2 y` and, diverging, `b = t3 + t4 x + t5 y` (lengths across and along
the detector's normal from the source); along the rows an interval that is affine in k. `table`
makes these numbers, `kernel_of` says which kernels a scan allows, or why none does. The formulas
themselves are in `footprint_profile` and `footprint_rows`.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from geometries.detector import Detector
from geometries.grid import Grid
from geometries.kernels import structure
from geometries.kernels.volume_scan import VolumeScan
from linops.errors import GeometryError

__all__ = ["Table", "embedded", "groups_of", "kernel_of", "table"]

Array = NDArray[np.float64]

_LEVEL = 1e-6
_STEEP = math.pi / 4 + 1e-9


class Table(NamedTuple):
    """A scan as the compiled footprint reads it.

    `numbers` (views, 16):

        0:3    a at index (0, 0), its step along x, along y; in cells where parallel
        3:6    diverging: b likewise; parallel: half the longest and half the flat width of the
               profile in cells, and half the width of the box
        6, 7   diverging: column = [6] a / b + [7], or [6] atan2(a, b) + [7] where curved;
               parallel: [6] is the height of a voxel's interval of rows
        8, 9   diverging: x and y of voxel (0, 0) from the source
        10     sum of a profile's cells, before the factors h / b^2 or 1 / h of a diverging beam
        11:14  row of slice 0's center, its step along x, along y; diverging: 11 is the row at the
               height of the source
        14     step of rows a slice; diverging: before the factor 1 / b or 1 / h
        15     parallel: width of a voxel's interval of rows; diverging: slice at the height of the
               source
    `flipped` (views): rows run against z, and kernels count them backwards.
    `spacing` is (dx, dy, dz); `cells` the (rows, columns) of the whole detector.
    """

    diverging: bool
    curved: bool
    box: bool
    numbers: Array
    flipped: NDArray[np.bool_]
    spacing: Array
    cells: tuple[int, int]


def embedded(kind: str, frames: Array, detector: Detector, grid: Grid) -> VolumeScan:
    """A scan of an image, frames `(views, 3, 2)`, as one of a volume of a single slice."""
    views = len(frames)
    solid = np.zeros((views, 4, 3))
    solid[:, :3, :2] = frames
    solid[:, 3, 2] = 1.0
    return VolumeScan.from_frames(
        kind,
        solid,
        Detector((1, detector.shape[0]), (1.0, detector.pitch[0]), (0.0, detector.offset[0]),
                 detector.curvature),
        Grid((1, *grid.shape), (1.0, *grid.spacing), (0.0, *grid.center)),
    )  # fmt: skip


def kernel_of(scan: VolumeScan) -> str:
    """`"aligned rows"`, `"aligned"` (rows are slices), `"rows"`, or how many views each has.

    Raises
    ------
    GeometryError
        Where the frames do not permit the model, naming view and angle; where a voxel contains the
        source, or lies behind it or behind the detector, naming voxel and view.
    """
    if scan.kind == "parallel":
        _admit_parallel(scan)
    else:
        _admit_diverging(scan)
        _admit_voxels(scan)
    return structure.kernel_of(scan, groups_of)


def groups_of(scan: VolumeScan) -> structure.Groups:
    """Kernels and the views of each: `"aligned"` by rising shift, then `"rows"`."""
    return structure.aligned_apart(scan, [("rows", np.ones(scan.views, bool))])


def table(scan: VolumeScan, box: bool) -> Table:
    """The numbers of every view; `box` for the profile of constant height."""
    fill = _parallel if scan.kind == "parallel" else _diverging
    numbers, flipped = fill(scan)
    return Table(
        scan.kind != "parallel",
        scan.curvature is not None,
        box,
        numbers,
        flipped,
        np.array(scan.spacing[::-1], np.float64),
        scan.shape,
    )


def _parallel(scan: VolumeScan) -> tuple[Array, NDArray[np.bool_]]:
    dz, dy, dx = scan.spacing
    dv, du = scan.pitch
    across, along, volume = _dual(scan)
    first = _first_voxel(scan) - scan.centers
    numbers = np.zeros((scan.views, 16))
    numbers[:, 0] = _dot(first, across) / du + _middle(scan, 1)
    numbers[:, 1] = across[:, 0] * dx / du
    numbers[:, 2] = across[:, 1] * dy / du
    wide, high = np.abs(numbers[:, 1]), np.abs(numbers[:, 2])
    numbers[:, 3] = (wide + high) / 2
    numbers[:, 4] = np.abs(wide - high) / 2
    numbers[:, 5] = np.maximum(wide, high) / 2
    reach = np.max(
        [np.abs(along[:, 2]) * dz, np.abs(along[:, 0]) * dx, np.abs(along[:, 1]) * dy], 0
    )
    numbers[:, 6] = dz / reach
    numbers[:, 10] = dx * dy / (volume * du)
    numbers[:, 11] = _dot(first, along) / dv + _middle(scan, 0)
    numbers[:, 12] = along[:, 0] * dx / dv
    numbers[:, 13] = along[:, 1] * dy / dv
    numbers[:, 14] = along[:, 2] * dz / dv
    numbers[:, 15] = reach / dv
    return numbers, _flip(numbers, scan.shape[0])


def _diverging(scan: VolumeScan) -> tuple[Array, NDArray[np.bool_]]:
    dz, dy, dx = scan.spacing
    dv, du = scan.pitch
    normal, distance = _normal(scan)
    back = scan.centers - scan.origins
    first = _first_voxel(scan) - scan.origins
    numbers = np.zeros((scan.views, 16))
    for slot, axis in ((0, scan.u), (3, normal)):
        numbers[:, slot] = first[:, 0] * axis[:, 0] + first[:, 1] * axis[:, 1]
        numbers[:, slot + 1] = axis[:, 0] * dx
        numbers[:, slot + 2] = axis[:, 1] * dy
    numbers[:, 6] = distance / du
    numbers[:, 7] = _middle(scan, 1)
    if scan.curvature is None:
        numbers[:, 7] -= (back[:, 0] * scan.u[:, 0] + back[:, 1] * scan.u[:, 1]) / du
    numbers[:, 8] = first[:, 0]
    numbers[:, 9] = first[:, 1]
    numbers[:, 10] = dx * dy * distance / du
    numbers[:, 11] = _middle(scan, 0) - back[:, 2] * scan.v[:, 2] / dv
    numbers[:, 14] = distance * scan.v[:, 2] * dz / dv
    numbers[:, 15] = -first[:, 2] / dz
    return numbers, _flip(numbers, scan.shape[0])


def _flip(numbers: Array, rows: int) -> NDArray[np.bool_]:
    flipped: NDArray[np.bool_] = numbers[:, 14] < 0
    numbers[flipped, 11] = rows - 1 - numbers[flipped, 11]
    numbers[flipped, 12:15] *= -1
    return flipped


def _middle(scan: VolumeScan, axis: int) -> float:
    """Cell at detector coordinate 0 along rows (0) or columns (1)."""
    return (scan.shape[axis] - 1) / 2 - scan.offset[axis] / scan.pitch[axis]


def _first_voxel(scan: VolumeScan) -> Array:
    """Center (x, y, z) of voxel (0, 0, 0)."""
    counts = np.array(scan.grid_shape[::-1])
    corner: Array = np.array(scan.center[::-1]) - (counts - 1) / 2 * np.array(scan.spacing[::-1])
    return corner


def _dot(point: Array, axis: Array) -> Array:
    total: Array = point[:, 0] * axis[:, 0] + point[:, 1] * axis[:, 1] + point[:, 2] * axis[:, 2]
    return total


def _dual(scan: VolumeScan) -> tuple[Array, Array, Array]:
    """Vectors that give u and v of a point's shadow along the rays, and |det(u, v, direction)|."""
    u, v, d = scan.u, scan.v, scan.directions
    volume = _dot(u, np.cross(v, d))
    across = np.cross(v, d) / volume[:, None]
    along = np.cross(d, u) / volume[:, None]
    return across, along, np.abs(volume)


def _normal(scan: VolumeScan) -> tuple[Array, Array]:
    """The detector's horizontal normal away from the source, and the distance along it."""
    normal = np.cross(scan.v, scan.u)
    normal[:, 2] = 0
    normal /= np.hypot(normal[:, 0], normal[:, 1])[:, None]
    back = scan.centers - scan.origins
    distance = back[:, 0] * normal[:, 0] + back[:, 1] * normal[:, 1]
    normal[distance < 0] *= -1
    return normal, np.abs(distance)


def _admit_parallel(scan: VolumeScan) -> None:
    if scan.curvature is not None:
        raise GeometryError(
            f"a parallel beam on a curved detector (curvature {scan.curvature:g}) has no footprint "
            "here; use model='siddon'"
        )
    across, _, _ = _dual(scan)
    lean = np.abs(across[:, 2]) / np.linalg.norm(across, axis=1)
    _refuse(
        np.arcsin(np.minimum(lean, 1.0)),
        "columns shift along z: they lean by {} from what leaves the profile of a voxel column the "
        "same in all slices",
    )
    rise = np.arcsin(np.minimum(np.abs(scan.directions[:, 2]), 1.0))
    if np.any(rise > _STEEP):
        view = int(np.argmax(rise > _STEEP))
        warnings.warn(
            f"view {view}: rays rise by {math.degrees(rise[view]):.3g} degrees. Above 45 degrees "
            "the separable rows of model 'footprint' are a rough approximation; model='siddon' "
            "has no such limit.",
            UserWarning,
            stacklevel=7,
        )


def _admit_diverging(scan: VolumeScan) -> None:
    _refuse(np.arcsin(np.minimum(np.hypot(scan.v[:, 0], scan.v[:, 1]), 1.0)),
            "the detector's rows lean by {} from z")  # fmt: skip
    normal = np.cross(scan.v, scan.u)
    _refuse(np.arcsin(np.minimum(np.abs(normal[:, 2]), 1.0)),
            "the detector's normal leans by {} from the plane across z")  # fmt: skip
    if scan.curvature is None:
        return
    back = scan.centers - scan.origins
    gap = back[:, :2] - scan.curvature * normal[:, :2]
    miss = np.hypot(gap[:, 0], gap[:, 1]) / scan.curvature
    if np.any(miss > _LEVEL):
        view = int(np.argmax(miss > _LEVEL))
        raise GeometryError(
            f"view {view}: the source stands {miss[view] * scan.curvature:g} from the axis of the "
            f"detector's cylinder of radius {scan.curvature:g} ({math.degrees(miss[view]):.3g} "
            "degrees as seen from a cell); model 'footprint' wants curvature = source_to_detector; "
            "use model='siddon'"
        )


def _admit_voxels(scan: VolumeScan) -> None:
    """Every voxel lies between source and detector in every view."""
    _, ny, nx = scan.grid_shape
    _, dy, dx = scan.spacing
    normal, distance = _normal(scan)
    first = _first_voxel(scan)[:2] - scan.origins[:, :2]
    side_x, side_y = normal[:, 0] * dx, normal[:, 1] * dy
    half = (np.abs(side_x) + np.abs(side_y)) / 2
    for x in (0, nx - 1):
        for y in (0, ny - 1):
            depth = first[:, 0] * normal[:, 0] + first[:, 1] * normal[:, 1]
            depth = depth + side_x * x + side_y * y
            if scan.curvature is None:
                far = depth + half
            else:
                across_x = np.abs(first[:, 0] + dx * x) + dx / 2
                across_y = np.abs(first[:, 1] + dy * y) + dy / 2
                far = np.hypot(across_x, across_y)
            for bad, where in (
                (depth - half <= 1e-9 * distance, "contains the source or lies behind it"),
                (far > distance * (1 + 1e-9), "lies behind the detector"),
            ):
                if bad.any():
                    view = int(np.argmax(bad))
                    raise GeometryError(
                        f"view {view}: voxel (y={y}, x={x}) {where}, and model 'footprint' has no "
                        "shadow of it; use a smaller grid or model='siddon'"
                    )


def _refuse(angles: Array, fault: str) -> None:
    bad = angles > _LEVEL
    if bad.any():
        view = int(np.argmax(bad))
        lean = f"{angles[view]:.3g} rad ({math.degrees(angles[view]):.3g} degrees)"
        raise GeometryError(
            f"view {view}: {fault.format(lean)}; model 'footprint' allows {_LEVEL:g} rad; "
            "use model='siddon'"
        )
