"""Every functional against its formula and the laws that `check_functional` holds it to."""

from __future__ import annotations

import contextlib
import importlib.util
import pickle

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

import linops as lo
from linops.testing import check_functional, check_operator, taylor_test

SHAPE = (2, 3)
SPACE = lo.Space(SHAPE, "float64", axes=("y", "x"))
RNG = np.random.default_rng([0, 99])
TARGET = RNG.standard_normal(SHAPE)
WEIGHTS = RNG.uniform(0.2, 2.0, SHAPE)

# Name: functional, the same as a plain function of an array.
CASES = {
    "least squares": (
        lo.LeastSquares(SPACE, TARGET, WEIGHTS),
        lambda x: 0.5 * np.sum(WEIGHTS * (x - TARGET) ** 2),
    ),
    "plain least squares": (lo.LeastSquares(SPACE), lambda x: 0.5 * np.sum(x**2)),
    "L1": (lo.L1(SPACE, WEIGHTS), lambda x: np.sum(WEIGHTS * abs(x))),
    "L2": (lo.L2(SPACE), np.linalg.norm),
    "Huber": (
        lo.Huber(SPACE, 0.4),
        lambda x: np.sum(np.where(abs(x) <= 0.4, x**2 / 2, 0.4 * (abs(x) - 0.2))),
    ),
    "group": (lo.GroupL1(SPACE), lambda x: np.sum(np.sqrt(np.sum(x**2, axis=0)))),
    "quadratic": (lo.Quadratic(SPACE, 0.7, TARGET), lambda x: 0.35 * np.sum((x - TARGET) ** 2)),
    "scaled": (3 * lo.L1(SPACE), lambda x: 3 * np.sum(abs(x))),
    "translate": (lo.L2(SPACE).translate(TARGET), lambda x: np.linalg.norm(x - TARGET)),
    "sum": (
        lo.L1(SPACE) + lo.Quadratic(SPACE, 0.7, TARGET),
        lambda x: np.sum(abs(x)) + 0.35 * np.sum((x - TARGET) ** 2),
    ),
    "unitary": (
        lo.L1(lo.Space(SHAPE[::-1], "float64")) @ (2 * lo.Transpose(SPACE, (1, 0))),
        lambda x: np.sum(abs(2 * x)),
    ),
}
SMOOTH = {
    "tv": lo.TotalVariation(SPACE, eps=0.1),
    "qggmrf": lo.QGGMRF(SPACE, p=2.0, q=1.3, sigma_x=0.5),
    "long": lo.QGGMRF(SPACE, p=1.8, q=1.1, sigma_x=0.7, neighbor_weights=(1, 2)),
    "composed": lo.LeastSquares(lo.Space(4, "float64"))
    @ lo.Matrix(RNG.standard_normal((4, 6)), SPACE, lo.Space(4, "float64")),
    "nonlinear": lo.LeastSquares(SPACE, TARGET) @ lo.Exp(SPACE),
    "gradient": lo.Huber(lo.Gradient(SPACE).codomain, 0.3) @ lo.Gradient(SPACE),
} | {name: case[0] for name, case in CASES.items()}


def jax_in_64_bits():
    if importlib.util.find_spec("jax") is None:
        return contextlib.nullcontext()
    return importlib.import_module("jax").enable_x64(True)


@pytest.mark.parametrize("name", CASES)
def test_value_is_its_formula(name):
    f, value = CASES[name]
    x = RNG.standard_normal((2, *SHAPE))
    assert isinstance(f(x[0]), float)
    assert f(x[0]) == pytest.approx(value(x[0]), rel=1e-12)
    np.testing.assert_allclose(f(x), [value(x[0]), value(x[1])], rtol=1e-12)
    np.testing.assert_allclose(f.gradient(x)[1], f.gradient(x[1]), rtol=1e-12)
    assert f.codomain.shape == ()
    assert pickle.loads(pickle.dumps(f))(x[0]) == f(x[0])
    with pytest.raises(AttributeError):
        f.domain = None


def test_prox_of_a_sum_with_quadratics_however_it_is_written():
    one, square = lo.L1(SPACE), lo.Quadratic(SPACE, 0.6, TARGET)
    # sum |x| + 0.3 (x - t)^2: soft thresholding of (x + 0.6 s t) / (1 + 0.6 s).
    x, step = np.random.default_rng(2).standard_normal(SHAPE), 0.8
    center, factor = x + step * 0.6 * TARGET, 1 + step * 0.6
    wanted = np.sign(center) * np.maximum(abs(center) - step, 0) / factor
    half = lo.Quadratic(SPACE, 1.2, TARGET)
    written = {
        "factor": one + 0.5 * half,
        "order": 0.5 * half + one,
        "parts": 0.25 * half + one + 0.5 * square,
        "nested": 2 * (0.5 * one + 0.25 * (half + 0 * square)),
        "inner": 0.5 * (2 * one) + 0.25 * (0.5 * half + 0.5 * half) + 0.25 * half,
        "repeated": 0.25 * one + 0.75 * (one + 0.4 * lo.Quadratic(SPACE, 2.0, TARGET)),
        "translate": one + (0.6 * lo.Quadratic(SPACE)).translate(TARGET),
        "proximity": 0.3 * lo.Proximity(TARGET, 2**-0.5, SPACE) + one,
        "least squares": one + 0.3 * lo.LeastSquares(SPACE, TARGET, 2.0),
    }
    for name, f in written.items():
        np.testing.assert_allclose(f.prox(x, step), wanted, rtol=1e-12, atol=1e-15, err_msg=name)
    both = 0.5 * lo.Quadratic(SPACE, 3.0) + 2 * lo.LeastSquares(SPACE)
    np.testing.assert_allclose(both.prox(x, step), x / (1 + 3.5 * step), rtol=1e-12)
    with pytest.raises(NotImplementedError, match="closed form"):
        (one + lo.L2(SPACE) + square).prox(x, step)


def test_conjugates_in_closed_form():
    x = 3 * np.random.default_rng(3).standard_normal(SHAPE)
    w = WEIGHTS
    np.testing.assert_allclose(lo.L1(SPACE, w).conjugate_prox(x, 0.6), np.clip(x, -w, w))
    np.testing.assert_allclose(
        lo.L2(SPACE).conjugate_prox(x, 0.6), x / max(np.linalg.norm(x), 1), rtol=1e-12
    )
    got = lo.LeastSquares(SPACE, TARGET).conjugate_prox(x, 0.6)
    np.testing.assert_allclose(got, (x - 0.6 * TARGET) / 1.6, rtol=1e-12)
    got = lo.NonNegative(SPACE).conjugate_prox(x, 0.6)
    np.testing.assert_allclose(got, np.minimum(x, 0), atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMOOTH)
def test_everything_that_a_functional_promises(name):
    with jax_in_64_bits():
        report = check_functional(SMOOTH[name])
    assert "gradient" in report.passed
    if name != "nonlinear":
        assert {"hessian", "surrogate"} <= set(report.passed)
    if name in CASES:
        assert {"prox", "firm", "conjugate"} <= set(report.passed)
    assert ("blocks" in report.passed) == any(a.splits for a in SMOOTH[name].rule.domain[0])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_other_dtypes(dtype):
    space = lo.Space(SHAPE, dtype, axes=("y", "x"))
    weights = WEIGHTS.astype(space.random(0).real.dtype)
    found = [lo.L1(space, weights), lo.L2(space), lo.Huber(space, 0.3), lo.GroupL1(space)]
    found += [lo.LeastSquares(space, space.random(1), weights)]
    if dtype == "float32":
        found += [lo.Quadratic(space, 0.7), lo.TotalVariation(space), lo.QGGMRF(space, sigma_x=0.5)]
        found += [lo.Box(space, -0.3, 0.5), lo.NonNegative(space)]
    for f in found:
        check_functional(f, libraries=("torch",) if space.is_complex else ())


def test_blocks_of_a_sum_whose_terms_reach_unequally_far():
    f = lo.LeastSquares(SPACE) + lo.Huber(lo.Gradient(SPACE).codomain, 0.3) @ lo.Gradient(SPACE)
    assert {"blocks", "padded_blocks"} <= set(check_functional(f, libraries=()).passed)


def test_constraints_and_sums_over_members():
    first, second = lo.Space((2, 3), "float64", axes=("z", "x")), lo.Space((2,), "float64", ("z",))
    separable = lo.functionals.separable([lo.L1(first), lo.LeastSquares(second)])
    for f in (lo.Box(SPACE, -0.5, np.full(SHAPE, 1.5)), lo.NonNegative(SPACE), separable):
        report = check_functional(f, libraries=("torch",))
        assert {"prox", "firm", "conjugate", "blocks", "padded_blocks"} <= set(report.passed)
    assert report.passed.count("hessian") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SMOOTH if name != "nonlinear"])
def test_derivatives_and_surrogates_are_operators(name):
    f = SMOOTH[name]
    x = np.random.default_rng(4).standard_normal(SHAPE)
    for operator in (f.surrogate(x), f.gradient.jacobian(x)):
        check_operator(operator, libraries=())
    check_operator(f.jacobian(x), libraries=())


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_not_a_number_stays_in_lengths(namespace):
    z = np.array([[np.nan, 1.0], [3.0, 2.0]])
    if namespace == "torch":
        z = pytest.importorskip("torch").tensor(z)
    space = lo.Space((2, 2), "float64")
    for f in (lo.GroupL1(space), lo.L2(space), lo.L1(lo.Space((2, 2), "complex128"))):
        assert np.isnan(f(z)), f
    # The other entry of the group has no length either; the other group has its own.
    for found in (lo.GroupL1(space).gradient(z), lo.GroupL1(space).prox(z, 1.0)):
        np.testing.assert_array_equal(np.isnan(np.asarray(found)), [[True, False], [True, False]])


def test_rules():
    assert str(SMOOTH["tv"].rule) == "y~1 x~1 ->"
    assert str(SMOOTH["tv"].gradient.rule) == "y~1 x~1 -> y x"
    assert str(CASES["least squares"][0].rule) == "y x; y x, y x ->"
    assert str(CASES["L2"][0].rule) == "y! x! ->"
    assert str(SMOOTH["gradient"].rule) == "y~1 x~1 ->"


def test_constraints():
    x = np.array([[-1.0, 0.5, 2.0], [0.0, 1.0, 3.0]])
    box = lo.Box(SPACE, -0.5, np.full(SHAPE, 1.5))
    assert box(x) == np.inf
    assert box(np.clip(x, -0.5, 1.5)) == 0.0
    np.testing.assert_array_equal(box.prox(x, 3.0), np.clip(x, -0.5, 1.5))
    assert lo.NonNegative(SPACE)(x) == np.inf
    assert lo.NonNegative(SPACE)(abs(x)) == 0.0
    np.testing.assert_array_equal(lo.NonNegative(SPACE).prox(x, 1.0), np.maximum(x, 0))
    np.testing.assert_array_equal(box(np.stack([x, 0 * x])), [np.inf, 0])
    with pytest.raises(TypeError, match="no gradient"):
        box.gradient(x)
    with pytest.raises(TypeError, match="majorizing"):
        box.surrogate(x)
    with pytest.raises(ValueError, match="above"):
        lo.Box(SPACE, 1.0, 0.0)
    for start in range(2):
        part = np.full(SHAPE, np.nan)
        part[0] = 1.0
        shifted = lo.Box(SPACE, 0.5, 2.0).block("y", start + 1, start + 3, padded=True)
        assert shifted(part) == 0.0  # a plane outside breaks no bound


@pytest.mark.slow
def test_complex_norms():
    space = lo.Space(SHAPE, "complex128")
    z = space.random(0)
    step = 0.6
    for f, value in (
        (lo.L1(space), lambda u: abs(u)),
        (
            lo.Huber(space, 0.3),
            lambda u: abs(u) ** 2 / 2 if abs(u) <= 0.3 else 0.3 * (abs(u) - 0.15),
        ),
    ):
        assert f(z) == pytest.approx(sum(map(value, z.ravel())), rel=1e-12)
        found = f.prox(z, step)
        one = z[0, 0]
        best = minimize(
            lambda p, v=value: abs(complex(*p) - one) ** 2 / 2 + step * v(complex(*p)),
            [one.real, one.imag],
            method="Nelder-Mead",
            options={"xatol": 1e-10, "fatol": 1e-14},
        ).x
        assert abs(found[0, 0] - complex(*best)) < 1e-6
        taylor_test(f, z)
    check_operator(lo.L2(space).jacobian(z))
    taylor_test(lo.LeastSquares(space, space.random(1), WEIGHTS), z)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["L1", "Huber", "group"])
def test_curvatures_of_moduli(kind):
    space = lo.Space(SHAPE, "complex128", axes=("y", "x"))
    f = {"L1": lo.L1(space, WEIGHTS), "Huber": lo.Huber(space, 0.6), "group": lo.GroupL1(space)}
    f, z = f[kind], space.random(3)
    taylor_test(f.gradient, z)
    H = f.gradient.jacobian(z)
    check_operator(H)

    # Against the matrix of second differences of the value, over real and imaginary parts.
    def value(p):
        return f((p[:6] + 1j * p[6:]).reshape(SHAPE))

    p, h, eye = np.concatenate([z.real.ravel(), z.imag.ravel()]), 1e-4, np.eye(12)
    second = [
        [sum(a * b * value(p + h * (a * u + b * v)) for a in (1, -1) for b in (1, -1)) for v in eye]
        for u in eye
    ]
    images = [H((u[:6] + 1j * u[6:]).reshape(SHAPE)).ravel() for u in eye]
    found = np.array([np.concatenate([w.real, w.imag]) for w in images])
    np.testing.assert_allclose(found, np.array(second) / (4 * h * h), atol=2e-5)
    if kind != "Huber":
        with pytest.raises(ValueError, match="curvature"):
            f.gradient.jacobian(0 * z)


@pytest.mark.slow
def test_projector_inside_a_functional_under_autodiff():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    import geometries

    detector = geometries.Detector(6)
    beam = geometries.ParallelBeam(np.linspace(0, np.pi, 5, endpoint=False), detector)
    for precision in ("float64", "float32"):
        A = geometries.Projector(beam, geometries.Grid((5, 4)), precision=precision)
        y = A.codomain.random(0)
        f = lo.LeastSquares(A.codomain, y) @ A
        x = A.domain.random(1)
        dense = A.to_dense().astype(float)
        wanted = (dense.T @ (dense @ x.ravel() - y.ravel())).reshape(x.shape)
        tolerance = {"rtol": 0, "atol": 40 * np.finfo(x.dtype).eps * np.abs(wanted).max()}
        t = torch.tensor(x, requires_grad=True)
        f(t).backward()
        np.testing.assert_allclose(t.grad, wanted, **tolerance)
        with jax.enable_x64(precision == "float64"):
            np.testing.assert_allclose(jax.grad(f)(jax.numpy.asarray(x)), wanted, **tolerance)
            jitted = jax.jit(jax.grad(f))(jax.numpy.asarray(x))
            np.testing.assert_allclose(jitted, wanted, **tolerance)


def test_separable():
    first, second = lo.Space((2, 3), "float64", axes=("z", "x")), lo.Space((2,), "float64", ("z",))
    f = lo.functionals.separable([lo.L1(first), lo.LeastSquares(second)])
    x = f.domain.random(0)
    assert f(x) == pytest.approx(abs(x[0]).sum() + 0.5 * (x[1] ** 2).sum())
    np.testing.assert_allclose(f.gradient(x)[1], x[1])
    np.testing.assert_allclose(f.prox(x, 0.5)[1], x[1] / 1.5)
    np.testing.assert_allclose(f.conjugate_prox(x, 0.5)[0], np.clip(x[0], -1, 1))
    assert str(f.rule) == "z x!, z ->"
    parts = [f.block("z", i, i + 1)(tuple(p[i : i + 1] for p in x)) for i in range(2)]
    assert sum(parts) == pytest.approx(f(x))
    g = [f.gradient.block("z", i, i + 1)(tuple(p[i : i + 1] for p in x)) for i in range(2)]
    np.testing.assert_allclose(np.concatenate([p[0] for p in g]), f.gradient(x)[0])
    taylor_test(f, x)
    check_operator(f.surrogate(x))
    check_operator(f.jacobian(x))


def test_total_variation_golden():
    k = np.arange(24.0)
    tv = lo.TotalVariation(lo.Space((2, 3, 4), "float64"), (0.47, 0.78, 1.09))
    x = (np.sin(0.713 * k) + 0.2 * np.cos(0.317 * k)).reshape(2, 3, 4)
    assert tv(np.full((2, 3, 4), 2.0)) == pytest.approx(0.001)
    assert tv(x) == pytest.approx(2.084407147195, rel=1e-12)


def test_what_is_refused():
    with pytest.raises(ValueError, match=">= 0"):
        -1.0 * lo.L1(SPACE)
    with pytest.raises(ValueError, match="weights"):
        lo.L1(SPACE, -WEIGHTS)
    with pytest.raises(lo.errors.ShapeError):
        lo.LeastSquares(SPACE, np.zeros(4))
    with pytest.raises(ValueError, match="kink"):
        lo.L2(SPACE).surrogate(np.zeros(SHAPE))
    with pytest.raises(ValueError, match="step"):
        lo.L1(SPACE).prox(TARGET, 0.0)
    with pytest.raises(NotImplementedError, match="closed form"):
        (lo.L1(lo.Gradient(SPACE).codomain) @ lo.Gradient(SPACE)).prox(TARGET, 1.0)
    with pytest.raises(lo.errors.DTypeError, match="real"):
        lo.L1(SPACE)(TARGET * 1j)


def test_one_dimension_by_grid():
    line = lo.Space(1, "float64")
    for f in (lo.L1(line, 0.8), lo.Huber(line, 0.5), lo.L2(line)):
        for x in (-2.0, 0.3, 1.1):
            grid = minimize_scalar(
                lambda u, f=f, x=x: (u - x) ** 2 / 2 + 0.9 * f(np.array([u])),
                bounds=(-3, 3),
                method="bounded",
                options={"xatol": 1e-10},
            ).x
            assert f.prox(np.array([x]), 0.9)[0] == pytest.approx(grid, abs=1e-5)


@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax"])
def test_lengths_over_the_whole_range_of_float32(namespace):
    # (3, 4) times a power of two: its length is 5 times that, whatever the squares are.
    space = lo.Space((2, 1), "float32")
    for scale in (2.0**-100, 1.0, 2.0**100):
        x = np.array([[3], [4]], "float32") * np.float32(scale)
        if namespace != "numpy":
            library = pytest.importorskip("torch" if namespace == "torch" else "jax.numpy")
            x = (library.as_tensor if namespace == "torch" else library.asarray)(x)
        for f in (lo.L2(space), lo.GroupL1(space, axis=0)):
            assert f(x) == pytest.approx(5 * scale, rel=1e-6), (f, scale)
            np.testing.assert_allclose(np.asarray(f.gradient(x)), [[0.6], [0.8]], rtol=1e-6)
            near = np.asarray(f.prox(x, 2.5 * scale))
            np.testing.assert_allclose(near, np.array([[1.5], [2]]) * scale, rtol=1e-6)
