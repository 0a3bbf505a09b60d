"""Lowered operators with one worker a JAX device: the numbers of the operators themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import compositions

import linops as lo
from linops import functionals as fn
from linops.testing import dot_test
from sharding import plan
from sharding.array_backends import jax_devices
from sharding.states import Sharded

jax = pytest.importorskip("jax")
jnp = jax.numpy


pytestmark = pytest.mark.usefixtures("x64")


def assert_close(got: Any, wanted: Any, rtol: float = 1e-12) -> None:
    """Members agree to rounding of their largest entry."""
    pairs = zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]
    for a, b in pairs:
        assert a.shape == b.shape
        np.testing.assert_allclose(
            np.asarray(a), np.asarray(b), rtol=0, atol=rtol * (np.abs(b).max() + 1e-30)
        )


def _lowered(A: Any, n: int, partition: Any = "auto", by: int | None = None) -> Any:
    devices = jax.devices("cpu")[:n][::-1]
    p = plan(A, devices=devices, executor="threads", partition=partition)
    if by is not None:
        ends: list[Any] = [(Sharded(by),)]
        p = p.again(A, entries=ends, exits=ends)
    return p.lower()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["projector over gradient", "side by side", "gram with weights"])
@pytest.mark.parametrize("n", [1, 3])
def test_compositions(name: str, n: int) -> None:
    A = compositions.LINEAR[name]()
    x, y = A.domain.random(1), A.codomain.random(2)
    B = _lowered(A, n)
    assert_close(B @ x, A @ x)
    assert_close(B.H @ y, A.H @ y)


@pytest.mark.slow
def test_more_devices_than_planes() -> None:
    A = compositions.projector(views=3)
    x, y = A.domain.random(1), A.codomain.random(2)
    B = _lowered(A, 5, "view")
    assert_close(B @ x, A @ x)
    assert_close(B.H @ y, A.H @ y)


@pytest.mark.slow
def test_two_mesh_axes() -> None:
    A = compositions.projector()
    x, y = A.domain.random(1), A.codomain.random(2)
    B = _lowered(A, 4, {"view": 2, "z": 2})
    assert_close(B @ x, A @ x)
    assert_close(B.H @ y, A.H @ y)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two rings", "two stencils"])
def test_halos_between_devices(name: str) -> None:
    A = compositions.LINEAR[name]()
    B = _lowered(A, 3, by=0)
    x, y = A.domain.random(1), A.codomain.random(2)
    assert_close(B @ x, A @ x)
    assert_close(B.H @ y, A.H @ y)
    dot_test(B)


@pytest.mark.slow
def test_nothing_passes_through_the_host_and_shares_keep_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    A = compositions.LINEAR["two stencils"]()
    B = _lowered(A, 3, by=0)
    placed = B.domain.home.put(A.domain.random(1))
    B @ placed
    sent: list[Any] = []
    send = jax.device_put

    def watched(x: Any, *args: Any, **kwargs: Any) -> Any:
        sent.append(x)
        return send(x, *args, **kwargs)

    monkeypatch.setattr(jax, "device_put", watched)
    monkeypatch.setattr(
        type(placed), "__array__", lambda *a, **k: pytest.fail("an array was read by the host")
    )
    made = B @ placed
    monkeypatch.undo()
    assert sent and all(isinstance(x, jax.Array) for x in sent)
    # No piece is larger than a share with its halo.
    assert max(x.size for x in sent) <= 5 * 5 * 4
    assert made.sharding.is_equivalent_to(placed.sharding, 3)
    pointers = [part.unsafe_buffer_pointer() for part in jax_devices.pieces(made, B.plan.mesh)]
    again = jax_devices.joined(made.shape, made.sharding, jax_devices.pieces(made, B.plan.mesh))
    assert pointers == [
        part.unsafe_buffer_pointer() for part in jax_devices.pieces(again, B.plan.mesh)
    ]


@pytest.mark.slow
def test_padding_changes_no_bit() -> None:
    A = compositions.LINEAR["two rings"]()
    B = _lowered(A, 4, by=0)
    placement = B.plan.domain_placement
    placed = placement.put(A.domain.random(1))
    real = placement.mask(3)
    runs = []
    for garbage in (0.0, np.nan, 1e30):
        dirty = jax.device_put(jnp.where(real, placed, garbage), placed.sharding)
        runs.append((np.asarray(B @ dirty), np.asarray(B.H @ dirty)))
    for run in runs:
        for a, b in zip(run, runs[0], strict=True):
            np.testing.assert_array_equal(a, b)
            assert not a[7:].any()


@pytest.mark.slow
def test_functionals_and_jacobians() -> None:
    A = compositions.projector()
    x, y = A.domain.random(1), A.codomain.random(2)
    f = fn.LeastSquares(A.codomain).translate(y) @ A
    B = _lowered(f, 3, "view")
    assert B(x) == pytest.approx(f(x), rel=1e-12)
    assert_close(B.gradient(x), f.gradient(x))
    N = lo.transmission(A, 2.0)
    J, wanted = _lowered(N, 3, "view").jacobian(x), N.jacobian(x)
    assert_close(J @ x, wanted @ x)
    assert_close(J.H @ y, wanted.H @ y)


def test_under_a_trace_the_plan_runs_as_one_program() -> None:
    A = compositions.projector()
    B = _lowered(A, 3, "view")
    x = jnp.asarray(A.domain.random(1))
    got = jax.jit(jax.grad(lambda v: 0.5 * jnp.sum((B @ v) ** 2)))(x)
    assert_close(got, A.H @ (A @ np.asarray(x)))


def test_an_error_names_the_shard() -> None:
    def broken(x: Any) -> Any:
        raise ArithmeticError("no result")

    space = lo.Space((6,), "float64", ("x",))
    A = lo.from_functions(
        broken, broken, domain=space, codomain=space, rule="x -> x", blockwise=True
    )
    with pytest.raises(ArithmeticError, match="no result") as caught:
        _lowered(A, 2) @ np.ones(6)
    assert any("shard" in note for note in caught.value.__notes__)
