"""What makes the frames of a scan valid, as one list of faults for arrays of any namespace.

Each fault is a mask with one entry a view. `Trajectory` raises for the first one that a view has;
under a trace, where values are unknown, it puts NaN into such views instead. Checks that need a
grid or a precision are in `geometries/admission.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from geometries.detector import Detector
from linops import arrays
from linops.arrays import Array
from linops.errors import DTypeError, GeometryError

__all__ = ["Fault", "cross", "dot", "frame_faults", "lengths_of", "motion_faults", "real"]

_UNIT = 2e-4
_ORTHOGONAL = 1e-4
_FACING = 1e-4
_EPS = float(np.finfo(np.float64).eps)


class Fault(NamedTuple):
    """A mask over views, what is wrong where it is true, and more about one view."""

    bad: Array
    text: str
    detail: Callable[[int], str] | None = None

    def reject(self) -> None:
        """Raise for the first bad view; values have to be known.

        Raises
        ------
        GeometryError
            Naming the view.
        """
        if self.bad.any():
            view = int(np.argmax(self.bad))
            more = f" ({self.detail(view)})" if self.detail else ""
            raise GeometryError(f"view {view}: {self.text}{more}")


def frame_faults(frames: Mapping[str, Array], detector: Detector) -> Iterator[Fault]:
    """Faults of frames named sources or directions, centers, u and v, each `(views, dims)`.

    Lengths may be of any size: sums of squares are formed from scaled components. `detector` is
    looked at only where it is a cylinder, at its columns.
    """
    xp = arrays.namespace(frames["centers"])
    for name, values in frames.items():
        yield Fault(~xp.all(xp.isfinite(values), axis=1), f"{name} is not finite")
    for name in ("u", "v", "directions"):
        if name in frames:
            size = lengths_of(frames[name])
            yield Fault(
                xp.abs(size - 1) > _UNIT,
                f"{name} is not a unit vector",
                lambda k, size=size: f"length {float(size[k]):g}",  # type: ignore[misc]
            )
    u, v, directions = frames["u"], frames.get("v"), frames.get("directions")
    if v is not None:
        yield _slanted(u, v, "u", "v")
    if directions is not None:
        if v is None:
            yield _slanted(directions, u, "direction", "u")
        else:
            volume = xp.abs(dot(directions, cross(u, v)))
            yield Fault(volume <= 4 * _EPS, "the detector is seen edge-on")
        return
    if detector.curvature is None:
        yield from _facing(frames)
    elif detector.surface is None:
        yield _cylinder(frames, detector)


def motion_faults(R: Array, name: str) -> Iterator[Fault]:
    """Faults of translations `(views, dims)` and rotations `(views, dims, dims)`.

    Values that are not finite; rotations that are not orthogonal, or reflections.
    """
    xp = arrays.namespace(R)
    yield Fault(~xp.all(xp.isfinite(R), axis=tuple(range(1, R.ndim))), f"{name} is not finite")
    if R.ndim == 2:
        return
    dims = R.shape[1]
    rows = [R[:, i, :] for i in range(dims)]
    gaps = [
        xp.abs(dot(rows[i], rows[j]) - float(i == j)) for i in range(dims) for j in range(i, dims)
    ]
    gap = gaps[0]
    for other in gaps[1:]:
        gap = xp.where(other > gap, other, gap)
    yield Fault(gap > _ORTHOGONAL, "rotation is not orthogonal")
    if dims == 2:
        sign = rows[0][:, 0] * rows[1][:, 1] - rows[0][:, 1] * rows[1][:, 0]
    else:
        sign = dot(cross(rows[0], rows[1]), rows[2])
    yield Fault(sign < 0, "rotation is a reflection")


def real(value: Any, name: str) -> Array:
    """`value` as an array of real numbers, NumPy where it is none yet.

    Raises
    ------
    DTypeError
        For booleans, complex numbers, strings.
    """
    array = value if arrays.is_array(value) else np.asarray(value)
    if arrays.dtype_of(array).kind not in "iuf":
        raise DTypeError(f"{name} has dtype {array.dtype}; it is an array of real numbers")
    return array


def dot(a: Array, b: Array) -> Array:
    """Inner products along the last axis."""
    return arrays.namespace(a, b).sum(a * b, axis=-1)


def cross(a: Array, b: Array) -> Array:
    """Cross products along the last axis, of length 3."""
    xp = arrays.namespace(a, b)
    parts = [a[..., i] * b[..., j] - a[..., j] * b[..., i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return xp.stack(parts, axis=-1)


def lengths_of(vectors: Array) -> Array:
    """Euclidean lengths along the last axis, without overflow on the way."""
    xp = arrays.namespace(vectors)
    scale = xp.max(xp.abs(vectors), axis=-1, keepdims=True)
    scale = xp.where(scale > 0, scale, xp.ones_like(scale))
    return xp.sqrt(xp.sum((vectors / scale) ** 2, axis=-1)) * scale[..., 0]


def _slanted(a: Array, b: Array, first: str, second: str) -> Fault:
    cosine = arrays.namespace(a, b).abs(dot(a, b))
    return Fault(
        cosine > _ORTHOGONAL,
        f"{first} and {second} are not orthogonal",
        lambda k: f"|{first}.{second}| = {float(cosine[k]):g}, at most {_ORTHOGONAL:g}",
    )


def _facing(frames: Mapping[str, Array]) -> Iterator[Fault]:
    sources, centers, u = frames["sources"], frames["centers"], frames["u"]
    v = frames.get("v")
    xp = arrays.namespace(sources, centers)
    scale = xp.max(xp.maximum(xp.abs(sources), xp.abs(centers)), axis=1, keepdims=True)
    scale = xp.where(scale > 0, scale, xp.ones_like(scale))
    ray = centers / scale - sources / scale
    distance = lengths_of(ray)
    yield Fault(distance == 0, "the source stands at the detector's center")
    normal = xp.stack([-u[:, 1], u[:, 0]], axis=1) if v is None else cross(v, u)
    away = xp.where(distance == 0, xp.ones_like(distance), distance)
    facing = xp.abs(dot(ray, normal)) / (away * lengths_of(normal))
    yield Fault(facing < _FACING, "the detector is seen edge-on")


def _cylinder(frames: Mapping[str, Array], detector: Detector) -> Fault:
    sources, centers, u = frames["sources"], frames["centers"], frames["u"]
    v = frames.get("v")
    xp = arrays.namespace(sources, centers)
    along, depth = (arrays.unify(part, centers)[0] for part in detector.column_offsets())
    back = sources - centers
    normal = xp.stack([-u[:, 1], u[:, 0]], axis=1) if v is None else cross(v, u)
    gap = xp.abs(dot(back, u)[:, None] - along) + xp.abs(dot(back, normal)[:, None] - depth)
    on_source = gap <= 1e-12 * (xp.abs(along) + lengths_of(back)[:, None])
    if v is not None:
        rows = arrays.unify(detector.rows(), centers)[0]
        height = dot(back, v)
        apart = xp.min(xp.abs(height[:, None] - rows), axis=1)
        near = apart <= 1e-12 * (1 + xp.abs(height))
        on_source = on_source & near[:, None]
    return Fault(xp.any(on_source, axis=1), "a detector cell stands on the source")
