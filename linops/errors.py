"""The exceptions of the library.

Each is a `ValueError` (a `TypeError` for dtypes), so code that catches the standard
types keeps working. A message says what came, what was wanted, and the fix.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "DTypeError",
    "GeometryError",
    "PlacementError",
    "ShapeError",
    "StaleError",
]


class ShapeError(ValueError):
    """An array or a pair of spaces has the wrong shape, axis or order of axes."""


class DTypeError(TypeError):
    """A dtype, an array type or a real/complex pairing that an operator cannot serve."""


class GeometryError(ValueError):
    """A scan, a detector or a grid that describes no possible measurement."""


class PlacementError(ValueError):
    """An array that does not live where a plan wants it, or a partition nobody can make."""


class StaleError(ValueError, RuntimeError):
    """An operator whose numbers were computed from an array that has been changed since."""


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or belongs to another problem."""
