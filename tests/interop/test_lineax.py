"""lineax on our operators: transposes, tags, solvers under jit and grad."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import linops as lo
from linops.errors import DTypeError
from linops.interop import to_lineax

lineax = pytest.importorskip("lineax")
jax = pytest.importorskip("jax")
jnp = jax.numpy


def smoothing() -> lo.LinearOperator:
    D = lo.Gradient(lo.Space((3, 4)))
    return D.gram() + lo.Identity(D.domain)


def test_forward_transpose_and_matrix() -> None:
    generator = np.random.default_rng(0)
    M = generator.standard_normal((6, 4)).astype("float32")
    A = lo.Matrix(M, lo.Space((2, 2)), lo.Space(6))
    L = to_lineax(A)
    assert L.in_structure().shape == (2, 2) and L.out_structure().shape == (6,)
    x, y = A.domain.random(0), A.codomain.random(1)
    assert np.allclose(L.mv(jnp.asarray(x)), A @ x, atol=1e-5)
    assert np.allclose(L.T.mv(jnp.asarray(y)), A.T @ y, atol=1e-5)


@pytest.mark.slow
def test_tags_follow_and_cg_accepts_them() -> None:
    A = smoothing()
    L = to_lineax(A)
    assert lineax.is_positive_semidefinite(to_lineax(lo.Gradient(lo.Space(4)).gram()))
    assert lineax.is_diagonal(to_lineax(lo.Diagonal(np.ones(3, "float32"))))
    assert not lineax.is_symmetric(to_lineax(lo.Matrix(np.ones((2, 2), "float32"))))
    if "psd" not in A.tags:
        L = lineax.TaggedLinearOperator(L, lineax.positive_semidefinite_tag)
    y = A.domain.random(0)
    found = lineax.linear_solve(L, jnp.asarray(y), lineax.CG(1e-6, 1e-6)).value
    wanted = np.linalg.solve(A.to_dense().astype("float64"), y.ravel()).reshape(3, 4)
    assert np.allclose(found, wanted, atol=1e-4)


@pytest.mark.slow
def test_complex_positive_operators_are_solved_and_differentiated() -> None:
    """A Hermitian matrix is not its transpose: the derivative of a solve takes the conjugate."""
    generator = np.random.default_rng(0)
    Q = (generator.standard_normal((8, 5)) + 1j * generator.standard_normal((8, 5))) / 2
    b = generator.standard_normal(5) + 1j * generator.standard_normal(5)
    w = np.arange(1.0, 6)
    with jax.enable_x64(True):
        A = lo.Matrix(Q)
        cases = {
            "gram": (A.gram(), Q.conj().T @ Q),
            "its own adjoint": (A.H @ A, Q.conj().T @ Q),
            "built twice": (lo.Matrix(Q).H @ lo.Matrix(Q), Q.conj().T @ Q),
            "weighted": (A.H @ lo.Diagonal(np.arange(1.0, 9) + 0j) @ A,
                         (Q.conj().T * np.arange(1.0, 9)) @ Q),
            "diagonal": (lo.Diagonal(w + 0j), np.diag(w)),
        }  # fmt: skip
        for name, (B, dense) in cases.items():
            assert {"psd", "self_adjoint"} <= B.tags, name
            L = to_lineax(B)
            assert "diagonal" in B.tags or not lineax.is_symmetric(L), name
            assert np.allclose(L.T.mv(jnp.asarray(b)), dense.T @ b), name

            def solve(y: Any, L: Any = L) -> Any:
                return lineax.linear_solve(L, y, lineax.CG(1e-12, 1e-12)).value

            assert np.allclose(solve(jnp.asarray(b)), np.linalg.solve(dense, b)), name
            _, back = jax.vjp(solve, jnp.asarray(b))
            assert np.allclose(back(jnp.asarray(b))[0], np.linalg.solve(dense.T, b)), name


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["normal", "lsmr"])
def test_least_squares(solver: str) -> None:
    generator = np.random.default_rng(0)
    M = (generator.standard_normal((8, 5)) + 2 * np.eye(8, 5)).astype("float32")
    A = lo.Matrix(M)
    y = generator.standard_normal(8).astype("float32")
    method = lineax.Normal(lineax.CG(1e-6, 1e-6)) if solver == "normal" else lineax.LSMR(1e-6, 1e-6)
    found = lineax.linear_solve(to_lineax(A), jnp.asarray(y), method).value
    assert np.allclose(found, np.linalg.lstsq(M, y, rcond=None)[0], atol=1e-3)


@pytest.mark.slow
def test_a_solve_inside_jit_and_its_gradient() -> None:
    A = lo.Diagonal(np.array([1.0, 2.0, 4.0], "float32"))

    @jax.jit
    def loss(y: jax.Array) -> jax.Array:
        return lineax.linear_solve(to_lineax(A), y, lineax.CG(1e-6, 1e-6)).value.sum()

    assert np.allclose(jax.grad(loss)(jnp.ones(3)), [1, 0.5, 0.25], atol=1e-5)


def test_what_lineax_cannot_hold_raises() -> None:
    with pytest.raises(DTypeError, match="reals"):
        to_lineax(lo.FFT(lo.Space(4)))
    if not jax.config.jax_enable_x64:
        with pytest.raises(DTypeError, match="x64"):
            to_lineax(lo.Identity(lo.Space(4, "float64")))
