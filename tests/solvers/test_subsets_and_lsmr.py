"""Ordered subsets, counts, and LSMR: against their formulas in NumPy and against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse.linalg

import linops as lo
from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector
from linops.errors import ShapeError
from sharding import plan
from solvers import lsmr, mlem, os_sart, osem, sirt

rng = np.random.default_rng(0)
M, Y = rng.standard_normal((30, 20)), rng.standard_normal(30)
A = lo.Matrix(M)
P, TRUTH = 20 * np.abs(M), np.abs(rng.standard_normal(20))
COUNTS = rng.poisson(P @ TRUTH + 3).astype(float)


@pytest.mark.parametrize("damp", [0.0, 0.7])
@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_lsmr_and_its_estimates_are_those_of_scipy(damp, count):
    wanted = scipy.sparse.linalg.lsmr(M, Y, damp=damp, maxiter=count, atol=0, btol=0, conlim=0)
    x, _, _, _, normal, norm, condition, _ = wanted
    found = lsmr(A, Y, iterations=count, damp=damp)
    assert np.abs(found.solution - x).max() < 1e-12
    assert found.histories["normal_residual"][-1] == pytest.approx(normal, rel=1e-8)
    assert found.histories["operator_norm"][-1] == pytest.approx(norm, rel=1e-12)
    assert found.histories["condition"][-1] == pytest.approx(condition, rel=1e-10)
    if not damp:
        assert found.residual_history[-1] == pytest.approx(np.linalg.norm(Y - M @ x), rel=1e-12)


def test_lsmr_ends_by_its_backward_error_for_each_member_and_resumes(tmp_path):
    batch = rng.standard_normal((3, 30))
    found = lsmr(A, batch, iterations=80, normal_rtol=1e-11)
    assert found.converged == [True] * 3
    assert np.abs(found.solution - np.linalg.lstsq(M, batch.T, rcond=None)[0].T).max() < 1e-8
    lsmr(A, Y, iterations=5, checkpoint_directory=tmp_path)
    resumed, whole = lsmr(A, Y, iterations=9, resume=tmp_path), lsmr(A, Y, iterations=9)
    assert (resumed.solution == whole.solution).all()
    assert resumed.residual_history == whole.residual_history


def em_step(x, rows, counts, background):
    return x / rows.sum(0) * (rows.T @ (counts / (rows @ x + background)))


def test_mlem_and_osem_are_their_formulas():
    x = np.ones(20)
    for _ in range(30):
        x = em_step(x, P, COUNTS, 3.0)
    found = mlem(lo.Matrix(P), COUNTS, 3.0, iterations=30)
    assert np.allclose(found.solution, x, rtol=1e-12)
    assert (np.diff(found.histories["divergence"]) <= 1e-9).all()

    x = np.ones(20)
    for _ in range(5):
        for s in (0, 2, 1):  # far apart
            x = em_step(x, P[s::3], COUNTS[s::3], 3.0)
    found = osem(lo.Matrix(P), COUNTS, np.full(30, 3.0), iterations=5, subsets=3)
    assert np.allclose(found.solution, x, rtol=1e-12)


def test_counts_that_cannot_be_are_refused_and_what_nothing_sees_stays():
    rows = P.copy()
    rows[:, 0] = 0
    rows[4] = 0
    found = mlem(lo.Matrix(rows), COUNTS, iterations=3).solution
    assert np.isfinite(found).all()
    assert found[0] == 1
    for bad, message in (
        (lambda: mlem(lo.Matrix(P), -COUNTS, iterations=1), "counts holds negative"),
        (lambda: mlem(lo.Matrix(P), COUNTS, -1.0, iterations=1), "background holds negative"),
        (lambda: mlem(A, COUNTS, iterations=1), "@ 1 holds negative"),
    ):
        with pytest.raises(ValueError, match=message):
            bad()


def test_os_sart_solves_consistent_data_and_is_sirt_on_one_subset():
    matrix = lo.Matrix(P)
    found = os_sart(matrix, P @ TRUTH, iterations=800, subsets=5)
    assert np.abs(found.solution - TRUTH).max() < 0.02 * TRUTH.max()
    one = os_sart(matrix, P @ TRUTH, iterations=7, subsets=1)
    assert np.allclose(one.solution, sirt(matrix, P @ TRUTH, iterations=7).solution, rtol=1e-12)


SCANS = {
    "parallel": (ParallelBeam(np.arange(20) * 0.3, Detector(30)), Grid((20, 20))),
    "fan": (FanBeam(np.arange(20) * 0.3, Detector(30, 2.0), 40.0, 80.0), Grid((20, 20))),
    "cone": (ConeBeam(np.arange(20) * 0.3, Detector((9, 12), 2.0), 30.0, 60.0), Grid((8, 10, 10))),
}


@pytest.mark.parametrize("backend", ["numba", "portable"])
@pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS)
def test_rows_of_a_projector_are_its_views(scan, backend):
    B = Projector(*scan, backend=backend, precision="float64")
    index = [3, 17, 4, 5, 0]
    part = B.rows(index, "view")
    x, z = B.domain.random(0), part.codomain.random(1)
    whole = np.zeros(B.codomain.shape)
    whole[index] = z
    assert np.allclose(part @ x, (B @ x)[index], rtol=1e-12)
    assert np.allclose(part.H @ z, B.H @ whole, rtol=1e-10, atol=1e-12)


def test_rows_of_other_operators_are_their_blocks_joined():
    d = rng.random(30)
    part = (lo.Diagonal(d) @ A).rows([7, 8, 2], 0)
    assert np.allclose(part.to_dense(), (d[:, None] * M)[[7, 8, 2]])
    with pytest.raises(ShapeError, match="planes 0 to 29"):
        A.rows([30])


def test_subsets_of_views_of_a_scan_plain_and_planned():
    B = Projector(*SCANS["fan"])
    image = np.zeros((20, 20), "f4")
    image[5:13, 6:15] = 1
    y = B @ image
    for solve in (os_sart, osem):
        ten = solve(B, y, iterations=8, subsets=10)
        one = solve(B, y, iterations=8, subsets=1)
        assert ten.residual_history[-1] < 0.3 * one.residual_history[-1]
    planned = plan(B, devices=2, partition="view").lower()
    assert np.allclose(
        mlem(planned, y, iterations=8).solution, mlem(B, y, iterations=8).solution, atol=1e-4
    )
