"""What operators make of arrays as they come: byte order, narrow indices, duplicates, and results
that are complex where real ones are declared, or have no axes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse

import linops as lo
from linops.errors import DTypeError
from linops.testing import dot_test

S = lo.Space((3, 4), axes=("y", "x"))
R = lo.Space(8, "float64")
C = lo.Space(8, "complex128")


def to(x: Any, library: str) -> Any:
    module = pytest.importorskip({"jax": "jax.numpy"}.get(library, library))
    return x if library == "numpy" else module.asarray(x)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_byte_order_is_no_property_of_numbers(library: str, order: str) -> None:
    rng = np.random.default_rng(0)
    v, x = rng.standard_normal((2, 3, 4)).astype("f4")
    m, index = rng.standard_normal((5, 4)).astype("f4"), np.array([0, 5, 2])
    foreign = lo.Space((3, 4), f"{order}f4")
    assert foreign == S.with_dtype("f4") or foreign.axes != S.axes
    assert foreign == lo.Space((3, 4)) and foreign.dtype.isnative
    cases = [
        (lo.Diagonal(v.astype(f"{order}f4")), x, v * x),
        (lo.Matrix(m.astype(f"{order}f4")), x[0], m @ x[0]),
        (lo.Identity(foreign), x, x),
        (lo.SumOver(foreign, 0), x, x.sum(0)),
        (lo.Restriction(lo.Space((3, 4)), index.astype(f"{order}i2")), x, x.ravel()[index]),
        (lo.Convolve(lo.Space((3, 4)), np.array([0, 2, 0], f"{order}f4")), x, 2 * x),
        (lo.LeastSquares(lo.Space((3, 4)), v.astype(f"{order}f4")).gradient, x, x - v),
    ]
    for A, given, wanted in cases:
        found = A(to(given, library))
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-6)
        assert type(found) is type(to(given, library)) and "f4" in np.asarray(found).dtype.str
        # and an input of another order; only NumPy has such
        found = A(given.astype(f"{order}f4"))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert found.dtype == np.float32 and found.dtype.isnative
    assert foreign.inner(x.astype(f"{order}f4"), x) == pytest.approx(float(np.vdot(x, x)), rel=1e-6)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_an_index_of_any_width_counts_beyond_its_width(library: str, dtype: str) -> None:
    # 512 positions: products of extents leave 8 bits, and a plane's number minus another is < 0.
    space = lo.Space((16, 32), axes=("y", "x"))
    index = np.array([3, 40, 100, 120], dtype)
    x = np.arange(512, dtype="f4").reshape(16, 32)
    given, like = to(x, library), to(x[:1, :1], library)
    for held in (index, to(index, library) if library == "jax" else index):
        A = lo.Restriction(space, held)
        np.testing.assert_array_equal(np.asarray(A @ given), index)
        parts = [A.block("y", i, i + 4) @ given[i : i + 4] for i in range(0, 16, 4)]
        np.testing.assert_array_equal(sum(map(np.asarray, parts)), index)
        B = lo.Scatter(space, held)
        wanted = np.zeros(512, "f4")
        wanted[index.astype(int)] = 1
        ones = B.domain.ones(like)
        np.testing.assert_array_equal(np.asarray(B @ ones).ravel(), wanted)
        parts = [B.block("y", i, i + 4) @ ones for i in range(0, 16, 4)]
        np.testing.assert_array_equal(np.concatenate(parts).ravel(), wanted)
        D = lo.Diagonal(x).columns(held)
        np.testing.assert_array_equal(np.asarray(D.gram().diagonal()), x.ravel()[index] ** 2)
        dual = lo.Huber(space).restrict(held)
        assert dual is not None


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "lil", "dok"])
@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_entries_given_twice_add_up_before_they_are_squared(form: str, dtype: str) -> None:
    rows, columns = np.array([0, 0, 1, 2, 2]), np.array([1, 1, 0, 3, 3])
    values = np.array([1, 2, 3, -1, 1]).astype(dtype)
    if dtype == "c16":
        values[0] += 1j
    dense = np.zeros((3, 4), dtype)
    np.add.at(dense, (rows, columns), values)
    if form == "csr":
        given: Any = sparse.csr_array((values, columns, np.array([0, 2, 3, 5])), shape=(3, 4))
    elif form == "csc":
        given = (
            sparse.csr_array((values, columns, np.array([0, 2, 3, 5])), shape=(3, 4)).T.tocsc().T
        )
    elif form == "bsr":
        blocks = values[:, None, None]
        given = sparse.bsr_array((blocks, columns, np.array([0, 2, 3, 5])), shape=(3, 4))
    else:
        given = sparse.coo_array((values, (rows, columns)), shape=(3, 4)).asformat(form)
    kept = given.copy().toarray()
    nnz = given.nnz
    A = lo.Matrix(given)
    assert given.nnz == nnz and np.array_equal(given.toarray(), kept)
    np.testing.assert_allclose(A.to_dense(), dense)
    w = np.array([2.0, 3.0, 5.0], A.codomain.dtype)
    np.testing.assert_allclose(A.gram().diagonal(), np.sum(abs(dense) ** 2, 0))
    np.testing.assert_allclose(A.gram(w).diagonal(), np.sum(w[:, None] * abs(dense) ** 2, 0))
    assert dot_test(A) <= 16
    # -1 + 1 at one place is 0: the matrix has no negative entry.
    assert ("nonnegative" in A.tags) == (dtype == "f4")
    # A matrix in compressed rows of the right dtype is not the caller's to change.
    given = sparse.csr_array(np.eye(2, dtype="f4"))
    B = lo.Matrix(given)
    given.data[:] = 7
    np.testing.assert_array_equal(B.to_dense(), np.eye(2))


class Spectrum(lo.LinearOperator):
    def __init__(self, domain: lo.Space, codomain: lo.Space) -> None:
        super().__init__(domain, codomain)

    def _apply(self, x: Any) -> Any:
        return np.fft.fft(x)

    def _apply_adjoint(self, y: Any) -> Any:
        return np.fft.ifft(y) * 8


def leaves(domain: lo.Space, codomain: lo.Space) -> dict[str, Any]:
    def made(**options: Any) -> Any:
        inverse = lambda y: np.fft.ifft(y) * 8  # noqa: E731
        return lo.from_functions(np.fft.fft, inverse, domain=domain, codomain=codomain, **options)

    return {"functions": made(), "batched": made(batched=True), "leaf": Spectrum(domain, codomain)}


@pytest.mark.parametrize("name", ["functions", "batched", "leaf"])
def test_an_imaginary_part_is_not_dropped(name: str) -> None:
    A = leaves(R, R)[name]
    x = R.random(0)
    for B in (A, A.H, 2 * A, A @ A, lo.vstack([A, A]), A + lo.Identity(R)):
        with pytest.raises(DTypeError, match=r"complex128 .* real .*float64"):
            B @ x
        with pytest.raises(DTypeError, match=r"complex128 .* real .*float64"):
            B @ np.stack([x, x])
    # Where it is declared nothing is lost, and over the reals the adjoint is its real part.
    np.testing.assert_allclose(leaves(C, C)[name] @ x, np.fft.fft(x))
    F = leaves(R, C)[name]
    np.testing.assert_allclose(F @ x, np.fft.fft(x))
    y = C.random(1)
    np.testing.assert_allclose(F.H @ y, np.fft.ifft(y).real * 8)
    assert dot_test(F) <= 16


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_an_imaginary_part_is_not_dropped_in_other_libraries(library: str) -> None:
    module = pytest.importorskip("jax.numpy" if library == "jax" else "torch")
    space = lo.Space(8)
    A = lo.from_functions(module.fft.fft, module.fft.ifft, domain=space)
    x = to(space.random(0), library)
    with pytest.raises(DTypeError, match=r"complex64 .* real .*float32"):
        A @ x
    with pytest.raises(DTypeError, match=r"complex64 .* real .*float32"):
        A.H @ x
    with pytest.raises(DTypeError, match="complex64"):
        lo.from_function(module.fft.fft, domain=space, codomain=space, namespace=library)
    if library == "jax":
        jax = pytest.importorskip("jax")
        with pytest.raises(DTypeError, match=r"complex64 .* real .*float32"):
            jax.jit(lambda x: A @ x)(x)
    else:
        with pytest.raises(DTypeError, match=r"complex64 .* real .*float32"):
            A @ x.requires_grad_()


def test_foreign_operators_and_functionals_drop_no_imaginary_part() -> None:
    linalg = pytest.importorskip("scipy.sparse.linalg")
    theirs = linalg.LinearOperator(
        (8, 8), matvec=np.fft.fft, rmatvec=lambda y: np.fft.ifft(y) * 8, dtype="f8"
    )
    A = lo.as_operator(theirs)
    for B in (A, A.H):
        with pytest.raises(DTypeError, match="complex128 .*float64"):
            B @ R.random(0)

    class Odd(lo.Functional):
        def _value(self, x: Any) -> Any:
            return complex(x.sum(), 1)

        def _gradient(self, x: Any) -> Any:
            return x + 1j

    with pytest.raises(TypeError, match="complex"):
        Odd(R)(R.random(0))
    with pytest.raises(DTypeError, match="complex128 .*float64"):
        Odd(R).gradient(R.random(0))
    with warnings.catch_warnings(), pytest.raises(DTypeError, match="imaginary part"):
        warnings.simplefilter("error")
        lo.LeastSquares(R, C.random(0))


def test_a_space_without_axes_holds_arrays_not_scalars() -> None:
    one, two, four = lo.Space(()), lo.Space(2), lo.Space((2, 2))
    total, inner = lo.SumOver(two, 0), lo.SumOver(four, 1)
    half = lo.Diagonal(np.float32(0.5), one)
    cases: list[tuple[Any, Any, float]] = [
        (total @ inner, np.ones((2, 2), "f4"), 4.0),
        (half @ total @ inner, np.ones((2, 2), "f4"), 2.0),
        (2 * total, np.ones(2, "f4"), 4.0),
        (total + total @ lo.Diagonal(np.full(2, 3, "f4")), np.ones(2, "f4"), 8.0),
        (half, np.asarray(2, "f4"), 1.0),
        (half.H, np.asarray(2, "f4"), 1.0),
        (half**3, np.asarray(8, "f4"), 1.0),
        (total.H.gram(), np.asarray(1, "f4"), 2.0),
        (lo.Exp(one), np.asarray(0, "f4"), 1.0),
        (lo.Exp(one).jacobian(np.asarray(0, "f4")), np.asarray(3, "f4"), 3.0),
        (lo.Power(one, 2), np.asarray(3, "f4"), 9.0),
        (lo.Huber(one).gradient, np.asarray(3, "f4"), 1.0),
        (lo.Cast(one, "f8"), np.asarray(3, "f4"), 3.0),
        (lo.from_functions(np.negative, np.negative, domain=one), np.asarray(3, "f4"), -3.0),
        (lo.Matrix(np.ones((1, 2), "f4"), two, one), np.ones(2, "f4"), 2.0),
        (lo.hstack([half, total]), (np.asarray(2, "f4"), np.ones(2, "f4")), 3.0),
    ]
    for A, x, wanted in cases:
        y = A(x)
        assert type(y) is np.ndarray and y.shape == (), A
        assert y.dtype == A.codomain.dtype and y == wanted, A
    for y in lo.vstack([total, total]) @ np.ones(2, "f4"):
        assert type(y) is np.ndarray and y.shape == () and y == 2
    for prox in (lo.L1(one).prox, lo.Huber(one).prox, lo.Quadratic(one).conjugate_prox):
        assert type(prox(np.asarray(3, "f4"), 0.5)) is np.ndarray


def warned(call: Any) -> Any:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    assert len(found) == 1
    return found[0]


def test_the_warning_of_a_cast_points_at_the_line_that_hands_the_array_over() -> None:
    x, space = np.ones(4), lo.Space(4)

    def leaf() -> Any:
        return lo.Diagonal(np.ones(4, "f4"))

    F = lo.from_functions(np.negative, np.negative, domain=space)
    grid = lo.Gradient(lo.Space(4, spacing=0.5))
    calls = {
        "leaf": (lambda: leaf() @ x, "a space of dtype float64"),
        "called": (lambda: leaf()(x), "a space of dtype float64"),
        "product": (lambda: F @ leaf() @ F @ x, "its parts on spaces of dtype float64"),
        "sum": (lambda: (leaf() + F) @ x, "its parts on spaces of dtype float64"),
        "adjoint": (lambda: (2 * F @ leaf()).H @ x, "its parts on spaces of dtype float64"),
        "gram": (lambda: grid.gram() @ x, "its parts on spaces of dtype float64"),
        "stack": (lambda: lo.vstack([leaf(), F]) @ x, "its parts on spaces of dtype float64"),
        "flat": (lambda: leaf().matvec(x), "a space of dtype float64"),
        "functional": (lambda: lo.L1(space)(x), "a space of dtype float64"),
        "gradient": (lambda: lo.Huber(space).gradient(x), "on spaces of dtype float64"),
        "Jacobian": (lambda: lo.Exp(space).jacobian(x), "a space of dtype float64"),
    }
    for name, (call, advice) in calls.items():
        found = warned(call)
        assert (found.filename, found.lineno) == (__file__, call.__code__.co_firstlineno), name
        assert advice in str(found.message) and "precision=" not in str(found.message), name


def test_a_projector_is_advised_its_precision() -> None:
    geometries = pytest.importorskip("geometries")
    beam = geometries.ParallelBeam(np.linspace(0, 3, 5), geometries.Detector(6))
    A = geometries.Projector(beam, geometries.Grid((4, 4)))
    found = warned(lambda: A @ np.ones((4, 4)))
    assert 'Build it with precision="float64"' in str(found.message)
    assert found.filename == __file__
