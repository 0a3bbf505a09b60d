"""Derivatives through cgls and tv: against differences, closed forms and unrolled iterations."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.errors import DTypeError
from sharding import plan
from solvers import cgls, sirt, tv

from .system import golden_data, golden_matrix

M, Y = golden_matrix(), golden_data()
V = np.array([0.3, -1.0, 0.5, 0.2, 0.9, -0.4])


def matrix(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((rows, columns))


def differences(function, at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    flat = at.ravel()
    found = np.empty(flat.size)
    for i in range(flat.size):
        move = np.zeros(flat.size)
        move[i] = step
        up, down = ((flat + s * move).reshape(at.shape) for s in (1, -1))
        found[i] = (function(up) - function(down)) / (2 * step)
    return found.reshape(at.shape)


def slope_in_torch(solve, y: np.ndarray, v: np.ndarray) -> np.ndarray:
    torch = pytest.importorskip("torch")
    data = torch.tensor(y, requires_grad=True)
    result = solve(data)
    assert result.solution.requires_grad
    (result.solution * torch.tensor(v)).sum().backward()
    return data.grad.numpy()


def slope_in_jax(solve, y: np.ndarray, v: np.ndarray) -> np.ndarray:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        value = lambda data: (solve(data).solution * v).sum()  # noqa: E731
        return np.asarray(jax.grad(value)(jax.numpy.asarray(y)))


SLOPES = {"torch": slope_in_torch, "jax": slope_in_jax}


@pytest.mark.parametrize("library", SLOPES)
@pytest.mark.parametrize("damp", [0.0, 0.7])
def test_cgls_in_the_data_is_the_dense_formula(library: str, damp: float) -> None:
    A = lo.Matrix(M)
    found = SLOPES[library](
        lambda y: cgls(A, y, iterations=8, damp=damp, differentiable=True), Y, V
    )
    dense = M @ np.linalg.solve(M.T @ M + damp**2 * np.eye(6), V)
    np.testing.assert_allclose(found, dense, atol=1e-10)
    taken = differences(lambda y: cgls(A, y, iterations=8, damp=damp).solution @ V, Y, 0.1)
    np.testing.assert_allclose(found, taken, atol=1e-7)


@pytest.mark.parametrize("library", SLOPES)
def test_the_solution_of_least_norm_has_the_pseudo_inverse_as_its_derivative(library: str) -> None:
    wide = matrix(4, 6)
    found = SLOPES[library](
        lambda y: cgls(lo.Matrix(wide), y, iterations=8, differentiable=True), wide @ V, V
    )
    np.testing.assert_allclose(found, np.linalg.pinv(wide).T @ V, atol=1e-9)


@pytest.mark.parametrize("damp", [0.0, 0.7])
def test_cgls_in_the_operator_against_differences_in_both_libraries(damp: float) -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    d = np.linspace(0.5, 1.5, 15)

    def solution(diagonal):
        A = lo.Diagonal(diagonal) @ lo.Matrix(M)
        return cgls(A, Y_like(diagonal), iterations=8, damp=damp, differentiable=True).solution

    def Y_like(diagonal):
        return lo.namespace(diagonal).asarray(Y)

    taken = differences(lambda diagonal: float(solution(diagonal) @ V), d, 1e-4)
    held = torch.nn.Parameter(torch.tensor(d))
    (solution(held) * torch.tensor(V)).sum().backward()
    np.testing.assert_allclose(held.grad.numpy(), taken, atol=1e-6)
    with jax.enable_x64(True):
        found = jax.grad(lambda diagonal: (solution(diagonal) * V).sum())(jax.numpy.asarray(d))
    np.testing.assert_allclose(np.asarray(found), taken, atol=1e-6)


def test_complex_data_batches_and_product_spaces() -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    C = matrix(7, 4) + 1j * matrix(14, 4)[7:]
    y, v = C @ V[:4] + 0.1j, V[:4] * (1 - 2j)
    dense = C @ np.linalg.solve(C.conj().T @ C, v)  # of Re <v, x>, in the sense of torch
    data = torch.tensor(np.stack([y, 2 * y]), requires_grad=True)
    x = cgls(lo.Matrix(C), data, iterations=8, differentiable=True).solution
    (x * torch.tensor(v).conj()).real.sum().backward()
    np.testing.assert_allclose(data.grad.numpy(), np.stack([dense, dense]), atol=1e-9)
    with jax.enable_x64(True):

        def value(data):
            x = cgls(lo.Matrix(C), data, iterations=8, differentiable=True).solution
            return (x * v.conj()).real.sum()

        found = jax.grad(value)(jax.numpy.asarray(y))
    np.testing.assert_allclose(np.asarray(found), dense.conj(), atol=1e-9)  # JAX has no conj
    both = lo.vstack([lo.Matrix(M), 0.5 * lo.Identity(lo.Space(6, "float64"))])
    pair = torch.tensor(Y, requires_grad=True), torch.zeros(6, dtype=torch.float64)
    x = cgls(both, pair, iterations=8, differentiable=True).solution
    (x * torch.tensor(V)).sum().backward()
    dense = M @ np.linalg.solve(M.T @ M + 0.25 * np.eye(6), V)
    np.testing.assert_allclose(pair[0].grad.numpy(), dense, atol=1e-9)


OPTIONS = {"iterations": 150, "method": "pdhg", "weight": 0.05, "eps": 1e-2, "x0": "zero"}


@pytest.mark.parametrize("library", SLOPES)
def test_tv_in_the_data_against_differences_and_unrolled_iterations(library: str) -> None:
    # Some voxels rest at 0, where the constraint holds them.
    space = lo.Space((3, 2), "float64")
    A = lo.Reshape(space, (6,))
    A = lo.Matrix(M, A.codomain) @ A
    y = M @ np.array([1.0, 0.8, -0.4, 0.3, 0.9, -0.2])
    v = V.reshape(3, 2)
    W = np.linspace(0.5, 1.5, 15)
    options = {**OPTIONS, "data_weights": W}
    x = tv(A, y, **options).solution
    assert (x == 0).any()
    assert (x > 0.1).any()
    quick = {**options, "iterations": 60}
    found = SLOPES[library](lambda y: tv(A, y, differentiable=True, **quick), y, v)
    along = np.linspace(-1, 1, 15)
    up, down = (tv(A, y + s * 1e-4 * along, **options).solution for s in (1, -1))
    assert found @ along == pytest.approx(((up - down) * v).sum() / 2e-4, abs=1e-5)
    if library == "torch":
        np.testing.assert_allclose(found, unrolled(A, y, v, W), atol=1e-5)


def unrolled(A, y, v, W):
    """The gradient through projected gradient descent on the same objective, iteration by
    iteration, in plain torch."""
    torch = pytest.importorskip("torch")
    data, weights = torch.tensor(y, requires_grad=True), torch.tensor(W)
    prior = lo.TotalVariation(A.domain, eps=OPTIONS["eps"], reduction="mean")
    x = torch.zeros(A.domain.shape, dtype=torch.float64)
    for _ in range(400):
        slope = A.H @ (weights * (A @ x - data)) / 15 + OPTIONS["weight"] * prior.gradient(x)
        x = torch.relu(x - 1.0 * slope)
    (x * torch.tensor(v)).sum().backward()
    return data.grad.numpy()


def test_on_a_plan_the_derivative_is_the_same() -> None:
    torch = pytest.importorskip("torch")
    space = lo.Space((6, 5), "float64", axes=("y", "x"))
    A = lo.Diagonal(np.linspace(1, 2, 30).reshape(6, 5), space)
    B = plan(A, devices=3, executor="threads", partition="y").lower()
    y = torch.tensor(np.linspace(0, 1, 30).reshape(6, 5), requires_grad=True)
    x = cgls(B, y, iterations=30, differentiable=True).solution
    x.sum().backward()
    np.testing.assert_allclose(y.grad.numpy(), 1 / np.linspace(1, 2, 30).reshape(6, 5), atol=1e-9)


def test_what_has_no_derivative_is_refused_and_plain_data_are_solved_as_ever() -> None:
    jax = pytest.importorskip("jax")
    A = lo.Matrix(M)
    plain = cgls(A, Y, iterations=4)
    np.testing.assert_array_equal(
        cgls(A, Y, iterations=4, differentiable=True).solution, plain.solution
    )
    with jax.enable_x64(True), pytest.raises(DTypeError, match="outside of jit"):
        jax.jit(lambda y: cgls(A, y, iterations=4, differentiable=True).solution)(Y)
    with pytest.raises(TypeError, match="differentiable"):
        sirt(A, Y, iterations=2, differentiable=True)
    torch = pytest.importorskip("torch")
    image = lo.Reshape(lo.Space((3, 2), "float64"), (6,))
    with pytest.raises(ValueError, match="weight as a number"):
        tv(lo.Matrix(M, image.codomain) @ image, torch.tensor(Y, requires_grad=True),
           iterations=3, differentiable=True)  # fmt: skip
