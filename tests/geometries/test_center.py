"""The rotation axis: found to a fraction of a column on scans whose axis is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, fbp
from geometries.scans.center import center_to_offset, find_center, offset_to_center, sweep_centers
from linops.errors import GeometryError, ShapeError

from .planar_scans import chords

DISCS = ((30, 5, -8, 1.0), (6, 20, 3, 1.0), (5, -12, 10, -0.6), (9, 0, -25, 0.5))


def sinogram(angles: np.ndarray, columns: int, center: float, noise: float = 0.0) -> np.ndarray:
    u = ParallelBeam([0.0], Detector(columns, 1.0, center_to_offset(center, columns)))
    t, u_j = angles[:, None], u.detector.columns()
    data = np.zeros((len(angles), columns))
    for radius, x0, y0, value in DISCS:
        s = u_j - x0 * np.cos(t) - y0 * np.sin(t)
        data += value * 2 * np.sqrt(np.maximum(radius**2 - s**2, 0))
    return data + noise * np.random.default_rng(0).standard_normal(data.shape)


@pytest.mark.parametrize("center", [70.0, 63.4, 80.7])
@pytest.mark.parametrize("span", [np.pi, 2 * np.pi])
def test_axis_of_half_and_full_turns(center: float, span: float) -> None:
    t = 0.3 + span * np.arange(120) / 120
    found = find_center(sinogram(t, 140, center, noise=0.3), t)
    assert found == pytest.approx(center, abs=0.3)


def test_odd_counts_odd_orders_and_rows() -> None:
    t = 2 * np.pi * np.arange(121) / 121
    order = np.random.default_rng(1).permutation(121)
    data = sinogram(t, 141, 74.2)[order]
    assert find_center(data, t[order]) == pytest.approx(74.2, abs=0.3)
    stack = np.stack([np.zeros_like(data), data], 1)
    assert find_center(stack, t[order], row=1) == pytest.approx(74.2, abs=0.3)


def test_a_full_turn_shows_an_axis_far_off_the_middle() -> None:
    t = 2 * np.pi * np.arange(120) / 120
    data = sinogram(t, 80, 68.25)
    assert find_center(data, t, search=(50, 79)) == pytest.approx(68.25, abs=0.1)


@pytest.mark.parametrize("views", [45, 46, 91])
def test_full_turns_with_both_ends_and_without_opposite_views(views: int) -> None:
    both = np.linspace(0, 2 * np.pi, views)
    uneven = 2 * np.pi * np.arange(views) / views + 0.02 * (np.arange(views) % 3)
    for t in (both, uneven):
        data = sinogram(t, 140, 66.6)
        assert find_center(data, t) == pytest.approx(66.6, abs=0.2)
        assert find_center(data, t, method="sharpness") == pytest.approx(66.6, abs=0.5)


def test_the_end_of_a_search_is_no_axis() -> None:
    for span, outside in ((np.pi, (80, 100)), (2 * np.pi, (80, 100)), (2 * np.pi, (40, 60))):
        t = span * np.arange(90) / 90
        with pytest.raises(GeometryError, match=f"between columns {outside[0]} and {outside[1]}"):
            find_center(sinogram(t, 140, 70.0), t, search=outside)


def test_views_of_a_quarter_turn_warn() -> None:
    t = np.pi / 2 * np.arange(60) / 60
    with pytest.warns(UserWarning, match="cover 89 degrees") as caught:
        find_center(sinogram(t, 140, 70.0), t)
    assert caught[0].filename == __file__


def test_both_methods_agree() -> None:
    t = 2 * np.pi * np.arange(120) / 120
    data = sinogram(t, 140, 66.6)
    assert find_center(data, t, method="mirror") == pytest.approx(66.6, abs=0.05)
    assert find_center(data, t, method="sharpness") == pytest.approx(66.6, abs=0.3)


def test_sweeps_pair_each_value_with_its_own_image() -> None:
    t = np.pi * np.arange(30) / 30
    data = sinogram(t, 80, 41.0)
    pairs = sweep_centers(data, t, [45.0, 41.0, 38.5], window="hann")
    assert [value for value, _ in pairs] == [45.0, 41.0, 38.5]
    for value, image in pairs:
        geometry = ParallelBeam(t, Detector(80, 1.0, center_to_offset(value, 80)))
        A: Any = SimpleNamespace(geometry=geometry, grid=Grid((80, 80)), precision="float32")
        np.testing.assert_array_equal(image, fbp(A, data.astype("float32"), window="hann"))


def test_offset_and_column() -> None:
    assert center_to_offset(296, 640) == 23.5
    assert offset_to_center(23.5, 640) == 296
    assert offset_to_center(center_to_offset(3.3, 8, 0.4), 8, 0.4) == pytest.approx(3.3)


def test_faulty_input_is_refused() -> None:
    t = np.pi * np.arange(30) / 30
    data = sinogram(t, 80, 41.0)
    with pytest.raises(ShapeError, match="29 entries"):
        find_center(data, t[1:])
    with pytest.raises(GeometryError, match="constant"):
        find_center(np.ones((30, 80)), t)
    with pytest.raises(GeometryError, match="search"):
        find_center(data, t, search=(50, 40))
    with pytest.raises(GeometryError, match="method"):
        find_center(data, t, method="vo")
    with pytest.raises(GeometryError, match="half a turn apart"):
        find_center(data, t, method="mirror")
    with pytest.raises(ShapeError, match="two views"):
        find_center(data[:, 0], t)
    data[3, 3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        find_center(data, t)


def fan(center: float, span: float, views: int, curvature: float | None = None) -> FanBeam:
    t = 0.3 + span * np.arange(views) / views
    offset = center_to_offset(center, 140, 1.5)
    return FanBeam(t, Detector(140, 1.5, offset, curvature), 200.0, 300.0)


def fan_sinogram(beam: FanBeam) -> np.ndarray:
    value = sum(v * chords(beam, r, x, y) for r, x, y, v in DISCS)
    return np.asarray(value + 0.3 * np.random.default_rng(0).standard_normal(np.shape(value)))


@pytest.mark.slow
@pytest.mark.parametrize(("span", "views"), [(2 * np.pi, 121), (2 * np.pi, 60), (4.4, 120)])
@pytest.mark.parametrize("curvature", [None, 300.0])
def test_axis_of_fans(span: float, views: int, curvature: float | None) -> None:
    for center in (63.4, 80.7):
        data = fan_sinogram(fan(center, span, views, curvature))
        # The offset of the scan that is handed over is not looked at.
        found = find_center(data, fan(70.0, span, views, curvature))
        assert found == pytest.approx(center, abs=0.05)


def test_the_axis_of_a_cone_is_found_in_the_plane_of_its_orbit() -> None:
    beam = fan(66.6, 2 * np.pi, 90)
    data = fan_sinogram(beam)
    stack = np.stack([np.zeros_like(data), data, np.ones_like(data)], 1)
    detector = Detector((3, 140), (2.0, 1.5), (0.0, 0.0))
    assert find_center(stack, ConeBeam(beam.angles, detector, 200.0, 300.0)) == pytest.approx(
        66.6, abs=0.05
    )
    low = ConeBeam(beam.angles, Detector((3, 140), (2.0, 1.5), (2.0, 0.0)), 200.0, 300.0)
    assert find_center(stack[:, [1, 0, 2]], low) == pytest.approx(66.6, abs=0.05)
    away = ConeBeam(beam.angles, Detector((3, 140), (2.0, 1.5), (8.0, 0.0)), 200.0, 300.0)
    with pytest.raises(GeometryError, match="row -3 of 3"):
        find_center(stack, away)
    helix = ConeBeam(beam.angles, detector, 200.0, 300.0, advance=1.0)
    with pytest.raises(GeometryError, match="helix"):
        find_center(stack, helix)


def test_fans_that_show_no_axis_are_refused() -> None:
    beam = fan(70.0, 3.0, 60)
    with pytest.raises(GeometryError, match="span 169 degrees"):
        find_center(fan_sinogram(beam), beam)
    whole = fan(70.0, 2 * np.pi, 60)
    with pytest.raises(GeometryError, match="parallel scans"):
        find_center(fan_sinogram(whole), whole, method="sharpness")
    with pytest.raises(ShapeError, match="80 columns"):
        find_center(np.ones((60, 80)), whole)


def test_a_sweep_of_a_fan_is_fbp_with_each_axis() -> None:
    beam = fan(66.6, 2 * np.pi, 30)
    data = fan_sinogram(beam)
    ((_, image),) = sweep_centers(data, fan(70.0, 2 * np.pi, 30), [66.6])
    A: Any = SimpleNamespace(geometry=beam, grid=Grid((140, 140)), precision="float32")
    np.testing.assert_allclose(image, fbp(A, data.astype("float32")), atol=1e-6)
