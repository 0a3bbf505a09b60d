"""Inner products on JAX devices: one collective for several, and the same bits in order."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import linops as lo
from linops import arrays
from sharding import plan
from sharding.states import REPLICATED, Sharded

jax = pytest.importorskip("jax")
jnp = jax.numpy


def _plan(shape: tuple[int, ...], dtype: str, n: int, partition: Any = "a", **settings: Any) -> Any:
    """A plan of the identity with elements in shares of the named axes a, b, c."""
    axes = "abc"[: len(shape)]
    space = lo.Space(shape, dtype, tuple(axes))
    rule = f"{' '.join(axes)} -> {' '.join(axes)}"
    A = lo.from_functions(
        lambda x: x, lambda x: x, domain=space, codomain=space, rule=rule, blockwise=True
    )
    devices = jax.devices("cpu")[:n]
    p = plan(A, devices=devices, executor="shard_map", partition=partition, **settings)
    ends: list[Any] = [(Sharded(0),) if isinstance(partition, str) else (Sharded(0), Sharded(1))]
    return p.again(A, entries=ends, exits=ends)


def _poisoned(space: Any, x: Any) -> Any:
    placed = space.home.put(x)
    real = space.home.placement.mask(placed.ndim)
    return jax.device_put(jnp.where(real, placed, np.nan), placed.sharding)


def _collectives(text: str) -> list[str]:
    return re.findall(r" (all-reduce|all-gather|reduce-scatter|all-to-all)(?:-start)?\(", text)


@pytest.mark.slow
@pytest.mark.parametrize("x64", [True, False])
def test_several_products_are_one_collective(x64: bool) -> None:
    with jax.enable_x64(x64):
        real, other = ("float64", "complex128") if x64 else ("float32", "float32")
        p = _plan((7, 5), real, 4)
        ends: list[Any] = [(REPLICATED,)]
        few = lo.Identity(lo.Space((3,), other))
        cut, copies = p.lower().domain, p.again(few, entries=ends, exits=ends).lower().domain
        x, y = cut.random(1), cut.random(2)
        u, v = copies.random(3), copies.random(4)
        x, y = _poisoned(cut, x), _poisoned(cut, y)

        def values(x: Any, y: Any, u: Any, v: Any) -> Any:
            return lo.inners((cut, x, y), (copies, u, v), (cut, x, x))

        text = jax.jit(values).lower(x, y, u, v).compile().as_text()
        assert _collectives(text) == ["all-reduce" if x64 else "all-gather"]
        pairs = (cut, x), (cut, y), (copies, u), (copies, v)
        plain = [np.asarray(space.home.gather(w)) for space, w in pairs]
        a, b, c, d = (w.astype(np.result_type(w, "float64")) for w in plain)
        wanted = [np.sum(a * b), np.sum(np.conj(c) * d), np.sum(a * a)]
        for got in (values(x, y, u, v), jax.jit(values)(x, y, u, v)):
            np.testing.assert_allclose(got, wanted, rtol=1e-13 if x64 else 1e-6)
        ones = cut.ones()
        assert ones.shape == (8, 5)
        assert cut.norm(ones) ** 2 == pytest.approx(35, rel=1e-10)
        pair = lo.ProductSpace([cut, copies])
        assert pair.inner((x, u), (y, v)) == pytest.approx(wanted[0] + wanted[1], rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_in_order_no_cut_and_no_device_changes_a_bit(dtype: str) -> None:
    found, plain = set(), []
    with jax.enable_x64(dtype != "float32"):
        for n, partition in ((1, "a"), (5, "a"), (4, {"a": 2, "b": 2}), (6, {"a": 2, "b": 3})):
            p = _plan((7, 6, 65), dtype, n, partition, deterministic=True)
            if n == 1:  # where nothing has to be cut
                p = p.again(p.operator, entries=[(REPLICATED,)])
            if n == 5:
                p = p.again(p.operator, entries=[(Sharded(2),)], exits=[(Sharded(2),)])
            space = p.lower().domain
            x, y = (_poisoned(space, space.random(k)) for k in (1, 2))
            found.add((space.inner(x, y), space.norm(x), complex(lo.inners((space, x, y))[0])))
            plain = [np.asarray(space.home.gather(v)) for v in (x, y)]
    assert len(found) == 1
    value = complex(found.pop()[0])
    wide = [v.astype("complex128") for v in plain]
    assert value == pytest.approx(np.vdot(*wide), abs=1e-12 * math.prod(map(np.linalg.norm, wide)))
    serial = plan(p.operator, devices=3, executor="serial", deterministic=True).lower().domain
    alone = complex(serial.inner(*plain))
    # Without x64 the last digits of a double are not there.
    assert value == alone if dtype != "float32" else value == pytest.approx(alone, rel=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize(("x64", "ordered"), [(True, True), (False, False)])
def test_their_derivatives(x64: bool, ordered: bool) -> None:
    with jax.enable_x64(x64):
        dtype = "float64" if x64 else "float32"
        space = _plan((5, 3), dtype, 2, deterministic=ordered).lower().domain
        x, y = space.random(1), space.random(2)
        got = jax.grad(lambda x: space.inner(x, x + y))(x)
        real = np.asarray(space.home.placement.mask(2))
        wanted = np.where(real, np.asarray(y + 2 * x), 0)
        np.testing.assert_allclose(got, wanted, rtol=1e-12 if x64 else 1e-5)


def test_plain_arrays_of_a_placed_space_are_summed_on_the_host() -> None:
    space = _plan((7, 5), "float32", 2).lower().domain
    x = np.ones((7, 5), "float32")
    value = space.inner(x, x)
    assert type(value) is float and value == 35
    assert all(arrays.is_jax(v) for v in lo.inners((space, space.home.put(x), x)))
