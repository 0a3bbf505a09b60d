"""Orbits other than the circle and the helix, each written as a `Trajectory`.

Sources whose distance swings, saddles, any path of source points, and frames disturbed at random.
Circles and helices are in `geometries/beams.py`; nothing here keeps a state, draws from a global
generator, or chooses a device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from geometries.beams import checked_angles, checked_distances, circle
from geometries.detector import Detector
from geometries.frame_checks import Fault, cross, lengths_of, real
from geometries.trajectory import Trajectory
from linops import arrays, tracing
from linops.arrays import Array
from linops.errors import GeometryError

__all__ = ["from_path", "perturb", "saddle", "sinusoidal"]

_POLE = 1e-6


@tracing.run_outside
def sinusoidal(
    angles: Any,
    detector: Detector,
    source_to_axis: Any = None,
    source_to_detector: Any = None,
    amplitude: Any = 0.0,
    frequency: Any = 1.0,
) -> Trajectory:
    """A circle whose radius swings: `a_k = source_to_axis + amplitude sin(frequency t_k)`.

    The source stands at `-a_k e_r`, the detector's center at `(source_to_detector - a_k) e_r`.
    Without distances the beam is parallel, and the center moves by
    `amplitude sin(frequency t_k)` along e_u.

    Parameters
    ----------
    angles
        Radians, one a view, as for `ConeBeam`; arrays of torch and JAX keep their graph, here
        and in all numbers below.
    detector
        `(cols,)` or `(rows, cols)`.
    source_to_axis, source_to_detector
        Positive lengths, a number each or one a view; None for a parallel beam.
    amplitude, frequency
        Length, and periods in a turn: a number each or one a view.

    Raises
    ------
    GeometryError, DTypeError
        Naming the argument; where a source reaches the axis, naming the view.
    """
    t = checked_angles(angles)
    views = int(t.shape[0])
    swing, rate = _numbers(amplitude, "amplitude", views), _numbers(frequency, "frequency", views)
    t, swing, rate = arrays.unify(t, swing, rate)
    shift = swing * arrays.namespace(t).sin(rate * t)
    if source_to_axis is None and source_to_detector is None:
        e_u, e_r, e_v = circle(t, _detector(detector))
        return Trajectory("parallel", e_r, shift[:, None] * e_u, e_u, e_v, detector)
    return _swinging(t, detector, source_to_axis, source_to_detector, shift, None)


@tracing.run_outside
def saddle(
    angles: Any,
    detector: Detector,
    source_to_axis: Any,
    source_to_detector: Any,
    z_amplitude: Any,
    radial_amplitude: Any = 0.0,
) -> Trajectory:
    """A cone beam on a saddle: heights `z_amplitude cos 2t`, radii `a + radial_amplitude sin 2t`.

    Source and detector stand at the same height.

    Parameters
    ----------
    angles, source_to_axis, source_to_detector
        As for `sinusoidal`.
    detector
        `(rows, cols)`.
    z_amplitude, radial_amplitude
        Lengths, a number each or one a view.

    Raises
    ------
    GeometryError, DTypeError
        Naming the argument; where a source reaches the axis, naming the view.
    """
    if _detector(detector).dims != 3:
        raise GeometryError(f"saddle takes a detector of shape (rows, cols), got {detector.shape}")
    t = checked_angles(angles)
    views = int(t.shape[0])
    height = _numbers(z_amplitude, "z_amplitude", views)
    swing = _numbers(radial_amplitude, "radial_amplitude", views)
    t, height, swing = arrays.unify(t, height, swing)
    xp = arrays.namespace(t)
    return _swinging(
        t,
        detector,
        source_to_axis,
        source_to_detector,
        swing * xp.sin(2 * t),
        height * xp.cos(2 * t),
    )


@tracing.run_outside
def from_path(sources: Any, detector: Detector, source_to_detector: Any) -> Trajectory:
    """A fan or cone whose central rays run from points of a path through the origin.

    A source s looks at a detector centered at `s - source_to_detector s / |s|`, with
    `u = (-s_y, s_x, 0)` normalised, `(1, 0, 0)` where `|s_x|` and `|s_y|` are below 1e-6, and
    `v = s / |s| x u`. On a circle this is `ConeBeam`.

    Parameters
    ----------
    sources
        Points `(views, 2)` or `(views, 3)`, as the detector has no rows or has them; gradients
        pass to them.
    detector
        `(cols,)` or `(rows, cols)`.
    source_to_detector
        A positive length, or one a view.

    Raises
    ------
    GeometryError, DTypeError
        Naming the argument; where a source stands in the origin, naming the view.
    """
    dims = _detector(detector).dims
    s = real(sources, "sources")
    if s.ndim != 2 or s.shape[1] != dims or s.shape[0] == 0:
        raise GeometryError(
            f"sources has shape {tuple(s.shape)}; it is (views, {dims}) for a detector of shape "
            f"{detector.shape}"
        )
    views = int(s.shape[0])
    d = checked_distances(source_to_detector, "source_to_detector", views)
    s, d = arrays.unify(s, d)
    xp = arrays.namespace(s)
    if arrays.is_concrete(s):
        host = np.asarray(arrays.to_numpy(s), np.float64)
        Fault(~np.isfinite(host).all(axis=1), "sources is not finite").reject()
        Fault((host == 0).all(axis=1), "the source stands in the origin").reject()
    away = s / lengths_of(s)[:, None]
    pole = (xp.abs(s[:, 0]) < _POLE) & (xp.abs(s[:, 1]) < _POLE)
    if dims == 2:
        pole = xp.zeros_like(pole)
    one, zero = xp.ones_like(s[:, 0]), xp.zeros_like(s[:, 0])
    # Both branches stay finite, so that gradients do: x and y are replaced before the division.
    x, y = xp.where(pole, zero, s[:, 0]), xp.where(pole, -one, s[:, 1])
    flat = xp.stack([-y, x], axis=1)
    flat = flat / lengths_of(flat)[:, None]
    center = s - xp.broadcast_to(d, (views,))[:, None] * away
    if dims == 2:
        return Trajectory("fan", s, center, flat, None, detector)
    u = xp.concat([flat, zero[:, None]], axis=1)
    return Trajectory("cone", s, center, u, cross(away, u), detector)


@tracing.run_outside
def perturb(
    trajectory: Any,
    generator: np.random.Generator,
    distance_std: float = 0.0,
    position_std: float = 0.0,
    angle_std: float = 0.0,
) -> Trajectory:
    """The trajectory with independent normal errors in each view.

    Parameters
    ----------
    trajectory
        A `Trajectory` or a named beam.
    generator
        The only source of random numbers. The draws are the same whatever the stds are, so a
        larger std scales the same errors.
    distance_std
        Length by which a source moves along its central ray; parallel beams have none.
    position_std
        Length, for each component of the detector's center.
    angle_std
        Radians by which the detector turns about its center, u and v alike: about each of the
        three axes, or in the plane. Directions of a parallel beam turn with it.

    Raises
    ------
    TypeError
        For anything but a `numpy.random.Generator`.
    GeometryError
        For stds that are negative or not finite, or frames that have become invalid.
    """
    if not isinstance(generator, np.random.Generator):
        raise TypeError(
            f"generator is {generator!r}; it is a numpy.random.Generator, such as "
            "numpy.random.default_rng(0)"
        )
    stds = {"distance_std": distance_std, "position_std": position_std, "angle_std": angle_std}
    for name, std in stds.items():
        if isinstance(std, (bool, str)) or not np.isfinite(std) or std < 0:
            raise GeometryError(f"{name} is {std!r}; it is a finite number, at least 0")
    frames = getattr(trajectory, "trajectory", None)
    if not isinstance(frames, Trajectory):
        raise GeometryError(f"perturb takes a beam or a Trajectory, got {trajectory!r}")
    views, dims = frames.views, frames.dims
    along = generator.standard_normal(views)
    moves = generator.standard_normal((views, dims))
    turns = generator.standard_normal((views, 3 if dims == 3 else 1))
    R = _rotations(angle_std * turns)

    def turn(vectors: Array) -> Array:
        matrix, vectors = arrays.unify(R, vectors)
        return arrays.namespace(matrix).sum(matrix * vectors[:, None, :], axis=2)

    centers, move = arrays.unify(frames.centers, position_std * moves)
    if frames.sources is None:
        first = turn(frames.directions)
    else:
        ray = frames.centers - frames.sources
        step = arrays.unify(distance_std * along, ray)[0]
        first = frames.sources + step[:, None] * ray / lengths_of(ray)[:, None]
    v = None if frames.v is None else turn(frames.v)
    return Trajectory(frames.kind, first, centers + move, turn(frames.u), v, frames.detector)


def _swinging(
    t: Array, detector: Any, source_to_axis: Any, source_to_detector: Any, shift: Array, z: Any
) -> Trajectory:
    """Frames at radii `source_to_axis + shift` and heights z."""
    views = int(t.shape[0])
    a = checked_distances(source_to_axis, "source_to_axis", views)
    d = checked_distances(source_to_detector, "source_to_detector", views)
    t, a, d, shift = arrays.unify(t, a, d, shift)
    xp = arrays.namespace(t)
    radius = a + shift
    if arrays.is_concrete(radius):
        host = np.asarray(arrays.to_numpy(radius))
        Fault(~(host > 0), "the source reaches the axis", lambda k: f"radius {host[k]:g}").reject()
    else:
        radius = xp.where(radius > 0, radius, xp.full_like(radius, float("nan")))
    e_u, e_r, e_v = circle(t, _detector(detector))
    source, center = -radius[:, None] * e_r, (d - radius)[:, None] * e_r
    if z is not None:
        up = arrays.unify(e_v, t)[0] * arrays.unify(z, t)[0][:, None]
        source, center = source + up, center + up
    kind = "fan" if detector.dims == 2 else "cone"
    return Trajectory(kind, source, center, e_u, e_v, detector)


def _numbers(value: Any, name: str, views: int) -> Array:
    array = real(value, name)
    if array.ndim > 1 or (array.ndim == 1 and array.shape[0] != views):
        raise GeometryError(
            f"{name} has shape {tuple(array.shape)}; it is a number or an array with one entry "
            f"for each of the {views} views"
        )
    array = arrays.unify(array)[0]
    if arrays.is_concrete(array) and not np.isfinite(arrays.to_numpy(array)).all():
        raise GeometryError(f"{name} is {value!r}; it is finite")
    return array


def _detector(detector: Any) -> Detector:
    if not isinstance(detector, Detector):
        raise GeometryError(f"detector is {detector!r}; it is a Detector")
    return detector


def _rotations(vectors: np.ndarray) -> np.ndarray:
    """Rotations by vectors `(views, 3)` (Rodrigues), or by angles `(views, 1)` in the plane."""
    angle = np.linalg.norm(vectors, axis=1) if vectors.shape[1] == 3 else vectors[:, 0]
    cos, sin = np.cos(angle), np.sin(angle)
    if vectors.shape[1] == 1:
        return np.stack([np.stack([cos, -sin], 1), np.stack([sin, cos], 1)], axis=1)
    x, y, z = (vectors / np.where(angle > 0, angle, 1.0)[:, None]).T
    zero = np.zeros_like(x)
    K = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], axis=1).reshape(-1, 3, 3)
    return np.asarray(np.eye(3) + sin[:, None, None] * K + (1 - cos)[:, None, None] * (K @ K))
