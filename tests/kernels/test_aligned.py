"""Parallel beams with rows in slices, against clipping every ray against every cell."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import volume_checks as checks
from volume_reference import ANGLES, cell_matrix, cone, dense, parallel, run_adjoint, run_forward

from geometries.kernels import aligned as aligned_module
from geometries.kernels import structure
from geometries.kernels.aligned import kernel as aligned
from linops.errors import GeometryError

WIDE = {"grid_shape": (5, 6, 7), "spacing": (0.5, 2.0, 1.5), "center": (0.3, -0.7, 0.4)}
VIEWS = (0.3, 1.9, 4.0)
SCANS = {
    # rows of .5 on slices of .5: five of five, and parts of the stack with row 0 in slices 1, -2
    "same": parallel(VIEWS, (5, 9), (0.5, 1.1), (0.3, -0.2), **WIDE),
    "fewer rows": parallel(VIEWS, (2, 9), (0.5, 1.1), (0.05, 0.3), **WIDE),
    "more rows": parallel(VIEWS, (8, 12), (0.5, 0.4), (0.05, 0.3), **WIDE),
    "right angles": parallel(
        np.arange(4) * np.pi / 2, (5, 7), (0.5, 1.5), (0.3, 0.4), **{**WIDE, "spacing": (0.5,) * 3}
    ),
    "curved": parallel(VIEWS, (5, 9), (0.5, 1.1), (0.3, -0.2), curvature=9.0, **WIDE),
}
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
    law(aligned, SCANS[name])


def test_worked_values():
    checks.check_worked_values(aligned, *checks.WORKED[2][1:])


def test_the_shift_counts_slices():
    got = {name: structure.aligned_shift(scan) for name, scan in SCANS.items()}
    assert got["same"] == 0
    assert got["fewer rows"] == 1
    assert got["more rows"] == -2


def test_what_is_not_aligned():
    scan = SCANS["same"]
    up, none = np.array([0.0, 0, 1]), structure.aligned_shift
    assert none(dataclasses.replace(scan, pitch=(0.5001, 1.1))) is None
    assert none(dataclasses.replace(scan, offset=(0.31, 0.0))) is None
    assert none(dataclasses.replace(scan, v=-scan.v)) is None
    centers = scan.centers + np.array([[0.0], [0.5], [0.0]]) * up
    assert none(dataclasses.replace(scan, centers=centers)) is None
    assert none(dataclasses.replace(scan, centers=scan.centers + 0.5 * up)) == 1
    leaning = scan.directions + 1e-3 * up
    assert none(dataclasses.replace(scan, directions=leaning)) is None
    assert none(dataclasses.replace(scan, u=scan.u + 1e-3 * up)) is None
    assert none(cone(VIEWS, (5, 9), (0.5, 1.1), (0.3, 0.0), **WIDE)) is None
    rounded = scan.directions + 1e-15 * up
    assert none(dataclasses.replace(scan, directions=rounded)) == 0


def test_a_scan_that_is_not_aligned_is_refused():
    scan = dataclasses.replace(SCANS["same"], offset=(0.35, 0.0))
    with pytest.raises(GeometryError, match="columns"):
        run_forward(aligned, scan, np.zeros((1, 6, 7, 5)))


@pytest.mark.slow
def test_a_batch_in_shares_is_the_batch(monkeypatch):
    scan = SCANS["same"]
    x = np.random.default_rng(0).random((3, *scan.grid_shape[1:], scan.grid_shape[0]))
    whole = run_forward(aligned, scan, x)
    back = run_adjoint(aligned, scan, whole)
    for most in (0, 2 * x[0].nbytes):
        monkeypatch.setattr(type(aligned), "kept", most)
        np.testing.assert_array_equal(run_forward(aligned, scan, x), whole)
    monkeypatch.setattr(aligned_module, "_LINES", 1)
    np.testing.assert_array_equal(run_adjoint(aligned, scan, whole), back)


def test_right_angles_are_sums_of_rows_and_columns():
    grid = {"grid_shape": (3, 16, 16), "spacing": (1.0, 1.0, 1.0)}
    scan = parallel(np.arange(4) * np.pi / 2, (3, 16), (1.0, 1.0), **grid)
    x = np.random.default_rng(0).random((3, 16, 16))
    got = run_forward(aligned, scan, x.transpose(1, 2, 0)[None].copy(), precision="float64")[0]
    wanted = [x.sum(1), x.sum(2), x.sum(1)[:, ::-1], x.sum(2)[:, ::-1]]
    np.testing.assert_allclose(got.transpose(0, 2, 1), wanted, rtol=1e-12)


@pytest.mark.parametrize("nudge", [0.0, 1e-7, -1e-7, 1e-6, -1e-6])
def test_rays_nearly_along_an_axis(nudge):
    grid = {"grid_shape": (1, 8, 8), "spacing": (1.0, 1.0, 1.0)}
    scan = parallel(np.arange(4) * np.pi / 2 + nudge, (1, 8), (1.0, 1.0), **grid)
    got = run_forward(aligned, scan, np.ones((1, 8, 8, 1)), precision="float64")
    np.testing.assert_allclose(got, 8, atol=1e-11)


def test_rays_in_faces_belong_to_the_cell_above():
    grid = {"grid_shape": (1, 2, 4), "spacing": (1.0, 1.0, 1.0)}
    scan = parallel((0.0,), (1, 5), (1.0, 1.0), **grid)
    wanted = np.zeros((5, 2, 4))
    wanted[np.arange(4), :, np.arange(4)] = 1
    for matrix in dense(aligned, scan, np.float64, "float64"):
        np.testing.assert_array_equal(matrix.reshape(5, 2, 4), wanted)


def test_rays_beside_the_grid_are_exact_zeros():
    grid = {"grid_shape": (2, 64, 64), "spacing": (1.0, 1.0, 1.0)}
    scan = parallel((0.0, np.pi / 2, np.pi), (2, 5), (1.0, 1.0), (0.0, 280.0), **grid)
    assert not run_forward(aligned, scan, np.full((1, 64, 64, 2), 1e30)).any()
    assert not run_adjoint(aligned, scan, np.full((1, 3, 5, 2), 1e30)).any()


@pytest.mark.parametrize(
    ("grid_shape", "shape"), [((1, 3, 4), (1, 1)), ((1, 1, 1), (1, 5)), ((2, 1, 5), (2, 1))]
)
def test_single_rows_columns_views_and_slices(grid_shape, shape):
    scan = parallel(ANGLES[:1], shape, (1.3, 0.8), grid_shape=grid_shape)
    for matrix in dense(aligned, scan, np.float64, "float64"):
        np.testing.assert_allclose(matrix, cell_matrix(scan).reshape(matrix.shape), atol=2e-11)


def test_sums_along_a_ray_keep_small_terms():
    grid = {"grid_shape": (1, 1, 3), "spacing": (1.0, 1.0, 1.0)}
    scan = parallel((np.pi / 2, np.pi * 1.5), (1, 1), (1.0, 1.0), **grid)
    x = np.array([2.0**30, 1, -(2.0**30)]).reshape(1, 1, 3, 1)
    np.testing.assert_array_equal(run_forward(aligned, scan, x, precision="float64"), 1)


def test_many_views_sum_in_single_precision():
    # a diagonal entry of A^T A is a sum of thousands of squares: residual of e_i, A e_i
    grid = {"grid_shape": (2, 3, 3), "spacing": (1.0, 1.0, 1.0)}
    scan = parallel(np.linspace(0, 40, 4000), (2, 25), (1.0, 0.2), **grid)
    x = np.zeros((1, 3, 3, 2), np.float32)
    x[0, 1, 2, 1] = 1
    y = run_forward(aligned, scan, x)
    back = run_adjoint(aligned, scan, y)
    assert checks.mismatch(x, y, y, back, np.finfo(np.float32).eps) <= 16
