"""Conjugates, envelopes, half-spaces and affine subspaces."""

import math

import numpy as np
import pytest

import linops as lo
from linops.testing import check_functional
from sharding import plan

RNG = np.random.default_rng(11)
SHAPE = (3, 4)
COUNTS = RNG.poisson(3.0, SHAPE) + 1.0
S = lo.Space(SHAPE, "float64", axes=("y", "x"))
C = S.random(5)

CONVEX = {
    "l1": lo.L1(S, abs(C)),
    "l2": lo.L2(S),
    "groups": lo.GroupL1(S, "x"),
    "largest": lo.Linf(S),
    "nuclear": lo.NuclearNorm(S),
    "huber": lo.Huber(S, 0.5),
    "quadratic": lo.Quadratic(S, 2.0, C),
    "box": lo.Box(S, -0.5, 1.0),
    "ball": lo.Ball(S, 1.5, center=C),
    "diamond": lo.Ball(S, 1.5, center=C, norm=1),
    "cube": lo.Ball(S, 1.5, center=C, norm=math.inf),
    "simplex": lo.Simplex(S, 2.0),
    "rows": lo.Simplex(S, 2.0, axis="x"),
    "counts": lo.KullbackLeibler(S, COUNTS, 0.5),
    "scaled": 1.7 * lo.Huber(S, 0.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVEX)
def test_values_of_conjugates(name):
    """Fenchel and Young: f(x) + f*(p) is <x, p> where p is a subgradient at x, else more."""
    f = CONVEX[name]
    for step in (0.3, 2.0):
        v = S.random(2)
        x = f.prox(v, step)
        p = (v - x) / step
        assert f(x) + f.conjugate(p) == pytest.approx(np.vdot(x, p), abs=1e-9)
        for q in (0.9 * p, 0.5 * p, p - 0.01 * abs(C)):
            assert f(x) + f.conjugate(q) >= np.vdot(x, q) - 1e-9
    near = 0.1 * C if name == "counts" else None
    check_functional(f.conjugate, x=near, libraries=("torch",))
    assert f.conjugate.conjugate is f
    lowered = plan(f.conjugate, devices=3, executor="threads").lower()
    assert lowered(p) == pytest.approx(f.conjugate(p))


@pytest.mark.slow
def test_envelopes():
    for f in (lo.L1(S), lo.NonNegative(S), lo.KullbackLeibler(S, COUNTS), lo.Linf(S)):
        check_functional(lo.moreau_envelope(f, 0.7), libraries=("torch",))
    x = S.random(1)
    for executor, devices in (("serial", 1), ("threads", 3)):
        both = lo.moreau_envelope(lo.L1(S), 0.7) + 0.1 * lo.moreau_envelope(lo.Linf(S))
        lowered = plan(both, devices=devices, executor=executor).lower()
        assert lowered(x) == pytest.approx(both(x))
        np.testing.assert_allclose(lowered.gradient(x), both.gradient(x))
    e = lo.moreau_envelope(lo.L1(S), 0.7)
    assert e(x) == pytest.approx(lo.Huber(S, 0.7)(x) / 0.7)
    both = lo.infimal_convolution(lo.Quadratic(S, 2.0, C), lo.L1(S))
    assert both(x) == pytest.approx(2.0 * lo.Huber(S, 0.5)(x - C))
    with pytest.raises(NotImplementedError, match="neither is a quadratic"):
        lo.infimal_convolution(lo.L1(S), lo.L2(S))
    with pytest.raises(NotImplementedError, match="no value in closed form"):
        (lo.L1(S) + lo.L2(S)).conjugate(x)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_planes(dtype):
    space = lo.Space(SHAPE, dtype, axes=("y", "x"))
    a = space.random(3)
    A = lo.Matrix(space.random(4).reshape(12)[None] * np.ones((1, 1)), codomain=None)
    A = A @ lo.Reshape(space, (12,))
    b = A @ space.random(9)
    for f in (lo.HalfSpace(space, a, -2.0), lo.AffineSubspace(A, b)):
        check_functional(f, libraries=None if dtype == "float32" else ("torch",))
    x = space.random(6)
    p = lo.HalfSpace(space, a, -50.0).prox(x, 1.0)
    assert np.vdot(a, p).real == pytest.approx(-50.0, rel=1e-5)
    rows = np.asarray(A.to_dense()).reshape(1, 12)
    flat = np.linalg.lstsq(rows, np.asarray(b - A @ x).ravel(), rcond=None)[0]  # the least step
    found = lo.AffineSubspace(A, b).prox(x, 1.0)
    np.testing.assert_allclose(found, x + flat.reshape(SHAPE), atol=1e-5)
    with pytest.raises(ValueError, match="depend on each other"):
        lo.AffineSubspace(lo.Matrix(np.ones((2, 3), dtype)), np.ones(2, dtype))
