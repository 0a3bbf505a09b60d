"""CT as operators: grids, detectors, trajectories, projectors, analytic reconstruction.

Every geometry is a short way to write frames, one a view; a `Projector` is a leaf of the algebra
in `linops`. Names are imported when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from geometries.beams import ConeBeam, FanBeam, ParallelBeam
from geometries.detector import Detector
from geometries.grid import Grid
from geometries.trajectory import Trajectory

if TYPE_CHECKING:
    from geometries.analytic.reconstruct import fbp
    from geometries.projector import Projector

__all__ = [
    "ConeBeam",
    "Detector",
    "FanBeam",
    "Grid",
    "ParallelBeam",
    "Projector",
    "Trajectory",
    "fbp",
]

_LATER = {
    "Projector": "geometries.projector",
    "fbp": "geometries.analytic.reconstruct",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'geometries' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
