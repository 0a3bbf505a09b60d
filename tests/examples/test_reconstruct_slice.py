"""The demo: its figures, its picture, and a user's own scan in every format it reads."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from geometries import Detector, FanBeam, Grid, ParallelBeam, Projector, shepp_logan

SCRIPT = Path(__file__).resolve().parent.parent.parent / "examples" / "reconstruct_slice.py"
ROW = re.compile(r"^(FBP|CGLS|SIRT|TV|VCD) +([\d.]+) +([\d.]+) +([\d.]*)", re.MULTILINE)
PLATEAU = 0.03


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reconstruct_slice", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def parallel() -> tuple[np.ndarray, np.ndarray]:
    """Line integrals in closed form of a disc of radius 12 at (3, -4), and the angles."""
    angles = np.arange(90) * (np.pi / 90)
    u = np.arange(48) - 23.5
    shadow = 3 * np.cos(angles) - 4 * np.sin(angles)
    half = np.clip(12.0**2 - (u - shadow[:, None]) ** 2, 0, None)
    return (PLATEAU * 2 * np.sqrt(half)).astype("float32"), angles


def rows(text: str) -> dict[str, list[float]]:
    return {m[1]: [float(word) for word in m.groups()[1:] if word] for m in ROW.finditer(text)}


@pytest.mark.slow
def test_the_demo_gives_five_images_that_beat_filtered_backprojection(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pydicom")
    picture = tmp_path / "picture.png"
    assert script.main(["--output", str(picture)]) == 0
    found = rows(capsys.readouterr().out)
    assert list(found) == ["FBP", "CGLS", "SIRT", "TV", "VCD"]
    rmse = {name: figures[1] for name, figures in found.items()}
    ssim = {name: figures[2] for name, figures in found.items()}
    for name in ("CGLS", "SIRT"):
        assert rmse[name] < 0.75 * rmse["FBP"] and ssim[name] > ssim["FBP"]
    for name in ("TV", "VCD"):
        assert rmse[name] < 0.55 * rmse["FBP"] and ssim[name] > 0.9
    from matplotlib.image import imread

    pixels = imread(picture)
    assert pixels.shape[0] > 600 and pixels.shape[1] > 1200 and pixels.std() > 0.1


def save_npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path.with_suffix(".npz"), **arrays)
    return path.with_suffix(".npz")


def as_npz(path: Path, y: np.ndarray, angles: np.ndarray) -> tuple[Path, list[str]]:
    return save_npz(path, projections=y, angles=angles), []


def as_npy(path: Path, y: np.ndarray, angles: np.ndarray) -> tuple[Path, list[str]]:
    np.save(path.with_suffix(".npy"), y)
    return path.with_suffix(".npy"), []  # half a turn is what a scan without angles means


def as_tiff(path: Path, y: np.ndarray, angles: np.ndarray) -> tuple[Path, list[str]]:
    pytest.importorskip("tifffile").imwrite(path.with_suffix(".tif"), y)
    np.savetxt(path.with_suffix(".txt"), np.rad2deg(angles))
    return path.with_suffix(".tif"), ["--angles", str(path.with_suffix(".txt"))]


def as_data_exchange(path: Path, y: np.ndarray, angles: np.ndarray) -> tuple[Path, list[str]]:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path.with_suffix(".h5"), "w") as file:
        file["exchange/data"] = (100 + 1000 * np.exp(-y[:, None])).astype("float32")
        file["exchange/data_white"] = np.full((2, 1, y.shape[1]), 1100, "float32")
        file["exchange/data_dark"] = np.full((2, 1, y.shape[1]), 100, "float32")
        file["exchange/theta"] = np.rad2deg(angles)
    return path.with_suffix(".h5"), []


@pytest.mark.parametrize("write", [as_npz, as_npy, as_tiff, as_data_exchange])
def test_own_scans_in_every_format_have_the_disc_where_it_is(
    script: ModuleType,
    parallel: tuple[np.ndarray, np.ndarray],
    tmp_path: Path,
    write: Callable[..., tuple[Path, list[str]]],
) -> None:
    file, flags = write(tmp_path / "scan", *parallel)
    task = script.measured(script.arguments(["--scan", str(file), *flags]))
    image = np.asarray(task.projector.H @ task.sinogram)
    assert image.shape == (48, 48)
    fbp = script.start(task) * task.scale
    y, x = np.indices(fbp.shape) - 23.5
    inside = (x - 3) ** 2 + (y + 4) ** 2 < 10**2
    assert abs(fbp[inside].mean() / PLATEAU - 1) < 0.01
    outside = (x - 3) ** 2 + (y + 4) ** 2 > 14**2
    assert abs(fbp[outside & (x**2 + y**2 < 23**2)].mean()) < 0.02 * PLATEAU


def test_fan_scan_reversed_and_shifted(script: ModuleType, tmp_path: Path) -> None:
    grid = Grid((32, 32), spacing=0.5)
    image = np.zeros((32, 32), "float32")
    image[6:14, 18:28] = PLATEAU
    degrees = np.arange(72) * 5.0
    beam = FanBeam(np.deg2rad(-degrees), Detector(64, 0.7, offset=0.9), 60.0, 110.0)
    y = Projector(beam, grid) @ image
    file = save_npz(tmp_path / "scan", sinogram=y / 0.25, theta_deg=degrees)
    flags = ["--scan", str(file), "--geometry", "fan", "--reverse", "--pitch", "0.7"]
    flags += ["--offset", "0.9", "--source-to-axis", "60", "--source-to-detector", "110"]
    flags += ["--size", "32", "--pixel", "0.5", "--gain", "0.25"]
    task = script.measured(script.arguments(flags))
    assert np.allclose(task.projector @ image, task.sinogram, atol=1e-5 * y.max())


def test_zero_and_negative_counts_stay_finite(script: ModuleType, tmp_path: Path) -> None:
    counts = np.full((8, 16), 500.0, "float32")
    counts[3, 5], counts[4, 6] = 0.0, -2.0
    file = save_npz(tmp_path / "scan", projections=counts)
    options = script.arguments(["--scan", str(file), "--flat", "1000"])
    with pytest.warns(RuntimeWarning, match="2 repaired"):
        task = script.measured(options)
    assert np.isfinite(task.sinogram).all()
    rest = np.ones(counts.shape, bool)
    rest[3, 5] = rest[4, 6] = False
    assert np.allclose(task.sinogram[rest], np.log(2), rtol=1e-6)
    assert (task.sinogram[~rest] > np.log(1000)).all()


@pytest.mark.slow
def test_five_methods_on_an_own_scan(
    script: ModuleType,
    parallel: tuple[np.ndarray, np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    noise = np.random.default_rng(0).normal(scale=0.02, size=parallel[0].shape)
    file, _ = as_npz(tmp_path / "scan", (parallel[0] + noise).astype("float32"), parallel[1])
    picture = tmp_path / "own.png"
    script.main(["--scan", str(file), "--output", str(picture)])
    found = rows(capsys.readouterr().out)
    assert len(found) == 5 and picture.stat().st_size > 10_000
    level = 0.02 * np.sqrt(parallel[0].size) / np.linalg.norm(parallel[0])
    for name in ("CGLS", "SIRT", "TV", "VCD"):
        assert 0.6 * level < found[name][1] < 1.4 * level


def test_noise_level_of_data_of_unknown_units(script: ModuleType) -> None:
    rng = np.random.default_rng(2)
    y = np.broadcast_to(np.linspace(0, 2, 200), (100, 200))
    weights = np.exp(-y)
    noisy = y + rng.normal(size=y.shape) * 0.05 / np.sqrt(weights)
    A = Projector(ParallelBeam(np.arange(100) * 0.03, Detector(200)), Grid((8, 8)))
    task = script.Task("", A, noisy, weights, 1.0, False)
    norm, inverse = script.noise_of(task)
    assert np.allclose(inverse * 0.05**2, weights, rtol=0.05)
    assert abs(norm / np.linalg.norm(noisy - y) - 1) < 0.05


def test_similarity_is_that_of_scikit_image(script: ModuleType) -> None:
    metrics = pytest.importorskip("skimage.metrics")
    rng = np.random.default_rng(3)
    truth = rng.normal(size=(40, 33)).cumsum(0).cumsum(1)
    image = truth + rng.normal(size=truth.shape)
    span = truth.max() - truth.min()
    expected = metrics.structural_similarity(image, truth, data_range=span, full=True)[1]
    got = script.similarity(image, truth)
    assert got == pytest.approx(expected[3:-3, 3:-3].mean(), rel=1e-10)
    assert script.similarity(truth, truth) == pytest.approx(1)


def test_without_pydicom_the_demo_scans_a_phantom(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pydicom", None)
    task = script.simulated(1e6, 24, 0)
    water = shepp_logan().scaled(42.0).image(task.projector.grid)
    assert np.array_equal(task.truth, water)
    # Photons that four rays of a cell add up, and the chord through its middle.
    lines = script.WATER * (task.projector @ water)
    assert np.abs(task.sinogram - lines).mean() < 0.02 * lines.max()
