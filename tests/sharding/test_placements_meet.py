"""Where placements meet: operators of several plans, arrays from elsewhere, plans that travel."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import linops as lo
import solvers
from linops import functionals as fn
from linops.errors import PlacementError
from linops.testing import dot_test
from sharding import plan
from sharding.states import Sharded

jax = pytest.importorskip("jax")
jnp = jax.numpy

ROOT = Path(__file__).resolve().parent.parent.parent
SPACE = lo.Space((7, 5), "float32", ("z", "x"))
WEIGHTS = 1 + np.random.default_rng(0).random(SPACE.shape).astype("float32")
WEIGH = lo.Diagonal(WEIGHTS, SPACE)
BLUR = lo.Convolve(SPACE, np.array([[0.25], [0.5], [0.2]], "float32"), boundary="zero")


def _lowered(A: Any, executor: str, devices: Any) -> Any:
    """On the plan's devices with both ends cut along z."""
    p = plan(A, devices=devices, executor=executor)
    cut: list[Any] = [(Sharded(0),)]
    return p.again(A, entries=cut, exits=cut).lower()


def _jax(*numbers: int) -> list[Any]:
    return [jax.devices("cpu")[k] for k in numbers]


# --- operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("executor", "one", "other"),
    [
        ("serial", 2, 3),
        ("threads", 2, 3),
        ("threads", _jax(0, 1), _jax(1, 0)),
        ("shard_map", _jax(0, 1), _jax(2, 3)),
        ("shard_map", _jax(0, 1), _jax(0, 1, 2)),
    ],
)
def test_two_placements_are_refused_when_the_composition_is_built(
    executor: str, one: Any, other: Any
) -> None:
    B, C = _lowered(BLUR, executor, one), _lowered(WEIGH, executor, other)
    for build in (
        lambda: B @ C,
        lambda: B + C,
        lambda: B - 2 * C.H,
        lambda: (2 * B) @ (C @ C),
        lambda: lo.vstack([B, C]),
        lambda: lo.hstack([B, C]),
        lambda: lo.transmission(B, 1.0) @ C,
        lambda: fn.LeastSquares(C.codomain) @ B,
        lambda: fn.LeastSquares(C.codomain) @ C + fn.LeastSquares(B.codomain) @ B,
    ):
        with pytest.raises(PlacementError, match=r"(?s)lives on .* devices.*lower"):
            build()


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize("executor", ["serial", "threads", "threads on JAX", "shard_map"])
def test_where_they_match_compositions_are_what_they_are_without_plans(executor: str) -> None:
    name, on_jax = executor.split()[0], executor in ("threads on JAX", "shard_map")
    devices = _jax(2, 0, 1) if on_jax else 3
    B, C = _lowered(BLUR, name, devices), _lowered(WEIGH, name, devices)
    smooth = lo.Gradient(SPACE)
    pairs = [
        (B @ C.H + 2 * C, BLUR @ WEIGH.H + 2 * WEIGH),
        # A plan beside none: that one is lowered to where they meet.
        (lo.vstack([B @ WEIGH + C, smooth]), lo.vstack([BLUR @ WEIGH + WEIGH, smooth])),
        (WEIGH @ (B - WEIGH), WEIGH @ (BLUR - WEIGH)),
    ]
    if on_jax:
        pairs = pairs[1:2]
    for made, wanted in pairs:
        x, y = wanted.domain.random(1), wanted.codomain.random(2)
        placed = made.domain.home.put(x)
        for got in (made @ x, made.codomain.home.gather(made @ placed)):
            _assert_close(got, wanted @ x)
        _assert_close(made.domain.home.gather(made.H @ made.codomain.home.put(y)), wanted.H @ y)
    if executor == "threads on JAX":
        return
    if not on_jax:
        dot_test(made)
    made, wanted = pairs[len(pairs) // 2]
    y = wanted @ wanted.domain.random(3)
    got = solvers.cgls(made, made.codomain.home.put(y), iterations=4)
    solution = solvers.cgls(wanted, y, iterations=4).solution
    _assert_close(made.domain.home.gather(got.solution), solution)
    if on_jax:
        x = wanted.domain.random(4)
        loss = jax.jit(jax.grad(lambda x: sum(jnp.sum(part**2) for part in made @ x)))
        slope = made.domain.home.gather(loss(made.domain.home.put(x)))
        _assert_close(slope, 2 * (wanted.H @ (wanted @ x)))


def test_shares_are_not_joined_end_to_end() -> None:
    B = _lowered(BLUR, "shard_map", _jax(0, 1))
    with pytest.raises(PlacementError, match="plan the whole"):
        lo.concat([B, WEIGH], axis="z")
    C = _lowered(BLUR, "threads", 2)
    x = SPACE.random(0)
    _assert_close(lo.concat([C, C], axis="z") @ x, np.concatenate([BLUR @ x] * 2))


# --- arrays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", ["eager", "grad", "vjp", "inner", "put"])
def test_arrays_of_another_placement_are_refused_with_both_places(transform: str) -> None:
    B, C = _lowered(WEIGH, "shard_map", _jax(0, 1, 2)), _lowered(WEIGH, "threads", _jax(2, 1, 0))
    y = C.domain.home.put(SPACE.random(0))
    with pytest.raises(PlacementError, match=r"cpu:2, cpu:1, cpu:0\].*cpu:0, cpu:1, cpu:2\].*same"):
        {
            "eager": lambda: B @ y,
            "grad": lambda: jax.grad(lambda x: jnp.sum(B @ x))(y),
            "vjp": lambda: jax.vjp(lambda x: B @ x, y),
            "inner": lambda: B.domain.inner(y, y),
            "put": lambda: B.domain.home.put(y),
        }[transform]()


def test_under_jit_the_mesh_that_an_array_came_from_is_seen() -> None:
    B, C = _lowered(WEIGH, "shard_map", _jax(0, 1, 2, 3)), _lowered(WEIGH, "shard_map", _jax(0, 1))
    with pytest.raises(PlacementError, match="mesh {'devices': 2}.*cpu:3.*same devices"):
        jax.jit(lambda x: B @ x)(C.domain.home.put(SPACE.random(0)))


@pytest.mark.slow
def test_arrays_typed_by_an_explicit_mesh_and_a_mesh_that_is_set() -> None:
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    A = lo.Diagonal(WEIGHTS[:6], lo.Space((6, 5), "float32", ("z", "x")))
    B = _lowered(A, "shard_map", _jax(0, 1, 2))
    mesh = jax.sharding.Mesh(np.array(_jax(0, 1, 2)), ("own",), axis_types=(AxisType.Explicit,))
    x = A.domain.random(1)
    typed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("own")))

    def loss(x: Any) -> Any:
        return jnp.sum((B @ x) ** 2)

    slope = 2 * (A.H @ (A @ x))
    _assert_close(B @ typed, A @ x)
    _assert_close(jax.jit(lambda x: B @ x)(typed), A @ x)
    _assert_close(jax.grad(loss)(typed), slope)
    _assert_close(jax.jit(jax.grad(loss))(typed), slope)
    assert B.domain.inner(typed, typed) == pytest.approx(float(np.vdot(x, x)), rel=1e-6)
    with jax.set_mesh(mesh):
        _assert_close(B @ B.domain.home.put(x), A @ x)
        _assert_close(jax.jit(lambda x: B @ x)(typed), A @ x)
        assert B.domain.norm(typed) == pytest.approx(float(np.linalg.norm(x)), rel=1e-6)


# --- plans that travel ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize("executor", ["threads", "shard_map"])
def test_lowered_operators_on_devices_pickle(executor: str) -> None:
    devices = _jax(2, 0, 1)
    B = _lowered(BLUR, executor, devices)
    N = plan(lo.transmission(BLUR, 2.0), devices=devices, executor=executor, partition="z").lower()
    f = plan(fn.LeastSquares(SPACE), devices=devices, executor=executor, partition="z").lower()
    x = SPACE.random(5)
    J = N.jacobian(x)
    for operator in (B.H, B @ B, J, f.gradient):
        placed = operator.domain.home.put(operator.domain.random(6))
        wanted = operator(placed)
        for again in (pickle.loads(pickle.dumps(operator)), copy.deepcopy(operator)):
            got = again(placed)
            assert again.domain == operator.domain and again.codomain == operator.codomain
            assert again.codomain.home.placement.holds(got)
            np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))
    assert pickle.loads(pickle.dumps(f))(x) == f(x)
    again = pickle.loads(pickle.dumps(B.plan))
    assert again.explain() == B.plan.explain() and again.devices == tuple(devices)


@pytest.mark.slow
def test_a_process_without_the_devices_says_so(tmp_path: Path) -> None:
    file = tmp_path / "lowered"
    file.write_bytes(pickle.dumps(_lowered(BLUR, "shard_map", _jax(0, 1, 2))))
    code = f"import pickle; pickle.load(open({str(file)!r}, 'rb'))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "PlacementError: a plan for device cpu:2" in done.stderr
    assert "xla_force_host_platform_device_count" in done.stderr


def _assert_close(got: Any, wanted: Any) -> None:
    pairs = zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]
    for a, b in pairs:
        np.testing.assert_allclose(np.asarray(a), b, rtol=0, atol=2e-6 * np.abs(b).max())
