"""Counts, balls, the simplex, penalties that are not convex: laws, and values from elsewhere."""

import math

import numpy as np
import pytest
from scipy import optimize

import linops as lo
from linops.testing import check_functional

RNG = np.random.default_rng(5)
SHAPE = (3, 4)
COUNTS = RNG.poisson(2.0, SHAPE).astype(float)  # zeros among them
COUNTS[0, 0] = 0.0
NOT_CONVEX = dict.fromkeys(("firm", "conjugate"), "it is not convex")


def space(dtype):
    return lo.Space(SHAPE, dtype, axes=("y", "x"))


REAL = {
    "counts": lambda s: lo.KullbackLeibler(s, COUNTS, 0.5),
    "simplex": lo.Simplex,
    "rows": lambda s: lo.Simplex(s, 2.0, axis="x"),
}
ANY = {
    "largest": lo.Linf,
    "ball": lambda s: lo.Ball(s, 1.5, center=np.full(SHAPE, 0.25)),
    "diamond": lambda s: lo.Ball(s, 1.5, norm=1),
    "cube": lambda s: lo.Ball(s, 0.5, center=np.full(SHAPE, 0.25), norm=math.inf),
}
CONCAVE = {
    "number": lambda s: lo.L0(s, 0.3),
    "cauchy": lambda s: lo.Cauchy(s, 0.7),
    "geman": lambda s: lo.GemanMcClure(s, 0.7),
    "power": lambda s: lo.Lp(s, 0.5, 0.3),
    "log": lambda s: lo.LogSum(s, 0.4),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("name", [*REAL, *ANY, *CONCAVE])
def test_laws(name, dtype):
    if name in REAL and dtype.startswith("complex"):
        with pytest.raises(ValueError, match="takes a real space"):
            REAL[name](space(dtype))
        return
    f = {**REAL, **ANY, **CONCAVE}[name](space(dtype))
    near = COUNTS.astype(dtype) + 0.4 if name == "counts" else None
    skip = NOT_CONVEX if name in CONCAVE else {}
    libraries = None if dtype == "float32" else ("torch",)
    check_functional(f, x=near, skip=skip, libraries=libraries)


@pytest.mark.parametrize("name", [*REAL, *ANY])
def test_proximal_points_are_scipys(name):
    f = {**REAL, **ANY}[name](space("float64"))
    x = RNG.normal(size=SHAPE) * 2
    kinds = {
        "simplex": [{"type": "eq", "fun": lambda u: u.sum() - 1.0}],
        "rows": [{"type": "eq", "fun": lambda u: u.reshape(SHAPE).sum(1) - 2.0}],
        "ball": [{"type": "ineq", "fun": lambda u: 1.5**2 - ((u - 0.25) ** 2).sum()}],
    }
    if name in kinds:
        bounds = [(0, None)] * 12 if name != "ball" else None
        found = optimize.minimize(
            lambda u: ((u - x.ravel()) ** 2).sum() / 2, np.full(12, 0.3),
            jac=lambda u: u - x.ravel(), bounds=bounds, constraints=kinds[name],
            method="SLSQP", options={"ftol": 1e-15, "maxiter": 300},
        ).x  # fmt: skip
        np.testing.assert_allclose(f.prox(x, 0.7).ravel(), found, atol=1e-6)
    elif name == "counts":
        for u, y, at in zip(f.prox(x, 0.7).ravel(), COUNTS.ravel(), x.ravel(), strict=True):
            one = optimize.minimize_scalar(
                lambda z, y=y, at=at: (z - 0.5 - at) ** 2 / 2 + 0.7 * (z - y * np.log(z)),
                bounds=(1e-12, 20), method="bounded", options={"xatol": 1e-12},
            )  # fmt: skip
            assert abs(u + 0.5 - one.x) < 1e-5
    elif name == "cube":
        np.testing.assert_allclose(f.prox(x, 1.0), np.clip(x, -0.25, 0.75))
    elif name == "diamond":
        level = optimize.brentq(lambda t: np.maximum(abs(x) - t, 0).sum() - 1.5, 0, 10, xtol=1e-15)
        wanted = np.sign(x) * np.maximum(abs(x) - level, 0)
        np.testing.assert_allclose(f.prox(x, 3.0), wanted, atol=1e-12)
    else:
        level = optimize.brentq(lambda t: np.maximum(abs(x) - t, 0).sum() - 0.7, 0, 10, xtol=1e-15)
        np.testing.assert_allclose(f.prox(x, 0.7), np.clip(x, -level, level), atol=1e-12)


def test_values():
    from scipy.special import kl_div, rel_entr

    s = space("float64")
    x = RNG.uniform(0.1, 3.0, SHAPE)
    f = lo.KullbackLeibler(s, COUNTS, 0.5)
    assert f(x) == pytest.approx(kl_div(COUNTS, x + 0.5).sum())
    assert f(x) == pytest.approx((rel_entr(COUNTS, x + 0.5) - COUNTS + x + 0.5).sum())
    assert f(x - 9.0) == math.inf
    assert lo.KullbackLeibler(s, 0.0 * COUNTS)(0 * x) == 0.0
    assert lo.Linf(s)(x) == x.max()
    assert lo.L0(s)(np.where(x > 1, x, 0)) == (x > 1).sum()
    assert lo.Cauchy(s, 0.7)(x) == pytest.approx(np.log1p((x / 0.7) ** 2).sum())
    assert lo.GemanMcClure(s, 0.7)(x) == pytest.approx((x**2 / (x**2 + 0.49)).sum())
    assert lo.Lp(s, 1.0, 0.3)(x) == pytest.approx((np.sqrt(1 + (x / 0.3) ** 2) - 1).sum())
    assert lo.LogSum(s, 0.4)(x) == pytest.approx(np.log1p(x / 0.4).sum())
    with pytest.raises(ValueError, match="negative entries; counts are >= 0"):
        lo.KullbackLeibler(s, -1.0 - COUNTS)
    with pytest.raises(ValueError, match="norm is 3"):
        lo.Ball(s, norm=3)


def test_a_long_projection_keeps_its_sum():
    x = np.random.default_rng(1).normal(size=200_000).astype("float32")
    p = lo.Simplex(lo.Space(x.shape), 100.0).prox(x, 1.0)
    assert abs(p.astype(float).sum() - 100.0) < 1e-2


@pytest.mark.parametrize("name", [*REAL, *ANY, *CONCAVE])
def test_planned(name):
    from sharding import plan

    s = space("float64")
    f = {**REAL, **ANY, **CONCAVE}[name](s)
    x = f.prox(np.abs(RNG.normal(size=SHAPE)), 1.0) if name in {**REAL, **ANY} else COUNTS - 1.5
    for executor, devices in (("serial", 1), ("threads", 3)):
        assert plan(f, devices=devices, executor=executor).lower()(x) == pytest.approx(f(x))
