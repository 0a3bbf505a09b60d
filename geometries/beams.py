"""`ParallelBeam`, `FanBeam`, `ConeBeam`: the named circular and helical scans.

Each is a short way to write a `Trajectory`, and remembers the numbers it was made from, because
analytic reconstruction wants angles and distances. At angle t, with `e_u = (cos t, sin t, 0)` and
`e_r = (-sin t, cos t, 0)`: rays of a parallel beam go along e_r; a source stands at
`-source_to_axis * e_r`, the detector's centre at `(source_to_detector - source_to_axis) * e_r`.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC
from typing import Any, Self

import numpy as np

from geometries.detector import Detector
from geometries.trajectory import Trajectory, view_index
from linops import arrays
from linops.errors import DTypeError, GeometryError

__all__ = ["Beam", "ConeBeam", "FanBeam", "ParallelBeam", "as_angles"]


class Beam(ABC):
    """What the named scans share: angles, and the trajectory that they become."""

    __slots__ = ("__weakref__", "angles", "trajectory")

    _numbers: tuple[str, ...] = ()
    angles: np.ndarray
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
    def sources(self) -> np.ndarray | None:
        """Source points `(views, dims)`; None for a parallel beam."""
        return self.trajectory.sources

    @property
    def directions(self) -> np.ndarray | None:
        """Unit ray directions `(views, dims)`; None for a diverging beam."""
        return self.trajectory.directions

    @property
    def centers(self) -> np.ndarray:
        """Detector centres before offsets, `(views, dims)`."""
        return self.trajectory.centers

    @property
    def u(self) -> np.ndarray:
        """Unit vectors along the columns, `(views, dims)`."""
        return self.trajectory.u

    @property
    def v(self) -> np.ndarray | None:
        """Unit vectors along the rows, `(views, 3)`; None in 2-D."""
        return self.trajectory.v

    @property
    def normals(self) -> np.ndarray:
        """Unit detector normals, away from the source, `(views, dims)`."""
        return self.trajectory.normals

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
        numbers = {
            name: value[chosen] if isinstance(value := getattr(self, name), np.ndarray) else value
            for name in self._numbers
        }
        part = object.__new__(type(self))
        part._keep(self.angles[chosen], self.trajectory[chosen], **numbers)
        return part

    def __len__(self) -> int:
        return self.views

    def __repr__(self) -> str:
        first, last = self.angles[0], self.angles[-1]
        parts = [f"{self.views} views from {first:.4g} to {last:.4g} rad", repr(self.detector)]
        for name in self._numbers:
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                parts.append(f"{name}={value.min():g}..{value.max():g}")
            else:
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

    def _keep(self, angles: np.ndarray, trajectory: Trajectory, **numbers: Any) -> None:
        object.__setattr__(self, "angles", _frozen(angles))
        object.__setattr__(self, "trajectory", trajectory)
        for name, value in numbers.items():
            frozen = _frozen(value) if isinstance(value, np.ndarray) else value
            object.__setattr__(self, name, frozen)


class ParallelBeam(Beam):
    """Parallel rays on a circle of angles.

    Parameters
    ----------
    angles
        Radians, one a view: a one-dimensional finite floating array of any namespace, or a
        list. Any order.
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

    def __init__(self, angles: Any, detector: Detector) -> None:
        t = as_angles(angles)
        e_u, e_r, e_v = _circle(t, _detector(detector))
        frames = Trajectory("parallel", e_r, np.zeros_like(e_r), e_u, e_v, detector)
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
        Distances in physical length, positive: a number each, or one a view.

    Raises
    ------
    GeometryError, DTypeError
        Naming the argument.
    """

    __slots__ = ("source_to_axis", "source_to_detector")

    _numbers = ("source_to_axis", "source_to_detector")
    source_to_axis: float | np.ndarray
    source_to_detector: float | np.ndarray

    def __init__(
        self, angles: Any, detector: Detector, source_to_axis: Any, source_to_detector: Any
    ) -> None:
        t = as_angles(angles)
        if _detector(detector).dims != 2:
            raise GeometryError(
                f"FanBeam takes a detector of shape (cols,), got {detector.shape}; a detector "
                "with rows belongs to ConeBeam"
            )
        a = _distances(source_to_axis, "source_to_axis", len(t))
        d = _distances(source_to_detector, "source_to_detector", len(t))
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
        Distances in physical length, positive: a number each, or one a view.
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
    source_to_axis: float | np.ndarray
    source_to_detector: float | np.ndarray
    advance: float

    def __init__(
        self,
        angles: Any,
        detector: Detector,
        source_to_axis: Any,
        source_to_detector: Any,
        advance: float = 0.0,
    ) -> None:
        t = as_angles(angles)
        if _detector(detector).dims != 3:
            raise GeometryError(
                f"ConeBeam takes a detector of shape (rows, cols), got {detector.shape}; a "
                "detector without rows belongs to FanBeam"
            )
        a = _distances(source_to_axis, "source_to_axis", len(t))
        d = _distances(source_to_detector, "source_to_detector", len(t))
        rise = _advance(advance)
        frames = _diverging("cone", t, detector, a, d, rise)
        self._keep(t, frames, source_to_axis=a, source_to_detector=d, advance=rise)


def as_angles(angles: Any, name: str = "angles") -> np.ndarray:
    """`angles` as float64 NumPy, one-dimensional, finite, at least one.

    Raises
    ------
    DTypeError
        For None, strings, complex numbers, booleans and integer arrays.
    GeometryError
        For another number of axes, no views, NaN or infinity, naming the view.
    """
    if arrays.is_array(angles):
        values = arrays.to_numpy(angles)
        kinds = "f"
    else:
        try:
            values = np.asarray(angles)
        except (ValueError, TypeError):
            values = np.asarray(None)
        # Plain Python numbers carry no dtype of their own: [0, 1.5] and [0, 1] are angles alike.
        kinds = "fiu" if values.size else "f"
    if values.ndim == 1 and values.size == 0:
        raise GeometryError(f"{name} has no views; a scan has at least one")
    if values.dtype.kind not in kinds and "bfloat16" not in str(values.dtype):
        raise DTypeError(
            f"{name} has dtype {values.dtype}; it is an array of floating-point radians "
            "(convert degrees with np.deg2rad)"
        )
    if values.ndim != 1:
        raise GeometryError(f"{name} has shape {values.shape}; it is one-dimensional, one a view")
    values = values.astype(np.float64)
    bad = ~np.isfinite(values)
    if bad.any():
        view = int(np.argmax(bad))
        raise GeometryError(f"{name}: view {view} is {values[view]}; every angle is finite")
    _warn_of_degrees(values, name)
    return values


def _circle(t: np.ndarray, detector: Detector) -> tuple[np.ndarray, np.ndarray, Any]:
    cos, sin = np.cos(t), np.sin(t)
    if detector.dims == 2:
        return np.stack([cos, sin], 1), np.stack([-sin, cos], 1), None
    zero = np.zeros_like(t)
    e_v = np.broadcast_to(np.array([0.0, 0.0, 1.0]), (len(t), 3))
    return np.stack([cos, sin, zero], 1), np.stack([-sin, cos, zero], 1), e_v


def _diverging(
    kind: str, t: np.ndarray, detector: Detector, a: Any, d: Any, rise: float
) -> Trajectory:
    e_u, e_r, e_v = _circle(t, detector)
    a, d = np.broadcast_to(a, t.shape), np.broadcast_to(d, t.shape)
    source, center = -a[:, None] * e_r, (d - a)[:, None] * e_r
    if kind == "cone":
        source[:, 2] = center[:, 2] = rise * t / (2 * math.pi)
    return Trajectory(kind, source, center, e_u, e_v, detector)


def _detector(detector: Any) -> Detector:
    if not isinstance(detector, Detector):
        raise GeometryError(f"detector is {detector!r}; it is a Detector")
    return detector


def _distances(value: Any, name: str, views: int) -> float | np.ndarray:
    array = arrays.to_numpy(value) if arrays.is_array(value) else np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise DTypeError(f"{name} is {value!r}; it is a positive length, or one a view")
    if array.ndim > 1 or (array.ndim == 1 and len(array) != views):
        raise GeometryError(
            f"{name} has shape {array.shape}; it is a number or an array with one entry for each "
            f"of the {views} views"
        )
    array = array.astype(np.float64)
    bad = ~(np.isfinite(array) & (array > 0))
    if bad.any():
        where = f" in view {int(np.argmax(bad))}" if array.ndim else ""
        found = float(array[bad][0]) if array.ndim else float(array)
        raise GeometryError(f"{name} is {found:g}{where}; it is positive and finite")
    return array if array.ndim else float(array)


def _advance(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, (bool, str)):
        raise GeometryError(f"advance is {value!r}; it is a finite length, z per turn")
    return number


def _frozen(values: np.ndarray) -> np.ndarray:
    copy = np.array(values, np.float64)
    copy.setflags(write=False)
    return copy


def _warn_of_degrees(angles: np.ndarray, name: str) -> None:
    steps = np.diff(np.sort(angles))
    if len(steps) < 2 or angles.max() - angles.min() <= 4 * math.pi:
        return
    step = float(np.median(steps))
    even = float(np.abs(steps - step).max()) <= 1e-3 * step
    if not even or step <= 0.2 or _golden(step):
        return
    warnings.warn(
        f"{name} run from {angles.min():g} to {angles.max():g} in even steps of {step:.4g} rad "
        f"({math.degrees(step):.4g} degrees): they look like degrees. Angles are radians; "
        "convert with np.deg2rad.",
        UserWarning,
        stacklevel=4,
    )


def _golden(step: float) -> bool:
    # Golden angles pi / (phi + k), and twice that, counted up without a modulus.
    phi = (1 + math.sqrt(5)) / 2
    family = [turn / (phi + k) for k in range(12) for turn in (math.pi, 2 * math.pi)]
    return any(abs(step - angle) <= 3e-6 * angle for angle in family)


def _restore(
    cls: type[Beam], angles: np.ndarray, trajectory: Trajectory, numbers: dict[str, Any]
) -> Beam:
    beam = object.__new__(cls)
    beam._keep(angles, trajectory, **numbers)
    return beam
