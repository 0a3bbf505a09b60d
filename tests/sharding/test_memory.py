"""What plans say that they hold, against XLA's own account and the resident set of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import geometries as ct
import linops as lo
from sharding import Described, plan
from sharding.memory import peaks_of

ROOT = Path(__file__).resolve().parents[2]


def _parallel(n: int, views: int = 32) -> ct.Projector:
    beam = ct.ParallelBeam(np.linspace(0, 3, views), ct.Detector((n, n)))
    return ct.Projector(beam, ct.Grid((n, n, n)))


def _cone(n: int, views: int = 32) -> ct.Projector:
    beam = ct.ConeBeam(np.linspace(0, 6, views), ct.Detector((n, n), 2.0), 200.0, 400.0)
    return ct.Projector(beam, ct.Grid((n, n, n)))


def _scaled(n: int) -> lo.LinearOperator:
    space = lo.Space((n, n, n), "float32", ("z", "y", "x"))
    return lo.Diagonal(space.random(0), space)


@pytest.mark.parametrize(
    ("make", "partition"),
    [(_parallel, "view"), (_parallel, "z"), (_cone, "view"), (_cone, "z"), (_scaled, "z")],
)
def test_xla_counts_the_bytes_that_a_plan_predicts(make, partition: str) -> None:
    jax = pytest.importorskip("jax")
    p = plan(make(32), devices=jax.devices("cpu")[:4], executor="shard_map", partition=partition)
    engine = p.lower()._engine
    for program in (p.forward, p.adjoint):
        body, leaves = engine._body(program)
        ends = [body.ends(k) for k in program.inputs]
        inputs = [
            jax.ShapeDtypeStruct(
                end.global_shape(), end.value.space.dtype, sharding=end.sharding(0)
            )
            for end in ends
        ]
        counted = body.compiled.lower(*inputs, *leaves).compile().memory_analysis()
        found = (
            counted.argument_size_in_bytes
            + counted.output_size_in_bytes
            + counted.temp_size_in_bytes
        )
        predicted = max(peaks_of(p, program)) + p.footprint.operators
        assert 0.8 * predicted <= found <= 1.05 * predicted


def test_a_device_holds_its_share_of_the_operators_arrays() -> None:
    A = _scaled(32)
    size = 4 * 32**3
    assert plan(A, devices=2, partition="z").footprint.operators == size  # one memory
    apart = plan(A, devices=Described.several(4), partition="z").footprint
    assert apart.operators == size // 4
    assert apart.resident == 3 * size // 4


_PROCESS = """
import sys
import numpy as np
import geometries as ct, linops as lo
from sharding import plan

def status(name):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))

def run(planes, side):
    if sys.argv[1] == "gradient":
        A = lo.Gradient(lo.Space((planes, side, side), "float32", ("z", "y", "x")))
    else:
        scan = ct.ParallelBeam(np.linspace(0, 3, 4), ct.Detector((planes, side)))
        A = ct.Projector(scan, ct.Grid((planes, side, side)))
    p = plan(A, devices=2, executor="threads", partition=sys.argv[2])
    B = p.lower()
    y = B @ B.domain.ones()
    x = B.H @ y
    return p.footprint.total

run(8, 32)  # what is imported and compiled
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
predicted = run(320, 384)
print(status("VmHWM") - before, predicted)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "partition"), [("gradient", "z"), ("projector", "view")])
def test_the_resident_set_peaks_where_the_plan_says(kind: str, partition: str) -> None:
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the peak of the resident set is read from /proc")
    run = subprocess.run(
        [sys.executable, "-c", _PROCESS, kind, partition],
        cwd=ROOT, env={**os.environ, "LINOPS_NUM_THREADS": "2"}, capture_output=True, text=True,
        timeout=300, check=True,
    )  # fmt: skip
    peak, predicted = map(int, run.stdout.split())
    assert predicted >= 500e6
    assert 0.8 * predicted <= peak <= 1.05 * predicted, (peak, predicted)
