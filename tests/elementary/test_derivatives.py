"""Every derivative that JAX and torch take of these operators is the declared adjoint."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import linops as lo

_generator = np.random.default_rng(11)
_KERNEL = _generator.standard_normal((3, 2))
_POINTS = _generator.uniform(0, 3, (2, 6))

OPERATORS: dict[str, Callable[[str], lo.LinearOperator]] = {
    "real fft": lambda d: lo.FFT(lo.Space((3, 4), d)),
    "complex fft": lambda d: lo.FFT(lo.Space((3, 4), d).complexify()),
    "direct": lambda d: lo.Convolve(lo.Space((4, 5), d), _KERNEL),
    "ring": lambda d: lo.Convolve(lo.Space((4, 5), d), _KERNEL, boundary="periodic", method="fft"),
    "complex kernel": lambda d: lo.Convolve(lo.Space((4, 5), d), _KERNEL * 1j),
    "points": lambda d: lo.Interpolate(lo.Space((3, 4), d), _POINTS),
    "sum": lambda d: lo.SumOver(lo.Space((3, 4), d), 0),
    "reshape": lambda d: lo.Reshape(lo.Space((3, 4), d), 12),
    "transpose": lambda d: lo.Transpose(lo.Space((3, 4), d)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(OPERATORS))
def test_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    A = OPERATORS[name]("float32")
    x, y = jnp.asarray(A.domain.random(0)), jnp.asarray(A.codomain.random(1))

    def apply(v):
        return A @ v

    def square(v):
        return (jnp.abs(A @ v) ** 2).sum()

    # JAX's gradient is the conjugate of 2 A.H A x.
    wanted = jnp.conj(2 * (A.H @ (A @ x)))
    close = {"rtol": 1e-4, "atol": 1e-3}
    assert np.allclose(jax.grad(square)(x), wanted, **close)
    assert np.allclose(jax.jit(jax.grad(square))(x), wanted, **close)
    assert np.allclose(jax.jvp(jax.grad(square), (x,), (x,))[1], wanted, **close)
    assert np.allclose(jax.linear_transpose(apply, x)(y)[0], A.T @ y, **close)
    assert np.allclose(jax.jvp(apply, (x,), (x,))[1], A @ x, **close)
    batch = jnp.stack([x, x + 1])
    moved = jax.vmap(apply, in_axes=-1, out_axes=-1)(jnp.moveaxis(batch, 0, -1))
    assert np.allclose(jnp.moveaxis(moved, -1, 0), A @ batch, **close)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(OPERATORS))
def test_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    A = OPERATORS[name]("float64")
    x = torch.as_tensor(A.domain.random(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: A @ v, x)
    assert torch.autograd.gradgradcheck(lambda v: A @ v, x)
    (gradient,) = torch.autograd.grad(((A @ x).abs() ** 2).sum(), x)
    assert torch.allclose(gradient, 2 * (A.H @ (A @ x)))


def test_new_values_do_not_trace_again() -> None:
    jax = pytest.importorskip("jax")
    lo.register_jax()
    traces = []

    @jax.jit
    def run(A, x):
        traces.append(A.name)
        return A @ x

    for seed in (0, 1, 2):
        generator = np.random.default_rng(seed)
        for A in (
            lo.Convolve(lo.Space((4, 5)), generator.standard_normal((3, 2))),
            lo.Interpolate(lo.Space((3, 4)), generator.uniform(0, 3, (2, 6)).astype("float32")),
        ):
            x = A.domain.random(seed)
            assert np.allclose(run(A, jax.numpy.asarray(x)), A @ x, atol=1e-5)
    assert sorted(traces) == ["Convolve", "Interpolate"]


def test_jax_differentiates_in_a_kernel() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def total(kernel):
        return (lo.Convolve(lo.Space((4, 5)), kernel) @ jnp.ones((4, 5))).sum()

    # An entry of the kernel counts the places from which it reads inside the array.
    wanted = np.outer([3, 4, 3], [4, 5, 4])
    assert np.allclose(jax.grad(total)(jnp.ones((3, 3))), wanted)
