"""Factors of filtered backprojection against closed forms: weights of views, Parker's, ramps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geometries import Detector, FanBeam
from geometries.analytic.coverage import angular_weights, parker_weights
from geometries.analytic.ramp import RampFilter, ramp_response
from geometries.analytic.weights import CosineWeights, ParkerWeights
from linops.space import Space

from .planar_scans import TURN, geometries, wave

# --- angular weights and Parker's ------------------------------------------------------------


def test_angular_weights() -> None:
    full = angular_weights(TURN * np.arange(360) / 360)
    np.testing.assert_allclose(full, np.pi / 360, rtol=1e-12)
    third = angular_weights((TURN * np.arange(721) / 721)[::3])
    assert third.sum() == pytest.approx(np.pi, abs=1e-6)
    assert third[0] / third[1] == pytest.approx(2 / 3, rel=1e-9)
    closed = angular_weights(np.linspace(0, TURN, 721))
    assert closed.sum() == pytest.approx(np.pi, abs=1e-6)
    assert closed[0] / closed[1] == pytest.approx(0.5, rel=1e-9)
    part = angular_weights(np.linspace(0, 0.75 * np.pi, 11))
    assert part.sum() == pytest.approx(0.75 * np.pi, rel=1e-12)
    assert angular_weights([0.4]).tolist() == [np.pi]
    far = angular_weights(TURN * np.arange(360) / 360 + 1e6)
    np.testing.assert_allclose(far, full, atol=3e-6)


@given(st.permutations(range(13)), st.sampled_from([np.pi, TURN, 2 * TURN, 1.9]))
def test_weights_belong_to_views_not_to_their_order(order: list[int], span: float) -> None:
    t = span * np.arange(13) / 13
    np.testing.assert_allclose(angular_weights(t[order]), angular_weights(t)[order], atol=1e-12)


@pytest.mark.parametrize("degrees", [240, 330, 350])
def test_parker_weights_integrate_to_pi(degrees: float) -> None:
    t = np.linspace(0.3, 0.3 + np.deg2rad(degrees), 2049)
    w = parker_weights(t, Detector(64).columns(), 80)
    total = angular_weights(t, TURN) @ w
    np.testing.assert_allclose(total, np.pi, atol=2e-5)
    assert max(w[0].max(), w[-1].max()) < 1e-6


@pytest.mark.parametrize("degrees", [359.915, 359.95, 360])
@pytest.mark.parametrize("end", [True, False])
def test_parker_and_quadrature_agree_about_full_scans(degrees: float, end: bool) -> None:
    t = np.linspace(0.3, 0.3 + np.deg2rad(degrees), 7200, endpoint=end)
    w = parker_weights(t, Detector(64).columns(), 80)
    np.testing.assert_allclose(angular_weights(t, TURN) @ w, np.pi, atol=2e-5)


@pytest.mark.parametrize(("columns", "pitch"), [(60, 0.3), (20, 1.0)])
@given(seed=st.integers(0, 2**32 - 1))
def test_parker_weights_of_both_sights_of_a_line_add_to_one(
    columns: int, pitch: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    d = 15.0
    edge = columns / 2 * pitch
    fan = np.arctan(edge / d)
    span = np.pi + 2 * fan + generator.uniform(0, 0.3)
    gamma = generator.uniform(-fan, fan)
    t = generator.uniform(0, span)
    again = t + np.pi - 2 * gamma
    if again > span:
        return
    scan_angles = np.concatenate([[t, again], np.linspace(0, span, 400)])
    u = d * np.tan(np.array([-fan, gamma, -gamma, fan]))
    w = parker_weights(scan_angles, u, d)
    assert w[0, 1] + w[1, 2] == pytest.approx(1, abs=1e-6)


def test_parker_weights_follow_the_detector_offset() -> None:
    # A wrong sign of gamma passes every centered test.
    t = np.linspace(0, np.deg2rad(260), 101)
    beam = FanBeam(t, Detector(20, 0.5, 2.0), 20, 40)
    got = ParkerWeights(beam, dtype="float64") @ np.ones((101, 20))
    np.testing.assert_allclose(got, parker_weights(t, Detector(20, 0.5, 2.0).columns(), 40))
    assert not np.allclose(got, got[:, ::-1], atol=0.1)


def test_cosine_weights_are_the_angle_at_the_source() -> None:
    for name, beam in geometries().items():
        if name == "parallel":
            continue
        frames = beam.trajectory
        got = CosineWeights(beam, "float64") @ np.ones((beam.views, 9))
        for k in range(frames.views):
            ray = frames.pixels(k) - frames.sources[k]
            cosine = ray @ frames.normals[k] / np.linalg.norm(ray, axis=1)
            np.testing.assert_allclose(got[k], np.abs(cosine), rtol=1e-12)


# --- the ramp --------------------------------------------------------------------------------


def test_ramp_of_ones() -> None:
    filtered = RampFilter(Space((1, 128), "float64")) @ np.ones((1, 128))
    k = np.arange(1, 64, 2)
    expected = np.pi / 2 - 4 / np.pi * (1 / k**2.0).sum()
    assert expected == pytest.approx(0.009946374715814, abs=1e-14)
    np.testing.assert_allclose(filtered[0, [63, 64]], expected, atol=1e-13)


def test_ramp_of_a_gaussian() -> None:
    x = np.arange(257) - 128.0
    filtered = RampFilter(Space((1, 257), "float64")) @ np.exp(-(x**2) / 72)[None]
    f = np.linspace(0, 0.5, 20001)
    spectrum = 6 * np.sqrt(TURN) * np.exp(-2 * (np.pi * 6 * f) ** 2)
    exact = [2 * TURN * np.trapezoid(f * spectrum * np.cos(TURN * f * s), f) for s in x]
    assert np.sqrt(np.mean((filtered[0] - exact) ** 2)) < 1e-6


@pytest.mark.parametrize("columns", [2, 7, 12])
@pytest.mark.parametrize("pad", [2, 3])
def test_ramp_is_a_linear_convolution(columns: int, pad: int) -> None:
    y = wave((3, columns))
    k = np.arange(columns)[:, None] - np.arange(columns)
    with np.errstate(divide="ignore"):
        h = np.where(k % 2 == 1, -2 / (np.pi * k.astype(float) ** 2), 0.0)
    h[k == 0] = np.pi / 2
    got = RampFilter(Space(y.shape, "float64"), 0.4, pad=pad) @ y
    np.testing.assert_allclose(got, y @ h.T / 0.4, atol=1e-12)


@pytest.mark.parametrize(
    ("window", "formula"),
    [
        ("hann", lambda nu: 0.5 + 0.5 * np.cos(np.pi * nu)),
        ("hanning", lambda nu: 0.5 + 0.5 * np.cos(np.pi * nu)),
        ("hamming", lambda nu: 0.54 + 0.46 * np.cos(np.pi * nu)),
        ("cosine", lambda nu: np.cos(np.pi * nu / 2)),
        ("shepp-logan", lambda nu: np.sin(np.pi * nu / 2) / (np.pi * nu / 2)),
    ],
)
@pytest.mark.parametrize("columns", [8, 9])
def test_windows(window: str, formula: Any, columns: int) -> None:
    nu = np.arange(columns + 1) / columns
    ratio = ramp_response(columns, 0.3, window) / ramp_response(columns, 0.3)
    np.testing.assert_allclose(ratio[1:], formula(nu[1:]), atol=1e-12)
    assert ratio[0] == pytest.approx(1, abs=1e-12)
