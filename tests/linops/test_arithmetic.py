"""What the signs between operators mean, against dense matrices: values, dtypes, spaces, tags."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import linops as lo
from linops.algebra.rewrite import PRODUCT_RULES, SUM_RULES
from linops.errors import DTypeError, ShapeError
from linops.testing import check_operator, dot_test

from .builders import DTYPES, LEAVES, OPERATORS, Halved, array, matrix, space, to

SCALARS = [2.0, -3, 0.5, np.float64(1.5), np.float32(0.25), np.int64(2), np.array(2.0)]


def near(found: np.ndarray, wanted: np.ndarray, units: float = 200) -> None:
    eps = np.finfo(found.dtype).eps
    scale = np.abs(wanted).max(initial=0) * max(wanted.shape, default=1)
    np.testing.assert_allclose(found, wanted, atol=units * eps * scale, rtol=0)


# --- dtypes -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAVES)
@pytest.mark.parametrize("scalar", SCALARS, ids=lambda s: type(s).__name__)
def test_real_scalars_are_weak_forward_and_adjoint(name: str, scalar) -> None:
    A = LEAVES[name]()
    x, y = A.domain.random(0), A.codomain.random(1)
    for B in (scalar * A, A * scalar, A / scalar, -A, scalar * A - A):
        assert (B.domain, B.codomain) == (A.domain, A.codomain)
        for result, target in ((B(x), A.codomain), (B.H(y), A.domain), (B.T(y), A.domain)):
            parts = result if isinstance(result, tuple) else (result,)
            assert [p.dtype for p in parts] == [m.dtype for m in target.members]
    near_ = (scalar * A)(x), A(x)
    for p, q in zip(*(v if isinstance(v, tuple) else (v,) for v in near_), strict=True):
        near(p, q * complex(scalar) if p.dtype.kind == "c" else q * float(scalar))


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in OPERATORS if "real-linear" not in n])
def test_a_complex_scalar_is_conjugated_by_the_adjoint(name: str) -> None:
    A, c = OPERATORS[name](), 0.5 - 2j
    B = c * A
    for side in (B.domain, B.codomain):
        assert all(member.is_complex for member in side.members)
    if B.domain.size * B.codomain.size:
        near((c * A).H.to_dense(), np.conj(c) * A.H.to_dense())
        near((c * A).T.to_dense(), c * A.T.to_dense())
        near((c * A.H).H.to_dense(), np.conj(c) * A.to_dense())
    y = B.codomain.random(3)
    left, right = (c * A).H(y), (c.conjugate() * A.H)(y)
    for p, q in zip(*(v if isinstance(v, tuple) else (v,) for v in (left, right)), strict=True):
        near(p, q)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gram_keeps_the_dtype(dtype: str) -> None:
    A = 2.0 * matrix(4, 5, dtype)
    assert A.gram()(A.domain.random(0)).dtype == dtype
    assert A.H.gram()(A.codomain.random(0)).dtype == dtype
    assert (A.H @ A - 3 * lo.Identity(A.domain))(A.domain.random(0)).dtype == dtype


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("right", DTYPES)
def test_spaces_that_differ_in_dtype_compose_and_declare_what_they_return(left, right) -> None:
    A, B = matrix(3, 4, left), matrix(4, 5, right, seed=1)
    for C in (A @ B, lo.hstack([A, matrix(3, 2, right)]), lo.vstack([A, matrix(2, 4, right)])):
        x = C.domain.random(0)
        y = C(x)
        for part, member in zip(
            y if isinstance(y, tuple) else (y,), C.codomain.members, strict=True
        ):
            assert part.dtype == member.dtype
        assert dot_test(C) <= 16
    near((A @ B).to_dense().astype("c8"), A.to_dense() @ B.to_dense())
    if np.dtype(left).itemsize // (1 + (left[0] == "c")) != np.dtype(right).itemsize // (
        1 + (right[0] == "c")
    ):
        assert "Cast" in (A @ B).describe()


def test_sums_of_two_precisions_and_kinds() -> None:
    A = matrix(3, 3, "float32") + matrix(3, 3, "complex128", seed=1)
    assert (A.domain.dtype, A.codomain.dtype) == (np.dtype("complex128"),) * 2
    near(A.to_dense(), array((3, 3)) + array((3, 3), "complex128", 1), 1e9)
    assert dot_test(A) <= 16


def test_a_precision_of_a_composition_is_the_coarsest() -> None:
    fast = lo.from_functions(abs, abs, domain=lo.Space(3), precision="fast")
    assert (fast @ lo.Identity(lo.Space(3))).precision == "fast"
    assert (matrix(3, 3) @ fast).precision == "fast"
    assert (matrix(3, 3, "float64") @ matrix(3, 3)).precision == "float32"
    assert lo.vstack([matrix(3, 3, "float64"), matrix(3, 3)]).precision == "float32"


# --- over the reals ---------------------------------------------------------------------------


@pytest.mark.parametrize("domain", [lo.Space(6), lo.Space(6, "float64")])
def test_a_complex_matrix_on_real_values(domain: lo.Space) -> None:
    M = array((5, 6), "complex128")
    A = lo.Matrix(M, domain)
    y = A.codomain.random(1)
    assert A.tags >= {"real_linear"}
    near(A.to_dense(), M.astype(A.codomain.dtype))
    near(A.H @ y, (M.conj().T @ y).real.astype(domain.dtype), 500)
    assert (A.H @ y).dtype == domain.dtype
    near(A.gram().to_dense(), (M.conj().T @ M).real.astype(domain.dtype), 500)
    assert A.H.H is A
    with pytest.raises(DTypeError, match="complex"):
        A @ np.ones(6, "complex64")
    with pytest.raises(DTypeError, match="linear over the reals"):
        A @ matrix(6, 3, "complex64")
    near((2j * A).to_dense(), (2j * M).astype(A.codomain.dtype))
    assert dot_test(2j * A) <= 16
    assert dot_test(A.H @ (2j * A)) <= 16
    assert dot_test(A.gram(np.abs(array(5)))) <= 16


def test_a_complex_diagonal_on_real_values() -> None:
    d = array((3, 4), "complex64")
    D = lo.Diagonal(d, space())
    y = D.codomain.random(1)
    near(D.H @ y, (d.conj() * y).real)
    symmetric = D.H @ lo.Diagonal(np.abs(array((3, 4))), D.codomain) @ D
    assert (symmetric.domain.dtype, symmetric.codomain.dtype) == (np.dtype("f4"),) * 2
    dense = symmetric.to_dense()
    near(dense, dense.T)
    assert "real_linear" not in symmetric.tags
    assert dot_test(symmetric) <= 16


# --- products --------------------------------------------------------------------------------


def test_only_at_multiplies() -> None:
    A, x = lo.Gradient(space()), space().random(0)
    for bad in (lambda: A * A, lambda: A * x, lambda: x * A, lambda: A * "2", lambda: A * True):
        with pytest.raises(TypeError, match="'@'"):
            bad()
    for bad in (lambda: A / A, lambda: A / x):
        with pytest.raises(TypeError, match="solver"):
            bad()
    for namespace in ("torch", "strict"):
        with pytest.raises(TypeError):
            to(x, namespace) * A


@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax", "strict"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_array_at_operator_is_the_transpose(namespace: str, dtype: str) -> None:
    A, y = matrix(5, 6, dtype), array(5, dtype, 2)
    M = A.to_dense()
    near(np.asarray(to(y, "numpy") @ A), M.T @ y)
    found = A.T @ to(y, namespace)
    assert type(found) is type(to(y, namespace))
    host = np.asarray(found) if namespace != "strict" else np.from_dlpack(found)
    near(host, M.T @ y)
    if dtype == "complex64":
        assert np.abs(host - M.conj().T @ y).max() > 0.1
    if namespace in ("numpy", "jax", "torch"):
        near(np.asarray(to(y, namespace) @ A), M.T @ y)


def test_sparse_and_dense_matrices_join() -> None:
    M = array((4, 5))
    A = matrix(5, 6, seed=1)
    sparse = scipy.sparse.csr_array(M)
    near((sparse @ A).to_dense(), M @ A.to_dense())
    near((A.T @ sparse.T).to_dense(), (M @ A.to_dense()).T)
    near(lo.vstack([A, array((2, 6))]).to_dense()[5:], array((2, 6)))
    assert isinstance(lo.as_operator(sparse), lo.Matrix)
    with pytest.raises(TypeError, match="from_functions"):
        lo.as_operator(3)


def test_powers() -> None:
    A = matrix(4, 4, "float64")
    for n in range(4):
        near((A**n).to_dense(), np.linalg.matrix_power(A.to_dense(), n))
    assert isinstance(A**0, lo.Identity)
    with pytest.raises(ValueError, match="solver"):
        A**-1
    with pytest.raises(TypeError, match="whole number"):
        A**0.5
    with pytest.raises(ShapeError, match="square"):
        matrix(3, 4) ** 2


def test_shapes_that_do_not_fit_are_explained_when_built() -> None:
    A, B = lo.Gradient(space()), lo.Identity(lo.Space((3, 5), axes=("y", "x")))
    with pytest.raises(ShapeError) as error:
        A @ B
    for told in ("Gradient", "Identity", "(y=3, x=4)", "(y=3, x=5)", "differ along x"):
        assert told in str(error.value)
    with pytest.raises(ShapeError, match="cannot add Gradient and Identity"):
        A + B
    with pytest.raises(ShapeError, match="one domain"):
        lo.vstack([A, B])
    with pytest.raises(ShapeError, match="one codomain"):
        lo.hstack([A, B])


# --- simplification ------------------------------------------------------------------------


def test_the_rewrites_simplify_what_they_say() -> None:
    S = space()
    I, Z = lo.Identity(S), lo.Zero(S)
    G, D = lo.Gradient(S), lo.Diagonal(array((3, 4)), S)
    E = lo.Diagonal(array((3, 4), seed=1), S)
    assert G @ I is G
    assert I @ D is D
    assert isinstance(G @ Z, lo.Zero)
    assert isinstance(D @ E, lo.Diagonal)
    assert isinstance(D + E, lo.Diagonal)
    assert D + Z is D
    assert D + 0 is D
    assert sum([D, G.gram()]).terms[0] is D
    assert 1 * G is G
    assert --G is G or (-(-G)).name == "Gradient"
    assert isinstance(0 * G, lo.Zero)
    assert (0 * G).codomain == G.codomain
    assert len((G @ D @ E).terms) == 2
    assert (2 * (3 * G)).scalar == 6
    assert ((2 * G.H) @ (3 * G)).scalar == 6
    assert len((G.gram() + (D @ D + G.gram())).terms) == 3
    assert len((G.H @ (G @ (G.H @ G))).terms) == 4
    assert [r.__doc__ for r in (*PRODUCT_RULES, *SUM_RULES) if not r.__doc__] == []
    near((D @ E).to_dense(), D.to_dense() @ E.to_dense())
    near((D + E).to_dense(), D.to_dense() + E.to_dense())


def test_a_unitary_pair_cancels() -> None:
    n = 4
    F = lo.from_functions(
        lambda x: np.fft.fft(x, norm="ortho").astype("c16"),
        lambda y: np.fft.ifft(y, norm="ortho").astype("c16"),
        domain=lo.Space(n, "complex128"),
        tags=["unitary"],
    )
    assert isinstance(F.H @ F, lo.Identity)
    assert isinstance(F @ F.H, lo.Identity)
    assert not isinstance(F @ F, lo.Identity)


def test_the_adjoint_of_a_product_has_the_reversed_tree() -> None:
    A, B = lo.Gradient(space()), matrix(12, 5, codomain=space())
    assert list((A @ B).H.terms) == [B.H, A.H]
    gram = A.gram()
    assert gram.H is gram
    near(B.H.gram().to_dense(), B.to_dense() @ B.to_dense().T)


def test_tags_claim_only_what_is_certain() -> None:
    S = lo.Space(3)
    P = lo.Diagonal(np.array([1.0, 2, 3]), S)
    N = lo.Diagonal(np.array([-3.0, 2, 3]), S)
    assert {"psd", "nonnegative", "self_adjoint", "diagonal"} <= P.tags
    assert N.tags == {"self_adjoint", "diagonal"}
    assert "psd" in (2 * P).tags
    assert "psd" not in (-P).tags
    assert "self_adjoint" in (-P).tags
    assert "psd" not in (1j * P).tags
    assert "self_adjoint" not in (1j * P).tags
    assert "psd" in (P + lo.Identity(S)).tags
    assert "psd" not in (P + N).tags
    M = matrix(3, 3)
    assert M.gram().tags >= {"psd", "self_adjoint"}
    assert "self_adjoint" not in (M.gram() @ M.gram()).tags
    other = lo.Matrix(np.eye(3, dtype="f4") + 1)
    for mirrored in (M.H @ M, matrix(3, 3).H @ M, M.H @ P @ M, P @ M.H @ other.H @ other @ M @ P):
        assert mirrored.tags >= {"psd", "self_adjoint"}
        assert mirrored.H is mirrored
    assert "psd" in ((2 * M).H @ (3 * M)).tags
    assert (M.H @ N @ M).tags == {"self_adjoint"}
    for broken in (M @ M, M.H @ other, P @ M.H @ M, M.H @ other @ M):
        assert not {"self_adjoint", "psd"} & broken.tags
    assert "nonnegative" in (lo.Matrix(np.ones((2, 3), "f4")) @ P).tags
    assert "nonnegative" not in (lo.Matrix(np.ones((2, 3), "f4")) @ N).tags


def test_spacing_never_hides_in_an_adjoint() -> None:
    for spacing in (None, (0.1, 3.0)):
        S = lo.Space((3, 4), "float64", spacing=spacing)
        for A in (lo.Identity(S), lo.Gradient(S), matrix(5, 12, "float64", S)):
            near(A.H.to_dense(), A.to_dense().T)


def test_both_adjoints_from_one_pair() -> None:
    A = Halved(4)
    y = A.codomain.random(0)
    np.testing.assert_array_equal(A.T @ y, A.H @ y)
    B = matrix(4, 5, "complex64")
    near(B.H.gram().to_dense(), (B @ B.H).to_dense())
    x, z = B.domain.random(1), B.codomain.random(2)
    np.testing.assert_array_equal(B.vjp(x, z), B.H @ z)
    np.testing.assert_array_equal(B.H.vjp(z, x), B @ x)


# --- random trees against dense matrices ------------------------------------------------------

N = 4


def leaf(dtype: str):
    def build(kind: str, seed: int):
        if kind == "matrix":
            return matrix(N, N, dtype, seed=seed)
        if kind == "diagonal":
            return lo.Diagonal(array(N, dtype, seed))
        if kind == "zero":
            return lo.Zero(lo.Space(N, dtype))
        if kind == "restriction":
            index = np.random.default_rng(seed).integers(-1, N, N)
            return lo.Restriction(lo.Space(N, dtype), index)
        return lo.Identity(lo.Space(N, dtype))

    kinds = st.sampled_from(["matrix", "diagonal", "identity", "zero", "restriction"])
    return st.builds(build, kinds, st.integers(0, 99)).map(lambda A: (A, A.to_dense()))


def grown(children):
    pair = st.tuples(children, children)
    return st.one_of(
        pair.map(lambda p: (p[0][0] @ p[1][0], p[0][1] @ p[1][1])),
        pair.map(lambda p: (p[0][0] + p[1][0], p[0][1] + p[1][1])),
        pair.map(lambda p: (p[0][0] - p[1][0], p[0][1] - p[1][1])),
        children.map(lambda p: (p[0].H, p[1].conj().T)),
        children.map(lambda p: (p[0].T, p[1].T)),
        children.map(lambda p: (p[0].conj(), p[1].conj())),
        children.map(lambda p: (-p[0], -p[1])),
        children.map(lambda p: (p[0].gram(), p[1].conj().T @ p[1])),
        st.tuples(st.sampled_from([2, -0.5, 0.25j, 0]), children).map(
            lambda p: (p[0] * p[1][0], p[0] * p[1][1])
        ),
        pair.map(
            lambda p: (
                lo.hstack([p[0][0], p[1][0]]) @ lo.vstack([p[1][0], p[0][0]]),
                p[0][1] @ p[1][1] + p[1][1] @ p[0][1],
            )
        ),
    )


@pytest.mark.slow
@settings(max_examples=150)
@given(st.data())
def test_random_trees_are_their_dense_matrices(data: st.DataObject) -> None:
    leaves = st.one_of(leaf("float64"), leaf("complex128"))
    A, dense = data.draw(st.recursive(leaves, grown, max_leaves=6))
    scale = 1 + np.abs(dense).max()
    for B, wanted in ((A, dense), (A.H, dense.conj().T), (A.T, dense.T), (A.conj(), dense.conj())):
        found = B.to_dense()
        assert found.dtype == B.codomain.dtype
        np.testing.assert_allclose(found, wanted, atol=1e-10 * scale**2)
    assert A.H.H is A
    assert A.T.T is A
    assert dot_test(A) <= 16
    assert len(A.rule.domain[0]) == 1
    assert A.describe()
    if "self_adjoint" in A.tags:
        np.testing.assert_allclose(dense, dense.conj().T, atol=1e-10 * scale**2)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_random_float32_trees_stay_float32(data: st.DataObject) -> None:
    A, dense = data.draw(st.recursive(leaf("float32"), grown, max_leaves=5))
    wanted = "complex64" if A.domain.is_complex else "float32"
    assert A.domain.dtype == A.codomain.dtype == wanted
    assert (A @ A.domain.random(0)).dtype == wanted
    assert (A.H @ A.codomain.random(0)).dtype == wanted
    scale = 1 + np.abs(dense).max()
    np.testing.assert_allclose(A.to_dense(), dense, atol=1e-3 * scale**2)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(8))
def test_blocks_of_rings_in_compositions(number: int) -> None:
    S = lo.Space(4)
    ring = lo.Convolve(S, np.array([1, 2, 3], "float32"), boundary="periodic")
    dense = lo.Matrix(np.arange(16, dtype="float32").reshape(4, 4), S, S)
    A = [
        dense + ring,
        ring @ dense,
        dense @ ring,
        lo.vstack([dense, ring]),
        lo.vstack([dense, ring]).H,
        lo.concat([ring, lo.Identity(S)]),
        lo.concat([ring, lo.Identity(S)]).H,
        (dense @ ring).gram(),
    ][number]
    check_operator(A)
