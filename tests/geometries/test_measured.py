"""Measured scans: the gold values of the shared data's README, which fix every sign."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from geometries import Detector, FanBeam, Grid, ParallelBeam, Projector, fbp
from geometries.scans.center import find_center, sweep_centers
from geometries.scans.files import load_scan


def tooth(shared_data: Path) -> tuple[np.ndarray, np.ndarray]:
    scan = load_scan(shared_data / "parallel_tooth_aps.npz")
    assert scan.angles is not None
    result = scan.line_integrals()
    assert (result.repaired, result.dead) == (0, 0)
    return np.asarray(result.data), scan.angles


def on_disc(image: np.ndarray, radius: float) -> np.ndarray:
    y, x = (np.arange(n) - (n - 1) / 2 for n in image.shape)
    return image[y[:, None] ** 2 + x**2 < radius**2].astype(float)


def test_tooth_line_integrals(shared_data: Path) -> None:
    data, _ = tooth(shared_data)
    assert data.shape == (181, 2, 640)
    assert data.min() == pytest.approx(-0.098, abs=5e-4)
    assert data.max() == pytest.approx(1.954, abs=5e-4)
    mass = data.sum(axis=2, dtype=float)
    assert (mass.std(axis=0) / mass.mean(axis=0)).max() < 0.0035


@pytest.mark.parametrize("row", [0, 1])
def test_tooth_axis(shared_data: Path, row: int) -> None:
    data, angles = tooth(shared_data)
    assert find_center(data, angles, row=row) == pytest.approx(296, abs=1)


@pytest.mark.parametrize("every", [1, 5])
def test_tooth_axis_of_a_full_turn_without_opposite_views(shared_data: Path, every: int) -> None:
    # Every second view as the scanner would see it half a turn later: mirrored about column 296.
    data, angles = tooth(shared_data)
    rows, t = data[::every, 0, :593], angles[::every]
    turn = np.concatenate([rows[::2], rows[1::2, ::-1]])
    found = find_center(turn, np.concatenate([t[::2], t[1::2] + np.pi]))
    assert found == pytest.approx(296, abs=1)


def test_tooth_axis_of_few_views(shared_data: Path) -> None:
    data, angles = tooth(shared_data)
    assert find_center(data[::20, 0], angles[::20]) == pytest.approx(296, abs=3)


@pytest.mark.slow
def test_tooth_sharpness_by_axis(shared_data: Path) -> None:
    data, angles = tooth(shared_data)
    gold = {290: 0.0197, 293: 0.0162, 295: 0.0142, 296: 0.0138, 297: 0.0143, 299: 0.0163,
            302: 0.0198, 319.5: 0.0434}  # fmt: skip
    for center, image in sweep_centers(data, angles, gold, row=0):
        f = on_disc(image, 280)
        energy = (f[f < 0] ** 2).sum() / (f**2).sum()
        assert energy == pytest.approx(gold[center], rel=0.05), center


def test_tooth_enamel_and_slices(shared_data: Path) -> None:
    data, angles = tooth(shared_data)
    beam = ParallelBeam(angles, Detector((2, 640), offset=(0, 23.5)))
    A = Projector(beam, Grid((2, 640, 640)), precision="float32")
    volume = fbp(A, data)
    f = on_disc(volume[0], 280)
    enamel = np.median(f[f > 0.7 * np.percentile(f, 99.5)])
    assert enamel == pytest.approx(0.00773, rel=0.02)
    flat = Projector(ParallelBeam(angles, Detector(640, offset=23.5)), Grid((640, 640)),
                     precision="float32")  # fmt: skip
    np.testing.assert_array_equal(volume[1], fbp(flat, data[:, 1]))


def walnut(shared_data: Path, sign: float, u0: float) -> np.ndarray:
    scan = load_scan(shared_data / "fan_walnut_fips.npz")
    assert scan.angles is not None
    extra = scan.extra
    detector = Detector(328, float(extra["det_pitch_mm"]), u0)
    beam = FanBeam(sign * scan.angles, detector, float(extra["sod_mm"]), float(extra["sdd_mm"]))
    A = SimpleNamespace(geometry=beam, grid=Grid((256, 256), 42 / 256), precision="float64")
    weights = np.full(120, np.pi / 120)
    image = fbp(A, scan.projections / 65535.0)
    np.testing.assert_allclose(fbp(A, scan.projections / 65535.0, angular_weights=weights), image,
                               atol=1e-12)  # fmt: skip
    return np.asarray(image)


@pytest.mark.parametrize(
    ("sign", "u0", "kurtosis"),
    [(-1, 0.27, 4.699), (-1, 0, 4.624), (-1, -0.27, 4.452), (1, 0.27, 3.909), (1, 0, 3.889),
     (1, -0.27, 3.897)],
)  # fmt: skip
def test_walnut_kurtosis(shared_data: Path, sign: float, u0: float, kurtosis: float) -> None:
    f = walnut(shared_data, sign, u0)
    assert (f**4).mean() / (f**2).mean() ** 2 == pytest.approx(kurtosis, abs=0.02)


def test_walnut_orientation(shared_data: Path) -> None:
    transform = pytest.importorskip("skimage.transform")
    with np.load(shared_data / "fan_walnut_fips.npz") as archive:
        reference = transform.resize(
            archive["reference_u16"].astype(float), (256, 256), anti_aliasing=True
        )
    image = walnut(shared_data, -1, 0.27)

    def likeness(a: np.ndarray) -> float:
        return float(np.corrcoef(a.ravel(), reference.ravel())[0, 1])

    assert likeness(image) == pytest.approx(0.952, abs=0.005)
    assert likeness(image[::-1]) < 0.53
    assert likeness(image[:, ::-1]) < 0.53


def disc(shared_data: Path) -> tuple[Any, np.ndarray, np.ndarray, float]:
    scan = load_scan(shared_data / "fan_htc2022_solid_disc_30deg.npz")
    extra = scan.extra
    pixel = float(extra["recon_pixel_mm"])
    beam = FanBeam(
        scan.angles,
        Detector(560, float(extra["det_pitch_mm"])),
        float(extra["sod_mm"]),
        float(extra["sdd_mm"]),
    )
    image = extra["full_scan_fbp"][::-1] / pixel
    return beam, scan.projections, image, pixel


def test_disc_length_and_position(shared_data: Path) -> None:
    beam, data, image, pixel = disc(shared_data)
    plateau = np.median(on_disc(image, 50))
    assert plateau == pytest.approx(0.0284, abs=2e-4)
    inside = image > plateau / 2
    assert 2 * np.sqrt(inside.sum() * pixel**2 / np.pi) == pytest.approx(69.78, abs=0.05)
    place = (np.arange(512) - 255.5) * pixel
    x0, y0 = (float((inside.sum(axis) * place).sum() / inside.sum()) for axis in (0, 1))
    np.testing.assert_allclose((x0, y0), (-0.183, -0.406), atol=0.01)
    u = beam.detector.columns()
    for k in range(beam.views):
        lit = data[k] > 0.3 * data.max()
        edges = []
        for i in (np.flatnonzero(lit)[0], np.flatnonzero(lit)[-1] + 1):
            a, b = data[k, i - 1], data[k, i]
            edges.append(u[i - 1] + (0.3 * data.max() - a) / (b - a) * (u[i] - u[i - 1]))
        middle = np.arctan(np.array(edges) / 553.74).mean() * 553.74
        t = beam.angles[k]
        depth = 410.66 - x0 * np.sin(t) + y0 * np.cos(t)
        shadow = 553.74 * (x0 * np.cos(t) + y0 * np.sin(t)) / depth
        assert abs(middle - shadow) < 0.1


def test_disc_absolute_value(shared_data: Path) -> None:
    beam, data, image, pixel = disc(shared_data)
    A = Projector(beam, Grid((512, 512), pixel), precision="float64")
    y = A @ np.clip(image, 0, None).astype(float)
    factor = (y * data).sum() / (y * y).sum()
    assert factor == pytest.approx(0.984, abs=0.005)
    size = np.linalg.norm(data)
    assert np.linalg.norm(factor * y - data) / size == pytest.approx(0.031, abs=0.001)
    assert np.linalg.norm(y - data) / size == pytest.approx(0.035, abs=0.001)


def test_spine_in_hounsfield_units(shared_data: Path) -> None:
    with np.load(shared_data / "ct_spine_hu.npz") as archive:
        hu, pixel = archive["hu"].astype(float), float(archive["pixel_mm"][0])
    mu = 0.0195 * (1 + hu / 1000)
    beam = ParallelBeam(np.pi * np.arange(180) / 180, Detector(192, pixel))
    A = Projector(beam, Grid((128, 128), pixel), precision="float64")
    found = (fbp(A, A @ mu) / 0.0195 - 1) * 1000
    error = on_disc(found - hu, 60)
    assert np.sqrt((error**2).mean()) == pytest.approx(12.5, abs=0.5)
    assert abs(error.mean()) < 0.5
