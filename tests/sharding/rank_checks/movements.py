"""Movements and placements on ranks: where shares lie, what goes over the wire."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import linops as lo
from linops import reproducible
from linops.errors import PlacementError
from linops.space import inners
from rank_checks.register import (
    assert_close,
    check,
    grids,
    line_space,
    parts_of,
    plan,
    projector,
    raises,
)
from sharding import Placement, agreement
from sharding.rank_movements import move
from sharding.ranks import ranks_of
from sharding.states import PARTIAL, REPLICATED, Sharded, Windowed, dual, real_range


@check
def every_movement_is_right_and_has_its_adjoint(rank: int, world: int) -> None:
    mesh = plan(lo.Identity(line_space(4))).mesh
    line = ranks_of(mesh).lines[0]
    products, cases = [], []
    for n, dtype, periodic in itertools.product((7, 5, 3, 1), ("float64", "complex128"), (0, 1)):
        if dtype == "complex128" and n != 7:
            continue
        shape = (n, 3)
        for reach in (1, 3):
            ranges = [real_range(n, world, i) for i in range(world)]
            wide = tuple((lo - reach, hi + reach) if lo < hi else (lo, lo) for lo, hi in ranges)
            window = Windowed(0, wide, wide, bool(periodic))
            states = [REPLICATED, PARTIAL, Sharded(0), Sharded(1), window]
            rng = np.random.default_rng(n)
            whole = rng.standard_normal(shape).astype(dtype)
            if dtype == "complex128":
                whole = whole + 1j * rng.standard_normal(shape)
            for source, target in itertools.product(states, states):
                if source == target or (PARTIAL in (source,) and target is window):
                    continue
                if source is window and target in (REPLICATED, Sharded(1)):
                    continue
                if source == Sharded(1) and target is window:
                    continue
                x = _given(whole, source, rank, world)
                y = move(line, shape, 2, source, target, torch.from_numpy(x)).numpy()
                if source is not window:  # planes that lie in two windows count twice
                    _holds(y, whole, target, rank, world)
                g = np.random.default_rng(100 + rank).standard_normal(y.shape).astype(dtype)
                back = move(line, shape, 2, dual(target), dual(source), torch.from_numpy(g))
                left, right = np.vdot(y, g), np.vdot(x, back.numpy())
                products.append((left, right))
                cases.append((source, target, n, dtype))
    totals = torch.tensor(np.array(products, "complex128"))
    dist.all_reduce(torch.view_as_real(totals))
    for case, (a, b) in zip(cases, totals.numpy(), strict=True):
        assert abs(a - b) <= 1e-13 * (abs(a) + 10), (case, a, b)


def _given(whole: np.ndarray, state: Any, rank: int, world: int) -> np.ndarray:
    if state == REPLICATED:
        return whole.copy()
    if state == PARTIAL:
        summands = np.random.default_rng(5).standard_normal((world, *whole.shape))
        summands[-1] = 0
        summands = summands.astype(whole.dtype)
        summands[-1] = whole - summands.sum(axis=0)
        return summands[rank]
    n = whole.shape[state.axis]
    planes = (
        range(*state.planes(rank, n))
        if isinstance(state, Windowed)
        else range(*real_range(n, world, rank))
    )
    return np.take(whole, [p % n for p in planes], axis=state.axis)


def _holds(y: np.ndarray, whole: np.ndarray, state: Any, rank: int, world: int) -> None:
    if state == PARTIAL:
        total = torch.from_numpy(np.array(y).astype("complex128"))
        dist.all_reduce(torch.view_as_real(total))
        y, state = total.numpy(), REPLICATED
    np.testing.assert_allclose(y, _given(whole, state, rank, world), rtol=0, atol=1e-13)


@check
def shares_are_those_of_distribute_tensor(rank: int, world: int) -> None:
    devices = plan(lo.Identity(line_space(4))).devices
    for n in (7, 5, 3, 1):
        placement = Placement(devices, 0, n, ndim=2)
        x = np.random.default_rng(n).standard_normal((n, 4))
        ours = placement.put(x)
        theirs = distribute_tensor(torch.from_numpy(x), ours.device_mesh, [Shard(0)])
        assert ours.placements == theirs.placements == placement.sharding
        assert ours.shape == theirs.shape == x.shape
        assert torch.equal(ours.to_local(), theirs.to_local())
        assert placement.put(ours) is ours
        assert placement.put(theirs) is theirs
        assert np.array_equal(placement.gather(ours).numpy(), x)
        assert np.array_equal(lo.arrays.to_numpy(placement.full(2.0, x.shape)), 0 * x + 2)
        assert placement.zeros(x.shape, "float64").to_local().dtype == torch.float64
        assert bool(placement.mask().to_local().all())
        raises(PlacementError, "planes", lambda placement=placement, x=x: placement.put(x[:0]))


@check
def dtensors_in_any_state_are_put(rank: int, world: int) -> None:
    """From one axis to another by shares, nothing gathered; also the way back of a cotangent."""
    grid = world == 4
    space = lo.Space((5, 4, 3), "float64", ("z", "y", "x"))
    B = plan(lo.Gradient(space), partition={"z": 2, "y": 2} if grid else "z").lower()
    x, v = space.random(1), space.random(2)
    mesh, wanted = ranks_of(B.plan.mesh).device_mesh, B.domain.home.placement.sharding
    V = B.domain.home.put(v)
    for states in itertools.product([Replicate(), Shard(2), Shard(0), Partial()], repeat=mesh.ndim):
        if states.count(Shard(0)) + states.count(Shard(2)) > 1 and states[0] == states[1]:
            continue
        where = [Replicate() if state.is_partial() else state for state in states]
        first = all(
            c == 0 for c, s in zip(mesh.get_coordinate(), states, strict=True) if s.is_partial()
        )
        local = distribute_tensor(torch.from_numpy(x), mesh, where).to_local() * first
        X = DTensor.from_local(
            local, mesh, states, run_check=False, shape=torch.Size(x.shape), stride=(12, 3, 1)
        )
        X = X.detach().requires_grad_()
        with counting() as sent:
            put = B.domain.home.put(X)
        if not grid and states[0] == Shard(2):
            assert sum(sent) <= 5 * 4 * 2 * 8  # its planes of the other ranks' shares, padded
        assert put.placements == wanted
        assert_close(put, x, 0)
        (g,) = torch.autograd.grad((put * V).sum(), X)
        assert g.placements == tuple(where)
        assert_close(g, v, 0)


@check
def inner_products_count_every_entry_once(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    for partition in ["view", "y", *grids(world)]:
        B = plan(A, partition=partition).lower()
        for space, plain in ((B.domain, A.domain), (B.codomain, A.codomain)):
            a, b = plain.random(1), plain.random(2)
            wanted = np.vdot(a, b)
            got = space.inner(space.home.put(a), space.home.put(b))
            assert isinstance(got, float)
            assert abs(got - wanted) < 1e-12
            assert abs(space.norm(a) - np.linalg.norm(a)) < 1e-12
            (first, second) = inners((space, space.home.put(a), space.home.put(b)), (space, a, a))
            assert abs(float(first) - wanted) < 1e-12
            assert abs(float(second) - np.vdot(a, a)) < 1e-12
            assert_close(space.random(3), plain.random(3), 0)
            assert space.norm(space.ones()) ** 2 == plain.size or plain.size not in (16, 25)
    product = plan(lo.vstack([A, A]), partition="view").lower().codomain
    pair = product.random(4)
    wanted = sum(np.vdot(part, part) for part in parts_of(pair))
    assert abs(product.norm(pair) ** 2 - wanted) < 1e-10


@check
def ordered_inner_products_know_no_ranks(rank: int, world: int) -> None:
    """In deterministic plans the bits of one process, whoever has which planes."""
    space = lo.Space((5, 3, 4), "float64", ("z", "y", "x"))
    z = plan(lo.Identity(space), partition="z", deterministic=True).lower().domain
    y = plan(lo.Identity(space), partition="y", deterministic=True).lower().domain
    a, b = space.random(1), space.random(2)
    wanted = reproducible.dot(a, b, 3)
    for placed in (z, y):
        assert placed.inner(placed.home.put(a), placed.home.put(b)) == wanted
        several = np.stack([a, b, a])
        got = placed.inner(placed.home.put(several), placed.home.put(np.stack([b, b, a])))
        assert got[0] == wanted
        assert tuple(got.shape) == (3,)
    turned = a + 1j * b
    wide = lo.Space(space.shape, "complex128", space.axes)
    w = plan(lo.Identity(wide), partition="z", deterministic=True).lower().domain
    assert w.inner(w.home.put(turned), w.home.put(b + 0j)) == reproducible.dot(turned, b + 0j, 3)
    # Several go together, more than fit in one exchange too.
    pairs = [(z, z.home.put(a), z.home.put(b))] * 3 + [(z, z.home.put(b), z.home.put(b))] * 9
    loose = plan(lo.Identity(space), partition="z").lower().domain
    for values in (inners(*pairs), inners(*[(loose, p, q) for _, p, q in pairs])):
        wanted_all = [np.vdot(a, b)] * 3 + [np.vdot(b, b)] * 9
        np.testing.assert_allclose([float(v) for v in values], wanted_all, rtol=1e-13)
    with counting(agreements=True) as sent:
        inners(*[(loose, p, q) for _, p, q in pairs[:6]])
    assert len(sent) == (1 if world > 1 else 0)


@check
def bytes_on_the_wire_are_those_of_the_plan(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    S = lo.Convolve(line_space(7), np.ones((5, 1)), boundary="periodic")
    cases = [(A, "view"), (A, "y"), (A.gram(), "view"), (S, "z"), (lo.Gradient(S.domain), "z")]
    for operator, partition in cases:
        p = plan(operator, partition=partition)
        B = p.lower()
        x, y = B.domain.random(1), B.codomain.random(2)
        for program, call in ((p.forward, lambda: B @ x), (p.adjoint, lambda: B.H @ y)):
            if "self_adjoint" in B.tags and program is p.adjoint:
                continue
            with counting() as sent:
                call()
            total = torch.tensor(sum(sent))
            dist.all_reduce(total)
            wanted = sum(map(program.volume, program.steps))
            assert int(total) == wanted, (operator, partition, int(total), wanted)


@contextlib.contextmanager
def counting(agreements: bool = False) -> Iterator[list[int]]:
    """The bytes of each exchange of this rank, without the agreements of fixed size."""
    sent: list[int] = []
    gather, exchange, post = agreement.gather_rows, dist.all_to_all_single, dist.batch_isend_irecv

    def counted_gather(out: Any, rows: Any, group: Any = None, **options: Any) -> Any:
        if agreements or group is not None:
            sent.append(rows.nbytes * (dist.get_world_size(group) - 1))
        return gather(out, rows, group, **options)

    def counted_exchange(
        out: Any,
        rows: Any,
        receives: Any = None,
        sends: Any = None,
        group: Any = None,
        **options: Any,
    ) -> Any:
        own = rows.nbytes // dist.get_world_size(group)
        if sends is not None:
            own = sends[dist.get_rank(group)] * rows.nbytes // max(sum(sends), 1)
        sent.append(rows.nbytes - own)
        return exchange(out, rows, receives, sends, group=group, **options)

    def counted_post(operations: list[Any]) -> Any:
        sent.extend(o.tensor.nbytes for o in operations if o.op is dist.isend)
        return post(operations)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "gather_rows", counted_gather)
        patch.setattr(dist, "all_to_all_single", counted_exchange)
        patch.setattr(dist, "batch_isend_irecv", counted_post)
        yield sent
