"""The geometry of a projector as JAX carries it: its arrays are data, the rest is structure.

So projectors of one structure share a compiled program, whatever their angles, and a projector that
comes out of a transformation of JAX has the geometry that its arrays say. What a pytree is stands
in `linops/transforms/pytree.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from geometries.beams import Beam
from geometries.detector import Detector
from geometries.selection import frames_of
from geometries.trajectory import Trajectory
from linops import arrays
from linops.arrays import Array
from linops.transforms.pytree import decode, pack, unpack

__all__ = ["Carried", "Outline", "carried"]


class Outline:
    """What of a scan is no array: equal for scans that one compiled program serves.

    Attributes
    ----------
    kind, views, detector
        As those of a geometry; the detector on the host.
    """

    __slots__ = ("_key", "detector", "kind", "views")

    def __init__(self, kind: str, views: int, detector: Detector, *more: Any) -> None:
        self.kind, self.views, self.detector = kind, views, detector
        self._key = (kind, views, detector, more)

    @property
    def more(self) -> Any:
        """What `carried` wants to know when it puts a geometry together again."""
        return self._key[3]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outline) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class Carried:
    """A geometry that is put together when it is asked for: numbers may be traced, or unknown."""

    __slots__ = ("_frames", "_geometry", "_parts", "outline")

    def __init__(self, outline: Outline, parts: tuple[Any, ...], frames: Any) -> None:
        self.outline, self._parts, self._frames = outline, parts, frames
        self._geometry: Beam | Trajectory | None = None

    kind = property(lambda self: self.outline.kind)
    views = property(lambda self: self.outline.views)
    detector = property(lambda self: self.outline.detector)

    @property
    def parts(self) -> tuple[Any, ...]:
        """Its arrays as children of a pytree."""
        return self._parts

    @property
    def geometry(self) -> Beam | Trajectory:
        """The beam or the trajectory."""
        if self._geometry is None:
            self._geometry = _joined(self.outline, self._parts, self._frames)
        return self._geometry


def carried(geometry: Any, whole: bool) -> tuple[Outline, tuple[Any, ...]] | None:
    """Structure and arrays of a geometry, or None where it has to stay as it is.

    `whole`: whether the frames of the projector, which are data beside these, are all of the scan.
    """
    trajectory = geometry.trajectory
    detector = trajectory.detector
    if not trajectory.concrete or detector.parameters:
        return None
    values: list[Any] = [] if whole else [frames_of(trajectory)]
    names: tuple[str, ...] = ()
    if isinstance(geometry, Beam):
        names = geometry._numbers
        values += [geometry.angles, *(getattr(geometry, name) for name in names)]
    kinds = tuple(
        "float" if not arrays.is_array(value) else arrays.is_numpy(value) and value.dtype.str
        for value in values
    )
    parts = tuple(
        pack(value if arrays.is_array(value) else np.asarray([value], np.float64))
        for value in values
    )
    outline = Outline(
        trajectory.kind, trajectory.views, detector, type(geometry), names, whole, kinds
    )
    return outline, parts


def _joined(outline: Outline, parts: tuple[Any, ...], frames: Any) -> Any:
    cls, names, whole, kinds = outline.more
    values = [_number(part, kind) for part, kind in zip(parts, kinds, strict=True)]
    table = _number(frames, np.dtype("float64").str) if whole else values.pop(0)
    first = "directions" if outline.kind == "parallel" else "sources"
    rows = [first, "centers", "u", "v"][: outline.detector.dims + 1]
    found = {name: table[:, k, :] for k, name in enumerate(rows)}
    made = object.__new__(Trajectory)
    trajectory = made._fill(outline.kind, found, None, outline.detector)
    if cls is Trajectory:
        return trajectory
    beam = object.__new__(cls)
    beam._keep(values[0], trajectory, **dict(zip(names, values[1:], strict=True)))
    return beam


def _number(part: Array, kind: Any) -> Any:
    """A value as it was, or in the numbers of JAX where it is traced."""
    if arrays.is_traced(part):
        known = decode(part)
        return known[0] if kind == "float" else known
    if not kind:
        return part
    host = arrays.to_numpy(part)
    if kind == "float":
        return float(unpack(host, np.dtype("float64"))[0])
    return unpack(host, np.dtype(kind))
