"""Solvers on ranks: the iterates of one process."""

from __future__ import annotations

import numpy as np
from torch.distributed.tensor import DTensor

import solvers
from rank_checks.register import all_good, assert_close, check, grids, plan, projector, raises
from solvers import cgls


@check
def cgls_iterates_agree_after_thirty_steps(rank: int, world: int) -> None:
    A = projector((6, 5), 9)
    y = A @ A.domain.random(1) + 0.01 * A.codomain.random(2)
    # Damped, so that rounding is not magnified by directions that the data do not see.
    reference = cgls(A, y, iterations=30, damp=3.0)
    for partition in grids(world) or ["view"]:
        B = plan(A, partition=partition).lower()
        placed = cgls(B, B.codomain.put(y), iterations=30, damp=3.0)
        assert B.domain.placement.holds(placed.solution)
        assert_close(placed.solution, reference.solution, 1e-9)
        np.testing.assert_allclose(
            placed.residual_history, reference.residual_history, rtol=1e-9, atol=1e-12
        )
    plain = cgls(B, y, iterations=2, damp=3.0).solution
    assert not isinstance(plain, DTensor)
    assert_close(plain, cgls(A, y, iterations=2, damp=3.0).solution)


@check
def other_solvers(rank: int, world: int) -> None:
    A = projector((6, 5), 9)
    y = A @ np.abs(A.domain.random(1))
    B = plan(A, partition="view").lower()
    for solve in (
        lambda A, y: solvers.sirt(A, y, iterations=4),
        lambda A, y: solvers.tv(A, y, weight=0.1, iterations=3),
    ):
        assert_close(solve(B, B.codomain.put(y)).solution, solve(A, y).solution, 1e-8)


@check
def measurements_that_are_not_finite_are_refused_by_all(rank: int, world: int) -> None:
    A = projector((6, 5), 9)
    y = A @ A.domain.random(1)
    y[-1, 2] = np.nan  # in the share of one rank
    B = plan(A, partition="view").lower()
    for data in (y, B.codomain.put(y)):
        raises(ValueError, "is nan", lambda data=data: cgls(B, data, iterations=2))
    all_good(rank)
