"""Kernels with stated derivatives: every order, no silent zero, pairs of different functions."""

from __future__ import annotations

import numpy as np
import pytest

from linops.stencils import differentiable, with_adjoint

jax = pytest.importorskip("jax")
jnp = jax.numpy


def native(u, n, dt):
    return u + dt * n * (jnp.roll(u, 1) - u) ** 2


def opaque(u, n, dt):
    """The same, where JAX cannot look."""
    return jax.pure_callback(
        lambda u, n, dt: np.asarray(u + dt * n * (np.roll(u, 1) - u) ** 2, u.dtype),
        jax.ShapeDtypeStruct(u.shape, u.dtype),
        u, n, dt,
        vmap_method="sequential",
    )  # fmt: skip


U = jnp.sin(jnp.arange(6.0))


def cubes(f):
    return lambda u, dt: (f(u, 2, dt) ** 3).sum()


@pytest.fixture(scope="module")
def kernel():
    return differentiable(opaque, native, example=(U, 2, 0.1))


@pytest.mark.parametrize(
    "derivative",
    [
        jax.jacfwd,
        jax.grad,
        lambda f: jax.jacfwd(jax.grad(f)),
        lambda f: jax.jacrev(jax.grad(f)),
        lambda f: jax.jacfwd(jax.jacfwd(f)),
        lambda f: jax.jacfwd(jax.jacrev(jax.grad(f))),
        lambda f: lambda u: jax.vmap(jax.grad(f))(jnp.stack([u, 2 * u])),
    ],
)
def test_every_order_of_derivative_runs_the_fast_kernel_and_is_the_native_one(kernel, derivative):
    got = jax.jit(derivative(lambda u: cubes(kernel)(u, 0.1)))(U)
    wanted = jax.jit(derivative(lambda u: cubes(native)(u, 0.1)))(U)
    assert np.allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_numbers_have_gradients_integers_have_none(kernel):
    got = jax.grad(lambda dt: cubes(kernel)(U, dt))(0.1)
    assert got == pytest.approx(float(jax.grad(lambda dt: cubes(native)(U, dt))(0.1)), rel=1e-5)
    _, tangent = jax.jvp(lambda n: kernel(U, n, 0.1), (2,), (np.zeros((), jax.dtypes.float0),))
    assert not tangent.any()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda u, n, dt: native(u, n, dt) * 1.001, "not the same function"),
        (lambda u, n, dt: native(u, n, dt).astype(jnp.float16), "float16"),
        (lambda u, n, dt: native(u, n, dt)[1:], r"\(5,\)"),
        (lambda u, n, dt: jax.lax.stop_gradient(native(u, n, dt)), "another function"),
    ],
)
def test_a_native_form_of_another_function_is_refused_at_registration(other, message):
    with pytest.raises(ValueError, match=message):
        differentiable(opaque, other, example=(U, 2, 0.1))


def test_a_limiter_that_is_scaled_in_one_form_alone_is_refused():
    def limiter(e):
        return lambda a, b: (a * (b * b + e) + b * (a * a + e)) / (a * a + b * b + 2 * e)

    pair = differentiable(limiter(0.03), limiter(0.03 / 0.01**2))
    with pytest.raises(ValueError, match="not the same function"):
        pair(jnp.full(4, 0.1), jnp.full(4, 0.2))


def forward(u, p):
    return p["a"] * u + p["b"] * jnp.roll(u, 1) + p["n"]


def adjoint(u, p, g):
    return p["a"] * g + p["b"] * jnp.roll(g, -1), {"a": (g * u).sum(), "b": None, "n": None}


P = {"a": 2.0, "b": 0.5, "n": 3}


@pytest.fixture(scope="module")
def pair():
    return with_adjoint(forward, adjoint, example=(U, P))


def test_the_adjoint_gives_cotangents_of_state_and_declared_parameters(pair):
    loss = lambda f: lambda u, a: (f(u, {**P, "a": a}) ** 2).sum()  # noqa: E731
    for transform in (lambda f: f, jax.jit):
        got = transform(jax.grad(loss(pair), (0, 1)))(U, 2.0)
        for a, b in zip(got, jax.grad(loss(forward), (0, 1))(U, 2.0), strict=True):
            assert np.allclose(a, b, rtol=1e-5)
    rows = jax.vmap(jax.grad(lambda u: pair(u, P).sum()))(jnp.stack([U, U]))
    assert np.allclose(rows, 2.5)


def test_a_parameter_without_a_cotangent_raises_and_stop_gradient_opts_out(pair):
    with pytest.raises(TypeError, match="declares no cotangent"):
        jax.grad(lambda b: pair(U, {**P, "b": b}).sum())(0.5)
    stopped = jax.grad(lambda a: pair(U, {**P, "a": a, "b": jax.lax.stop_gradient(a)}).sum())(2.0)
    assert stopped == pytest.approx(float(U.sum()), rel=1e-5)


@pytest.mark.parametrize(
    "transform", [jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f))]
)
def test_a_differentiated_value_that_is_closed_over_raises(transform):
    def loss(c):
        return with_adjoint(lambda u: c * u, lambda u, g: c * g)(U).sum()

    assert jax.jit(loss)(2.0) == pytest.approx(float(2 * U.sum()), rel=1e-5)
    with pytest.raises(TypeError, match="closes over"):
        transform(loss)(2.0)


def test_a_value_that_is_closed_over_and_not_differentiated_serves():
    def gradient(c):
        return jax.grad(lambda u: with_adjoint(lambda u: c * u, lambda u, g: c * g)(u).sum())(U)

    assert np.allclose(jax.jit(gradient)(2.0), 2.0)


def test_forward_mode_and_leaves_that_are_no_arrays_are_refused(pair):
    for forward_mode in (
        lambda: jax.jvp(lambda u: pair(u, P), (U,), (U,)),
        lambda: jax.jacfwd(lambda u: pair(u, P))(U),
    ):
        with pytest.raises(TypeError, match="forward-mode"):
            forward_mode()
    with pytest.raises(TypeError, match=r"\['a'\] is a str"):
        pair(U, {**P, "a": "two"})


@pytest.mark.parametrize(
    "wrong",
    [
        lambda u, p, g: (p["a"] * g + p["b"] * jnp.roll(g, 1), None),
        lambda u, p, g: (adjoint(u, p, g)[0], {"a": (g * g).sum(), "b": None, "n": None}),
    ],
)
def test_an_adjoint_of_another_function_is_refused_at_registration(wrong):
    with pytest.raises(ValueError, match="belongs to another function"):
        with_adjoint(forward, wrong, example=(U, P))
