"""Scans whose views are of several kinds: each view by its own kernel, in any subset and order."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import volume_checks as checks
from hypothesis import given, settings
from hypothesis import strategies as st
from volume_reference import cell_matrix, cone, parallel, run_adjoint, run_forward, tilted

from geometries import Detector, Grid, Projector, Trajectory
from geometries.kernels.mixed import MixedKernel
from geometries.kernels.runner import _named
from geometries.kernels.structure import groups_of, kernel_of
from linops.compiled import pool
from linops.testing import check_operator

GRID = {"grid_shape": (4, 5, 6), "spacing": (0.5, 1.1, 0.9), "center": (0.25, -0.3, 0.4)}
ANGLES = (0.3, 1.9, 4.0)
UP = np.array([0.0, 0.0, 1.0])
FIELDS = ("origins", "directions", "centers", "u", "v")


def pools():
    """Views of each kind, for parallel and for cone beams: {kind: {name: scan of three views}}."""
    level = parallel(ANGLES, (3, 7), (0.5, 1.1), (0.0, -0.2), **GRID)
    raised = dataclasses.replace(level, centers=level.centers + 0.5 * UP)
    low = dataclasses.replace(level, centers=level.centers - 0.5 * UP)
    between = dataclasses.replace(level, centers=level.centers + 0.13 * UP)
    around = cone(ANGLES, (3, 7), (0.9, 1.7), (0.2, 0.3), a=14.0, d=24.0, **GRID)
    return {
        "parallel": {
            "aligned 0": level,
            "aligned 1": raised,
            "aligned -1": low,
            "columns": between,
            "oblique": tilted(between),
        },
        "cone": {"columns": around, "oblique": tilted(around)},
    }


POOLS = pools()
MIXTURES = {kind: [(name, k) for name in scans for k in range(3)] for kind, scans in POOLS.items()}


def mixture(kind, picks):
    scans = POOLS[kind]
    one = next(iter(scans.values()))
    return dataclasses.replace(
        one,
        **{f: np.array([getattr(scans[name], f)[k] for name, k in picks]) for f in FIELDS},
    )


def kernel_for(scan):
    return MixedKernel(scan, [(_named("siddon", name), views) for name, views in groups_of(scan)])


def projector(scan, precision):
    detector = Detector(scan.shape, scan.pitch, scan.offset)
    first = scan.directions if scan.kind == "parallel" else scan.origins
    trajectory = Trajectory(scan.kind, first, scan.centers, scan.u, scan.v, detector)
    return Projector(
        trajectory, Grid(scan.grid_shape, scan.spacing, scan.center), precision=precision
    )


def everything(kind):
    return mixture(kind, MIXTURES[kind])


def test_views_are_told_apart():
    scan = everything("parallel")
    wanted = [("aligned", [6, 7, 8]), ("aligned", [0, 1, 2]), ("aligned", [3, 4, 5]),
              ("columns", [9, 10, 11]), ("oblique", [12, 13, 14])]  # fmt: skip
    assert [(name, views.tolist()) for name, views in groups_of(scan)] == wanted
    assert kernel_of(scan) == "9 aligned, 3 columns, 3 oblique"
    assert kernel_of(POOLS["parallel"]["aligned 1"]) == "aligned"
    assert kernel_of(mixture("parallel", MIXTURES["parallel"][:9])) == "9 aligned"
    assert kernel_of(everything("cone")) == "3 columns, 3 oblique"
    A = projector(scan, "fast")
    assert A.path == "9 aligned, 3 columns, 3 oblique"
    assert A.path in A.describe()


def test_the_aligned_rule_wants_every_view():
    whole = {**GRID, "grid_shape": (3, 5, 6)}
    level = parallel(ANGLES, (3, 7), (0.5, 1.1), **whole)
    level = dataclasses.replace(level, centers=level.centers + 0.25 * UP)
    assert str(projector(level, "fast").rule) == "z y x -> view z col"
    centers = level.centers + np.array([[0.0], [0.0], [0.5]]) * UP
    mixed = projector(dataclasses.replace(level, centers=centers), "fast")
    assert mixed.path == "3 aligned"
    assert str(mixed.rule) == "z y x -> view row col"


LAWS = [
    checks.check_matrix,
    checks.check_dot,
    checks.check_blocks,
    checks.check_inert,
    checks.check_threads,
    checks.check_subsets,
    checks.check_gram,
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law, kind):
    scan = mixture(kind, MIXTURES[kind][::2])
    law(kernel_for(scan), scan)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_view_has_its_bits_in_any_scan(data):
    kind = data.draw(st.sampled_from(sorted(POOLS)))
    picks = data.draw(st.lists(st.sampled_from(MIXTURES[kind]), min_size=1, max_size=8))
    precision, dtype = data.draw(st.sampled_from([("fast", np.float32), ("float64", np.float64)]))
    scan = mixture(kind, picks)
    A = projector(scan, precision)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.standard_normal(A.domain.shape).astype(dtype)
    y = A @ x
    matrix = cell_matrix(scan).reshape(len(picks), *scan.shape[::-1], -1)
    right = np.swapaxes(matrix @ np.moveaxis(x, 0, -1).ravel().astype(float), 1, 2)
    bound = checks.TOLERANCE[precision]
    np.testing.assert_allclose(y, right, rtol=bound, atol=bound * np.abs(right).max())

    index = data.draw(st.lists(st.integers(0, len(picks) - 1), min_size=1, max_size=6))
    part = projector(mixture(kind, [picks[k] for k in index]), precision)
    np.testing.assert_array_equal(part @ x, y[index])
    start = data.draw(st.integers(0, len(picks) - 1))
    stop = data.draw(st.integers(start + 1, len(picks)))
    block = A.block("view", start, stop)
    np.testing.assert_array_equal(block @ x, y[start:stop])

    # The adjoint: the sum over views, to rounding, and the same bits for any threads.
    back = A.H @ y
    with pool.limit(3, exceed=True):
        np.testing.assert_array_equal(A.H @ y, back)
    wanted = np.einsum("vcrp,vrc->p", matrix, y.astype(float)).reshape(
        *scan.grid_shape[1:], scan.grid_shape[0]
    )
    np.testing.assert_allclose(
        np.moveaxis(back, 0, -1), wanted, rtol=bound, atol=bound * np.abs(wanted).max()
    )


@pytest.mark.slow
def test_the_operator_contract():
    check_operator(projector(mixture("parallel", MIXTURES["parallel"][1::3]), "float64"))


def test_kernels_add_up_in_one_order():
    scan = everything("parallel")
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, *scan.grid_shape[1:], scan.grid_shape[0])).astype(np.float32)
    whole = run_forward(kernel_for(scan), scan, x)
    total = None
    y = rng.standard_normal(whole.shape).astype(np.float32)
    order = ["aligned -1", "aligned 0", "aligned 1", "columns", "oblique"]
    for name in order:
        k, alone = list(POOLS["parallel"]).index(name), POOLS["parallel"][name]
        kernel, views = _named("siddon", name.split()[0]), slice(3 * k, 3 * k + 3)
        np.testing.assert_array_equal(whole[:, views], run_forward(kernel, alone, x))
        part = np.ascontiguousarray(y[:, views])
        if total is None:
            total = run_adjoint(kernel, alone, part)
        else:
            kernel.adjoint(alone, part, total, fresh=False)
    np.testing.assert_array_equal(run_adjoint(kernel_for(scan), scan, y), total)
