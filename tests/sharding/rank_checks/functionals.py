"""Functionals and nonlinear operators on ranks: global values, right derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import Replicate

import linops as lo
from linops import functionals as fn
from rank_checks.register import assert_close, check, plan, projector
from solvers import cgls


def _functionals() -> dict[str, Any]:
    A = projector((5, 4), 5)
    V, W = A.domain, A.codomain
    misfit = fn.LeastSquares(W).translate(W.random(9)) @ A
    return {
        "misfit": misfit,
        "total variation": fn.TotalVariation(V),
        "qggmrf": fn.QGGMRF(V),
        "l2": fn.Huber(V, 0.1),
        "misfit and prior": misfit + 0.3 * fn.QGGMRF(V),
    }


@check
def functionals_are_global_with_the_right_derivative(rank: int, world: int) -> None:
    for number, f in enumerate(_functionals().values()):
        x = f.domain.random(1)
        value, gradient = f(x), f.gradient(x)
        for partition in ("auto", "y") if world == 2 else (("auto", "y")[(number + world) % 2],):
            F = plan(f, partition=partition).lower()
            X = F.domain.home.put(x)
            assert isinstance(F(x), float)
            assert abs(F(x) - value) <= 1e-12 * abs(value)
            assert abs(F(X) - value) <= 1e-12 * abs(value)
            assert_close(F.gradient(X), gradient)
            assert_close(F.gradient(x), gradient)
            X = F.domain.home.put(x).requires_grad_()
            recorded = F(X)
            assert recorded.placements == (Replicate(),)
            (2 * recorded).backward()
            assert X.grad.placements == X.placements
            assert_close(X.grad, 2 * gradient)
            plain = torch.from_numpy(x).requires_grad_()
            F(plain).backward()
            assert_close(plain.grad, gradient)
            local = F.domain.home.put(x).to_local()
            got = torch.func.grad(lambda t, F=F: F.local(t) / world)(local)
            assert_close(got, F.domain.home.put(gradient).to_local())


@check
def functionals_curve_as_in_one_process(rank: int, world: int) -> None:
    space = lo.Space((5, 4), "float64", ("y", "x"))
    for f in (fn.TotalVariation(space), fn.QGGMRF(space), fn.Huber(space, 0.1)):
        x, v = space.random(1), space.random(2)
        gradient, curved = f.gradient(x), f.gradient.jacobian(x) @ v
        F = plan(f, partition="y").lower()
        X, V = F.domain.home.put(x).requires_grad_(), F.domain.home.put(v)
        (g,) = torch.autograd.grad(F(X), X, create_graph=True)
        assert_close(g.detach(), gradient)
        (h,) = torch.autograd.grad((g * V).sum(), X)
        assert_close(h, curved)
        part, way = X.detach().to_local(), V.to_local()
        once = torch.func.grad(lambda t, F=F: F.local(t) / world)
        assert_close(torch.func.jvp(once, (part,), (way,))[1], F.domain.home.put(curved).to_local())


@check
def total_variation_of_faces_is_exact(rank: int, world: int) -> None:
    space = lo.Space((5, 4), "float64", ("y", "x"))
    step = np.zeros(space.shape)
    step[2:] = 3.0  # one face of 4 cells, jump 3
    prior = fn.L1(lo.Gradient(space).codomain) @ lo.Gradient(space)
    F = plan(prior, partition="y").lower()
    assert abs(F(F.domain.home.put(step)) - 12.0) < 2e-10
    X = F.domain.home.put(step).requires_grad_()
    smooth = fn.TotalVariation(space)
    T = plan(smooth, partition="y").lower()
    T(X).backward()
    assert_close(X.grad, smooth.gradient(step), 2e-10)


@check
def jacobians_of_plans(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    N = lo.transmission(A, 2.0)
    x, v, y = A.domain.random(1), A.domain.random(2), A.codomain.random(3)
    for partition in ("view", "auto"):
        B = plan(N, partition=partition).lower()
        X = B.domain.home.put(x)
        assert_close(B(X), N(x))
        J, wanted = B.jacobian(X), N.jacobian(x)
        assert_close(J @ B.domain.home.put(v), wanted @ v)
        assert_close(J.H @ B.codomain.home.put(y), wanted.H @ y)
        X = X.clone().requires_grad_()
        (B(X) * B.codomain.home.put(y)).sum().backward()
        assert_close(X.grad, wanted.H @ y)


@check
def gauss_newton_steps_agree(rank: int, world: int) -> None:
    A = projector((5, 4), 9)
    N = lo.transmission(A, 2.0)
    x = 0.1 * A.domain.random(1)
    data = N(0.1 * A.domain.random(2))
    B = plan(N, partition="view").lower()
    residual = data - N(x)
    wanted = cgls(N.jacobian(x), residual, iterations=5).solution
    J = B.jacobian(B.domain.home.put(x))
    got = cgls(J, B.codomain.home.put(residual), iterations=5).solution
    assert_close(got, wanted, 1e-9)
