"""A kernel on arrays cut over a mesh is the kernel on one device: bits, gradients, messages."""

from __future__ import annotations

import re
import threading

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from linops.errors import PlacementError, ShapeError
from linops.stencils import halo_kernel, halo_widths

jax = pytest.importorskip("jax")
jnp = jax.numpy
P = jax.sharding.PartitionSpec
AxisType = jax.sharding.AxisType


def make_mesh(shape, names, kind="Auto"):
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return jax.sharding.Mesh(devices, names, axis_types=(getattr(AxisType, kind),) * len(names))


def largest_difference(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max(initial=0.0)) for x, y in pairs)


def slopes(u, axis):
    """A minmod-limited slope: reach 1."""
    below, above = u - jnp.roll(u, 1, axis), jnp.roll(u, -1, axis) - u
    return jnp.where(below * above > 0, jnp.sign(below) * jnp.minimum(abs(below), abs(above)), 0)


def gas_step(density, momentum, dt, *, speed=1.0):
    """One step of isothermal gas with limited slopes on three axes: two fields, reach 3."""
    change = [jnp.zeros_like(density), jnp.zeros_like(momentum)]
    velocity = momentum / density
    for axis in range(density.ndim):
        slope = slopes(density, axis)
        smooth = density + 0.25 * (jnp.roll(slope, 1, axis) - jnp.roll(slope, -1, axis))
        flux = [momentum * smooth / density, momentum * velocity + speed**2 * smooth]
        for field, f in enumerate(flux):
            change[field] += (jnp.roll(f, -1, axis) - jnp.roll(f, 1, axis)) / 2
    return density - dt * change[0], momentum - dt * change[1]


def gas(shape, seed=0):
    drawn = np.random.default_rng(seed)
    density = 1 + 0.3 * drawn.random(shape).astype("f4")
    return jnp.asarray(density), jnp.asarray(0.1 * drawn.standard_normal(shape).astype("f4"))


LAYOUTS = [
    ((4,), ("x",), P("x")),
    ((3,), ("x",), P(None, "x")),
    ((2, 2), ("x", "y"), P("y", "x")),
    ((2, 4), ("a", "b"), P(("a", "b"))),
    ((2, 4), ("a", "b"), P(None, ("b", "a"))),
    ((2, 2, 2), ("a", "b", "c"), P("c", "a", "b")),
    ((2, 2, 2), ("a", "b", "c"), P(("c", "a"), None, "b")),
    ((1, 2), ("a", "b"), P("a", "b")),
]


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    kind=st.sampled_from(["Auto", "Explicit"]),
    shape=st.tuples(*[st.sampled_from([1, 2, 3, 5, 8, 9])] * 3),
)
def test_a_step_of_gas_on_any_mesh_has_the_bits_of_one_device(layout, kind, shape):
    sizes, names, spec = layout
    density, momentum = gas(shape)
    wanted = jax.jit(gas_step)(density, momentum, 0.1)
    step = halo_kernel(gas_step, reach=(3, 3, 3), mesh=make_mesh(sizes, names, kind), spec=spec)
    got = step(density, momentum, 0.1)
    assert isinstance(got, tuple)
    assert [x.shape for x in got] == [shape, shape]
    assert largest_difference(got, wanted) == 0.0


def test_twelve_steps_under_a_trace_and_their_gradients_in_fields_and_step():
    mesh = make_mesh((2, 2), ("x", "y"))
    step = halo_kernel(gas_step, reach=3, mesh=mesh, spec=P("x", "y"))

    def twelve(kernel):
        def loss(density, momentum, dt):
            body = lambda state, _: (kernel(*state, dt), None)  # noqa: E731
            state, _ = jax.lax.scan(body, (density, momentum), None, length=12)
            return (state[0] ** 2).sum() + (state[1] ** 3).sum()

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))

    state = gas((8, 6))
    value, gradient = twelve(step)(*state, 0.1)
    plain_value, plain = twelve(gas_step)(*state, 0.1)
    assert value == pytest.approx(float(plain_value), rel=1e-6)
    for a, b in zip(gradient, plain, strict=True):
        assert np.allclose(a, b, rtol=2e-6, atol=2e-6 * float(abs(b).max()))


def walls(u):
    """Two smoothings between even walls, faces, an interior, and a sum along the other axis."""
    once = jnp.pad(u, ((1, 1), (0, 0)), mode="symmetric")
    once = once[2:] + once[:-2]
    twice = jnp.pad(once, ((1, 1), (0, 0)), mode="symmetric")
    closed = jnp.zeros_like(u[:1])
    faces = jnp.concatenate([closed, u[1:] - u[:-1], closed])
    return {"cells": twice[2:] + twice[:-2], "faces": faces, "rest": [u[2:] - u[:-2], u.sum(1)]}


@pytest.mark.parametrize(
    ("extent", "spec"), [(16, P(("b", "a"))), (9, P("b")), (7, P(("a", "b"))), (4, P("b"))]
)
def test_outputs_of_several_extents_between_walls(extent, spec):
    u = jnp.asarray(np.random.default_rng(extent).standard_normal((extent, 6)).astype("f4"))
    kernel = halo_kernel(
        walls, reach=2, mesh=make_mesh((2, 4), ("a", "b")), spec=spec, boundary="even"
    )
    wanted = jax.jit(walls)(u)
    got = kernel(u)
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, wanted)
    assert largest_difference(got, wanted) == 0.0

    def pull(f):
        loss = lambda u: sum((x**2).sum() for x in jax.tree.leaves(f(u)))  # noqa: E731
        return jax.jit(jax.grad(loss))(u)

    assert largest_difference(pull(kernel), pull(walls)) < 1e-4


def sixth_order(u):
    weights = {1: 3 / 2, 2: -3 / 20, 3: 1 / 90}
    return sum(w * (jnp.roll(u, k, 0) + jnp.roll(u, -k, 0)) for k, w in weights.items())


def count_collectives(f, *arguments):
    text = jax.jit(f).lower(*arguments).compile().as_text()
    kinds = ("collective-permute", "all-gather", "all-reduce", "all-to-all")
    return {kind: len(re.findall(kind + r"[-.\w]*\(", text)) for kind in kinds}


def test_two_messages_an_axis_and_none_for_a_field_read_at_its_own_plane():
    mesh, u = make_mesh((4,), ("x",)), jnp.ones((64, 4))
    one = halo_kernel(sixth_order, reach=3, mesh=mesh, spec=P("x"))
    sent = count_collectives(one, u)
    assert sent == {"collective-permute": 2, "all-gather": 0, "all-reduce": 0, "all-to-all": 0}
    both = halo_kernel(
        lambda u, v: sixth_order(u) + v, reach=[(3,), (0,)], mesh=mesh, spec=[P("x"), P("x")]
    )
    assert count_collectives(both, u, u) == sent
    local = halo_kernel(lambda u: u**2, reach=0, mesh=mesh, spec=P("x"))
    assert not any(count_collectives(local, u).values())


def test_one_device_and_axes_that_are_not_cut_need_no_wrapper():
    assert halo_kernel(sixth_order, reach=3) is sixth_order
    assert halo_kernel(sixth_order, 3, make_mesh((1,), ("x",)), P("x")) is sixth_order
    assert halo_kernel(sixth_order, 3, make_mesh((4,), ("x",)), P(None)) is sixth_order


def test_one_function_under_two_meshes_and_two_threads_keeps_them_apart():
    u = jnp.arange(48.0).reshape(24, 2)
    wanted = jax.jit(sixth_order)(u)
    found = {}

    def run(name, devices):
        mesh = make_mesh((devices,), (name,))
        kernel = halo_kernel(sixth_order, 3, mesh, P(name))
        found[name] = jax.jit(kernel)(u)

    workers = [threading.Thread(target=run, args=pair) for pair in (("two", 2), ("four", 4))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for name, devices in (("two", 2), ("four", 4)):
        assert (found[name] == wanted).all()
        assert len(found[name].sharding.device_set) == devices


def test_a_traced_number_that_is_closed_over_and_a_region_that_is_manual_already():
    mesh, u = make_mesh((4,), ("x",)), jnp.arange(16.0)

    def loss(dt, wrap):
        return (wrap(lambda u: u + dt * sixth_order(u))(u) ** 2).sum()

    wrap = lambda f: halo_kernel(f, 3, mesh, P("x"))  # noqa: E731
    for transform in (jax.grad, lambda f: jax.jit(jax.grad(f))):
        got = transform(lambda dt: loss(dt, wrap))(0.1)
        assert got == pytest.approx(
            float(jax.grad(lambda dt: loss(dt, lambda f: f))(0.1)), rel=1e-5
        )

    inside = jax.shard_map(
        wrap(lambda u: 2 * u), mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
    )
    assert (inside(u) == 2 * u).all()


def test_interpreted_pallas_kernels_run_on_shares_of_any_extent():
    pallas = pytest.importorskip("jax.experimental.pallas")

    def kernel(u):
        ghosts = jnp.pad(u, ((1, 1), (0, 0)), mode="wrap")

        def body(ghosts, out):
            out[...] = ghosts[2:] - 2 * ghosts[1:-1] + ghosts[:-2]

        shape = jax.ShapeDtypeStruct(u.shape, u.dtype)
        return pallas.pallas_call(body, out_shape=shape, interpret=True)(ghosts)

    u = jnp.asarray(np.random.default_rng(0).standard_normal((9, 3)).astype("f4"))
    cut = halo_kernel(kernel, reach=1, mesh=make_mesh((4,), ("x",)), spec=P("x"))
    wanted = np.roll(u, -1, 0) - 2 * np.asarray(u) + np.roll(u, 1, 0)
    assert np.abs(np.asarray(cut(u)) - wanted).max() < 1e-6


def test_widths_are_whole_blocks_only_where_blocks_are_asked_for():
    assert halo_widths((3, 1, 0, -1), (4, 4, 8, 2)) == (4, 4, 0, 0)
    assert halo_widths((3,), (128,)) == (128,)
    assert halo_widths((3, 1), (0, 1)) == (3, 1)
    assert halo_widths((3, 1, 0, -1)) == (3, 1, 0, 0)


def test_what_cannot_be_meant_is_told():
    mesh, u = make_mesh((4,), ("x",)), jnp.ones((8, 3))
    with pytest.raises(PlacementError, match=r"'y', the mesh has \('x',\)"):
        halo_kernel(sixth_order, 1, mesh, P("y"))
    with pytest.raises(PlacementError, match="without a spec"):
        halo_kernel(sixth_order, 1, mesh)
    with pytest.raises(PlacementError, match="twice"):
        halo_kernel(sixth_order, 1, mesh, P("x", "x"))
    with pytest.raises(ValueError, match="periodic, open"):
        halo_kernel(sixth_order, 1, mesh, P("x"), boundary="wrap")
    with pytest.raises(ShapeError, match="added up outside"):
        halo_kernel(lambda u: u.sum(0), 1, mesh, P("x"))(u)
    with pytest.raises(ShapeError, match="passed as arguments"):
        halo_kernel(lambda v: u * v, 1, mesh, P("x"))(u)
    with pytest.raises(ShapeError, match="cuts axis 2"):
        halo_kernel(sixth_order, 1, mesh, P(None, None, "x"), fields=1)(u)
    with pytest.raises(TypeError, match="argument 1 holds a str"):
        halo_kernel(lambda u, kind: u, 1, mesh, P("x"))(u, "upwind")
