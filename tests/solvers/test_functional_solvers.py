"""Solvers over functionals and operators: minima known from SciPy, resumed bits, every library."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

import linops as lo
from linops import separable
from sharding import plan
from solvers import admm, fista, gradient_descent, landweber, lsmr, pdhg

rng = np.random.default_rng(0)
M, Y, WEIGHT = rng.standard_normal((24, 16)), rng.standard_normal(24), 2.0
A = lo.Matrix(M)
DATA = lo.LeastSquares(A.codomain, Y)
L1 = WEIGHT * lo.L1(A.domain)
D = lo.Gradient(A.domain)
TV = WEIGHT * lo.L1(D.codomain)


def split_minimum(rows):
    """The minimiser of `|M x - y|^2 / 2 + weight |rows x|_1`, as a quadratic program."""
    count = len(rows)

    def value(z):
        r = M @ z[:16] - Y
        return r @ r / 2 + WEIGHT * z[16:].sum()

    def slope(z):
        return np.r_[M.T @ (M @ z[:16] - Y), np.full(count, WEIGHT)]

    both = np.block([[rows, np.eye(count)], [-rows, np.eye(count)]])
    bound = scipy.optimize.LinearConstraint(both, 0, np.inf)
    found = scipy.optimize.minimize(
        value, np.zeros(16 + count), jac=slope, hess=lambda z: np.block(
            [[M.T @ M, np.zeros((16, count))], [np.zeros((count, 16 + count))]]
        ),
        constraints=bound, method="trust-constr",
        options={"gtol": 1e-11, "xtol": 1e-13, "barrier_tol": 1e-11, "maxiter": 3000},
    )  # fmt: skip
    return found.x[:16]


@pytest.fixture(scope="module")
def sparse():
    return split_minimum(np.eye(16))


@pytest.fixture(scope="module")
def smooth():
    return split_minimum(np.asarray(D.to_dense()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"backtracking": True}, {"restart": False}, {"step": 1e-3}, {"strong_convexity": 0.5}],
)
def test_fista_finds_the_lasso(sparse, options):
    found = fista(DATA @ A, L1, iterations=3000, rtol=1e-10, **options)
    assert found.converged
    assert np.abs(found.solution - sparse).max() < 1e-6


def test_restarts_save_iterations():
    plain, restarted = (
        fista(DATA @ A, L1, iterations=3000, rtol=1e-10, restart=r).iterations
        for r in (False, True)
    )
    assert restarted < 0.6 * plain


@pytest.mark.slow
@pytest.mark.parametrize("adaptive", [False, True])
def test_pdhg_finds_the_same_on_a_stack(smooth, adaptive):
    K = lo.vstack([A, D])
    found = pdhg(separable([DATA, TV]), None, K, iterations=20000, rtol=1e-9, adaptive=adaptive)
    assert found.converged
    assert np.abs(found.solution - smooth).max() < 1e-6


@pytest.mark.slow
def test_admm_finds_the_same_with_inexact_inner_solves(smooth):
    found = admm(DATA @ A, [(TV, D)], iterations=2000, rtol=1e-10, inner_iterations=4)
    assert found.converged
    assert np.abs(found.solution - smooth).max() < 1e-6
    # without a smooth term, the data among the others
    found = admm(None, [(DATA, A), (TV, D)], iterations=3000, rtol=1e-9, inner_iterations=16)
    assert np.abs(found.solution - smooth).max() < 1e-6


def test_accelerated_steps_of_pdhg_keep_their_bound():
    # Chambolle, Pock 2011, theorem 2: |x_k - x|^2 <= (|x|^2 / tau^2 + |D p|^2) / k^2 at last.
    g = lo.LeastSquares(D.domain, Y[:16])
    steps = {"tau": 0.5, "sigma": 0.5}
    exact = pdhg(TV, g, D, iterations=20000, rtol=1e-11, **steps).solution
    bound = np.hypot(np.linalg.norm(exact) / 0.5, 2 * WEIGHT * np.sqrt(15))
    counts = (100, 200, 400)
    errors = [
        np.linalg.norm(pdhg(TV, g, D, iterations=k, strong_convexity=1.0, **steps).solution - exact)
        for k in counts
    ]
    assert all(error <= bound / k for k, error in zip(counts, errors, strict=True))
    assert errors[2] < 0.3 * errors[0]


@pytest.mark.parametrize("spectral", [False, True])
def test_gradient_steps_within_bounds_are_nnls(spectral):
    wanted = scipy.optimize.nnls(M, Y)[0]
    options = {"barzilai_borwein": spectral, "bounds": (0, None)}
    found = gradient_descent(DATA @ A, iterations=2000, rtol=1e-11, **options)
    assert found.converged
    assert np.abs(found.solution - wanted).max() < 1e-8
    found = landweber(A, Y, iterations=2000 if not spectral else 200, **options)
    assert np.abs(found.solution - wanted).max() < 1e-8


def test_landweber_is_its_formula_with_weights():
    weights = rng.random(24)
    found = landweber(A, Y, iterations=7, step=0.01, weights=weights).solution
    x = np.zeros(16)
    for _ in range(7):
        x = x + 0.01 * M.T @ (weights * (Y - M @ x))
    assert np.allclose(found, x, rtol=1e-13)


SOLVES = {
    "fista": lambda **k: fista(DATA @ A, L1, **k),
    "backtracking": lambda **k: fista(DATA @ A, L1, backtracking=True, **k),
    "pdhg": lambda **k: pdhg(separable([DATA, TV]), None, lo.vstack([A, D]), adaptive=True, **k),
    "admm": lambda **k: admm(DATA @ A, [(TV, D)], **k),
    "gradient_descent": lambda **k: gradient_descent(DATA @ A, barzilai_borwein=True, **k),
    "landweber": lambda **k: landweber(A, Y, barzilai_borwein=True, **k),
}


@pytest.mark.parametrize("solve", SOLVES.values(), ids=SOLVES)
def test_resumed_solves_have_the_same_bits_and_other_problems_are_refused(solve, tmp_path):
    solve(iterations=5, checkpoint_directory=tmp_path, checkpoint_every=5)
    resumed, whole = solve(iterations=9, resume=tmp_path), solve(iterations=9)
    assert (resumed.solution == whole.solution).all()
    assert resumed.residual_history == whole.residual_history
    assert len(whole.residual_history) == 10
    with pytest.raises(lo.errors.CheckpointError):
        fista(DATA @ A, 2 * L1, iterations=9, resume=tmp_path)


@pytest.mark.parametrize("solve", SOLVES.values(), ids=SOLVES)
def test_a_callback_ends_a_solve_and_a_misspelt_control_is_named(solve):
    assert solve(iterations=9, callback=lambda k, residual, x: k < 3).iterations == 3
    with pytest.raises(TypeError, match="chekpoint"):
        solve(iterations=9, chekpoint_directory="here")


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_other_libraries_give_the_same(library):
    module = pytest.importorskip("jax.numpy" if library == "jax" else "torch")

    def solutions(a, y):
        data, prior = lo.LeastSquares(a.codomain, y) @ a, WEIGHT * lo.L1(a.domain)
        terms = [(prior, lo.Identity(a.domain))]
        return [
            fista(data, prior, iterations=40).solution,
            admm(data, terms, iterations=40).solution,
            pdhg(lo.LeastSquares(a.codomain, y), prior, a, iterations=40).solution,
            landweber(a, y, iterations=40).solution,
            lsmr(a, y, iterations=8).solution,
            gradient_descent(data, iterations=8, barzilai_borwein=True).solution,
        ]

    found = solutions(lo.Matrix(M.astype("f4")), module.asarray(Y.astype("f4")))
    for one, wanted in zip(found, solutions(A, Y), strict=True):
        assert type(one).__module__.split(".")[0] in (library, "jaxlib")
        assert np.abs(np.asarray(one) - wanted).max() < 1e-3


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (None, "terms of admm is None"),
        ([], "terms of admm"),
        ([L1], "list of pairs"),
        ([(A, L1)], r"terms\[0\]\[0\]"),
        ([(L1, M)], r"terms\[0\]\[1\]"),
    ],
)
def test_terms_of_another_kind_are_named(terms, message):
    with pytest.raises(TypeError, match=message):
        admm(DATA @ A, terms, iterations=1)


def test_planned_operators_and_batches_give_the_same(sparse):
    B = plan(A, devices=2).lower()
    found = fista(lo.LeastSquares(B.codomain, Y) @ B, L1, iterations=3000, rtol=1e-10)
    assert np.abs(found.solution - sparse).max() < 1e-6
    starts = rng.standard_normal((3, 16))
    batch = fista(DATA @ A, L1, iterations=3000, rtol=1e-10, x0=starts)
    assert batch.converged == [True] * 3
    assert np.abs(batch.solution - sparse).max() < 1e-6
