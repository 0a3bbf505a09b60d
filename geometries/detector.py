"""`Detector`: the cells that rays end in, on a plane, on a cylinder, or on any `Surface`.

Where each view's detector stands in the world is the trajectory's business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from geometries.grid import cell_centers, extents, lengths, short
from geometries.retained import Watch, watched
from geometries.surfaces import Surface
from linops import arrays, tracing
from linops.arrays import Array
from linops.errors import DTypeError, GeometryError

__all__ = ["Detector"]


@dataclass(frozen=True, init=False, repr=False)
class Detector:
    """Equal cells in columns along u and, for volumes, rows along v.

    The ray of cell (row i, column j) runs through `C + a u + b v` with
    `a = (j - (cols - 1) / 2) * du + u0`, `b = (i - (rows - 1) / 2) * dv + v0`.

    Parameters
    ----------
    shape
        `(cols,)` or a number for images, `(rows, cols)` for volumes.
    pitch
        Size of a cell in physical length: one number or one for each axis, row first.
    offset
        Position `u0` of the detector's middle along u (`(v0, u0)` with rows), in physical
        length, not in cells. One number stands for every axis.
    curvature
        None for a flat detector. A radius R > 0 makes a cylinder with its axis parallel to v: the
        column at arc length a stands at `C + R sin(a/R) u + R (cos(a/R) - 1) n`, n pointing away
        from the source; `R = source_to_detector` is the equiangular detector. A `Surface` is any
        other shape.

    Notes
    -----
    Pitch, offset and curvature given as torch or JAX numbers (0-d arrays, or one array with an
    entry for each axis) are kept as such with their graph, and a portable projector
    differentiates through them; `host` has them as plain numbers.

    Raises
    ------
    GeometryError
        Naming the argument.

    Examples
    --------
    >>> Detector(4).columns()
    array([-1.5, -0.5,  0.5,  1.5])
    """

    shape: tuple[int, ...]
    pitch: tuple[Any, ...]
    offset: tuple[Any, ...]
    curvature: Any
    _watch: ClassVar[Watch] = ()

    @tracing.run_outside
    def __init__(
        self,
        shape: int | Sequence[int],
        pitch: float | Sequence[float] | Array = 1.0,
        offset: float | Sequence[float] | Array = 0.0,
        curvature: float | Array | Surface | None = None,
    ) -> None:
        cells = extents(shape, "Detector shape")
        if len(cells) not in (1, 2):
            raise GeometryError(f"Detector shape is {shape!r}; it is (cols,) or (rows, cols)")
        steps = _parameters(pitch, len(cells), "Detector pitch", positive=True)
        shift = _parameters(offset, len(cells), "Detector offset")
        radius: Any = None
        if isinstance(curvature, Surface):
            radius = curvature
        elif curvature is not None:
            radius = _parameters(curvature, 1, "Detector curvature", positive=True)[0]
            _check_turn(cells[-1], steps[-1], shift[-1], radius)
        object.__setattr__(self, "shape", cells)
        object.__setattr__(self, "pitch", steps)
        object.__setattr__(self, "offset", shift)
        object.__setattr__(self, "curvature", radius)
        watch = watched(self.parameters)
        if watch:
            object.__setattr__(self, "_watch", watch)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_watch"}

    @property
    def dims(self) -> int:
        """2 where it looks at images, 3 where it looks at volumes."""
        return len(self.shape) + 1

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, in array order."""
        return ("row", "col")[-len(self.shape) :]

    @property
    def surface(self) -> Surface | None:
        """The `Surface`, if it has one: neither flat nor a cylinder."""
        return self.curvature if isinstance(self.curvature, Surface) else None

    @property
    def parameters(self) -> tuple[Array, ...]:
        """Pitch, offset, radius and a surface's parameters that are no NumPy arrays or floats."""
        found = (*self.pitch, *self.offset, self.curvature)
        if self.surface is not None:
            found += self.surface.parameters
        return tuple(x for x in found if _foreign(x))

    @property
    def host(self) -> Detector:
        """The same cells in plain numbers, without any graph.

        Raises
        ------
        DTypeError
            Under a trace, where values are unknown.
        """
        numbers = (*self.pitch, *self.offset, self.curvature)
        free = self.surface is None or self.surface is self.surface.detached()
        if free and not any(map(_foreign, numbers)):
            return self
        radius = self.curvature
        if self.surface is not None:
            radius = self.surface.detached()
        elif radius is not None:
            radius = _plain(radius)
        return Detector(
            self.shape, tuple(map(_plain, self.pitch)), tuple(map(_plain, self.offset)), radius
        )

    def columns(self) -> Array:
        """Positions of the columns along u (arc lengths if curved): `(cols,)`.

        float64 NumPy, or of the library of pitch and offset where they belong to one.
        """
        return cell_centers(self.shape[-1], self.pitch[-1], self.offset[-1])

    def rows(self) -> Array:
        """Positions of the rows along v: `(rows,)`, likewise; one row at 0 for images."""
        if len(self.shape) == 1:
            return np.zeros(1)
        return cell_centers(self.shape[0], self.pitch[0], self.offset[0])

    def of_views(self, chosen: np.ndarray) -> Detector:
        """The detector of some views of a scan: itself, unless a surface differs by view."""
        if self.surface is None:
            return self
        return Detector(self.shape, self.pitch, self.offset, self.surface.of_views(chosen))

    def with_columns(self, before: int, after: int) -> Detector:
        """The same cells with more columns at either end, or fewer where negative."""
        shape = (*self.shape[:-1], self.shape[-1] + before + after)
        shift = (after - before) / 2 * self.pitch[-1]
        offset = (*self.offset[:-1], self.offset[-1] + shift)
        return Detector(shape, self.pitch, offset, self.curvature)

    def column_offsets(self) -> tuple[Array, Array]:
        """Offsets of the columns from C along u and along n, `(cols,)` each; not of a surface."""
        arc = self.columns()
        if self.curvature is None:
            return arc, np.zeros(self.shape[-1])
        arc, radius = arrays.unify(arc, self.curvature)
        xp = arrays.namespace(arc)
        turn = arc / radius
        # cos - 1 = -2 sin^2(half): no digits are lost near the middle.
        return radius * xp.sin(turn), -2 * radius * xp.sin(turn / 2) ** 2

    def __hash__(self) -> int:
        # Arrays are left out: those of JAX have no hash.
        plain = tuple(
            x for x in (*self.pitch, *self.offset, self.curvature) if not arrays.is_array(x)
        )
        return hash((self.shape, plain))

    def __repr__(self) -> str:
        if not all(map(arrays.is_concrete, self.parameters)):
            return f"Detector({self.shape}, traced)"
        plain = self.host
        text = f"Detector({self.shape}, pitch={short(plain.pitch)}"
        if any(plain.offset):
            text += f", offset={short(plain.offset)}"
        if plain.surface is not None:
            text += f", curvature={plain.surface!r}"
        elif plain.curvature is not None:
            text += f", curvature={plain.curvature:g}"
        return text + ")"


def _plain(x: Any) -> float:
    return float(arrays.to_numpy(x)) if arrays.is_array(x) else float(x)


def _parameters(value: Any, count: int, owner: str, positive: bool = False) -> tuple[Any, ...]:
    """`count` numbers, floats or 0-d arrays of another library; checked where they are known."""
    entries = _entries(value, count)
    if not any(_foreign(x) for x in entries):
        return lengths(value, count, owner, positive)
    for x in entries:
        if _foreign(x) and (x.ndim != 0 or arrays.dtype_of(x).kind not in "iuf"):
            raise DTypeError(
                f"{owner} holds an array of shape {tuple(x.shape)} and dtype {x.dtype}; its "
                "entries are real numbers"
            )
    if len(entries) != count:
        raise GeometryError(f"{owner} has {len(entries)} numbers; it is one number or {count}")
    known = [x if not _foreign(x) else _plain(x) for x in entries if arrays.is_concrete(x)]
    if known:
        lengths(known, len(known), owner, positive)
    joined = tuple(arrays.copy(x) for x in arrays.unify(*entries))
    if not positive or len(known) == count:
        return joined
    xp = arrays.namespace(*joined)
    return tuple(xp.where(x > 0, x, xp.full_like(x, math.nan)) for x in joined)


def _entries(value: Any, count: int) -> tuple[Any, ...]:
    if _foreign(value):
        if value.ndim == 0:
            return (value,) * count
        return tuple(value[i] for i in range(value.shape[0])) if value.ndim == 1 else (value,)
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _foreign(x: Any) -> bool:
    return arrays.is_array(x) and not arrays.is_numpy(x)


def _check_turn(count: int, pitch: Any, offset: Any, radius: Any) -> None:
    if not all(map(arrays.is_concrete, (pitch, offset, radius))):
        return
    half = (count - 1) / 2 * _plain(pitch)
    reach = max(abs(_plain(offset) - half), abs(_plain(offset) + half))
    if reach > math.pi * _plain(radius):
        raise GeometryError(
            f"Detector curvature is {_plain(radius):g}: columns at an arc length of {reach:g} "
            f"go round more than half of that circle; the radius is at least "
            f"{reach / math.pi:g}"
        )
