"""Values of the separable footprint: worked weights, mass, the chords of boxes over whole cells."""

from __future__ import annotations

import math

import numpy as np
import pytest

from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector


def footprint(geometry: object, grid: Grid, **options: object) -> Projector:
    return Projector(geometry, grid, model="footprint", **{"precision": "float64", **options})


# t, (dx, dy), p, du, and cells -2 to 2 of the central one: in closed form, the trapezoid being the
# chord length of a rectangle.
RECTANGLES = [
    (0, (1, 1), 0.25, 1, (0, 0, 0.75, 0.25, 0), (0, 0, 0.75, 0.25, 0)),
    (0.3, (1, 1), 0.2, 1, (0, 0, 0.8140255, 0.1859745, 0), (0, 0, 0.8140255, 0.1859745, 0)),
    (math.pi / 4, (1, 1), 0, 1, (0, 0.0428932, 0.9142136, 0.0428932, 0), (0, 0, 1, 0, 0)),
    (0.5, (1, 1.9), -0.4, 0.8, (0.0131945, 1.1743055, 1.1743055, 0.0131945, 0),
     (0, 1.1875, 1.1875, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("t", "size", "p", "du", "trapezoid", "box"), RECTANGLES)
def test_one_pixel_in_a_parallel_beam(t, size, p, du, trapezoid, box) -> None:
    dx, dy = size
    grid = Grid((1, 1), (dy, dx), (p * math.sin(t), p * math.cos(t)))
    beam = ParallelBeam([float(t)], Detector(9, du))
    for profile, wanted in (("trapezoid", trapezoid), ("box", box)):
        A = footprint(beam, grid, profile=profile)
        np.testing.assert_allclose((A @ np.ones((1, 1)))[0, 2:7], wanted, atol=1e-7)
        assert (A @ np.ones((1, 1))).sum() * du == pytest.approx(dx * dy, rel=1e-14)


@pytest.mark.parametrize(
    ("curvature", "row", "total", "trapezoid", "box"),
    [
        (None, 26, 4.546667157, (0.1709710, 1.0205943, 0.9167676, 0.0276792),
         (0.1626853, 1.0290333, 0.9442935, 0)),
        (512.0, 25, 4.516089171, (0.2127696, 1.0271826, 0.8748896, 0.0115825), None),
    ],
)  # fmt: skip
def test_one_voxel_in_a_cone(curvature, row, total, trapezoid, box) -> None:
    beam = ConeBeam([0.3], Detector((101, 101), curvature=curvature), 256, 512)
    grid = Grid((1, 1, 1), 1.0, (12, -10, 20))
    for profile, wanted in (("trapezoid", trapezoid), ("box", box)):
        found = (footprint(beam, grid, profile=profile) @ np.ones((1, 1, 1)))[0]
        assert found.sum() == pytest.approx(total, abs=2e-9)
        if wanted is not None:
            np.testing.assert_allclose(found[50 + row, 83:87], wanted, atol=1e-7)


def test_a_fan_is_a_cone_without_rows() -> None:
    # A slab of one slice at the height of the source, whose rows it fills.
    for curvature in (None, 40.0):
        flat = footprint(FanBeam([0.4], Detector(31, curvature=curvature), 20, 40), Grid((5, 6)))
        tall = ConeBeam([0.4], Detector((1, 31), (1e-6, 1), curvature=curvature), 20, 40)
        solid = footprint(tall, Grid((1, 5, 6), (1.0, 1.0, 1.0)))
        x = np.random.default_rng(0).random((1, 5, 6))
        np.testing.assert_allclose((solid @ x)[:, 0], flat @ x[0], rtol=1e-9)
