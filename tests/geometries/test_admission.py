"""What float32 can trace: distances in voxels, ranges of pitch, overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector, Trajectory
from geometries.admission import admit, pitch_limit
from linops import arrays
from linops.errors import GeometryError

GRID = Grid((3, 5))


def fan(sources: Any, centers: Any) -> Trajectory:
    sources, centers = np.atleast_2d(sources), np.atleast_2d(centers)
    ray = centers - sources
    ray = ray / np.linalg.norm(ray, axis=1, keepdims=True)
    u = np.stack([-ray[:, 1], ray[:, 0]], 1)
    return Trajectory("fan", sources, centers, u, None, Detector(5))


@pytest.mark.parametrize(
    ("sources", "centers", "grid"),
    [
        ((-1e6, 0), (1e6, 0), GRID),
        ((1e7, 0), (100, 0), GRID),
        ([(1e7, 0), (100, 0)], [(100, 0), (1e7, 0)], GRID),
        ((1.5e6, 0), (-1.5e6, 0), Grid((3, 5), 2.0)),
        ((1.5e6 + 3e6, 0), (-1e6 + 3e6, 0), Grid((3, 5), center=(0, 3e6))),
        ((0.2, 0), (1, 0), GRID),
    ],
)
def test_near_ends_are_admitted(sources: Any, centers: Any, grid: Grid) -> None:
    admit(fan(sources, centers), grid, "fast")


@pytest.mark.parametrize(
    ("sources", "centers", "bound"),
    [
        ((-1.5e6, 0), (1.5e6, 0), "1e6 voxels"),
        ((8e5, 8e5), (-8e5, -8e5), "1e6 voxels"),
        ((1.5e6, 0), (1.5e6 + 40, 0), "1e6 voxels"),
        ((-2e15, 0), (100, 0), "1e15 voxels"),
    ],
)
def test_far_ends_are_refused_in_float32_alone(sources: Any, centers: Any, bound: str) -> None:
    for precision in ("fast", "float32"):
        with pytest.raises(GeometryError, match=f"view 0.*{bound}.*precision='float64'"):
            admit(fan(sources, centers), GRID, precision)
    admit(fan(sources, centers), GRID, "float64")


def test_the_view_is_named() -> None:
    with pytest.raises(GeometryError, match="view 1"):
        admit(fan([(10, 0), (2e6, 0)], [(-10, 0), (-2e6, 0)]), GRID, "fast")


def test_parallel_beams_have_no_such_limit() -> None:
    frames = Trajectory("parallel", [(0, 1.0)], [(2e15, 0)], [(1.0, 0)], None, Detector(5))
    admit(frames, GRID, "fast")


def test_overflow_of_a_cell_is_refused() -> None:
    frames = Trajectory("parallel", [(0, 1.0)], [(0.0, 0)], [(1.0, 0)], None, Detector(5, 3e38))
    with pytest.raises(GeometryError, match="overflows float32"):
        admit(frames, GRID, "float32")
    admit(frames, GRID, "float64")


def test_dimensions_must_agree() -> None:
    with pytest.raises(GeometryError, match="dimensions"):
        admit(ParallelBeam([0.0], Detector(5)), Grid((2, 3, 4)), "fast")
    with pytest.raises(GeometryError, match="geometry is"):
        admit([0.0], GRID, "fast")


def test_admission_walks_no_pixel() -> None:
    # A detector of 10^10 cells: any walk over them would take minutes.
    cone = ConeBeam(np.linspace(0, 1, 12), Detector((10**5, 10**5), 1e-4), 100, 200)
    admit(cone, Grid((4, 4, 4)), "fast")


def test_a_curved_detector_is_admitted() -> None:
    admit(FanBeam([0.0, 1.0], Detector(64, 1.0, 0, 200.0), 100, 200), GRID, "fast")


@pytest.mark.parametrize(
    ("spacing", "word"),
    [
        ((1.0, 1e4), None),
        ((1.0, 10001.0), "ratio"),
        ((0.999e-6, 1e-6), "range"),
        ((1e6, 1.001e6), "range"),
        ((1e-6, 1e-6 * 9000), None),
        (1e-9, None),
        (1e9, None),
    ],
)
def test_unequal_pitches_have_bounds_in_float32(spacing: Any, word: str | None) -> None:
    reason = pitch_limit(Grid((3, 5), spacing), "fast")
    assert (reason is None) if word is None else (word in str(reason))
    assert pitch_limit(Grid((3, 5), spacing), "float64") is None


@pytest.mark.slow
def test_frames_on_a_device_are_read_once_and_go_there_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jax = pytest.importorskip("jax")
    reads, staged = [], []
    angles, x = jax.numpy.asarray([0.1, 0.9, 2.0]), jax.numpy.ones((4, 4, 4))
    to_numpy, convert = arrays.to_numpy, arrays.convert
    value = type(x)._value

    def read(array: Any) -> Any:
        if arrays.is_jax(array):
            reads.append(array.shape)
        return to_numpy(array)

    def moved(array: Any, like: Any) -> Any:
        if arrays.is_jax(like) and not arrays.is_jax(array) and array.size:
            staged.append(array.shape)
        return convert(array, like)

    monkeypatch.setattr(arrays, "to_numpy", read)
    monkeypatch.setattr(arrays, "convert", moved)
    monkeypatch.setattr(
        type(x), "_value", property(lambda a: reads.append(a.shape) or value.fget(a))
    )
    cone = ConeBeam(angles, Detector((3, 5)), 10.0, 20.0)
    A = Projector(cone, Grid((4, 4, 4)), backend="portable")
    assert len(reads) <= 6
    assert reads.count((3, 3)) <= 4  # source, center, u, v
    before = len(reads)
    A @ x
    staged.clear()
    A @ x
    assert len(reads) == before
    assert not staged
