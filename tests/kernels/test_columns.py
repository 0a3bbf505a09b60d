"""Detector columns parallel to z, against clipping every ray against every cell."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import volume_checks as checks
from volume_reference import (
    ANGLES,
    cell_matrix,
    cone,
    dense,
    parallel,
    random_scans,
    run_adjoint,
    run_forward,
    tilted,
)

from geometries.kernels import structure
from geometries.kernels.columns import kernel as columns
from geometries.kernels.oblique import kernel as oblique

UP = np.array([0.0, 0.0, 1.0])
SCANS = random_scans()
SCANS["downwards"] = dataclasses.replace(SCANS["cone"], v=-SCANS["cone"].v)
SCANS["leaning columns"] = dataclasses.replace(
    SCANS["cone"], u=(SCANS["cone"].u + 0.3 * UP) / np.hypot(1, 0.3)
)
SCANS["rising beam"] = dataclasses.replace(
    SCANS["parallel"], directions=(SCANS["parallel"].directions + 2 * UP) / np.sqrt(5)
)
SCANS["from above"] = dataclasses.replace(
    SCANS["cone"], origins=SCANS["cone"].origins + np.array([[9.0], [-3.0], [6.0]]) * UP
)
LAWS = [
    checks.check_matrix,
    checks.check_dot,
    checks.check_blocks,
    checks.check_parts_add_up,
    checks.check_inert,
    checks.check_nan,
    checks.check_threads,
    checks.check_subsets,
    checks.check_gram,
]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law, name):
    assert structure.columns_upright(SCANS[name]).all()
    law(columns, SCANS[name])


@pytest.mark.parametrize("case", checks.WORKED, ids=lambda case: case[0])
def test_worked_values(case):
    checks.check_worked_values(columns, *case[1:])


def test_what_is_not_supported():
    assert not structure.columns_upright(tilted(SCANS["cone"])).any()
    assert not structure.columns_upright(tilted(SCANS["parallel"], size=1e-6)).any()
    flat = SCANS["parallel"]
    vertical = np.zeros_like(flat.directions) + UP
    assert not structure.columns_upright(dataclasses.replace(flat, directions=vertical)).any()


def unit_grid(shape, spacing=(1.0, 1.0, 1.0)):
    return {"grid_shape": shape, "spacing": spacing, "center": (0.0, 0.0, 0.0)}


@pytest.mark.parametrize("precision", ["fast", "float32", "float64"])
def test_level_rays_in_faces_between_slices_belong_to_the_slice_above(precision):
    # even rows on odd slices: every ray lies in a face; below the lowest and on the highest: none
    scan = parallel((0.4,), (6, 3), (1.0, 1.0), **unit_grid((3, 2, 4)))
    dtype = np.float64 if precision == "float64" else np.float32
    forward, adjoint = dense(columns, scan, dtype, precision)
    want = cell_matrix(scan).reshape(forward.shape)
    np.testing.assert_allclose(forward, want, rtol=1e-6, atol=0)
    np.testing.assert_allclose(adjoint, want, rtol=1e-6, atol=0)
    by_row = want.reshape(3, 6, 8, 3).sum((0, 2))
    assert [set(np.flatnonzero(row)) for row in by_row] == [set(), {0}, {1}, {2}, set(), set()]


@pytest.mark.slow
@pytest.mark.parametrize("source", [0.0, -1.0, 2.0, -4.0, 4.0])
def test_ends_clip_the_ray(source):
    scan = cone((-np.pi / 2,), (1, 1), (1.0, 1.0), a=-source, d=20.0 - source,
                **unit_grid((1, 1, 8)))  # fmt: skip
    want = {0.0: 4.0, -1.0: 5.0, 2.0: 2.0, -4.0: 8.0, 4.0: 0.0}[source]
    for dtype in (np.float32, np.float64):
        got = run_forward(columns, scan, np.ones((1, 1, 8, 1), dtype)).item()
        assert abs(got - want) < 1e-6


def test_long_steep_pieces_meet_many_slices():
    # thin slices: one in-plane piece crosses dozens of them
    grid = unit_grid((60, 3, 4), (0.05, 1.3, 1.1))
    scan = cone(ANGLES, (5, 4), (1.5, 1.2), a=9.0, d=14.0, **grid)
    checks.check_matrix(columns, scan)
    checks.check_gram(columns, scan)


@pytest.mark.parametrize("kind", [parallel, cone])
@pytest.mark.parametrize("rows, cols", [(1, 1), (1, 5), (4, 1)])
def test_single_rows_columns_views_and_slices(kind, rows, cols):
    scan = kind(ANGLES[:1], (rows, cols), (0.9, 0.8), grid_shape=(1, 3, 4))
    for matrix in dense(columns, scan, np.float64, "float64"):
        np.testing.assert_allclose(matrix, cell_matrix(scan).reshape(matrix.shape), atol=2e-11)


@pytest.mark.parametrize("ends", [(100.0, 200.0), (1e7, 1e7 + 100), (100.0, 1e7), (1e15, 1e15)])
def test_distant_ends(ends):
    grid = unit_grid((3, 5, 7), (0.75, 1.5, 2.0))
    scan = cone((-np.pi / 2,), (1, 1), (1.0, 1.0), a=ends[0], d=ends[1], **grid)
    if ends[0] == ends[1]:
        scan = dataclasses.replace(scan, centers=np.array([[100.0, 0, 0]]))
    got = run_forward(columns, scan, np.full((1, 5, 7, 3), 1.25), precision="float64").item()
    assert abs(got - 17.5) < 2e-11


@pytest.mark.slow
def test_rays_beside_the_grid_are_exact_zeros():
    grid = unit_grid((4, 6, 6))
    for scan in (
        cone((0.0, 1.0), (3, 4), (1.0, 1.0), (900.0, 0.0), a=30.0, d=50.0, **grid),
        cone((0.0, 1.0), (3, 4), (1.0, 1.0), (0.0, 900.0), a=30.0, d=50.0, **grid),
    ):
        assert not run_forward(columns, scan, np.full((1, 6, 6, 4), 1e30)).any()
        assert not run_adjoint(columns, scan, np.full((1, 2, 4, 3), 1e30)).any()


@pytest.mark.slow
def test_fast_is_close_to_double_and_passes_the_dot_test_at_scale():
    grid = unit_grid((24, 20, 22))
    scan = cone(np.linspace(0, 6, 16), (30, 28), (1.3, 1.4), a=40.0, d=60.0, **grid)
    checks.check_dot(columns, scan)
    x, y = checks.arrays(scan, np.float64, 1)
    for run, data in ((run_forward, x), (run_adjoint, y)):
        exact = run(columns, scan, data, precision="float64")
        fast = run(columns, scan, data.astype(np.float32), precision="fast")
        assert np.linalg.norm(fast - exact) <= 1e-5 * np.linalg.norm(exact)
    np.testing.assert_allclose(
        run_forward(oblique, scan, x), run_forward(columns, scan, x, precision="float64"), atol=1e-9
    )
