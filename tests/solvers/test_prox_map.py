"""The proximal map against the linear solve that it is, and at both ends of its range."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.errors import ShapeError
from solvers import prox_map, vcd


def _problem() -> tuple[lo.LinearOperator, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    A = lo.Matrix(rng.standard_normal((9, 12)), domain=lo.Space((2, 2, 3), "float64"))
    return A, rng.standard_normal(9), rng.standard_normal((2, 2, 3)), rng.random(9)


@pytest.mark.slow
def test_it_is_the_linear_solve() -> None:
    A, y, v, w = _problem()
    M, c, weight = A.to_dense(), 1 / 0.7**2, 1 / 0.4**2
    wanted = np.linalg.solve(
        c * M.T * w @ M + weight * np.eye(12), c * M.T @ (w * y) + weight * v.ravel()
    )
    for start in (None, np.zeros_like(v)):
        got = prox_map(A, y, v, 0.4, weights=w, sigma_y=0.7, iterations=200, x0=start, partitions=3)
        np.testing.assert_allclose(got.solution.ravel(), wanted, rtol=0, atol=1e-8)


def test_small_deviations_give_v_and_large_ones_the_fit() -> None:
    A, y, v, w = _problem()
    near = prox_map(A, y, v, 1e-6, weights=w).solution
    assert np.linalg.norm(near - v) < 2e-5 * np.linalg.norm(v)
    options = {"iterations": 5, "partitions": 2, "x0": v}
    far = prox_map(A, y, v, 1e6, weights=w, **options).solution
    np.testing.assert_allclose(far, vcd(A, y, weights=w, **options).solution, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_it_is_firmly_nonexpansive() -> None:
    A, y, v, w = _problem()
    other = np.random.default_rng(5).standard_normal(v.shape)
    p, q = (prox_map(A, y, u, 0.5, weights=w, iterations=300).solution for u in (v, other))
    moved = np.vdot(p - q, p - q)
    assert 0 < moved <= np.vdot(p - q, v - other) * (1 + 1e-8)


def test_bad_input() -> None:
    A, y, v, _ = _problem()
    with pytest.raises(ValueError, match="sigma_prox"):
        prox_map(A, y, v, 0.0)
    with pytest.raises(ShapeError, match="prox_map: v"):
        prox_map(A, y, v[0], 1.0)
