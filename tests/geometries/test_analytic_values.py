"""Filtered backprojection against closed forms: values, places, discs that come out as 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from geometries import Detector, FanBeam, Grid, ParallelBeam, Projector, Trajectory
from geometries.analytic.gather import Gather
from geometries.analytic.ramp import RampFilter
from geometries.analytic.reconstruct import fbp
from linops.errors import GeometryError
from linops.space import Space

from .planar_scans import TURN, chords, scan, uniform, wave

# --- right values ----------------------------------------------------------------------------


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


def test_two_opposite_views_need_an_isocenter() -> None:
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
def test_centered_disc_in_short_and_full_scans(degrees: float) -> None:
    t = 0.1 + np.deg2rad(degrees) * np.arange(720) / 720
    beam = FanBeam(t, Detector(256, 0.1), 20, 40)
    image = fbp(scan(beam, Grid((3, 3), 0.2)), chords(beam, 4))
    assert image[1, 1] == pytest.approx(1, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [359.90, 359.92093, 359.925, 360])
def test_scans_a_hair_short_of_a_turn_keep_their_amplitude(degrees: float) -> None:
    t = np.linspace(0, np.deg2rad(degrees), 7200)
    beam = FanBeam(t, Detector(256, 0.1), 20, 40)
    image = fbp(scan(beam, Grid((1, 1), 0.2)), chords(beam, 4))
    assert image[0, 0] == pytest.approx(1, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("degrees", [220, 240, 300])
@pytest.mark.parametrize("radius", [None, 40.0])
def test_disc_off_center_in_short_scans(degrees: float, radius: float | None) -> None:
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
def test_a_centered_disc_is_symmetric(size: int, kind: str) -> None:
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
    center = (near * x).sum() / near.sum(), (near * y).sum() / near.sum()
    np.testing.assert_allclose(center, (8, -3), atol=0.05)


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
        Gather(beam, Grid((3, 12, 14)))


def test_a_detector_a_little_aslant_within_the_slices_is_taken_slice_by_slice() -> None:
    t = np.pi * np.arange(24) / 24
    upright = ParallelBeam(t, Detector((3, 17))).trajectory
    u = np.stack([np.cos(t + 5e-5), np.sin(t + 5e-5), np.zeros(24)], 1)
    beam = Trajectory(
        "parallel", upright.directions, upright.centers, u, upright.v, upright.detector
    )
    flat = Trajectory(
        "parallel", beam.directions[:, :2], beam.centers[:, :2], u[:, :2], None, Detector(17)
    )
    y = wave((24, 3, 17))
    image: Any = fbp(scan(flat, Grid((12, 14))), np.moveaxis(y, 1, 0))
    np.testing.assert_array_equal(fbp(scan(beam, Grid((3, 12, 14))), y), image)


@pytest.mark.parametrize("turned", [1.0, -1.0])
def test_slices_between_rows_are_interpolated(turned: float) -> None:
    t = np.pi * np.arange(24) / 24
    frames = ParallelBeam(t, Detector((4, 17), (0.7, 1.0), (0.1, 0.2))).trajectory
    y = wave((24, 4, 17))
    upright = Grid((4, 12, 14), (0.7, 1, 1), (0.1, 0, 0))
    rows = fbp(scan(ParallelBeam(t, frames.detector), upright), y)
    beam: Any = frames
    if turned < 0:
        # Rows that run down: the same cells, read the other way round.
        flipped = Detector((4, 17), (0.7, 1.0), (-0.1, 0.2))
        beam = Trajectory(
            "parallel", frames.directions, frames.centers, frames.u, -frames.v, flipped
        )
        y = y[:, ::-1]
    # Slices at 1/4 and 5/8 of the way from row 1 to row 2, and one beyond the last row.
    z = 0.1 - 0.35 + 0.7 * np.array([0.25, 0.625])
    between = Grid((2, 12, 14), (float(z[1] - z[0]), 1, 1), (float(z.mean()), 0, 0))
    found = fbp(scan(beam, between), y)
    for image, share in zip(found, (0.25, 0.625), strict=True):
        np.testing.assert_allclose(image, (1 - share) * rows[1] + share * rows[2], atol=1e-12)
    assert not np.any(fbp(scan(beam, Grid((1, 12, 14), 1.0, (3.0, 0, 0))), y))


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
    """The modified phantom, sampled at pixel centers; lengths in pixels."""
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
def test_projector_and_reconstruction_agree_about_the_center(size: int) -> None:
    # Impulses: the centroid of the squared image stays on the pixel, half a pixel would show.
    beam = ParallelBeam(np.pi * np.arange(180) / 180, Detector(3 * size, 0.5))
    A = Projector(beam, Grid((size, size)), precision="float64")
    for row, column in ((size // 2, size // 2), (size // 2, 4), (5, size // 2 + 1)):
        impulse = np.zeros((size, size))
        impulse[row, column] = 1
        part = fbp(A, A @ impulse)[row - 2 : row + 3, column - 2 : column + 3] ** 2
        k = np.arange(-2, 3)
        center = (part.sum(1) @ k, part.sum(0) @ k) / part.sum()
        np.testing.assert_allclose(center, 0, atol=0.02)
