"""Under `torch.autocast` operators keep their dtype, their numbers and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import linops as lo
from solvers import cgls

torch = pytest.importorskip("torch")


def matrix(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


M = lo.Matrix(matrix(5, 4))
OPERATORS = {
    "matrix": M,
    "adjoint": M.H,
    "gram": M.gram(),
    "product": lo.Matrix(matrix(3, 5)) @ M,
    "sum": M + lo.Matrix(2 * matrix(5, 4)),
    "kron": lo.kron(lo.Matrix(matrix(2, 3)), lo.Matrix(matrix(2, 4))),
    "columns": M.columns([0, 1]),
    "trained": lo.Matrix(torch.tensor(matrix(5, 4), requires_grad=True)),
    "of the user": lo.from_function(
        lambda x: torch.nn.functional.conv1d(x[None, None], torch.ones(1, 1, 3))[0, 0] / 3,
        domain=lo.Space(9), namespace="torch",
    ),
    "functional": lo.LeastSquares(lo.Space(5)) @ M,
    "its gradient": (lo.LeastSquares(lo.Space(5)) @ M).gradient,
    "nonlinear": lo.transmission(M),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_values_dtypes_and_gradients_are_those_without(name: str) -> None:
    A: Any = OPERATORS[name]
    start = torch.tensor(np.asarray(A.domain.random(1)))

    def run(half: bool, mixed: bool) -> tuple[Any, Any]:
        x = (start.bfloat16() if half else start).clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            y = A(x)
        (gradient,) = torch.autograd.grad((y * y).sum(), x)
        return y.detach(), gradient

    for half in (False, True):
        (y, g), (wanted, gradient) = run(half, True), run(half, False)
        assert (y.dtype, g.dtype) == (wanted.dtype, gradient.dtype)
        assert y.dtype in (torch.float32, torch.float64)
        torch.testing.assert_close(y, wanted, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(g, gradient, rtol=1e-2 if half else 1e-5, atol=1e-5)


def test_a_backward_pass_under_autocast_is_the_declared_adjoint() -> None:
    x, y = torch.tensor(matrix(4), requires_grad=True), torch.tensor(matrix(5))
    with torch.autocast("cpu", torch.bfloat16):
        (gradient,) = torch.autograd.grad(M(x), x, y)
    torch.testing.assert_close(gradient, M.H(y))


def test_what_stands_beside_apply() -> None:
    """Inner products, proximal maps, Jacobians and solves; the network's own layers stay halved."""
    x, y = torch.tensor(matrix(4)), torch.tensor(matrix(5))
    f = lo.LeastSquares(lo.Space(5)) @ M
    calls = {
        "inner": lambda: M.domain.inner(x, x),
        "jacobian": lambda: lo.transmission(M).jacobian(x)(x),
        "prox": lambda: lo.L1(M.domain).prox(x, 0.5),
        "value": lambda: f(x),
        "solve": lambda: cgls(M, y, iterations=4).solution,
    }
    for name, call in calls.items():
        wanted = call()
        with torch.autocast("cpu", torch.bfloat16):
            found = call()
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, msg=name)
