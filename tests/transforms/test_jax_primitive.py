"""`A @ x` under every transformation of JAX equals the matrix under the same algebra."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import linops as lo

close = np.testing.assert_allclose


def near(found: Any, wanted: Any, rtol: float = 2e-5) -> None:
    wanted = np.asarray(wanted)
    assert np.asarray(found).dtype == wanted.dtype
    close(found, wanted, rtol=rtol, atol=rtol * max(np.abs(wanted).max(initial=0), 1e-3))


def energy(operator: Any) -> Any:
    return lambda x: jnp.sum(jnp.abs(operator @ x) ** 2)


def test_apply_and_its_derivatives_are_the_matrix_and_its_transpose(case: Any) -> None:
    A, x, y = case.operator, jnp.asarray(case.x()), jnp.asarray(case.y())

    def f(x: Any) -> Any:
        return A @ x

    near(f(x), case.forward(x))
    near(jax.jit(f)(x), case.forward(x))
    near(A.H @ y, case.adjoint(y))
    near(jax.jit(lambda y: A.H @ y)(y), case.adjoint(y))
    value, tangent = jax.jvp(f, (x,), (jnp.asarray(case.x(5)),))
    near(value, case.forward(x))
    near(tangent, case.forward(case.x(5)))
    near(jax.vjp(f, x)[1](y)[0], case.transpose(y))
    back = jax.linear_transpose(f, x)
    near(back(y)[0], case.transpose(y))
    near(jax.linear_transpose(lambda y: back(y)[0], y)(x)[0], case.forward(x))
    near(jax.vjp(lambda y: A.H @ y, y)[1](x)[0], np.conj(case.forward(np.conj(x))))


def test_one_primitive_for_the_whole_tree(case: Any) -> None:
    jaxpr = jax.make_jaxpr(lambda x: case.operator @ x)(case.x())
    assert [equation.primitive.name for equation in jaxpr.eqns] == ["linops_apply"]


def test_vmap_on_any_axis_and_twice(case: Any) -> None:
    A = case.operator
    many = np.stack([[case.x(3 * i + j) for j in range(2)] for i in range(3)])
    for axis in range(case.x().ndim + 1):
        found = jax.vmap(lambda x: A @ x, axis, 0)(jnp.moveaxis(many[:, 0], 0, axis))
        near(found, case.forward(many[:, 0]))
    near(jax.jit(jax.vmap(jax.vmap(lambda x: A @ x)))(many), case.forward(many))
    swapped = jax.vmap(jax.vmap(lambda x: A @ x, 1, 1), 0, 0)(jnp.moveaxis(many, 1, 2))
    near(swapped, np.moveaxis(case.forward(many), 1, 2))
    ys = np.stack([case.y(i) for i in range(3)])
    near(jax.vmap(lambda y: A.H @ y)(jnp.asarray(ys)), case.adjoint(ys))


def test_gradients(case: Any) -> None:
    A, x = case.operator, jnp.asarray(case.x())
    many = np.stack([case.x(i) for i in range(3)])
    # jax gives the conjugate of what torch gives, and of 2 A.H A x.
    near(np.conj(jax.grad(energy(A))(x)), 2 * case.adjoint(case.forward(x)), 1e-4)
    batched = jax.jit(jax.vmap(jax.grad(energy(A))))(many)
    near(np.conj(batched), 2 * case.adjoint(case.forward(many)), 1e-4)
    checkpointed = jax.grad(jax.checkpoint(energy(A)))(x)
    near(np.conj(checkpointed), 2 * case.adjoint(case.forward(x)), 1e-4)


def test_hessian(case: Any) -> None:
    if case.complex_in:
        pytest.skip("jax.hessian takes real arguments")
    A, x = case.operator, jnp.asarray(case.x())
    wanted = 2 * (case.matrix.conj().T @ case.matrix).real.astype("float32")
    found = jax.jit(jax.hessian(energy(A)))(x)
    near(found.reshape(wanted.shape), wanted, 1e-4)
    product = jax.jit(lambda x: jax.jvp(jax.grad(energy(A)), (x,), (x,))[1])(x)
    near(product, 2 * case.adjoint(case.forward(x)), 1e-4)


def test_hessian_without_jit(named: Any) -> None:
    case = named("mixed")
    found = jax.hessian(energy(case.operator))(jnp.asarray(case.x()))
    wanted = 2 * (case.matrix.T @ case.matrix)
    near(found.reshape(wanted.shape), wanted, 1e-4)


def test_loops(case: Any) -> None:
    A, x = case.operator, jnp.asarray(case.x())

    def step(x: Any) -> Any:
        return 0.1 * (A.H @ (A @ x))

    wanted = np.asarray(x)
    for _ in range(3):
        wanted = 0.1 * case.adjoint(case.forward(wanted))
    near(jax.lax.fori_loop(0, 3, lambda _, x: step(x), x), wanted, 1e-4)

    def scanned(x: Any) -> Any:
        return jax.lax.scan(lambda x, _: (step(x), None), x, length=3)[0]

    near(scanned(x), wanted, 1e-4)
    # The map is self-adjoint, so its transpose is its conjugate.
    back = jax.jit(lambda x: jax.vjp(scanned, x)[1](jnp.conj(x))[0])(x)
    near(np.conj(back), wanted, 1e-4)


def mesh(n: int) -> Any:
    return jax.make_mesh((n,), ("d",), axis_types=(AxisType.Auto,))


def test_shard_map(case: Any) -> None:
    A = case.operator
    many = jnp.asarray(np.stack([case.x(i) for i in range(4)]))

    @jax.jit
    @jax.shard_map(mesh=mesh(4), in_specs=P("d"), out_specs=P("d"))
    def sharded(x: Any) -> Any:
        return A @ x

    near(sharded(many), case.forward(many))
    found = jax.grad(lambda x: jnp.sum(jnp.abs(sharded(x)) ** 2))(many)
    near(np.conj(found), 2 * case.adjoint(case.forward(many)), 1e-4)


def test_replicated_input_and_sharded_weights_in_shard_map() -> None:
    # Without a cast of the replicated x its cotangents would not be summed over devices.
    rng = np.random.default_rng(0)
    m = rng.standard_normal((3, 5)).astype("float32")
    weights = jnp.asarray(rng.standard_normal((4, 5)), "float32")
    x = jnp.asarray(rng.standard_normal(5), "float32")

    @jax.jit
    @jax.shard_map(mesh=mesh(4), in_specs=(P("d"), P()), out_specs=P("d"))
    def sharded(w: Any, x: Any) -> Any:
        return ((lo.Matrix(m) @ lo.Diagonal(w[0])) @ x)[None]

    near(sharded(weights, x), np.stack([m @ (w * x) for w in weights]))
    dw, dx = jax.grad(lambda w, x: jnp.sum(sharded(w, x) ** 2), (0, 1))(weights, x)
    inner = 2 * np.stack([m.T @ (m @ (w * x)) for w in weights])
    near(dw, inner * np.asarray(x), 1e-4)
    near(dx, (inner * np.asarray(weights)).sum(0), 1e-4)


def test_gradient_in_the_operators_own_arrays() -> None:
    rng = np.random.default_rng(1)
    m, w, x = (rng.standard_normal(s).astype("float32") for s in ((3, 5), 5, 5))
    for traced_x in (False, True):

        def loss(m: Any, w: Any, s: Any, x: Any = x, traced_x: bool = traced_x) -> Any:
            A = s * (lo.Matrix(m) @ lo.Diagonal(w))
            x = jnp.asarray(x) if not traced_x else x
            return jnp.sum((A @ x) ** 2)

        if traced_x:
            dm, dw, ds, dx = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(m, w, 1.5, x)
            near(dx, 2 * 1.5**2 * w * (m.T @ (m @ (w * x))), 1e-4)
        else:
            dm, dw, ds = jax.grad(loss, (0, 1, 2))(jnp.asarray(m), jnp.asarray(w), 1.5)
        r = 2 * 1.5**2 * (m @ (w * x))
        near(dm, np.outer(r, w * x), 1e-4)
        near(dw, (m.T @ r) * x, 1e-4)
        near(ds, np.float32(2 * 1.5 * np.sum((m @ (w * x)) ** 2)), 1e-4)


@pytest.mark.parametrize("name", ["pair", "compiled"])
def test_weights_behind_a_leaf_that_jax_cannot_differentiate(named: Any, name: str) -> None:
    case = named(name)
    A, x, w = case.operator, jnp.asarray(case.x()), jnp.asarray(case.x(4))

    def loss(w: Any, x: Any) -> Any:
        return jnp.sum((A @ lo.Diagonal(w) @ x) ** 2)

    wanted = 2 * x * case.adjoint(case.forward(w * x))
    near(jax.grad(loss)(w, x), wanted, 1e-4)
    near(jax.jit(jax.grad(loss))(w, x), wanted, 1e-4)


def test_second_derivatives_in_the_operators_own_arrays() -> None:
    x = np.float32([1.0, -2.0, 3.0])
    hessian = jax.hessian(lambda w, x: jnp.sum((lo.Diagonal(w) @ x) ** 2), (0, 1))
    w = np.float32([0.5, 1.0, 2.0])
    (ww, wx), (xw, xx) = hessian(w, x)
    near(ww, np.diag(2 * x**2), 1e-5)
    near(xx, np.diag(2 * w**2), 1e-5)
    near(wx, np.diag(4 * w * x), 1e-5)
    near(xw, np.diag(4 * w * x), 1e-5)


def test_transpose_in_the_weights() -> None:
    x = np.float32([1.0, -2.0, 3.0])

    def f(w: Any) -> Any:
        return jax.jit(lambda w, x: lo.Diagonal(w) @ x)(w, x)

    y = np.float32([2.0, 0.5, 1.0])
    near(jax.linear_transpose(f, x)(y)[0], x * y)


def test_batched_weights() -> None:
    rng = np.random.default_rng(2)
    w, x = (rng.standard_normal((4, 5)).astype("float32") for _ in range(2))
    m = rng.standard_normal((3, 5)).astype("float32")

    def f(w: Any, x: Any) -> Any:
        return lo.Matrix(m) @ lo.Diagonal(w) @ x

    near(jax.jit(jax.vmap(f))(w, x), (w * x) @ m.T)
    near(jax.vmap(f, (0, None))(w, jnp.asarray(x[0])), (w * x[0]) @ m.T)
    found = jax.vmap(jax.grad(lambda w, x: jnp.sum(f(w, x) ** 2), 1))(w, x)
    near(found, 2 * w * (((w * x) @ m.T) @ m), 1e-4)


def test_product_spaces() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 3, 4)).astype("float32")
    x, y, z = (jnp.asarray(rng.standard_normal(n), "float32") for n in (4, 3, 3))
    S = lo.vstack([lo.Matrix(a), lo.Matrix(b)])
    f, g = (lambda x: S @ x), (lambda y, z: S.H @ (y, z))
    for run in (f, jax.jit(f)):
        first, second = run(jnp.asarray(x))
        near(first, a @ x)
        near(second, b @ x)
    near(jax.jit(g)(y, z), a.T @ y + b.T @ z)
    near(jax.vjp(f, x)[1]((y, z))[0], a.T @ y + b.T @ z)
    back = jax.vjp(g, y, z)[1](x)
    near(back[0], a @ x)
    near(back[1], b @ x)
    # One member alone: the other contributes nothing, and gets nothing.
    near(jax.grad(lambda y: jnp.sum(g(y, z) ** 2))(y), 2 * a @ (a.T @ y + b.T @ z), 1e-4)
    near(jax.grad(lambda x: jnp.sum(f(x)[1] ** 2))(x), 2 * b.T @ (b @ x), 1e-4)
    found = jax.vmap(g, (0, None))(np.stack([y, 2 * y]), z)
    near(found, np.stack([k * a.T @ y + b.T @ z for k in (1, 2)]))
    D = lo.block_diagonal([lo.Matrix(a), lo.Matrix(b)])
    found = jax.jit(lambda x: D @ (x, 2 * x))(x)
    near(found[1], 2 * b @ x)


def test_a_pair_whose_adjoint_is_declared_uses_it_everywhere() -> None:
    # An unmatched pair shows which function a derivative takes.
    A = lo.from_functions(
        lambda x: 2 * x, lambda y: 3 * y, domain=lo.Space(3), adjoint_kind="approximate"
    )
    x = jnp.ones(3)
    near(jax.grad(lambda x: jnp.sum(A @ x))(x), np.full(3, 3, "float32"))
    near(jax.jvp(lambda x: A @ x, (x,), (x,))[1], np.full(3, 2, "float32"))
    near(jax.linear_transpose(lambda x: A @ x, x)(x)[0], np.full(3, 3, "float32"))
    near(jax.vmap(jax.grad(lambda x: jnp.sum(A.H @ x)))(jnp.ones((2, 3))), np.full((2, 3), 2, "f4"))
    B = A @ lo.Diagonal(jnp.ones(3))
    near(jax.grad(lambda w: jnp.sum(A @ lo.Diagonal(w) @ x))(x), np.full(3, 3, "float32"))
    near(jax.grad(lambda x: jnp.sum(B @ x))(x), np.full(3, 3, "float32"))


def test_functions_of_a_user_are_traced_once_for_a_batch() -> None:
    calls = []

    def forward(x: Any) -> Any:
        calls.append(x.shape)
        return x[::-1]

    A = lo.from_functions(forward, forward, domain=lo.Space(3))
    batch = np.arange(30, dtype="float32").reshape(10, 3)
    near(jax.jit(lambda x: A @ x)(batch), batch[:, ::-1])
    assert set(calls) == {(3,)}
    assert len(calls) <= 2


def test_namespace_device_and_dtype_of_tracers() -> None:
    seen = []

    def look(x: Any) -> Any:
        xp = lo.arrays.namespace(x)
        seen.append((xp.__name__, lo.arrays.is_traced(x), str(lo.arrays.dtype_of(x))))
        return jnp.sum(lo.arrays.zeros((2,), np.dtype("float32"), x)) + jnp.sum(x)

    x = jnp.ones(3)
    jax.jit(look)(x)
    jax.grad(look)(x)
    jax.vmap(look)(x[None])
    assert seen == [("jax.numpy", True, "float32")] * 3


def test_a_host_function_under_a_trace_says_so() -> None:
    A = lo.from_functions(np.asarray, np.asarray, domain=lo.Space(3))
    with pytest.raises(TypeError, match="asarray runs code for NumPy arrays on the host"):
        jax.jit(lambda x: A @ x)(jnp.ones(3))
