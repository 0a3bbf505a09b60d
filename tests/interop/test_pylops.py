"""PyLops on our operators, and PyLops' operators as ours."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linops as lo
from linops.errors import DTypeError
from linops.interop import from_pylops, to_pylops
from linops.testing import check_operator, dot_test

pylops = pytest.importorskip("pylops")
sparsity = pytest.importorskip("pylops.optimization.sparsity")
basic = pytest.importorskip("pylops.optimization.basic")


def well_posed(dtype: str = "float64") -> tuple[lo.LinearOperator, np.ndarray, np.ndarray]:
    """A tall composition with a known solution: blur and gradient of an image, stacked flat."""
    space = lo.Space((5, 6), dtype, ("y", "x"))
    blur = lo.Convolve(space, np.array([[0.0, 0.1, 0.0], [0.1, 1.0, 0.1], [0.0, 0.1, 0.0]]))
    gradient = lo.Gradient(space)
    flat = lo.Reshape(gradient.codomain, 60, axes=("row",)) @ gradient
    A = lo.concat([lo.Reshape(space, 30, axes=("row",)) @ blur, flat], axis="row")
    x = space.random(0)
    return A, x, A @ x


def test_spaces_dtype_and_linearity_are_declared() -> None:
    space = lo.Space((4, 6))
    P = to_pylops(lo.Gradient(space))
    assert P.dims == (4, 6) and P.dimsd == (2, 4, 6) and P.shape == (48, 24)
    assert P.dtype == "float32" and P.clinear
    F = to_pylops(lo.FFT(space))
    assert F.dtype == "complex64" and not F.clinear
    assert to_pylops(lo.FFT(lo.Space(4, "complex64"))).clinear


@pytest.mark.parametrize(
    "make",
    [
        lambda: lo.Gradient(lo.Space((4, 5), "float64")),
        lambda: lo.FFT(lo.Space((4, 5), "float64")),
        lambda: lo.FFT(lo.Space((4, 5), "complex128"), norm="backward"),
        lambda: lo.Convolve(lo.Space((4, 5), "float64"), np.array([[1.0, 2j]])),
        lambda: lo.vstack([lo.Identity(lo.Space(6, "float64"))] * 2),
    ],
)
def test_its_dot_test_passes(make) -> None:
    A = make()
    P = to_pylops(A)
    kind = {(False, False): 0, (True, False): 1, (True, True): 3, (False, True): 2}
    complexflag = kind[(A.domain.is_complex, A.codomain.is_complex)]
    assert pylops.utils.dottest(P, *P.shape, rtol=1e-10, complexflag=complexflag, raiseerror=True)
    bare = A if len(A.codomain.members) == 1 and P.clinear else P
    assert pylops.utils.dottest(bare, *A.shape, rtol=1e-10, complexflag=complexflag)


def test_its_matrix_is_ours() -> None:
    A, _, _ = well_posed()
    assert np.allclose(to_pylops(A).todense(), A.to_dense())
    assert np.allclose(pylops.aslinearoperator(A).todense(), A.to_dense())


@pytest.mark.parametrize("wrap", [to_pylops, lambda A: A], ids=["adapter", "bare"])
def test_cgls_and_lsqr_solve(wrap) -> None:
    A, x, y = well_posed()
    found = basic.cgls(wrap(A), y, x0=np.zeros(A.domain.shape), niter=200, tol=1e-12)[0]
    assert found.shape == A.domain.shape and np.allclose(found, x, atol=1e-6)
    found = basic.lsqr(wrap(A), y.ravel(), x0=np.zeros(A.domain.size), niter=200)[0]
    assert np.allclose(found.ravel(), x.ravel(), atol=1e-5)


def test_what_cgls_and_lsqr_give_back_in_single_precision() -> None:
    A, x, y = well_posed("float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = basic.cgls(to_pylops(A), y, x0=np.zeros((5, 6), "float32"), niter=60, tol=1e-10)[0]
        assert found.dtype == "float32" and found.shape == (5, 6)
        assert np.allclose(found, x, atol=1e-3)
        found = basic.lsqr(to_pylops(A), y.ravel(), x0=np.zeros(30, "float32"), niter=100)[0]
        assert found.dtype == "float64" and np.allclose(found.ravel(), x.ravel(), atol=1e-3)


@pytest.mark.parametrize("solver", [sparsity.ista, sparsity.fista], ids=["ista", "fista"])
@pytest.mark.parametrize("alpha", [None, 0.05])
def test_ista_and_fista_reach_the_lasso_conditions(solver, alpha) -> None:
    generator = np.random.default_rng(0)
    M = generator.standard_normal((30, 20)) / np.sqrt(30)
    A = lo.Matrix(M)
    x = np.zeros(20)
    x[[3, 8, 15]] = 2, -1, 1.5
    y, eps = M @ x, 0.02
    found = solver(to_pylops(A), y, niter=4000, eps=eps, alpha=alpha, tol=1e-14)[0]
    slope = M.T @ (y - M @ found)
    # The optimum of |y - M x|^2 / 2 + eps / 2 |x|_1, which is how PyLops counts eps.
    assert np.abs(slope).max() <= 0.5 * eps * (1 + 1e-3)
    on = np.abs(found) > 1e-8
    assert np.allclose(slope[on], 0.5 * eps * np.sign(found[on]), atol=1e-4 * eps)


def test_the_bare_operator_runs_in_ista_where_its_step_is_given() -> None:
    A = lo.Matrix(np.eye(4) * 2.0)
    y = np.array([4.0, 0.0, -2.0, 0.0])
    found = sparsity.ista(A, y, niter=200, eps=1e-6, alpha=0.2)[0]
    assert np.allclose(found, [2, 0, -1, 0], atol=1e-4)


def test_splitbregman_denoises_a_step() -> None:
    n = 40
    space = lo.Space(n, "float64")
    step = np.where(np.arange(n) < 20, 1.0, 3.0)
    noisy = step + 0.1 * np.random.default_rng(0).standard_normal(n)
    D = lo.Reshape(lo.Space((1, n), "float64"), n) @ lo.Gradient(space)
    found = sparsity.splitbregman(
        to_pylops(lo.Identity(space)), noisy, [to_pylops(D)], niter_outer=20, niter_inner=5,
        mu=1.0, epsRL1s=[0.5], iter_lim=30, damp=1e-6,
    )[0]  # fmt: skip
    assert np.linalg.norm(found - step) < 0.6 * np.linalg.norm(noisy - step)


def test_pylops_arithmetic_with_our_operator_inside() -> None:
    space = lo.Space((3, 4), "float64")
    A = lo.Convolve(space, np.array([[1.0, 2.0]]))
    P, M = to_pylops(A), A.to_dense()
    D = pylops.FirstDerivative((3, 4), axis=0, edge=True)
    stack = pylops.VStack([P, D])
    assert np.allclose(stack.todense(), np.vstack([M, D.todense()]))
    assert np.allclose((P + D).todense(), M + D.todense())
    assert np.allclose((D @ P).todense(), D.todense() @ M)
    assert np.allclose((2 * P).H.todense(), 2 * M.T)
    v = stack.rmatvec(np.ones(24))
    assert np.allclose(v, stack.todense().T @ np.ones(24))


def test_it_pickles() -> None:
    P = pickle.loads(pickle.dumps(to_pylops(lo.Gradient(lo.Space((3, 4))))))
    x = np.random.default_rng(0).standard_normal(12).astype("float32")
    assert np.array_equal(P.matvec(x), (lo.Gradient(lo.Space((3, 4))) @ x.reshape(3, 4)).ravel())


def test_torch_is_refused_with_our_solver_named() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(DTypeError, match=r"solvers\.cgls"):
        to_pylops(lo.Gradient(lo.Space(4)))._matvec(torch.zeros(4))


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["cgls", "lsqr"])
def test_jax_runs_where_pylops_runs_it(solver: str) -> None:
    jnp = pytest.importorskip("jax.numpy")
    A = lo.Matrix(np.eye(4, dtype="float32") * 2)
    y = jnp.asarray([2.0, 4.0, 6.0, 8.0], "float32")
    run = getattr(basic, solver)
    found = run(to_pylops(A), y, x0=jnp.zeros(4, "float32"), niter=10)[0]
    assert np.allclose(np.asarray(found), [1, 2, 3, 4], atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: pylops.FirstDerivative((4, 5), axis=0, edge=True),
        lambda: pylops.signalprocessing.FFT2D((4, 6), real=True, dtype="float64"),
        lambda: pylops.signalprocessing.FFT((6,), dtype="complex128"),
        lambda: pylops.VStack([pylops.Identity(5), pylops.MatrixMult(np.ones((2, 5)))]),
    ],
)
def test_operators_of_pylops_become_ours(make) -> None:
    P = make()
    A = from_pylops(P)
    assert A.domain.shape == tuple(P.dims) and A.codomain.shape == tuple(P.dimsd)
    assert A.domain.is_complex == (np.dtype(P.dtype).kind == "c" and P.clinear)
    assert dot_test(A) <= 16
    # Not P.todense(), which forgets the imaginary part where clinear is False.
    dense = np.stack([P.matvec(e) for e in np.eye(P.shape[1])], axis=1)
    assert np.allclose(A.to_dense(), dense)
    # What PyLops itself gets wrong is ours to get right: scaling, and the adjoint of an adjoint.
    assert np.allclose((A / 2).to_dense(), dense / 2)
    assert A.H.H is A


@pytest.mark.parametrize("n", [6, 7])
def test_transforms_of_real_signals(n: int) -> None:
    # PyLops weighs interior frequencies by the root of 2, so that its adjoint is an inverse.
    P = pylops.signalprocessing.FFT((n,), real=True)
    A = from_pylops(P)
    assert (A.domain.dtype, A.codomain.dtype) == ("float64", "complex128")
    assert "real_linear" in A.tags and A.codomain.shape == (n // 2 + 1,)
    x, y = A.domain.random(0), A.codomain.random(1)
    factors = np.full(n // 2 + 1, 2.0)
    factors[[0, -1] if n % 2 == 0 else [0]] = 1
    F = np.sqrt(factors / n)[:, None] * np.fft.rfft(np.eye(n), axis=0)
    assert np.allclose(A @ x, F @ x) and np.allclose(A.H @ y, (F.conj().T @ y).real)
    assert np.allclose(A.gram() @ x, x)
    G = A.gram(np.linspace(1.0, 2.0, n // 2 + 1))
    assert not G.domain.is_complex and dot_test(G) <= 16


def test_what_is_linear_over_the_reals_alone() -> None:
    z = np.array([1 + 2j, -3j, 0.5])
    for kind, wanted in (("Conj", z.conj()), ("Imag", z.imag), ("Real", z.real)):
        A = from_pylops(getattr(pylops, kind)(3, dtype="complex128"))
        assert A.domain.is_complex and "real_linear" in A.tags
        assert np.array_equal(A @ z, wanted)
        assert dot_test(A) <= 16
    F = lo.FFT(lo.Space(4, "float64"))
    back = from_pylops(to_pylops(F.H))
    y = F.codomain.random(0)
    assert back.domain.is_complex and np.allclose(back @ y, F.H @ y) and dot_test(back) <= 16


def test_real_parts_within_compositions_take_complex_values() -> None:
    """Their own products say what is right; the adjoint is that of the real inner product."""
    z = np.arange(1, 5) + 1j * np.array([2.0, -1, 0, 3])
    R, D = pylops.Real(4, dtype="complex128"), pylops.Diagonal(z, dtype="complex128")
    for P in (R @ D, D @ R, (D @ R).H, pylops.VStack([D @ R, R]), pylops.BlockDiag([R, D])):
        A = lo.as_operator(P)
        x = np.resize(z + 1j, P.shape[1])
        np.testing.assert_allclose(A.matvec(x), P @ x)
        np.testing.assert_allclose(to_pylops(A) @ x, P @ x)
        assert dot_test(A) <= 16


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_any_strides_serve_foreign_operators(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(2, 4), min_size=1, max_size=3)))
    P = pylops.FirstDerivative(shape, axis=0, edge=True, dtype="float64")
    A, x = from_pylops(P), np.random.default_rng(0).standard_normal(shape)
    order = data.draw(st.permutations(range(len(shape))))
    steps = [data.draw(st.sampled_from([1, 2, -1, -3])) for _ in shape]
    store = np.full([n * abs(s) for n, s in zip(shape, steps, strict=True)], np.nan)
    store = np.transpose(np.transpose(store, order).copy(), np.argsort(order))
    view = store[tuple(slice(None, None, s) for s in steps)]
    view[...] = x
    kept = store.copy()
    assert np.array_equal(A @ view, (P @ x.ravel()).reshape(shape))
    assert np.array_equal(A.H @ view, (P.H @ x.ravel()).reshape(shape))
    assert np.array_equal(to_pylops(lo.Identity(A.domain)) @ view.ravel(), x.ravel())
    assert np.array_equal(store, kept, equal_nan=True)


def test_ours_and_theirs_compose_with_our_arithmetic() -> None:
    P = pylops.FirstDerivative((4, 5), axis=0, edge=True, dtype="float64")
    A = lo.Convolve(lo.Space((4, 5), "float64"), np.array([[1.0, 2.0]]))
    assert np.allclose((A @ P).to_dense(), A.to_dense() @ P.todense())
    assert np.allclose((A + lo.as_operator(P)).to_dense(), A.to_dense() + P.todense())
    stacked = lo.vstack([A, P])
    assert stacked.shape == (40, 20)
    assert dot_test(stacked) <= 16


def test_a_wrapped_operator_passes_our_checks() -> None:
    check_operator(from_pylops(pylops.FirstDerivative((3, 4), axis=1, edge=True, dtype="float64")),
                   skip={"jax": "SciPy and PyLops run on the host",
                         "array_api_strict": "SciPy and PyLops run on the host",
                         "device": "SciPy and PyLops run on the host"})  # fmt: skip


def test_our_round_trip_is_ours() -> None:
    A = lo.FFT(lo.Space((3, 4), "float64"))
    back = from_pylops(to_pylops(A))
    assert back.domain.shape == A.domain.shape and back.codomain.dtype == A.codomain.dtype
    x, y = A.domain.random(0), A.codomain.random(1)
    assert np.array_equal(back @ x, A @ x) and np.array_equal(back.H @ y, A.H @ y)
