"""Solves that end by a tolerance half way: what executors and numbers of devices must agree on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import compositions
import numpy as np

import linops as lo
import solvers
from solvers import SolverResult

Solve = Callable[[lo.LinearOperator, Any], SolverResult]

SOLVES: dict[str, Solve] = {
    "cgls": lambda A, y: solvers.cgls(A, y, iterations=60, rtol=5e-2, damp=1.0),
    "cgls, normal equations": lambda A, y: solvers.cgls(A, y, iterations=60, normal_rtol=1e-3),
    "sirt": lambda A, y: solvers.sirt(A, y, iterations=60, rtol=0.12),
    "tv adam": lambda A, y: solvers.tv(
        A, y, weight=0.1, learning_rate=0.1, x0="zero", iterations=60, rtol=0.3
    ),
    "tv pdhg": lambda A, y: solvers.tv(
        A, y, weight=0.1, x0="zero", iterations=60, rtol=0.12, method="pdhg"
    ),
    "vcd": lambda A, y: solvers.vcd(A, y, iterations=30, change_rtol=2e-2, partitions=2),
}


def problem(views: int = 12) -> tuple[lo.LinearOperator, np.ndarray]:
    """A projector whose slices and views do not divide, and noisy data of a positive image."""
    A = compositions.projector((5, 6, 6), views)
    return A, A @ np.abs(A.domain.random(0)) + 0.05 * A.codomain.random(1)


def assert_same(got: SolverResult, wanted: SolverResult, solution: Any, rtol: float = 1e-5) -> None:
    """The same end at the same iteration, histories to `rtol`, solutions to 1e-8."""
    assert 2 < wanted.iterations < 60 and wanted.converged
    assert (got.iterations, got.reason) == (wanted.iterations, wanted.reason)
    np.testing.assert_allclose(got.residual_history, wanted.residual_history, rtol=rtol)
    assert got.histories.keys() == wanted.histories.keys()
    for name, history in wanted.histories.items():
        scale = np.abs(history).max()
        np.testing.assert_allclose(got.histories[name], history, atol=rtol * scale, err_msg=name)
    near = 1e-8 * np.abs(wanted.solution).max()
    np.testing.assert_allclose(solution, wanted.solution, rtol=0, atol=near)
