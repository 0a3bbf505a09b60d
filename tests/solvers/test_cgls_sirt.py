"""CGLS and SIRT against golden histories, dense solutions and plain recurrences."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

import linops as lo
from solvers import cgls, sirt

from .system import Counting, golden_data, golden_matrix, golden_operator, to

NAMESPACES = ["numpy", "torch", "jax"]


def operator_for(namespace, shape=6):
    return golden_operator(shape, "float32" if namespace == "jax" else "float64")


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("shape", [6, (2, 3)])
def test_cgls_has_its_golden_history(namespace, shape):
    result = cgls(operator_for(namespace, shape), to(golden_data(), namespace), iterations=4)
    golden = [
        2.40600369128977,
        0.81744582524406,
        0.34165578089470,
        0.11559865947583,
        0.02946858602816,
    ]
    rtol = 3e-5 if namespace == "jax" else 1e-11
    np.testing.assert_allclose(result.residual_history, golden, rtol=rtol)
    assert all(type(value) is float for value in result.residual_history)
    assert (result.iterations, result.converged, result.reason) == (
        4,
        False,
        "iteration limit reached",
    )
    assert type(result.solution) is type(to(golden_data(), namespace))
    assert tuple(result.solution.shape) == ((6,) if shape == 6 else shape)


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_sirt_has_its_golden_history(namespace):
    result = sirt(operator_for(namespace), to(golden_data(), namespace), iterations=4)
    golden = [
        2.40600369128977,
        0.92287084924754,
        0.62413240859575,
        0.43764823424702,
        0.37299690424342,
    ]
    np.testing.assert_allclose(
        result.residual_history, golden, rtol=3e-5 if namespace == "jax" else 1e-11
    )
    assert float(np.asarray(result.solution).min()) >= 0


@pytest.mark.parametrize("damp", [0.0, 0.3])
def test_cgls_reaches_the_dense_solution(damp):
    M, y = golden_matrix(), golden_data() + 0.1 * np.cos(np.arange(15))
    result = cgls(golden_operator(), y, iterations=40, damp=damp)
    want = np.linalg.solve(M.T @ M + damp**2 * np.eye(6), M.T @ y)
    np.testing.assert_allclose(result.solution, want, rtol=1e-9)
    assert result.residual_history[-1] == pytest.approx(np.linalg.norm(y - M @ want), rel=1e-11)


def test_cgls_in_complex_spaces():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((8, 4)) + 1j * rng.standard_normal((8, 4))
    y = rng.standard_normal(8) + 1j * rng.standard_normal(8)
    result = cgls(lo.Matrix(M), y, iterations=20)
    np.testing.assert_allclose(result.solution, np.linalg.lstsq(M, y, rcond=None)[0], rtol=1e-9)
    assert all(type(value) is float for value in result.residual_history)


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_tikhonov_by_stacking(namespace):
    A, G = golden_operator(), lo.Gradient(lo.Space(6, "float64"))
    stacked = lo.vstack([A, 0.3 * G])
    y = golden_data()
    pair = (to(y, namespace), to(np.zeros((1, 6)), namespace))
    result = cgls(stacked, pair, iterations=30)
    M, D = A.to_dense(), G.to_dense()
    want = np.linalg.solve(M.T @ M + 0.09 * D.T @ D, M.T @ y)
    np.testing.assert_allclose(result.solution, want, rtol=1e-9)


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("solver", [cgls, sirt])
def test_members_of_a_batch_solve_alone(solver, namespace):
    A = operator_for(namespace)
    batch = np.stack([golden_data(), np.zeros(15), 3 * np.cos(np.arange(15.0))])
    together = solver(A, to(batch, namespace), iterations=5, rtol=0.2)
    single = [solver(A, to(y, namespace), iterations=5, rtol=0.2) for y in batch]
    tolerance = dict(rtol=1e-4, atol=1e-5) if namespace == "jax" else dict(rtol=1e-10, atol=1e-12)
    for i, alone in enumerate(single):
        np.testing.assert_allclose(together.solution[i], alone.solution, **tolerance)
        column = [row[i] for row in together.residual_history]
        np.testing.assert_allclose(
            column[: alone.iterations + 1], alone.residual_history, **tolerance
        )
        assert all(value == column[alone.iterations] for value in column[alone.iterations :])
    assert together.converged == [alone.converged for alone in single]
    assert together.reason == [alone.reason for alone in single]
    assert together.converged[1] and together.iterations == max(a.iterations for a in single)


def test_empty_batches_give_empty_results():
    result = cgls(golden_operator(), np.zeros((0, 15)), iterations=3)
    assert result.solution.shape == (0, 6)
    assert result.converged == [] and result.iterations == 0


@pytest.mark.parametrize("solver", [cgls, sirt])
@pytest.mark.parametrize("case", ["zero", "exact", "rtol", "atol"])
def test_the_start_may_be_good_enough(solver, case):
    x = np.array([3.0, 0, 1, 2, 0, 1])
    y = golden_matrix() @ x
    options = {
        "zero": {},
        "exact": dict(x0=x),
        "rtol": dict(rtol=1.01),
        "atol": dict(atol=1e3),
    }[case]
    result = solver(golden_operator(), 0 * y if case == "zero" else y, iterations=5, **options)
    assert result.iterations == 0 and result.converged is True
    assert result.reason == "residual tolerance reached"
    assert len(result.residual_history) == 1


def test_cgls_never_divides_by_zero():
    A = lo.Identity(lo.Space(2, "float64"))
    y = np.array([3.0, 4.0])
    result = cgls(A, y, iterations=10)
    np.testing.assert_array_equal(result.solution, [3, 4])
    assert np.isfinite(result.residual_history).all()
    np.testing.assert_array_equal(cgls(A, 0 * y, iterations=10).solution, [0, 0])
    np.testing.assert_array_equal(cgls(A, y, x0=y, iterations=10).solution, y)
    x0 = np.array([5.0, 6.0])
    none = cgls(A, y, x0=x0, iterations=0)
    np.testing.assert_array_equal(none.solution, x0)
    assert none.solution is not x0 and none.residual_history == [pytest.approx(8**0.5)]
    nothing = cgls(0 * lo.Matrix(np.eye(2)), y, x0=x0, iterations=10)
    np.testing.assert_array_equal(nothing.solution, x0)
    assert nothing.reason == "normal equation breakdown" and nothing.converged is False


def test_cgls_ends_on_inconsistent_data_by_the_normal_equations():
    y = golden_data() + np.cos(np.arange(15.0))
    result = cgls(golden_operator(), y, iterations=100, normal_rtol=1e-9)
    M = golden_matrix()
    assert result.converged and result.reason == "least-squares tolerance reached"
    assert np.linalg.norm(M.T @ (y - M @ result.solution)) <= 1.1e-9 * np.linalg.norm(M.T @ y)
    assert result.iterations < 20


@pytest.mark.parametrize("error", [0.0, 1e-3])
def test_cgls_does_not_diverge_in_float32(error):
    rng = np.random.default_rng(1)
    M = rng.random((60, 40)).astype("float32")
    # A mismatched pair: the adjoint is a slightly different matrix.
    back = (M * (1 + error * rng.standard_normal(M.shape))).astype("float32")
    A = lo.from_functions(
        lambda x: M @ x, lambda y: back.T @ y, domain=lo.Space(40), codomain=lo.Space(60)
    )
    y = (M @ rng.random(40) + 0.1 * rng.standard_normal(60)).astype("float32")
    result = cgls(A, y, iterations=200)
    history = np.array(result.residual_history)
    assert np.isfinite(history).all()
    if error == 0:
        assert (np.diff(history) <= 1e-6 * history[0]).all()
    true = np.linalg.norm(y.astype("float64") - M.astype("float64") @ result.solution)
    assert history[-1] == pytest.approx(true, rel=1e-3)


@pytest.mark.parametrize("solver", [cgls, sirt])
def test_inputs_stay_and_results_repeat(solver):
    A, y, x0 = golden_operator(), golden_data(), np.full(6, 0.5)
    kept = y.copy(), x0.copy()
    first, second = (solver(A, y, x0=x0, iterations=3) for _ in range(2))
    np.testing.assert_array_equal(first.solution, second.solution)
    assert first.residual_history == second.residual_history
    np.testing.assert_array_equal(y, kept[0])
    np.testing.assert_array_equal(x0, kept[1])
    y.setflags(write=False)
    solver(A, y[::1], iterations=2)
    strided = np.repeat(y, 2)[::2]
    np.testing.assert_array_equal(solver(A, strided, x0=x0, iterations=3).solution, first.solution)


def test_results_carry_no_graph():
    torch = pytest.importorskip("torch")
    y = torch.tensor(golden_data(), requires_grad=True)
    for solver in (cgls, sirt):
        result = solver(golden_operator(), y, iterations=2)
        assert not result.solution.requires_grad


@pytest.mark.parametrize("solver", [cgls, sirt])
def test_callback_sees_each_iterate_and_may_stop(solver):
    A, y, seen = golden_operator(), golden_data(), []

    def look(iteration, residual, solution):
        with pytest.raises(ValueError, match="read-only"):
            solution[0] = 1
        seen.append((iteration, residual, solution))
        return None if iteration < 3 else False

    result = solver(A, y, iterations=9, callback=look)
    assert [iteration for iteration, _, _ in seen] == [1, 2, 3]
    for _, residual, solution in seen:
        assert residual == pytest.approx(np.linalg.norm(y - golden_matrix() @ solution), rel=1e-9)
    assert result.reason == "callback stopped" and result.converged is False
    assert result.iterations == 3
    # Only False stops.
    assert solver(A, y, iterations=4, callback=lambda *_: 0).iterations == 4

    def fail(*_):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        solver(A, y, iterations=4, callback=fail)


def test_applications_are_counted():
    A = Counting(golden_matrix())
    cgls(A, golden_data(), iterations=5)
    assert A.calls == {"forward": 5, "adjoint": 5}
    A = Counting(golden_matrix())
    cgls(A, golden_data(), iterations=5, x0=np.ones(6))
    assert A.calls == {"forward": 6, "adjoint": 5}
    for callback in (None, lambda *_: None):
        A = Counting(golden_matrix())
        sirt(A, golden_data(), iterations=5, callback=callback)
        assert A.calls == {"forward": 6, "adjoint": 6}


@pytest.mark.parametrize(
    ("solver", "options"),
    [
        (s, o)
        for s in (cgls, sirt)
        for o in (
            dict(iterations=-1),
            dict(iterations=True),
            dict(iterations=1.5),
            dict(rtol=-1),
            dict(rtol=float("nan")),
            dict(atol=-1),
            dict(atol=float("inf")),
            dict(callback=7),
            dict(x0=np.zeros(5)),
            dict(checkpoint_every=0),
            dict(keep=0),
            dict(progress="yes"),
        )
    ]
    + [(cgls, dict(damp=-1)), (cgls, dict(normal_rtol=-1))]
    + [
        (sirt, o)
        for o in (
            dict(relaxation=0),
            dict(relaxation=float("nan")),
            dict(bounds=(1, 0)),
            dict(bounds=(1,)),
            dict(bounds=3),
            dict(bounds=(float("nan"), None)),
        )
    ],
)
def test_bad_controls_are_refused_before_any_application(solver, options):
    A = Counting(golden_matrix())
    with pytest.raises(ValueError):
        solver(A, golden_data(), **(dict(iterations=3) | options))
    assert A.calls == {"forward": 0, "adjoint": 0}


@pytest.mark.parametrize("solver", [cgls, sirt])
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_measurements_that_are_not_finite_are_named(solver, namespace):
    y = golden_data()
    y[4] = np.nan
    y[7] = np.inf
    with pytest.raises(ValueError, match=r"y\[4\] is nan \(2 entries"):
        solver(operator_for(namespace), to(y, namespace), iterations=3)


def test_sirt_wants_to_know_the_signs():
    M = golden_matrix()
    M[0, 3] = -0.5
    A = Counting(M, tags=())
    with pytest.raises(ValueError, match="nonnegative"):
        sirt(A, golden_data(), iterations=3)
    assert A.calls["forward"] == 0
    size = abs(M)
    result = sirt(A, M @ np.ones(6), iterations=400, row_sums=size.sum(1), column_sums=size.sum(0))
    np.testing.assert_allclose(result.solution, 1, rtol=1e-3)


def test_sirt_solves_bounded_least_squares_with_its_weights():
    M, y = golden_matrix(), golden_data()
    result = sirt(golden_operator(), y, iterations=3000, bounds=(0, 0.8), relaxation=1.5)
    root = np.sqrt(1 / M.sum(1))
    want = scipy.optimize.lsq_linear(root[:, None] * M, root * y, bounds=(0, 0.8), tol=1e-14).x
    np.testing.assert_allclose(result.solution, want, atol=1e-6)


def test_sirt_leaves_out_rays_that_graze():
    # The third ray meets the first voxel along 1e-12 and says 3: divided by that length it would
    # be 3e12. The second meets nothing.
    A = lo.Matrix(np.array([[1.0, 0], [0, 0], [1e-12, 0]]))
    found = sirt(A, np.array([2.0, 5, 3]), iterations=200).solution
    np.testing.assert_allclose(found, [2, 0], atol=1e-6)
    # A ray of a thousandth of the longest weighs what it weighed.
    A = lo.Matrix(np.diag([1.0, 1e-3]))
    np.testing.assert_allclose(sirt(A, np.array([1.0, 3e-3]), iterations=3).solution, [1, 3])
    # Sums that are given are looked at alike.
    A = lo.Matrix(np.array([[1.0, 0], [1e-12, 0]]))
    sums = dict(row_sums=np.array([1.0, 1e-12]), column_sums=np.array([1.0, 0]))
    assert sirt(A, np.array([2.0, 3]), iterations=2, **sums).solution[0] == pytest.approx(2)


def test_sirt_leaves_unseen_voxels_alone():
    M = golden_matrix()
    M[:, 2] = 0
    M[9] = 0
    result = sirt(lo.Matrix(M), golden_data(), x0=np.full(6, 0.25), iterations=5)
    assert result.solution[2] == 0.25
    assert np.isfinite(result.solution).all()


@pytest.mark.slow
@given(order=st.permutations(range(15)))
def test_the_order_of_measurements_does_not_matter(order):
    order = list(order)
    for solver, rtol in ((sirt, 1e-10), (cgls, 1e-9)):
        plain = solver(golden_operator(), golden_data(), iterations=4).solution
        mixed = solver(
            lo.Matrix(golden_matrix()[order]), golden_data()[order], iterations=4
        ).solution
        np.testing.assert_allclose(mixed, plain, rtol=rtol, atol=rtol)


def test_a_missing_progress_bar_is_explained(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    A = Counting(golden_matrix())
    with pytest.raises(ImportError, match="pip install tqdm"):
        cgls(A, golden_data(), iterations=2, progress=True)
    assert A.calls["forward"] == 0


def test_a_progress_bar_changes_nothing():
    pytest.importorskip("tqdm")
    plain = cgls(golden_operator(), golden_data(), iterations=3)
    drawn = cgls(golden_operator(), golden_data(), iterations=3, progress=True)
    np.testing.assert_array_equal(plain.solution, drawn.solution)
