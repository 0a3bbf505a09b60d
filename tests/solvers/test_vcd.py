"""VCD against its golden minimisers, dense solutions, SciPy, and its own descent."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

import linops as lo
from linops.functionals import QGGMRF, Quadratic, TotalVariation
from solvers import vcd

from .system import Counting, to


def system(namespace="numpy"):
    i, j = np.arange(20.0)[:, None], np.arange(27.0)
    M = np.abs(np.sin(1.3 * i + 0.7 * j + 0.1 * i * j))
    truth = np.where(np.arange(27) % 4 < 2, 1.0, 0.2)
    y = M @ truth + 0.1 * np.cos(5 * np.arange(20.0))
    w = 1 + 0.5 * np.cos(np.arange(20.0))
    dtype = "float32" if namespace == "jax" else "float64"
    A = lo.Matrix(M.astype(dtype), domain=lo.Space((3, 3, 3), dtype))
    prior = QGGMRF(A.domain, p=2.0, q=1.2, T=1.0, sigma_x=0.2)
    return A, to(y, namespace), to(w, namespace), prior


@functools.cache
def minimiser(bounds=None):
    """The minimum by SciPy: the matrix is too ill-conditioned to descend to it in a test."""
    A, y, w, prior = system()
    M = A.to_dense()
    x = np.zeros(27)
    for _ in range(100):  # majorize, minimise
        S = prior.surrogate(x.reshape(3, 3, 3)).to_dense()
        if bounds is None:
            x = np.linalg.solve(100 * M.T * w @ M + S, 100 * M.T @ (w * y))
        else:
            values, vectors = np.linalg.eigh(S)
            root = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
            data = 10 * np.sqrt(w)
            rows = np.concatenate([data[:, None] * M, root])
            x = scipy.optimize.nnls(rows, np.concatenate([data * y, np.zeros(27)]))[0]
    return x.reshape(3, 3, 3)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_golden_minimiser_is_where_it_rests(count):
    A, y, w, prior = system()
    best = minimiser()
    result = vcd(A, y, prior, weights=w, sigma_y=0.1, iterations=30, partitions=count, x0=best)
    x = result.solution
    assert result.histories["objective"][-1] == pytest.approx(8.493540491457, rel=1e-8)
    for got, want in (
        (x[0, 0, 0], 1.1966345759),
        (x[1, 1, 1], 0.9236751384),
        (x[2, 1, 0], 0.9055591193),
        (x.sum() / 10, 1.64698630035),
    ):
        assert got == pytest.approx(want, abs=1e-6)
    rms = np.sqrt((w * (y - A @ x) ** 2).sum() / w.sum()) / 0.1
    assert result.histories["data_rms"][-1] == pytest.approx(rms, rel=1e-9)
    start = 50 * (w * y**2).sum()
    assert start == pytest.approx(117316.28058, rel=1e-9)
    objective = [
        start,
        *vcd(A, y, prior, weights=w, sigma_y=0.1, iterations=100, partitions=count).histories[
            "objective"
        ],
    ]
    assert (np.diff(objective) <= 1e-12 * np.array(objective[:-1])).all()
    assert 8.4935404 <= objective[-1] < 8.4935404 + 0.001 * start


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 5])
def test_golden_minimiser_with_bounds(count):
    A, y, w, prior = system()
    best = minimiser((0, None))
    result = vcd(
        A,
        y,
        prior,
        weights=w,
        sigma_y=0.1,
        iterations=50,
        partitions=count,
        bounds=(0, None),
        x0=best,
    )
    x = result.solution
    assert result.histories["objective"][-1] == pytest.approx(8.594903, abs=2e-6)
    for got, want in (
        (x[0, 0, 0], 1.16700),
        (x[1, 1, 1], 0.93780),
        (x[2, 1, 0], 0.87816),
        (x.sum(), 16.5097),
    ):
        assert got == pytest.approx(want, abs=6e-5)
    assert (x < 1e-5).sum() == 2
    seen = []
    result = vcd(
        A,
        y,
        prior,
        weights=w,
        sigma_y=0.1,
        iterations=200,
        partitions=count,
        bounds=(0, None),
        callback=lambda k, r, x: seen.append(float(x.min())),
    )
    assert min(seen) >= 0
    objective = np.array(result.histories["objective"])
    assert (np.diff(objective) <= 1e-12 * objective[:-1]).all()


@pytest.mark.slow
def test_bounded_solutions_meet_the_optimality_conditions():
    rng = np.random.default_rng(4)
    M = rng.standard_normal((30, 12))
    y = rng.standard_normal(30) * 2
    A = lo.Matrix(M, domain=lo.Space((3, 4), "float64"))
    prior = QGGMRF(A.domain, sigma_x=0.5)
    x = vcd(A, y, prior, iterations=300, partitions=4, bounds=(0, 0.2)).solution
    gradient = prior.gradient(x) - A.H @ (y - A @ x)
    low, high = x <= 1e-9, x >= 0.2 - 1e-9
    assert low.any() and high.any() and (~low & ~high).any()
    assert abs(gradient[~low & ~high]).max() < 1e-5
    assert gradient[low].min() > -1e-5 and gradient[high].max() < 1e-5


@pytest.mark.parametrize("namespace", ["torch", "jax"])
def test_namespaces_agree(namespace):
    options = dict(partitions=[2, 3], bounds=(0, None), seed=3)
    A, y, w, prior = system()
    reference = vcd(A, y, prior, weights=w, sigma_y=0.1, iterations=3, **options)
    A, y, w, prior = system(namespace)
    result = vcd(A, y, prior, weights=w, sigma_y=0.1, iterations=3, **options)
    assert type(result.solution) is type(y)
    rtol = 1e-10 if namespace == "torch" else 2e-3
    np.testing.assert_allclose(result.solution, reference.solution, rtol=rtol, atol=rtol)
    for name, values in reference.histories.items():
        assert all(type(value) is float for value in result.histories[name])
        np.testing.assert_allclose(result.histories[name], values, rtol=max(rtol, 1e-9))
    np.testing.assert_allclose(
        result.residual_history, reference.residual_history, rtol=max(rtol, 1e-9)
    )


def test_the_step_uses_the_whole_quadratic_form():
    space = lo.Space((6, 5, 5), "float64")
    z, y, x = np.indices(space.shape)
    start = (-1.0) ** (z + y + x)
    prior = QGGMRF(space, sigma_x=1e3)
    A = lo.Zero(space, lo.Space(1, "float64"))
    result = vcd(A, np.zeros(1), prior, x0=start, iterations=1, partitions=1)
    assert result.histories["step"] == [pytest.approx(0.5, rel=1e-6)]
    assert result.histories["objective"][0] < 1e-12 * prior(start)


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["none", "quadratic", "differences", "tv", "sum"])
@pytest.mark.parametrize("shape", [(12,), (3, 4), (2, 2, 3)])
def test_equals_dense_solve_or_quasi_newton(prior, shape):
    rng = np.random.default_rng(0)
    M = rng.standard_normal((30, 12))
    y = rng.standard_normal(30)
    A = lo.Matrix(M, domain=lo.Space(shape, "float64"))
    center = rng.standard_normal(shape)
    space = A.domain
    f = {
        "none": None,
        "quadratic": Quadratic(space, 4.0, center),
        "differences": QGGMRF(space, p=2, q=2, sigma_x=0.5),
        "tv": TotalVariation(space, eps=1e-2, reduction="sum"),
        "sum": 0.5 * TotalVariation(space, eps=1e-2) + Quadratic(space, 1.0, center),
    }[prior]
    result = vcd(A, y, f, sigma_y=0.5, iterations=600, partitions=min(3, shape[-1]))

    def objective(v):
        x, r = v.reshape(shape), M @ v - y
        value, gradient = 2 * r @ r, 4 * M.T @ r
        if f is not None:
            value, gradient = value + f(x), gradient + f.gradient(x).ravel()
        return value, gradient

    best = scipy.optimize.minimize(objective, np.zeros(12), jac=True, options=dict(gtol=1e-12)).x
    np.testing.assert_allclose(result.solution.ravel(), best, atol=1e-6)
    if prior == "differences":
        S = f.surrogate(np.zeros(shape)).to_dense()
        want = np.linalg.solve(4 * M.T @ M + S, 4 * M.T @ y)
        np.testing.assert_allclose(result.solution.ravel(), want, atol=1e-10)


def test_one_voxel_alone_takes_a_step_of_one():
    rng = np.random.default_rng(1)
    A = lo.Matrix(rng.standard_normal((8, 4)))
    result = vcd(A, rng.standard_normal(8), iterations=2, partitions=4)
    np.testing.assert_allclose(result.histories["step"], 1, rtol=1e-12)
    Q = lo.Matrix(np.linalg.qr(rng.standard_normal((8, 4)))[0])
    result = vcd(Q, rng.standard_normal(8), iterations=1, partitions=1)
    assert result.histories["step"] == [pytest.approx(1, rel=1e-12)]


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**20),
    count=st.integers(1, 6),
    dtype=st.sampled_from(["float32", "float64"]),
    bounded=st.booleans(),
    q=st.floats(0.6, 2.0),
    order=st.sampled_from(["random", "grid", "blue_noise"]),
)
def test_the_objective_never_rises(seed, count, dtype, bounded, q, order):
    from solvers.plane_partitions import Partitions

    rng = np.random.default_rng(seed)
    A = lo.Matrix(rng.standard_normal((9, 12)).astype(dtype), domain=lo.Space((2, 2, 3), dtype))
    y = rng.standard_normal(9).astype(dtype) * 3
    w = (rng.random(9) * (rng.random(9) > 0.3)).astype(dtype)
    prior = QGGMRF(A.domain, p=2.0, q=q, sigma_x=0.3)
    result = vcd(
        A,
        y,
        prior,
        weights=w,
        sigma_y=0.7,
        iterations=8,
        partitions=Partitions(count, order),
        bounds=(0, 1.5) if bounded else None,
        x0=rng.random((2, 2, 3)),
    )
    objective = np.array(result.histories["objective"])
    slack = 2e-6 if dtype == "float32" else 1e-12
    assert (np.diff(objective) <= slack * objective[:-1]).all()
    if bounded:
        assert result.solution.min() >= 0 and result.solution.max() <= 1.5


def test_half_the_measurements_at_weight_zero():
    A, y, w, prior = system()
    w = w.copy()
    w[::2] = 0
    left = vcd(A, y, prior, weights=w, sigma_y=0.1, iterations=40, partitions=9)
    M = A.to_dense()[1::2]
    B = lo.Matrix(M, domain=A.domain)
    right = vcd(B, y[1::2], prior, weights=w[1::2], sigma_y=0.1, iterations=40, partitions=9)
    np.testing.assert_allclose(left.solution, right.solution, atol=1e-5)
    y = y.copy()
    y[0] = np.nan
    with pytest.raises(ValueError, match=r"y\[0\] is nan"):
        vcd(A, y, prior, weights=w)


def test_named_weights():
    A, y, _, prior = system()
    y = y / 10
    for name, w in (
        ("transmission", np.exp(-y)),
        ("transmission_root", np.exp(-y / 2)),
        ("emission", 1 / (abs(y) + 0.1)),
        (2.0, np.full(20, 2.0)),
    ):
        named = vcd(A, y, prior, weights=name, sigma_y=0.1, iterations=3)
        given_ = vcd(A, y, prior, weights=w, sigma_y=0.1, iterations=3)
        np.testing.assert_array_equal(named.solution, given_.solution)
    for bad in ("beer", -1.0, -np.ones(20), np.full(20, np.inf)):
        with pytest.raises(ValueError, match="weights"):
            vcd(A, y, prior, weights=bad)


def test_region_and_start():
    A, y, w, prior = system()
    x0 = np.full((3, 3, 3), 0.3)
    mask = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]])
    result = vcd(A, y, prior, weights=w, sigma_y=0.1, iterations=5, x0=x0, roi=mask)
    outside = mask == 0
    assert (result.solution[:, outside] == 0.3).all()
    assert (result.solution[:, ~outside] != 0.3).all()
    assert (x0 == 0.3).all()
    np.testing.assert_array_equal(
        vcd(A, y, prior, weights=w, sigma_y=0.1, iterations=0, x0=x0).solution, x0
    )
    assert not vcd(A, 0 * y, prior, weights=w, sigma_y=0.1, iterations=3).solution.any()


@pytest.mark.slow
def test_stopping():
    A, y, w, prior = system()
    result = vcd(
        A, y, prior, weights=w, sigma_y=0.1, iterations=500, partitions=9, change_rtol=1e-3
    )
    change = result.histories["change"]
    assert result.converged is True and result.reason == "relative change reached"
    assert change[-1] < 1e-3 and min(change[:-1]) >= 1e-3
    assert len(result.residual_history) == result.iterations + 1 == len(change) + 1
    short = vcd(A, y, prior, weights=w, sigma_y=0.1, iterations=2)
    assert short.converged is False and short.reason == "iteration limit reached"
    stopped = vcd(A, y, prior, weights=w, sigma_y=0.1, iterations=9, callback=lambda k, r, x: k < 3)
    assert stopped.iterations == 3 and stopped.reason == "callback stopped"
    kept = []
    vcd(
        A,
        y,
        prior,
        weights=w,
        sigma_y=0.1,
        iterations=3,
        callback=lambda k, r, x: kept.append((x, x.copy(), r)),
    )
    for shown, copied, residual in kept:
        np.testing.assert_array_equal(shown, copied)
        assert not shown.flags.writeable
        assert residual == pytest.approx(np.linalg.norm(y - A @ copied), rel=1e-9)


def test_error_does_not_drift_in_float32():
    rng = np.random.default_rng(2)
    M = rng.random((60, 48)).astype("float32")
    A = lo.Matrix(M, domain=lo.Space((6, 8)))
    y = (M @ rng.random(48) + 0.1 * rng.standard_normal(60)).astype("float32")

    def check(number, residual, x):
        true = np.linalg.norm(y.astype("float64") - M.astype("float64") @ x.ravel())
        assert abs(residual - true) < 1e-5 * np.linalg.norm(y)
        numbers.append(number)

    numbers = []
    vcd(
        A,
        y,
        QGGMRF(A.domain, sigma_x=0.1),
        iterations=49,
        partitions=6,
        sigma_y=0.1,
        callback=check,
    )
    assert numbers == list(range(1, 50))


@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_decides_everything(seed):
    A, y, w, prior = system()
    first, second = (
        vcd(A, y, prior, weights=w, sigma_y=0.1, iterations=3, partitions=4, seed=seed)
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.solution, second.solution)
    other = vcd(A, y, prior, weights=w, sigma_y=0.1, iterations=3, partitions=4, seed=seed + 1)
    assert (other.solution != first.solution).any()


@pytest.mark.parametrize(
    "options",
    [
        dict(iterations=-1),
        dict(sigma_y=0),
        dict(max_step=2),
        dict(max_step=0),
        dict(rtol=-1),
        dict(change_rtol=-1),
        dict(bounds=(2, 1)),
        dict(partitions=0),
        dict(partitions=[2, 0]),
        dict(partitions="spiral"),
        dict(partitions=[np.arange(3), np.arange(3)]),
        dict(roi="box"),
        dict(roi=np.ones(5)),
        dict(seed=-1),
        dict(callback=3),
        dict(prior=3),
        dict(x0=np.zeros(3)),
        dict(prior=QGGMRF(lo.Space(5))),
    ],
)
def test_bad_controls_are_refused_before_any_application(options):
    A = Counting(np.random.default_rng(0).random((5, 6)))
    with pytest.raises(ValueError):
        vcd(A, np.ones(5), **options)
    assert A.calls == {"forward": 0, "adjoint": 0}


@pytest.mark.slow
def test_against_limited_memory_quasi_newton():
    """The same objective by SciPy, on a scan with 24 views of a small disc."""
    n, views = 16, 24
    yy, xx = np.mgrid[:n, :n] - (n - 1) / 2
    rows = np.zeros((views, 26, n * n))
    for k, t in enumerate(np.pi * np.arange(views) / views):
        u = (xx * np.cos(t) + yy * np.sin(t)).ravel() + 12.5
        cell = np.floor(u).astype(int)
        rows[k, cell, np.arange(n * n)] += 1 - (u - cell)
        rows[k, cell + 1, np.arange(n * n)] += u - cell
    M = rows.reshape(-1, n * n)
    truth = 0.02 * ((xx**2 + yy**2) < 40) + 0.01 * ((abs(xx - 2) < 2) & (abs(yy) < 3))
    y = M @ truth.ravel() + 0.01 * np.random.default_rng(3).standard_normal(len(M))
    A = lo.Matrix(M, domain=lo.Space((n, n), "float64"))
    prior = QGGMRF(A.domain, sigma_x=0.002)

    def objective(v):
        r = M @ v - y
        value = r @ r / 2e-4 + prior(v.reshape(n, n))
        return value, M.T @ r / 1e-4 + prior.gradient(v.reshape(n, n)).ravel()

    best = scipy.optimize.minimize(
        objective,
        np.zeros(n * n),
        jac=True,
        method="L-BFGS-B",
        options=dict(maxiter=500, ftol=1e-13),
    )
    result = vcd(A, y, prior, sigma_y=0.01, iterations=60, partitions=[8, 32, 64])
    history = np.array(result.histories["objective"])
    assert history[-1] == pytest.approx(best.fun, rel=1e-4)
    # One pass costs about one forward and one adjoint, as one evaluation does.
    passes = int(np.argmax(history - history[-1] < 0.01 * history[-1])) + 1
    assert passes < best.nfev
