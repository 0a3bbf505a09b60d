"""`plan.stats`: what runs read, copied and added up, against what the plan says beforehand."""

from __future__ import annotations

from typing import Any

import compositions
import numpy as np
import pytest

import geometries as ct
import linops as lo
from sharding import plan
from sharding.states import Sharded
from sharding.traffic import Traffic

CASES: list[dict[str, Any]] = [
    {"devices": 3, "partition": "view", "executor": "threads"},
    {"devices": 3, "partition": "z", "executor": "serial"},
    {"devices": 4, "partition": {"view": 2, "z": 2}, "executor": "threads"},
    {"devices": 4, "partition": {"z": 2, "y": 2}, "executor": "serial"},
    {"devices": 2, "partition": "y", "executor": "serial", "chunks": {"z": 2}},
    {"devices": 2, "partition": "view", "executor": "serial", "chunks": {"view": 2}},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", CASES, ids=[str(sorted(c.items())) for c in CASES])
def test_counted_bytes_are_the_predicted_ones(options: dict[str, Any]) -> None:
    run = 0
    for name, make in compositions.LINEAR.items():
        A = make()
        try:
            p = plan(A, **options)
        except lo.errors.PlacementError:
            continue  # it has no such axis
        run += 1
        B = p.lower()
        B @ B.domain.ones()
        assert p.stats.total == p.traffic(), name
        assert (p.stats.runs, p.stats.blocks) == (1, p.traffic().blocks)
        p.stats.clear()
        B.H @ B.codomain.ones()
        assert p.stats.total == p.traffic(adjoint=B.H is not B), name
        assert str(p.traffic()) in p.explain()
    assert run >= 3


def test_bytes_of_a_projector_by_views() -> None:
    beam = ct.ParallelBeam(np.linspace(0, 3, 8), ct.Detector((4, 6)))
    A = ct.Projector(beam, ct.Grid((4, 6, 6)))
    volume, scan = 4 * A.domain.size, 4 * A.codomain.size
    p = plan(A, devices=2, executor="threads", partition="view")
    # Each worker reads the volume and writes its views; back it reads its views, and two volumes
    # are added up.
    assert p.traffic() == Traffic(2, 2 * volume, scan, 0)
    assert p.traffic(adjoint=True) == Traffic(2, scan, 0, 2 * volume)
    B = p.lower()
    for _ in range(3):
        B.H @ np.ones((5, *A.codomain.shape), np.float32)
    assert p.stats.runs == 3
    assert p.stats.total == Traffic(6, 15 * scan, 0, 30 * volume)
    # In bands of three of its four views a worker reads the volume twice.
    banded = plan(A, devices=2, executor="threads", partition="view", chunks={"view": 3})
    assert banded.traffic() == Traffic(4, 4 * volume, scan, 0)
    assert banded.traffic(adjoint=True) == Traffic(4, scan, 0, 2 * volume)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["shard_map", "threads"])
def test_devices_send_what_the_program_names(executor: str) -> None:
    jax = pytest.importorskip("jax")
    space = lo.Space((8, 4, 4), "float32", ("z", "y", "x"))
    A = lo.Gradient(space)
    p = plan(A, devices=jax.devices("cpu")[:2], executor=executor)
    p = p.again(A, entries=[(Sharded(0),)], exits=[(Sharded(1),)])
    B = p.lower()
    y = B @ B.domain.ones()
    # One plane each way; every device reads its share and a plane on either side.
    assert p.stats.total == p.traffic() == Traffic(2, 4 * 2 * 6 * 16, 2 * 64, 0)
    p.stats.clear()
    B.H @ y
    assert p.stats.total == p.traffic(adjoint=True) == Traffic(2, 3 * 4 * 128, 0, 2 * 64)


def test_a_batch_moves_each_of_its_members_in_one_block() -> None:
    assert Traffic(1, 2, 3, 4).times(5) == Traffic(1, 10, 15, 20)
