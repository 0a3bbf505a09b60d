"""Meshes that users bring: taken as they are, with one array axis over several of their axes."""

from __future__ import annotations

from typing import Any

import compositions
import numpy as np
import pytest

import linops as lo
from linops.errors import PlacementError
from sharding import plan

jax = pytest.importorskip("jax")

pytestmark = pytest.mark.usefixtures("x64")


def _mesh(shape: tuple[int, ...], names: tuple[str, ...]) -> Any:
    count = int(np.prod(shape))
    return jax.sharding.Mesh(np.array(jax.devices("cpu")[:count]).reshape(shape), names)


def _shards(x: Any) -> dict[int, tuple[slice, ...]]:
    return {shard.device.id: shard.index for shard in x.addressable_shards}


@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize(
    ("partition", "spec"),
    [
        ({"view": "a", "z": "b"}, ("a",)),
        ({"view": 2, "z": None}, ("a",)),
        ({"z": "a", "view": "b"}, ("b",)),
        ("view", (("a", "b"),)),
        ({"view": ("b", "a")}, (("b", "a"),)),
        ({"domain": "z", "codomain": "view"}, (("a", "b"),)),
    ],
)
def test_shares_lie_where_jax_puts_them(partition: Any, spec: Any) -> None:
    A = compositions.projector((5, 8, 7), 6)
    mesh = _mesh((2, 3), ("a", "b"))
    B = plan(A, mesh, partition=partition).lower()
    x, y = A.domain.random(1), A.codomain.random(2)
    made = B.codomain.home.put(y)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    assert _shards(made) == _shards(jax.device_put(y, sharding))
    np.testing.assert_allclose(B @ x, A @ x, rtol=0, atol=1e-12 * np.abs(A @ x).max())


def test_a_mesh_is_taken_as_it_is() -> None:
    A = compositions.projector((4, 8, 8), 4)
    mesh = _mesh((2, 2), ("a", "b"))
    for executor in ("threads", "shard_map"):
        p = plan(A, mesh, executor)
        assert (p.mesh.names, p.mesh.shape, p.executor) == (("a", "b"), (2, 2), executor)
        assert p.devices == tuple(mesh.devices.flat)
    # What lies on the user's mesh is an element.
    p = plan(A, mesh, partition={"view": "a", "z": "b"})
    y = A.codomain.random(0)
    mine = jax.device_put(y, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a")))
    assert p.lower().codomain.home.put(mine) is mine
    # Only partition="batch" shares the leading axis, whatever a mesh axis is called.
    named = plan(A, _mesh((4,), ("batch",)), partition="view")
    assert named.codomain_placement.axes == (0,)
    assert plan(A, _mesh((2, 2), ("a", "b")), partition="batch").by_batch


@pytest.mark.usefixtures("quick_xla")
def test_three_mesh_axes_are_joined_or_refused() -> None:
    A = compositions.projector((4, 8, 7), 8)
    mesh = _mesh((2, 2, 2), ("a", "b", "c"))
    with pytest.raises(PlacementError, match=r"one or two axes; .* say which go together, such as"):
        plan(A, mesh)
    with pytest.raises(PlacementError, match="one or two"):
        plan(A, mesh, partition={"view": "a", "z": "b", "row": "c"})
    for partition, shape in (({"view": ("c", "a"), "z": "b"}, (4, 2)), ("view", (8,))):
        p = plan(A, mesh, partition=partition)
        assert p.mesh.shape == shape
        x = A.domain.random(1)
        np.testing.assert_allclose(p.lower() @ x, A @ x, rtol=0, atol=1e-12 * np.abs(A @ x).max())
    assert [d.id for d in plan(A, mesh, partition={"view": ("c", "a"), "z": "b"}).devices] == [
        mesh.devices[a, b, c].id for c in range(2) for a in range(2) for b in range(2)
    ]


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        ({"view": "a"}, "name each once"),
        ({"view": "a", "z": "a"}, "name each once"),
        ({"view": "a", "z": "d"}, "name each once"),
        ({"view": 3, "z": 2}, "is not of this mesh: the mesh has {'a': 2, 'b': 3}"),
        ("nothing", "no leaf has an axis 'nothing'"),
    ],
)
def test_partitions_that_are_not_of_the_mesh(partition: Any, words: str) -> None:
    with pytest.raises(PlacementError, match=words):
        plan(lo.Gradient(lo.Space((4, 6), "float64")), _mesh((2, 3), ("a", "b")), "auto", partition)
