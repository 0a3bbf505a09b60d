"""Fast Poisson solves, advection and explicit steps against matrices and known figures."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import linops as lo
from linops.stencils import (
    LSRK4,
    RK4,
    SSPRK54,
    Advection,
    Diffusion,
    Euler,
    Laplacian,
    PoissonSolve,
    Stencil,
    advective_step,
    diffusive_step,
)
from linops.testing import check_operator
from tests.stencils import dense

SOLVED = [(k, k) for k in ("periodic", "even", "odd", "zero")] + [("even", "odd"), ("odd", "even")]
METHODS = {"Euler": Euler, "RK4": RK4, "SSPRK54": SSPRK54, "LSRK4": LSRK4}


def test_poisson_inverts_the_discrete_laplacian():
    for first, second, order in itertools.product(SOLVED, SOLVED, (2, 8)):
        if order > 2 and "zero" in (*first, *second):
            continue
        space = lo.Space((4, 5), "float64", spacing=(0.5, 2.0))
        parts = [
            np.kron(dense.matrix(4, dense.second(order), first) / 0.25, np.eye(5)),
            np.kron(np.eye(4), dense.matrix(5, dense.second(order), second) / 4.0),
        ]
        for alpha in (0.0, 0.3):
            P = PoissonSolve(space, alpha, order, (first, second))
            M = alpha * np.eye(20) - parts[0] - parts[1]
            np.testing.assert_allclose(P.to_dense(), np.linalg.pinv(M, rcond=1e-12), atol=1e-12)
            free = {"periodic", "even"}
            assert P.singular == (alpha == 0 and set(first) <= free and set(second) <= free)
    with pytest.raises(ValueError, match="conjugate|cg"):
        PoissonSolve(lo.Space(5), boundary="edge")
    with pytest.raises(ValueError, match="cg"):
        PoissonSolve(lo.Space(5), order=4, boundary="zero")
    with pytest.raises(ValueError, match="eigenvalue"):
        PoissonSolve(lo.Space(4), -2.0, boundary="periodic")
    helmholtz = PoissonSolve(lo.Space(6, "float64"), -1.7, 4, "odd")
    M = -1.7 * np.eye(6) - dense.matrix(6, dense.second(4), ("odd", "odd"))
    np.testing.assert_allclose(helmholtz.to_dense(), np.linalg.inv(M), atol=1e-12)
    assert "psd" not in helmholtz.tags


def test_poisson_contract():
    check_operator(PoissonSolve(lo.Space((4, 5)), 0.3, 4, ("periodic", "odd")))
    mixed = PoissonSolve(lo.Space((3, 4, 2)), 0.0, 2, ("even", ("even", "odd"), "zero"))
    check_operator(mixed, libraries=("torch",))


def test_fluxes_by_definition():
    rng = np.random.default_rng(0)
    n, h = 9, 0.5
    space = lo.Space(n, "float64", spacing=h)
    u, a = rng.standard_normal(n), rng.standard_normal(n)
    right = {k: np.roll(u, -k) for k in (-2, -1, 0, 1)}  # about face f: cells f-2, f-1, f, f+1
    faces = {
        "upwind1": np.where(a > 0, right[-1], right[0]),
        "upwind3": np.where(
            a > 0,
            (-right[-2] + 5 * right[-1] + 2 * right[0]) / 6,
            (-right[1] + 5 * right[0] + 2 * right[-1]) / 6,
        ),
        "central2": (right[-1] + right[0]) / 2,
        "central4": (7 * (right[-1] + right[0]) - right[-2] - right[1]) / 12,
    }
    for scheme, value in faces.items():
        flux = a * value
        wanted = -(np.roll(flux, -1) - flux) / h
        A = Advection(space, a, scheme)
        np.testing.assert_allclose(A @ u, wanted, atol=1e-13)
        np.testing.assert_allclose(A.H.to_dense(), A.to_dense().T, atol=1e-13)
        assert abs((A @ u).sum()) < 1e-13
        for speed in (1.5, -1.5):
            same = Advection(space, np.full(n, speed), scheme)
            np.testing.assert_allclose(
                Advection(space, speed, scheme).to_dense(), same.to_dense(), atol=1e-14
            )
    plane = lo.Space((4, 5), "float64")
    skew = Advection(plane, (rng.standard_normal((4, 5)), 2.0), "skew4", ("zero", "periodic"))
    assert (skew.to_dense() + skew.to_dense().T == 0.0).all()
    # Euler at CFL 1 moves the upwind solution by one cell.
    one = Euler(Advection(lo.Space(n, "float64"), 1.0), 1.0)
    np.testing.assert_allclose(one @ u, np.roll(u, 1), atol=3e-16)


@pytest.mark.parametrize(
    ("scheme", "wanted"),
    [("upwind1", 0.1518), ("upwind3", 1.396e-2), ("central2", 7.674e-2), ("central4", 3.777e-3)],
)
def test_a_pulse_goes_twice_around(scheme, wanted):
    n, h = 64, 1 / 64
    x = (np.arange(n) + 0.5) * h
    u = start = 1 + np.exp(-((x - 0.5) ** 2) / (2 * 0.0625**2))
    A = Advection(lo.Space(n, "float64", spacing=h), 1.0, scheme)
    dt = advective_step([1.0], h, 0.5)
    step = SSPRK54(A, dt)
    M = step.to_dense()
    for _ in range(256):
        u = M @ u
    assert abs(u - start).mean() == pytest.approx(wanted, rel=2e-3)
    assert abs(u.sum() - start.sum()) < 2e-12


def test_steps_are_polynomials_with_exact_adjoints():
    space = lo.Space((4, 5), "float64")
    A = Advection(space, (0.7, -0.4), "upwind3")
    M, dt, eye = A.to_dense(), 0.1, np.eye(20)
    taylor = eye + dt * M @ (eye + dt * M / 2 @ (eye + dt * M / 3 @ (eye + dt * M / 4)))
    for name, method in METHODS.items():
        step = method(A, dt)
        assert isinstance(step, lo.LinearOperator)
        found = step.to_dense()
        if name == "Euler":
            np.testing.assert_allclose(found, eye + dt * M, atol=1e-15)
        elif name == "RK4":
            np.testing.assert_allclose(found, taylor, atol=1e-15)
        else:  # of order 4: what is beyond is a multiple of the fifth power
            rest = found - taylor
            assert 0 < abs(rest).max() < 1e-2 * np.linalg.norm(dt * M, 2) ** 5
        np.testing.assert_allclose(step.H.to_dense(), found.T, atol=1e-15)
    check_operator(SSPRK54(Diffusion(lo.Space((4, 5)), 1.0), 0.1), libraries=())


@pytest.mark.parametrize(
    ("name", "errors"),
    [("SSPRK54", (4.67e-7, 2.82e-8, 1.73e-9)), ("LSRK4", (9.30e-7, 5.45e-8, 3.30e-9))],
)
def test_steps_of_a_nonlinear_equation(name, errors):
    """u' = -u^2, u(0) = 1: u(1) = 1/2."""
    space = lo.Space(1, "float64")
    right = Stencil(space, lambda u: -u(0) * u(0))
    for n, wanted in zip((10, 20, 40), errors, strict=True):
        step = METHODS[name](right, 1 / n)
        u = np.ones(1)
        for _ in range(n):
            u = step(u)
        assert abs(u[0] - 0.5) == pytest.approx(wanted, rel=5e-3)


def test_derivatives_of_nonlinear_steps():
    space = lo.Space(6, "float64")
    right = Stencil(space, lambda u: u(0) * (u(1) - u(-1)), "periodic")
    x, dx = space.random(0), space.random(1)
    for method in METHODS.values():
        step = method(right, 0.1)
        numeric = (step(x + 1e-6 * dx) - step(x - 1e-6 * dx)) / 2e-6
        np.testing.assert_allclose(step.jvp(x, dx), numeric, atol=1e-8)
        J = step.jacobian(x)
        np.testing.assert_allclose(J.H.to_dense(), J.to_dense().T, atol=1e-14)


def test_a_mode_diffuses_at_its_own_rate():
    n, h, kappa, k = 12, 0.5, 0.7, 3
    mode = np.cos(np.pi * k * (np.arange(n) + 0.5) / n)
    space = lo.Space(n, "float64", spacing=h)
    dt = diffusive_step(kappa, h)
    assert dt == pytest.approx(h**2 / (2 * kappa))
    for order in (2, 4, 6, 8):
        row = dense.D2[order]
        symbol = row[0] + 2 * sum(a * np.cos(m * np.pi * k / n) for m, a in enumerate(row[1:], 1))
        step = Euler(kappa * Laplacian(space, order, "even"), dt / 2)
        u = mode
        for _ in range(20):
            u = step @ u
        growth = (1 + dt / 2 * kappa * symbol / h**2) ** 20
        np.testing.assert_allclose(u, growth * mode, atol=1e-12)
    u = start = space.random(0)
    step = Euler(Diffusion(space, kappa), dt)
    for _ in range(30):
        u = step @ u
        assert u.max() <= start.max() + 1e-14
        assert u.min() >= start.min() - 1e-14
    assert abs(u.sum() - start.sum()) < 1e-13
