"""`from_astra`: the geometry and grid of a scan that is described in the ASTRA toolbox's terms.

Reads dictionaries as `astra.create_proj_geom` and `astra.create_vol_geom` make them; ASTRA itself
is not needed. What differs between the two worlds is settled here:

- images: row 0 of ASTRA is the top, at the largest y; here y grows with its index. The geometry
  is mirrored in y, so that the *same array* has the same sinogram. Volumes need no mirror.
- windows become spacing and center, pixel vectors become unit axes and one pitch for all views.
- ASTRA keeps projections of volumes as `(row, view, col)`: `np.swapaxes(data, 0, 1)` turns them
  into ours and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from geometries.beams import Beam, ConeBeam, ParallelBeam
from geometries.detector import Detector
from geometries.frame_checks import Fault
from geometries.grid import Grid
from geometries.trajectory import Trajectory
from linops import arrays
from linops.errors import GeometryError

__all__ = ["from_astra"]

_SAME = 1e-6
_TYPES = (
    "parallel",
    "parallel_vec",
    "fanflat",
    "fanflat_vec",
    "parallel3d",
    "parallel3d_vec",
    "cone",
    "cone_vec",
)


def from_astra(
    proj_geom: Mapping[str, Any], vol_geom: Mapping[str, Any]
) -> tuple[Beam | Trajectory, Grid]:
    """The scan and the grid of two ASTRA dictionaries.

    Parameters
    ----------
    proj_geom
        Of type `parallel`, `parallel_vec`, `fanflat`, `fanflat_vec`, `parallel3d`,
        `parallel3d_vec`, `cone` or `cone_vec`.
    vol_geom
        With rows and columns, and slices for the last four; a window is optional.

    Returns
    -------
    (geometry, grid)
        A `ParallelBeam` or `ConeBeam` where the scan is one, else a `Trajectory`. Arrays on the
        grid are `(row, col)` and `(slice, row, col)` as in ASTRA.

    Raises
    ------
    GeometryError
        For another type, a missing entry, dictionaries of different dimensions, and naming the
        view for frames that are not valid, such as a `_vec` scan whose pixel size varies: all
        views share one detector here.

    Examples
    --------
    >>> proj_geom = {
    ...     "type": "fanflat", "DetectorCount": 12, "DetectorWidth": 2.0,
    ...     "ProjectionAngles": [0.0, 0.5], "DistanceOriginSource": 90.0,
    ...     "DistanceOriginDetector": 30.0,
    ... }
    >>> fan, grid = from_astra(proj_geom, {"GridRowCount": 8, "GridColCount": 9})
    >>> fan.kind, fan.detector, grid
    ('fan', Detector((12,), pitch=2), Grid((8, 9), spacing=1))
    """
    kind = _entry(proj_geom, "type", "proj_geom")
    if kind not in _TYPES:
        raise GeometryError(f"proj_geom is of type {kind!r}; from_astra reads {', '.join(_TYPES)}")
    volume = kind.startswith(("parallel3d", "cone"))
    grid = _grid(vol_geom, volume)
    if kind.endswith("_vec"):
        return _from_vectors(proj_geom, kind, volume), grid
    angles = _numbers(proj_geom, "ProjectionAngles")
    detector = _detector(proj_geom, volume)
    if kind == "parallel":
        return ParallelBeam(-angles, detector), grid
    if kind == "parallel3d":
        return ParallelBeam(angles, detector), grid
    to_axis = float(_numbers(proj_geom, "DistanceOriginSource"))
    beyond = float(_numbers(proj_geom, "DistanceOriginDetector"))
    if kind == "cone":
        return ConeBeam(angles, detector, to_axis, to_axis + beyond), grid
    cos, sin = np.cos(angles), np.sin(angles)
    # e_r of ASTRA's plane, mirrored in y.
    away = np.stack([-sin, -cos], axis=1)
    u = np.stack([cos, -sin], axis=1)
    return Trajectory("fan", -to_axis * away, beyond * away, u, None, detector), grid


def _from_vectors(proj_geom: Mapping[str, Any], kind: str, volume: bool) -> Trajectory:
    dims = 3 if volume else 2
    vectors = _numbers(proj_geom, "Vectors")
    width = 12 if volume else 6
    if vectors.ndim != 2 or vectors.shape[1] != width or len(vectors) == 0:
        raise GeometryError(
            f"Vectors of a {kind} geometry have shape {vectors.shape}; it is (views, {width})"
        )
    Fault(~np.isfinite(vectors).all(axis=1), "Vectors is not finite").reject()
    first, centers, *axes = np.split(vectors, width // dims, axis=1)
    if not volume:
        mirror = np.array([1.0, -1.0])
        first, centers, axes = first * mirror, centers * mirror, [a * mirror for a in axes]
    names = ("DetectorColCount", "DetectorRowCount") if volume else ("DetectorCount",)
    pitches, units = [], []
    for axis, name in zip(axes, "uv", strict=False):
        size = np.linalg.norm(axis, axis=1)
        Fault(size == 0, f"the vector {name} from pixel to pixel is zero").reject()
        Fault(
            np.abs(size - size[0]) > _SAME * size[0],
            f"the pitch along {name} differs from that of view 0, and all views share one detector",
            lambda k, size=size: f"{size[k]:g} and {size[0]:g}",  # type: ignore[misc]
        ).reject()
        pitches.append(float(size[0]))
        units.append(axis / size[:, None])
    shape = tuple(int(_numbers(proj_geom, name)) for name in reversed(names))
    detector = Detector(shape, tuple(reversed(pitches)))
    if kind.startswith("parallel"):
        size = np.linalg.norm(first, axis=1)
        Fault(size == 0, "the ray direction is zero").reject()
        first = first / size[:, None]
    beam = "parallel" if kind.startswith("parallel") else "cone" if volume else "fan"
    return Trajectory(beam, first, centers, units[0], units[1] if volume else None, detector)


def _detector(proj_geom: Mapping[str, Any], volume: bool) -> Detector:
    if not volume:
        count = int(_numbers(proj_geom, "DetectorCount"))
        return Detector(count, float(_numbers(proj_geom, "DetectorWidth")))
    names = ("DetectorRowCount", "DetectorColCount"), ("DetectorSpacingY", "DetectorSpacingX")
    shape = tuple(int(_numbers(proj_geom, name)) for name in names[0])
    return Detector(shape, tuple(float(_numbers(proj_geom, name)) for name in names[1]))


def _grid(vol_geom: Mapping[str, Any], volume: bool) -> Grid:
    counts = ("GridSliceCount", "GridRowCount", "GridColCount")[0 if volume else 1 :]
    if not volume and "GridSliceCount" in vol_geom:
        raise GeometryError("vol_geom has slices and proj_geom is planar; give both 2 or both 3")
    shape = tuple(int(_numbers(vol_geom, name, "vol_geom")) for name in counts)
    window = vol_geom.get("option", {})
    spacing, center = [], []
    for n, axis in zip(shape, "ZYX"[-len(shape) :], strict=True):
        low = float(window.get(f"WindowMin{axis}", -n / 2))
        high = float(window.get(f"WindowMax{axis}", n / 2))
        if not low < high:
            raise GeometryError(f"WindowMin{axis} is {low:g}, WindowMax{axis} {high:g}; it is more")
        spacing.append((high - low) / n)
        middle = (low + high) / 2
        center.append(-middle if axis == "Y" and not volume else middle)
    return Grid(shape, tuple(spacing), tuple(center))


def _entry(values: Mapping[str, Any], name: str, owner: str) -> Any:
    if not isinstance(values, Mapping) or name not in values:
        raise GeometryError(
            f"{owner} has no entry {name!r}; it is a dictionary as ASTRA's create functions make it"
        )
    return values[name]


def _numbers(values: Mapping[str, Any], name: str, owner: str = "proj_geom") -> np.ndarray:
    value = _entry(values, name, owner)
    try:
        return np.asarray(arrays.to_numpy(value) if arrays.is_array(value) else value, np.float64)
    except (TypeError, ValueError):
        raise GeometryError(f"{name} of {owner} is {value!r}; it is made of numbers") from None
