"""Orbits by their formulas, what they refuse, where their random numbers come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from geometries import (
    ConeBeam,
    Detector,
    FanBeam,
    Grid,
    ParallelBeam,
    Projector,
    Trajectory,
    from_path,
    perturb,
    saddle,
    sinusoidal,
)
from linops import arrays
from linops.errors import GeometryError

T = np.array([0.3, -1.1, 2.0, 4.4])
FLAT, ROWS = Detector(5), Detector((3, 5))


def directions(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    zero = np.zeros_like(t)
    e_u = np.stack([np.cos(t), np.sin(t), zero], 1)
    return e_u, np.stack([-np.sin(t), np.cos(t), zero], 1)


def test_a_sinusoidal_orbit() -> None:
    e_u, e_r = directions(T)
    radius = 7 + 1.5 * np.sin(3 * T)
    for detector, dims in ((FLAT, 2), (ROWS, 3)):
        frames = sinusoidal(T, detector, 7.0, 12.0, 1.5, 3)
        assert (type(frames), frames.kind) == (Trajectory, "fan" if dims == 2 else "cone")
        np.testing.assert_allclose(frames.sources, (-radius[:, None] * e_r)[:, :dims], atol=1e-12)
        np.testing.assert_allclose(
            frames.centers, ((12 - radius)[:, None] * e_r)[:, :dims], atol=1e-12
        )
        np.testing.assert_allclose(frames.u, e_u[:, :dims], atol=1e-12)
        still = sinusoidal(T, detector, amplitude=0.4, frequency=2.0)
        assert still.kind == "parallel"
        np.testing.assert_allclose(still.directions, e_r[:, :dims], atol=1e-12)
        np.testing.assert_allclose(
            still.centers, (0.4 * np.sin(2 * T)[:, None] * e_u)[:, :dims], atol=1e-12
        )


def test_a_saddle() -> None:
    _, e_r = directions(T)
    frames = saddle(T, ROWS, 7.0, 12.0, 2.0, 1.5)
    z = (2 * np.cos(2 * T))[:, None] * (0, 0, 1)
    radius = (7 + 1.5 * np.sin(2 * T))[:, None]
    np.testing.assert_allclose(frames.sources, -radius * e_r + z, atol=1e-12)
    np.testing.assert_allclose(frames.centers, (12 - radius) * e_r + z, atol=1e-12)


def test_a_path_on_a_circle_is_the_circular_scan() -> None:
    cone, fan = ConeBeam(T, ROWS, 7.0, 12.0), FanBeam(T, FLAT, 7.0, 12.0)
    for beam in (cone, fan):
        frames = from_path(beam.sources, beam.detector, 12.0)
        for name in ("centers", "u", "normals") + (("v",) if beam.dims == 3 else ()):
            np.testing.assert_allclose(getattr(frames, name), getattr(beam, name), atol=1e-12)


def test_a_path_off_the_plane_and_over_the_pole() -> None:
    s = np.array([(1.0, -5.0, 3.0), (0.0, 0.0, 6.0), (5e-7, 5e-7, -6.0)])
    frames = from_path(s, ROWS, [10.0, 9.0, 9.0])
    unit = s / np.linalg.norm(s, axis=1, keepdims=True)
    np.testing.assert_allclose(frames.centers, s - [[10], [9], [9]] * unit, atol=1e-12)
    flat = np.array([(5.0, 1.0, 0.0), (1, 0, 0), (1, 0, 0)]) / [[np.sqrt(26)], [1], [1]]
    np.testing.assert_allclose(frames.u, flat, atol=1e-12)
    np.testing.assert_allclose(frames.v, np.cross(unit, flat), atol=1e-6)
    A = Projector(frames[:1], Grid((4, 4, 4), 0.5), precision="float64")
    # The central ray runs through the middle of the grid: it is the ray of the middle cell.
    inside = (A @ np.ones((4, 4, 4)))[0, 1, 2]
    assert inside == pytest.approx(2 / np.abs(unit[0]).max(), rel=1e-12)


def test_only_a_source_within_a_millionth_of_the_axis_is_over_the_pole() -> None:
    frames = from_path([(3e-6, 0.0, 6.0), (0.0, 2e-6, 6.0), (9e-7, 9e-7, 6.0)], ROWS, 9.0)
    np.testing.assert_allclose(frames.u, [(0, 1, 0), (-1, 0, 0), (1, 0, 0)], atol=1e-12)


def curve(x: Any) -> Any:
    return arrays.namespace(x).stack([x, x * x - 3, 1 - 0.2 * x], axis=1)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: sinusoidal(x, ROWS, 7.0, 12.0, 1.5, 3),
        lambda x: sinusoidal(T, FLAT, 7.0, 12.0, x, 3),
        lambda x: sinusoidal(T, FLAT, amplitude=1.5, frequency=x),
        lambda x: saddle(T, ROWS, x + 9, 12.0, x, 1.5),
        lambda x: from_path(curve(x), ROWS, 9.0 + x),
        lambda x: perturb(ConeBeam(x, ROWS, 7.0, 12.0), np.random.default_rng(0), 0.1, 0.2, 0.3),
    ],
)
def test_orbits_pass_gradients_on(build: Callable[[Any], Trajectory]) -> None:
    torch = pytest.importorskip("torch")

    def value(x: Any) -> Any:
        frames = build(x)
        first = frames.directions if frames.sources is None else frames.sources
        return (first**3).sum() + (frames.points() ** 2 * 0.1).sum()

    def plain(x: np.ndarray) -> float:
        return float(value(x))

    x = torch.tensor(T, requires_grad=True)
    (slope,) = torch.autograd.grad(value(x), x)
    step = 1e-6
    for k in range(4):
        d = step * np.eye(4)[k]
        assert float(slope[k]) == pytest.approx(
            (plain(T + d) - plain(T - d)) / (2 * step), rel=1e-6, abs=1e-5
        )


def test_a_path_over_the_pole_has_finite_gradients() -> None:
    torch = pytest.importorskip("torch")
    s = torch.tensor([(0.0, 0.0, 6.0)], dtype=torch.float64, requires_grad=True)
    frames = from_path(s, ROWS, 9.0)
    (frames.points() ** 2).sum().backward()
    assert torch.isfinite(s.grad).all()


def test_perturbed_frames_stay_frames() -> None:
    for beam in (ParallelBeam(T, FLAT), ParallelBeam(T, ROWS), FanBeam(T, FLAT, 7, 12)):
        frames = perturb(beam, np.random.default_rng(5), angle_std=0.3)
        assert np.abs(frames.u - beam.u).max() > 0.01
        if beam.v is not None:
            assert np.abs(frames.v - beam.v).max() > 0.01
            np.testing.assert_allclose(np.sum(frames.u * frames.v, axis=1), 0, atol=1e-14)
        np.testing.assert_array_equal(frames.centers, beam.centers)
    cone = ConeBeam(T, ROWS, 7, 12)
    moved = perturb(cone, np.random.default_rng(5), distance_std=0.5)
    step = moved.sources - cone.sources
    np.testing.assert_allclose(np.linalg.norm(np.cross(step, cone.normals), axis=1), 0, atol=1e-12)
    draws = np.random.default_rng(5).standard_normal(4)
    np.testing.assert_allclose(np.sum(step * cone.normals, axis=1), 0.5 * draws, atol=1e-12)
    many = ConeBeam(np.linspace(0, 6, 4000), ROWS, 7, 12)
    spread = perturb(many, np.random.default_rng(1), position_std=0.2).centers - many.centers
    np.testing.assert_allclose(spread.std(axis=0), 0.2, rtol=0.05)


def test_random_numbers_come_from_the_given_generator_alone() -> None:
    beam = ConeBeam(T, ROWS, 7, 12)
    before = np.random.get_state()  # noqa: NPY002
    first = perturb(beam, np.random.default_rng(3), 0.1, 0.1, 0.1)
    second = perturb(beam, np.random.default_rng(3), 0.1, 0.1, 0.1)
    after = np.random.get_state()  # noqa: NPY002
    assert before[0] == after[0] and (before[1] == after[1]).all()
    assert first.u.tobytes() == second.u.tobytes()
    for generator in (3, None, np.random):
        with pytest.raises(TypeError, match="generator"):
            perturb(beam, generator, 0.1)  # type: ignore[arg-type]
    with pytest.raises(GeometryError, match="angle_std"):
        perturb(beam, np.random.default_rng(3), angle_std=-0.1)


def test_orbits_stay_on_the_cpu_and_in_numpy_for_lists() -> None:
    for frames in (
        sinusoidal([0.0, 1.0], FLAT, 7, 12, 1.0),
        saddle([0.0, 1.0], ROWS, 7, 12, 1.0),
        from_path([(0.0, -7.0)], FLAT, 12),
    ):
        assert frames.centers.dtype == np.float64 and isinstance(frames.centers, np.ndarray)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sinusoidal([0.0, np.pi / 2], FLAT, 7, 12, -7.0, 1), "view 1: the source reaches"),
        (lambda: sinusoidal(T, FLAT, 7, 12, [1.0, 2.0]), "amplitude"),
        (lambda: sinusoidal(T, FLAT, 7, 12, np.nan), "amplitude"),
        (lambda: sinusoidal(T, FLAT, 7, None, 1.0), "source_to_detector"),
        (lambda: sinusoidal([], FLAT, 7, 12), "angles"),
        (lambda: saddle(T, ROWS, 7, 12, 1.0, 9.0), "the source reaches the axis"),
        (lambda: saddle(T, FLAT, 7, 12, 1.0), "rows, cols"),
        (lambda: from_path([(1.0, 0, 0), (0, 0, 0)], ROWS, 12), "view 1: the source stands"),
        (lambda: from_path([(1.0, 0, 0), (np.nan, 0, 0)], ROWS, 12), "view 1"),
        (lambda: from_path([(1.0, 0.0)], ROWS, 12), "sources has shape"),
        (lambda: from_path(np.zeros((0, 3)), ROWS, 12), "sources"),
        (lambda: from_path([(1.0, 0, 0)], ROWS, -1), "source_to_detector"),
    ],
)
def test_degenerate_orbits_are_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises((GeometryError, TypeError), match=message):
        build()
