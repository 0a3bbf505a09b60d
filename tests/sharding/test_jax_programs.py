"""Random programs on JAX devices against dense matrices, with garbage in all padding."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

sys.path.insert(0, str(Path(__file__).parent))

import compositions
import test_programs

import linops as lo
from linops.algebra.concatenation import Concatenation
from sharding import Mesh, plan
from sharding.drafts import placement_of
from sharding.executors import device_threads, overlap, shard_map
from sharding.machine import Machine
from sharding.states import Sharded
from sharding.steps import Compute
from sharding.traffic import Stats

jax = pytest.importorskip("jax")


# Each example compiles four programs; seeds are fixed so that the time is.
@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
@settings(max_examples=4, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(test_programs._programs())
def test_random_programs_and_their_adjoints_are_matrices(drawn: Any) -> None:
    program, dense, mesh = drawn
    mesh = Mesh(tuple(jax.devices("cpu")[: mesh.size]), mesh.shape, mesh.names)
    made: Any = SimpleNamespace(
        mesh=mesh, forward=program, adjoint=program.adjoint(), machine=None, stats=Stats()
    )
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        for engine in (shard_map.ShardMapEngine(made), device_threads.DeviceThreadEngine(made)):
            for steps, matrix in ((program, dense), (made.adjoint, dense.T)):
                x = rng.standard_normal(test_programs.SPACE.shape)
                before, after = (
                    placement_of(mesh, x.shape, steps.values[k].states)
                    for k in (steps.inputs[0], steps.outputs[0])
                )
                placed = before.put(x)
                dirty = jax.numpy.where(before.mask(2), placed, np.nan)
                (got,) = engine.run(steps, [jax.device_put(dirty, placed.sharding)])
                tail = ~np.broadcast_to(np.asarray(after.mask(2)), got.shape)
                assert not np.asarray(got)[tail].any()
                np.testing.assert_allclose(
                    np.asarray(after.gather(got)).ravel(),
                    matrix @ x.ravel(),
                    rtol=0,
                    atol=1e-12 * (np.abs(dense).sum() + 1),
                )


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["shard_map", "threads"])
def test_two_plans_at_once_from_two_threads(executor: str) -> None:
    A = compositions.projector().with_precision("float32")
    x = A.domain.random(1)
    wanted = A @ x
    devices = jax.devices("cpu")[:3]
    lowered = [
        plan(A, devices=order, executor=executor, partition="view").lower()
        for order in (devices, devices[::-1])
    ]
    faults: list[BaseException] = []

    def work(B: Any) -> None:
        try:
            for _ in range(20):
                np.testing.assert_allclose(B.H @ (B @ x), A.H @ wanted, rtol=0, atol=1e-3)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(B,)) for B in lowered]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not faults


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["shard_map", "threads"])
def test_deterministic_plans_bands_and_columns(executor: str) -> None:
    A = compositions.projector().with_precision("float32")
    x, y = A.domain.random(1), A.codomain.random(2)
    devices = jax.devices("cpu")[:3]
    same = plan(A, devices=devices, executor=executor, deterministic=True).lower()
    np.testing.assert_array_equal(same @ x, A @ x)
    np.testing.assert_array_equal(same.H @ y, A.H @ y)
    bands = plan(A, devices=devices, executor=executor, partition="view", chunks={"view": 2})
    assert any(step.kind == "Loop" for step in bands.forward.steps)
    np.testing.assert_array_equal(bands.lower() @ x, A @ x)
    index = np.array([3, 0, -1, 17])
    C = bands.lower().columns(index)
    z = C.domain.random(7)
    wanted = A.columns(index) @ np.asarray(C.domain.home.gather(z))
    np.testing.assert_allclose(C.codomain.home.gather(C @ z), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "partition", "chunks"),
    [
        ("projector", "view", {"view": 3}),
        ("projector", "view", {"z": 2}),
        ("two stencils", "z", {"z": 2}),
    ],
)
def test_bands_are_one_loop_whatever_their_number(name: str, partition: str, chunks: Any) -> None:
    A = compositions.LINEAR[name]()
    x, y = A.domain.random(1), A.codomain.random(2)
    sizes = []
    with jax.enable_x64(True):
        for length in (*chunks.values(), 1):
            p = plan(A, devices=jax.devices("cpu")[:2], executor="shard_map", partition=partition,
                     chunks=dict.fromkeys(chunks, length))  # fmt: skip
            B = p.lower()
            dirty = []
            for placement, v in ((p.domain_placement, x), (p.codomain_placement, y)):
                placed = placement.put(v)
                poisoned = jax.numpy.where(placement.mask(placed.ndim), placed, np.nan)
                dirty.append(jax.device_put(poisoned, placed.sharding))
            for got, wanted in ((B @ dirty[0], A @ x), (B.H @ dirty[1], A.H @ y)):
                got = np.asarray(got)[tuple(map(slice, wanted.shape))]
                np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-13 * np.abs(wanted).max())
            sizes.append(B._engine.compiled_text(p.forward).count("\n"))
    assert sizes[1] <= 1.1 * sizes[0]


@pytest.mark.slow
def test_inner_planes_apart_from_faces_are_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    space = lo.Space((13, 5, 4), "float32", ("z", "y", "x"))
    A = lo.Convolve(space, np.arange(1.0, 6.0, dtype="float32").reshape(5, 1, 1))
    p = plan(A, devices=jax.devices("cpu")[:2], executor="shard_map", partition="z")
    ends: list[Any] = [(Sharded(0),)]
    x, y = A.domain.random(1), A.codomain.random(2)
    found = []
    for worth in (False, True):
        monkeypatch.setattr(overlap, "worthwhile", lambda *_, worth=worth: worth)
        B = p.again(A, entries=ends, exits=ends).lower()
        assert [step.kind for step in B.plan.forward.steps] == ["Halo", "Compute"]
        placed = B.domain.home.put(x)
        dirty = jax.numpy.where(B.domain.home.placement.mask(3), placed, np.nan)
        found.append(np.asarray(B @ jax.device_put(dirty, placed.sharding)))
        np.testing.assert_allclose(B.H @ y, A.H @ y, rtol=0, atol=1e-4)
        (slot,) = B._engine.blocks._slots.values()
        assert (slot.skeleton.cls is Concatenation) == worth
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0][:13], A @ x, rtol=1e-5)


def test_faces_are_apart_where_the_exchange_takes_longer_than_two_calls() -> None:
    fast = Machine(flops=1e13, bandwidth=1e12, link=5e10, latency=5e-6)

    def step(n: int) -> tuple[Any, Any]:
        A = lo.Gradient(lo.Space((n, n, n), "float32", ("z", "y", "x")))
        return Compute((0,), (1,), A, ("z",), 0), A

    assert overlap.worthwhile(*step(512), fast)
    assert not overlap.worthwhile(*step(32), fast)
    # Devices that share cores have nothing to compute meanwhile.
    assert not overlap.worthwhile(*step(512), replace(fast, cores=2))
    assert not overlap.worthwhile(*step(512), replace(fast, shared=True))


def test_a_program_of_host_devices_has_ended_when_it_returns() -> None:
    """XLA's pool of threads for host devices stands still where devices wait for each other in a
    collective while others are 32 programs behind: none may be left running behind the caller."""
    jnp = jax.numpy

    def slow(x: Any) -> Any:
        return jax.lax.fori_loop(0, 400, lambda _, y: jnp.sin(y) + x, x)

    space = lo.Space((64, 512), "float32", ("z", "x"))
    A = lo.from_functions(
        slow, slow, domain=space, codomain=space, rule="z x -> z x", blockwise=True
    )
    B = plan(lo.SumOver(space, "z") @ A, jax.devices("cpu")[:4], "shard_map", partition="z").lower()
    x = B.domain.home.put(space.ones())
    jax.block_until_ready(B @ x)  # compiled
    y = B @ x
    assert y.is_ready()


def test_a_kernel_that_fails_on_one_device_fails_the_call_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other devices wait for it in a collective: without an error they would for ever."""
    from linops.compiled import xla

    A = compositions.projector().with_precision("float32")
    B = plan(A, jax.devices("cpu")[:3], "shard_map", partition="view").lower()
    y = A.codomain.random(2)
    wanted = np.asarray(B.H @ y)
    run, calls = xla._Kernel.run_host, iter(range(1000))

    def failing(*arguments: Any) -> None:
        if next(calls) == 1:
            raise MemoryError("no room")
        run(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(xla._Kernel, "run_host", failing)
        with pytest.raises(MemoryError, match="memory on device [0-2]: its plan needs") as caught:
            B.H @ y
        assert str(caught.value.__cause__) == "no room"
    np.testing.assert_array_equal(B.H @ y, wanted)
