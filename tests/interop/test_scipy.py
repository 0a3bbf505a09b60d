"""SciPy on our operators, bare and through the adapter, and SciPy's operators as ours."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

import linops as lo
from linops.errors import DTypeError
from linops.interop import from_scipy, to_scipy
from linops.testing import dot_test

linalg = pytest.importorskip("scipy.sparse.linalg")


def tall(dtype: str = "float64") -> tuple[lo.LinearOperator, np.ndarray]:
    generator = np.random.default_rng(0)
    M = generator.standard_normal((15, 12)).astype(dtype)
    if np.dtype(dtype).kind == "c":
        M = M + 1j * generator.standard_normal((15, 12)).astype(dtype)
    return lo.Matrix(M, lo.Space((3, 4), dtype), lo.Space((5, 3), dtype)), M


def definite(dtype: str = "float64") -> tuple[lo.LinearOperator, np.ndarray]:
    """The smoothing operator `I + D.H @ D` on an image."""
    D = lo.Gradient(lo.Space((4, 5), dtype))
    A = lo.Identity(D.domain) + D.H @ D
    return A, A.to_dense()


@pytest.mark.parametrize("wrap", [to_scipy, lambda A: A], ids=["adapter", "bare"])
@pytest.mark.parametrize("solver", ["lsqr", "lsmr"])
def test_least_squares(wrap, solver: str) -> None:
    A, M = tall()
    y = np.random.default_rng(1).standard_normal(15)
    found = getattr(linalg, solver)(wrap(A), y, atol=1e-13, btol=1e-13)[0]
    assert np.allclose(found, np.linalg.lstsq(M, y, rcond=None)[0], atol=1e-8)
    assert found.dtype == "float64" and found.shape == (12,)


@pytest.mark.parametrize("wrap", [to_scipy, lambda A: A], ids=["adapter", "bare"])
@pytest.mark.parametrize("solver", ["cg", "gmres"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_square_systems_keep_their_dtype(wrap, solver: str, dtype: str) -> None:
    A, M = definite(dtype)
    y = np.random.default_rng(1).standard_normal(20).astype(dtype)
    found, info = getattr(linalg, solver)(wrap(A), y, rtol=1e-6, atol=0.0, maxiter=200)
    assert info == 0
    assert np.allclose(found, np.linalg.solve(M.astype("float64"), y), atol=1e-4)
    if solver == "cg":
        assert found.dtype == dtype


@pytest.mark.parametrize("wrap", [to_scipy, lambda A: A], ids=["adapter", "bare"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_singular_values(wrap, dtype: str) -> None:
    A, M = tall(dtype)
    u, s, vh = linalg.svds(wrap(A), k=3, random_state=0)
    exact = np.linalg.svd(M, compute_uv=False)
    assert np.allclose(np.sort(s)[::-1], exact[:3], rtol=1e-4)
    assert u.shape == (15, 3) and vh.shape == (3, 12)
    assert u.dtype == dtype


@pytest.mark.parametrize("wrap", [to_scipy, lambda A: A], ids=["adapter", "bare"])
def test_eigenvalues(wrap) -> None:
    A, M = definite()
    found = linalg.eigsh(wrap(A), k=3, which="LA", return_eigenvectors=False)
    assert np.allclose(np.sort(found), np.linalg.eigvalsh(M)[-3:])


def test_lobpcg_multiplies_by_matrices_and_takes_the_adapter() -> None:
    A, M = definite()
    start = np.random.default_rng(0).standard_normal((20, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = linalg.lobpcg(to_scipy(A), start, largest=True, tol=1e-9, maxiter=200)[0]
    assert np.allclose(np.sort(found), np.linalg.eigvalsh(M)[-3:], atol=1e-6)


def test_a_solver_of_float64_vectors_warns_of_nothing() -> None:
    A, _ = tall("float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linalg.lsqr(to_scipy(A), np.ones(15), iter_lim=3)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_columns_are_one_batch(dtype: str, count: int) -> None:
    A, M = tall(dtype)
    S = to_scipy(A)
    generator = np.random.default_rng(2)
    X = generator.standard_normal((12, count)).astype(dtype)
    Y = generator.standard_normal((15, count)).astype(dtype)
    assert np.allclose(S.matmat(X), M @ X) and S.matmat(X).shape == (15, count)
    assert np.allclose(S.rmatmat(Y), M.conj().T @ Y)
    assert np.allclose(S @ X, M @ X)
    assert np.allclose(S.H @ Y, M.conj().T @ Y)


@pytest.mark.parametrize("wrap", [to_scipy, lambda A: A], ids=["adapter", "bare"])
@pytest.mark.parametrize("tail", [(), (1,)])
def test_flat_and_single_column_vectors_keep_their_shape(wrap, tail) -> None:
    A, M = tall()
    v, w = np.arange(12.0), np.arange(15.0)
    S = wrap(A)
    assert np.allclose(S.matvec(v.reshape(12, *tail)), (M @ v).reshape(15, *tail))
    assert S.matvec(v.reshape(12, *tail)).shape == (15, *tail)
    assert np.allclose(S.rmatvec(w.reshape(15, *tail)), (M.T @ w).reshape(12, *tail))
    assert S.rmatvec(w.reshape(15, *tail)).shape == (12, *tail)


def test_product_spaces_are_one_flat_vector() -> None:
    space = lo.Space((2, 3), "float64")
    A = lo.vstack([lo.Identity(space), 2 * lo.Identity(space)])
    S = to_scipy(A)
    assert S.shape == (12, 6)
    assert np.array_equal(S @ np.eye(6), np.vstack([np.eye(6), 2 * np.eye(6)]))


def test_scipys_own_arithmetic_around_it_and_pickling() -> None:
    A, M = tall()
    S = to_scipy(A)
    assert np.allclose((2 * S).H @ np.eye(15), 2 * M.T)
    assert np.allclose((S.H @ S) @ np.eye(12), M.T @ M)
    again = pickle.loads(pickle.dumps(S))
    assert np.array_equal(again @ np.eye(12), S @ np.eye(12))


def test_operators_of_scipy_become_ours() -> None:
    _, M = tall("complex128")
    S = linalg.aslinearoperator(M)
    A = from_scipy(S)
    assert dot_test(A) <= 16
    assert np.allclose(A.to_dense(), M)
    shaped = from_scipy(S, lo.Space((3, 4), "complex128"), lo.Space((5, 3), "complex128"))
    assert (shaped @ shaped.domain.random(0)).shape == (5, 3)
    composed = lo.Identity(shaped.codomain) @ shaped
    assert np.allclose(composed.to_dense(), M)


def test_our_solver_runs_on_an_operator_of_scipy() -> None:
    solvers = pytest.importorskip("solvers")
    _, M = tall()
    y = np.random.default_rng(3).standard_normal(15)
    found = solvers.cgls(from_scipy(linalg.aslinearoperator(M)), y, iterations=40).solution
    assert np.allclose(found, np.linalg.lstsq(M, y, rcond=None)[0], atol=1e-8)


def test_a_missing_adjoint_is_named_before_anything_runs() -> None:
    with pytest.raises(TypeError, match="rmatvec"):
        from_scipy(linalg.LinearOperator((3, 3), matvec=lambda v: v, dtype="float64"))


def test_the_adjoint_that_scipy_cannot_form_is_the_function_that_is_missing() -> None:
    one_way = linalg.LinearOperator((2, 3), matvec=lambda v: v[:2], dtype="float32")
    with pytest.raises(TypeError, match=r"no adjoint.*'rmatvec'"):
        lo.as_operator(one_way)
    with pytest.raises(TypeError, match=r"no adjoint.*'rmatvec'"):
        lo.Identity(lo.Space(2)) @ one_way


def test_a_missing_dtype_is_asked_for() -> None:
    class Bare:
        shape = (2, 2)
        dtype = None
        matvec = rmatvec = staticmethod(lambda v: v)

    with pytest.raises(DTypeError, match="dtype"):
        from_scipy(Bare())
