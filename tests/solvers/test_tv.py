"""TV reconstruction: golden history of Adam, the minimum from SciPy, an honest duality gap."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

import linops as lo
from geometries import fbp
from linops.functionals import TotalVariation
from solvers import tv

from .system import Counting, golden_data, golden_matrix, golden_operator, to


@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax"])
def test_adam_has_its_golden_history(namespace):
    A = golden_operator((2, 3), "float32" if namespace == "jax" else "float64")
    result = tv(
        A,
        to(golden_data(), namespace),
        iterations=2,
        weight=0.2,
        learning_rate=0.05,
        spacing=(1, 0.5),
    )
    rtol = 3e-5 if namespace == "jax" else 1e-11
    golden = [2.40600369128977, 2.22614018458460, 2.05579761575650]
    np.testing.assert_allclose(result.residual_history, golden, rtol=rtol)
    x = [
        0.09934594326096,
        0.09980335436672,
        0.09985520296382,
        0.09958950968669,
        0.09887828655848,
        0.09986621607064,
    ]
    np.testing.assert_allclose(np.asarray(result.solution).ravel(), x, rtol=rtol)


def minimum(M, y, shape, weight, W, spacing):
    """The smallest objective with x >= 0, by SciPy, with a hand-made gradient."""

    def objective(v):
        x = v.reshape(shape)
        r = M @ v - y
        square = np.full(shape, 1e-6)
        parts = []
        for a, h in enumerate(spacing):
            d = np.diff(x, axis=a, append=np.take(x, [-1], axis=a)) / h
            parts.append(d)
            square += d * d
        length = np.sqrt(square)
        gradient = np.zeros(shape)
        for a, (h, d) in enumerate(zip(spacing, parts, strict=True)):
            flow = d / length / h
            gradient -= flow
            gradient += np.roll(flow, 1, axis=a)
        value = (W * r * r).sum() / (2 * len(y)) + weight * length.mean()
        return value, M.T @ (W * r) / len(y) + weight / v.size * gradient.ravel()

    found = scipy.optimize.minimize(
        objective,
        np.full(M.shape[1], 0.5),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * M.shape[1],
        options=dict(maxiter=20000, maxfun=50000, ftol=1e-16, gtol=1e-12, maxcor=30),
    )
    return found.x.reshape(shape), found.fun


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weighted", "scale", "namespace"),
    [(False, 1.0, "numpy"), (True, 1.0, "torch"), (True, 1e3, "numpy")],
)
def test_pdhg_finds_the_minimum(weighted, scale, namespace):
    rng = np.random.default_rng(0)
    M = rng.random((20, 12)) * scale
    truth = np.array([1.0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0.5, 0.5])
    y = M @ truth + 0.05 * scale * rng.standard_normal(20)
    W = rng.random(20) if weighted else np.ones(20)
    W[3] = 0 if weighted else 1
    spacing, weight = (1, 0.5), 0.02 * scale**2
    A = lo.Matrix(M, domain=lo.Space((3, 4), "float64"))
    result = tv(
        A,
        to(y, namespace),
        iterations=1500,
        method="pdhg",
        weight=weight,
        spacing=spacing,
        data_weights=to(W, namespace) if weighted else None,
    )
    x, best = minimum(M, y, (3, 4), weight, W, spacing)
    objective = np.array(result.histories["objective"])
    gap = np.array(result.histories["gap"])
    assert objective[-1] == pytest.approx(best, rel=1e-6)
    np.testing.assert_allclose(result.solution, x, atol=2e-3)
    # The gap is a bound, and it closes.
    assert (gap[10:] >= objective[10:] - best - 1e-6 * best).all()
    assert gap[-1] <= 5e-3 * best


@pytest.mark.slow
def test_adam_comes_near_the_minimum():
    M, y = golden_matrix(), golden_data()
    _, best = minimum(M, y, (2, 3), 0.05, np.ones(15), (1, 1))
    A = golden_operator((2, 3))
    x = tv(A, y, iterations=2000, weight=0.05, learning_rate=0.003).solution
    r = M @ x.ravel() - y
    objective = (r @ r) / 30 + 0.05 * TotalVariation(A.domain)(x)
    assert objective == pytest.approx(best, rel=1e-3)
    assert x.min() >= 0


def test_weights_of_zero_leave_measurements_out():
    y = golden_data()
    W = np.ones(15)
    W[7:] = 0
    with_zeros = tv(golden_operator((2, 3)), y, iterations=20, data_weights=W, weight=0.1)
    y[7:] = 1e3
    other = tv(golden_operator((2, 3)), y, iterations=20, data_weights=W, weight=0.1)
    np.testing.assert_allclose(with_zeros.solution, other.solution, rtol=1e-12)


@pytest.mark.parametrize("method", ["adam", "pdhg"])
def test_members_of_a_batch_solve_alone(method):
    A = golden_operator((2, 3))
    batch = np.stack([golden_data(), 2 * np.cos(np.arange(15.0)) ** 2])
    together = tv(A, batch, iterations=6, method=method, weight=0.1)
    for i, y in enumerate(batch):
        alone = tv(A, y, iterations=6, method=method, weight=0.1)
        np.testing.assert_allclose(together.solution[i], alone.solution, rtol=1e-9, atol=1e-12)
        column = [row[i] for row in together.residual_history]
        np.testing.assert_allclose(column, alone.residual_history, rtol=1e-10)
    assert together.converged == [False, False]


def test_applications_are_counted():
    for callback in (None, lambda *_: None):
        A = Counting(golden_matrix())
        given = dict(weight=1.0, learning_rate=0.1)
        tv(A, golden_data(), iterations=5, callback=callback, **given)
        assert A.calls == {"forward": 5, "adjoint": 5}
    A = Counting(golden_matrix())  # the sizes of things cost one of each
    tv(A, golden_data(), iterations=5)
    assert A.calls == {"forward": 6, "adjoint": 6}


@pytest.mark.parametrize("method", ["adam", "pdhg"])
def test_zero_data_and_zero_iterations(method):
    A = golden_operator((2, 3))
    result = tv(A, np.zeros(15), iterations=5, method=method)
    assert result.converged and not result.solution.any()
    none = tv(A, golden_data(), iterations=0, method=method, x0=np.ones((2, 3)))
    np.testing.assert_array_equal(none.solution, np.ones((2, 3)))


@pytest.mark.parametrize(
    "options",
    [
        dict(weight=-1),
        dict(weight=float("nan")),
        dict(learning_rate=0),
        dict(method="newton"),
        dict(data_weights=-np.ones(15)),
        dict(data_weights=np.ones(3)),
        dict(data_weights=np.full(15, np.nan)),
        dict(spacing=0),
        dict(spacing=(1, 1)),
        dict(iterations=-1),
    ],
)
def test_bad_controls_are_refused_before_any_application(options):
    A = Counting(golden_matrix())
    with pytest.raises(ValueError):
        tv(A, golden_data(), **(dict(iterations=3) | options))
    assert A.calls == {"forward": 0, "adjoint": 0}


def low_dose_scan(unit=1.0, dtype="float64"):
    """Ellipses of water and bone seen by a fan beam, with the noise of 3000 photons a ray."""
    geometries = pytest.importorskip("geometries")
    n, views = 48, 60
    y, x = np.mgrid[-1 : 1 : n * 1j, -1 : 1 : n * 1j]
    truth = np.zeros((n, n))
    for cx, cy, a, b, value in (
        (0, 0, 0.7, 0.9, 0.05), (0, 0, 0.6, 0.8, -0.03), (0.25, 0, 0.15, 0.3, 0.015),
        (-0.25, 0.1, 0.2, 0.4, 0.02), (0, -0.5, 0.15, 0.1, 0.03),
    ):  # fmt: skip
        truth[((x - cx) / a) ** 2 + ((y - cy) / b) ** 2 <= 1] += value
    beam = geometries.FanBeam(
        np.linspace(0, 2 * np.pi, views, endpoint=False),
        geometries.Detector(72, pitch=2 * unit), 100 * unit, 200 * unit,
    )  # fmt: skip
    A = geometries.Projector(beam, geometries.Grid((n, n), unit), precision=dtype)
    lines = A @ (truth / unit).astype(dtype)
    counts = np.random.default_rng(0).poisson(3e3 * np.exp(-lines))
    return A, -np.log(counts / 3e3).astype(dtype), truth / unit


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adam", "pdhg"])
def test_defaults_beat_the_analytic_start_whatever_the_units(method):
    A, y, truth = low_dose_scan()
    first = fbp(A, y)
    found = tv(A, y, iterations=60, method=method).solution
    analytic, ours = (np.linalg.norm(v - truth) / np.linalg.norm(truth) for v in (first, found))
    assert ours < 0.6 * analytic, (ours, analytic)
    # In metres, and with measurements of another size. Adam's steps are longer than the kink of
    # total variation is wide: there the last bits decide where it jumps.
    near = 0.01 if method == "adam" else 1e-6
    metres, _, _ = low_dose_scan(1e-3)
    again = tv(metres, y, iterations=60, method=method).solution
    np.testing.assert_allclose(again / 1e3, found, atol=near * found.max())
    more = tv(A, 1e6 * y, iterations=60, method=method).solution
    np.testing.assert_allclose(more / 1e6, found, atol=near * found.max())


def test_the_start_is_analytic_and_fits(tmp_path):
    A, y, _ = low_dose_scan()
    first = np.maximum(fbp(A, y), 0)
    image = A @ first
    wanted = first * (np.vdot(image, y) / np.vdot(image, image))
    for solver in (A, 4.0 * A):
        started = tv(solver, y, iterations=0)
        np.testing.assert_allclose(
            started.solution, wanted / (1 if solver is A else 4), rtol=1e-9, atol=1e-15
        )
    assert not tv(A, y, iterations=0, x0="zero").solution.any()
    with pytest.raises(ValueError, match="x0 is 'fbp'"):
        tv(A, y, iterations=0, x0="fbp")
    whole = tv(A, y, iterations=4)
    tv(A, y, iterations=2, checkpoint_directory=tmp_path)
    resumed = tv(A, y, iterations=4, resume=tmp_path)
    np.testing.assert_array_equal(resumed.solution, whole.solution)


def test_the_objective_stands_where_it_is_looked_for():
    text = " ".join(tv.__doc__.split())
    assert "|A x - y|^2_W / (2 N) + weight * mean(sqrt(|G x|^2 + eps))" in text
