"""Grid and Detector: coordinates from their formulas, and what is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from geometries import Detector, Grid
from linops.errors import GeometryError


def test_cells_and_columns_have_their_centers_where_the_formula_says() -> None:
    assert Detector(4).columns().tolist() == [-1.5, -0.5, 0.5, 1.5]
    assert Detector(5).columns().tolist() == [-2, -1, 0, 1, 2]
    detector = Detector((2, 3), pitch=(2, 0.5), offset=(1, -1))
    assert detector.rows().tolist() == [0, 2]
    assert detector.columns().tolist() == [-1.5, -1, -0.5]
    grid = Grid((2, 3, 4), spacing=(3, 2, 1), center=(10, 20, 30))
    assert grid.coordinates("z").tolist() == [8.5, 11.5]
    assert grid.coordinates("y").tolist() == [18, 20, 22]
    assert grid.coordinates(2).tolist() == [28.5, 29.5, 30.5, 31.5]
    assert grid.extent == (6, 6, 4)


def test_a_number_and_equal_numbers_are_the_same_grid() -> None:
    assert Grid((3, 4), 0.7) == Grid((3, 4), (0.7, 0.7))
    assert hash(Grid((3, 4), 0.7)) == hash(Grid((3, 4), (0.7, 0.7)))
    assert pickle.loads(pickle.dumps(Detector((2, 3), curvature=4))) == Detector((2, 3), 1, 0, 4.0)


def test_a_space_carries_names_and_spacing() -> None:
    space = Grid((2, 3), (0.5, 0.25)).space("float64")
    assert (space.shape, space.axes, space.spacing) == ((2, 3), ("y", "x"), (0.5, 0.25))


@pytest.mark.parametrize("radius", [4.0, 1e3])
def test_columns_of_a_cylinder_keep_arc_length_and_radius(radius: float) -> None:
    detector = Detector(9, pitch=0.8, offset=0.3, curvature=radius)
    along, depth = detector.column_offsets()
    np.testing.assert_allclose(np.hypot(along, depth + radius), radius, rtol=1e-14)
    np.testing.assert_allclose(
        radius * np.arctan2(along, depth + radius), detector.columns(), atol=1e-13 * radius
    )


@pytest.mark.parametrize(
    "spacing", [0, -1, np.nan, np.inf, True, (1,), (1, 2, 3), (1, 0), (np.nan, 1), "1", None, 1j]
)
def test_bad_spacing_and_pitch_are_refused(spacing: object) -> None:
    with pytest.raises(GeometryError, match="spacing"):
        Grid((3, 4), spacing)  # type: ignore[arg-type]
    with pytest.raises(GeometryError, match="pitch"):
        Detector((3, 4), spacing)  # type: ignore[arg-type]


def test_two_numbers_do_not_serve_three_axes() -> None:
    with pytest.raises(GeometryError, match="tuple of 3"):
        Grid((2, 3, 4), (1, 2))


@pytest.mark.parametrize("shape", [0, -2, 2.0, (3, 2.0), (0, 3), True, "ab", (), (1, 2, 3)])
def test_bad_detector_shapes_are_refused(shape: object) -> None:
    with pytest.raises(GeometryError, match="Detector shape"):
        Detector(shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [4, (4,), (0, 4), (2.0, 3), (1, 2, 3, 4)])
def test_bad_grid_shapes_are_refused(shape: object) -> None:
    with pytest.raises(GeometryError, match="Grid shape"):
        Grid(shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("curvature", [0, -1.0, np.nan, "flat", True, 0.5])
def test_bad_curvature_is_refused(curvature: object) -> None:
    with pytest.raises(GeometryError, match="curvature"):
        Detector(9, curvature=curvature)  # type: ignore[arg-type]
