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
    from geometries.analytic.coverage import angular_weights, parker_weights
    from geometries.analytic.gather import Gather
    from geometries.analytic.ramp import RampFilter, ramp_response
    from geometries.analytic.reconstruct import fbp, fbp_operator
    from geometries.analytic.weights import AngularWeights, CosineWeights, ParkerWeights
    from geometries.projector import Projector

__all__ = [
    "AngularWeights",
    "ConeBeam",
    "CosineWeights",
    "Detector",
    "FanBeam",
    "Gather",
    "Grid",
    "ParallelBeam",
    "ParkerWeights",
    "Projector",
    "RampFilter",
    "Trajectory",
    "angular_weights",
    "fbp",
    "fbp_operator",
    "parker_weights",
    "ramp_response",
]

_LATER = {
    "Projector": "geometries.projector",
    "AngularWeights": "geometries.analytic.weights",
    "CosineWeights": "geometries.analytic.weights",
    "ParkerWeights": "geometries.analytic.weights",
    "RampFilter": "geometries.analytic.ramp",
    "Gather": "geometries.analytic.gather",
    "angular_weights": "geometries.analytic.coverage",
    "parker_weights": "geometries.analytic.coverage",
    "ramp_response": "geometries.analytic.ramp",
    "fbp": "geometries.analytic.reconstruct",
    "fbp_operator": "geometries.analytic.reconstruct",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'geometries' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
