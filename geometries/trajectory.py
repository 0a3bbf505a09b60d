"""`Trajectory`: one frame a view, what every geometry becomes.

A frame is a source (or a direction), the detector's centre, and its two axes. Frames are
checked here, once, in float64; the named scans are in `geometries/beams.py`, checks that need a
grid or a precision in `geometries/admission.py`.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from geometries.detector import Detector
from linops import arrays
from linops.errors import DTypeError, GeometryError

__all__ = ["Trajectory", "view_index"]

_UNIT = 2e-4
_ORTHOGONAL = 1e-4
_FACING = 1e-4


class Trajectory:
    """Frames of a scan: for each view a source or direction, a detector centre, u and v.

    Parameters
    ----------
    kind
        `"parallel"` (2-D or 3-D), `"fan"` (2-D) or `"cone"` (3-D).
    sources_or_directions
        Points in physical units (fan, cone) or unit ray directions (parallel), shape
        `(views, 2)` with components (x, y), or `(views, 3)` with (x, y, z).
    centers
        Where the middle of the detector stands before its offset, same shape.
    u, v
        Unit vectors along the columns and the rows, same shape; `v` is None in 2-D.
    detector
        The cells, common to all views.

    Attributes
    ----------
    sources, directions
        One of them; the other is None.
    centers, u, v
        Read-only float64 NumPy copies. Axes within 2e-4 of unit length are normalised.

    Raises
    ------
    GeometryError
        Naming the view and the fault: another count of views or components, values that are
        not finite, axes that are not unit vectors or not orthogonal, a source on the
        detector's centre, a detector seen edge-on.
    DTypeError
        For arrays that are not real numbers.
    """

    __slots__ = ("__weakref__", "centers", "detector", "directions", "kind", "sources", "u", "v")

    kind: str
    sources: np.ndarray | None
    directions: np.ndarray | None
    centers: np.ndarray
    u: np.ndarray
    v: np.ndarray | None
    detector: Detector

    def __init__(
        self,
        kind: str,
        sources_or_directions: Any,
        centers: Any,
        u: Any,
        v: Any,
        detector: Detector,
    ) -> None:
        if not isinstance(detector, Detector):
            raise GeometryError(f"detector is {detector!r}; it is a Detector")
        if kind not in ("parallel", "fan", "cone"):
            raise GeometryError(f"kind is {kind!r}; it is 'parallel', 'fan' or 'cone'")
        dims = detector.dims
        if (kind, dims) in (("fan", 3), ("cone", 2)):
            raise GeometryError(
                f"a {kind} beam takes a detector of shape "
                f"{'(cols,)' if kind == 'fan' else '(rows, cols)'}, got {detector.shape}"
            )
        first = "directions" if kind == "parallel" else "sources"
        given = {first: sources_or_directions, "centers": centers, "u": u}
        if dims == 3:
            given["v"] = v
        elif v is not None:
            raise GeometryError("v is given for a detector without rows; it is None in 2-D")
        frames = {name: _vectors(value, name, dims) for name, value in given.items()}
        _same_count(frames)
        for name in ("u", "v") if kind != "parallel" else ("u", "v", "directions"):
            if name in frames:
                frames[name] = _unit(frames[name], name)
        self._fill(kind, frames, detector)
        _check_axes(self)
        if kind != "parallel":
            _check_source(self)

    @property
    def views(self) -> int:
        """Number of views, at least 1."""
        return len(self.centers)

    @property
    def dims(self) -> int:
        """2 for images, 3 for volumes."""
        return self.detector.dims

    @property
    def trajectory(self) -> Trajectory:
        """Itself: what a named beam becomes."""
        return self

    @property
    def normals(self) -> np.ndarray:
        """Unit detector normals `v x u` (in 2-D `(-u_y, u_x)`), float64, `(views, dims)`."""
        if self.v is None:
            return np.stack([-self.u[:, 1], self.u[:, 0]], axis=1)
        n: np.ndarray = np.cross(self.v, self.u)
        return np.asarray(n / np.linalg.norm(n, axis=1, keepdims=True))

    def pixels(self, view: int) -> np.ndarray:
        """Where the cells of one view stand, float64, `(cols, 2)` or `(rows, cols, 3)`."""
        along, depth = self.detector.column_offsets()
        line = self.centers[view] + along[:, None] * self.u[view]
        if self.detector.curvature is not None:
            line = line + depth[:, None] * self.normals[view]
        if self.v is None:
            return np.asarray(line)
        return np.asarray(line[None] + self.detector.rows()[:, None, None] * self.v[view])

    def transform(self, rotation: Any = None, translation: Any = None) -> Trajectory:
        """The trajectory moved as a rigid body: points `R p + t`, directions `R d`.

        Parameters
        ----------
        rotation
            A proper rotation `(dims, dims)`, or one for each view `(views, dims, dims)`.
        translation
            A vector `(dims,)`, or one for each view.

        Raises
        ------
        GeometryError
            For wrong shapes, NaN, reflections, or a departure from orthogonality above 1e-4.
        """
        R = _rotation(rotation, self.views, self.dims)
        t = _translation(translation, self.views, self.dims)

        def turn(vectors: np.ndarray | None) -> np.ndarray | None:
            return None if vectors is None else np.einsum("kij,kj->ki", R, vectors)

        def move(points: np.ndarray | None) -> np.ndarray | None:
            return None if points is None else np.einsum("kij,kj->ki", R, points) + t

        first = turn(self.directions) if self.sources is None else move(self.sources)
        return Trajectory(
            self.kind, first, move(self.centers), turn(self.u), turn(self.v), self.detector
        )

    def with_detector(self, detector: Detector) -> Trajectory:
        """The same frames with other cells."""
        first = self.directions if self.sources is None else self.sources
        return Trajectory(self.kind, first, self.centers, self.u, self.v, detector)

    def __getitem__(self, index: Any) -> Trajectory:
        """The views of a slice, a list of numbers or a mask, each with its own frame."""
        chosen = view_index(index, self.views)
        frames = {name: values[chosen] for name, values in self._frames().items()}
        part = object.__new__(Trajectory)
        part._fill(self.kind, frames, self.detector)
        return part

    def __len__(self) -> int:
        return self.views

    def __repr__(self) -> str:
        return f"Trajectory({self.kind!r}, views={self.views}, detector={self.detector!r})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Trajectory is immutable: cannot set {name!r}; build a new one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Trajectory is immutable: cannot delete {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.kind, self._frames(), self.detector)

    def _frames(self) -> dict[str, np.ndarray]:
        found = {
            name: getattr(self, name) for name in ("sources", "directions", "centers", "u", "v")
        }
        return {name: values for name, values in found.items() if values is not None}

    def _fill(self, kind: str, frames: dict[str, np.ndarray], detector: Detector) -> Self:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "detector", detector)
        for name in ("sources", "directions", "centers", "u", "v"):
            values = frames.get(name)
            if values is not None:
                values = np.array(values, np.float64, order="C")
                values.setflags(write=False)
            object.__setattr__(self, name, values)
        return self


def view_index(index: Any, views: int) -> np.ndarray:
    """Numbers of the views that a slice, an integer, a list or a mask chooses.

    Raises
    ------
    GeometryError
        Where it chooses none, or a view that does not exist.
    """
    if isinstance(index, (int, np.integer)) and not isinstance(index, (bool, np.bool_)):
        index = [index]
    if not isinstance(index, slice):
        index = np.asarray(index)
        index = index.astype(int) if index.size == 0 else index
    try:
        chosen = np.arange(views)[index]
    except IndexError:
        raise GeometryError(
            f"view index {index!r} does not fit the {views} views; it is a slice, a list of view "
            "numbers, or a mask with one entry a view"
        ) from None
    if chosen.ndim != 1 or chosen.size == 0:
        raise GeometryError(f"view index {index!r} chooses no views; a trajectory has at least one")
    return np.asarray(chosen)


def _restore(kind: str, frames: dict[str, np.ndarray], detector: Detector) -> Trajectory:
    return object.__new__(Trajectory)._fill(kind, frames, detector)


def _vectors(value: Any, name: str, dims: int) -> np.ndarray:
    if value is None:
        raise GeometryError(f"{name} is None; it is an array of shape (views, {dims})")
    array = _real(value, name)
    if array.ndim != 2 or array.shape[1] != dims:
        raise GeometryError(f"{name} has shape {array.shape}; it is (views, {dims})")
    if len(array) == 0:
        raise GeometryError(f"{name} has no views; a scan has at least one")
    _reject(~np.isfinite(array).all(axis=1), f"{name} is not finite")
    return np.asarray(array)


def _same_count(frames: dict[str, np.ndarray]) -> None:
    if len({len(values) for values in frames.values()}) > 1:
        counts = ", ".join(f"{name} {len(values)}" for name, values in frames.items())
        raise GeometryError(f"arrays of different numbers of views: {counts}; all have one a view")


def _unit(vectors: np.ndarray, name: str) -> np.ndarray:
    size = _norm(vectors)
    _reject(
        np.abs(size - 1) > _UNIT, f"{name} is not a unit vector", lambda k: f"length {size[k]:g}"
    )
    # Vectors that are unit to rounding keep their bits, so that subsets and copies do too.
    rough = np.abs(size - 1) > 4 * np.finfo(float).eps
    return np.where(rough[:, None], vectors / size[:, None], vectors)


def _check_axes(frames: Trajectory) -> None:
    if frames.v is None:
        if frames.directions is not None:
            _orthogonal(frames.directions, frames.u, "direction", "u")
        return
    _orthogonal(frames.u, frames.v, "u", "v")
    if frames.directions is not None:
        volume = np.abs(np.einsum("ki,ki->k", frames.directions, np.cross(frames.u, frames.v)))
        _reject(volume <= 4 * np.finfo(float).eps, "the detector is seen edge-on")


def _check_source(frames: Trajectory) -> None:
    assert frames.sources is not None
    scale = np.maximum(np.abs(frames.sources), np.abs(frames.centers)).max(axis=1, keepdims=True)
    scale = np.where(scale > 0, scale, 1.0)
    ray = frames.centers / scale - frames.sources / scale
    if frames.detector.curvature is not None:
        _check_curved(frames)
        return
    distance = _norm(ray)
    _reject(distance == 0, "the source stands at the detector's centre")
    facing = np.abs(np.einsum("ki,ki->k", ray / distance[:, None], frames.normals))
    _reject(facing < _FACING, "the detector is seen edge-on")


def _check_curved(frames: Trajectory) -> None:
    assert frames.sources is not None
    along, depth = frames.detector.column_offsets()
    back = frames.sources - frames.centers
    normal = frames.normals
    on_source = (
        np.abs(np.einsum("ki,ki->k", back, frames.u)[:, None] - along)
        + np.abs(np.einsum("ki,ki->k", back, normal)[:, None] - depth)
    ) <= 1e-12 * (np.abs(along) + _norm(back)[:, None])
    if frames.v is not None:
        rows = frames.detector.rows()
        height = np.einsum("ki,ki->k", back, frames.v)
        near = np.abs(height[:, None] - rows).min(axis=1) <= 1e-12 * (1 + np.abs(height))
        on_source &= near[:, None]
    _reject(on_source.any(axis=1), "a detector cell stands on the source")


def _orthogonal(a: np.ndarray, b: np.ndarray, first: str, second: str) -> None:
    cosine = np.abs(np.einsum("ki,ki->k", a, b))
    _reject(
        cosine > _ORTHOGONAL,
        f"{first} and {second} are not orthogonal",
        lambda k: f"|{first}.{second}| = {cosine[k]:g}, at most {_ORTHOGONAL:g}",
    )


def _norm(vectors: np.ndarray) -> np.ndarray:
    scale = np.abs(vectors).max(axis=-1, keepdims=True)
    scale = np.where(scale > 0, scale, 1.0)
    return np.asarray(np.linalg.norm(vectors / scale, axis=-1) * scale[..., 0])


def _reject(bad: Any, fault: str, detail: Any = None) -> None:
    if bad.any():
        view = int(np.argmax(bad))
        more = f" ({detail(view)})" if detail else ""
        raise GeometryError(f"view {view}: {fault}{more}")


def _rotation(rotation: Any, views: int, dims: int) -> np.ndarray:
    if rotation is None:
        return np.broadcast_to(np.eye(dims), (views, dims, dims))
    R = _real(rotation, "rotation")
    if R.shape not in ((dims, dims), (views, dims, dims)):
        raise GeometryError(
            f"rotation has shape {R.shape}; it is {(dims, dims)} or {(views, dims, dims)}"
        )
    R = np.broadcast_to(R, (views, dims, dims))
    _reject(~np.isfinite(R).all(axis=(1, 2)), "rotation is not finite")
    gap = np.abs(np.einsum("kij,kil->kjl", R, R) - np.eye(dims)).max(axis=(1, 2))
    _reject(gap > _ORTHOGONAL, "rotation is not orthogonal")
    _reject(np.linalg.det(R) < 0, "rotation is a reflection")
    return R


def _real(value: Any, name: str) -> np.ndarray:
    array = arrays.to_numpy(value) if arrays.is_array(value) else np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise DTypeError(f"{name} has dtype {array.dtype}; it is an array of real numbers")
    return array.astype(np.float64)


def _translation(translation: Any, views: int, dims: int) -> np.ndarray:
    if translation is None:
        return np.zeros((1, dims))
    t = _real(translation, "translation")
    if t.shape not in ((dims,), (views, dims)):
        raise GeometryError(f"translation has shape {t.shape}; it is {(dims,)} or {(views, dims)}")
    t = np.broadcast_to(t, (views, dims))
    _reject(~np.isfinite(t).all(axis=1), "translation is not finite")
    return t
