"""What plans say that they hold, against XLA's own account and the resident set of a process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import compositions
import numpy as np
import pytest

import geometries as ct
import linops as lo
from sharding import Described, plan

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


def _gradient() -> lo.LinearOperator:
    return lo.Gradient(lo.Space((96, 24, 24), "float32", ("z", "y", "x")))


def _smoothed() -> lo.LinearOperator:
    space = lo.Space((96, 24, 24), "float32", ("z", "y", "x"))
    return lo.Convolve(space, np.ones((3, 3, 3), "float32"))


def _spectral() -> lo.LinearOperator:
    return lo.FFT(lo.Space((32, 24, 24), "float32", ("z", "y", "x")), axes=("y", "x"))


def _diffused() -> lo.LinearOperator:
    return compositions.diffusion(lo.Space((64, 16, 16), "float32", ("z", "y", "x")), 2)


def _filtered() -> lo.LinearOperator:
    A = _parallel(24, 24)
    transform = lo.FFT(A.codomain, axes=("col",))
    middle = lo.Diagonal(np.ones(transform.codomain.shape, "complex64"), transform.codomain)
    return A.H @ (transform.H @ middle @ transform)


def _stack() -> lo.LinearOperator:
    A = _cone(24, 24)
    return lo.vstack([A, 0.5 * lo.Gradient(A.domain)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "devices", "partition"),
    [
        (lambda: _parallel(32), 4, "view"), (lambda: _cone(32), 4, "z"), (_gradient, 2, "z"),
        (_smoothed, 4, "z"), (_spectral, 1, "auto"), (_diffused, 4, "z"), (_filtered, 2, "auto"),
        (_stack, 4, "auto"),
    ],
)  # fmt: skip
def test_xla_counts_the_bytes_that_a_plan_predicts(make, devices: int, partition: str) -> None:
    jax = pytest.importorskip("jax")
    own = jax.devices("cpu")[:devices]
    p = plan(make(), devices=own, executor="shard_map", partition=partition)
    held = len(jax.live_arrays())
    forward, adjoint = p.accounts
    assert len(jax.live_arrays()) <= held  # nothing is allocated for it
    assert f"{p.footprint.total:,} bytes" in p.explain()
    B = p.lower()
    for account, function, space, placements in (
        (forward, lambda B, x: B @ x, B.domain, p.domain_placements),
        (adjoint, lambda B, y: B.H @ y, B.codomain, p.codomain_placements),
    ):
        ends = [
            jax.ShapeDtypeStruct(at.padded_shape(m.shape), m.dtype, sharding=at.sharding)
            for m, at in zip(space.members, placements, strict=True)
        ]
        x = tuple(ends) if len(ends) > 1 else ends[0]
        counted = jax.jit(function).lower(B, x).compile().memory_analysis()
        found = (
            counted.argument_size_in_bytes
            + counted.output_size_in_bytes
            + counted.temp_size_in_bytes
        )
        predicted = account.run + account.operators
        assert 0.8 * predicted <= found <= 1.05 * predicted
        assert predicted <= p.footprint.total


def test_a_device_holds_its_share_of_the_operators_arrays() -> None:
    A = _scaled(32)
    size = 4 * 32**3
    assert plan(A, devices=2, partition="z").footprint.operators == size  # one memory
    apart = plan(A, devices=Described.several(4), partition="z").footprint
    assert apart.operators == size // 4
    assert apart.resident == 3 * size // 4


@pytest.mark.slow
def test_workers_without_memory_leave_nothing_behind() -> None:
    space = lo.Space((6, 4), "float32", ("z", "y"))
    made: list[weakref.ref] = []
    full = True

    def step(x):
        y = 2 * x
        made.append(weakref.ref(y))
        if full and float(x[0, 0]) == 5:
            raise MemoryError("no room")
        return y

    leaf = lo.from_functions(
        step, step, domain=space, codomain=space, rule="z y -> z y", blockwise=True
    )
    p = plan(leaf @ leaf, devices=3, executor="threads", partition="z")
    B = p.lower()
    x = np.repeat(np.arange(1, 7, dtype=np.float32), 4).reshape(6, 4)
    needed = f"on device 2 of 3.*its plan needs {p.footprint.total:,} bytes.*memory="
    with pytest.raises(MemoryError, match=needed) as raised:
        B @ x
    del raised
    gc.collect()
    assert made and not any(ref() is not None for ref in made)
    full = False
    np.testing.assert_array_equal(B @ x, 4 * x)


_PROCESS = """
import sys
import numpy as np
import geometries as ct, linops as lo
from sharding import plan

def status(name):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))

def run(planes, side):
    space = lo.Space((planes, side, side), "float32", ("z", "y", "x"))
    scan = ct.ParallelBeam(np.linspace(0, 3, 4), ct.Detector((planes, side)))
    P = ct.Projector(scan, ct.Grid((planes, side, side)))
    A = {
        "gradient": lambda: lo.Gradient(space),
        "projector": lambda: P,
        "gram": lambda: P.gram(np.ones(P.codomain.shape, np.float32)),
        "convolution": lambda: lo.Convolve(space, np.ones((3, 3, 3), np.float32)),
        "stack": lambda: lo.vstack([P, lo.Gradient(space)]),
    }[sys.argv[1]]()
    p = plan(A, devices=2, executor="threads", partition=sys.argv[2])
    B = p.lower()
    y = B @ B.domain.ones()
    x = B.H @ y
    return p.footprint.total

run(8, 32)  # what is imported and compiled
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
predicted = run(160, 384)
print(status("VmHWM") - before, predicted)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "partition"),
    [
        ("gradient", "z"), ("projector", "view"), ("gram", "view"), ("convolution", "z"),
        ("stack", "z"),
    ],
)  # fmt: skip
def test_the_resident_set_peaks_where_the_plan_says(kind: str, partition: str) -> None:
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the peak of the resident set is read from /proc")
    run = subprocess.run(
        [sys.executable, "-c", _PROCESS, kind, partition],
        cwd=ROOT, env={**os.environ, "LINOPS_NUM_THREADS": "2"}, capture_output=True, text=True,
        timeout=300, check=True,
    )  # fmt: skip
    peak, predicted = map(int, run.stdout.split())
    assert predicted >= 250e6
    assert 0.8 * predicted <= peak <= 1.05 * predicted, (peak, predicted)
