"""`Grid`: where the voxels of a volume or the pixels of an image lie in the world.

Also the two helpers by which every length of a geometry is read, and `cell_centers`, the one
function that says where the k-th of n equal cells lies: detectors, kernels, filters and
gathers all take their coordinates from it. What may look at a grid from where is checked in
`geometries/admission.py`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linops import arrays, tracing
from linops.errors import GeometryError
from linops.space import Space

__all__ = ["Grid", "cell_centers", "extents", "lengths", "short"]


_LONGEST = 2**31 - 1


@dataclass(frozen=True, init=False, repr=False)
class Grid:
    """A grid of equal cells, axes in array order: `(y, x)` or `(z, y, x)`.

    Cell i of an axis of n cells has its center at `(i - (n - 1) / 2) * spacing + center` and
    its faces half a spacing beside it. y grows with its index.

    Parameters
    ----------
    shape
        Cells along each axis, two or three numbers, each at least 1.
    spacing
        Size of a cell in physical length: one number or one for each axis, in array order.
    center
        Center of the grid in the world, likewise. One number stands for every axis.

    Raises
    ------
    GeometryError
        For a shape that is not two or three positive integers, a spacing that is not
        positive and finite, a center that is not finite, or another count of either.

    Examples
    --------
    >>> Grid((128, 128), spacing=0.66).extent
    (84.48, 84.48)
    """

    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    center: tuple[float, ...]

    @tracing.run_outside
    def __init__(
        self,
        shape: Sequence[int],
        spacing: float | Sequence[float] = 1.0,
        center: float | Sequence[float] = 0.0,
    ) -> None:
        cells = extents(shape, "Grid shape")
        if len(cells) not in (2, 3):
            raise GeometryError(
                f"Grid shape is {shape!r}; it has two axes (y, x) or three (z, y, x)"
            )
        object.__setattr__(self, "shape", cells)
        object.__setattr__(
            self, "spacing", lengths(spacing, len(cells), "Grid spacing", positive=True)
        )
        object.__setattr__(self, "center", lengths(center, len(cells), "Grid center"))

    @classmethod
    def for_geometry(
        cls,
        geometry: Any,
        spacing: float | Sequence[float] | None = None,
        axial_padding: float | Sequence[float] = 1.0,
        support: str = "ellipse",
    ) -> Grid:
        """A grid about the z axis that covers what a scan sees.

        With M the magnification at the axis (1 for parallel beams), D the distance from source to
        detector and pitches (dv, du): `nx` and `ny` are the field of view at the axis over the
        spacing, rounded; `nz` is `H = rows dv / M` plus the travel of the scan along z, over the
        spacing, rounded up, and centered on the middle of the travel. Oblique rays see further
        slices: each end gets `ceil(f e / dz)` of them, `e = max(0, v (1/M + R/D) - H/2)`, with v
        the distance of the detector's edge from its middle, offset included, and R the radius
        of the support.

        Parameters
        ----------
        geometry
            A beam, or a `Trajectory` that turns about z.
        spacing
            A number or one for each axis, in array order; `du / M` by default.
        axial_padding
            f: 1 for every voxel that a ray can reach, 0 for none; or two numbers, for the low and
            the high end.
        support
            `"ellipse"`, R is half the larger width, or `"box"`, half the diagonal.

        Raises
        ------
        GeometryError
            For negative paddings or three of them, another support, a source beyond the axis.

        Warns
        -----
        UserWarning
            Where an array on the grid would not fit into the memory of the machine.

        Examples
        --------
        >>> from geometries import ConeBeam, Detector
        >>> Grid.for_geometry(ConeBeam([0.0, 1.0], Detector((7, 32)), 64, 128))
        Grid((9, 32, 32), spacing=0.5)
        """
        from geometries.field import covering_grid

        return covering_grid(geometry, spacing, axial_padding, support)

    @property
    def dims(self) -> int:
        """2 for images, 3 for volumes."""
        return len(self.shape)

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, in array order."""
        return ("z", "y", "x")[-self.dims :]

    @property
    def extent(self) -> tuple[float, ...]:
        """Size along each axis, in physical length."""
        return tuple(n * s for n, s in zip(self.shape, self.spacing, strict=True))

    def coordinates(self, axis: str | int) -> np.ndarray:
        """Cell centers along an axis, given by name or number: float64, shape `(n,)`."""
        names = {name: k for k, name in enumerate(self.axes)}
        numbers = range(-self.dims, self.dims)
        whole = hasattr(axis, "__index__") and not isinstance(axis, bool) and axis in numbers
        if not (whole or (isinstance(axis, str) and axis in names)):
            raise GeometryError(
                f"axis is {axis!r}; it is one of {', '.join(self.axes)}, or its number"
            )
        k = names[axis] if isinstance(axis, str) else operator.index(axis)
        return np.asarray(cell_centers(self.shape[k], self.spacing[k], self.center[k]))

    def space(self, dtype: Any = "float32") -> Space:
        """The space of arrays on this grid, with names and spacing of its axes."""
        return Space(self.shape, dtype, self.axes, self.spacing)

    def __repr__(self) -> str:
        text = f"Grid({self.shape}, spacing={short(self.spacing)}"
        return text + (f", center={short(self.center)})" if any(self.center) else ")")


def cell_centers(count: int, pitch: Any, offset: Any) -> Any:
    """`(k - (count - 1) / 2) * pitch + offset` for k = 0 .. count - 1.

    float64 NumPy, or in the library of pitch and offset where one of them is an array.
    """
    steps = np.arange(count, dtype=np.float64) - (count - 1) / 2
    if not (arrays.is_array(pitch) or arrays.is_array(offset)):
        return steps * pitch + offset
    steps, pitch, offset = arrays.unify(steps, pitch, offset)
    return steps * pitch + offset


def extents(shape: Any, owner: str) -> tuple[int, ...]:
    """`shape` as a tuple of positive integers; a bare integer is one axis."""
    try:
        single = hasattr(shape, "__index__") and not np.ndim(shape)
        entries = (shape,) if single else tuple(shape)
        if any(isinstance(n, (bool, np.bool_)) for n in entries):
            raise TypeError
        cells = tuple(operator.index(n) for n in entries)
    except TypeError:
        raise GeometryError(
            f"{owner} is {shape!r}; it is a tuple of integers, such as (64, 96)"
        ) from None
    if any(n < 1 for n in cells):
        raise GeometryError(f"{owner} is {shape!r}; every extent is at least 1")
    if any(n > _LONGEST for n in cells):
        raise GeometryError(
            f"{owner} is {shape!r}; no axis is longer than {_LONGEST} cells (2^31 - 1), since "
            "kernels count them in 32 bits: split it into parts"
        )
    return cells


def lengths(value: Any, count: int, owner: str, positive: bool = False) -> tuple[float, ...]:
    """One number or `count` of them as a tuple of finite floats."""
    wanted = f"one {'positive ' if positive else ''}finite number or a tuple of {count}"
    if isinstance(value, (str, bytes)):
        raise GeometryError(f"{owner} is {value!r}; it is {wanted}")
    entries: tuple[Any, ...]
    if np.ndim(value) == 0:
        entries = (value,) * count
    else:
        entries = tuple(value)
    if len(entries) != count:
        raise GeometryError(f"{owner} is {value!r}: {len(entries)} numbers; it is {wanted}")
    numbers = tuple(_number(entry, value, owner, wanted) for entry in entries)
    if not all(math.isfinite(n) for n in numbers) or (positive and not all(n > 0 for n in numbers)):
        raise GeometryError(f"{owner} is {value!r}; it is {wanted}")
    return numbers


def _number(entry: Any, value: Any, owner: str, wanted: str) -> float:
    kind = str(getattr(entry, "dtype", ""))
    if isinstance(entry, (bool, np.bool_, str, bytes, complex)) or "bool" in kind or "comp" in kind:
        raise GeometryError(f"{owner} is {value!r}; it is {wanted}")
    try:
        return float(entry)
    except (TypeError, ValueError, OverflowError):
        raise GeometryError(f"{owner} is {value!r}; it is {wanted}") from None


def short(values: tuple[float, ...]) -> str:
    """One number where all are equal, else a tuple, for `repr`."""
    if all(v == values[0] for v in values):
        return f"{values[0]:g}"
    return "(" + ", ".join(f"{v:g}" for v in values) + ")"
