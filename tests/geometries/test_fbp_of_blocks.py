"""`fbp` and `fdk` of blocks of projectors are parts of the whole image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector, fbp, fdk
from linops.errors import GeometryError

T = np.arange(20) * np.pi / 20
PLANE, VOLUME = Grid((6, 7), 1.5, (1.0, -2.0)), Grid((4, 6, 7), 1.5, (0.0, 1.0, -2.0))
ROWS = Detector((4, 12), 1.5)
SCANS: dict[str, tuple[Any, Grid, Any]] = {
    "parallel": (ParallelBeam(T, Detector(12)), PLANE, fbp),
    "fan": (FanBeam(2 * T, Detector(12), 20, 30), PLANE, fbp),
    "short": (FanBeam(1.4 * T, Detector(12), 20, 30), PLANE, fbp),
    "displaced": (FanBeam(2 * T, Detector(12, 1.0, 3.0), 20, 30), PLANE, fbp),
    "slices": (ParallelBeam(T, ROWS), VOLUME, fbp),
    "cone": (ConeBeam(2 * T, ROWS, 20, 30), VOLUME, fdk),
}


@pytest.mark.parametrize("name", SCANS)
def test_the_image_of_a_block_is_that_part_of_the_whole(name: str) -> None:
    geometry, grid, reconstruct = SCANS[name]
    A = Projector(geometry, grid, precision="float64")
    y = np.random.default_rng(0).standard_normal(A.codomain.shape)
    whole = reconstruct(A, y)
    for number, axis in enumerate(grid.axes):
        part = A.block(axis, 1, 4)
        own = y[:, 1:4] if part.codomain.shape != A.codomain.shape else y
        expected = np.take(whole, np.arange(1, 4), number)
        np.testing.assert_allclose(reconstruct(part, own), expected, atol=1e-12)
    shares = [reconstruct(A.block("view", *ends), y[slice(*ends)]) for ends in ((0, 3), (3, 20))]
    np.testing.assert_allclose(shares[0] + shares[1], whole, atol=1e-12)
    nested = A.block("view", 3, 20).block("view", 0, 9).block("y", 1, 6).block("y", 2, 4)
    assert reconstruct(nested, y[3:12]).shape == (*grid.shape[:-2], 2, 7)


def test_a_block_of_the_detector_is_no_scan() -> None:
    cone = Projector(*SCANS["cone"][:2])
    for A, axis in ((Projector(*SCANS["fan"][:2]), "col"), (cone, "row"), (cone, "col")):
        part = A.block(axis, 1, 3)
        with pytest.raises(GeometryError, match=f"the block has {axis}s 1 to 3"):
            (fdk if A is cone else fbp)(part, part.codomain.zeros())
