"""Memory and locks on JAX devices: what runs keep, what they move, and what happens without any."""

from __future__ import annotations

import gc
import math
import re
import threading
from typing import Any

import compositions
import numpy as np
import pytest

import geometries as ct
import linops as lo
from sharding import memory, plan
from sharding.array_backends.device_locks import together
from sharding.array_backends.jax_devices import pieces
from sharding.executors import account, device_threads
from sharding.states import Sharded

jax = pytest.importorskip("jax")


def _lowered(executor: str) -> Any:
    """Two stencils on three devices, nine planes for seven."""
    space = lo.Space((7, 5, 4), "float32", ("z", "y", "x"))
    A = compositions.stencil(space, "zero") @ compositions.stencil(space, "zero")
    p = plan(A, devices=jax.devices("cpu")[:3], executor=executor)
    ends: list[Any] = [(Sharded(0),)]
    return p.again(A, entries=ends, exits=ends).lower()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["shard_map", "threads"])
def test_a_run_reads_nothing_moves_shares_only_and_keeps_nothing(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    B = _lowered(executor)
    x = B.domain.random(1)
    y = B.H @ (B @ x)
    share = max(part.size for part in pieces(x, B.plan.mesh))
    sent: list[Any] = []
    send = jax.device_put

    def watched(x: Any, *arguments: Any, **options: Any) -> Any:
        sent.append(x)
        return send(x, *arguments, **options)

    before = {id(a) for a in jax.live_arrays()}
    monkeypatch.setattr(jax, "device_put", watched)
    monkeypatch.setattr(
        type(x), "__array__", lambda *_, **__: pytest.fail("an array was read by the host")
    )
    z = B @ x
    monkeypatch.undo()
    # Where a worker a device copies planes, they are those of a share with its halo at most.
    assert all(isinstance(a, jax.Array) and a.size <= 5 * 5 * 4 for a in sent)
    assert bool(sent) == (executor == "threads")
    assert [part.size for part in pieces(z, B.plan.mesh)] == [share] * 3
    new = [a for a in jax.live_arrays() if id(a) not in before and len(a.devices()) == 1]
    values = B.plan.forward.values
    assert all(a.size <= max(math.prod(v.local_shape((3,))) for v in values) for a in new)
    counts = []
    for _ in range(40):
        y = B.H @ (B @ x)
        counts.append(len(jax.live_arrays()))
    del y
    # A worker may still hold what it made last; a run that kept something would keep forty.
    assert min(counts[-10:]) <= max(counts[:10])


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["shard_map", "threads"])
def test_without_memory_an_error_names_the_prediction_and_nothing_stays(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    B = _lowered(executor)
    x = B.domain.random(1)
    wanted = np.asarray(B @ x)
    gc.collect()
    before = len(jax.live_arrays())

    def full(*_: Any) -> Any:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes")

    if executor == "shard_map":
        body, _ = B._engine.compiled_part(B.plan.forward)
        monkeypatch.setitem(body.__dict__, "compiled", full)
    else:
        monkeypatch.setattr(device_threads, "_apply", lambda: full)
    predicted = f"{B.plan.footprint.total:,} bytes on each of 3 devices"
    with pytest.raises(MemoryError, match=rf"ran out of memory on .*{predicted}.*memory=") as found:
        B @ x
    monkeypatch.undo()
    if executor == "threads":
        assert "on shard" in str(found.value)
    del found
    gc.collect()
    # What workers made last apart.
    assert len(jax.live_arrays()) <= before + 6
    made: list[Any] = []
    # The devices are free again for everybody.
    thread = threading.Thread(target=lambda: made.append(np.asarray(B @ x)))
    thread.start()
    thread.join(60)
    np.testing.assert_array_equal(made[0], wanted)


@pytest.mark.slow
@pytest.mark.parametrize("short", ["device", "host"])
def test_a_device_without_room_stops_all_before_they_begin(
    short: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    B = _lowered("shard_map")
    x = B.domain.random(1)
    wanted = np.asarray(B @ x)
    body, _ = B._engine.compiled_part(B.plan.forward)
    begun: list[Any] = []
    compiled = body.compiled
    monkeypatch.setitem(body.__dict__, "compiled", lambda *a: begun.append(a) or compiled(*a))
    monkeypatch.setattr(memory, "SMALL", 0)
    last = B.plan.devices[-1]
    if short == "device":
        monkeypatch.setattr(account, "free_in_jax", lambda d: 10.0 if d == last else None)
    else:
        monkeypatch.setattr(account, "host_free", lambda: 1000.0)
    gc.collect()
    held = sum(a.nbytes for a in jax.live_arrays())
    where = str(last) if short == "device" else "3 devices of this host"
    with pytest.raises(MemoryError, match=f"on {where}.*its plan needs [0-9,]+ bytes.*bands"):
        B @ x
    assert not begun
    gc.collect()
    assert sum(a.nbytes for a in jax.live_arrays()) <= held
    monkeypatch.undo()
    np.testing.assert_array_equal(np.asarray(B @ x), wanted)


@pytest.mark.slow
def test_float32_programs_hold_no_float64() -> None:
    space = lo.Space((7, 6, 5), "float32", ("z", "y", "x"))
    spectrum = lo.FFT(space, axes=("y", "x"))
    bent = np.full((3, *space.shape), 0.3, np.float32)
    beam = ct.ParallelBeam(np.linspace(0, 3, 5), ct.Detector((7, 6)))
    cone = ct.ConeBeam(np.linspace(0, 6, 5), ct.Detector((7, 6), 2.0), 50.0, 100.0)
    operators: list[Any] = [
        ct.Projector(cone, ct.Grid(space.shape)).gram(np.ones((5, 7, 6), np.float32)),
        lo.vstack([lo.Gradient(space), 0.5 * lo.Identity(space)]),
        spectrum.H @ lo.Diagonal(np.ones(spectrum.codomain.shape, "complex64")) @ spectrum,
        lo.Convolve(space, np.ones((3, 3, 3), np.float32)),
        compositions.diffusion(space, 2) @ lo.Interpolate(space, displacement=bent),
        lo.QGGMRF(space).gradient,
        lo.transmission(ct.Projector(beam, ct.Grid(space.shape)), 2.0),
    ]  # fmt: skip
    with jax.enable_x64(True):  # where a slip would show
        for A in operators:
            p = plan(A, devices=jax.devices("cpu")[:2], executor="shard_map")
            edges = [str(v.space.dtype) for v in p.forward.values]
            assert set(edges) <= {"float32", "complex64"}
            assert all(edge in p.explain() for edge in edges)
            engine = p.lower()._engine
            for program in (p.forward, p.adjoint):
                if program is None:
                    continue
                body, leaves = engine.compiled_part(program)
                text = str(jax.make_jaxpr(body._call)(*body.described(()), *leaves))
                assert not re.findall(r"(?:f64|c128)\[[0-9,]+\]", text), A.name


def test_programs_reach_devices_in_one_order() -> None:
    devices = jax.devices("cpu")[:4]
    inside: list[int] = []
    most: list[int] = []

    def program() -> None:
        inside.append(1)
        most.append(len(inside))
        inside.pop()

    def work(own: Any) -> None:
        for _ in range(50):
            together(program, own)

    # Sets that overlap, in either order.
    sets = (devices[:3], devices[:3][::-1], devices[1:], devices[2:0:-1])
    threads = [threading.Thread(target=work, args=(own,)) for own in sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert len(most) == 200 and max(most) == 1
