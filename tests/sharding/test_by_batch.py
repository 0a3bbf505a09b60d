"""`partition="batch"`: devices share the leading axis, and every member stays on one of them."""

from __future__ import annotations

from typing import Any

import compositions
import numpy as np
import pytest

import linops as lo
import solvers
from linops import functionals as fn
from linops.errors import PlacementError
from sharding import plan

jax = pytest.importorskip("jax")
jnp = jax.numpy


pytestmark = pytest.mark.usefixtures("x64")


def _by_batch(A: Any, executor: str) -> Any:
    devices: Any = 3 if executor == "workers" else jax.devices("cpu")[2::-1]
    executor = "threads" if executor == "workers" else executor
    return plan(A, devices=devices, executor=executor, partition="batch").lower()


def _assert_close(got: Any, wanted: Any) -> None:
    assert got.shape == wanted.shape
    np.testing.assert_allclose(
        np.asarray(got), wanted, rtol=0, atol=1e-12 * np.abs(wanted).max(initial=1)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize("executor", ["workers", "threads", "shard_map"])
def test_batches_of_any_length(executor: str) -> None:
    A = compositions.projector((5, 6, 6), 5)
    B = _by_batch(A, executor)
    G, g = B.gram(), A.gram()
    generator = np.random.default_rng(0)
    for batch in ((), (3,), (5,), (4, 2), (0,)):
        x = generator.standard_normal((*batch, *A.domain.shape))
        y = generator.standard_normal((*batch, *A.codomain.shape))
        placed = B.domain.home.put(x)
        made = B @ placed
        assert B.codomain.home.placement.holds(made)
        _assert_close(made, A @ x)
        _assert_close(B @ x, A @ x)
        _assert_close(B.H @ B.codomain.home.put(y), A.H @ y)
        np.testing.assert_allclose(B.domain.inner(placed, placed), A.domain.inner(x, x), rtol=1e-12)
    _assert_close(G @ x[:0], g @ x[:0])
    x = A.domain.random(1)[None] * np.arange(1.0, 5.0)[:, None, None, None]
    _assert_close(G @ x, g @ x)
    if executor != "workers":
        # Equal shares lie on a device each; a batch that does not divide is on all of them.
        shards = (B @ B.domain.home.put(x[:3])).addressable_shards
        assert [shard.data.shape[0] for shard in shards] == [1, 1, 1]
        assert (B @ B.domain.home.put(x)).is_fully_replicated


def test_equal_shares_exchange_nothing() -> None:
    A = compositions.projector((5, 6, 6), 5)
    B = _by_batch(A, "shard_map")
    x = B.domain.home.put(np.ones((3, *A.domain.shape)))
    back = jax.jit(jax.grad(lambda x: jnp.sum((B @ x) ** 2))).lower(x).compile().as_text()
    assert not any(f"{kind}(" in back for kind in ("all-gather", "all-reduce", "all-to-all"))
    again = B.domain.lower(lo.Gradient(A.domain))
    assert again.plan.by_batch, "what is lowered to its space is shared out alike"


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
def test_under_transformations_of_jax() -> None:
    A = compositions.projector((5, 6, 6), 5)
    B = _by_batch(A, "shard_map")
    x = np.stack([A.domain.random(k) for k in range(4)])

    def loss(x: Any) -> Any:
        return jnp.sum((B @ x) ** 2)

    slope = 2 * (A.H @ (A @ x))
    _assert_close(jax.grad(loss)(x), slope)
    _assert_close(jax.jit(jax.grad(loss))(B.domain.home.put(x)), slope)
    _assert_close(jax.jit(jax.vmap(jax.grad(loss)))(x), slope)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
def test_solvers_functionals_and_jacobians() -> None:
    A = compositions.projector((5, 6, 6), 5)
    B = _by_batch(A, "shard_map")
    x = np.stack([A.domain.random(k) for k in range(4)])
    y = A @ x
    wanted = solvers.cgls(A, y, iterations=4)
    got = solvers.cgls(B, B.codomain.home.put(y), iterations=4)
    np.testing.assert_allclose(
        np.asarray(B.domain.home.gather(got.solution)), wanted.solution, atol=1e-9
    )
    np.testing.assert_allclose(got.residual_history, wanted.residual_history, rtol=1e-9)
    f = fn.LeastSquares(A.codomain) @ A
    lowered = _by_batch(f, "shard_map")
    np.testing.assert_allclose(np.asarray(lowered(x)), f(x), rtol=1e-12)
    N = lo.transmission(A, 2.0)
    J = _by_batch(N, "shard_map").jacobian(x[0])
    _assert_close(J @ x, N.jacobian(x[0]) @ x)


def test_requests() -> None:
    A = compositions.projector()
    assert plan(A, devices=2, partition={"batch": 2}).mesh.shape == (2,)
    for partition, devices in (({"batch": 2}, 3), ({"batch": 2, "view": 2}, 4)):
        with pytest.raises(PlacementError, match="batch"):
            plan(A, devices=devices, partition=partition)
