"""Circular and helical scans: frames by formula, worked points, warnings, refusals."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest

from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector
from linops.errors import DTypeError, GeometryError

T = np.array([0.3, -1.1, 2.0])


def shadow(beam: Any, point: tuple[float, ...]) -> np.ndarray:
    """Where a point lands along u (and v) in view 0: ray from the source met with the plane."""
    S, C, n = beam.sources[0], beam.centers[0], beam.normals[0]
    X = np.array(point[: beam.dims], float)
    hit = S + ((C - S) @ n) / ((X - S) @ n) * (X - S) - C
    return np.array([hit @ beam.u[0]] + ([] if beam.v is None else [hit @ beam.v[0]]))


def test_frames_of_circular_scans() -> None:
    e_u = np.stack([np.cos(T), np.sin(T)], 1)
    e_r = np.stack([-np.sin(T), np.cos(T)], 1)
    parallel, fan = ParallelBeam(T, Detector(5)), FanBeam(T, Detector(5), 7.1, [12.4, 12, 13])
    np.testing.assert_allclose(parallel.directions, e_r, atol=1e-12)
    np.testing.assert_array_equal(parallel.centers, 0)
    np.testing.assert_allclose(fan.u, e_u, atol=1e-12)
    np.testing.assert_allclose(fan.sources, -7.1 * e_r, atol=1e-12)
    np.testing.assert_allclose(fan.centers, np.array([[5.3], [4.9], [5.9]]) * e_r, atol=1e-12)
    cone = ConeBeam(T, Detector((2, 5)), 7.1, 12.4)
    assert cone.v is not None
    np.testing.assert_array_equal(cone.v, [(0, 0, 1)] * 3)
    np.testing.assert_allclose(cone.normals[:, :2], e_r, atol=1e-12)
    assert (parallel.kind, fan.kind, cone.kind) == ("parallel", "fan", "cone")


@pytest.mark.parametrize(
    ("point", "degrees", "u", "v"),
    [
        ((10, 0, 0), 0, 20, 0),
        ((10, -50, 0), 0, 40, 0),
        ((10, 50, 0), 0, 40 / 3, 0),
        ((10, 0, 5), 0, 20, 10),
        ((0, 10, 0), 90, 20, 0),
        ((10, 0, 0), 90, 0, 0),
    ],
)
def test_worked_points(point: tuple[float, ...], degrees: float, u: float, v: float) -> None:
    angles = [np.deg2rad(degrees)]
    cone = ConeBeam(angles, Detector((2, 3)), 100, 200)
    np.testing.assert_allclose(shadow(cone, point), (u, v), atol=1e-12)
    if v == 0:
        fan = FanBeam(angles, Detector(3), 100, 200)
        np.testing.assert_allclose(shadow(fan, point), (u,), atol=1e-12)


def test_an_offset_in_length_moves_columns_and_no_row() -> None:
    detector = Detector((3, 201), pitch=0.5, offset=(0, 5))
    column = np.interp(20, detector.columns(), np.arange(201))
    assert column == 130
    assert detector.rows().tolist() == [-0.5, 0, 0.5]


def test_a_helix_rises_with_its_angle_alone() -> None:
    helix = ConeBeam([-2 * np.pi, 0.0, 2 * np.pi], Detector((2, 3)), 7, 12, advance=4)
    assert helix.sources is not None
    np.testing.assert_allclose(helix.sources[:, 2], (-4, 0, 4), rtol=1e-15)
    np.testing.assert_array_equal(helix.centers[:, 2], helix.sources[:, 2])
    part = helix[1:]
    assert isinstance(part, ConeBeam)
    assert part.sources is not None
    assert part.sources.tobytes() == helix.sources[1:].tobytes()
    assert part.advance == 4
    assert part.angles.tolist() == [0, 2 * np.pi]


def test_subsets_take_distances_along() -> None:
    fan = FanBeam(T, Detector(5), [7, 8, 9.0], 12)
    part = fan[[2, 0]]
    assert isinstance(part.source_to_axis, np.ndarray)
    assert part.source_to_axis.tolist() == [9, 7]
    assert part.source_to_detector == 12
    again = pickle.loads(pickle.dumps(part))
    assert again.sources.tobytes() == part.sources.tobytes()
    assert "2 views" in repr(again)
    assert "source_to_axis=7..9" in repr(again)


def test_angles_of_other_libraries_and_dtypes() -> None:
    torch = pytest.importorskip("torch")
    from_list = ParallelBeam(T.tolist(), Detector(3))
    from_torch = ParallelBeam(torch.tensor(T), Detector(3))
    assert from_list.angles.tobytes() == T.tobytes() == from_torch.host.angles.tobytes()
    # The cosine is taken in float64 of the float32 angle.
    single = ParallelBeam(T.astype(np.float32), Detector(3))
    np.testing.assert_array_equal(single.u[:, 0], np.cos(T.astype(np.float32).astype(float)))
    assert ParallelBeam([0, 1], Detector(3)).views == 2


def test_angles_are_copied_and_beams_immutable() -> None:
    angles = T.copy()
    beam = ParallelBeam(angles, Detector(3))
    angles[:] = 0
    assert beam.angles.tolist() == T.tolist()
    with pytest.raises(AttributeError, match="immutable"):
        beam.angles = angles
    with pytest.raises(ValueError, match="read-only"):
        beam.angles[0] = 1


@pytest.mark.parametrize(
    "angles",
    [
        None,
        [],
        np.zeros((2, 2)),
        np.arange(3),
        np.array([True]),
        np.array([1j]),
        "abc",
        [np.nan],
        [0.0, np.inf],
        [True, False],
        0.5,
        [[0.1], [0.1, 0.2]],
    ],
)
def test_bad_angles_are_refused_by_name(angles: Any) -> None:
    with pytest.raises((GeometryError, DTypeError), match="angles"):
        ParallelBeam(angles, Detector(3))


def test_a_nan_angle_names_its_view() -> None:
    with pytest.raises(GeometryError, match="view 1"):
        ParallelBeam([0.0, np.nan], Detector(3))


@pytest.mark.parametrize(
    "value", [0, -1.0, np.nan, np.inf, [7.0, 7.0], [7, 7, -7.0], None, "7", True]
)
@pytest.mark.parametrize("name", ["source_to_axis", "source_to_detector"])
def test_bad_distances_are_refused_by_name(name: str, value: Any) -> None:
    distances = {"source_to_axis": 7.0, "source_to_detector": 12.0, name: value}
    with pytest.raises((GeometryError, DTypeError), match=name):
        FanBeam(T, Detector(3), **distances)


def test_bad_advance_and_detectors_are_refused() -> None:
    for advance in (np.nan, None, "1", [1, 2], True):
        with pytest.raises(GeometryError, match="advance"):
            ConeBeam(T, Detector((2, 3)), 7, 12, advance=advance)  # type: ignore[arg-type]
    with pytest.raises(GeometryError, match="ConeBeam"):
        FanBeam(T, Detector((2, 3)), 7, 12)
    with pytest.raises(GeometryError, match="FanBeam"):
        ConeBeam(T, Detector(3), 7, 12)
    with pytest.raises(GeometryError, match="detector"):
        ParallelBeam(T, (5,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "angles", [np.linspace(0, 360, 720), np.linspace(0, 180, 181), np.arange(0.0, 180, 3)[::-1]]
)
def test_degrees_warn_once(angles: np.ndarray) -> None:
    with pytest.warns(UserWarning, match="np.deg2rad") as record:
        FanBeam(angles, Detector(3), 7, 12)
    assert len(record) == 1
    assert record[0].filename == __file__


@pytest.mark.parametrize(
    "angles",
    [
        np.linspace(0, 12 * np.pi, 8640),
        np.linspace(0, 2 * np.pi, 8, endpoint=False),
        np.arange(200) * np.pi * (3 - 5**0.5),
        np.arange(200) * np.deg2rad(111.24611797498108),
        (np.arange(200) * np.pi * (3 - 5**0.5)) % (2 * np.pi),
        np.array([-4.1, 0.7, 3.9]),
    ],
)
def test_radians_do_not_warn(angles: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ParallelBeam(angles, Detector(3))


@pytest.mark.parametrize("scan", ["fan", "cone"])
def test_a_detector_before_the_axis_warns_and_ends_its_rays(scan: str) -> None:
    # The source at y = -10, the detector at y = -2, a grid of ones from y = -3.5 on.
    fan = scan == "fan"
    with pytest.warns(UserWarning, match="between source and axis"):
        beam = (
            FanBeam([0.0], Detector(1), 10.0, 8.0)
            if fan
            else ConeBeam([0.0, 0.0], Detector((1, 1)), 10.0, np.array([12.0, 8.0]))
        )
    grid = Grid((8, 8) if fan else (8, 8, 8), center=0.5)
    found = Projector(beam, grid, precision="float64") @ np.ones(grid.shape)
    assert found.ravel()[-1] == pytest.approx(1.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FanBeam([0.0], Detector(1), 10.0, 10.0)  # on the axis: a virtual detector
