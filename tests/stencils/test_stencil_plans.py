"""Stencils on several devices: the bits of one device, forward and adjoint."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import linops as lo
import solvers
from linops.stencils import (
    RK4,
    AcousticWave,
    Advection,
    Curl,
    Diffusion,
    Divergence,
    Gradient,
    Interpolation,
    IsothermalEuler,
    Laplacian,
    Stencil,
)
from sharding import plan
from sharding.devices import Described
from sharding.drafts import draft
from sharding.graph import flatten
from sharding.partitions import request

BOUNDARIES = ["periodic", "zero", "even", ("odd", "edge")]


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_same_bits_on_workers(executor):
    for boundary, devices in itertools.product(BOUNDARIES, (1, 2, 3, 4, 5)):
        pair = boundary if isinstance(boundary, tuple) else (boundary, boundary)
        A = Laplacian(lo.Space((9, 4)), 8, (pair, "odd"))
        x = A.domain.random(0)
        B = plan(A, devices=devices, executor=executor, partition="axis0").lower()
        np.testing.assert_array_equal(B @ x, A @ x)
        np.testing.assert_allclose(B.H @ x, A.H @ x, atol=2e-5)


@pytest.mark.parametrize("devices", [3, 4])
def test_same_bits_on_devices(devices):
    jax = pytest.importorskip("jax")
    for boundary in ("periodic", ("odd", "edge")) if devices == 3 else ("even",):
        pair = boundary if isinstance(boundary, tuple) else (boundary, boundary)
        A = Laplacian(lo.Space((7, 4)), 6, (pair, "odd"))
        x = jax.numpy.asarray(A.domain.random(0))
        mesh = jax.devices()[:devices]
        B = plan(A, devices=mesh, executor="shard_map", partition="axis0").lower()
        one = jax.jit(lambda v, A=A: A @ v)(x)
        np.testing.assert_array_equal(np.asarray(B @ x), np.asarray(one))
        back = jax.jit(lambda v, A=A: A.H @ v)(x)
        np.testing.assert_allclose(np.asarray(B.H @ x), np.asarray(back), atol=3e-5)


def test_faces_and_cells_are_cut_with_what_they_read():
    taps = {(-2, 0): 1.0, (1, 1): 2.0, (0, 0): -1.0}
    for boundary, devices in itertools.product(("even", "odd", "edge"), (2, 3, 4)):
        A = Stencil(lo.Space((9, 4)), taps, boundary, target="face")
        for B in (A, A.H):
            x = B.domain.random(1)
            C = plan(B, devices=devices, executor="threads").lower()
            np.testing.assert_allclose(C @ x, B @ x, atol=1e-6)


def _members(x):
    return x if isinstance(x, tuple) else (x,)


def _same(got, wanted, atol=0.0):
    for a, b in zip(_members(got), _members(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=atol)


@pytest.mark.parametrize("boundary", ["periodic", "even", "odd", "edge"])
def test_every_operator_of_equations_has_the_bits_of_one_device(boundary):
    """Forward bit for bit, linear or not; adjoints add halos in another order."""
    space = lo.Space((9, 5), "float64", ("y", "x"), (0.5, 1.0))
    kappa = 1 + np.random.default_rng(0).random((9, 5))
    sides = (boundary, "odd")
    wall = "even" if boundary == "odd" else boundary
    operators = [
        Gradient(space, 6, sides),
        Gradient(space, 4, sides, staggered=True),
        Divergence(space, 4, sides) @ Gradient(space, 4, sides),
        Divergence(space, 4, sides, staggered=True),
        Curl(space, 2, sides),
        Interpolation(space, 0, 4, sides),
        Diffusion(space, kappa, 4, sides),
        Advection(space, [0.5, -1.0], "upwind3", sides),
        AcousticWave(space, kappa, 0.05, 4, sides, form="first", density=kappa),
        RK4(Laplacian(space, 4, sides), 0.01),
        IsothermalEuler(space, 0.02, boundary=(wall, "even")),
        Stencil(space, lambda u: u(0, 0) * (u(1, 0) - u(-1, 2)), sides),
    ]
    for A, devices in itertools.product(operators, (2, 4)):
        x = A.domain.random(0)
        if isinstance(operators[-2], type(A)):
            x = np.abs(x) + 1
        B = plan(A, devices=devices, executor="threads", partition="y").lower()
        _same(B(x), A(x))
        if A.linear:
            y = A.codomain.random(1)
            _same(B.H @ y, A.H @ y, 1e-12)


def _fixed(A, step, stride, devices, executor, partition):
    """A plan of a power of `step` in which so many steps exchange once."""
    p = plan(step, devices=devices, executor=executor, partition=partition, probe=False)
    graph = flatten(A, stride=stride)
    return draft(A, p.mesh, p.settings, request(graph, partition, p.mesh.size), graph).lower()


def _exchanges(program):
    return sum(step.kind == "Halo" for step in program.steps)


def _wave(shape, boundary, order=2, dtype="float64", velocity=1.0):
    space = lo.Space(shape, dtype, ("y", "x"))
    fast = velocity * np.linspace(0.5, 1, space.size, dtype=dtype).reshape(shape)
    return AcousticWave(space, fast, 0.5, order, boundary)


@pytest.mark.parametrize("boundary", ["periodic", "zero", "even", "odd"])
def test_steps_exchange_once_in_one_two_or_three(boundary):
    """A source on a cut and one beside it; halos of several hops; a device without planes."""
    step = _wave((9, 4), (boundary, "odd"), order=4)
    A, x = step**6, step.domain.random(0)
    x[0][...] = 0
    x[0][2:4, 1:3] = np.eye(2)
    forward, back = A @ x, A.H @ x
    for devices, stride in itertools.product((2, 4), (1, 2, 3)):
        B = _fixed(A, step, stride, devices, "threads", "y")
        _same(B @ x, forward)
        _same(B.H @ x, back, 1e-13)
        assert _exchanges(B.plan.forward) == (6 if stride == 1 else 2 * 6 // stride)


def test_the_planner_prices_steps_that_exchange_once():
    """Where planes are small an exchange costs more than planes computed twice."""
    for shape, exchanges in (((64, 512), 2), ((8, 1 << 24), 8)):
        step = AcousticWave(lo.Space(shape, axes=("y", "x")), 1.0, 0.5, boundary="odd")
        p = plan(step**8, list(map(Described, range(4))), partition="y")
        assert _exchanges(p.forward) == exchanges
    ring = Laplacian(lo.Space((12, 4), axes=("y", "x")), 2, "periodic")
    B = plan(ring @ ring, devices=4, executor="threads", partition="y").lower()
    assert _exchanges(B.plan.forward) == 1
    x = B.domain.random(0)
    np.testing.assert_array_equal(B @ x, ring @ (ring @ x))


@pytest.mark.usefixtures("x64")
def test_steps_on_a_rectangle_of_devices_keep_their_bits():
    jax = pytest.importorskip("jax")
    step = _wave((9, 8), ("even", "periodic"))
    A, x = step**2, step.domain.random(0)
    made = []
    for stride in (1, 2):
        B = _fixed(A, step, stride, jax.devices()[:4], "shard_map", {"y": 2, "x": 2})
        made.append(B.codomain.home.gather(B @ B.domain.home.put(x)))
        assert _exchanges(B.plan.forward) == 4
    _same(made[1], made[0])
    _same(made[0], A @ x, 1e-13)


def _conjugate_gradients(A, y):
    x, r = 0 * y, y
    p, old = r, A.domain.inner(r, r)
    for _ in range(30):
        q = A @ p
        alpha = old / A.domain.inner(p, q)
        x, r = x + alpha * p, r - alpha * q
        new = A.domain.inner(r, r)
        p, old = r + (new / old) * p, new
    return x


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("executor", ["threads", "shard_map"])
def test_solvers_take_the_steps_of_one_device(executor):
    """Conjugate gradients on a shifted Laplacian of each order, and waves seen at receivers."""
    devices = 3 if executor == "threads" else pytest.importorskip("jax").devices()[:3]
    space = lo.Space((9, 5), "float64", ("y", "x"))
    for order in (2, 4, 6, 8) if executor == "threads" else (6,):
        A = 0.5 * lo.Identity(space) - Laplacian(space, order, "odd")
        y = space.random(0)
        B = plan(A, devices=devices, executor=executor, partition="y").lower()
        _same(
            B.domain.home.gather(_conjugate_gradients(B, B.codomain.home.put(y))),
            _conjugate_gradients(A, y),
            1e-10,
        )
    if executor != "threads":
        return
    step = _wave((9, 5), "odd")
    pressure = lo.hstack([lo.Identity(step.domain.members[0]), lo.Zero(*step.domain.members)])
    seen = lo.Interpolate(pressure.codomain, np.random.default_rng(0).random((2, 30)) * [[8], [4]])
    A = seen @ pressure @ step**3
    y = A.codomain.random(0)
    B = plan(A, devices=devices, executor=executor, partition="y").lower()
    found = solvers.cgls(B, B.codomain.home.put(y), iterations=30, damp=1.0).solution
    wanted = solvers.cgls(A, y, iterations=30, damp=1.0).solution
    _same(B.domain.home.gather(found), wanted, 1e-10)
