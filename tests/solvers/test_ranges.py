"""Data far within float32 whose squares are not: solves scale with the data in every library."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from solvers import cgls, sirt, tv, vcd

from .system import to

MATRIX = np.array([[2, 1], [1, 3], [0, 1]], "float32")
TRUTH = np.array([1, 2], "float32")
SOLVERS = {
    "cgls": lambda A, y: cgls(A, y, iterations=8, rtol=1e-4),
    "damped": lambda A, y: cgls(A, y, iterations=8, damp=1e-4),
    "sirt": lambda A, y: sirt(A, y, iterations=300, rtol=1e-4, bounds=None),
    "adam": lambda A, y: tv(A, y, iterations=300, weight=0.0),
    "pdhg": lambda A, y: tv(A, y, iterations=300, weight=0.0, method="pdhg"),
    "vcd": lambda A, y: vcd(A, y, iterations=40),
    "weighted": lambda A, y: vcd(A, y, weights=2.0, sigma_y=0.5, iterations=40),
}


@pytest.mark.slow
@pytest.mark.parametrize("namespace", ["numpy", "jax"])
@pytest.mark.parametrize("name", SOLVERS)
def test_solutions_and_histories_scale_with_the_data(name, namespace):
    A = lo.Matrix(MATRIX)
    y = MATRIX @ TRUTH
    plain = SOLVERS[name](A, to(y, namespace))
    np.testing.assert_allclose(np.asarray(plain.solution), TRUTH, rtol=0.01)
    for scale in (2.0**-75, 2.0**63):
        found = SOLVERS[name](A, to(y * np.float32(scale), namespace))
        np.testing.assert_allclose(np.asarray(found.solution) / np.float32(scale), TRUTH, rtol=0.01)
        assert found.converged == plain.converged
        assert found.residual_history[0] / scale == pytest.approx(
            plain.residual_history[0], rel=1e-5
        )
