"""Which 3-D kernel a scan allows: decided once, from the frames of all its views.

`"aligned rows"`: parallel beams whose detector rows are the slices of the grid, so that one
in-plane traversal serves all of them. `"columns"`: detector columns parallel to z, so that the rays
of one column share their in-plane path. `"oblique"`: anything else, ray by ray. A scan one
rounding away from alignment, beyond the tolerance of 1e-10, is right, only slower.
"""

from __future__ import annotations

import numpy as np

from geometries.grid import Grid
from geometries.trajectory import Trajectory

__all__ = ["kernel_of"]

_TOLERANCE = 1e-10


def kernel_of(trajectory: Trajectory, grid: Grid) -> str:
    """The name of the fastest kernel that the frames of every view allow."""
    assert trajectory.v is not None
    upright = np.abs(trajectory.v - np.array([0.0, 0.0, 1.0])).max() <= _TOLERANCE
    level = np.abs(trajectory.u[:, 2]).max() <= _TOLERANCE
    if not (upright and level):
        return "oblique"
    if trajectory.directions is None:
        return "columns"
    if np.abs(trajectory.directions[:, 2]).max() > _TOLERANCE:
        return "oblique"
    return "aligned rows" if _rows_are_slices(trajectory, grid) else "columns"


def _rows_are_slices(trajectory: Trajectory, grid: Grid) -> bool:
    detector = trajectory.detector
    if detector.shape[0] != grid.shape[0]:
        return False
    rows = detector.rows() + trajectory.centers[:, 2:]
    slices = grid.coordinates("z")
    return bool(np.abs(rows - slices).max() <= _TOLERANCE * grid.spacing[0])
