"""What admission buys, what it costs, and that every way to a projector goes through it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from cell_matrix import cell_matrix

from geometries import (
    ConeBeam,
    Detector,
    FanBeam,
    Grid,
    ParallelBeam,
    Projector,
    Surface,
    Trajectory,
)
from geometries.admission import Admitted, admit
from linops.errors import GeometryError, ShapeError

ODD = {2: (5, 7), 3: (3, 5, 7)}
UNEVEN = {2: (1.5, 0.75), 3: (2.0, 1.5, 0.75)}


def along(way: tuple[float, ...], begin: float, end: float, cells: int = 1) -> Trajectory:
    """One view whose central ray runs from `begin` to `end` along a direction."""
    e = np.array(way) / np.linalg.norm(way)
    u = np.array([-e[1], e[0], 0.0][: len(e)])
    u /= np.linalg.norm(u)
    kind, v, shape = "fan", None, (cells,)
    if len(e) == 3:
        kind, v, shape = "cone", [np.cross(e, u)], (1, cells)
    return Trajectory(kind, [begin * e], [end * e], [u], v, Detector(shape))


@pytest.mark.slow
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize(
    ("begin", "end", "precisions"),
    [
        (-100, 100, ("float64", "fast")),
        (-1e7, 100, ("float64", "fast")),
        (-100, 1e7, ("float64", "fast")),
        (-1e15, 100, ("float64", "fast")),
        (-100, 1e15, ("float64", "fast")),
        (-1e6, 1e6, ("float64", "fast")),
    ],
)
def test_inside_the_guard_a_chord_is_right(
    dims: int, uneven: bool, begin: float, end: float, precisions: tuple[str, ...]
) -> None:
    shape, spacing = ODD[dims], UNEVEN[dims] if uneven else (1.0,) * dims
    dx = spacing[-1]
    expected = np.zeros(shape)
    expected[tuple(n // 2 for n in shape[:-1])] = dx
    for sign in (1, -1):
        way = (float(sign), 0.0, 0.0)[:dims]
        frames = along(way, begin * dx, end * dx)
        for precision in precisions:
            A = Projector(frames, Grid(shape, spacing), precision=precision)
            tolerance = 4e-5 if precision == "fast" else 2e-11
            x = np.full(shape, 1.25, A.dtype)
            np.testing.assert_allclose(np.ravel(A @ x), 1.25 * 7 * dx, rtol=tolerance)
            ones = np.ones(A.codomain.shape, A.dtype)
            np.testing.assert_allclose(A.H @ ones, expected, rtol=tolerance, atol=1e-300)
            tiles = [A.block("x", i, min(i + 2, 7)) @ x[..., i : i + 2] for i in (0, 2, 4, 6)]
            np.testing.assert_allclose(
                sum(tiles).ravel(), 1.25 * 7 * dx, rtol=max(tolerance, 2e-10)
            )


@pytest.mark.parametrize("way", [(1.0, 0.37), (1.0, 0.37, 0.19)])
def test_inside_the_guard_an_oblique_ray_is_right(way: tuple[float, ...]) -> None:
    frames, grid = along(way, -9e5, 9e5, cells=3), Grid(ODD[len(way)])
    matrix = cell_matrix(frames, grid)
    assert (matrix > 0).sum() > 20
    for precision, tolerance in (("float64", 2e-9), ("float32", 4e-5), ("fast", 4e-5)):
        dense = Projector(frames, grid, precision=precision).to_dense()
        np.testing.assert_allclose(dense, matrix, atol=tolerance)


def test_ends_that_merge_in_float32_are_served() -> None:
    frames = Trajectory(
        "fan", [(1e6, 0.0)], [(1e6 + 0.01, 1.0)], [(0.0, 1.0)], None, Detector(5)
    )  # fmt: skip
    grid = Grid((7, 7))
    for precision in ("fast", "float64"):
        y = Projector(frames, grid, precision=precision) @ np.ones((7, 7), "float32")
        np.testing.assert_array_equal(y, 0)


def test_float64_asks_for_distinct_finite_ends_alone() -> None:
    far = along((1.0, 0.37), -3e17, 2e18)
    assert admit(far, Grid((5, 7)), "float64").points > 0
    with pytest.raises(GeometryError, match="1e6 voxels"):
        admit(far, Grid((5, 7)), "float32")


@pytest.mark.parametrize("shape", [(5, 7), (29, 43), (509,)])
def test_a_flat_detector_costs_a_few_points_a_view(shape: tuple[int, ...]) -> None:
    views = np.linspace(0, 6, 11)
    build: Any = ConeBeam if len(shape) == 2 else FanBeam
    grid = Grid((4,) * (len(shape) + 1))
    for precision in ("fast", "float32", "float64"):
        for beam in (
            build(views, Detector(shape), 400, 800),
            ParallelBeam(views, Detector(shape)),
        ):
            done = admit(beam, grid, precision)
            assert isinstance(done, Admitted)
            assert 0 < done.points <= 8 * len(views)


def test_a_wide_fan_is_admitted_at_once() -> None:
    # Half a fan of 75 degrees: a walk over pixels, or their boxes, takes long or decides nothing.
    width = 2 * 100 * np.tan(np.deg2rad(75)) / 1024
    beam = ConeBeam(np.linspace(0, 6, 12), Detector((768, 1024), width), 50, 100)
    grid = Grid((64, 64, 64))
    best = np.inf
    for _ in range(5):
        start = time.process_time()
        admit(beam, grid, "fast")
        best = min(best, time.process_time() - start)
    assert best < 0.05


@pytest.mark.slow
def test_curved_detectors_are_checked_at_their_columns_and_surfaces_at_their_cells() -> None:
    views = np.linspace(0, 6, 11)
    round_ = ConeBeam(views, Detector((5, 7), 1.0, 0.0, 800.0), 400, 800)
    assert admit(round_, Grid((4, 4, 4)), "fast").points == 11 * (1 + 2 * 7)
    surface = Surface(lambda a, b, view: np.stack([a, b, 0 * a], -1))
    sampled = ConeBeam(views, Detector((5, 7), 1.0, 0.0, surface), 400, 800)
    assert admit(sampled, Grid((4, 4, 4)), "fast") == Admitted(11 * 35, 11 * 35)
    # Blocks are bounded, and do not depend on the grid or on how a projection is computed.
    large = Detector((500, 700), 1.0, 0.0, surface)
    many = admit(ConeBeam(views, large, 4000, 8000), Grid((4, 4, 4)), "fast")
    assert many.points == 11 * 350000 and many.largest_block == 350000


def test_one_far_column_of_a_cylinder_is_enough() -> None:
    # The cylinder turns towards the source, 2e6 away: its middle column is the nearest.
    def beam(radius: float) -> FanBeam:
        return FanBeam([0.0], Detector(3, 1e6, 0.0, radius), 2e6, 2e6)

    admit(beam(1e7), Grid((5, 7), 2.0), "fast")
    with pytest.raises(GeometryError, match="view 0.*1e6 voxels"):
        admit(beam(1e6), Grid((5, 7), 0.9), "fast")


def test_every_update_is_checked_and_the_next_valid_one_works() -> None:
    views = [0.0, 1.0, 2.0]
    A = Projector(FanBeam(views, Detector(5), 100, 200), Grid((5, 7)))
    x = np.ones((5, 7), "float32")
    before = A @ x
    for bad in (
        FanBeam(views, Detector(5), [100, 3e6, 100], 5e6),
        FanBeam(views, Detector(5, 3e38), 100, 200),
    ):
        with pytest.raises(GeometryError, match="view 1|overflows"):
            A.with_geometry(bad)
    for other in (
        FanBeam(views[:2], Detector(5), 100, 200),
        FanBeam(views, Detector(6), 100, 200),
        ParallelBeam(views, Detector(5)),
        ConeBeam(views, Detector((5, 5)), 100, 200),
    ):
        with pytest.raises(GeometryError, match="with_geometry"):
            A.with_geometry(other)
    np.testing.assert_array_equal(
        A.with_geometry(FanBeam(views, Detector(5), 100, 200)) @ x, before
    )


@pytest.mark.parametrize(
    ("source", "pitch"), [((0.0, -3e38), 3e38), ((0.0, -3e38), 1e38), ((0.0, -10.0), 3e38)]
)
def test_overflow_of_a_point_or_a_direction_is_refused(source: Any, pitch: float) -> None:
    frames = Trajectory("fan", [source], [(0.0, 5.0)], [(1.0, 0)], None, Detector(5, pitch))
    with pytest.raises(GeometryError, match="view 0.*float32"):
        Projector(frames, Grid((5, 7)))
    admit(frames, Grid((5, 7)), "float64")


def test_a_transposed_array_is_told_so_with_both_shapes() -> None:
    A = Projector(ParallelBeam([0.0, 1.0], Detector((3, 7))), Grid((3, 5, 7)))
    with pytest.raises(ShapeError) as volume:
        A @ np.zeros((7, 5, 3), "float32")
    with pytest.raises(ShapeError) as data:
        A.H @ np.zeros((3, 7, 2), "float32")
    assert "expects (z=3, y=5, x=7), got (7, 5, 3): axes z and x look swapped" in str(volume.value)
    assert "expects (view=2, row=3, col=7), got (3, 7, 2)" in str(data.value)
    assert "axes view, row, col look permuted" in str(data.value)
