"""Finite-volume steps: shocks, conservation, Jacobians and blocks."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.stencils import Burgers, IsothermalEuler
from linops.testing import check_operator


@pytest.mark.parametrize(("n", "wanted"), [(100, 0.0140), (200, 0.0080)])
def test_a_fan_and_a_shock(n, wanted):
    x = (np.arange(n) + 0.5) / n
    u = ((x > 0.1) & (x < 0.5)).astype(float)
    mass, count = u.sum(), int(np.ceil(0.4 / (0.8 / n)))
    step = Burgers(lo.Space(n, "float64", spacing=1 / n), 0.4 / count)
    for _ in range(count):
        u = step(u)
    fan = (x - 0.1) / 0.4
    exact = np.where((x > 0.1) & (x < 0.5), fan, np.where((x >= 0.5) & (x < 0.7), 1.0, 0.0))
    assert abs(u - exact).mean() == pytest.approx(wanted, rel=0.04)
    assert abs(np.diff(u)).sum() + abs(u[0] - u[-1]) <= 2 + 1e-12
    assert u.sum() == pytest.approx(mass, rel=1e-13)


def _riemann(left, right, c=1.0):
    """Density and velocity in the middle of the exact isothermal Riemann solution."""
    (a, u), (b, v) = left, right

    def phi(r, q):
        return c * np.log(r / q) if r <= q else c * (r - q) / np.sqrt(r * q)

    low, high = 1e-8, 1e4
    for _ in range(200):
        r = np.sqrt(low * high)
        low, high = (r, high) if u - phi(r, a) > v + phi(r, b) else (low, r)
    return r, u - phi(r, a)


def _exact(xi, left, right, c=1.0):
    r, w = _riemann(left, right, c)
    (a, u), (b, v) = left, right
    rho = np.full_like(xi, r)
    speed = (u * a - w * r) / (a - r) if r > a else None
    if r > a:
        rho = np.where(xi < speed, a, rho)
    else:
        fan = a * np.exp(-(xi - (u - c)) / c)
        rho = np.where(xi < u - c, a, np.where(xi < w - c, fan, rho))
    if r > b:
        rho = np.where(xi > (v * b - w * r) / (b - r), b, rho)
    else:
        fan = b * np.exp((xi - (v + c)) / c)
        rho = np.where(xi > v + c, b, np.where(xi > w + c, fan, rho))
    return rho


@pytest.mark.slow
@pytest.mark.parametrize(("order", "rate"), [(1, 0.65), (2, 0.8)])
def test_riemann_problems(order, rate):
    rng = np.random.default_rng(7)
    for _ in range(2):
        left = (0.5 + rng.random(), rng.uniform(-0.3, 0.3))
        right = (0.5 + rng.random(), rng.uniform(-0.3, 0.3))
        errors = []
        for n in (150, 600):
            x = (np.arange(n) + 0.5) / n - 0.5
            rho = np.where(x < 0, left[0], right[0])
            u = np.stack([rho, rho * np.where(x < 0, left[1], right[1])])
            count = int(np.ceil(0.2 / (0.25 / n)))
            step = IsothermalEuler(
                lo.Space(n, "float64", spacing=1 / n), 0.2 / count, boundary="edge", order=order
            )
            for _ in range(count):
                u = step(u)
            errors.append(abs(u[0] - _exact(x / 0.2, left, right)).mean())
        assert np.log2(errors[0] / errors[1]) / 2 >= rate


def test_what_is_conserved():
    space = lo.Space((6, 5), "float64", spacing=(0.5, 1.0))
    rng = np.random.default_rng(0)
    u = np.concatenate([1 + rng.random((1, 6, 5)), rng.uniform(-0.2, 0.2, (2, 6, 5))])
    for boundary, order in (("periodic", 1), ("even", 1), (("even", "periodic"), 2)):
        step = IsothermalEuler(space, 0.05, 1.3, boundary, order, "van leer")
        v = step(u)
        assert v[0].sum() == pytest.approx(u[0].sum(), rel=1e-15)
        if boundary == "periodic":
            np.testing.assert_allclose(v.sum((1, 2)), u.sum((1, 2)), atol=2e-14)
        assert v[0].min() > 0
    rest = np.concatenate([np.ones((1, 6, 5)), np.zeros((2, 6, 5))])
    np.testing.assert_allclose(
        IsothermalEuler(space, 0.05, boundary="even")(rest), rest, atol=1e-16
    )


def test_sound_at_rest():
    """The linearised step moves the wave that runs to the right by its upwind factor."""
    n, lam = 12, 0.4
    theta = 2 * np.pi / n
    step = IsothermalEuler(lo.Space(n, "float64"), lam)
    rest = np.stack([np.ones(n), np.zeros(n)])
    wave = np.exp(1j * theta * np.arange(n))
    J = step.jacobian(rest)
    found = J @ np.stack([wave.real, wave.real]) + 1j * (J @ np.stack([wave.imag, wave.imag]))
    factor = 1 - lam * (1 - np.exp(-1j * theta))
    np.testing.assert_allclose(found, factor * np.stack([wave, wave]), atol=1e-13)


STEPS = {
    "burgers": lambda: Burgers(lo.Space((5, 4), "float64"), 0.1, ("periodic", "edge")),
    "burgers2": lambda: Burgers(lo.Space(9, "float64"), 0.1, "odd", 2, "van leer"),
    "euler": lambda: IsothermalEuler(lo.Space((4, 5), "float64"), 0.1, 1.2, ("even", "periodic")),
    "euler2": lambda: IsothermalEuler(lo.Space(8, "float64"), 0.1, 1.2, "edge", 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_derivatives(name):
    step = STEPS[name]()
    rng = np.random.default_rng(3)
    x = 1 + 0.3 * rng.random(step.domain.shape)
    dx, dy = rng.standard_normal((2, *step.domain.shape))
    gaps = []
    for k in range(4):
        eps = 0.01 / 2**k
        gaps.append(np.linalg.norm(step(x + eps * dx) - step(x) - eps * step.jvp(x, dx)))
    rates = np.log2(np.array(gaps[:-1]) / gaps[1:])
    if name in ("euler", "burgers"):
        assert ((rates > 1.9) & (rates < 2.1)).all()
    small = (step(x + 1e-7 * dx) - step(x - 1e-7 * dx)) / 2e-7
    np.testing.assert_allclose(step.jvp(x, dx), small, atol=1e-6)
    assert np.vdot(step.jvp(x, dx), dy) == pytest.approx(np.vdot(dx, step.vjp(x, dy)), rel=1e-12)
    J = step.jacobian(x)
    check_operator(J, libraries=())
    axis = len(step.domain.shape) - 1
    n, halo = step.domain.shape[-1], J.rule.domain[0][-1].halo
    ring = J.rule.domain[0][-1].periodic
    for padded in (False, True):
        start, stop = 1, n - 1
        planes = np.arange(start - halo, stop + halo)
        taken = planes % n if ring or padded else planes[(planes >= 0) & (planes < n)]
        block = step.block(axis, start, stop, padded)
        part = block(x[..., taken])
        np.testing.assert_array_equal(part, step(x)[..., start:stop])
        slopes = block.jacobian(x[..., taken])(dx[..., taken])
        np.testing.assert_allclose(slopes, (J @ dx)[..., start:stop], atol=1e-14)


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_other_libraries(library):
    step = IsothermalEuler(lo.Space(8), 0.1, 1.2, "even")
    package = pytest.importorskip(library)
    x = np.random.default_rng(0).random((2, 8), np.float32) + 1
    asarray = package.numpy.asarray if library == "jax" else package.asarray
    other = asarray(x)
    np.testing.assert_allclose(np.asarray(step(other)), step(x), rtol=1e-5)
    J, K = step.jacobian(other), step.jacobian(x)
    np.testing.assert_allclose(np.asarray(J @ other), K @ x, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(J.H @ other), K.H @ x, rtol=2e-5)
