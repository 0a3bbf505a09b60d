"""`A @ x` under torch's autograd and torch.func equals the matrix under the same algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import linops as lo

torch = pytest.importorskip("torch")
func = torch.func


def test_derivatives_are_the_map_and_its_adjoint(case: Any) -> None:
    A = case.operator
    x, y = torch.from_numpy(case.x()).requires_grad_(), torch.from_numpy(case.y())

    def near(found: Any, wanted: np.ndarray) -> None:
        np.testing.assert_allclose(found.detach(), wanted, rtol=1e-4, atol=1e-4)

    out = A @ x
    near(out, case.forward(case.x()))
    (first,) = torch.autograd.grad(out, x, y, retain_graph=True)
    (second,) = torch.autograd.grad(out, x, y)
    near(first, case.adjoint(case.y()))
    assert torch.equal(first, second)
    plain = x.detach()
    near(func.jvp(lambda x: A @ x, (plain,), (plain,))[1], case.forward(case.x()))
    near(func.vjp(lambda x: A @ x, plain)[1](y)[0], case.adjoint(case.y()))
    many = torch.stack([plain, 2 * plain], 1)
    near(func.vmap(lambda x: A @ x, 1)(many)[1], 2 * case.forward(case.x()))
    gradient = func.vmap(func.grad(lambda x: ((A @ x).abs() ** 2).sum()), 1)(many)[0]
    near(gradient, 2 * case.adjoint(case.forward(case.x())))


def test_first_and_second_derivatives_by_differences(double: Any) -> None:
    x = torch.from_numpy(double.x()).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: double.operator @ x, (x,))
    assert torch.autograd.gradgradcheck(lambda x: double.operator @ x, (x,))


def test_weights_that_require_a_gradient_get_it() -> None:
    m = np.arange(6.0).reshape(2, 3)
    w = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w, x: lo.Matrix(m) @ lo.Diagonal(w) @ x, (w, x))
    closed = lo.from_functions(lambda x: w * x, lambda y: w * y, domain=lo.Space(3, "float64"))
    (found,) = torch.autograd.grad((closed @ x).sum(), w)
    assert torch.equal(found, x)


def test_product_spaces() -> None:
    m = np.arange(6.0).reshape(2, 3)
    S = lo.vstack([lo.Matrix(m), lo.Matrix(m + 1)])
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    y = torch.ones(2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: S @ x, (x,))
    assert torch.autograd.gradcheck(lambda y: S.H @ (y, 2 * y), (y,))
