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
from geometries.laminography import MultiAxisParallel, Translation
from geometries.surfaces import Surface
from geometries.trajectory import Trajectory

if TYPE_CHECKING:
    from geometries.analytic.coverage import angular_weights, displaced_weights, parker_weights
    from geometries.analytic.gather import Gather
    from geometries.analytic.gather_volume import VolumeGather
    from geometries.analytic.helical import (
        HelicalWeights,
        helical_fdk,
        helical_fdk_operator,
        helical_weights,
    )
    from geometries.analytic.ramp import RampFilter, ramp_response
    from geometries.analytic.reconstruct import fbp, fbp_operator, fdk, fdk_operator
    from geometries.analytic.streamed import (
        explain_fbp_into,
        explain_fdk_into,
        explain_helical_fdk_into,
        fbp_into,
        fdk_into,
        helical_fdk_into,
    )
    from geometries.analytic.weights import (
        AngularWeights,
        CosineWeights,
        DisplacedWeights,
        ParkerWeights,
    )
    from geometries.astra import from_astra
    from geometries.orbits import from_path, perturb, saddle, sinusoidal
    from geometries.projector import Projector
    from geometries.scans.center import (
        center_to_offset,
        find_center,
        offset_to_center,
        sweep_centers,
    )
    from geometries.scans.corrections import (
        correct_beam_hardening,
        normalize_air,
        remove_rings,
        repair_cells,
    )
    from geometries.scans.files import Scan, load_scan
    from geometries.scans.preprocess import (
        LineIntegrals,
        bin_detector,
        crop_columns,
        flip_columns,
        fold_turn,
        line_integrals,
        pad_columns,
    )
    from geometries.simulation.noise import add_bad_cells, add_gaussian, add_rings, poisson_counts
    from geometries.simulation.phantom import Ellipsoid, Phantom
    from geometries.simulation.phantoms import (
        forbild_head,
        random_ellipses,
        resolution_chart,
        shepp_logan,
    )
    from geometries.simulation.quality import image_quality

__all__ = [
    "AngularWeights",
    "ConeBeam",
    "CosineWeights",
    "Detector",
    "DisplacedWeights",
    "Ellipsoid",
    "FanBeam",
    "Gather",
    "Grid",
    "HelicalWeights",
    "LineIntegrals",
    "MultiAxisParallel",
    "ParallelBeam",
    "ParkerWeights",
    "Phantom",
    "Projector",
    "RampFilter",
    "Scan",
    "Surface",
    "Trajectory",
    "Translation",
    "VolumeGather",
    "add_bad_cells",
    "add_gaussian",
    "add_rings",
    "angular_weights",
    "bin_detector",
    "center_to_offset",
    "correct_beam_hardening",
    "crop_columns",
    "displaced_weights",
    "explain_fbp_into",
    "explain_fdk_into",
    "explain_helical_fdk_into",
    "fbp",
    "fbp_into",
    "fbp_operator",
    "fdk",
    "fdk_into",
    "fdk_operator",
    "find_center",
    "flip_columns",
    "fold_turn",
    "forbild_head",
    "from_astra",
    "from_path",
    "helical_fdk",
    "helical_fdk_into",
    "helical_fdk_operator",
    "helical_weights",
    "image_quality",
    "line_integrals",
    "load_scan",
    "normalize_air",
    "offset_to_center",
    "pad_columns",
    "parker_weights",
    "perturb",
    "poisson_counts",
    "ramp_response",
    "random_ellipses",
    "remove_rings",
    "repair_cells",
    "resolution_chart",
    "saddle",
    "shepp_logan",
    "sinusoidal",
    "sweep_centers",
    "truncation",
]

_LATER = {
    "add_bad_cells": "geometries.simulation.noise",
    "add_gaussian": "geometries.simulation.noise",
    "add_rings": "geometries.simulation.noise",
    "poisson_counts": "geometries.simulation.noise",
    "Ellipsoid": "geometries.simulation.phantom",
    "Phantom": "geometries.simulation.phantom",
    "forbild_head": "geometries.simulation.phantoms",
    "random_ellipses": "geometries.simulation.phantoms",
    "resolution_chart": "geometries.simulation.phantoms",
    "shepp_logan": "geometries.simulation.phantoms",
    "image_quality": "geometries.simulation.quality",
    "truncation": "geometries.field",
    "from_astra": "geometries.astra",
    "from_path": "geometries.orbits",
    "perturb": "geometries.orbits",
    "saddle": "geometries.orbits",
    "sinusoidal": "geometries.orbits",
    "Projector": "geometries.projector",
    "AngularWeights": "geometries.analytic.weights",
    "CosineWeights": "geometries.analytic.weights",
    "DisplacedWeights": "geometries.analytic.weights",
    "ParkerWeights": "geometries.analytic.weights",
    "RampFilter": "geometries.analytic.ramp",
    "Gather": "geometries.analytic.gather",
    "angular_weights": "geometries.analytic.coverage",
    "displaced_weights": "geometries.analytic.coverage",
    "parker_weights": "geometries.analytic.coverage",
    "ramp_response": "geometries.analytic.ramp",
    "VolumeGather": "geometries.analytic.gather_volume",
    "fbp": "geometries.analytic.reconstruct",
    "fdk": "geometries.analytic.reconstruct",
    "fdk_operator": "geometries.analytic.reconstruct",
    "fbp_operator": "geometries.analytic.reconstruct",
    "explain_fbp_into": "geometries.analytic.streamed",
    "explain_fdk_into": "geometries.analytic.streamed",
    "explain_helical_fdk_into": "geometries.analytic.streamed",
    "HelicalWeights": "geometries.analytic.helical",
    "helical_fdk": "geometries.analytic.helical",
    "helical_fdk_into": "geometries.analytic.streamed",
    "helical_fdk_operator": "geometries.analytic.helical",
    "helical_weights": "geometries.analytic.helical",
    "fbp_into": "geometries.analytic.streamed",
    "fdk_into": "geometries.analytic.streamed",
    "correct_beam_hardening": "geometries.scans.corrections",
    "normalize_air": "geometries.scans.corrections",
    "remove_rings": "geometries.scans.corrections",
    "repair_cells": "geometries.scans.corrections",
    "Scan": "geometries.scans.files",
    "load_scan": "geometries.scans.files",
    "find_center": "geometries.scans.center",
    "sweep_centers": "geometries.scans.center",
    "center_to_offset": "geometries.scans.center",
    "offset_to_center": "geometries.scans.center",
    "LineIntegrals": "geometries.scans.preprocess",
    "line_integrals": "geometries.scans.preprocess",
    "bin_detector": "geometries.scans.preprocess",
    "crop_columns": "geometries.scans.preprocess",
    "flip_columns": "geometries.scans.preprocess",
    "fold_turn": "geometries.scans.preprocess",
    "pad_columns": "geometries.scans.preprocess",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'geometries' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
