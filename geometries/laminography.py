"""`MultiAxisParallel` and `Translation`: scans that do not turn about z alone.

Tilted parallel beams, one azimuth and one elevation a view, and objects that move through a
resting fan or cone. Both are short ways to write frames, like the scans in
`geometries/beams.py`, whose angles and directions they share.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar

import numpy as np

from geometries.beams import Beam, checked_angles, checked_distances, circle
from geometries.detector import Detector
from geometries.frame_checks import real
from geometries.trajectory import Trajectory
from linops import arrays, tracing
from linops.arrays import Array
from linops.errors import GeometryError

__all__ = ["MultiAxisParallel", "Translation"]


class MultiAxisParallel(Beam):
    """Parallel rays from any direction: an azimuth s and an elevation e for each view.

    With `e_u(s) = (cos s, sin s, 0)` and `e_r(s) = (-sin s, cos s, 0)`::

        direction   cos e e_r(s) + sin e (0, 0, 1)
        u           e_u(s)
        v           cos e (0, 0, 1) - sin e e_r(s)

    so that a positive elevation looks upwards along the ray, a point (x, y, z) is seen at
    `u = x cos s + y sin s`, `v = z cos e - (y cos s - x sin s) sin e`, and elevation 0 is
    `ParallelBeam`, bit for bit.

    Parameters
    ----------
    azimuths
        Radians, one a view, as the angles of `ParallelBeam`.
    elevations
        Radians: a number, or one a view.
    detector
        Of shape `(rows, cols)`.

    Raises
    ------
    GeometryError, DTypeError
        Naming the argument.

    Examples
    --------
    >>> tilted = MultiAxisParallel([0.0, 1.0], 0.5, Detector((4, 6)))
    >>> [round(float(z), 4) for z in tilted.directions[:, 2]]
    [0.4794, 0.4794]
    """

    __slots__ = ("elevations",)

    _numbers = ("elevations",)
    elevations: float | Array

    @tracing.run_outside
    def __init__(self, azimuths: Any, elevations: Any, detector: Detector) -> None:
        if not isinstance(detector, Detector) or detector.dims != 3:
            raise GeometryError(
                f"MultiAxisParallel takes a Detector of shape (rows, cols), got {detector!r}"
            )
        s = checked_angles(azimuths, "azimuths")
        e = _elevations(elevations, int(s.shape[0]))
        t, tilt = arrays.unify(s, e)
        e_u, e_r, e_v = circle(t, detector)
        up = arrays.unify(e_v, e_r)[0]
        xp = arrays.namespace(t)
        tilt = xp.broadcast_to(tilt, t.shape)
        cos, sin = xp.cos(tilt)[:, None], xp.sin(tilt)[:, None]
        direction, v = cos * e_r + sin * up, cos * up - sin * e_r
        frames = Trajectory("parallel", direction, np.zeros((len(up), 3)), e_u, v, detector)
        self._keep(s, frames, elevations=e)

    @property
    def azimuths(self) -> Array:
        """The azimuth of each view: its angle about z."""
        return self.angles


class Translation(Beam):
    """A resting fan or cone, and an object that is moved to another position for each view.

    The beam is that of angle 0: the source at `(0, -source_to_axis, 0)`, the detector's center at
    `(0, source_to_detector - source_to_axis, 0)`, columns along x, rows along z. In view k every
    voxel stands at its place plus `positions[k]`, which is written as frames moved by
    `-positions[k]`. So a move towards +x moves the shadow towards +u.

    Parameters
    ----------
    positions
        Of the object, physical length: `(views, 2)` with components (x, y) for a detector without
        rows, `(views, 3)` with (x, y, z) otherwise.
    detector
        The cells, `(cols,)` or `(rows, cols)`.
    source_to_axis, source_to_detector
        Distances to the object's place at position 0 and to the detector, positive: a number
        each, or one a view.

    Raises
    ------
    GeometryError, DTypeError
        Naming the argument.

    Examples
    --------
    >>> Translation([(0.0, 0.0), (2.0, 0.0)], Detector(8), 50, 100).sources
    array([[ -0., -50.],
           [ -2., -50.]])
    """

    __slots__ = ("positions", "source_to_axis", "source_to_detector")

    _numbers = ("positions", "source_to_axis", "source_to_detector")
    turns_about_origin: ClassVar[bool] = False
    positions: Array
    source_to_axis: float | Array
    source_to_detector: float | Array

    @tracing.run_outside
    def __init__(
        self, positions: Any, detector: Detector, source_to_axis: Any, source_to_detector: Any
    ) -> None:
        if not isinstance(detector, Detector):
            raise GeometryError(f"detector is {detector!r}; it is a Detector")
        moved = real(positions, "positions")
        if moved.ndim != 2 or moved.shape[1] != detector.dims or moved.shape[0] == 0:
            raise GeometryError(
                f"positions has shape {tuple(moved.shape)}; it is (views, {detector.dims}) for a "
                f"detector of shape {detector.shape}"
            )
        views = int(moved.shape[0])
        moved = arrays.unify(moved)[0]
        a = checked_distances(source_to_axis, "source_to_axis", views)
        d = checked_distances(source_to_detector, "source_to_detector", views)
        shift, to_axis, to_detector = arrays.unify(moved, a, d)
        xp = arrays.namespace(shift)
        e_u, e_r, e_v = circle(arrays.unify(np.zeros(views), shift)[0], detector)
        to_axis = xp.broadcast_to(to_axis, (views,))[:, None]
        to_detector = xp.broadcast_to(to_detector, (views,))[:, None]
        frames = Trajectory(
            "fan" if detector.dims == 2 else "cone",
            -to_axis * e_r - shift,
            (to_detector - to_axis) * e_r - shift,
            e_u,
            e_v,
            detector,
        )
        self._keep(np.zeros(views), frames, positions=moved, source_to_axis=a, source_to_detector=d)


def _elevations(value: Any, views: int) -> float | Array:
    array = real(value, "elevations")
    if array.ndim > 1 or (array.ndim == 1 and array.shape[0] != views):
        raise GeometryError(
            f"elevations has shape {tuple(array.shape)}; it is a number or an array with one "
            f"entry for each of the {views} views"
        )
    array = arrays.unify(array)[0]
    if arrays.is_concrete(array):
        host = np.atleast_1d(np.asarray(arrays.to_numpy(array), np.float64))
        bad = ~np.isfinite(host)
        if bad.any():
            raise GeometryError(
                f"elevations: view {int(np.argmax(bad))} is {host[bad][0]}; every elevation is "
                "finite"
            )
        if np.abs(host).max() > math.pi:
            warnings.warn(
                f"elevations reach {np.abs(host).max():g} rad: they look like degrees. Elevations "
                "are radians; convert with np.deg2rad.",
                UserWarning,
                stacklevel=4,
            )
    return float(array) if arrays.is_numpy(array) and not array.ndim else array
