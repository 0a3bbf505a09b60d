"""Grids that cover what a scan sees: counts and centers by formula, what their ends receive."""

from __future__ import annotations

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
    field,
    truncation,
)
from linops.errors import GeometryError

T = np.arange(8) * np.pi / 4


def cone(v0: float = 0.0, rows: int = 7, a: float = 64, d: float = 128, **rest: Any) -> ConeBeam:
    return ConeBeam(T, Detector((rows, 32), 1.0, (v0, 0.0)), a, d, **rest)


def parallel(v0: float = 0.0) -> ParallelBeam:
    return ParallelBeam(T, Detector((7, 32), 1.0, (v0, 0.0)))


@pytest.mark.parametrize(
    ("geometry", "options", "slices", "center"),
    [
        (cone(), {}, 9, 0),
        (cone(1), {}, 9, 0.5),
        (cone(5), {}, 14, 1.75),
        (
            ConeBeam(np.linspace(-np.pi, np.pi, 8), Detector((7, 32)), 64, 128, advance=2.0),
            {},
            13,
            0,
        ),
        (parallel(), {}, 7, 0),
        (parallel(1), {}, 8, 0.5),
        (cone(rows=15, a=24, d=48), {}, 21, 0),
        (cone(rows=15, a=24, d=48), {"support": "box"}, 23, 0),
        (cone(), {"spacing": (1.45, 0.5, 0.5)}, 5, 0),
        (cone(), {"spacing": (0.5, 0.95, 0.5)}, 9, 0),
        (cone(), {"axial_padding": 0}, 7, 0),
        (cone(), {"axial_padding": 0.5}, 9, 0),
        (cone(), {"axial_padding": 3}, 11, 0),
        (cone(), {"axial_padding": (1, 0)}, 8, -0.25),
        (cone(), {"axial_padding": (0, 1)}, 8, 0.25),
    ],
)
def test_slices_and_center(geometry: Any, options: Any, slices: int, center: float) -> None:
    grid = Grid.for_geometry(geometry, **options)
    assert grid.shape[0] == slices
    assert grid.center == pytest.approx((center, 0, 0), abs=1e-12)
    # Asked again with what it chose, and from bare frames, it chooses the same.
    again = {**options, "spacing": grid.spacing}
    assert Grid.for_geometry(geometry, **again) == grid
    assert Grid.for_geometry(geometry.trajectory, **again).shape == grid.shape


def test_widths_and_default_spacing() -> None:
    assert Grid.for_geometry(cone()) == Grid((9, 32, 32), 0.5)
    assert Grid.for_geometry(parallel()).spacing == (1, 1, 1)
    assert Grid.for_geometry(cone(), (0.5, 0.95, 0.5)).shape == (9, 17, 32)
    fan = FanBeam(T, Detector(32, 0.8), 50, 100)
    assert Grid.for_geometry(fan) == Grid((32, 32), 0.4)
    # A detector shifted by half its width sees twice the field in a full turn.
    assert Grid.for_geometry(fan.with_detector(Detector(32, 0.8, 12.8))) == Grid((64, 64), 0.4)


@pytest.mark.parametrize("v0", [0.0, 1.0, -0.7])
def test_every_slice_that_a_ray_reaches_is_there_and_no_more(v0: float) -> None:
    views = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    beam = ConeBeam(views, Detector((20, 32), (0.35, 1.0), (v0, 0.0)), 24, 48)
    grid = Grid.for_geometry(beam)
    A = Projector(beam, grid, precision="float64")
    seen = (A.H @ np.ones(A.codomain.shape)).sum(axis=(1, 2))
    low, high = np.flatnonzero(seen)[[0, -1]]
    assert low == 0 and high == grid.shape[0] - 1
    longer = Grid((grid.shape[0] + 8, *grid.shape[1:]), grid.spacing, grid.center)
    inside = (np.hypot(*np.meshgrid(grid.coordinates("y"), grid.coordinates("x"))) <= 8).T
    x = np.zeros(longer.shape)
    x[:4], x[-4:] = inside, inside
    assert not (Projector(beam, longer, precision="float64") @ x).any()


def test_a_grid_larger_than_memory_warns_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field, "_memory", lambda: 4 * 9 * 32 * 32 - 1)
    with pytest.warns(UserWarning, match="36864 bytes") as record:
        Grid.for_geometry(cone())
    assert record[0].filename == __file__
    monkeypatch.setattr(field, "_memory", lambda: 4 * 9 * 32 * 32)
    Grid.for_geometry(cone())


@pytest.mark.slow
@pytest.mark.parametrize("model", ["siddon", "footprint"])
def test_objects_that_reach_the_edge_columns_are_told(model: str) -> None:
    angles = np.linspace(0, np.pi, 50, endpoint=False) + 0.01
    grid = Grid((40, 40))
    # A disc of radius 20 within 22 columns on each side; offsets push it over one edge.
    for offset, wanted in ((0.0, 0.0), (2.5, 1.0), (-2.5, 1.0)):
        A = Projector(ParallelBeam(angles, Detector(44, offset=offset)), grid, model=model)
        if wanted:
            with pytest.warns(UserWarning, match="edge columns in 100 % of the rows") as record:
                assert truncation(A) == wanted
            assert record[0].filename == __file__
        else:
            assert truncation(A) == wanted
    # One voxel whose shadow is at an edge in one view of 50: 2 %, and of 49, which is more.
    far = np.zeros((40, 40), bool)
    far[20, 39] = True
    turned = np.array([0.0, *(np.pi / 2 + np.linspace(-0.1, 0.1, 49))])
    A = Projector(ParallelBeam(turned, Detector(40)), grid, model=model)
    assert truncation(A, far) == 0.02
    with pytest.warns(UserWarning, match=r"2.04 %"):
        truncation(A.block("view", 0, 49), far)
    with pytest.raises(GeometryError, match="region"):
        truncation(A, "square")
    with pytest.raises(GeometryError, match="region"):
        truncation(A, np.ones((3, 40)))


@pytest.mark.parametrize(
    ("geometry", "options", "message"),
    [
        (cone(), {"axial_padding": -1}, "axial_padding"),
        (cone(), {"axial_padding": (1, 2, 3)}, "axial_padding"),
        (cone(), {"axial_padding": np.nan}, "axial_padding"),
        (cone(), {"spacing": 0}, "spacing"),
        (cone(), {"support": "disc"}, "support"),
        (T, {}, "geometry"),
        (
            Trajectory("fan", [(0, 5.0)], [(0, 9.0)], [(1.0, 0)], None, Detector(4)),
            {},
            "view 0: the axis",
        ),
    ],
)
def test_what_has_no_field_is_refused(geometry: Any, options: Any, message: str) -> None:
    with pytest.raises(GeometryError, match=message):
        Grid.for_geometry(geometry, **options)
