"""FDK on circular cone scans: balls that come out as 1, where they stand, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from geometries import (
    ConeBeam,
    Detector,
    FanBeam,
    Grid,
    Projector,
    VolumeGather,
    fbp,
    fdk,
    fdk_operator,
)
from linops.errors import GeometryError
from linops.testing import check_operator

TURN = 2 * np.pi


def scan(geometry: Any, grid: Grid, precision: str = "float64") -> Any:
    return SimpleNamespace(geometry=geometry, grid=grid, precision=precision)


def chords(geometry: Any, radius: float, center: tuple[float, float, float]) -> np.ndarray:
    """Line integrals of a ball of value 1, in closed form."""
    frames = geometry.trajectory
    out = np.empty((frames.views, *frames.detector.shape))
    for k in range(frames.views):
        e = frames.pixels(k) - frames.sources[k]
        e = e / np.linalg.norm(e, axis=-1, keepdims=True)
        m = np.asarray(center) - frames.sources[k]
        out[k] = 2 * np.sqrt(np.maximum(radius**2 - ((m**2).sum() - (e @ m) ** 2), 0))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("center", [(0, 0, 0), (8, -3, 0)])
@pytest.mark.parametrize("degrees", [240, 360])
@pytest.mark.parametrize("curvature", [None, 200.0])
def test_a_ball_in_the_plane_of_the_orbit(
    center: tuple[int, int, int], degrees: float, curvature: float | None
) -> None:
    t = 0.2 + np.deg2rad(degrees) * np.arange(180) / 180
    beam = ConeBeam(t, Detector((30, 80), 2.0, (1.0, 3.0), curvature), 100, 200)
    grid = Grid((3, 7, 7), 1.0, (0, center[1], center[0]))
    image = fdk(scan(beam, grid), chords(beam, 10, center))
    assert image[1, 3, 3] == pytest.approx(1, abs=0.015)
    assert image[1].mean() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("curvature", [None, 200.0])
def test_a_ball_off_the_plane_loses_little(curvature: float | None) -> None:
    t = TURN * np.arange(90) / 90
    beam = ConeBeam(t, Detector((64, 64), 1.5, curvature=curvature), 100, 200)
    image = fdk(scan(beam, Grid((1, 5, 5), 1.0, (12, 0, 0))), chords(beam, 8, (0, 0, 12)))
    assert 0.97 < image.mean() < 1.01


@pytest.mark.parametrize("v0", [-4, 0, 4])
@pytest.mark.parametrize("curvature", [None, 200.0])
def test_where_a_voxel_is_does_not_depend_on_the_detector(
    v0: float, curvature: float | None
) -> None:
    t = TURN * np.arange(90) / 90
    beam = ConeBeam(t, Detector((40, 40), 2.0, (v0, 0), curvature), 100, 200)
    image = fdk(scan(beam, Grid((9, 9, 9))), chords(beam, 0.9, (0, 0, 3)))
    assert np.unravel_index(image.argmax(), image.shape) == (7, 4, 4)


@pytest.mark.parametrize("curvature", [None, 50.0])
@pytest.mark.parametrize("offset", [0.3, 14.0])
def test_the_middle_slice_is_the_fan_beam(curvature: float | None, offset: float) -> None:
    t = TURN * np.arange(24) / 24
    cone = ConeBeam(t, Detector((3, 17), (1e-3, 2.0), (0, offset), curvature), 30, 50)
    fan = FanBeam(t, Detector(17, 2.0, offset, curvature), 30, 50)
    y = np.random.default_rng(0).standard_normal((24, 17))
    image = fdk(scan(cone, Grid((1, 9, 8), (1e-6, 1, 1))), np.stack([y] * 3, 1))
    np.testing.assert_allclose(image[0], fbp(scan(fan, Grid((9, 8))), y), atol=1e-7)


def test_moving_the_grid_moves_the_image() -> None:
    t = TURN * np.arange(16) / 16
    beam = ConeBeam(t, Detector((9, 9), 2.0), 30, 50)
    y = np.random.default_rng(0).standard_normal((16, 9, 9))
    wide = fdk(scan(beam, Grid((9, 5, 20))), y)
    moved = fdk(scan(beam, Grid((9, 5, 20), 1.0, (3, 0, 8))), y)
    np.testing.assert_allclose(moved[:-3, :, :-8], wide[3:, :, 8:], atol=1e-12)
    shift = np.array([8.0, 0, 3])
    frames = beam.trajectory.transform(translation=shift)
    again = fdk(scan(frames, Grid((9, 5, 20), 1.0, (3, 0, 8))), y)
    np.testing.assert_allclose(again, wide, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "curvature"), [("float32", None), ("float64", 30.0)])
def test_laws_of_operators(precision: str, curvature: float | None) -> None:
    t = TURN * np.arange(6) / 6
    beam = ConeBeam(t, Detector((4, 5), 2.0, (0.3, 0.1), curvature), 20, 30)
    grid = Grid((3, 4, 5), (1, 0.9, 1.1))
    check_operator(VolumeGather(beam, grid, precision=precision))
    check_operator(fdk_operator(scan(beam, grid, precision)))


def test_other_scans_are_refused() -> None:
    t = TURN * np.arange(6) / 6
    grid = Grid((3, 4, 5))
    detector = Detector((4, 5))
    helix = ConeBeam(t, detector, 20, 30, advance=2.0)
    with pytest.raises(GeometryError, match="orbit in one plane"):
        fdk_operator(scan(helix, grid))
    with pytest.raises(GeometryError, match="takes fbp"):
        fdk_operator(scan(FanBeam(t, Detector(5), 20, 30), Grid((4, 5))))
    with pytest.raises(GeometryError, match="takes fdk"):
        fbp(scan(ConeBeam(t, detector, 20, 30), grid), np.ones((6, 4, 5)))
    for shape in ((1, 5), (4, 1)):
        with pytest.raises(GeometryError, match="at least two detector bins"):
            fdk_operator(scan(ConeBeam(t, Detector(shape), 20, 30), grid))
    curved = ConeBeam(t, Detector((4, 5), 1, 0, 40.0), 20, 30)
    with pytest.raises(GeometryError, match="neither flat nor equiangular"):
        fdk_operator(scan(curved, grid))
    drift = ConeBeam(np.linspace(0, 4, 6), detector, 20 + 0.1 * np.arange(6), 30)
    with pytest.raises(GeometryError, match="constant"):
        fdk_operator(scan(drift, grid), short_scan=True)
    upright = ConeBeam(t, detector, 20, 30).trajectory
    turn = np.deg2rad(5)
    tilt = [[1, 0, 0], [0, np.cos(turn), -np.sin(turn)], [0, np.sin(turn), np.cos(turn)]]
    with pytest.raises(GeometryError, match=r"one plane|parallel to the axis"):
        fdk_operator(scan(upright.transform(tilt), grid))


@pytest.mark.parametrize("method", [fbp, fdk])
def test_the_precision_may_be_another_than_the_projectors(method: Any) -> None:
    t = np.arange(8) * (np.pi / 4)
    if method is fbp:
        A = Projector(FanBeam(t, Detector(9), 20, 40), Grid((6, 6)))
    else:
        A = Projector(ConeBeam(t, Detector((5, 9)), 20, 40), Grid((4, 6, 6)))
    y = A.codomain.random(0).astype("float64")
    found = method(A, y, precision="float64")
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, method(A.with_precision("float64"), y))
    with pytest.raises(ValueError, match="precision"):
        method(A, y, precision="half")
