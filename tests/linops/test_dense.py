"""The matrix, the diagonal and the norm of an operator."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.errors import ShapeError

from .builders import array, matrix, space

NILPOTENT = np.array([[0.0, 1.0], [0.0, 0.0]])


def test_the_matrix_of_a_product_space_is_the_block_matrix() -> None:
    A, B, C = matrix(3, 4), matrix(2, 4, seed=1), matrix(3, 5, seed=2)
    a, b, c = A.to_dense(), B.to_dense(), C.to_dense()
    np.testing.assert_array_equal(lo.vstack([A, B]).to_dense(), np.vstack([a, b]))
    np.testing.assert_array_equal(lo.hstack([A, C]).to_dense(), np.hstack([a, c]))
    D = lo.block_diagonal([A, B]).to_dense()
    np.testing.assert_array_equal(D[:3, :4], a)
    np.testing.assert_array_equal(D[3:, 4:], b)
    assert not D[:3, 4:].any()
    assert not D[3:, :4].any()
    np.testing.assert_allclose(lo.kron(A, B).to_dense(), np.kron(a, b), rtol=1e-5)
    np.testing.assert_array_equal(lo.concat([A, B]).to_dense(), np.vstack([a, b]))


def test_the_norm_of_a_defective_matrix() -> None:
    assert lo.Matrix(NILPOTENT).norm() == pytest.approx(1)


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
def test_the_norm_is_the_largest_singular_value(dtype: str) -> None:
    for M in (array((8, 5), dtype), np.outer(array(6, dtype), array(4, dtype, 1))):
        wanted = np.linalg.svd(M.astype("complex128"), compute_uv=False)[0]
        found = lo.Matrix(M).norm(iterations=2000, rtol=1e-6)
        assert isinstance(found, float)
        assert found == pytest.approx(wanted, rel=1e-5)


def test_tiny_operators_have_tiny_norms() -> None:
    A = lo.Matrix(array((8, 5), "float64"))
    assert (1e-12 * A).norm(2000) == pytest.approx(1e-12 * A.norm(2000), rel=1e-6)
    assert lo.Zero(lo.Space(3), lo.Space(2)).norm() == 0


def test_without_convergence_it_warns_and_tells() -> None:
    A = matrix(50, 40)
    with pytest.warns(RuntimeWarning, match="has not converged after 3 iterations"):
        info = A.norm(iterations=3, rtol=1e-12, return_info=True)
    assert not info.converged
    assert info.iterations == 3
    assert info.relative_residual > 1e-12
    assert 0 < info.value <= np.linalg.norm(A.to_dense(), 2) * (1 + 1e-6)


def test_diagonals() -> None:
    M = matrix(4, 4)
    np.testing.assert_array_equal(M.diagonal(), np.diag(M.to_dense()))
    product = M @ matrix(4, 4, seed=1)
    np.testing.assert_allclose(product.diagonal(), np.diag(product.to_dense()), rtol=1e-5)
    assert lo.Identity(space()).diagonal().shape == (3, 4)
    with pytest.raises(ShapeError, match="only a square operator"):
        matrix(3, 4).diagonal()


def test_weighted_grams() -> None:
    A, w = matrix(5, 4), np.abs(array(5))
    M = A.to_dense()
    np.testing.assert_allclose(A.gram(w).to_dense(), M.T @ np.diag(w) @ M, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(A.gram(w).diagonal(), (M**2 * w[:, None]).sum(0), rtol=1e-5)
    np.testing.assert_allclose(A.gram(2.0).diagonal(), 2 * (M**2).sum(0), rtol=1e-5)
    W = matrix(5, 5, seed=4)
    np.testing.assert_allclose(A.gram(W).to_dense(), M.T @ W.to_dense() @ M, rtol=1e-4, atol=1e-4)
    assert "self_adjoint" not in A.gram(W).tags
    with pytest.raises(ShapeError, match="weights of Matrix"):
        A.gram(matrix(4, 4))


def test_columns_cost_less() -> None:
    M = matrix(50, 40)
    assert M.columns([1, 2]).cost().flops < M.cost().flops / 10
    np.testing.assert_array_equal(M.columns([3, -1]).to_dense()[:, 0], M.to_dense()[:, 3])
    assert not M.columns([3, -1]).to_dense()[:, 1].any()
