"""The weights of analytic reconstruction as operators: cosine, redundancy, quadrature.

Each multiplies projections by an array that varies along some of their axes; the array is no
larger than it has to be. The formulas for angles are in `geometries/analytic/coverage.py`.
"""

from __future__ import annotations

from abc import ABC
from typing import Any

import numpy as np

from geometries.analytic import redundancy
from geometries.analytic.coverage import Coverage, angular_weights
from geometries.analytic.frames import (
    distances,
    find_isocenter,
    fixed_frames,
    outward_normals,
    view_angles,
)
from geometries.beams import Beam
from geometries.trajectory import Trajectory
from linops import arrays, numeric
from linops.arrays import Array
from linops.errors import GeometryError, ShapeError
from linops.linear_operator import LinearOperator
from linops.precision import Precision
from linops.space import Space

__all__ = [
    "AngularWeights",
    "AxisWeights",
    "CosineWeights",
    "DisplacedWeights",
    "ParkerWeights",
    "displaced_places",
    "fan_angles",
    "projection_space",
]


class AxisWeights(LinearOperator, ABC):
    """Projections times an array that varies along the named axes alone; its own adjoint.

    Parameters
    ----------
    space
        Projections with named axes.
    axes
        Names of the axes that `array` varies along, in the order of the space.
    array
        Real, finite weights; a torch or JAX array here may carry a gradient.
    """

    batched = True
    blockwise = True

    def __init__(
        self,
        space: Space,
        axes: tuple[str, ...],
        array: Any,
        precision: str | Precision | None = None,
    ) -> None:
        names = space.axes
        assert names is not None
        wanted = tuple(space.shape[names.index(axis)] for axis in axes)
        if not arrays.is_array(array):
            array = np.asarray(array)
        if tuple(array.shape) != wanted or arrays.dtype_of(array).kind not in "fiu":
            raise ShapeError(
                f"{type(self).__name__} takes real weights of shape {wanted} along "
                f"({', '.join(axes)}), got shape {tuple(array.shape)} and dtype {array.dtype}"
            )
        numeric.require_finite(f"the array of {type(self).__name__}", array, GeometryError)
        line = " ".join(names)
        super().__init__(
            space,
            space,
            f"{line}; {' '.join(axes)} -> {line}",
            precision=precision,
            tags=("self_adjoint", "diagonal"),
        )
        self.array = arrays.own(array, space.dtype)

    def _apply(self, x: Array) -> Array:
        return self._broadcast(x) * x

    def _apply_adjoint(self, y: Array) -> Array:
        return self._apply(y)

    def _diagonal(self) -> Array:
        xp = arrays.namespace(self.array)
        return xp.broadcast_to(self._broadcast(self.array), self.domain.shape)

    def _broadcast(self, like: Array) -> Array:
        array = self._beside("array", like)
        carried = {axis.name for axis in self.rule.arrays[0]}
        kept = iter(tuple(array.shape))
        shape = tuple(next(kept) if axis.name in carried else 1 for axis in self.rule.domain[0])
        return arrays.namespace(array).reshape(array, shape)


class CosineWeights(AxisWeights):
    """The cosine of each ray against the detector normal: `d_n / |P - S|`.

    `d_n` is the source's distance from the detector plane, view by view, offsets and tilt
    included. On an equiangular detector of radius R it is `cos gamma`, in a cone beam times
    `R / sqrt(R^2 + v^2)`, v from the source's height. Parallel beams have none.

    Parameters
    ----------
    geometry
        A fan or cone scan.
    dtype
        Of the projections.
    """

    def __init__(
        self,
        geometry: Beam | Trajectory,
        dtype: Any = "float32",
        precision: str | Precision | None = None,
    ) -> None:
        frames = fixed_frames(geometry)
        if frames.sources is None:
            raise GeometryError("a parallel beam has no cosine weights")
        space = projection_space(frames, dtype)
        foot, height, depth = _feet(frames)
        gamma = np.arctan2(*_bearing(frames, foot, depth))
        if frames.detector.curvature is not None:
            v = height[:, None] + frames.detector.rows()
            weights = np.cos(gamma)[:, None, :] / np.hypot(1.0, v / depth[:, None])[..., None]
        else:
            u = foot[:, None, None] + frames.detector.columns()
            v = height[:, None, None] + frames.detector.rows()[:, None]
            d = depth[:, None, None]
            weights = d / np.sqrt(d**2 + u**2 + v**2)
        if frames.dims == 2:
            weights = weights[:, 0]
        else:
            weights = np.broadcast_to(weights, space.shape)
        names = space.axes or ()
        if frames.views > 1 and (weights == weights[:1]).all():
            names, weights = names[1:], weights[0]
        super().__init__(space, names, weights, precision)


class ParkerWeights(AxisWeights):
    """Weights of a short circular fan or cone scan; ones where the scan is full.

    Parameters
    ----------
    geometry
        A fan or cone scan on a circle, with constant distance and column offset.
    angles
        Radians in view order; by default those of the geometry.
    isocenter
        By default that of the geometry.
    dtype
        Of the projections.

    Raises
    ------
    GeometryError
        For parallel beams, for an orbit that is no circle, for a distance or column offset
        that drifts, and for a span too short, with the span that is needed.

    Notes
    -----
    The ray (t, gamma) is seen again at (t + pi - 2 gamma, -gamma); the two weights add to 1.
    """

    def __init__(
        self,
        geometry: Beam | Trajectory,
        angles: Any = None,
        isocenter: Any = None,
        dtype: Any = "float32",
        precision: str | Precision | None = None,
    ) -> None:
        frames = fixed_frames(geometry)
        gamma = fan_angles(geometry, isocenter)
        coverage = Coverage.of(view_angles(geometry, angles), (2 * np.pi,))
        if coverage.period is not None:
            weights = np.ones((frames.views, len(gamma)))
        else:
            need = float(np.pi + 2 * np.abs(gamma).max())
            if coverage.span < need - 1e-5:
                raise GeometryError(
                    f"the scan spans {np.rad2deg(coverage.span):.2f} degrees; Parker weights need "
                    f"{np.rad2deg(need):.2f}, half a turn and the fan's full angle"
                )
            weights = redundancy.of_open_scan(coverage.offsets, coverage.arcs, gamma)
        space = projection_space(frames, dtype)
        names = space.axes or ()
        super().__init__(space, (names[0], names[-1]), weights, precision)


class DisplacedWeights(AxisWeights):
    """Weights of a full turn on a detector that stands to one side of the axis.

    Parameters
    ----------
    geometry
        A parallel, fan or circular cone scan with constant distance and column offset.
    isocenter
        By default that of the geometry.
    dtype
        Of the projections.

    Raises
    ------
    GeometryError
        For an orbit that is no circle, and a distance or column offset that drifts.

    Notes
    -----
    The formula and its sources: `geometries.displaced_weights`.
    """

    def __init__(
        self,
        geometry: Beam | Trajectory,
        isocenter: Any = None,
        dtype: Any = "float32",
        precision: str | Precision | None = None,
    ) -> None:
        weights = redundancy.of_displaced(displaced_places(geometry, isocenter))
        space = projection_space(fixed_frames(geometry), dtype)
        super().__init__(space, (space.axes or ())[-1:], weights, precision)


class AngularWeights(AxisWeights):
    """The quadrature over views.

    Parameters
    ----------
    geometry
        Any scan; a parallel beam closes after half a turn, the others after a turn.
    angles
        Radians in view order; by default those of the geometry.
    weights
        One a view, in place of `angular_weights(angles)`.
    dtype
        Of the projections.
    """

    def __init__(
        self,
        geometry: Beam | Trajectory,
        angles: Any = None,
        weights: Any = None,
        dtype: Any = "float32",
        precision: str | Precision | None = None,
    ) -> None:
        frames = fixed_frames(geometry)
        if weights is None:
            period = None if frames.kind == "parallel" else 2 * np.pi
            weights = angular_weights(view_angles(geometry, angles), period)
        space = projection_space(frames, dtype)
        super().__init__(space, (space.axes or ())[:1], weights, precision)


def projection_space(frames: Trajectory, dtype: Any) -> Space:
    """The space of a scan's projections, `(view, col)` or `(view, row, col)`."""
    shape = (frames.views, *frames.detector.shape)
    return Space(shape, dtype, ("view", *frames.detector.axes))


def fan_angles(geometry: Beam | Trajectory, isocenter: Any = None) -> np.ndarray:
    """The fan angle of each column of a circular scan along `e_u`, radians, `(cols,)`.

    Columns may run along `e_u` or against it: the angle belongs to the ray.

    Raises
    ------
    GeometryError
        Where the scan is not circular, or distance, column offset or the sense of the columns
        change between views.
    """
    frames = fixed_frames(geometry)
    if frames.sources is None:
        raise GeometryError("a parallel beam sees no line twice in half a turn: no short scan")
    center = find_isocenter(geometry, isocenter)
    distances(frames, center, 0.0)
    foot, _, depth = _feet(frames)
    plane = slice(0, 2)
    radius = np.linalg.norm((frames.sources - center)[:, plane], axis=1)
    scale = float(radius.max())
    slack = 1e-4 * scale
    if frames.dims == 3 and np.ptp(frames.sources[:, 2]) > slack:
        raise GeometryError("weights of redundancy need a circular orbit; the sources move along z")
    for values, what in (
        (radius, "radius about the isocenter"),
        (depth, "distance from source to detector"),
        (foot, "column offset"),
    ):
        if np.ptp(values) > slack:
            view = int(np.argmax(np.abs(values - values[0])))
            raise GeometryError(
                f"weights of redundancy need a constant {what}; it is {values[0]:g} in view 0 and "
                f"{values[view]:g} in view {view}"
            )
    n = outward_normals(frames)
    sense = frames.u[:, 0] * n[:, 1] - frames.u[:, 1] * n[:, 0]
    if (sense > 0).any() and (sense < 0).any():
        view = int(np.argmax(sense * sense[0] < 0))
        raise GeometryError(
            "weights of redundancy need columns that run in one sense; those of view "
            f"{view} run against those of view 0"
        )
    return np.asarray(np.arctan2(*_bearing(frames, foot[:1], depth[:1]))[0] * np.sign(sense[0]))


def displaced_places(geometry: Beam | Trajectory, isocenter: Any = None) -> np.ndarray:
    """Where columns lie about the axis: fan angles, or distances in a parallel beam, `(cols,)`.

    Raises
    ------
    GeometryError
        As `fan_angles`; for a parallel beam whose detector drifts about the axis by a column.
    """
    frames = fixed_frames(geometry)
    if frames.sources is not None:
        return fan_angles(geometry, isocenter)
    across = np.einsum("ki,ki->k", frames.centers, frames.u)
    if isocenter is not None:
        across = across - frames.u @ find_isocenter(geometry, isocenter)
    elif not isinstance(geometry, Beam):
        # The axis about which the detector's middle stays at one distance.
        plane = np.column_stack([frames.u[:, :2], np.ones(frames.views)])
        across = across - plane[:, :2] @ np.linalg.lstsq(plane, across, rcond=None)[0][:2]
    if np.ptp(across) > frames.detector.pitch[-1]:
        raise GeometryError("weights of redundancy need a constant column offset; it drifts")
    return np.asarray(frames.detector.columns() + across.mean())


def _feet(frames: Trajectory) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # The detector's center seen from the source: along u, along v, along the normal.
    assert frames.sources is not None
    ray = frames.centers - frames.sources
    along = np.einsum("ki,ki->k", ray, frames.u)
    depth = np.einsum("ki,ki->k", ray, outward_normals(frames))
    up = np.zeros_like(along) if frames.v is None else np.einsum("ki,ki->k", ray, frames.v)
    return along, up, depth


def _bearing(
    frames: Trajectory, foot: np.ndarray, depth: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    along, back = frames.detector.column_offsets()
    return foot[:, None] + along, depth[:, None] + back
