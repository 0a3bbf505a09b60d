"""Filtered backprojection against closed forms: weights, ramp, gather, discs that come out as 1."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geometries import Detector, FanBeam, Grid, ParallelBeam, Projector, Trajectory
from geometries.analytic.coverage import angular_weights, parker_weights
from geometries.analytic.gather import Gather
from geometries.analytic.ramp import RampFilter, ramp_response
from geometries.analytic.reconstruct import fbp, fbp_operator
from geometries.analytic.weights import AngularWeights, CosineWeights, ParkerWeights
from linops.errors import GeometryError, ShapeError
from linops.space import Space
from linops.testing import check_operator

TURN = 2 * np.pi


def scan(geometry: Any, grid: Grid, precision: str = "float64") -> Any:
    """What fbp reads of a projector."""
    return SimpleNamespace(geometry=geometry, grid=grid, precision=precision)


def chords(geometry: Any, radius: float, x0: float = 0.0, y0: float = 0.0) -> np.ndarray:
    """Line integrals of a disc of value 1, in closed form, for every ray."""
    frames = geometry.trajectory
    out = np.empty((frames.views, frames.detector.shape[-1]))
    for k in range(frames.views):
        P = frames.pixels(k)
        if frames.sources is None:
            e = np.broadcast_to(frames.directions[k], P.shape)
        else:
            e = P - frames.sources[k]
            e = e / np.linalg.norm(e, axis=1, keepdims=True)
        away = (P[:, 0] - x0) * e[:, 1] - (P[:, 1] - y0) * e[:, 0]
        out[k] = 2 * np.sqrt(np.maximum(radius**2 - away**2, 0))
    return out


def wave(shape: tuple[int, ...], phase: float = 0.0) -> np.ndarray:
    k = np.arange(np.prod(shape))
    return (np.sin(0.713 * k + phase) + 0.2 * np.cos(0.317 * k)).reshape(shape)


def uniform(kind: str) -> Trajectory:
    """The uniform scan: bare frames about a point off the origin, distances that drift."""
    k = np.arange(8)
    t, c = 0.17 + TURN * k / 8, np.array([0.19, -0.23])
    a, d = (6 + 0.13 * k)[:, None], (11 + 0.17 * k)[:, None]
    e_u, e_r = np.stack([np.cos(t), np.sin(t)], 1), np.stack([-np.sin(t), np.cos(t)], 1)
    detector = Detector(9, 0.71)
    if kind == "parallel":
        return Trajectory("parallel", e_r, c + 0.27 * e_u, e_u, None, detector)
    source = c - a * e_r
    return Trajectory("fan", source, source + d * e_r + 0.27 * e_u, e_u, None, detector)


def geometries(count: int = 9, views: int = 11) -> dict[str, Any]:
    t = 0.2 + TURN * np.arange(views) / views
    return {
        "parallel": ParallelBeam(t / 2, Detector(count, 0.9, 0.13)),
        "fan": FanBeam(t, Detector(count, 1.4, 0.13), 9.0, 14.0),
        "equiangular": FanBeam(t, Detector(count, 1.4, 0.13, 14.0), 9.0, 14.0),
        "short": FanBeam(0.7 * t, Detector(count, 1.4, -0.2), 20.0, 30.0),
        "frames": uniform("fan"),
    }


# --- right values ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "norm", "total", "value"),
    [
        ("parallel", 0.128533578624, 0.462637850753, 0.038100176000),
        ("fan", 0.209417703895, 0.344459571654, 0.058470024349),
    ],
)
@pytest.mark.parametrize("isocenter", [None, (0.19, -0.23)])
def test_reference_values(
    kind: str, norm: float, total: float, value: float, isocenter: Any
) -> None:
    image = fbp(scan(uniform(kind), Grid((3, 5), 0.53)), wave((8, 9)), isocenter=isocenter)
    found = (np.linalg.norm(image), image.sum(), image[1, 2])
    np.testing.assert_allclose(found, (norm, total, value), rtol=2e-11)


@pytest.mark.parametrize("kind", ["parallel", "fan"])
def test_lengths_in_another_unit_change_nothing(kind: str) -> None:
    t = TURN * np.arange(12) / 12

    def image(unit: float) -> np.ndarray:
        detector = Detector(9, 0.71 * unit, 0.1 * unit)
        beam: Any = (
            ParallelBeam(t, detector)
            if kind == "parallel"
            else FanBeam(t, detector, 6 * unit, 11 * unit)
        )
        return np.asarray(fbp(scan(beam, Grid((3, 5), 0.53 * unit)), wave((12, 9)) * unit))

    np.testing.assert_allclose(image(2.5), image(1.0), rtol=1e-12, atol=1e-13)


def test_two_opposite_views_need_an_isocentre() -> None:
    frames = FanBeam([0.0, np.pi], Detector(9), 16.0, 32.0).trajectory
    with pytest.raises(GeometryError, match="supply isocenter"):
        Gather(frames, Grid((3, 3)))
    one = Gather(frames[[0]], Grid((3, 3)), isocenter=(0, 0), precision="float64")
    assert (one @ np.ones((1, 9)))[1, 1] == pytest.approx(1 / np.pi, rel=1e-14)


def test_moving_everything_moves_nothing() -> None:
    move = np.array([3.1, -2.3])
    frames = uniform("fan")
    image = fbp(scan(frames, Grid((3, 5), 0.53)), wave((8, 9)))
    moved = scan(frames.transform(translation=move), Grid((3, 5), 0.53, tuple(move[::-1])))
    np.testing.assert_allclose(fbp(moved, wave((8, 9))), image, atol=1e-12)
    wide = fbp(scan(frames, Grid((9, 21), 0.53)), wave((8, 9)))
    shifted = Grid((9, 21), 0.53, (0.0, 8 * 0.53))
    again = fbp(scan(frames, shifted), wave((8, 9)))
    np.testing.assert_allclose(again[:, :-8], wide[:, 8:], atol=1e-12)


# --- discs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("degrees", [330, 350, 360])
def test_centred_disc_in_short_and_full_scans(degrees: float) -> None:
    t = 0.1 + np.deg2rad(degrees) * np.arange(720) / 720
    beam = FanBeam(t, Detector(256, 0.1), 20, 40)
    image = fbp(scan(beam, Grid((3, 3), 0.2)), chords(beam, 4))
    assert image[1, 1] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("degrees", [359.90, 359.92093, 359.925, 360])
def test_scans_a_hair_short_of_a_turn_keep_their_amplitude(degrees: float) -> None:
    t = np.linspace(0, np.deg2rad(degrees), 7200)
    beam = FanBeam(t, Detector(256, 0.1), 20, 40)
    image = fbp(scan(beam, Grid((1, 1), 0.2)), chords(beam, 4))
    assert image[0, 0] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("degrees", [220, 240, 300])
@pytest.mark.parametrize("radius", [None, 40.0])
def test_disc_off_centre_in_short_scans(degrees: float, radius: float | None) -> None:
    columns = 256 if radius is None else 257
    t = np.deg2rad(degrees) * np.arange(720) / 720
    beam = FanBeam(t, Detector(columns, 0.1, 0, radius), 20, 40)
    data = chords(beam, 2, 1.5, -1)

    def at(x: float, y: float, **options: Any) -> float:
        pixel = scan(beam, Grid((1, 1), 0.1, (y, x)))
        return float(fbp(pixel, data, **options)[0, 0])

    assert at(1.5, -1) == pytest.approx(1, abs=0.01)
    assert at(2.5, -1.5) == pytest.approx(1, abs=0.01)
    assert abs(at(-2, 2)) < 0.03
    # Without the weights lines count twice: the test above is one that can fail.
    assert at(1.5, -1, short_scan=False) > 1.1


@pytest.mark.parametrize("size", [64, 65])
@pytest.mark.parametrize("kind", ["parallel", "fan"])
def test_a_centred_disc_is_symmetric(size: int, kind: str) -> None:
    t = TURN * np.arange(90) / 90
    detector = Detector(size)
    beam: Any = ParallelBeam(t, detector) if kind == "parallel" else FanBeam(t, detector, 200, 300)
    data = chords(beam, 10)
    np.testing.assert_allclose(data, data[:, ::-1], atol=1e-6)
    image = fbp(scan(beam, Grid((size, size))), data)
    np.testing.assert_allclose(image, image[::-1, ::-1], atol=1e-6 * image.max())


@pytest.mark.parametrize("kind", ["parallel", "fan", "equiangular"])
def test_value_and_place_of_a_disc(kind: str) -> None:
    if kind == "parallel":
        beam: Any = ParallelBeam(np.pi * np.arange(180) / 180, Detector(96))
    else:
        curvature = 400.0 if kind == "equiangular" else None
        beam = FanBeam(TURN * np.arange(360) / 360, Detector(96, 2, 0, curvature), 200, 400)
    image = fbp(scan(beam, Grid((64, 64)), "fast"), chords(beam, 10, 8, -3).astype("float32"))
    assert image.dtype == np.float32
    y, x = np.meshgrid(np.arange(64) - 31.5, np.arange(64) - 31.5, indexing="ij")
    r = np.hypot(x - 8, y + 3)
    assert image[r < 8].mean() == pytest.approx(1, abs=0.01)
    assert image[(r > 14) & (np.hypot(x, y) < 32)].mean() == pytest.approx(0, abs=0.01)
    near = np.where(r < 14, image, 0)
    centre = (near * x).sum() / near.sum(), (near * y).sum() / near.sum()
    np.testing.assert_allclose(centre, (8, -3), atol=0.05)


@pytest.mark.parametrize("degrees", [180, 200, 270, 360, 540, 720])
def test_parallel_scans_of_any_span_keep_their_amplitude(degrees: float) -> None:
    t = np.deg2rad(degrees) * np.arange(360) / 360
    beam = ParallelBeam(t, Detector(96))
    image = fbp(scan(beam, Grid((64, 64))), chords(beam, 10, 8, -3))
    assert image[32 - 3, 32 + 8] == pytest.approx(1, abs=0.03)


def test_a_volume_with_aligned_rows_is_its_slices() -> None:
    t = np.pi * np.arange(24) / 24
    beam = ParallelBeam(t, Detector((3, 17), (0.7, 1.0), (0.1, 0.2)))
    flat = ParallelBeam(t, Detector(17, 1.0, 0.2))
    grid = Grid((3, 12, 14), (0.7, 1, 1), (0.1, 0, 0))
    y = wave((2, 24, 3, 17))
    volume = fbp(scan(beam, grid), y)
    assert volume.shape == (2, 3, 12, 14)
    slices = fbp(scan(flat, Grid((12, 14))), np.moveaxis(y, 2, 1))
    np.testing.assert_array_equal(volume, slices)
    with pytest.raises(GeometryError, match="rows coincide with the slices"):
        fbp(scan(beam, Grid((3, 12, 14))), y)


def test_the_constant_is_kept_and_rows_do_not_wrap() -> None:
    beam = ParallelBeam(np.pi * np.arange(360) / 360, Detector(128))
    data = chords(beam, 40)
    image = fbp(scan(beam, Grid((129, 129))), data)
    assert image[64, 64] == pytest.approx(1, abs=0.005)
    r = np.hypot(*np.meshgrid(np.arange(129) - 64, np.arange(129) - 64))
    assert abs(image[(r > 45) & (r < 60)].mean()) < 0.002


def test_truncated_rows_show_the_known_rim() -> None:
    beam = ParallelBeam([0.0], Detector(128))
    filtered = RampFilter(Space((1, 128), "float64")) @ chords(beam, 80)
    # The filter is that of 2 pi |f|; the figures are pi times that of |f|, so half of it.
    assert filtered[0, [63, 64]].mean() / 2 == pytest.approx(1.0677, abs=1e-3)
    assert filtered[0, -1] / 2 == pytest.approx(36.38, abs=0.01)
    wide = np.pad(chords(beam, 80), ((0, 0), (128, 128)), mode="edge")
    edge = RampFilter(Space((1, 384), "float64")) @ wide
    assert edge[0, [191, 192]].mean() / 2 == pytest.approx(0.7451, abs=1e-3)
    assert edge[0, 255] / 2 == pytest.approx(-1.777, abs=0.01)


def shepp_logan(size: int) -> np.ndarray:
    """The modified phantom, sampled at pixel centres; lengths in pixels."""
    y, x = np.meshgrid(*[(np.arange(size) - (size - 1) / 2) / (size / 2)] * 2, indexing="ij")
    image = np.zeros((size, size))
    for value, a, b, x0, y0, degrees in (
        (1.0, 0.69, 0.92, 0, 0, 0),
        (-0.8, 0.6624, 0.874, 0, -0.0184, 0),
        (-0.2, 0.11, 0.31, 0.22, 0, -18),
        (-0.2, 0.16, 0.41, -0.22, 0, 18),
        (0.1, 0.21, 0.25, 0, 0.35, 0),
        (0.1, 0.046, 0.046, 0, 0.1, 0),
        (0.1, 0.046, 0.046, 0, -0.1, 0),
        (0.1, 0.046, 0.023, -0.08, -0.605, 0),
        (0.1, 0.023, 0.023, 0, -0.606, 0),
        (0.1, 0.023, 0.046, 0.06, -0.605, 0),
    ):
        c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
        p, q = (x - x0) * c + (y - y0) * s, -(x - x0) * s + (y - y0) * c
        image += value * ((p / a) ** 2 + (q / b) ** 2 <= 1)
    return image


@pytest.mark.parametrize("kind", ["parallel", "fan"])
def test_shepp_logan_from_exact_chords(kind: str) -> None:
    t = TURN * np.arange(360) / 360
    beam: Any = (
        ParallelBeam(t, Detector(512))
        if kind == "parallel"
        else FanBeam(t, Detector(600), 500, 800)
    )
    A = Projector(beam, Grid((256, 256)))
    truth = shepp_logan(256).astype("float32")
    image = fbp(A, A @ truth, window="hann")
    assert np.sqrt(((image - truth) ** 2).mean()) < 0.1
    assert image.min() > -0.2
    assert image.max() < 1.5


@pytest.mark.parametrize("size", [15, 16])
def test_projector_and_reconstruction_agree_about_the_centre(size: int) -> None:
    # Impulses: the centroid of the squared image stays on the pixel, half a pixel would show.
    beam = ParallelBeam(np.pi * np.arange(180) / 180, Detector(3 * size, 0.5))
    A = Projector(beam, Grid((size, size)), precision="float64")
    for row, column in ((size // 2, size // 2), (size // 2, 4), (5, size // 2 + 1)):
        impulse = np.zeros((size, size))
        impulse[row, column] = 1
        part = fbp(A, A @ impulse)[row - 2 : row + 3, column - 2 : column + 3] ** 2
        k = np.arange(-2, 3)
        centre = (part.sum(1) @ k, part.sum(0) @ k) / part.sum()
        np.testing.assert_allclose(centre, 0, atol=0.02)


# --- angular weights and Parker's ----------------------------------------------------------


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
    # A wrong sign of gamma passes every centred test.
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


# --- the ramp ------------------------------------------------------------------------------


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


# --- operators ----------------------------------------------------------------------------


def operators(precision: str) -> dict[str, Any]:
    dtype = "float64" if precision == "float64" else "float32"
    found: dict[str, Any] = {}
    for name, beam in geometries().items():
        grid = Grid((7, 6), (1.1, 0.7), (0.2, -0.3))
        found[f"gather {name}"] = Gather(beam, grid, precision=precision)
        found[f"angular {name}"] = AngularWeights(beam, dtype=dtype)
        found[f"fbp {name}"] = fbp_operator(scan(beam, grid, precision))
        if name != "parallel":
            found[f"cosine {name}"] = CosineWeights(beam, dtype)
    found["parker"] = ParkerWeights(geometries()["short"], dtype=dtype)
    found["ramp"] = RampFilter(Space((2, 3, 7), dtype, ("view", "row", "col")), 0.6)
    aligned = ParallelBeam(np.pi * np.arange(6) / 6, Detector((2, 7)))
    found["gather volume"] = Gather(aligned, Grid((2, 5, 4)), precision=precision)
    return found


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", operators("float64"))
def test_adjoints_to_rounding(name: str, precision: str) -> None:
    A = operators(precision)[name]
    eps = np.finfo(A.dtype).eps
    generator = np.random.default_rng(5)

    def residual(x: np.ndarray, y: np.ndarray) -> float:
        Ax, Ay = (A @ x).astype(float), (A.H @ y).astype(float)
        left, right = (Ax * y).sum(dtype=float), (x * Ay).sum(dtype=float)
        scale = np.linalg.norm(Ax) * np.linalg.norm(y.astype(float))
        scale += np.linalg.norm(x.astype(float)) * np.linalg.norm(Ay)
        return 0.0 if scale == 0 else abs(left - right) / scale / eps

    for _ in range(3):
        x = generator.standard_normal(A.domain.shape).astype(A.dtype)
        y = generator.standard_normal(A.codomain.shape).astype(A.dtype)
        assert residual(x, y) <= 16
        assert residual(x, A @ x) <= 16
    for i in range(A.domain.size):
        e = np.zeros(A.domain.size, A.dtype)
        e[i] = 1
        e = e.reshape(A.domain.shape)
        assert residual(e, A @ e) <= 16
    for i in range(A.codomain.size):
        e = np.zeros(A.codomain.size, A.dtype)
        e[i] = 1
        e = e.reshape(A.codomain.shape)
        assert residual(A.H @ e, e) <= 16


@pytest.mark.parametrize(
    "name", ["gather fan", "gather volume", "fbp equiangular", "cosine frames", "parker", "ramp"]
)
def test_laws_of_operators(name: str) -> None:
    check_operator(operators("float32")[name])


@pytest.mark.parametrize("name", operators("float64"))
def test_blocks_obey_the_law(name: str) -> None:
    A = operators("float64")[name]
    x = wave(A.domain.shape)
    whole = A @ x
    for axis in A.rule.names:
        relation = str(A.rule.relation(axis))
        if relation == "whole":
            continue
        left = [a.name for a in A.rule.domain[0]]
        right = [a.name for a in A.rule.codomain[0]]
        n = (
            A.codomain.shape[right.index(axis)]
            if axis in right
            else (A.domain.shape[left.index(axis)])
        )
        for padded, cuts in ((False, (0, n // 3, n // 3, n)), (True, (-1, 1, n, n + 3))):
            total = []
            for start, stop in pairwise(cuts):
                block = A.block(axis, start, stop, padded=padded)
                part = x
                if axis in left:
                    k, planes = left.index(axis), np.arange(start, stop)
                    part = np.take(x, np.clip(planes, 0, n - 1), k)
                    inert = np.expand_dims(
                        (planes < 0) | (planes >= n), [i for i in range(x.ndim) if i != k]
                    )
                    part = np.where(inert, np.nan, part)
                total.append(block @ part)
            if axis in right:
                k = right.index(axis)
                joined = np.concatenate(total, axis=k)
                if padded:
                    outside = np.take(joined, [0, -1, -2, -3], k)
                    np.testing.assert_array_equal(outside, 0)
                    joined = np.take(joined, np.arange(1, n + 1), k)
            else:
                joined = sum(total)
            if relation == "contracted" or "fbp" in name:
                np.testing.assert_allclose(joined, whole, rtol=1e-12, atol=1e-13)
            else:
                np.testing.assert_array_equal(joined, whole)


def test_batches_strides_and_libraries() -> None:
    beam = geometries()["fan"]
    A = fbp_operator(scan(beam, Grid((7, 6))))
    y = wave((2, 3, 11, 9))
    images = A @ y
    assert images.shape == (2, 3, 7, 6)
    np.testing.assert_array_equal(images[1, 2], A @ y[1, 2])
    assert (A @ np.zeros((0, 11, 9))).shape == (0, 7, 6)
    assert (A.H @ np.zeros((0, 7, 6))).shape == (0, 11, 9)
    turned = np.ascontiguousarray(y[0, 0].T[::-1]).T[:, ::-1]
    np.testing.assert_array_equal(A @ turned, A @ y[0, 0])
    torch = pytest.importorskip("torch")
    again = A @ torch.tensor(y)
    assert isinstance(again, torch.Tensor)
    np.testing.assert_allclose(again.numpy(), images, atol=1e-14)


def test_views_in_any_order_give_the_same_image() -> None:
    beam = geometries()["fan"]
    y = wave((11, 9))
    order = np.random.default_rng(1).permutation(11)
    image = fbp(scan(beam, Grid((7, 6))), y)
    again = fbp(scan(beam[order], Grid((7, 6))), y[order])
    np.testing.assert_allclose(again, image, rtol=1e-12, atol=1e-14)


def test_threads_change_no_bit() -> None:
    from linops.compiled import pool

    beam = geometries(33, 20)["fan"]
    A = Gather(beam, Grid((40, 30)))
    y = wave((20, 33)).astype("float32")
    results = []
    for count in (1, 2, 3):
        with pool.limit(count, exceed=True):
            results.append(((A @ y).tobytes(), (A.H @ (A @ y)).tobytes()))
    assert len(set(results)) == 1


@given(st.integers(2, 33))
def test_the_image_has_the_shape_of_the_grid(size: int) -> None:
    beam = ParallelBeam(np.pi * np.arange(5) / 5, Detector(size))
    assert fbp(scan(beam, Grid((size, size))), wave((5, size))).shape == (size, size)


def test_axes_of_length_one_are_kept() -> None:
    beam = ParallelBeam([0.3], Detector((1, 2)))
    assert fbp(scan(beam, Grid((1, 1, 1))), np.ones((1, 1, 2))).shape == (1, 1, 1)


def test_nan_beside_the_field_of_view_stays_there() -> None:
    beam = ParallelBeam([0.0], Detector(9))
    y = np.ones((1, 9))
    y[0, -1] = np.nan
    image = Gather(beam, Grid((1, 30)), precision="float64") @ y
    assert np.isnan(image[0, 18]).all()
    np.testing.assert_array_equal(image[0, 20:], 0)


def test_responses_and_weights_can_be_replaced() -> None:
    beam = geometries()["fan"]
    y = wave((11, 9))
    A = scan(beam, Grid((7, 6)))
    image = fbp(A, y)
    same = fbp(A, y, filter_response=ramp_response(9, 1.4),
               angular_weights=angular_weights(beam.angles, TURN),
               projection_weights=np.ones((11, 9)), angles=beam.angles)  # fmt: skip
    np.testing.assert_allclose(same, image, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(fbp(A, y, projection_weights=np.full((11, 9), 2.0)), 2 * image)
    assert np.isfinite(fbp(A, y, angular_weights=np.zeros(11))).all()


# --- refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad": 1}, "pad"),
        ({"pad": 2.5}, "pad"),
        ({"pad": True}, "pad"),
        ({"window": "blackman"}, "window"),
        ({"filter_response": np.ones(9)}, "filter_response"),
        ({"angular_weights": np.ones(10)}, "AngularWeights"),
        ({"projection_weights": np.ones(9)}, "projection_weights"),
        ({"angles": np.zeros(3)}, "angles"),
        ({"short_scan": "yes"}, "short_scan"),
        ({"short_scan": None}, "short_scan"),
        ({"isocenter": (0, 0, 0)}, "isocenter"),
        ({"isocenter": (0, np.nan)}, "isocenter"),
        ({"isocenter": (0, 100.0)}, "view"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    A = scan(geometries()["fan"], Grid((7, 6)))
    with pytest.raises((GeometryError, ShapeError), match=message):
        fbp(A, wave((11, 9)), **options)


def test_a_single_column_is_refused() -> None:
    beam = ParallelBeam([0.0, 1.0], Detector(1))
    with pytest.raises(GeometryError, match="at least two detector bins"):
        fbp(scan(beam, Grid((2, 2))), np.ones((2, 1)))


def test_short_scans_that_parker_does_not_cover_are_refused() -> None:
    t = np.linspace(0, 4.0, 40)
    parallel = ParallelBeam(t, Detector(9))
    with pytest.raises(GeometryError, match="parallel"):
        fbp(scan(parallel, Grid((3, 3))), np.ones((40, 9)), short_scan=True)
    narrow = FanBeam(np.linspace(0, 3.0, 40), Detector(9), 20, 40)
    with pytest.raises(GeometryError, match=r"171\.89 degrees.*need 1"):
        fbp(scan(narrow, Grid((3, 3))), np.ones((40, 9)), short_scan=True)
    for a, d, word in (
        (20 + np.linspace(0, 0.6, 40), 40 + np.linspace(0, 0.6, 40), "radius|distance"),
        (20.0, 40 + np.linspace(0, 50, 40), "distance"),
    ):
        with pytest.raises(GeometryError, match=word):
            fbp(scan(FanBeam(t, Detector(9), a, d), Grid((3, 3))), np.ones((40, 9)),
                short_scan=True)  # fmt: skip


def test_other_curvatures_have_no_formula() -> None:
    beam = FanBeam([0.0, 1.0, 2.0], Detector(9, 1, 0, 50.0), 20, 40)
    with pytest.raises(GeometryError, match="equiangular"):
        fbp(scan(beam, Grid((3, 3))), np.ones((3, 9)))


def test_geometry_that_wants_a_gradient_is_refused() -> None:
    torch = pytest.importorskip("torch")
    beam = geometries()["fan"]
    angles = torch.tensor(beam.angles, requires_grad=True)
    with pytest.raises(GeometryError, match="geometry_operator"):
        fbp(scan(beam, Grid((7, 6))), wave((11, 9)), angles=angles)


# --- derivatives --------------------------------------------------------------------------


def test_gradients_in_data_filter_and_weights() -> None:
    """The result is linear in each of them: the gradient times its argument is the result."""
    torch = pytest.importorskip("torch")
    beam = geometries()["fan"]
    A = scan(beam, Grid((7, 6)))
    g = wave((7, 6), 0.3)
    leaves = {
        "filter_response": torch.tensor(ramp_response(9, 1.4)),
        "angular_weights": torch.tensor(angular_weights(beam.angles, TURN)),
        "projection_weights": torch.ones(11, 9, dtype=torch.float64),
    }
    y = torch.tensor(wave((11, 9)))
    for leaf in (y, *leaves.values()):
        leaf.requires_grad_(True)
    loss = (fbp(A, y, **leaves) * torch.tensor(g)).sum()
    loss.backward()
    np.testing.assert_allclose(y.grad.numpy(), fbp_operator(A).H @ g, atol=1e-14)
    for name, leaf in leaves.items():
        assert (leaf.grad * leaf).sum().item() == pytest.approx(loss.item(), rel=1e-12), name


def test_jax_compiles_and_differentiates() -> None:
    jax = pytest.importorskip("jax")
    A = fbp_operator(scan(geometries()["fan"], Grid((7, 6)), "float32"))
    y, g = wave((11, 9)).astype("float32"), wave((7, 6), 0.3).astype("float32")
    image = jax.jit(lambda v: A @ v)(jax.numpy.asarray(y))
    np.testing.assert_allclose(image, A @ y, rtol=1e-4, atol=1e-6)
    gradient = jax.grad(lambda v: ((A @ v) * g).sum())(jax.numpy.asarray(y))
    np.testing.assert_allclose(gradient, A.H @ g, rtol=1e-4, atol=1e-6)
