"""Derived adjoints and Jacobians, against dense matrices and differences."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import linops as lo
from linops.errors import ShapeError
from linops.testing import check_operator, dot_test
from linops.transforms.from_function import from_function

jax = pytest.importorskip("jax")
jnp = jax.numpy
SPACE = lo.Space((4, 5))


def blurred(x):
    return (jnp.roll(x, 1, axis=-1) + 2 * x)[1:] + x[:-1]


def spectrum(x):
    return jnp.fft.fft(x, axis=-1)


@pytest.mark.parametrize("function", [blurred, lambda x: jnp.einsum("ij,kj->ik", x, M)])
def test_adjoint_is_the_transpose(function) -> None:
    A = from_function(function, domain=SPACE)
    assert dot_test(A) <= 16
    np.testing.assert_allclose(A.H.to_dense(), A.to_dense().T, atol=1e-6)
    found = A @ SPACE.random(0)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32


M = np.arange(15, dtype="float32").reshape(3, 5)


def test_a_derived_operator_keeps_the_contract() -> None:
    check_operator(from_function(blurred, domain=SPACE))


@pytest.mark.parametrize("dtype", ["complex64", "float32"])
def test_complex_and_real_linear(dtype: str) -> None:
    A = from_function(spectrum, domain=lo.Space((2, 5), dtype))
    assert A.codomain.dtype == np.complex64
    assert dot_test(A) <= 16
    dense = A.to_dense()
    wanted = dense.conj().T if dtype == "complex64" else None
    if wanted is not None:
        np.testing.assert_allclose(A.H.to_dense(), wanted, atol=1e-5)


def test_torch_functions_are_transposed_by_torch() -> None:
    torch = pytest.importorskip("torch")
    A = from_function(lambda x: torch.cumsum(x, 0)[1:], domain=SPACE, namespace="torch")
    np.testing.assert_allclose(A.H.to_dense(), A.to_dense().T, atol=1e-6)
    x = torch.from_numpy(SPACE.random(0))
    assert isinstance(A @ x, torch.Tensor)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x + 1, "affine"),
        (lambda x: x * x, "not f"),
        (jnp.abs, "not f|transpose"),
    ],
)
def test_what_is_not_linear_is_refused_with_the_reason(function, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        from_function(function, domain=SPACE)


def test_steps_without_a_transpose_are_refused() -> None:
    def looped(x):
        return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, 2 * s[1]), (0, x))[1]

    with pytest.raises(ValueError, match="cannot transpose"):
        from_function(looped, domain=SPACE)


def test_wrong_codomain_and_wrong_library_are_refused() -> None:
    with pytest.raises(ShapeError, match="codomain"):
        from_function(blurred, domain=SPACE, codomain=lo.Space((4, 5)))
    with pytest.raises(ValueError, match="namespace"):
        from_function(blurred, domain=SPACE, namespace="numpy")


def test_a_huge_domain_is_not_allocated() -> None:
    A = from_function(lambda x: x[:3], domain=lo.Space(10**9))
    assert A.H.shape == (10**9, 3)


def test_a_nonlinear_map_has_a_jacobian() -> None:
    N = from_function(lambda x: jnp.exp(-blurred(x)) * 3, domain=SPACE, linear=False)
    assert not N.linear
    x, dx = SPACE.random(0), SPACE.random(1)
    J = N.jacobian(x)
    assert dot_test(J) <= 16
    step = np.float32(1e-2)
    differences = (N(x + step * dx) - N(x - step * dx)) / (2 * step)
    np.testing.assert_allclose(J @ dx, differences, rtol=2e-2, atol=2e-3)
    np.testing.assert_allclose(N.vjp(x, N.codomain.ones()), J.H @ N.codomain.ones())
    chained = N @ lo.Diagonal(np.full((4, 5), 0.5, "float32"))
    np.testing.assert_allclose(chained.jvp(2 * x, dx), J @ (0.5 * dx), rtol=1e-5, atol=1e-6)


def test_module_level_functions_pickle() -> None:
    A = from_function(blurred, domain=SPACE)
    x = SPACE.random(0)
    assert np.array_equal(pickle.loads(pickle.dumps(A)) @ x, A @ x)
