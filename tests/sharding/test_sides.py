"""`partition=` that says a side each: volumes by slices, projections by views."""

from __future__ import annotations

from typing import Any

import compositions
import numpy as np
import pytest

import geometries as ct
import linops as lo
import solvers
from linops.errors import PlacementError
from sharding import Described, plan
from sharding.executors import device_threads

jax = pytest.importorskip("jax")

SIDES = {"domain": "z", "codomain": "view"}

pytestmark = pytest.mark.usefixtures("x64")


def _plan(A: Any, engine: str, n: int = 3, partition: Any = SIDES, **options: Any) -> Any:
    if engine == "workers":
        return plan(A, devices=n, executor="threads", partition=partition, **options)
    devices = jax.devices("cpu")[:n]
    return plan(A, devices=devices, executor=engine, partition=partition, **options)


def _assert_close(got: Any, wanted: Any) -> None:
    atol = 1e-12 * np.abs(wanted).max()
    np.testing.assert_allclose(lo.arrays.to_numpy(got), wanted, rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize("engine", ["workers", "threads", "shard_map"])
@pytest.mark.parametrize("kind", [compositions.projector, compositions.aligned])
def test_each_side_is_cut_as_it_is_told(engine: str, kind: Any) -> None:
    A = kind()
    p = _plan(A, engine)
    assert p.domain_placement.axes == p.codomain_placement.axes == (0,)
    B, w = p.lower(), np.random.default_rng(0).random(A.codomain.shape)
    x, y = A.domain.random(1), A.codomain.random(2)
    placed = B.domain.home.put(x)
    made = B @ placed
    assert B.codomain.home.placement.holds(made)
    _assert_close(B.codomain.home.gather(made), A @ x)
    _assert_close(B @ x, A @ x)
    back = B.H @ B.codomain.home.put(y)
    assert B.domain.home.placement.holds(back)
    _assert_close(B.domain.home.gather(back), A.H @ y)
    _assert_close(B.gram(w) @ x, A.gram(w) @ x)
    if kind is compositions.projector:
        got = solvers.cgls(B, A @ x, iterations=3, damp=1.0)
        _assert_close(got.solution, solvers.cgls(A, A @ x, iterations=3, damp=1.0).solution)


def test_aligned_slices_change_hands_once() -> None:
    # A parallel beam projects slice by slice: projections go from slices to views as one
    # all-to-all, n - 1 of n parts of what all devices hold, padded to 6 slices and 9 views.
    p = _plan(compositions.aligned(), "shard_map")
    for program, kinds in (
        (p.forward, ["Compute", "AllToAll"]),
        (p.adjoint, ["AllToAll", "Compute"]),
    ):
        assert [step.kind for step in program.steps] == kinds
        moved = sum(program.volume(step) for step in program.steps)
        assert moved == 2 * 8 * 9 * 6 * 9 // 3


def test_sides_may_be_copies_or_free_or_numbers() -> None:
    A = compositions.projector()
    copies = plan(A, devices=3, partition={"domain": None, "codomain": 0})
    assert (copies.domain_placement.axes, copies.codomain_placement.axes) == ((None,), (0,))
    assert plan(A, devices=3, partition={"codomain": "col"}).codomain_placement.axes == (2,)
    stack = lo.vstack([A, lo.Gradient(A.domain)])
    p = plan(stack, devices=3, partition={"domain": "y", "codomain": "z"})
    assert p.domain_placement.axes == (1,)
    assert [placement.axes for placement in p.codomain_placement] == [(None,), (1,)]
    _assert_close((p.lower() @ A.domain.ones())[1], stack(A.domain.ones())[1])


def _cone(n: int) -> ct.Projector:
    scan = ct.ConeBeam(np.linspace(0, 6, n), ct.Detector((n, n), pitch=2.0), 100.0, 200.0)
    return ct.Projector(scan, ct.Grid((n, n, n)), precision="float32")


@pytest.mark.parametrize("executor", ["shard_map", "torch"])
def test_a_device_holds_its_shares_and_a_band(executor: str) -> None:
    # Volume and projections have 1 MiB each: two shares, a band, and what a kernel copies of it.
    A, share = _cone(64), 4 * 64**3 // 4
    p = plan(A, Described.several(4), executor, SIDES)
    assert p.footprint.resident < 2.1 * share
    assert p.footprint.total < 4.1 * share


def test_workers_of_devices_exchange_band_after_band(monkeypatch: pytest.MonkeyPatch) -> None:
    A = compositions.projector()
    B = _plan(A, "threads", chunks={"z": 1}).lower()
    x, y = A.domain.random(1), A.codomain.random(2)
    sent: list[int] = []
    send = device_threads.send

    def counted(part: Any, device: Any) -> Any:
        sent.append(part.nbytes)
        return send(part, device)

    X, Y = B.domain.home.put(x), B.codomain.home.put(y)
    monkeypatch.setattr(device_threads, "send", counted)
    made, back = B @ X, B.H @ Y
    # At most one slice of the two or less in a share travels at once.
    assert max(sent) == 8 * 8 * 7
    _assert_close(B.codomain.home.gather(made), A @ x)
    _assert_close(B.domain.home.gather(back), A.H @ y)


@pytest.mark.parametrize("executor", ["shard_map", "torch"])
def test_auto_takes_shares_where_copies_do_not_fit(executor: str) -> None:
    A = _cone(64)
    for memory in (2e6, 0.79e6):
        p = plan(A, Described.several(4, memory=memory), executor)
        assert p.footprint.total <= memory
        assert (
            "in shares, partition={'domain': 'z', 'codomain': 'view'}: copies would" in p.explain()
        )
        assert (p.domain_placement.axes, p.codomain_placement.axes) == ((0,), (0,))
    with pytest.raises(PlacementError, match="8 devices would do"):
        plan(A, Described.several(4, memory=0.5e6), executor)
    with pytest.raises(PlacementError) as refused:
        plan(A, Described.several(4, memory=1.2e6), executor, "view")
    assert "so would partition={'domain': 'z', 'codomain': 'view'}" in str(refused.value)


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        ({"domain": "view"}, r"the domain has no axis 'view' to cut; it has x, y, z"),
        ({"codomain": 3}, r"the codomain has no axis 3 to cut; it has col, row, view"),
        ({"domain": "z", "view": 2}, r"names a side and the axis 'view'"),
        ({"domain": True}, r"the domain has no axis True"),
    ],
)
def test_what_a_side_cannot_be_cut_along(partition: Any, words: str) -> None:
    with pytest.raises(PlacementError, match=words):
        plan(compositions.projector(), devices=3, partition=partition)
