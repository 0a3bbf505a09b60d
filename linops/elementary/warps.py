"""Images turned, mapped and deformed: `Interpolate` at moved points, the axes left as they were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from linops import arrays
from linops.algebra.composition import Product
from linops.arrays import Array
from linops.elementary.axes import axis_numbers, numbered
from linops.elementary.interpolate import Interpolate
from linops.elementary.shape import Transpose
from linops.errors import ShapeError
from linops.precision import real_of
from linops.space import Space

__all__ = ["AffineTransform", "DeformationField", "Rotate"]

Axes = str | int | Sequence[str | int]


class _Warp(Product):
    """An interpolation whose result is an element of its domain."""

    def _set_up(self, space: Space, numbers: Sequence[int], **options: Any) -> None:
        inner = Interpolate(space, axes=numbers, **options)
        order = [*(i for i in range(space.ndim) if i not in numbers), *numbers]
        names, spacing = space.axes or numbered(space.ndim), space.spacing
        moved = Space(
            [space.shape[i] for i in order],
            space.dtype,
            [names[i] for i in order] if space.axes else None,
            [spacing[i] for i in order] if spacing else None,
        )
        back = Transpose(moved, [order.index(i) for i in range(space.ndim)])
        super().__init__([back, inner])
        self.name = type(self).__name__


class DeformationField(_Warp):
    """`y[i] = x[i + displacement[i]]`, linear between planes, zero off the grid.

    Parameters
    ----------
    space
        Domain and codomain.
    displacement
        Shape `(d, *extents of axes)`, in planes along each of `axes`; torch and JAX arrays keep
        their graph.
    axes
        By name or number; the last d by default.
    reach
        Planes that no entry exceeds, one number or one for each of `axes`: plans then cut the
        axes, with halos. Without it they stay whole.

    Raises
    ------
    ShapeError, ValueError, DTypeError
        As for `Interpolate`.
    """

    def __init__(
        self,
        space: Space,
        displacement: Array,
        axes: Axes | None = None,
        *,
        reach: int | Sequence[int] | None = None,
    ) -> None:
        displacement = arrays.asarray(displacement, "DeformationField", "displacement")
        d = int(displacement.shape[0]) if displacement.ndim else 0
        last = range(max(space.ndim - d, 0), space.ndim)
        numbers = axis_numbers(space, last if axes is None else axes, "DeformationField")
        self._set_up(space, numbers, displacement=displacement, reach=reach)


class AffineTransform(_Warp):
    """`y[i] = x[matrix @ i + offset]`, positions counted in planes, linear between them.

    Parameters
    ----------
    space
        Domain and codomain; values off the grid are zero.
    matrix
        `(d, d)`: from positions of the result to positions in x, as
        `scipy.ndimage.affine_transform` takes it.
    offset
        Added to them, one number for each of `axes`; 0 by default.
    axes
        By name or number; the last d by default.

    Raises
    ------
    ShapeError
        Where matrix, offset and axes do not fit.
    """

    def __init__(
        self, space: Space, matrix: Array, offset: Array | None = None, axes: Axes | None = None
    ) -> None:
        matrix = arrays.asarray(matrix, "AffineTransform", "matrix")
        d = int(matrix.shape[0]) if matrix.ndim else 0
        last = range(max(space.ndim - d, 0), space.ndim)
        numbers = axis_numbers(space, last if axes is None else axes, "AffineTransform")
        given = np.zeros(d) if offset is None else offset
        offset = arrays.asarray(given, "AffineTransform", "offset")
        if tuple(matrix.shape) != (len(numbers),) * 2 or tuple(offset.shape) != (len(numbers),):
            raise ShapeError(
                f"AffineTransform along {len(numbers)} axes takes a matrix of shape "
                f"{(len(numbers),) * 2} and as many offsets, got shapes {tuple(matrix.shape)} and "
                f"{tuple(offset.shape)}"
            )
        self._set_up(space, numbers, points=_moved(space, numbers, matrix, offset))


class Rotate(_Warp):
    """The planes of two axes turned about their center, linear between cells, zero off the grid.

    Parameters
    ----------
    space
        Domain and codomain; where it has a spacing, angles are those of physical lengths.
    angle
        In radians, from the first towards the second of `axes` as `numpy.rot90` turns.
    axes
        Two of them, by name or number; the last two by default.
    center
        The point that stays, counted in planes along both; by default the middle.

    Raises
    ------
    ShapeError
        Where there are not two axes, or two coordinates of a center.
    """

    def __init__(
        self,
        space: Space,
        angle: float | Array,
        axes: Sequence[str | int] = (-2, -1),
        *,
        center: Sequence[float] | None = None,
    ) -> None:
        numbers = axis_numbers(space, axes, "Rotate")
        middle = [(space.shape[i] - 1) / 2 for i in numbers]
        fixed = np.asarray(middle if center is None else center, "float64")
        if len(numbers) != 2 or fixed.shape != (2,):
            raise ShapeError(
                f"Rotate turns two axes about a center of two coordinates, got the axes {axes!r} "
                f"and the center {center!r}"
            )
        a, b = (space.spacing[i] for i in numbers) if space.spacing else (1.0, 1.0)
        if arrays.is_array(angle) and not arrays.is_numpy(angle):
            xp: Any = arrays.namespace(angle)
            cos, sin = xp.cos(angle), xp.sin(angle)
        else:
            xp, cos, sin = np, np.float64(math.cos(angle)), np.float64(math.sin(angle))
        matrix = xp.stack([xp.stack([cos, sin * (b / a)]), xp.stack([-sin * (a / b), cos])])
        c = arrays.convert(fixed, matrix)
        offset = c - xp.sum(matrix * c, axis=1)
        self._set_up(space, numbers, points=_moved(space, numbers, matrix, offset))


def _moved(space: Space, numbers: Sequence[int], matrix: Array, offset: Array) -> Array:
    """`matrix @ i + offset` for the positions i of all cells, `(d, *extents)`."""
    xp = arrays.namespace(matrix)
    extents = [space.shape[i] for i in numbers]
    grid = np.indices(extents, "float64").reshape(len(extents), -1)
    offset = xp.reshape(arrays.convert(offset, matrix), (-1, 1))
    moved = xp.reshape(matrix @ arrays.convert(grid, matrix) + offset, (-1, *extents))
    # Programs on JAX arrays of single precision have no wider ones beside them.
    return arrays.cast(moved, real_of(space.dtype)) if arrays.is_numpy(moved) else moved
