"""The steps of programs inside `shard_map`, each with its adjoint, on uneven shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import linops as lo
from sharding.array_backends.jax_devices import jax_mesh
from sharding.executors import collectives
from sharding.executors.padded import window_cells
from sharding.mesh import Mesh
from sharding.states import PARTIAL, REPLICATED, Sharded, State, Windowed, dual, real_range
from sharding.steps import Value
from sharding.writer import Writer

jax = pytest.importorskip("jax")


pytestmark = pytest.mark.usefixtures("x64")


_SPACE = lo.Space((7, 5), "complex128", ("z", "x"))


def _window(n: int, periodic: bool) -> Windowed:
    share = -(-7 // n)
    real = [(min(i * share, 7), min((i + 1) * share, 7)) for i in range(n)]
    return Windowed(
        0,
        tuple((lo_ - 2, hi + 1) if lo_ < hi else (lo_, lo_) for lo_, hi in real),
        tuple((i * share - 2, (i + 1) * share + 1) for i in range(n)),
        periodic,
    )


_STEPS: dict[str, Any] = {
    "Slice": (REPLICATED, Sharded(0)),
    "AllGather": (Sharded(1), REPLICATED),
    "AllToAll": (Sharded(0), Sharded(1)),
    "Halo": (Sharded(0), False),
    "Halo around": (Sharded(0), True),
    "Slice to a window": (REPLICATED, False),
    "Slice to a ring": (REPLICATED, True),
    "ReduceScatter": (PARTIAL, Sharded(0)),
    "AllReduce": (PARTIAL, REPLICATED),
    "Extend": (REPLICATED, PARTIAL),
}


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("name", _STEPS)
def test_every_step_and_its_adjoint_agree(name: str, n: int) -> None:
    source, target = (_window(n, s) if isinstance(s, bool) else s for s in _STEPS[name])
    rng = np.random.default_rng(0)
    x, y = _local(rng, source, n), _local(rng, dual(target), n)
    there, back = _moved(x, source, target, n), _moved(y, dual(target), dual(source), n)
    # Summed over devices: copies on one side meet summands on the other.
    left, right = np.vdot(there * _real(target, n), y), np.vdot(x, back * _real(source, n))
    scale = np.linalg.norm(there) * np.linalg.norm(y) + np.linalg.norm(x) * np.linalg.norm(back)
    assert abs(left - right) <= 16 * np.finfo(np.float64).eps * scale
    assert abs(left) > 0


def _real(state: State, n: int) -> np.ndarray:
    """Which entries of the local parts are planes of the array."""
    real = np.zeros((n, *Value(_SPACE, (state,)).local_shape((n,))), bool)
    for i in range(n):
        if isinstance(state, Windowed):
            for place, _ in window_cells(state, 7, i):
                real[i, place] = True
        elif isinstance(state, Sharded):
            first, last = real_range(_SPACE.shape[state.axis], n, i)
            np.moveaxis(real[i], state.axis, 0)[: last - first] = True
        else:
            real[i] = True
    return real


def _local(rng: np.random.Generator, state: State, n: int) -> np.ndarray:
    """Local parts of a random element, stacked; planes that are not of the array are 0."""
    real = _real(state, n)
    x = rng.standard_normal(real.shape) + 1j * rng.standard_normal(real.shape)
    if state == REPLICATED:
        x[:] = x[:1]
    return x * real


def _moved(x: np.ndarray, source: State, target: State, n: int) -> np.ndarray:
    from jax.sharding import PartitionSpec as P

    writer = Writer((n,))
    writer.to(writer.value(Value(_SPACE, (source,))), (target,))

    def body(part: Any) -> Any:
        part = part[0]
        for step in writer.steps:
            before, after = (writer.values[j] for j in (*step.inputs, *step.outputs))
            part = collectives.moved(step, part, before, after, (n,), "devices")
        return part[None]

    mesh = jax_mesh(Mesh.row(tuple(jax.devices("cpu")[:n])))
    run = jax.shard_map(
        body, mesh=mesh, in_specs=P("devices"), out_specs=P("devices"), check_vma=False
    )
    return np.asarray(jax.jit(run)(x))
