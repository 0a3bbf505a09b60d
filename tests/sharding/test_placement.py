"""Placements of arrays in shared memory, and what every placement says of itself."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

import linops as lo
from linops import arrays
from linops.errors import PlacementError
from linops.home import LOCAL
from sharding import Mesh, Placement, Worker, plan

WORKERS = tuple(Worker(i) for i in range(6))


def test_fields_shares_and_ranges() -> None:
    p = Placement(WORKERS[:3], 0, 7)
    assert (p.padded_size, p.share, p.replicas) == (9, 3, 1)
    assert [p.real_range(i) for i in range(3)] == [(0, 3), (3, 6), (6, 7)]
    assert [p.padded_range(i) for i in range(3)] == [(0, 3), (3, 6), (6, 9)]
    assert p == Placement(WORKERS[:3], 0, 7, 9)
    assert hash(p) == hash(Placement(WORKERS[:3], 0, 7, 9))
    assert p != Placement(WORKERS[:3], 1, 7)


@pytest.mark.parametrize(
    ("real", "padded", "shares"),
    [
        (7, 8, (4, 3)),
        (7, 9, (3, 3, 1)),
        (7, 8, (2, 2, 2, 1)),
        (5, 8, (2, 2, 1, 0)),
        (3, 4, (1, 1, 1, 0)),
        (1, 8, (1, 0, 0, 0, 0, 0, 0, 0)),
    ],
)
def test_shares_are_equal_and_the_last_are_padded(
    real: int, padded: int, shares: tuple[int, ...]
) -> None:
    n = len(shares)
    p = Placement(tuple(Worker(i) for i in range(n)), 0, real)
    assert (p.padded_size, p.share) == (padded, padded // n)
    assert tuple(hi - lo for lo, hi in map(p.real_range, range(n))) == shares
    assert p.real_range(n - 1)[1] == real


def test_a_larger_share_may_be_asked_for() -> None:
    p = Placement(WORKERS[:2], 0, 7, 10)
    assert [p.real_range(i) for i in range(2)] == [(0, 5), (5, 7)]


@pytest.mark.parametrize("padded", [7, 6, 5])
def test_a_padded_size_that_does_not_hold_equal_shares_is_refused(padded: int) -> None:
    with pytest.raises(PlacementError, match="the smallest is 8"):
        Placement(WORKERS[:2], 0, 7, padded)


def test_counts_of_any_kind_are_compared_by_value() -> None:
    mesh = Mesh(WORKERS, (2, 3), ("a", "b"))
    one = Placement(list(WORKERS), [np.int64(0), 1], [5, np.int32(7)], [6, 9], mesh)
    assert one == Placement(WORKERS, (0, 1), (5, 7), None, mesh)
    assert hash(one) == hash(Placement(WORKERS, (0, 1), (5, 7), None, mesh))
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(FrozenInstanceError):
        one.axis = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("z", 7), "axis is 'z'; it is a whole number"),
        ((0, 7.5), "real_size is 7.5"),
        ((-1, 7), "count from 0"),
        ((0, None), "real_size is a count"),
        (((0, 1), (5, 7)), "one entry for each of 1 axes"),
    ],
)
def test_entries_of_another_kind_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        Placement(WORKERS[:2], *arguments)


def test_two_axes_on_two_mesh_axes() -> None:
    mesh = Mesh(WORKERS, (2, 3), ("a", "b"))
    p = Placement(WORKERS, (0, 1), (5, 7), None, mesh, 2)
    assert p.padded_size == (6, 9)
    assert p.padded_shape((5, 7)) == (6, 9)
    assert p.padded_shape((4, 5, 7)) == (4, 6, 9)
    assert p.ranges(5) == {0: (3, 5), 1: (6, 7)}
    both = Placement(WORKERS, (0, 0), (7, 7), None, mesh, 1)
    assert both.padded_size == (12, 12)
    assert [both.ranges(i)[0] for i in range(6)] == [
        (0, 2), (2, 4), (4, 6), (6, 7), (7, 7), (7, 7)
    ]  # fmt: skip


def test_copies_are_counted() -> None:
    mesh = Mesh(WORKERS, (2, 3), ("view", "z"))
    assert Placement(WORKERS, (None, 0), (None, 7), None, mesh).replicas == 2
    assert Placement(WORKERS, (0, None), (7, None), None, mesh).replicas == 3
    assert Placement(WORKERS[:4], None).replicas == 4


def test_put_takes_the_real_length_alone() -> None:
    p = Placement(WORKERS[:2], 0, 7)
    x = np.arange(7.0)
    put = p.put(x)
    assert p.put(put) is put and np.array_equal(p.gather(put), x)
    for length in (6, 8):
        with pytest.raises(PlacementError, match=rf"axis 0 has {length} planes.* 7 real"):
            p.put(np.zeros(length))
    with pytest.raises(PlacementError, match="takes an array"):
        p.put([1.0] * 7)


def test_zeros_masks_and_norms_count_real_entries() -> None:
    p = Placement(WORKERS[:2], 0, 7, ndim=2)
    assert p.zeros((7, 3)).shape == (7, 3)
    assert float((p.full(1.0) ** 2).sum()) == 7
    assert p.mask(2).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "one or more devices"),
        ((WORKERS[0], WORKERS[0]), "twice"),
    ],
)
def test_devices_that_are_none_or_repeated(arguments: tuple, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        Placement(arguments, 0, 7)


def test_a_mesh_holds_its_devices() -> None:
    with pytest.raises(PlacementError, match="has 6 devices, got 5"):
        Mesh(WORKERS[:5], (2, 3), ("a", "b"))
    mesh = Mesh(WORKERS, (2, 3), ("a", "b"))
    assert list(mesh.groups(1)) == [(0, 1, 2), (3, 4, 5)]
    assert list(mesh.groups(0)) == [(0, 3), (1, 4), (2, 5)]


@pytest.mark.parametrize("kind", ["workers", "jax"])
def test_shares_are_read_one_by_one(kind: str) -> None:
    x = np.arange(2 * 7 * 5, dtype=np.float32).reshape(2, 7, 5)
    devices: Any = tuple(map(Worker, range(6)))
    if kind == "jax":
        devices = tuple(pytest.importorskip("jax").devices("cpu")[:6])
    # Planes along one axis of the mesh, copies along the other; the last shares are padding.
    mesh = Mesh(devices, (3, 2), ("z", "copies"))
    placement = Placement(devices, (0, None), (7, None), None, mesh, 2)
    whole = np.zeros_like(x)
    sizes = []
    for place, part in placement.shares(placement.put(x)):
        assert type(part) is np.ndarray
        whole[place] += part
        sizes.append(part.shape[1])
    np.testing.assert_array_equal(whole, x)
    assert sizes == [3, 3, 1]


@pytest.mark.parametrize("executor", ["serial", "threads", "shard_map"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_what_was_put_is_no_longer_the_callers(executor: str, library: str) -> None:
    """He goes on writing into his arrays: elements, members, weights, indices, results."""
    if executor == "shard_map":
        pytest.importorskip("jax")
    space = lo.Space((8, 6), "float32", axes=("y", "x"))

    def ones() -> tuple[np.ndarray, Any]:
        memory = np.ones(space.shape, np.float32)
        shown = pytest.importorskip("torch").from_numpy(memory) if library == "torch" else memory
        return memory, shown

    def host(x: Any) -> np.ndarray:
        return np.array(np.asarray(x))

    weights, index = np.full(space.shape, 2, np.float32), np.arange(12)
    leaves = [
        lo.Diagonal(weights, space),
        lo.Identity(space),
        lo.Reshape(space, (6, 8)),
        lo.Restriction(space, index),
        lo.vstack([lo.Identity(space), lo.Diagonal(weights, space)]),
    ]
    lowered = [
        plan(A, devices=1 if executor == "serial" else 2, executor=executor).lower() for A in leaves
    ]
    weights[:], index[:] = 0, 0
    for A, B in zip(leaves, lowered, strict=True):
        want = A.H @ (A @ np.ones(space.shape, np.float32))
        memory, x = ones()
        placed = B.domain.home.placement.put(x)
        assert B.domain.home.placement.put(placed) is placed
        plain, held = B @ x, B @ placed
        memory[...] = 0
        np.testing.assert_array_equal(host(B.domain.home.gather(placed)), 1, A.name)
        if executor != "shard_map":
            placed[...] = 0
        for y in (plain, held):
            np.testing.assert_array_equal(host(B.domain.home.gather(B.H @ y)), want, A.name)
    pair = lowered[-1]
    (memory, x), (other, y) = ones(), ones()
    members = pair.codomain.home.put((x, y))
    memory[...], other[...] = 0, 0
    for space_, part in zip(pair.codomain.members, members, strict=True):
        np.testing.assert_array_equal(host(space_.home.gather(part)), 1)


def test_a_space_is_another_one_where_its_elements_live_elsewhere() -> None:
    torch = pytest.importorskip("torch")
    space = lo.Space((6, 4), "float64", ("y", "x"), 0.5)
    p = plan(lo.Identity(space), devices=3)
    placed, other = p.lower().domain, plan(lo.Identity(space), devices=2).lower().domain
    assert space.home is LOCAL and space.home.placement is None
    assert placed.home.placement == p.domain_placement
    assert len({space, placed, other, placed.with_home(LOCAL), p.lower().domain}) == 3
    assert placed.with_dtype("complex128").home == placed.home
    again = pickle.loads(pickle.dumps((space, placed)))
    assert again == (space, placed) and again[0].home is LOCAL
    # A product of them lives with its members, wherever it was made.
    product = lo.ProductSpace([placed, placed])
    assert product.home.placed and not lo.ProductSpace([placed, space]).home.placed
    assert product == plan(lo.block_diagonal([lo.Identity(space)] * 2), devices=3).lower().domain
    # Elements in shared memory are arrays of the namespace that is asked for.
    like = torch.zeros(space.shape, dtype=torch.float64)
    for made in (placed.random(1, like), placed.zeros(like), placed.ones(like)):
        assert arrays.is_torch(made) and tuple(made.shape) == space.shape


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mesh(None, (2,), ("x",)), "devices of a mesh is None"),
        (lambda: Mesh(("a",), 1, ("x",)), "shape of a mesh is"),
        (lambda: Mesh(("a",), (1,), "x"), "names of a mesh is"),
        (lambda: Placement(None, 0, 7), "devices of a placement is None"),
        (lambda: Placement("abc", 0, 7), "devices of a placement is"),
    ],
)
def test_arguments_of_another_kind_are_named(make, message) -> None:
    with pytest.raises(PlacementError, match=message):
        make()
