"""Acoustic waves: dispersion, energy, stability, sources and receivers, gradients in the medium."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.stencils import AcousticWave, WaveModel, WaveRecords, stable_step, wave_energy
from linops.testing import check_operator
from tests.stencils import dense


@pytest.mark.parametrize("order", [2, 4, 6, 8])
def test_a_standing_wave_follows_its_dispersion_relation(order):
    """A plane wave in a periodic box, five periods: exact for the scheme, and its known error."""
    n = 8
    h = 1.5 / n
    shape = (n, n, 2 * n)
    space = lo.Space(shape, "float64", ("z", "y", "x"), h)
    z, y, x = np.meshgrid(*((np.arange(m) + 0.5) * h for m in shape), indexing="ij")
    k = 2 * np.pi * np.array([1, 2, 2]) / 3  # as (x, y, z), so that the period is 1
    phase = k[0] * x + k[1] * y + k[2] * z
    steps = int(np.ceil(12.5 / h))
    dt = 5 / steps
    row = dense.D2[order]
    symbol = sum(
        (row[0] + 2 * sum(a * np.cos(m * q * h) for m, a in enumerate(row[1:], 1))) / h**2
        for q in k
    )
    rate = 2 / dt * np.arcsin(np.sqrt(-((dt / 2) ** 2) * symbol))
    step = AcousticWave(space, 1.0, dt, order, "periodic")
    p, before = np.cos(phase), np.cos(phase + rate * dt)
    energy = wave_energy(space, (p, before), 1.0, dt, order, "periodic")
    for _ in range(steps):
        p, before = step @ (p, before)
    np.testing.assert_allclose(p, np.cos(phase - rate * 5), atol=1e-12)
    assert wave_energy(space, (p, before), 1.0, dt, order, "periodic") == pytest.approx(
        energy, rel=1e-13
    )
    known = {2: 0.2923, 4: 0.1495, 6: 0.1815, 8: 0.1844}
    p, before = np.cos(phase), np.cos(phase + 2 * np.pi * dt)
    for _ in range(steps):
        p, before = step @ (p, before)
    assert abs(p - np.cos(phase)).mean() == pytest.approx(known[order], rel=2e-3)


def test_limits_of_stability():
    for order, c2, c1 in ((2, 1, 1), (4, 0.8660, 0.8571), (6, 0.8135, 0.8054), (8, 0.7844, 0.7774)):
        space = lo.Space((5, 5), spacing=2.0)
        assert stable_step(space, 4.0, order) == pytest.approx(c2 * 2 / 4 / np.sqrt(2), rel=1e-4)
        found = stable_step(space, 4.0, order, "first")
        assert found == pytest.approx(c1 * 2 / 4 / np.sqrt(2), rel=1e-4)
    with pytest.warns(RuntimeWarning, match="limit is dt = 0.5"):
        AcousticWave(lo.Space(6), 2.0, 0.51)


def test_steps_have_exact_adjoints():
    rng = np.random.default_rng(0)
    c = 0.5 + rng.random((4, 5))
    space = lo.Space((4, 5), "float64", ("y", "x"), (0.5, 1.5))
    for options in (
        {"boundary": ("periodic", "odd"), "order": 4},
        {"boundary": ("even", "odd"), "damping": c / 2},
        {"boundary": ("even", "odd"), "form": "first", "density": 1 + c},
    ):
        step = AcousticWave(space, c, 0.1, **options)
        check_operator(step, libraries=())
        for n in (3, 20):
            many = step**n
            x, y = many.domain.random(1), many.codomain.random(2)
            left, right = many.codomain.inner(many @ x, y), many.domain.inner(x, many.H @ y)
            assert left == pytest.approx(right, rel=1e-12)
    second = AcousticWave(space, c, 0.1, 2, "odd")
    state = second.domain.random(3)
    away = second @ state
    back = second @ (away[1], away[0])
    np.testing.assert_allclose(back[0], state[1], atol=1e-13)


def test_first_order_form_conserves_energy_and_runs_backwards():
    rng = np.random.default_rng(1)
    space = lo.Space((6, 5), "float64", spacing=(0.5, 1.0))
    c, rho = 0.5 + rng.random((6, 5)), 0.5 + rng.random((6, 5))
    from linops.stencils import Gradient

    for boundary in ("periodic", "zero", "even", "odd"):
        dt = 0.9 * stable_step(space, np.sqrt((c**2 * rho).max() / rho.min()), 2, "first")
        step = AcousticWave(space, c, dt, boundary=boundary, form="first", density=rho)
        G = Gradient(space, 2, boundary, staggered=True)
        weights = G.face_weights @ G.codomain.ones()
        ring = boundary == "periodic"
        heavy = []
        for axis, w in enumerate(weights):
            low = np.roll(rho, 1, axis) if ring else np.take(rho, [0], axis)
            sides = low if ring else np.concatenate([low, rho], axis)
            other = rho if ring else np.concatenate([rho, np.take(rho, [-1], axis)], axis)
            heavy.append(w / (0.5 * (1 / sides + 1 / other)))

        def energy(before, after, heavy=heavy):
            total = (before[0] ** 2 / (rho * c**2)).sum()
            return total + sum(
                (a * b * m).sum() for a, b, m in zip(before[1:], after[1:], heavy, strict=True)
            )

        state = step.domain.random(4)
        first = after = step @ state
        energies = []
        before = state
        for _ in range(100):
            after = step @ before
            energies.append(energy(before, after))
            before = after
        assert max(energies) - min(energies) < 1e-12 * abs(energies[0])
        # Turn the velocities round: the same steps lead back.
        del first
        turned = (before[0], *(-v for v in (step @ before)[1:]))
        for _ in range(100):
            turned = step @ turned
        np.testing.assert_allclose(turned[0], state[0], atol=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_pass_makes_a_step_with_the_bits_of_its_parts(dtype):
    for shape, boundary in (((9,), "odd"), ((5, 6), "periodic"), ((4, 5, 6), ("zero", "even"))):
        space = lo.Space(shape, dtype)
        field = np.linspace(0.5, 1, space.size, dtype=dtype).reshape(shape)
        for velocity in (0.7, field):
            step = AcousticWave(space, velocity, 0.3, 4, (boundary,) * len(shape))
            parts = lo.vstack(step.terms)
            assert type(parts) is not type(step)
            x, y = step.domain.random(0), step.codomain.random(1)
            assert step._pass(x) is not None and step.H.H is step
            for A, B, v in ((step, parts, x), (step.H, parts.H, y), (step**3, parts**3, x)):
                for got, wanted in zip(A @ v, B @ v, strict=True):
                    np.testing.assert_array_equal(got, wanted)
            after, now = step @ x
            assert not np.shares_memory(now, x[0]) and not np.shares_memory(after, x[1])
            many = tuple(np.stack([u, 2 * u]) for u in x)
            np.testing.assert_array_equal((step @ many)[0][0], after)


def test_records_are_linear_in_the_source():
    rng = np.random.default_rng(2)
    space = lo.Space((4, 5), spacing=(0.5, 1.0))
    A = WaveRecords(
        space, 0.5 + rng.random((4, 5)), 0.1, 7, [[1, 2], [0.5, 3.2]], [[2, 2]], 4, "odd",
        damping=0.5 + rng.random((4, 5)) / 2,
    )  # fmt: skip
    check_operator(A, libraries=("torch",))
    # Source and receiver may change places in a medium of one velocity.
    there = WaveRecords(space, 1.0, 0.1, 20, [[1, 1]], [[2, 3]], 2, "odd")
    back = WaveRecords(space, 1.0, 0.1, 20, [[2, 3]], [[1, 1]], 2, "odd")
    wavelet = rng.standard_normal((20, 1)).astype("float32")
    np.testing.assert_allclose(there @ wavelet, back @ wavelet, atol=1e-6)


@pytest.mark.parametrize("states", ["reversal", "checkpoints", "damped"])
def test_gradients_in_the_medium(states):
    rng = np.random.default_rng(3)
    space = lo.Space((4, 5), "float64", spacing=(0.5, 1.0))
    m = 0.5 + rng.random((4, 5))
    damped = states == "damped"
    sources, receivers = [[1, 2], [0.5, 3.2]], [[2, 2], [3, 0.4]]
    model = WaveModel(
        space, 0.1, rng.standard_normal((20, 2)), sources, receivers, 4, "odd",
        damping=0.8 + rng.random((4, 5)) / 5 if damped else None,
        states="checkpoints" if damped else states,
    )  # fmt: skip
    dm = rng.standard_normal((4, 5))
    J = model.jacobian(m)
    numeric = (model(m + 1e-6 * dm) - model(m - 1e-6 * dm)) / 2e-6
    np.testing.assert_allclose(J @ dm, numeric, atol=1e-8 * abs(numeric).max())
    np.testing.assert_allclose(J.H.to_dense(), J.to_dense().T, atol=1e-12)
    gaps = [np.linalg.norm(model(m + e * dm) - model(m) - e * (J @ dm)) for e in (0.02, 0.01)]
    assert np.log2(gaps[0] / gaps[1]) == pytest.approx(2, abs=0.1)
    assert model.held_states == (1 if states == "reversal" else 9)


def test_reversal_returns_to_rest():
    space = lo.Space(40, "float64")
    step = AcousticWave(space, 1.0, 0.8, 4, "even")
    start = state = step.domain.random(0)
    for _ in range(500):
        state = step @ state
    state = state[::-1]
    for _ in range(500):
        state = step @ state
    np.testing.assert_allclose(state[1], start[0], atol=1e-11)
