"""Solvers take lowered operators as they take any other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import compositions
import numpy as np
import pytest
from solves import SOLVES, assert_same, problem

import linops as lo
import solvers
from sharding import plan
from solvers.fingerprint import fingerprint

# Small scans of images that fill their grid are truncated.
pytestmark = pytest.mark.filterwarnings("ignore:the object reaches:RuntimeWarning")


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_cgls_iterates_agree_after_thirty_steps(n: int, executor: str) -> None:
    A, y = problem(24)
    # Damped, so that rounding is not magnified by directions that the data do not see.
    wanted = solvers.cgls(A, y, iterations=30, damp=3.0)
    scale = np.abs(wanted.solution).max()
    for partition in ("view", "z"):
        B = plan(A, devices=n, partition=partition, executor=executor).lower()
        got = solvers.cgls(B, y, iterations=30, damp=3.0)
        np.testing.assert_allclose(got.solution, wanted.solution, rtol=0, atol=1e-8 * scale)
        np.testing.assert_allclose(got.residual_history, wanted.residual_history, rtol=1e-6)
        assert (got.iterations, got.reason) == (30, wanted.reason)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVES)
def test_every_solver_ends_alike_on_any_number_of_devices(name: str) -> None:
    A, y = problem()
    wanted = SOLVES[name](A, y)
    for n in (1, 2, 3, 5, 8):
        for executor, partition in (("serial", "view"), ("threads", "view"), ("threads", "z")):
            B = plan(A, devices=n, partition=partition, executor=executor).lower()
            got = SOLVES[name](B, y)
            assert_same(got, wanted, got.solution)


@pytest.mark.parametrize("method", ["adam", "pdhg"])
def test_weights_of_measurements_are_cut_with_them(method: str) -> None:
    A, y = problem(7)
    W = np.random.default_rng(2).random(y.shape)
    W[3] = 0
    wanted = solvers.tv(A, y, iterations=4, weight=0.1, data_weights=W, method=method)
    B = plan(A, devices=3, partition="view").lower()
    got = solvers.tv(B, y, iterations=4, weight=0.1, data_weights=W, method=method)
    np.testing.assert_allclose(got.solution, wanted.solution, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "damp"),
    [
        (lambda space: 4 * lo.Identity(space) + lo.Gradient(space).gram(), 0.0),
        (lambda s: lo.Restriction(s, np.arange(0, 20, 2)) @ compositions.diffusion(s, 3), 0.7),
    ],
    ids=["constant minus Laplacian", "samples of steps"],
)
def test_thirty_steps_with_stencils(make: Any, damp: float) -> None:
    A = make(lo.Space((7, 5, 4), "float64", ("z", "y", "x")))
    y = A.codomain.random(1)
    wanted = solvers.cgls(A, y, iterations=30, damp=damp)
    for n in (1, 2, 3, 5, 8):
        got = solvers.cgls(plan(A, devices=n, partition="z").lower(), y, iterations=30, damp=damp)
        assert (got.iterations, got.reason) == (30, wanted.reason)
        near = 1e-10 * np.abs(wanted.solution).max()
        np.testing.assert_allclose(got.solution, wanted.solution, rtol=0, atol=near)


def test_a_prior_is_lowered_by_the_space() -> None:
    A, _ = problem()
    B = plan(A, devices=3, partition="z").lower()
    prior = lo.functionals.QGGMRF(A.domain)
    lowered = B.domain.lower(prior)
    x = A.domain.random(4)
    assert lowered(x) == pytest.approx(prior(x), rel=1e-12)
    assert lowered.gradient.domain.home.placement == B.domain.home.placement
    assert B.domain.lower(lowered) is lowered


@pytest.mark.parametrize("grid", [{"view": 2, "z": 2}, {"view": 4}, {"z": 2, "y": 2}])
def test_results_with_all_axes_of_arguments_lie_beside_them(grid: dict[str, int]) -> None:
    A, _ = problem()
    domain = plan(A, devices=4, partition=grid).lower().domain
    cut = domain.lower(lo.Gradient(A.domain)).codomain.home.placement.axes
    assert cut == tuple(None if a is None else a + 1 for a in domain.home.placement.axes)


def test_a_solve_is_known_by_its_problem_wherever_it_runs() -> None:
    A, _ = problem()
    p = plan(A, devices=2, partition="z")
    other = replace(p, settings=replace(p.settings, machine=replace(p.machine, memory=1e9)))
    D = lo.Diagonal(np.full(A.domain.shape, 2.0), A.domain)
    for made in (lambda B: B, lambda B: 2 * B @ D, lambda B: B.H @ B):
        found = [fingerprint(made(B)) for B in (A, p.lower(), other.lower())]
        assert found == [found[0]] * 3
    assert fingerprint(p.lower()) != fingerprint(p.again(A @ D).lower())
