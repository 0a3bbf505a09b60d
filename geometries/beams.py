"""`ParallelBeam`, `FanBeam`, `ConeBeam`: the named circular and helical scans.

Each is a short way to write a `Trajectory`, and remembers the numbers it was made from, because
analytic reconstruction wants angles and distances. At angle t, with `e_u = (cos t, sin t, 0)` and
`e_r = (-sin t, cos t, 0)`: rays of a parallel beam go along e_r; a source stands at
`-source_to_axis * e_r`, the detector's center at `(source_to_detector - source_to_axis) * e_r`.
"""

from __future__ import annotations

import math
from abc import ABC
from typing import Any, ClassVar, Self

import numpy as np

from geometries.detector import Detector
from geometries.input_warnings import warn_of_degrees, warn_of_near_detectors
from geometries.trajectory import Trajectory, chosen_views, view_index
from linops import arrays, tracing
from linops.arrays import Array
from linops.errors import DTypeError, GeometryError

__all__ = [
    "Beam",
    "ConeBeam",
    "FanBeam",
    "ParallelBeam",
    "as_angles",
    "checked_angles",
    "checked_distances",
    "circle",
]


class Beam(ABC):
    """What the named scans share: angles, and the trajectory that they become."""

    __slots__ = ("__weakref__", "angles", "trajectory")

    _numbers: tuple[str, ...] = ()
    turns_about_origin: ClassVar[bool] = True
    angles: Array
    trajectory: Trajectory

    @property
    def kind(self) -> str:
        """`"parallel"`, `"fan"` or `"cone"`."""
        return self.trajectory.kind

    @property
    def detector(self) -> Detector:
        """The cells, common to all views."""
        return self.trajectory.detector

    @property
    def views(self) -> int:
        """Number of views, at least 1."""
        return self.trajectory.views

    @property
    def dims(self) -> int:
        """2 for images, 3 for volumes."""
        return self.trajectory.dims

    @property
    def sources(self) -> Array | None:
        """Source points `(views, dims)`; None for a parallel beam."""
        return self.trajectory.sources

    @property
    def directions(self) -> Array | None:
        """Unit ray directions `(views, dims)`; None for a diverging beam."""
        return self.trajectory.directions

    @property
    def centers(self) -> Array:
        """Detector centers before offsets, `(views, dims)`."""
        return self.trajectory.centers

    @property
    def u(self) -> Array:
        """Unit vectors along the columns, `(views, dims)`."""
        return self.trajectory.u

    @property
    def v(self) -> Array | None:
        """Unit vectors along the rows, `(views, 3)`; None in 2-D."""
        return self.trajectory.v

    @property
    def normals(self) -> Array:
        """Unit detector normals, away from the source, `(views, dims)`."""
        return self.trajectory.normals

    @property
    def host(self) -> Self:
        """The same scan in NumPy and plain numbers, without any graph; itself where it is.

        Raises
        ------
        DTypeError
            Under a trace, where values are unknown.
        """
        frames = self.trajectory.host
        if frames is self.trajectory and arrays.is_numpy(self.angles):
            return self
        made = object.__new__(type(self))
        numbers = {name: _on_host(getattr(self, name)) for name in self._numbers}
        made._keep(arrays.to_numpy(self.angles), frames, **numbers)
        return made

    def transform(self, rotation: Any = None, translation: Any = None) -> Trajectory:
        """The frames moved as a rigid body; see `Trajectory.transform`."""
        return self.trajectory.transform(rotation, translation)

    def with_detector(self, detector: Detector) -> Self:
        """The same scan with other cells."""
        part = object.__new__(type(self))
        kept = {name: getattr(self, name) for name in self._numbers}
        part._keep(self.angles, self.trajectory.with_detector(detector), **kept)
        return part

    def __getitem__(self, index: Any) -> Self:
        """The views of a slice, a list of numbers or a mask, each with its own frame."""
        chosen = view_index(index, self.views)
        numbers = {name: getattr(self, name) for name in self._numbers}
        numbers = {
            name: chosen_views(value, chosen) if np.ndim(value) else value
            for name, value in numbers.items()
        }
        part = object.__new__(type(self))
        part._keep(chosen_views(self.angles, chosen), self.trajectory[chosen], **numbers)
        return part

    def __len__(self) -> int:
        return self.views

    def __repr__(self) -> str:
        if not self.trajectory.concrete:
            return f"{type(self).__name__}({self.views} traced views, {self.detector!r})"
        host = self.host
        first, last = host.angles[0], host.angles[-1]
        parts = [f"{self.views} views from {first:.4g} to {last:.4g} rad", repr(self.detector)]
        for name in self._numbers:
            value = getattr(host, name)
            if isinstance(value, np.ndarray) and value.ndim == 1:
                parts.append(f"{name}={value.min():g}..{value.max():g}")
            elif not isinstance(value, np.ndarray):
                parts.append(f"{name}={value:g}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"a {type(self).__name__} is immutable: cannot set {name!r}; build a new one"
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a {type(self).__name__} is immutable: cannot delete {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        numbers = {name: getattr(self, name) for name in self._numbers}
        return _restore, (type(self), self.angles, self.trajectory, numbers)

    def _keep(self, angles: Array, trajectory: Trajectory, **numbers: Any) -> None:
        object.__setattr__(self, "angles", _kept(angles))
        object.__setattr__(self, "trajectory", trajectory)
        for name, value in numbers.items():
            object.__setattr__(self, name, _kept(value) if arrays.is_array(value) else value)


class ParallelBeam(Beam):
    """Parallel rays on a circle of angles.

    Parameters
    ----------
    angles
        Radians, one a view: a one-dimensional finite floating array of any namespace, or a
        list. Any order. Arrays of torch and JAX keep their graph, and frames are theirs.
    detector
        `(cols,)` for images, `(rows, cols)` for volumes, where rows run along z.

    Raises
    ------
    GeometryError, DTypeError
        Naming the argument.

    Examples
    --------
    >>> ParallelBeam([0.0], Detector(3)).directions
    array([[-0.,  1.]])
    """

    __slots__ = ()

    @tracing.run_outside
    def __init__(self, angles: Any, detector: Detector) -> None:
        t = checked_angles(angles)
        e_u, e_r, e_v = circle(t, _detector(detector))
        frames = Trajectory("parallel", e_r, np.zeros(tuple(e_r.shape)), e_u, e_v, detector)
        self._keep(t, frames)


class FanBeam(Beam):
    """A fan from a source on a circle, for images.

    Parameters
    ----------
    angles
        Radians, one a view, as for `ParallelBeam`.
    detector
        Of shape `(cols,)`.
    source_to_axis, source_to_detector
        Distances in physical length, positive: a number each, or one a view. A detector between
        source and axis is legal, ends its rays, and warns.

    Raises
    ------
    GeometryError, DTypeError
        Naming the argument.
    """

    __slots__ = ("source_to_axis", "source_to_detector")

    _numbers = ("source_to_axis", "source_to_detector")
    source_to_axis: float | Array
    source_to_detector: float | Array

    @tracing.run_outside
    def __init__(
        self, angles: Any, detector: Detector, source_to_axis: Any, source_to_detector: Any
    ) -> None:
        t = checked_angles(angles)
        if _detector(detector).dims != 2:
            raise GeometryError(
                f"FanBeam takes a detector of shape (cols,), got {detector.shape}; a detector "
                "with rows belongs to ConeBeam"
            )
        a = checked_distances(source_to_axis, "source_to_axis", t.shape[0])
        d = checked_distances(source_to_detector, "source_to_detector", t.shape[0])
        frames = _diverging("fan", t, detector, a, d, 0.0)
        self._keep(t, frames, source_to_axis=a, source_to_detector=d)


class ConeBeam(Beam):
    """A cone from a source on a circle or, with `advance`, on a helix.

    Parameters
    ----------
    angles
        Radians, one a view, as for `ParallelBeam`.
    detector
        Of shape `(rows, cols)`; rows run along z.
    source_to_axis, source_to_detector
        Distances in physical length, positive: a number each, or one a view. A detector between
        source and axis is legal, ends its rays, and warns.
    advance
        z per turn, of source and detector alike: view k stands at
        `advance * angles[k] / (2 pi)`.

    Raises
    ------
    GeometryError, DTypeError
        Naming the argument.
    """

    __slots__ = ("advance", "source_to_axis", "source_to_detector")

    _numbers = ("source_to_axis", "source_to_detector", "advance")
    source_to_axis: float | Array
    source_to_detector: float | Array
    advance: float | Array

    @tracing.run_outside
    def __init__(
        self,
        angles: Any,
        detector: Detector,
        source_to_axis: Any,
        source_to_detector: Any,
        advance: float | Array = 0.0,
    ) -> None:
        t = checked_angles(angles)
        if _detector(detector).dims != 3:
            raise GeometryError(
                f"ConeBeam takes a detector of shape (rows, cols), got {detector.shape}; a "
                "detector without rows belongs to FanBeam"
            )
        a = checked_distances(source_to_axis, "source_to_axis", t.shape[0])
        d = checked_distances(source_to_detector, "source_to_detector", t.shape[0])
        rise = _advance(advance)
        frames = _diverging("cone", t, detector, a, d, rise)
        self._keep(t, frames, source_to_axis=a, source_to_detector=d, advance=rise)


def as_angles(angles: Any, name: str = "angles") -> np.ndarray:
    """`angles` as float64 NumPy, one-dimensional, finite, at least one.

    Raises
    ------
    DTypeError
        For None, strings, complex numbers, booleans and integer arrays, and under a trace.
    GeometryError
        For another number of axes, no views, NaN or infinity, naming the view.
    """
    return np.asarray(arrays.to_numpy(arrays.unify(checked_angles(angles, name))[0]), np.float64)


def checked_angles(angles: Any, name: str = "angles") -> Array:
    """`angles` as they are, an array of any library, checked where its values are known.

    Raises
    ------
    As `as_angles`.
    """
    if arrays.is_array(angles):
        values = angles
        kinds = "f"
    else:
        try:
            values = np.asarray(angles)
        except (ValueError, TypeError):
            values = np.asarray(None)
        # Plain Python numbers carry no dtype of their own: [0, 1.5] and [0, 1] are angles alike.
        kinds = "fiu" if values.size else "f"
        if values.dtype.kind in "iu":
            values = values.astype(np.float64)
    if values.ndim == 1 and values.shape[0] == 0:
        raise GeometryError(f"{name} has no views; a scan has at least one")
    if arrays.dtype_of(values).kind not in kinds:
        raise DTypeError(
            f"{name} has dtype {values.dtype}; it is an array of floating-point radians "
            "(convert degrees with np.deg2rad)"
        )
    if values.ndim != 1:
        raise GeometryError(
            f"{name} has shape {tuple(values.shape)}; it is one-dimensional, one a view"
        )
    if arrays.is_concrete(values):
        host = np.asarray(arrays.to_numpy(arrays.unify(values)[0]), np.float64)
        bad = ~np.isfinite(host)
        if bad.any():
            view = int(np.argmax(bad))
            raise GeometryError(f"{name}: view {view} is {host[view]}; every angle is finite")
        warn_of_degrees(host, name)
    return values


def circle(t: Array, detector: Detector) -> tuple[Array, Array, Any]:
    """`e_u`, `e_r` and, with rows, `e_v` at the angles t, formed in float64 where there is one."""
    t = arrays.unify(t)[0]
    xp = arrays.namespace(t)
    cos, sin = xp.cos(t), xp.sin(t)
    if detector.dims == 2:
        return xp.stack([cos, sin], axis=1), xp.stack([-sin, cos], axis=1), None
    zero = xp.zeros_like(t)
    e_v = np.broadcast_to(np.array([0.0, 0.0, 1.0]), (t.shape[0], 3))
    return xp.stack([cos, sin, zero], axis=1), xp.stack([-sin, cos, zero], axis=1), e_v


def _diverging(kind: str, t: Array, detector: Detector, a: Any, d: Any, rise: Any) -> Trajectory:
    warn_of_near_detectors(a, d)
    t, a, d, rise = arrays.unify(t, a, d, rise)
    e_u, e_r, e_v = circle(t, detector)
    xp = arrays.namespace(t)
    a, d = xp.broadcast_to(a, t.shape)[:, None], xp.broadcast_to(d, t.shape)[:, None]
    source, center = -a * e_r, (d - a) * e_r
    if kind == "cone":
        height = (rise * t / (2 * math.pi))[:, None]
        source = xp.concat([source[:, :2], height], axis=1)
        center = xp.concat([center[:, :2], height], axis=1)
    return Trajectory(kind, source, center, e_u, e_v, detector)


def _detector(detector: Any) -> Detector:
    if not isinstance(detector, Detector):
        raise GeometryError(f"detector is {detector!r}; it is a Detector")
    return detector


def checked_distances(value: Any, name: str, views: int) -> float | Array:
    """A positive length, or one a view, checked where its values are known; else NaN.

    Raises
    ------
    GeometryError, DTypeError
        Naming the argument.
    """
    array = value if arrays.is_array(value) else np.asarray(value)
    if arrays.dtype_of(array).kind not in "iuf":
        raise DTypeError(f"{name} is {value!r}; it is a positive length, or one a view")
    if array.ndim > 1 or (array.ndim == 1 and array.shape[0] != views):
        raise GeometryError(
            f"{name} has shape {tuple(array.shape)}; it is a number or an array with one entry "
            f"for each of the {views} views"
        )
    array = arrays.unify(array)[0]
    if arrays.is_concrete(array):
        host = arrays.to_numpy(array)
        bad = ~(np.isfinite(host) & (host > 0))
        if bad.any():
            where = f" in view {int(np.argmax(bad))}" if host.ndim else ""
            found = float(host[bad][0]) if host.ndim else float(host)
            raise GeometryError(f"{name} is {found:g}{where}; it is positive and finite")
    else:
        xp = arrays.namespace(array)
        array = xp.where(array > 0, array, xp.full_like(array, math.nan))
    return float(array) if arrays.is_numpy(array) and not array.ndim else array


def _advance(value: Any) -> float | Array:
    if arrays.is_array(value) and not arrays.is_numpy(value):
        if value.ndim == 0 and arrays.dtype_of(value).kind in "iuf":
            if not arrays.is_concrete(value) or math.isfinite(float(arrays.to_numpy(value))):
                return value
        raise GeometryError(f"advance is {value!r}; it is a finite length, z per turn")
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, (bool, str)):
        raise GeometryError(f"advance is {value!r}; it is a finite length, z per turn")
    return number


def _kept(values: Array) -> Array:
    """A copy that its owner cannot change."""
    return arrays.snapshot(values) if arrays.is_numpy(values) else arrays.copy(values)


def _on_host(value: Any) -> Any:
    if not arrays.is_array(value):
        return value
    host = np.asarray(arrays.to_numpy(value), np.float64)
    return host if host.ndim else float(host)


def _restore(
    cls: type[Beam], angles: Array, trajectory: Trajectory, numbers: dict[str, Any]
) -> Beam:
    beam = object.__new__(cls)
    beam._keep(angles, trajectory, **numbers)
    return beam
