"""Small scans of every kind that the model `footprint` permits."""

from __future__ import annotations

from typing import Any

import numpy as np

from geometries import (
    ConeBeam,
    Detector,
    FanBeam,
    Grid,
    MultiAxisParallel,
    ParallelBeam,
    Translation,
)

FLAT = Grid((5, 6), (1.1, 0.7), (0.3, -0.2))
SOLID = Grid((3, 4, 5), (1.3, 0.9, 0.6), (0.1, 0.2, -0.3))
TALL = Grid((9, 7, 6), (0.4, 0.9, 0.6), (0.1, 0.2, -0.3))
ANGLES = np.array([0.231, 0.811, 1.431, 4.0])


def scans() -> dict[str, tuple[Any, Grid]]:
    detector = Detector((3, 5), (1.67, 1.91), (0.11, -0.17))
    wide = Detector((7, 9), (0.8, 1.1), (0.11, -0.17))
    cone = ConeBeam(ANGLES, detector, 12.0, 20.0)
    places = np.array([[0.0, 0.0, 0.0], [2.3, 1.0, -0.7], [-1.4, -2.0, 0.3], [0.2, 0.1, 4.0]])
    return {
        "parallel": (ParallelBeam(ANGLES, Detector(7, 0.91, 0.13)), FLAT),
        "fan": (FanBeam(ANGLES, Detector(7, 1.91, 0.13), 12.0, 20.0), FLAT),
        "equiangular": (FanBeam(ANGLES, Detector(7, 1.91, curvature=20.0), 12.0, 20.0), FLAT),
        "aligned": (ParallelBeam(ANGLES, Detector((3, 6), (1.3, 0.71), (0.1, 0.13))), SOLID),
        "shifted": (ParallelBeam(ANGLES, Detector((4, 6), (1.3, 0.71), (-0.55, 0.13))), SOLID),
        "unaligned": (ParallelBeam(ANGLES, Detector((4, 6), (1.1, 0.71), (0.1, 0.13))), SOLID),
        "tilted": (MultiAxisParallel(ANGLES, np.array([0.0, 0.3, -0.6, 0.7]), wide), SOLID),
        "cone": (cone, SOLID),
        "curved": (ConeBeam(ANGLES, Detector((6, 5), (0.6, 1.91), curvature=20), 12, 20), TALL),
        "helix": (ConeBeam(4 * ANGLES, wide, 12.0, 20.0, advance=1.7), TALL),
        "moved": (Translation(places, wide, 12.0, 20.0), TALL),
        "upside down": (cone.transform(rotation=np.diag([-1.0, 1.0, -1.0])), SOLID),
    }
