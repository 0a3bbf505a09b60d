"""Tilted parallel beams and translated objects: frames by formula, signs, and equal scans."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from geometries import (
    ConeBeam,
    Detector,
    FanBeam,
    Grid,
    MultiAxisParallel,
    ParallelBeam,
    Projector,
    Translation,
    fbp,
    fbp_operator,
)
from linops.errors import DTypeError, GeometryError
from linops.testing import check_operator

S = np.array([0.0, 0.7, 2.1, -1.3])
E = np.array([0.2, -0.5, 1.1, 0.0])


def test_frames_of_tilted_beams() -> None:
    beam = MultiAxisParallel(S, E, Detector((3, 4)))
    for k, (s, e) in enumerate(zip(S, E, strict=True)):
        e_r, up = np.array([-np.sin(s), np.cos(s), 0]), np.array([0, 0, 1.0])
        expected = {
            "directions": np.cos(e) * e_r + np.sin(e) * up,
            "u": np.array([np.cos(s), np.sin(s), 0]),
            "v": -np.sin(e) * e_r + np.cos(e) * up,
        }
        for name, frame in expected.items():
            np.testing.assert_allclose(getattr(beam, name)[k], frame, atol=1e-15)
    np.testing.assert_array_equal(beam.azimuths, S)
    part = pickle.loads(pickle.dumps(beam[[2, 0]]))
    assert isinstance(part, MultiAxisParallel)
    np.testing.assert_array_equal(part.elevations, E[[2, 0]])
    assert part.v is not None and beam.v is not None
    assert part.v.tobytes() == beam.v[[2, 0]].tobytes()
    assert "elevations=-0.5..1.1" in repr(beam)


@pytest.mark.parametrize("azimuth", [0.0, 0.7, -2.0])
@pytest.mark.parametrize("elevation", [0.0, 0.4, -1.2])
def test_a_point_is_seen_where_the_formula_says(azimuth: float, elevation: float) -> None:
    x, y, z = 1.3, -0.8, 2.1
    beam = MultiAxisParallel([azimuth], elevation, Detector((3, 4)))
    point, d, v = np.array([x, y, z]), beam.directions[0], beam.v[0]  # type: ignore[index]
    onto = point - (point @ d) * d
    cos, sin = np.cos(azimuth), np.sin(azimuth)
    assert onto @ beam.u[0] == pytest.approx(x * cos + y * sin, abs=1e-14)
    height = z * np.cos(elevation) - (-x * sin + y * cos) * np.sin(elevation)
    assert onto @ v == pytest.approx(height, abs=1e-14)


@pytest.mark.parametrize("spacing", [1.0, (1.0, 1.9, 1.0)])
def test_elevation_zero_is_the_parallel_beam_bit_for_bit(spacing: Any) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 6))
    detector, grid = Detector((3, 8), (1.0, 0.9)), Grid((3, 5, 6), spacing)
    for precision in ("float64", "float32"):
        tilted = Projector(MultiAxisParallel(S, 0.0, detector), grid, precision=precision)
        plain = Projector(ParallelBeam(S, detector), grid, precision=precision)
        assert tilted.rule == plain.rule
        data = x.astype(plain.dtype)
        np.testing.assert_array_equal(tilted @ data, plain @ data)
        np.testing.assert_array_equal(tilted.H @ (plain @ data), plain.H @ (plain @ data))


def test_the_opposite_elevation_sees_the_volume_upside_down() -> None:
    x = np.random.default_rng(1).standard_normal((4, 5, 6))
    detector, grid = Detector((6, 9), 0.9), Grid((4, 5, 6), (1.1, 0.9, 0.7))
    up = Projector(MultiAxisParallel(S, E, detector), grid, precision="float64")
    down = Projector(MultiAxisParallel(S, -E, detector), grid, precision="float64")
    np.testing.assert_allclose(down @ x[::-1], (up @ x)[:, ::-1], atol=1e-12)


@pytest.mark.slow
def test_a_tilted_ray_through_a_slab_is_longer_by_its_elevation() -> None:
    A = Projector(
        MultiAxisParallel([0.3], [np.deg2rad(60)], Detector((1, 1))),
        Grid((2, 40, 40), (0.5, 1, 1)),
        precision="float64",
    )
    np.testing.assert_allclose(A @ np.ones((2, 40, 40)), 1 / np.sin(np.deg2rad(60)), rtol=1e-13)
    check_operator(A)


@pytest.mark.parametrize("shift", [(0.6, 0.0, 0.0), (0.0, -0.9, 0.0), (0.4, 1.2, -0.7)])
def test_moving_the_object_is_moving_the_grid(shift: tuple[float, float, float]) -> None:
    x = np.random.default_rng(2).standard_normal((3, 4, 5))
    detector = Detector((5, 7), (1.7, 2.1), (0.3, -0.2))
    moved = Projector(
        Translation([shift], detector, 20, 37), Grid((3, 4, 5), 1.1), precision="float64"
    )
    center = tuple(reversed(shift))
    still = Projector(
        ConeBeam([0.0], detector, 20, 37), Grid((3, 4, 5), 1.1, center), precision="float64"
    )
    np.testing.assert_allclose(moved @ x, still @ x, atol=1e-12)


def test_an_object_moved_towards_x_is_seen_further_towards_u() -> None:
    image = np.zeros((3, 5), "float32")
    image[1, 2] = 1
    scan = Translation([(0, 0), (1, 0), (-1, 0)], Detector(9, 2.0), [100, 100, 50], [200, 200, 100])
    y = Projector(scan, Grid((3, 5))) @ image
    assert np.argmax(y, axis=1).tolist() == [4, 5, 3]
    assert scan.kind == "fan"
    part = scan[1:]
    assert part.positions.tolist() == [[1, 0], [-1, 0]]
    assert part.source_to_axis.tolist() == [100, 50]
    # Its views look at no common point, so analytic steps ask for one.
    with pytest.raises(GeometryError, match="isocenter"):
        fbp(Projector(scan[:2], Grid((3, 5))), y[:2])


def test_a_scan_at_rest_is_a_fan_at_angle_zero() -> None:
    rest, fan = Translation([(0.0, 0.0)], Detector(3), 7, 12), FanBeam([0.0], Detector(3), 7, 12)
    for name in ("sources", "centers", "u"):
        np.testing.assert_array_equal(getattr(rest, name), getattr(fan, name))


def test_tilts_and_positions_carry_gradients() -> None:
    torch = pytest.importorskip("torch")
    e = torch.tensor(E, requires_grad=True)
    beam = MultiAxisParallel(S, e, Detector((3, 4)))
    beam.directions[:, 2].sum().backward()
    np.testing.assert_allclose(e.grad, np.cos(E), rtol=1e-14)
    p = torch.tensor([(0.1, 0.2)], dtype=torch.float64, requires_grad=True)
    Translation(p, Detector(3), 7, 12).centers.sum().backward()
    assert p.grad.tolist() == [[-1, -1]]


def test_bad_arguments_are_refused_by_name() -> None:
    detector = Detector((3, 4))
    for elevations in ([0.1] * 3, np.nan, [[0.1] * 4], [0, np.inf, 0, 0]):
        with pytest.raises(GeometryError, match="elevations"):
            MultiAxisParallel(S, elevations, detector)
    for elevations in ("a", 1j, None, True):
        with pytest.raises(DTypeError, match="elevations"):
            MultiAxisParallel(S, elevations, detector)
    with pytest.raises(GeometryError, match="rows, cols"):
        MultiAxisParallel(S, 0.0, Detector(4))
    with pytest.raises(DTypeError, match="azimuths"):
        MultiAxisParallel(np.arange(3), 0.0, detector)
    with pytest.warns(UserWarning, match="degrees"):
        MultiAxisParallel(S, 30.0, detector)
    for positions in ([(0.0, 0.0)], np.zeros((0, 3)), [0.0, 1.0, 2.0]):
        with pytest.raises(GeometryError, match="positions"):
            Translation(positions, detector, 7, 12)
    with pytest.raises(GeometryError, match="view 1: sources is not finite"):
        Translation([(0, 0, 0), (np.nan, 0, 0)], detector, 7, 12)
    with pytest.raises(GeometryError, match="source_to_axis"):
        Translation([(0, 0, 0)], detector, -7, 12)


def blob(beam: Any, center: tuple[float, float, float], width: float) -> np.ndarray:
    """Line integrals of `exp(-|X - center|^2 / (2 width^2))`, in closed form."""
    frames = beam.trajectory
    away = np.stack([frames.pixels(k) for k in range(frames.views)]) - np.asarray(center)
    along = np.einsum("krci,ki->krc", away, frames.directions)
    square = (away**2).sum(-1) - along**2
    return np.asarray(width * np.sqrt(2 * np.pi) * np.exp(-square / (2 * width**2)))


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [0.0, 30.0, -55.0])
def test_a_tilted_scan_keeps_the_frequencies_that_it_sees(degrees: float) -> None:
    # No view sees frequencies within |e| of the z axis; at its middle a Gaussian is the mean of
    # its isotropic spectrum, of which they are 1 - cos e.
    e, center = np.deg2rad(degrees), (3.0, -2.0, 1.0)
    t = 0.2 + 2 * np.pi * np.arange(240) / 240
    beam = MultiAxisParallel(t, e, Detector((121, 121), (0.5, 0.5), (0.3, 0.2)))
    grid = Grid((1, 3, 3), 0.25, (center[2], center[1], center[0]))
    image = fbp(Projector(beam, grid, precision="float64"), blob(beam, center, 4.0))
    assert image[0, 1, 1] == pytest.approx(np.cos(e), abs=5e-3)


@pytest.mark.slow
def test_fbp_of_tilted_scans_keeps_the_contract_and_refuses_what_it_has_no_formula_for() -> None:
    t = 2 * np.pi * np.arange(8) / 8
    detector = Detector((5, 6), (0.9, 1.1), (0.2, 0.1))
    grid = Grid((3, 4, 5), (1.0, 0.9, 1.1))
    A = Projector(MultiAxisParallel(t, 0.4, detector), grid, precision="float64")
    check_operator(fbp_operator(A))
    y = np.ones(A.codomain.shape)
    with pytest.raises(GeometryError, match="full turn of views"):
        fbp(Projector(MultiAxisParallel(t / 2, 0.4, detector), grid), y)
    with pytest.raises(GeometryError, match="no line twice"):
        fbp(A, y, displaced=True)
    with pytest.raises(GeometryError, match="one elevation; view 1"):
        fbp(Projector(MultiAxisParallel(t, 0.1 * t, detector), grid), y)
    with pytest.raises(GeometryError, match="turn about z"):
        fbp(Projector(MultiAxisParallel(t, np.pi / 2, detector), grid), y)
    tall = Projector(MultiAxisParallel(t, 0.4, Detector((1, 6))), grid)
    with pytest.raises(GeometryError, match="two detector bins"):
        fbp(tall, np.ones(tall.codomain.shape))
