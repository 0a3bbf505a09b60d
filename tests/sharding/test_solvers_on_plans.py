"""Solvers take lowered operators as they take any other."""

from __future__ import annotations

from dataclasses import replace

import compositions
import numpy as np
import pytest

import geometries as ct
import linops as lo
import solvers
from sharding import plan
from solvers.fingerprint import fingerprint


def _problem() -> tuple[lo.LinearOperator, np.ndarray]:
    A = compositions.projector((5, 6, 6), 24)
    return A, A @ A.domain.random(0) + 0.1 * A.codomain.random(3)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("partition", ["view", "z"])
def test_cgls_iterates_agree_after_thirty_steps(n: int, partition: str) -> None:
    A, y = _problem()
    # Damped, so that rounding is not magnified by directions that the data do not see.
    wanted = solvers.cgls(A, y, iterations=30, damp=3.0)
    B = plan(A, devices=n, partition=partition).lower()
    got = solvers.cgls(B, y, iterations=30, damp=3.0)
    scale = np.abs(wanted.solution).max()
    np.testing.assert_allclose(got.solution, wanted.solution, rtol=0, atol=1e-8 * scale)
    np.testing.assert_allclose(got.residual_history, wanted.residual_history, rtol=1e-9)
    assert got.reason == wanted.reason


@pytest.mark.parametrize(
    "solve",
    [
        lambda A, y: solvers.sirt(A, y, iterations=10),
        lambda A, y: solvers.tv(A, y, weight=0.1, iterations=5),
        lambda A, y: solvers.tv(A, y, weight=0.1, iterations=5, method="pdhg"),
        lambda A, y: solvers.vcd(A, y, iterations=3),
    ],
    ids=["sirt", "tv adam", "tv pdhg", "vcd"],
)
def test_other_solvers(solve) -> None:
    A, y = _problem()
    wanted = solve(A, y).solution
    for n in (2, 3):
        got = solve(plan(A, devices=n, partition="view").lower(), y).solution
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-8 * np.abs(wanted).max())


def test_the_order_of_views_does_not_matter() -> None:
    """Views permuted with their parameters: data permuted, adjoint and solution as before."""
    angles = np.linspace(0, 2 * np.pi, 7, endpoint=False)
    order = np.random.default_rng(1).permutation(7)
    A, P = (
        ct.Projector(
            ct.ConeBeam(each, ct.Detector((8, 32)), 64.0, 128.0), ct.Grid((7, 32, 32), 0.5),
            precision="float64",
        )
        for each in (angles, angles[order])
    )  # fmt: skip
    x = A.domain.random(0)
    y = A @ x
    for partition in ("view", {"view": 2, "z": 2}):
        devices = 3 if partition == "view" else 4
        B = plan(P, devices=devices, partition=partition).lower()
        near = {"rtol": 0, "atol": 1e-10 * np.abs(y).max()}
        np.testing.assert_allclose(B @ x, y[order], **near)
        np.testing.assert_allclose(B.H @ y[order], A.H @ y, rtol=1e-10, atol=1e-9)
        got = solvers.cgls(B, y[order], iterations=5, damp=3.0).solution
        wanted = solvers.cgls(A, y, iterations=5, damp=3.0).solution
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-8 * np.abs(wanted).max())


def test_a_prior_is_lowered_by_the_space() -> None:
    A, _ = _problem()
    B = plan(A, devices=3, partition="z").lower()
    prior = lo.functionals.QGGMRF(A.domain)
    lowered = B.domain.lower(prior)
    x = A.domain.random(4)
    assert lowered(x) == pytest.approx(prior(x), rel=1e-12)
    assert lowered.gradient.domain.placement == B.domain.placement
    assert B.domain.lower(lowered) is lowered


@pytest.mark.parametrize("grid", [{"view": 2, "z": 2}, {"view": 4}, {"z": 2, "y": 2}])
def test_results_with_all_axes_of_arguments_lie_beside_them(grid: dict[str, int]) -> None:
    A, _ = _problem()
    domain = plan(A, devices=4, partition=grid).lower().domain
    cut = domain.lower(lo.Gradient(A.domain)).codomain.placement.axes
    assert cut == tuple(None if a is None else a + 1 for a in domain.placement.axes)


def test_a_solve_is_known_by_its_problem_wherever_it_runs() -> None:
    A, _ = _problem()
    p = plan(A, devices=2, partition="z")
    other = replace(p, settings=replace(p.settings, machine=replace(p.machine, memory=1e9)))
    D = lo.Diagonal(np.full(A.domain.shape, 2.0), A.domain)
    for made in (lambda B: B, lambda B: 2 * B @ D, lambda B: B.H @ B):
        found = [fingerprint(made(B)) for B in (A, p.lower(), other.lower())]
        assert found == [found[0]] * 3
    assert fingerprint(p.lower()) != fingerprint(p.again(A @ D).lower())
