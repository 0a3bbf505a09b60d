"""`Trajectory`: one frame a view, what every geometry becomes.

A frame is a source (or a direction), the detector's center, and its two axes. Frames are
checked here, once, in float64, by the list in `geometries/frame_checks.py`; the named scans are
in `geometries/beams.py`, checks that need a grid or a precision in `geometries/admission.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from geometries.detector import Detector
from geometries.frame_checks import (
    cross,
    frame_faults,
    lengths_of,
    motion_faults,
    real,
)
from geometries.retained import Watch, watched
from linops import arrays, tracing
from linops.arrays import Array
from linops.errors import GeometryError

__all__ = ["Trajectory", "chosen_views", "view_index"]

_NAMES = ("sources", "directions", "centers", "u", "v")


class Trajectory:
    """Frames of a scan: for each view a source or direction, a detector center, u and v.

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
        Copies, all of one library: read-only float64 NumPy, or that of the torch or JAX arrays
        among the arguments (and among the detector's numbers), with their graph, in float64
        where the library has it. Axes within 2e-4 of unit length are normalised.

    Notes
    -----
    Where values are known the checks are made on them. Under a trace (`jax.jit`, `jax.grad`,
    `torch.func.vmap`) only shapes and dtypes are; a view whose frame turns out to be invalid is
    then NaN in all its components, never a plausible number.

    Raises
    ------
    GeometryError
        Naming the view and the fault: another count of views or components, values that are
        not finite, axes that are not unit vectors or not orthogonal, a source on the
        detector's center, a detector seen edge-on.
    DTypeError
        For arrays that are not real numbers, or of two libraries besides NumPy.
    """

    __slots__ = (
        "__weakref__",
        "_host",
        "_watch",
        "centers",
        "detector",
        "directions",
        "kind",
        "sources",
        "u",
        "v",
    )

    kind: str
    sources: Array | None
    directions: Array | None
    centers: Array
    u: Array
    v: Array | None
    detector: Detector
    _host: Trajectory | None
    _watch: Watch

    @tracing.run_outside
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
        vectors = [_vectors(value, name, dims) for name, value in given.items()]
        joined = arrays.unify(*vectors, *detector.parameters)
        frames = dict(zip(given, joined, strict=False))
        _same_count(frames)
        self._fill(kind, *_checked(frames, detector), detector)

    @property
    def views(self) -> int:
        """Number of views, at least 1."""
        return int(self.centers.shape[0])

    @property
    def dims(self) -> int:
        """2 for images, 3 for volumes."""
        return self.detector.dims

    @property
    def trajectory(self) -> Trajectory:
        """Itself: what a named beam becomes."""
        return self

    @property
    def concrete(self) -> bool:
        """Whether all values are known: false under a trace."""
        known = (*self._frames().values(), *self.detector.parameters)
        return all(map(arrays.is_concrete, known))

    @property
    def host(self) -> Trajectory:
        """The same frames in float64 NumPy, without any graph; itself where they are.

        Raises
        ------
        DTypeError
            Under a trace, where values are unknown.
        """
        if self._host is None:
            detector = self.detector.host
            frames = self._frames()
            if detector is self.detector and all(map(arrays.is_numpy, frames.values())):
                return self
            values = {name: arrays.to_numpy(part) for name, part in frames.items()}
            object.__setattr__(self, "_host", _restore(self.kind, values, detector))
        assert self._host is not None
        return self._host

    @property
    def normals(self) -> Array:
        """Unit detector normals `v x u` (in 2-D `(-u_y, u_x)`), `(views, dims)`."""
        if self.v is None:
            return arrays.namespace(self.u).stack([-self.u[:, 1], self.u[:, 0]], axis=1)
        n = cross(self.v, self.u)
        return n / lengths_of(n)[:, None]

    @tracing.run_outside
    def points(self, views: Any = None) -> Array:
        """Where detector cells stand, `(views, cols, 2)` or `(views, rows, cols, 3)`.

        In the library of the frames, and differentiable in all of them and in the detector's
        numbers. `views` chooses some, as `trajectory[views]` does.
        """
        part = self if views is None else self[views]
        if part.detector.surface is not None:
            return _surface_points(part)
        along, depth = (arrays.unify(x, part.u)[0] for x in part.detector.column_offsets())
        line = part.centers[:, None, :] + along[:, None] * part.u[:, None, :]
        if part.detector.curvature is not None:
            line = line + depth[:, None] * part.normals[:, None, :]
        if part.v is None:
            return line
        heights = arrays.unify(part.detector.rows(), part.u)[0]
        return line[:, None] + heights[:, None, None] * part.v[:, None, None, :]

    def pixels(self, view: int) -> Array:
        """Where the cells of one view stand, `(cols, 2)` or `(rows, cols, 3)`."""
        return self.points([view])[0]

    @tracing.run_outside
    def transform(self, rotation: Any = None, translation: Any = None) -> Trajectory:
        """The trajectory moved as a rigid body: points `R p + t`, directions `R d`.

        Differentiable in both, where they are arrays of torch or JAX.

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
        R = _motion(rotation, "rotation", (self.dims, self.dims), self.views)
        t = _motion(translation, "translation", (self.dims,), self.views)

        def turn(vectors: Array | None) -> Array | None:
            if vectors is None or R is None:
                return vectors
            matrix, vectors = arrays.unify(R, vectors)
            return arrays.namespace(matrix).sum(matrix * vectors[:, None, :], axis=2)

        def move(points: Array | None) -> Array | None:
            turned = turn(points)
            if turned is None or t is None:
                return turned
            turned, shift = arrays.unify(turned, t)
            return turned + shift

        first = turn(self.directions) if self.sources is None else move(self.sources)
        return Trajectory(
            self.kind, first, move(self.centers), turn(self.u), turn(self.v), self.detector
        )

    @tracing.run_outside
    def with_detector(self, detector: Detector) -> Trajectory:
        """The same frames with other cells."""
        first = self.directions if self.sources is None else self.sources
        return Trajectory(self.kind, first, self.centers, self.u, self.v, detector)

    def __getitem__(self, index: Any) -> Trajectory:
        """The views of a slice, a list of numbers or a mask, each with its own frame."""
        chosen = view_index(index, self.views)
        frames = {name: chosen_views(values, chosen) for name, values in self._frames().items()}
        known = None if self._host is None else self._host._frames()
        host = None if known is None else {name: known[name][chosen] for name in known}
        part = object.__new__(Trajectory)
        part._fill(self.kind, frames, host, self.detector.of_views(chosen))
        object.__setattr__(part, "_watch", self._watch)
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

    def _frames(self) -> dict[str, Array]:
        found = {name: getattr(self, name) for name in _NAMES}
        return {name: values for name, values in found.items() if values is not None}

    def _fill(
        self,
        kind: str,
        frames: Mapping[str, Array],
        host: Mapping[str, np.ndarray] | None,
        detector: Detector,
    ) -> Self:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "detector", detector)
        kept = None if host is None else _restore(kind, host, detector.host)
        object.__setattr__(self, "_host", kept)
        watch = (*detector._watch, *watched(frames.values()))
        object.__setattr__(self, "_watch", watch)
        for name in _NAMES:
            values = frames.get(name)
            if values is not None:
                if arrays.is_numpy(values):
                    values = arrays.snapshot(np.asarray(values, np.float64))
                else:
                    values = arrays.copy(values)
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
        if index.ndim == 0 and index.dtype.kind in "iu":
            index = index.reshape(1)
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


def chosen_views(values: Array, chosen: np.ndarray) -> Array:
    """The entries `chosen` of the first axis, in the library of `values`."""
    if arrays.is_numpy(values):
        return values[chosen]
    return arrays.namespace(values).take(values, arrays.convert(chosen, values), axis=0)


def _restore(kind: str, frames: Mapping[str, Array], detector: Detector) -> Trajectory:
    return object.__new__(Trajectory)._fill(kind, frames, None, detector)


def _surface_points(frames: Trajectory) -> Array:
    surface, detector = frames.detector.surface, frames.detector
    assert surface is not None
    views = np.arange(frames.views)
    offsets = arrays.convert(surface.offsets(detector, views, frames.views), frames.u)
    offsets = arrays.cast(offsets, arrays.dtype_of(frames.u))
    if not arrays.is_concrete(offsets) and detector.dims == 2:
        xp = arrays.namespace(offsets)
        level = offsets[..., 1:2] == 0
        offsets = xp.where(level, offsets, xp.full_like(offsets, float("nan")))
    axes = (frames.u, frames.v, frames.normals)
    shape = (frames.views, *[1] * len(detector.shape), frames.dims)
    xp = arrays.namespace(frames.u)
    points = xp.reshape(frames.centers, shape)
    for k, axis in enumerate(axes):
        if axis is not None:
            points = points + offsets[..., k : k + 1] * xp.reshape(axis, shape)
    return points


def _vectors(value: Any, name: str, dims: int) -> Array:
    if value is None:
        raise GeometryError(f"{name} is None; it is an array of shape (views, {dims})")
    array = real(value, name)
    if array.ndim != 2 or array.shape[1] != dims:
        raise GeometryError(f"{name} has shape {tuple(array.shape)}; it is (views, {dims})")
    if array.shape[0] == 0:
        raise GeometryError(f"{name} has no views; a scan has at least one")
    return array


def _same_count(frames: Mapping[str, Array]) -> None:
    if len({values.shape[0] for values in frames.values()}) > 1:
        counts = ", ".join(f"{name} {values.shape[0]}" for name, values in frames.items())
        raise GeometryError(f"arrays of different numbers of views: {counts}; all have one a view")


def _checked(
    frames: dict[str, Array], detector: Detector
) -> tuple[dict[str, Array], dict[str, np.ndarray] | None]:
    """Frames with unit axes, and the same on the host where they are of another library.

    Values are read once. Under a trace views with a fault are NaN, and there is nothing to read.
    """
    known = (*frames.values(), *detector.parameters)
    if not all(map(arrays.is_concrete, known)):
        masks = [fault.bad for fault in frame_faults(frames, detector)]
        units = {name: _unit(name, values) for name, values in frames.items()}
        return {name: _poisoned(values, masks) for name, values in units.items()}, None
    host = {
        name: np.asarray(arrays.to_numpy(values), np.float64) for name, values in frames.items()
    }
    try:
        for fault in frame_faults(host, detector.host):
            fault.reject()
    except GeometryError as error:
        if arrays.has_float64(frames["centers"]):
            raise
        raise GeometryError(
            f"{error}; {type(frames['centers']).__module__} has only float32 here, which may have "
            "merged points: float64 serves (NumPy frames, or JAX with jax_enable_x64)"
        ) from error
    units = {name: _unit(name, values) for name, values in frames.items()}
    if all(map(arrays.is_numpy, frames.values())):
        return units, None
    return units, {name: _unit(name, values) for name, values in host.items()}


def _poisoned(values: Array, masks: list[Array]) -> Array:
    """`values` with NaN in every view that one of the masks marks."""
    for bad in masks:
        xp = arrays.namespace(values)
        marked = xp.reshape(bad, (-1,) + (1,) * (values.ndim - 1))
        values = xp.where(marked, xp.full_like(values, float("nan")), values)
    return values


def _motion(value: Any, name: str, shape: tuple[int, ...], views: int) -> Array | None:
    """A rotation or a translation, one a view; finite, and proper if it is a rotation."""
    if value is None:
        return None
    motion = arrays.unify(real(value, name))[0]
    if tuple(motion.shape) not in (shape, (views, *shape)):
        raise GeometryError(
            f"{name} has shape {tuple(motion.shape)}; it is {shape} or {(views, *shape)}"
        )
    motion = arrays.namespace(motion).broadcast_to(motion, (views, *shape))
    known = arrays.is_concrete(motion)
    checked = arrays.to_numpy(motion) if known else motion
    faults = motion_faults(checked, name)
    if known:
        for fault in faults:
            fault.reject()
        return motion
    return _poisoned(motion, [fault.bad for fault in faults])


def _unit(name: str, vectors: Array) -> Array:
    """Frames as they are, axes and directions of unit length."""
    if name not in ("u", "v", "directions"):
        return vectors
    size = lengths_of(vectors)[:, None]
    if not arrays.is_numpy(vectors):
        return vectors / size
    # Vectors that are unit to rounding keep their bits, so that subsets and copies do too.
    rough = np.abs(size - 1) > 4 * np.finfo(float).eps
    return np.where(rough, vectors / size, vectors)
