"""Exact 3-D Siddon for any frames, against clipping every ray against every cell."""

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

from geometries.kernels.oblique import kernel as oblique
from geometries.kernels.volume_scan import VolumeScan

SCANS = random_scans()
SCANS |= {f"tilted {name}": tilted(scan) for name, scan in SCANS.items()}
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
    law(oblique, SCANS[name])


@pytest.mark.parametrize("case", checks.WORKED, ids=lambda case: case[0])
def test_worked_values(case):
    checks.check_worked_values(oblique, *case[1:])


def unit_grid(shape, spacing=(1.0, 1.0, 1.0)):
    return {"grid_shape": shape, "spacing": spacing, "center": (0.0, 0.0, 0.0)}


def scan_of(kind, origin, direction, center, u, v, shape, pitch, grid):
    one = [np.asarray([part], float) for part in (origin, direction, center, u, v)]
    return VolumeScan(kind, *one, shape, pitch, (0.0, 0.0), None, **grid)


@pytest.mark.parametrize(
    ("direction", "u", "v", "axis", "shape", "pitch"),
    [
        ((0, 0, 1), (1, 0, 0), (0, 1, 0), 0, (6, 7), (2.0, 1.5)),
        ((0, 1, 0), (1, 0, 0), (0, 0, 1), 1, (5, 7), (0.5, 1.5)),
        ((-1, 0, 0), (0, 1, 0), (0, 0, 1), 2, (5, 6), (0.5, 2.0)),
    ],
)
def test_rays_along_axes_are_sums(direction, u, v, axis, shape, pitch):
    spacing = (0.5, 2.0, 1.5)
    grid = unit_grid((5, 6, 7), spacing)
    scan = scan_of("parallel", (0, 0, 0), direction, (0, 0, 0), u, v, shape, pitch, grid)
    x = np.random.default_rng(0).standard_normal((5, 6, 7))
    got = run_forward(oblique, scan, x.transpose(1, 2, 0)[None].copy(), precision="float64")
    np.testing.assert_allclose(got[0, 0].T, x.sum(axis) * spacing[axis], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("source", "length"), [(0.0, 4.0), (-1.0, 5.0), (2.0, 2.0), (-4.0, 8.0), (4.0, 0.0)]
)
def test_ends_clip_the_ray(source, length):
    grid = unit_grid((1, 1, 8))
    scan = scan_of(
        "cone", (source, 0, 0), (0, 0, 0), (20, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1), (1, 1), grid
    )
    for dtype in (np.float32, np.float64):
        assert run_forward(oblique, scan, np.ones((1, 1, 8, 1), dtype)).item() == length


def test_a_source_and_a_detector_inside():
    for shape in ((1, 3, 5), (3, 3, 5)):
        scan = scan_of(
            "cone", (-0.5, 0, 0), (0, 0, 0), (0.75, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1), (1, 1),
            unit_grid(shape),
        )  # fmt: skip
        nz, ny, nx = shape
        assert run_forward(oblique, scan, np.ones((1, ny, nx, nz))).item() == 1.25


def test_rays_in_faces_belong_to_the_cell_above():
    # 5 rays on the 5 faces of 4 cells along x, travelling along y; the highest face has no cell
    scan = scan_of(
        "parallel", (0, 0, 0), (0, 1, 0), (0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 5), (1, 1),
        unit_grid((1, 2, 4)),
    )  # fmt: skip
    forward, adjoint = dense(oblique, scan, np.float64, "float64")
    wanted = np.zeros((5, 2, 4))
    wanted[np.arange(4), :, np.arange(4)] = 1
    np.testing.assert_array_equal(forward.reshape(5, 2, 4), wanted)
    np.testing.assert_array_equal(adjoint, forward)


def test_a_diagonal_ray_loses_nothing_at_corners():
    scan = scan_of(
        "parallel", (0, 0, 0), np.ones(3) / np.sqrt(3), (0, 0, 0),
        np.array([1, -1, 0]) / np.sqrt(2), np.array([1, 1, -2]) / np.sqrt(6), (1, 1), (1, 1),
        unit_grid((4, 4, 4)),
    )  # fmt: skip
    got = run_forward(oblique, scan, np.ones((1, 4, 4, 4)), precision="float64").item()
    assert abs(got - 4 * np.sqrt(3)) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parallel", "cone"])
def test_rays_that_miss_are_exact_zeros(kind):
    # beside the grid and parallel to its faces, or away from it
    scan = scan_of(
        kind, (280, 30, 0), (0, -1, 0), (280, -30, 0), (1, 0, 0), (0, 0, 1), (2, 5), (1, 1),
        unit_grid((2, 8, 8)),
    )  # fmt: skip
    assert not run_forward(oblique, scan, np.full((1, 8, 8, 2), 1e30)).any()
    assert not run_adjoint(oblique, scan, np.full((1, 1, 5, 2), 1e30)).any()


def test_a_detector_turned_about_its_central_ray():
    scan = cone((0.4, 2.0), (9, 9), (1.7, 1.7), a=20.0, d=31.0, grid_shape=(5, 6, 7))
    turned = dataclasses.replace(scan, u=scan.v, v=-scan.u)
    x = np.random.default_rng(1).standard_normal((1, 6, 7, 5))
    straight = run_forward(oblique, scan, x, precision="float64")[0].transpose(0, 2, 1)
    got = run_forward(oblique, turned, x, precision="float64")[0].transpose(0, 2, 1)
    for view in range(2):
        np.testing.assert_allclose(got[view], np.rot90(straight[view]), rtol=1e-13, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1, 7), (1, 7, 1), (7, 1, 1), (3, 5, 7), (1, 1, 1)])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("ends", [(-100, 100), (-1e7, 100), (-100, 1e7), (-1e15, 100)])
def test_distant_ends(shape, axis, sign, ends):
    spacing = (0.75, 1.5, 2.0)
    along = np.roll([1.0, 0, 0], axis) * sign
    u, v = np.roll([0, 1.0, 0], axis), np.roll([0, 0, 1.0], axis)
    scan = scan_of(
        "cone", ends[0] * along, along, ends[1] * along, u, v, (1, 1), (1, 1),
        unit_grid(shape, spacing),
    )  # fmt: skip
    nz, ny, nx = shape
    got = run_forward(oblique, scan, np.full((1, ny, nx, nz), 1.25), precision="float64").item()
    want = shape[2 - axis] * spacing[2 - axis] * 1.25
    assert abs(got - want) < 2e-11
    back = run_adjoint(oblique, scan, np.ones((1, 1, 1, 1)), precision="float64")
    assert np.count_nonzero(back) == shape[2 - axis]
    np.testing.assert_allclose(back[back != 0], spacing[2 - axis], rtol=2e-11)


def test_an_oblique_exit():
    angle = 0.37123456789123
    scan = scan_of(
        "parallel", (0, 0, 0), (np.cos(angle), np.sin(angle), 0),
        (0.137123456789, -0.239234567891, 0), (-np.sin(angle), np.cos(angle), 0), (0, 0, 1),
        (1, 1), (1, 1), unit_grid((1, 3, 5), (1.0, 0.73, 0.61)),
    )  # fmt: skip
    got = run_forward(oblique, scan, np.ones((1, 3, 5, 1)), precision="float64").item()
    assert abs(got - 3.272952909339534) < 2e-11


@pytest.mark.parametrize("rows, cols", [(1, 1), (1, 5), (4, 1)])
def test_single_rows_columns_views_and_slices(rows, cols):
    for scan in (
        parallel(ANGLES[:1], (rows, cols), (0.9, 0.8), grid_shape=(1, 3, 4)),
        cone(ANGLES[:1], (rows, cols), (0.9, 0.8), grid_shape=(1, 3, 4), curvature=12.4),
    ):
        forward, adjoint = dense(oblique, scan, np.float64, "float64")
        want = cell_matrix(scan).reshape(forward.shape)
        np.testing.assert_allclose(forward, want, atol=2e-11)
        np.testing.assert_allclose(adjoint, want, atol=2e-11)


def test_a_source_that_moves_through_a_corner_changes_nothing_suddenly():
    x = np.random.default_rng(2).random((1, 4, 4, 4))
    values = []
    for shift in np.linspace(-1e-3, 1e-3, 201):
        scan = scan_of(
            "cone", (-9 + shift, -9, -9 - shift), (0, 0, 0), (9, 9, 9),
            np.array([1, -1, 0]) / np.sqrt(2), np.array([1, 1, -2]) / np.sqrt(6), (1, 1), (1, 1),
            unit_grid((4, 4, 4)),
        )  # fmt: skip
        values.append(run_forward(oblique, scan, x, precision="float64").item())
    assert np.abs(np.diff(values)).max() < 1e-4
