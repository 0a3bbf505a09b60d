"""A sparse `Matrix` where SciPy cannot run: inside JAX, and on an accelerator."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import linops as lo

KINDS = ["float32", "complex64", "real-linear"]


def case(kind: str) -> tuple[lo.Matrix, np.ndarray]:
    dtype = "float32" if kind == "float32" else "complex64"
    dense = lo.Space((5, 6), dtype).random(0)
    dense[np.abs(dense) < 0.7] = 0
    dense[2] = 0  # an empty row
    stored = scipy.sparse.coo_array(dense)
    # Entries that stand twice in the list add up.
    row, col, data = (np.concatenate([part, part]) for part in (*stored.coords, stored.data / 2))
    sparse = scipy.sparse.coo_array((data.astype(dtype), (row, col)), (5, 6))
    domain = lo.Space((2, 3), "float32" if kind == "real-linear" else dtype)
    return lo.Matrix(sparse, domain), dense


def near(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_in_jax_it_is_the_dense_matrix(kind: str) -> None:
    A, dense = case(kind)
    x, y = A.domain.random(1), A.codomain.random(2)
    forward = dense @ x.reshape(-1)
    back = (dense.conj().T @ y).reshape(2, 3)
    back = back if A.domain.is_complex else back.real
    X, Y = jnp.asarray(x), jnp.asarray(y)
    near(A @ X, forward)
    near(A.H @ Y, back)
    near(jax.jit(lambda A, x: A @ x)(A, X), forward)
    near(jax.jit(lambda A, y: A.H @ y)(A, Y), back)
    near(jax.jit(jax.vmap(lambda x: A @ x, in_axes=2))(jnp.stack([X, 2 * X], 2))[1], 2 * forward)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(jnp.abs(A @ x) ** 2)))(X)
    wanted = (dense.conj().T @ forward).reshape(2, 3)
    near(jnp.conj(gradient), 2 * (wanted if A.domain.is_complex else wanted.real))


def test_its_constants_are_kept_out_of_a_trace() -> None:
    A, dense = case("float32")
    x = jnp.ones((2, 3))
    jax.jit(lambda x: A @ x)(x)
    near(jax.jit(lambda x: 2 * (A @ x))(x), 2 * dense.sum(1))
    near(A @ x, dense.sum(1))


@pytest.mark.parametrize("kind", KINDS)
def test_on_an_accelerator_nothing_goes_through_the_host(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    A, dense = case(kind)
    x, y = torch.from_numpy(A.domain.random(1)), torch.from_numpy(A.codomain.random(2))
    wanted, back = A @ x, A.H @ y
    near(wanted, dense @ x.numpy().reshape(-1))
    # As if the tensors lay elsewhere.
    monkeypatch.setattr(lo.arrays, "on_host", lambda _: False)
    near(A @ x, wanted)
    near(A.H @ y, back)
    monkeypatch.setattr(torch.Tensor, "numpy", lambda _: pytest.fail("read to the host"))
    both = A @ torch.stack([x, 2 * x])
    monkeypatch.undo()
    near(both, torch.stack([wanted, 2 * wanted]))
