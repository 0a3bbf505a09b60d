"""Lines seen twice, once or never: gaps, short scans and displaced detectors against chords."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
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
    angular_weights,
    displaced_weights,
    fbp,
    fbp_operator,
    fdk,
    from_astra,
    parker_weights,
)
from linops.errors import GeometryError
from linops.testing import dot_test

GRID = Grid((41, 41), 0.25)
HALF = np.arange(720) / 2


def chords(geometry: Any, radius: float, center: tuple[float, ...]) -> np.ndarray:
    """Exact chords of a disc or ball of value 1."""
    points = geometry.trajectory.points()
    lead = (slice(None),) + (None,) * (points.ndim - 2)
    if geometry.sources is None:
        start, ray = points, np.broadcast_to(geometry.directions[lead], points.shape)
    else:
        start = geometry.sources[lead]
        ray = (points - start) / np.linalg.norm(points - start, axis=-1, keepdims=True)
    away = np.array(center) - start
    along = (away * ray).sum(-1)
    return 2 * np.sqrt(np.maximum(radius**2 - (away**2).sum(-1) + along**2, 0))


def inside(geometry: Any, center: tuple[float, float], radius: float, **options: Any) -> np.ndarray:
    """The pixels well inside a disc of 1 that is scanned by exact chords."""
    A: Any = SimpleNamespace(geometry=geometry, grid=GRID, precision="float64")
    image = fbp(A, chords(geometry, radius, center), **options)
    x, y = np.meshgrid(GRID.coordinates("x"), GRID.coordinates("y"))
    return np.asarray(image[np.hypot(x - center[0], y - center[1]) < 0.7 * radius])


def of_kind(kind: str, degrees: np.ndarray, detector: Detector) -> Any:
    t = np.deg2rad(degrees)
    return FanBeam(t, detector, 20, 40) if kind == "fan" else ParallelBeam(t, detector)


# --- gaps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 90, 100])
def test_gaps_on_both_sides_of_a_parallel_scan_count_no_line_twice(start: int) -> None:
    degrees = (np.r_[10:171, 190:351] - start) % 360.0
    w = angular_weights(np.deg2rad(degrees))
    # Half a turn but for a gap of 20 degrees, seen twice; views beside it weigh half as much.
    assert w.sum() == pytest.approx(np.deg2rad(160), rel=1e-9)
    assert w.max() == pytest.approx(np.deg2rad(0.5), rel=1e-9)
    assert w.min() == pytest.approx(np.deg2rad(0.25), rel=1e-9)


@pytest.mark.parametrize(
    ("degrees", "total"),
    [
        (np.r_[0:180, 360], 180),  # one reference view after half a turn
        (np.r_[0:181, 360], 180),
        (np.r_[0:180, 90], 180),
        (np.r_[0:100, 102:180], 180),  # a dropped view is bridged
        (np.r_[0:90, 90:181:5], 180),  # two densities are no gap
        (np.r_[0:41, 140:180], 80),  # the missing wedge in the middle of the record
        (np.r_[-40:41], 80),
        (np.tile(np.r_[0:360], 3), 180),
    ],
)
def test_weights_of_parallel_scans_sum_to_what_was_seen(degrees: Any, total: float) -> None:
    w = np.rad2deg(angular_weights(np.deg2rad(degrees)))
    assert w.sum() == pytest.approx(total, rel=1e-9)
    assert w.max() < 5.001
    assert w.min() > 0.16


def test_random_and_golden_angles_have_no_gap() -> None:
    uniform = np.random.default_rng(0).uniform(0, 2 * np.pi, 200)
    assert angular_weights(np.append(uniform, [0, 2 * np.pi])).sum() == pytest.approx(np.pi)
    golden = np.arange(150) * np.pi / ((1 + 5**0.5) / 2)
    assert angular_weights(golden).sum() == pytest.approx(np.pi)


@pytest.mark.parametrize(
    "seen",
    [
        ~((HALF > 50) & (HALF < 60)),
        ~(((HALF > 50) & (HALF < 60)) | ((HALF > 145) & (HALF < 155))),
        ~np.isin(HALF, [50, 150, 150.5]),
    ],
)
def test_a_disc_keeps_its_value_where_gaps_leave_each_line_one_view(seen: np.ndarray) -> None:
    for kind in ("fan", "parallel"):
        values = inside(of_kind(kind, HALF[seen], Detector(128, 0.2)), (1.0, -0.5), 3.0)
        np.testing.assert_allclose(values, 1, atol=0.01)


def test_short_scans_may_start_anywhere_and_end_with_a_reference_view() -> None:
    short = np.arange(0, 221.0)
    for degrees in (np.append(short, 360), (short + 300) % 360, short[::-1] - 500):
        values = inside(of_kind("fan", degrees, Detector(128, 0.2)), (1.0, -0.5), 3.0)
        np.testing.assert_allclose(values, 1, atol=0.01)


# --- short scans -----------------------------------------------------------------------------


def test_parker_weights_belong_to_rays_whatever_way_columns_run() -> None:
    t = np.arange(260) * np.deg2rad(260) / 260
    detector = Detector(129, 0.4, 1.5)
    frames = FanBeam(t, detector, 20, 40).trajectory
    turned = Trajectory("fan", frames.sources, frames.centers, -frames.u, None, detector)
    scan = {
        "type": "fanflat",
        "DetectorWidth": 0.4,
        "DetectorCount": 129,
        "ProjectionAngles": t,
        "DistanceOriginSource": 20.0,
        "DistanceOriginDetector": 20.0,
    }
    foreign, _ = from_astra(scan, {"GridRowCount": 41, "GridColCount": 41})
    for geometry in (frames, turned, foreign):
        np.testing.assert_allclose(inside(geometry, (1.5, -1.0), 2.0), 1, atol=0.01)
    u = frames.u.copy()
    u[1] *= -1
    mixed = Trajectory("fan", frames.sources, frames.centers, u, None, Detector(129, 0.4))
    with pytest.raises(GeometryError, match="view 1 run against"):
        inside(mixed, (0.0, 0.0), 1.0)


def test_a_span_too_short_for_parker_warns_and_names_the_need() -> None:
    beam = of_kind("fan", np.arange(0.0, 190), Detector(128, 0.2))
    A: Any = SimpleNamespace(geometry=beam, grid=GRID, precision="float32")
    need = 180 + 2 * np.rad2deg(np.arctan(12.7 / 40))
    with pytest.warns(UserWarning, match=f"189.00 degrees.*{need:.2f}") as caught:
        fbp_operator(A)
    with pytest.warns(UserWarning, match="189.00 degrees"):
        parker_weights(beam.angles, beam.detector.columns(), 40)
    assert caught[0].filename == __file__


# --- displaced detectors ---------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.3, 2.0, 6.5, -6.5])
def test_a_displaced_detector_sees_a_disc_of_one(offset: float) -> None:
    fan = of_kind("fan", HALF, Detector(80, 0.2, offset))
    parallel = of_kind("parallel", HALF, Detector(60, 0.1, offset / 2.6))
    round_ = Detector(80, 0.2, offset, curvature=40.0)
    for geometry in (fan, parallel, of_kind("fan", HALF, round_)):
        values = inside(geometry, (0.3, -0.2), 2.2)
        np.testing.assert_allclose(values, 1, atol=0.01)
    frames = fan.trajectory
    against = Trajectory("fan", frames.sources, frames.centers, -frames.u, None, fan.detector)
    np.testing.assert_allclose(inside(against, (0.3, -0.2), 2.2), 1, atol=0.01)
    if abs(offset) > 6:
        assert inside(fan, (0.3, -0.2), 2.2, displaced=False).mean() > 1.3


def test_fdk_on_a_displaced_detector() -> None:
    t = 2 * np.pi * np.arange(180) / 180
    beam = ConeBeam(t, Detector((17, 60), 0.4, (0, 7.0)), 40, 60)
    A: Any = SimpleNamespace(geometry=beam, grid=Grid((3, 24, 24), 0.5), precision="float64")
    image = fdk(A, chords(beam, 5.0, (0.4, -0.3, 0.0)))
    x, y = np.meshgrid(A.grid.coordinates("x"), A.grid.coordinates("y"))
    core = np.hypot(x - 0.4, y + 0.3) < 3.5
    np.testing.assert_allclose(image[1][core], 1, atol=0.01)


def test_displaced_weights_of_both_sights_add_to_two() -> None:
    for detector in (Detector(50, 0.3, 5.0), Detector(50, 0.3, -1.0)):
        u = detector.columns()
        both = u[np.abs(u) < min(-u[0], u[-1])]
        w = displaced_weights(np.concatenate([u, -both]))
        mirrored = w[len(u) :]
        np.testing.assert_allclose(mirrored + w[: len(u)][np.isin(u, both)], 2, atol=1e-12)
        fan = displaced_weights(u, 40.0)
        assert fan.max() == pytest.approx(2) and fan.min() >= 0
    np.testing.assert_array_equal(displaced_weights(Detector(9, 0.7, 0.6).columns()), 1)
    np.testing.assert_array_equal(displaced_weights([1.0, 2.0, 3.0]), 2)


def test_a_displaced_scan_obeys_the_laws_of_operators() -> None:
    beam = of_kind("fan", np.arange(0.0, 360, 40), Detector(9, 1.0, 2.5))
    A: Any = SimpleNamespace(geometry=beam, grid=Grid((5, 6)), precision="float64")
    operator = fbp_operator(A)
    assert dot_test(operator) <= 16
    y = np.random.default_rng(0).standard_normal((9, 9))
    whole, parts = operator @ y, [(0, 2), (2, 9)]
    shares = [operator.block("view", *p) @ y[slice(*p)] for p in parts]
    np.testing.assert_allclose(sum(shares), whole, atol=1e-12)
    slabs = [operator.block("y", *p) @ y for p in parts[:1] + [(2, 5)]]
    np.testing.assert_allclose(np.concatenate(slabs), whole, atol=1e-12)


def test_displaced_is_refused_where_it_means_nothing() -> None:
    beam = of_kind("fan", np.arange(0.0, 260), Detector(90, 0.2, 3))
    A: Any = SimpleNamespace(geometry=beam, grid=GRID, precision="float32")
    with pytest.raises(GeometryError, match="displaced=True.*259"):
        fbp_operator(A, displaced=True)
    with pytest.raises(GeometryError, match="displaced is 'yes'"):
        fbp_operator(A, displaced="yes")
    off = of_kind("fan", np.arange(0.0, 360), Detector(20, 0.2, 8))
    with pytest.warns(UserWarning, match="axis lies outside"):
        fbp_operator(SimpleNamespace(geometry=off, grid=GRID, precision="float32"))


@pytest.mark.parametrize("kind", ["parallel", "fan"])
def test_a_detector_on_one_side_in_less_than_a_full_turn_warns(kind):
    angles = np.deg2rad(np.arange(0, 300, 3.0))

    def reconstruct(offset):
        detector = Detector(32, 1.0, offset)
        beam = (
            ParallelBeam(angles, detector)
            if kind == "parallel"
            else FanBeam(angles, detector, 100.0, 200.0)
        )
        fbp(Projector(beam, Grid((4, 4))), np.zeros((100, 32), "float32"))

    with pytest.warns(UserWarning, match="count twice"):
        reconstruct(12.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reconstruct(1.0)
