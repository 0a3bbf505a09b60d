"""Choice of parameters against dense Tikhonov solutions, whose residual and trace are known."""

import numpy as np
import pytest
from scipy import optimize

import linops as lo
import solvers

rng = np.random.default_rng(3)
N = 40
U, V = (np.linalg.qr(rng.standard_normal((N, N)))[0] for _ in range(2))
S = 0.8 ** np.arange(N)
M = (U * S) @ V.T
TRUTH = V @ (S * rng.standard_normal(N))
SIGMA = 0.01
Y = M @ TRUTH + SIGMA * rng.standard_normal(N)
A = lo.Matrix(M)
GRID = list(np.geomspace(1e-4, 1, 13))


def tikhonov(y, damp):
    x = np.linalg.solve(M.T @ M + damp**2 * np.eye(N), M.T @ y)
    return solvers.SolverResult(x, 1, [0.0, float(np.linalg.norm(y - M @ x))], True, "")


def test_the_discrepancy_principle_finds_the_root():
    noise = SIGMA * np.sqrt(N)
    found = solvers.discrepancy_principle(tikhonov, Y, noise, 1e-5, 10.0, rtol=1e-6)
    share = S**2  # |y - A x| = |damp^2 / (s^2 + damp^2) U.T y|

    def excess(damp):
        return np.linalg.norm(damp**2 / (share + damp**2) * (U.T @ Y)) - noise

    assert found.parameter == pytest.approx(optimize.brentq(excess, 1e-5, 10), rel=1e-4)
    assert found.result.residual_history[-1] == pytest.approx(noise, rel=1e-6)
    by_cgls = solvers.discrepancy_principle(
        lambda y, damp: solvers.cgls(A, y, iterations=60, damp=damp), Y, noise, 1e-5, 10.0
    )
    assert by_cgls.result.residual_history[-1] == pytest.approx(noise, rel=1e-2)
    with pytest.raises(ValueError, match=r"residuals of low and high lie on both sides"):
        solvers.discrepancy_principle(tikhonov, Y, 1e3, 1e-5, 1.0)


@pytest.mark.slow
def test_cross_validation_has_the_scores_of_the_exact_trace():
    found = solvers.generalized_cross_validation(A, tikhonov, Y, GRID, probes=400)
    filters = [(S**2 / (S**2 + p**2)).sum() for p in GRID]
    residuals = [np.linalg.norm(Y - M @ tikhonov(Y, p).solution) ** 2 for p in GRID]
    exact = [N * r / (N - f) ** 2 for r, f in zip(residuals, filters, strict=True)]
    np.testing.assert_allclose(found.scores, exact, rtol=0.1)
    assert found.parameter == GRID[int(np.argmin(found.scores))]
    assert exact[GRID.index(found.parameter)] < 1.1 * min(exact)


@pytest.mark.slow
def test_the_unbiased_estimate_meets_the_error():
    scores = np.mean(
        [solvers.sure(A, tikhonov, Y, SIGMA, GRID, seed=k).scores for k in range(200)], 0
    )
    traces = np.array([(S**2 / (S**2 + p**2)).sum() for p in GRID])
    residuals = np.array([np.linalg.norm(Y - M @ tikhonov(Y, p).solution) ** 2 for p in GRID])
    exact = residuals - N * SIGMA**2 + 2 * SIGMA**2 * traces
    np.testing.assert_allclose(scores, exact, atol=SIGMA**2)


def test_the_corner_of_the_l_curve_is_near_the_best_parameter():
    found = solvers.l_curve(tikhonov, Y, GRID, A.domain.norm)
    errors = {p: np.linalg.norm(tikhonov(Y, p).solution - TRUTH) for p in GRID}
    assert errors[found.parameter] < 2 * min(errors.values())
    assert found.parameter not in (GRID[0], GRID[-1])
    with pytest.raises(ValueError, match="five or more, rising"):
        solvers.l_curve(tikhonov, Y, GRID[:4], A.domain.norm)


@pytest.mark.slow
def test_results_are_drawn():
    pytest.importorskip("matplotlib").use("Agg")
    result = solvers.vcd(A, Y, iterations=3, partitions=4)
    axes = result.plot()
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert set(lines) == {"residual", *result.histories}
    np.testing.assert_array_equal(lines["residual"].get_ydata(), result.residual_history)
    np.testing.assert_array_equal(lines["objective"].get_xdata(), [1, 2, 3])
    assert axes.get_xlabel() == "iteration"
    assert result.plot(axes) is axes
