"""Smoothed total variation and the quadratic functional, from their formulas."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.functionals import Quadratic, TotalVariation


def to(x, namespace):
    if namespace == "torch":
        return pytest.importorskip("torch").tensor(x)
    if namespace == "jax":
        return pytest.importorskip("jax").numpy.asarray(x, dtype="float32")
    return x


def lengths(x, spacing, eps):
    square = np.full(x.shape, eps)
    for a, h in enumerate(spacing):
        d = np.diff(x, axis=a, append=np.take(x, [-1], axis=a)) / h
        square += d * d
    return np.sqrt(square)


@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("shape", [(7,), (1, 5), (3, 4), (2, 3, 4), (2, 1, 2, 3)])
def test_value_gradient_and_surrogate(shape, namespace):
    dtype, rtol = ("float32", 2e-5) if namespace == "jax" else ("float64", 1e-12)
    spacing = tuple(0.4 + 0.3 * a for a in range(len(shape)))
    tv = TotalVariation(lo.Space(shape, dtype), spacing, eps=1e-3)
    x, d = np.random.default_rng(0).standard_normal((2, *shape))
    want = lengths(x, spacing, 1e-3).mean()
    assert tv(to(x, namespace)) == pytest.approx(want, rel=rtol)
    h = 1e-6
    slope = (lengths(x + h * d, spacing, 1e-3) - lengths(x - h * d, spacing, 1e-3)).mean() / (2 * h)
    gradient = tv.gradient(to(x, namespace))
    assert np.vdot(np.asarray(gradient), d) == pytest.approx(
        slope, rel=1e-4 if rtol > 1e-6 else 1e-8
    )
    S = tv.surrogate(to(x, namespace))
    dense = S.to_dense().astype("float64")
    np.testing.assert_allclose(dense, dense.T, rtol=10 * rtol, atol=rtol)
    np.testing.assert_allclose(S @ to(x, namespace), gradient, rtol=10 * rtol, atol=rtol)
    np.testing.assert_allclose(np.asarray(S.diagonal()).reshape(-1), np.diag(dense), rtol=10 * rtol)
    # It majorizes: concave in the squared length.
    for size in (1e-3, 1.0, 1e3):
        right = want + size * slope + size**2 * np.vdot(d, (dense @ d.ravel()).reshape(shape)) / 2
        assert lengths(x + size * d, spacing, 1e-3).mean() <= right * (1 + 10 * rtol) + rtol


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_batches_give_one_value_each(namespace):
    tv = TotalVariation(lo.Space((3, 4), "float64"), reduction="sum")
    x = np.random.default_rng(1).standard_normal((2, 3, 4))
    got = tv(to(x, namespace))
    np.testing.assert_allclose(got, [lengths(m, (1, 1), 1e-6).sum() for m in x], rtol=1e-12)
    both = tv.gradient(to(x, namespace))
    np.testing.assert_allclose(both[1], tv.gradient(x[1]), rtol=1e-10)


def test_constants_and_spacing_of_the_space():
    space = lo.Space((2, 3, 4), "float64", spacing=(0.47, 0.78, 1.09))
    tv = TotalVariation(space)
    assert tv(np.full((2, 3, 4), 3.0)) == pytest.approx(0.001, rel=1e-12)
    assert not tv.gradient(np.full((2, 3, 4), 3.0)).any()
    assert tv.spacing == (0.47, 0.78, 1.09)


@pytest.mark.parametrize(
    "options",
    [
        dict(eps=0),
        dict(eps=-1),
        dict(eps=float("nan")),
        dict(spacing=0),
        dict(reduction="max"),
        dict(spacing=float("nan")),
        dict(spacing=(1, 1, 1)),
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError):
        TotalVariation(lo.Space((3, 4)), **options)


@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax"])
def test_quadratic(namespace):
    dtype = "float32" if namespace == "jax" else "float64"
    space = lo.Space((2, 3, 4), dtype)
    center, x, d = np.random.default_rng(2).standard_normal((3, 2, 3, 4)).astype(dtype)
    f = Quadratic(space, 3.0, center)
    assert f(to(x, namespace)) == pytest.approx(1.5 * np.sum((x - center) ** 2), rel=1e-6)
    np.testing.assert_allclose(f.gradient(to(x, namespace)), 3 * (x - center), rtol=1e-5)
    np.testing.assert_allclose(
        f.prox(to(x, namespace), 0.5), (x + 1.5 * center) / 2.5, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(f.surrogate(x) @ d, 3 * d, rtol=1e-6)
    index = np.array([3, 11])
    gradient, curvature = f.restrict(index).terms(to(x, namespace))
    np.testing.assert_allclose(
        gradient, (3 * (x - center)).reshape(2, -1)[:, index], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(curvature, 3.0)
