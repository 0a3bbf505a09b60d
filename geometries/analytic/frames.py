"""What analytic formulas read off a scan: angles, distances, isocenter.

All of it is resolved once, from the whole scan, in float64, before any block of views is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from geometries.beams import Beam, as_angles
from geometries.trajectory import Trajectory
from linops import arguments, arrays, numeric
from linops.errors import GeometryError

__all__ = [
    "distances",
    "elevation_of",
    "find_isocenter",
    "fixed_frames",
    "outward_normals",
    "view_angles",
]

_CLEAR = 1e-6
_STRAIGHT = 1e-6


def view_angles(geometry: Beam | Trajectory, angles: Any = None) -> np.ndarray:
    """The angle of each view in radians, float64, `(views,)`, in view order.

    From `angles` where given, else the constructor's; for bare frames from the detector normal,
    source to detector, `atan2(-n_x, n_y)` (ray direction for parallel beams), unwrapped.

    Raises
    ------
    GeometryError
        For another number of angles, and for angles that require a gradient.
    """
    if angles is not None:
        refuse_gradient(angles, "angles")
        given = as_angles(angles)
        if len(given) != geometry.views:
            raise GeometryError(
                f"angles has {len(given)} entries; the geometry has {geometry.views} views"
            )
        return given
    if isinstance(geometry, Beam):
        refuse_gradient(geometry.angles, "angles")
        return as_angles(geometry.angles)
    n = outward_normals(fixed_frames(geometry))
    return np.asarray(np.unwrap(np.arctan2(-n[:, 0], n[:, 1])))


def fixed_frames(geometry: Beam | Trajectory) -> Trajectory:
    """The frames in float64 NumPy.

    Raises
    ------
    GeometryError
        For frames that require a gradient, or are traced.
    DTypeError
        For what is no geometry.
    """
    frames = getattr(geometry, "trajectory", None)
    if not isinstance(frames, Trajectory):
        raise arguments.wrong(
            "analytic reconstruction", "geometry", geometry, "a beam or a Trajectory"
        )
    for name in ("sources", "directions", "centers", "u", "v"):
        refuse_gradient(getattr(frames, name), name)
    for value in frames.detector.parameters:
        refuse_gradient(value, "detector")
    return frames.host


def outward_normals(frames: Trajectory) -> np.ndarray:
    """Detector normals turned from the source to the detector; directions if parallel."""
    if frames.sources is None:
        assert frames.directions is not None
        return np.asarray(frames.directions)
    n = frames.normals
    side = np.einsum("ki,ki->k", frames.centers - frames.sources, n)
    return np.asarray(n * np.where(side < 0, -1.0, 1.0)[:, None])


def find_isocenter(geometry: Beam | Trajectory, given: Any = None) -> np.ndarray:
    """The point that the detector looks at throughout the scan, float64, `(dims,)`.

    Given, known from the constructor (the origin), or the least-squares point of the lines that
    run from the sources along the detector normals.

    Raises
    ------
    GeometryError
        "supply isocenter", where the lines do not fix a point; for a point of another dimension.
    """
    frames = fixed_frames(geometry)
    if given is not None:
        refuse_gradient(given, "isocenter")
        try:
            point = numeric.finite_vector("isocenter", given)
        except (TypeError, ValueError):
            point = np.zeros(0)
        if point.shape != (frames.dims,) or not np.isfinite(point).all():
            raise GeometryError(
                f"isocenter is {given!r}; it is a finite point with {frames.dims} components"
            )
        return point
    if isinstance(geometry, Beam) and geometry.turns_about_origin:
        return np.zeros(frames.dims)
    assert frames.sources is not None
    n = outward_normals(frames)
    middle = frames.sources.mean(axis=0)
    spread = np.eye(frames.dims) - n[:, :, None] * n[:, None, :]
    matrix = spread.mean(axis=0)
    right = np.einsum("kij,kj->i", spread, frames.sources - middle) / frames.views
    values = np.linalg.eigvalsh(matrix)
    if values[0] <= 64 * np.finfo(float).eps * values[-1]:
        raise GeometryError(
            f"the {frames.views} views do not fix a point that all of them look at (parallel or "
            "coincident central rays); supply isocenter"
        )
    return np.asarray(np.linalg.solve(matrix, right) + middle)


def distances(
    frames: Trajectory, isocenter: np.ndarray, unit: float
) -> tuple[np.ndarray, np.ndarray]:
    """Along each view's normal: from the source to the isocenter, and to the detector.

    Parameters
    ----------
    unit
        Size of a voxel: both must exceed 1e-6 of it.

    Raises
    ------
    GeometryError
        Naming the view.
    """
    assert frames.sources is not None
    n = outward_normals(frames)
    to_axis = np.einsum("ki,ki->k", isocenter - frames.sources, n)
    to_detector = np.einsum("ki,ki->k", frames.centers - frames.sources, n)
    for values, what in ((to_axis, "isocenter"), (to_detector, "detector plane")):
        bad = values <= _CLEAR * unit
        if bad.any():
            view = int(np.argmax(bad))
            raise GeometryError(
                f"view {view}: the {what} lies {values[view]:g} in front of the source; it has to "
                "lie clearly before it"
            )
    return to_axis, to_detector


def elevation_of(frames: Trajectory) -> float:
    """The one angle of a parallel scan's rays above the plane z = 0, radians.

    Raises
    ------
    GeometryError
        For rays of several elevations or along z, for columns that leave that plane and
        detectors that are not square to the rays, naming the view.
    """
    assert frames.directions is not None and frames.v is not None
    rays = frames.directions
    aslant = [np.abs(np.einsum("ki,ki->k", axis, rays)) for axis in (frames.u, frames.v)]
    for values, what in (
        (np.abs(rays[:, 2] - rays[0, 2]), "rays of one elevation"),
        (np.abs(frames.u[:, 2]), "detector rows square to z"),
        (np.maximum(*aslant), "detectors square to the rays"),
    ):
        if values.max() > _STRAIGHT:
            view = int(np.argmax(values > _STRAIGHT))
            raise GeometryError(f"fbp takes {what}; view {view} is {values[view]:g} off")
    elevation = float(np.arcsin(np.clip(rays[:, 2].mean(), -1, 1)))
    if abs(np.cos(elevation)) < _STRAIGHT:
        raise GeometryError("fbp takes rays that turn about z; these run along it")
    return elevation


def refuse_gradient(value: Any, name: str) -> None:
    """Raise where a geometry argument is traced, or a derivative is recorded through it."""
    if arrays.is_traced(value):
        raise GeometryError(
            f"{name} is traced by JAX, so its values are unknown; analytic reconstruction takes "
            "its geometry as fixed: make fbp_operator(A) outside and pass that, or let the jitted "
            "function close over A. Derivatives in the geometry are those of "
            "Projector.geometry_operator"
        )
    if arrays.is_array(value) and arrays.requires_gradient(value):
        raise GeometryError(
            f"{name} requires a gradient; analytic reconstruction takes its geometry as fixed. "
            "Derivatives in the geometry are those of Projector.geometry_operator"
        )
