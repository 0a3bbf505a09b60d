"""Wide stencils on few planes, on meshes of any shape: the bits of one device, no more traffic."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import linops as lo
from sharding import plan
from sharding.states import Sharded

jax = pytest.importorskip("jax")

# Second differences of orders 2, 4, 6, 8: the outer taps of one side, from the middle outwards.
TAPS = {
    2: (-2.0, 1.0),
    4: (-5 / 2, 4 / 3, -1 / 12),
    6: (-49 / 18, 3 / 2, -3 / 20, 1 / 90),
    8: (-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560),
}


pytestmark = pytest.mark.usefixtures("x64")


def _laplacian(shape: tuple[int, int], order: int, boundary: str, across: bool = True) -> Any:
    """A star of one arm along each axis; without `across` along the first alone."""
    row = np.array([*TAPS[order][:0:-1], *TAPS[order]])
    reach = len(row) // 2
    kernel = np.zeros((2 * reach + 1,) * 2)
    kernel[:, reach] += row
    if across:
        kernel[reach] += row
    else:
        kernel = kernel[:, [reach]]
    return lo.Convolve(lo.Space(shape, "float64", ("z", "x")), kernel, boundary=boundary)


def _cut(A: Any, devices: Any, *axes: int, executor: str = "shard_map", shape: Any = None) -> Any:
    """Lowered with both ends cut along these axes, one a mesh axis."""
    partition = "auto" if shape is None else dict(zip("zx", shape, strict=True))
    p = plan(A, devices=devices, executor=executor, partition=partition)
    ends: list[Any] = [tuple(map(Sharded, axes))]
    return p.again(A, entries=ends, exits=ends).lower()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("boundary", ["zero", "periodic"])
@pytest.mark.parametrize("order", TAPS)
def test_stencils_as_wide_as_several_shares_keep_their_bits(
    order: int, boundary: str, executor: str
) -> None:
    """SR1, SR4: order 8 on shares of 3, 3, 3, 0 planes; a point source on and beside a cut."""
    for size in (9, 11):
        A = _laplacian((size, 3), order, boundary, across=False)
        source = np.zeros((2, size, 3))
        source[0, 3, 1] = source[1, 2, 1] = 1.0
        x = np.concatenate([source, A.domain.random(0)[None]])
        for n in (1, 2, 3, 4, 8):
            B = _cut(A, n, 0, executor=executor)
            np.testing.assert_array_equal(B @ x, A @ x)
            np.testing.assert_allclose(B.H @ x, A.H @ x, rtol=0, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("boundary", ["zero", "periodic"])
def test_on_a_rectangle_of_devices_two_permutes_an_axis_and_nothing_else(boundary: str) -> None:
    """Both axes cut, in either order of the devices, corners not read."""
    A = _laplacian((8, 8), 6, boundary)
    x = A.domain.random(1)
    one = _cut(A, jax.devices("cpu")[:1], 0)
    wanted = np.asarray(one.domain.home.gather(one @ one.domain.home.put(x)))
    devices = jax.devices("cpu")[:4]
    B = _cut(A, devices[::-1], 0, 1, shape=(2, 2))
    got = np.asarray(B.codomain.home.gather(B @ B.domain.home.put(x)))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=4e-15)
    text = B._engine.compiled_text(B.plan.forward)
    kinds = re.findall(r" (all-\w+|reduce-scatter|collective-permute)(?:-start)?\(", text)
    assert set(kinds) == {"collective-permute"} and len(kinds) <= 4


@pytest.mark.slow
def test_two_stencils_exchange_once_and_say_what_they_send() -> None:
    """Divergence of gradient sends two planes each way, once, not one plane twice."""
    space = lo.Space((8, 6), "float64", ("z", "x"))
    G = lo.Gradient(space)
    A = G.H @ G
    B = plan(A, devices=jax.devices("cpu")[:4], executor="shard_map", partition="z").lower()
    halos = [step for step in B.plan.forward.steps if step.kind == "Halo"]
    assert len(halos) == 1
    text = B._engine.compiled_text(B.plan.forward)
    kinds = re.findall(r" (all-\w+|reduce-scatter|collective-permute)(?:-start)?\(", text)
    assert kinds == ["collective-permute"] * 2
    x = space.random(1)
    np.testing.assert_allclose(B @ x, A @ x, rtol=0, atol=1e-14)
    sent = 2 * 2 * 3 * 6 * 8  # planes to and fro over three faces, of 6 doubles
    table = B.plan.explain().split("\nforward\n")[1].split("\nadjoint\n")[0]
    assert re.search(rf"total +{sent:,}", table)


def test_one_jitted_function_serves_plans_on_two_meshes_in_turn() -> None:
    """Nothing ambient is read when it is traced."""
    A = lo.Diagonal(np.arange(12.0).reshape(6, 2), lo.Space((6, 2), "float64", ("z", "x")))
    devices = jax.devices("cpu")
    B, C = _cut(A, devices[:2], 0), _cut(A, devices[5:2:-1], 0)
    apply = jax.jit(lambda operator, x: operator @ x)
    x = A.domain.random(1)
    for operator in (B, C, B):
        made = apply(operator, operator.domain.home.put(x))
        assert operator.codomain.home.placement.holds(made)
        np.testing.assert_array_equal(operator.codomain.home.gather(made), A @ x)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["shard_map", "threads"])
@pytest.mark.parametrize("boundary", ["zero", "periodic"])
@pytest.mark.parametrize(("size", "reach"), [(12, 5), (8, 4)])
def test_every_plane_of_every_hop_arrives(
    size: int, reach: int, boundary: str, executor: str
) -> None:
    """Several planes are due from the second neighbor too; no two of the weights are equal."""
    weights = 1.0 + np.arange(2.0 * reach + 1) ** 2
    space = lo.Space((size, 2), "float64", ("z", "x"))
    A = lo.Convolve(space, weights[:, None], boundary=boundary)
    matrix = np.zeros((size, size))
    for i in range(size):
        for k, weight in enumerate(weights[::-1]):
            j = i + k - reach
            if boundary == "periodic" or 0 <= j < size:
                matrix[i, j % size] += weight
    x = space.random(0)
    share = -(-size // 4)
    assert 2 <= min(share, reach - share)  # planes of the second hop
    np.testing.assert_allclose(A @ x, matrix @ x, rtol=1e-13)
    B = _cut(A, jax.devices("cpu")[:4], 0, executor=executor)
    np.testing.assert_allclose(B @ x, matrix @ x, rtol=1e-12)
    np.testing.assert_allclose(B.H @ x, matrix.T @ x, rtol=1e-12, atol=1e-12)
