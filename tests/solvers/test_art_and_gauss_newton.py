"""Kaczmarz's method and damped Gauss-Newton against dense forms and SciPy."""

import numpy as np
import pytest
from scipy import optimize

import linops as lo
import solvers
from geometries import Detector, Grid, ParallelBeam, Projector
from sharding import plan

from .system import to

rng = np.random.default_rng(5)
M = rng.standard_normal((8, 5))
Y = rng.standard_normal(8)
ORDER = [0, 4, 2, 6, 1, 5, 3, 7]  # reversed bits


@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax"])
def test_a_pass_of_art_projects_onto_one_row_after_the_other(namespace):
    dtype = "float32" if namespace == "jax" else "float64"
    A = lo.Matrix(M.astype(dtype))
    batch = np.stack([Y, -2 * Y]).astype(dtype)
    found = solvers.art(A, to(batch, namespace), iterations=2, relaxation=0.7, decay=0.5)
    x = np.zeros(5)
    for pace in (0.7, 0.35):
        for i in ORDER:
            x = x + pace * M[i] * (Y[i] - M[i] @ x) / (M[i] @ M[i])
    rtol = 1e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(np.asarray(found.solution), [x, -2 * x], rtol=rtol)


def test_art_finds_the_solution_of_least_norm_and_resumes(tmp_path):
    wide = lo.Matrix(M.T)
    y = M.T @ Y
    found = solvers.art(wide, y, iterations=3000, rtol=1e-11)
    assert found.converged
    np.testing.assert_allclose(found.solution, np.linalg.pinv(M.T) @ y, atol=1e-9)
    bounded = solvers.art(wide, y, iterations=5, bounds=(0, 0.5)).solution
    assert bounded.min() >= 0 and bounded.max() <= 0.5
    solvers.art(wide, y, iterations=2, checkpoint_directory=tmp_path)
    again = solvers.art(wide, y, iterations=5, resume=tmp_path)
    whole = solvers.art(wide, y, iterations=5)
    np.testing.assert_array_equal(again.solution, whole.solution)
    assert again.residual_history == whole.residual_history


def test_art_takes_views_of_projectors():
    grid = Grid((8, 8))
    scan = ParallelBeam(np.arange(12) * np.pi / 12, Detector(11))
    A = Projector(scan, grid, precision="float64")
    y = A @ A.domain.random(1)
    found = solvers.art(A, y, iterations=20)
    assert (np.diff(found.residual_history) < 0).all()
    assert found.residual_history[-1] < 0.05 * found.residual_history[0]


K = rng.random((12, 4))
TRUE = np.array([0.3, 1.0, 0.2, 0.6])
NOISY = np.exp(-K @ TRUE) + 0.02 * rng.standard_normal(12)


def model(dtype="float64"):
    return lo.Exp(lo.Space(12, dtype)) @ (-1.0 * lo.Matrix(K.astype(dtype)))


@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax"])
def test_gauss_newton_finds_the_minimum_that_scipy_finds(namespace):
    dtype = "float32" if namespace == "jax" else "float64"
    found = solvers.gauss_newton(model(dtype), to(NOISY.astype(dtype), namespace), iterations=30)
    wanted = optimize.least_squares(lambda x: np.exp(-K @ x) - NOISY, np.zeros(4), xtol=1e-15)
    atol = 1e-3 if dtype == "float32" else 1e-7
    np.testing.assert_allclose(np.asarray(found.solution), wanted.x, atol=atol)
    assert (np.diff(found.residual_history) <= 0).all()


def test_gauss_newton_runs_on_plans():
    planned = plan(model(), devices=2, executor="threads").lower()
    found, wanted = (solvers.gauss_newton(N, NOISY, iterations=8) for N in (planned, model()))
    np.testing.assert_allclose(found.solution, wanted.solution, rtol=1e-9)


@pytest.mark.slow
def test_gauss_newton_rejects_steps_that_do_not_help_and_resumes(tmp_path):
    N = model()
    start = np.full(4, 1.5)  # flat there: the undamped change is far too long
    options = dict(x0=start, damping=0.0)
    whole = solvers.gauss_newton(N, NOISY, iterations=60, **options)
    assert whole.histories["damping"][0] == 0 and max(whole.histories["damping"]) > 0
    assert (np.diff(whole.residual_history) == 0).any()
    near = solvers.gauss_newton(N, NOISY, iterations=30).solution
    np.testing.assert_allclose(whole.solution, near, atol=1e-6)
    solvers.gauss_newton(N, NOISY, iterations=7, checkpoint_directory=tmp_path, **options)
    again = solvers.gauss_newton(N, NOISY, iterations=60, resume=tmp_path, **options)
    np.testing.assert_array_equal(again.solution, whole.solution)
    assert again.histories == whole.histories
    seen = []
    solvers.gauss_newton(N, NOISY, iterations=9, callback=lambda k, r, x: seen.append(k) or k < 3)
    assert seen == [1, 2, 3]
    with pytest.raises(ValueError, match="no batch axes"):
        solvers.gauss_newton(N, np.stack([NOISY, NOISY]), iterations=1)
