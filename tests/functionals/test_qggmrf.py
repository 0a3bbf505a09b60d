"""The QGGMRF prior against its formula in float64, golden numbers and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linops as lo
from linops.functionals import QGGMRF, TotalVariation

LONG = dict(p=1.5488, q=0.9051, T=1.1028, sigma_x=0.6449)
SHORT = dict(p=2.0, q=1.2, T=1.0, sigma_x=0.5)

GOLDEN_SCALAR = [
    (dict(p=2.0, q=1.2, T=1.0, sigma_x=1.0), 0.0, 0.0, 0.0, 1.0),
    (
        dict(p=2.0, q=1.2, T=1.0, sigma_x=1.0),
        1e-3,
        4.980173571904e-7,
        9.944548895292e-4,
        0.9944548895292,
    ),
    (
        dict(p=2.0, q=1.2, T=1.0, sigma_x=1.0),
        0.1,
        0.004315965556984,
        0.08159568058632,
        0.8159568058632,
    ),
    (dict(p=2.0, q=1.2, T=1.0, sigma_x=1.0), 1.0, 0.25, 0.4, 0.4),
    (
        dict(p=2.0, q=1.2, T=1.0, sigma_x=1.0),
        2.0,
        0.7296337886251,
        0.5442533662757,
        0.2721266831379,
    ),
    (
        dict(p=2.0, q=1.2, T=1.0, sigma_x=1.0),
        10.0,
        6.840344430160,
        0.8957058306964,
        0.08957058306964,
    ),
    (
        dict(p=2.0, q=1.2, T=1.0, sigma_x=1.0),
        100.0,
        122.5168377517,
        1.494218653872,
        0.01494218653872,
    ),
    (LONG, 1e-3, 2.833808987262e-5, 0.04362765017789, 43.62765017789),
    (LONG, 0.1, 0.02805969387440, 0.3947630518372, 3.947630518372),
    (LONG, 1.0, 0.5672678285307, 0.6760627218482, 0.6760627218482),
    (LONG, 10.0, 6.952224105304, 0.6982806193232, 0.06982806193232),
]

GOLDEN_VOLUME = [
    (
        LONG,
        (1, 1, 1),
        5.391417243757,
        0.1762230524629,
        0.6718004674500,
        0.005338157500850,
        0.9961536959085,
        0.7051329901083,
        21.39566269817,
    ),
    (
        LONG,
        (1, 2, 0.5),
        6.353912087724,
        0.2758346343465,
        0.6936312423196,
        -0.04787115535780,
        0.5570298607058,
        0.5101912493576,
        17.61714019877,
    ),
    (
        SHORT,
        (1, 1, 1),
        7.610589716826,
        0.3847391331736,
        1.165727123846,
        0.03453620768844,
        0.7995328809678,
        1.042203980073,
        24.43723096214,
    ),
    (
        SHORT,
        (1, 2, 0.5),
        9.166471335864,
        0.5291422401125,
        1.286344697306,
        -0.05222154303841,
        0.5789941348600,
        0.8499187422098,
        21.84052283424,
    ),
]


def volume():
    k, j, i = np.meshgrid(*(np.arange(3.0),) * 3, indexing="ij")
    return np.sin(1 + 9 * k + 3 * j + i)


def to(x, namespace):
    if namespace == "torch":
        return pytest.importorskip("torch").tensor(x)
    if namespace == "jax":
        jax = pytest.importorskip("jax")
        return jax.numpy.asarray(x, dtype="float32")
    return x


@pytest.mark.parametrize(("parameters", "d", "rho", "influence", "m"), GOLDEN_SCALAR)
def test_potential_has_its_golden_values(parameters, d, rho, influence, m):
    prior = QGGMRF(lo.Space(2, "float64"), **parameters)
    for sign in (1.0, -1.0):
        x = np.array([sign * d])
        np.testing.assert_allclose(prior.potential(x), rho, rtol=1e-12)
        np.testing.assert_allclose(prior.influence(x), sign * influence, rtol=1e-12)
        np.testing.assert_allclose(prior.curvature(x), m, rtol=1e-12)
    # The compiled passes take the same numbers: one pair with b = 1/2.
    pair = np.array([0.0, d])
    assert prior(pair) == pytest.approx(rho / 2, rel=1e-12, abs=0)
    np.testing.assert_allclose(prior.gradient(pair), [-influence / 2, influence / 2], rtol=1e-12)
    np.testing.assert_allclose(prior.surrogate(pair).diagonal(), m / 2, rtol=1e-12)


@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("row", GOLDEN_VOLUME)
def test_volume_has_its_golden_values(row, namespace):
    parameters, weights, value, g000, g111, g210, c000, c111, total = row
    dtype, rtol = ("float32", 3e-6) if namespace == "jax" else ("float64", 1e-12)
    prior = QGGMRF(lo.Space((3, 3, 3), dtype), **parameters, neighbor_weights=weights)
    x = to(volume(), namespace)
    gradient = prior.gradient(x)
    curvature = prior.surrogate(x).diagonal()
    assert type(gradient) is type(x)
    assert isinstance(prior(x), float)
    assert prior(x) == pytest.approx(value, rel=rtol)
    for got, want in (
        (gradient[0, 0, 0], g000),
        (gradient[1, 1, 1], g111),
        (gradient[2, 1, 0], g210),
        (curvature[0, 0, 0], c000),
        (curvature[1, 1, 1], c111),
    ):
        assert float(got) == pytest.approx(want, rel=20 * rtol, abs=rtol)
    assert float(np.asarray(curvature).sum()) == pytest.approx(total, rel=rtol)
    # Opposite flows cancel.
    assert abs(float(np.asarray(gradient).sum())) < 10 * rtol


@pytest.mark.parametrize("sigma", [1e-6, 1e6])
def test_scale_of_sigma_only_rescales(sigma):
    parameters = GOLDEN_SCALAR[0][0] | dict(sigma_x=sigma)
    prior = QGGMRF(lo.Space(2, "float32"), **parameters)
    for _, d, rho, influence, m in GOLDEN_SCALAR[:7]:
        x = np.array([d * sigma], np.float32)
        np.testing.assert_allclose(prior.potential(x), rho, rtol=2e-6)
        np.testing.assert_allclose(prior.influence(x), influence / sigma, rtol=2e-6)
        np.testing.assert_allclose(prior.curvature(x), m / sigma**2, rtol=2e-6)


@pytest.mark.parametrize("parameters", [SHORT, LONG, dict(p=2.0, q=0.1, T=0.01, sigma_x=1.0)])
def test_huge_differences_stay_finite(parameters):
    prior = QGGMRF(lo.Space((1, 2), "float32"), **parameters)
    x = np.array([[0.0, 1e18 * parameters["sigma_x"]]], np.float32)
    assert np.isfinite(prior(x))
    assert np.isfinite(prior.gradient(x)).all()
    assert np.isfinite(prior.surrogate(x).diagonal()).all()


def test_gradient_equals_central_differences():
    prior = QGGMRF(lo.Space((2, 3, 4), "float64"), **LONG, neighbor_weights=(1, 2, 0.5))
    x, d = np.random.default_rng(1).standard_normal((2, 2, 3, 4))
    h = 1e-6
    slope = (prior(x + h * d) - prior(x - h * d)) / (2 * h)
    assert np.vdot(prior.gradient(x), d) == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (1, 4), (2, 3, 4), (2, 1, 2, 3)])
@pytest.mark.parametrize("parameters", [SHORT, LONG])
def test_compiled_and_portable_forms_agree_with_a_plain_sum(shape, parameters):
    torch = pytest.importorskip("torch")
    prior = QGGMRF(lo.Space(shape, "float64"), **parameters)
    x, v = np.random.default_rng(2).standard_normal((2, *shape))
    total = 0.0
    gradient, diagonal = np.zeros(shape), np.zeros(shape)
    s, p, q, T = parameters["sigma_x"], parameters["p"], parameters["q"], parameters["T"]
    for position in np.ndindex(*shape):
        for a in range(len(shape)):
            other = list(position)
            other[a] += 1
            if other[a] == shape[a]:
                continue
            other, b = tuple(other), 1 / (2 * len(shape))
            d = x[other] - x[position]
            t = abs(d) / s
            r = (t / T) ** (p - q)
            total += b * t**p / (p * (1 + r))
            m = b * t ** (p - 2) / s**2 * (1 + q / p * r) / (1 + r) ** 2
            gradient[other] += m * d
            gradient[position] -= m * d
            diagonal[other] += m
            diagonal[position] += m
    traced = torch.tensor(x, requires_grad=True)  # the portable form
    assert prior(x) == pytest.approx(total, rel=1e-12)
    assert float(prior(traced).detach()) == pytest.approx(total, rel=1e-12)
    np.testing.assert_allclose(prior.gradient(x), gradient, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(prior.gradient(traced).detach(), gradient, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(prior.surrogate(x).diagonal(), diagonal, rtol=1e-11)
    S = prior.surrogate(x)
    batch = np.stack([v, x])
    np.testing.assert_allclose(S @ x, prior.gradient(x), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose((S @ batch)[0], S @ v, rtol=1e-15)
    np.testing.assert_allclose(prior.gradient(batch)[1], prior.gradient(x), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(prior(batch), [prior(v), prior(x)], rtol=1e-12)


def test_border_reflects_and_constants_cost_nothing():
    prior = QGGMRF(lo.Space((2, 3, 4), "float32"), **LONG)
    x = np.full((2, 3, 4), 0.7, np.float32)
    assert prior(x) == 0
    assert not prior.gradient(x).any()
    S = prior.surrogate(np.random.default_rng(3).standard_normal((2, 3, 4)).astype("float32"))
    assert not (S @ x).any()
    # A corner has three pairs, each with b = 1/6 and the curvature of a small difference.
    flat = QGGMRF(lo.Space((2, 3, 4), "float64"), p=2, q=1.2, sigma_x=0.5)
    assert flat.surrogate(x.astype("float64")).diagonal()[0, 0, 0] == pytest.approx(3 / 6 / 0.25)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_surrogate_is_symmetric_and_positive(dtype):
    prior = QGGMRF(lo.Space((2, 3, 2), dtype), **LONG)
    S = prior.surrogate(np.random.default_rng(4).standard_normal((2, 3, 2)).astype(dtype))
    from linops.testing import dot_test

    assert dot_test(S) <= 16
    dense = S.to_dense().astype("float64")
    np.testing.assert_allclose(dense, dense.T, rtol=1e-5)
    assert np.linalg.eigvalsh(dense).min() > -1e-5
    assert {"self_adjoint", "psd"} <= S.tags
    np.testing.assert_allclose(S.diagonal(), np.diag(dense).reshape(2, 3, 2), rtol=1e-5)


@pytest.mark.slow
@given(
    p=st.floats(0.5, 2.0),
    ratio=st.floats(0.3, 1.0),
    T=st.floats(0.1, 10.0),
    scale=st.floats(-6, 6),
    move=st.floats(-6, 6),
    seed=st.integers(0, 2**20),
)
def test_surrogate_majorizes(p, ratio, T, scale, move, seed):
    prior = QGGMRF(lo.Space((2, 3), "float64"), p=p, q=p * ratio, T=T, sigma_x=1.0)
    x, d = np.random.default_rng(seed).standard_normal((2, 2, 3))
    x, d = x * 10**scale, d * 10**move
    right = prior(x) + np.vdot(prior.gradient(x), d) + np.vdot(d, prior.surrogate(x) @ d) / 2
    size = prior(x) + abs(np.vdot(prior.gradient(x), d)) + abs(right)
    assert prior(x + d) <= right + 1e-10 * size


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(6,), (3, 4), (2, 3, 4), (2, 2, 3, 4)])
@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax"])
def test_restriction_gives_the_rows_of_the_whole(shape, namespace):
    dtype, rtol = ("float32", 2e-5) if namespace == "jax" else ("float64", 1e-12)
    prior = QGGMRF(
        lo.Space(shape, dtype), **SHORT, neighbor_weights=tuple(range(1, len(shape) + 1))
    )
    x = np.random.default_rng(5).standard_normal(shape).astype(dtype)
    index = np.array([5, 0, 1, -1, 4])
    rows = prior.restrict(index)
    flat = (*shape[:-2], -1)
    gradient, curvature = rows.terms(to(x, namespace))
    want = np.array(prior.gradient(x).reshape(flat)[..., index])
    want_c = np.array(prior.surrogate(x).diagonal().reshape(flat)[..., index])
    want[..., 3] = want_c[..., 3] = 0
    np.testing.assert_allclose(gradient, want, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(curvature, want_c, rtol=rtol, atol=rtol)
    d = np.random.default_rng(6).standard_normal(want.shape).astype(dtype)
    d[..., 3] = 0
    full = np.zeros(shape, dtype)
    full.reshape(flat)[..., index[index >= 0]] = d[..., index >= 0]
    form = np.vdot(full, prior.surrogate(x) @ full)
    assert float(rows.quadratic(to(x, namespace), to(d, namespace))) == pytest.approx(
        form, rel=10 * rtol
    )
    S = rows.surrogate(x)
    assert np.vdot(d, S @ d) == pytest.approx(form, rel=1e-5)


def test_sum_and_scaling():
    space = lo.Space((3, 4), "float64")
    x = np.random.default_rng(7).standard_normal((3, 4))
    prior, tv = QGGMRF(space, **SHORT), TotalVariation(space)
    both = prior + 0.5 * tv
    assert both(x) == pytest.approx(prior(x) + 0.5 * tv(x))
    np.testing.assert_allclose(both.gradient(x), prior.gradient(x) + 0.5 * tv.gradient(x))
    rows = both.restrict(np.array([2, 7, 11]))
    gradient, curvature = rows.terms(x)
    np.testing.assert_allclose(gradient, both.gradient(x).reshape(-1)[[2, 7, 11]])
    S = both.surrogate(x)
    np.testing.assert_allclose(curvature, S.diagonal().reshape(-1)[[2, 7, 11]])
    np.testing.assert_allclose(S @ x, both.gradient(x))
    with pytest.raises(ValueError, match=">= 0"):
        (-1.0) * prior


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("p", 2.5),
        ("p", 0),
        ("q", 0),
        ("q", 2.1),
        ("T", 0),
        ("T", float("nan")),
        ("sigma_x", -1),
        ("neighbor_weights", (0, 0)),
        ("neighbor_weights", (1, -1)),
        ("neighbor_weights", (1, 1, 1)),
    ],
)
def test_bad_parameters_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        QGGMRF(lo.Space((2, 3)), **{name: value})
