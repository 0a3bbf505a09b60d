"""What spaces are made of, checked: shapes, dtypes, names and spacings of axes; and what is said to
someone who passes something else where a space is wanted.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from linops import arguments, arrays, numeric
from linops.errors import DTypeError, ShapeError

__all__ = [
    "admit_dtype",
    "admit_names",
    "admit_shape",
    "admit_spacing",
    "member_advice",
    "member_of",
    "space_advice",
]

_LONGEST = 2**31 - 1  # planes are counted in 32 bits where blocks are data of a program

_DTYPES = ("float16", "float32", "float64", "complex64", "complex128")


def admit_shape(shape: Any) -> tuple[int, ...]:
    """The extents of a shape as Python's whole numbers."""
    if isinstance(shape, np.ndarray) and shape.ndim == 1:
        shape = shape.tolist()
    entries = shape if isinstance(shape, (tuple, list)) else (shape,)
    try:
        extents = tuple(int(operator.index(n)) for n in entries)
    except (TypeError, RuntimeError):
        raise ShapeError(
            f"a shape is whole numbers, got {arguments.describe(shape)}; e.g. linops.Space((4, 5))"
        ) from None
    if any(isinstance(n, bool | np.bool_) for n in entries) or any(n < 0 for n in extents):
        raise ShapeError(f"a shape is non-negative whole numbers, got {shape!r}")
    if any(n > _LONGEST for n in extents):
        raise ShapeError(
            f"an axis has at most {_LONGEST} planes, which 32 bits count, got the shape {shape!r}; "
            "fold the axis into two"
        )
    return extents


def admit_dtype(dtype: Any) -> np.dtype:
    """A real or complex floating-point dtype, of any namespace, as NumPy's."""
    # torch.float32 by its name; without torch nothing has a second one.
    name = str(dtype).rsplit(".", 1)[-1] if "torch" in sys.modules else "no dtype"
    found: np.dtype
    try:
        found = np.dtype(dtype)
    except TypeError:
        try:
            found = np.dtype(name)
        except TypeError:
            raise DTypeError(
                f"a space's dtype is one of {', '.join(_DTYPES)}, got {dtype!r}"
            ) from None
    if found.name not in _DTYPES:
        raise DTypeError(
            f"a space's dtype is one of {', '.join(_DTYPES)}, got {found.name}; "
            "operators cast integers and booleans on entry by themselves"
        )
    return np.dtype(found.name)  # in the machine's own byte order


def admit_names(axes: Sequence[str] | None, shape: tuple[int, ...]) -> tuple[str, ...] | None:
    """A name for each axis, or None."""
    if axes is None:
        return None
    names = tuple(axes)
    if not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise ShapeError(
            f"names of axes are words of letters, digits and underscores, such as ('y', 'x'), "
            f"got {names!r}"
        )
    if len(names) != len(shape) or len(set(names)) != len(names):
        raise ShapeError(
            f"a space of shape {shape} takes {len(shape)} different names of axes, got {names!r}"
        )
    return names


def admit_spacing(
    spacing: float | Sequence[float] | None, shape: tuple[int, ...]
) -> tuple[float, ...] | None:
    """A distance of planes for each axis, or None."""
    if spacing is None:
        return None
    several = isinstance(spacing, (tuple, list, np.ndarray))
    entries: Any = spacing if several else (spacing,) * len(shape)
    values = tuple(numeric.positive("spacing", value, ShapeError) for value in entries)
    if len(values) != len(shape):
        raise ShapeError(
            f"a space of shape {shape} takes one spacing or {len(shape)} of them, got {spacing!r}"
        )
    return values


def space_advice(value: Any) -> str:
    """How a space follows from what was passed for one."""
    if arrays.is_array(value):
        return (
            f"the space of that array is linops.Space({tuple(value.shape)}, "
            f"{str(value.dtype).rsplit('.', 1)[-1]!r}), and linops.Diagonal(array) multiplies by it"
        )
    if hasattr(value, "domain") and hasattr(value, "codomain"):
        return "its spaces are its .domain and its .codomain"
    if isinstance(value, int) or (isinstance(value, tuple) and value):
        return f"make one with linops.Space({value!r})"
    return "make one with linops.Space(shape)"


def member_advice(value: Any) -> str:
    """As `space_advice`, where the space of one array is wanted."""
    if hasattr(value, "spaces"):
        return "pick a member of the product space first"
    return space_advice(value)


def member_of(like: Any) -> Any:
    """One array to imitate, of an element of a product space."""
    if isinstance(like, tuple) and like and arrays.is_array(like[0]):
        return like[0]
    return like
