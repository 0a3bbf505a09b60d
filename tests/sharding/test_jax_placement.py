"""Placements on JAX devices, the probe of copies, and the check of the environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import linops as lo
import sharding
from linops import arrays
from linops.errors import DTypeError, PlacementError, ShapeError
from sharding import Mesh, Placement, environment, plan, probe
from sharding.array_backends import jax_devices
from sharding.states import Sharded

jax = pytest.importorskip("jax")
jnp = jax.numpy


def _row(n: int, size: int, axis: int = 0, ndim: int | None = 2) -> Placement:
    return Placement(tuple(jax.devices("cpu")[:n]), axis, size, ndim=ndim)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "n"), [(7, 2), (7, 3), (5, 4), (3, 4), (1, 8), (8, 8)])
def test_put_and_gather_are_inverse_with_a_zero_tail(size: int, n: int) -> None:
    p = _row(n, size)
    x = np.random.default_rng(0).standard_normal((2, size, 3)).astype("float32")
    placed = p.put(x)
    assert placed.shape == (2, p.padded_size, 3)
    np.testing.assert_array_equal(np.asarray(placed)[:, :size], x)
    assert not np.asarray(placed)[:, size:].any()
    assert {s.data.shape[1] for s in placed.addressable_shards} == {p.share}
    np.testing.assert_array_equal(p.gather(placed), x)
    assert p.put(placed) is placed
    assert p.holds(placed)
    assert not p.holds(x)
    np.testing.assert_array_equal(np.asarray(p.put(jnp.asarray(x))), np.asarray(placed))


def test_the_caller_s_array_is_no_part_of_it() -> None:
    p = _row(2, 1024, ndim=1)
    x = np.ones(1024, "float32")
    placed = p.put(x)
    x[:] = 2
    assert float(placed.sum()) == 1024


@pytest.mark.slow
def test_a_rectangle_of_devices() -> None:
    mesh = Mesh(tuple(jax.devices("cpu")[:6])[::-1], (2, 3), ("view", "z"))
    p = Placement(mesh.devices, (0, 1), (5, 7), None, mesh, 2)
    x = np.arange(35, dtype="float32").reshape(5, 7)
    placed = p.put(x)
    assert placed.shape == (6, 9)
    np.testing.assert_array_equal(p.gather(placed), x)
    assert int(np.asarray(p.mask(2)).sum()) == 35
    copies = Placement(mesh.devices, (0, None), (5, None), None, mesh, 2)
    assert copies.replicas == 3
    np.testing.assert_array_equal(copies.gather(copies.put(x)), x)
    both = Placement(mesh.devices, (0, 0), (7, 7), None, mesh, 1)
    assert both.put(np.arange(7, dtype="float32")).shape == (12,)
    np.testing.assert_array_equal(both.gather(both.put(np.arange(7.0, dtype="float32"))), range(7))


def test_what_is_refused() -> None:
    p = _row(3, 7)
    for wrong in (9, 6):
        with pytest.raises(PlacementError, match="planes, the placement takes 7"):
            p.put(np.ones((wrong, 2), "float32"))
    other = _row(2, 7).put(np.ones((7, 2), "float32"))
    with pytest.raises(PlacementError, match="planes, the placement|lies on"):
        p.put(other)
    with jax.enable_x64(False), pytest.raises(DTypeError, match="x64"):
        p.put(np.ones((7, 2)))


def test_only_what_lives_here_is_gathered() -> None:
    p = _row(2, 7)
    x = np.arange(14, dtype="float32").reshape(7, 2)
    assert p.gather(x) is x
    devices = tuple(jax.devices("cpu"))
    elsewhere = [Placement(devices[:3], 0, 7), Placement(devices[2:4], 0, 7)]
    for other in (np.ones((8, 2)), jnp.ones((8, 2)), *(q.put(x) for q in elsewhere)):
        with pytest.raises(PlacementError, match="planes|lies on"):
            p.gather(other)
    summed = jax.jit(lambda x: jnp.cumsum(x, 0))(p.put(x))  # split as XLA pleases
    np.testing.assert_array_equal(p.gather(summed), np.cumsum(x, 0))


def test_a_mesh_of_jax_is_taken() -> None:
    devices = jax.devices("cpu")[:6]
    mesh = jax.sharding.Mesh(np.array(devices).reshape(2, 3), ("view", "z"))
    p = Placement(devices, (0, 1), (5, 7), (6, 9), mesh)
    assert p.mesh == Mesh(tuple(devices), (2, 3), ("view", "z"))
    assert p.put(np.ones((5, 7), "float32")).sharding.mesh.shape == {"view": 2, "z": 3}


@pytest.mark.slow
def test_plain_members_are_put_beside_placed_ones() -> None:
    space = lo.Space((7, 2), "float32", ("z", "x"))
    H = lo.hstack([lo.Gradient(space), 2 * lo.Gradient(space)])
    B = plan(H, devices=jax.devices("cpu")[:2], partition="z").lower()
    u = space.random(1)
    placed = B.plan.domain_placement[0].put(u)
    for element in ((placed, u), (jnp.asarray(u), placed)):
        found = B @ element
        assert found.shape == (2, 8, 2)
        np.testing.assert_allclose(B.codomain.home.gather(found), H @ (u, u), atol=1e-5)
    assert type(B @ (u, u)) is np.ndarray
    with pytest.raises(DTypeError, match="one namespace"):
        B @ (u, jnp.asarray(u))


def test_copies_on_other_devices_are_another_placement() -> None:
    space = lo.Space((7, 2), "float32", ("z", "x"))
    A = lo.SumOver(space, ("z",))
    B, C = (plan(A, devices=jax.devices("cpu")[:n], partition="z").lower() for n in (2, 3))
    y = C.codomain.home.put(np.ones(2, "float32"))
    with pytest.raises(PlacementError, match="same devices and partition"):
        B.H @ y


def test_an_element_of_another_plan_is_refused() -> None:
    space = lo.Space((7, 2), "float32", ("z", "x"))
    G = lo.Gradient(space)
    devices = jax.devices("cpu")
    B, C = (
        plan(G, devices=devices[:n], executor="shard_map")
        .again(G, entries=[(Sharded(0),)], exits=[(Sharded(1),)])
        .lower()
        for n in (2, 3)
    )
    with pytest.raises(PlacementError, match="same devices and partition"):
        B @ C.domain.home.put(space.random(0))


def test_the_axes_that_are_not_cut_are_checked_too() -> None:
    space = lo.Space((7, 2), "float32", ("z", "x"))
    p = plan(lo.Gradient(space), devices=jax.devices("cpu")[:2], executor="shard_map")
    B = p.again(p.operator, entries=[(Sharded(0),)], exits=[(Sharded(1),)]).lower()
    wrong = B.domain.home.placement.put(np.ones((7, 3), "float32"))
    with pytest.raises((ShapeError, PlacementError)):
        B @ wrong


@pytest.mark.slow
def test_no_device_holds_a_full_array() -> None:
    p = _row(8, 61, ndim=2)
    before = {id(x) for x in jax.live_arrays()}
    placed, ones = p.put(np.ones((61, 40), "float32")), p.full(1.0, (61, 40))
    new = [x for x in jax.live_arrays() if id(x) not in before and len(x.devices()) == 1]
    assert all(x.size <= p.share * 40 for x in new)
    assert float(placed.sum()) == float(ones.sum()) == 61 * 40
    assert p.zeros((61, 40)).sharding == placed.sharding


def test_one_door() -> None:
    """Only the home of JAX devices and the gateway name a device."""
    root = Path(sharding.__file__).parent.parent
    found = {
        path.relative_to(root).as_posix()
        for wing in ("linops", "sharding", "solvers", "geometries")
        for path in (root / wing).rglob("*.py")
        if re.search(r"\bdevice_put\b", path.read_text())
    }
    # The probe tries replication itself, which the door never does.
    assert found <= {
        "sharding/array_backends/jax_devices.py",
        "sharding/probe.py",
        "linops/arrays.py",
    }
    assert "sharding/array_backends/jax_devices.py" in found


# --- the probe -----------------------------------------------------------------------------------


@pytest.fixture
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_known", {})
    monkeypatch.setattr(jax_devices, "_distrusted", set())


@pytest.mark.usefixtures("_fresh")
def test_host_devices_are_not_tried() -> None:
    found = probe.probe(jax.devices("cpu")[:3], "shard_map", copy=lambda x, device: 1 / 0)
    assert not found.tried and not found.wrong


@pytest.mark.usefixtures("_fresh")
def test_every_ordered_pair_is_tried_and_a_faulty_one_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = jax.devices("cpu")[:3]

    def faulty(x: Any, device: Any) -> Any:
        if x.devices() == {devices[2]} and device == devices[1] and x.size > 4:
            return jax.device_put(jnp.zeros_like(x), device)
        return jax_devices.send(x, device)

    found = probe._tried(devices, faulty, (1000, 4))
    assert found.tried and found.wrong == ((devices[2], devices[1]),)
    assert not probe._tried(devices, jax_devices.send, (1000, 4)).wrong
    with pytest.warns(RuntimeWarning, match="go through the host"):
        probe.store(devices, found)
    with pytest.raises(PlacementError, match="executor='threads'"):
        probe.probe(devices, "shard_map")
    assert probe.probe(devices, "threads") is found
    assert "wrong from" in str(probe.verdict(devices))
    read: list[Any] = []
    real = np.array
    monkeypatch.setattr(np, "array", lambda x, *a, **k: (read.append(x), real(x, *a, **k))[1])
    x = jax.device_put(jnp.ones(3), devices[2])
    jax_devices.send(x, devices[0])
    assert not any(y is x for y in read)
    jax_devices.send(x, devices[1])
    assert any(y is x for y in read)


@pytest.mark.slow
@pytest.mark.usefixtures("_fresh")
def test_nothing_is_copied_between_devices_that_copy_wrongly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Operands, halos, weights, index arrays, masks and scalars go through the host."""
    devices = jax.devices("cpu")[:2]
    send, wrong = jax.device_put, []

    def faulty(x: Any, device: Any = None, **options: Any) -> Any:
        if arrays.is_jax(x) and not arrays.is_traced(x) and x.devices() != {device}:
            wrong.append(x.shape)
            x = jnp.zeros_like(x)
        return send(x, device, **options)

    monkeypatch.setattr(jax, "device_put", faulty)
    with pytest.warns(RuntimeWarning, match="go through the host"):
        probe.store(devices, probe.Verdict(True, (tuple(devices), tuple(devices[::-1]))))
    space = lo.Space((5, 3), "float32", ("z", "x"))
    G, w = lo.Gradient(space), np.linspace(1, 2, 30, dtype="float32").reshape(2, 5, 3)
    B = plan(G, devices=devices, executor="threads", partition="z").lower()
    x = space.random(1)
    near = {"rtol": 0, "atol": 1e-5}
    np.testing.assert_allclose(B @ jnp.asarray(x), G @ x, **near)
    np.testing.assert_allclose(B.gram(jnp.asarray(w)) @ x, G.gram(w) @ x, **near)
    picked = G.columns([0, 4])
    np.testing.assert_allclose(B.columns(jnp.asarray([0, 4])) @ picked.domain.ones(),
                               picked @ picked.domain.ones(), **near)  # fmt: skip
    assert B.domain.norm(B.domain.home.put(x)) == pytest.approx(space.norm(x), rel=1e-6)
    assert wrong == []


# --- the environment -----------------------------------------------------------------------------


def test_this_environment_is_sound() -> None:
    found = sharding.check_environment()
    assert found.problems == ()
    assert found.jax == found.jaxlib == jax.__version__
    assert found.reduction_error is not None and found.reduction_error <= 1e-5
    assert "no problem" in str(found)


def test_a_version_that_sums_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_version", lambda package: "0.10.2")
    monkeypatch.delenv("LINOPS_ALLOW_UNSAFE_JAX", raising=False)
    devices = jax.devices("cpu")[:2]
    with pytest.raises(RuntimeError, match=r"jax==0\.10\.1.*xla_cpu_experimental_ynn"):
        environment.admit_jax(devices)
    with monkeypatch.context() as allowed:
        allowed.setenv("LINOPS_ALLOW_UNSAFE_JAX", "1")
        with pytest.warns(RuntimeWarning, match="sums wrongly"):
            environment.admit_jax(devices)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=")
    environment.admit_jax(devices)


def test_another_version_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_version", lambda package: "0.99.0")
    monkeypatch.setattr(environment, "jax_cpu_reduction_error", lambda: 8e-3)
    monkeypatch.delenv("LINOPS_ALLOW_UNSAFE_JAX", raising=False)
    environment._fault.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="off by 8.0e-03"):
            environment.admit_jax(jax.devices("cpu")[:2])
    finally:
        environment._fault.cache_clear()
