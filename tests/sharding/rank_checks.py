"""Checks that run on every rank of a process group; `test_torch_ranks.py` starts the ranks.

Each check gets the rank and the number of ranks, and compares with the operator that is not
planned, with dense matrices, or with closed forms. All ranks call alike; a rank whose check fails
writes that down and ends, which ends the others.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

sys.path.insert(0, str(Path(__file__).parent))

import compositions

import linops as lo
import sharding
import solvers
from linops import functionals as fn
from linops.errors import PlacementError, ShapeError
from linops.space import inners
from linops.testing import dot_test
from sharding import Placement, agreement
from sharding.executors.torch_ranks import _move
from sharding.ranks import ranks_of
from sharding.states import PARTIAL, REPLICATED, Sharded, Windowed, dual, real_range
from sharding.testing import check_placement
from solvers import cgls

CHECKS: dict[str, Callable[[int, int], None]] = {}


def check(function: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Register a check by its name."""
    CHECKS[function.__name__] = function
    return function


def parts_of(x: Any) -> list[np.ndarray]:
    """Members as NumPy arrays; DTensors are gathered."""
    members = x if isinstance(x, tuple) else (x,)
    return [lo.arrays.to_numpy(m) if lo.arrays.is_array(m) else np.asarray(m) for m in members]


def assert_close(got: Any, wanted: Any, rtol: float = 1e-12) -> None:
    """Members agree to rounding of their largest entry."""
    got, wanted = parts_of(got), parts_of(wanted)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape, (a.shape, b.shape)
        if b.size:
            np.testing.assert_allclose(a, b, rtol=0, atol=rtol * (np.abs(b).max() + 1e-30))


def put(space: Any, x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(m.put(part) for m, part in zip(space.members, x, strict=True))
    return space.put(x)


def raises(kind: type[Exception], words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        call()


def projector(shape: tuple[int, ...], views: int) -> lo.LinearOperator:
    import geometries as ct

    angles = np.linspace(0, np.pi, views, endpoint=False) + 0.1
    detector = ct.Detector((*shape[:-2], 7), pitch=1.5)
    return ct.Projector(ct.ParallelBeam(angles, detector), ct.Grid(shape), precision="float64")


def plan(A: Any, devices: Any = None, executor: str = "torch", *rest: Any, **options: Any) -> Any:
    """`sharding.plan` on the ranks, also where there is one alone."""
    return sharding.plan(A, devices, executor, *rest, **options)


def line_space(n: int) -> lo.Space:
    return lo.Space((n, 4), "float64", ("z", "y"))


def grids(world: int) -> list[Any]:
    return [{"view": None, "y": None}] if world == 4 else []


# --- movements ---------------------------------------------------------------------------


@check
def every_movement_is_right_and_has_its_adjoint(rank: int, world: int) -> None:
    mesh = plan(lo.Identity(line_space(4))).mesh
    line = ranks_of(mesh).lines[0]
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
                y = _move(line, shape, 2, source, target, torch.from_numpy(x)).numpy()
                if source is not window:  # planes that lie in two windows count twice
                    _holds(y, whole, target, rank, world)
                g = np.random.default_rng(100 + rank).standard_normal(y.shape).astype(dtype)
                back = _move(line, shape, 2, dual(target), dual(source), torch.from_numpy(g))
                left, right = np.vdot(y, g), np.vdot(x, back.numpy())
                sums = torch.tensor(np.array([left, right]).astype("complex128"))
                dist.all_reduce(torch.view_as_real(sums))
                a, b = sums.numpy()
                assert abs(a - b) <= 1e-13 * (abs(a) + 10), (source, target, n, a, b)


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


# --- operators ---------------------------------------------------------------------------


def _compares(A: lo.LinearOperator, **options: Any) -> None:
    B = plan(A, **options).lower()
    x, y = A.domain.random(1), A.codomain.random(2)
    forward, backward = A @ x, A.H @ y
    assert_close(B @ x, forward)
    assert_close(B.H @ y, backward)
    placed, back = B @ put(B.domain, x), B.H @ put(B.codomain, y)
    for space, element in ((B.codomain, placed), (B.H.codomain, back)):
        for member, part in zip(
            space.members, element if isinstance(element, tuple) else (element,), strict=True
        ):
            assert member.placement.holds(part), (A, member.placement, part)
    assert_close(placed, forward)
    assert_close(back, backward)


@check
def compositions_give_the_numbers_of_the_operator(rank: int, world: int) -> None:
    for number, make in enumerate(compositions.LINEAR.values()):
        if world < 4 or number % 2 == 0:
            _compares(make())


@check
def any_partition_any_size(rank: int, world: int) -> None:
    for shape, views in (((5, 4), 5), ((3, 3, 4), 5), ((1, 4), 1)):
        A = projector(shape, views)
        for partition in ["view", "y", *grids(world)]:
            _compares(A, partition=partition)
        if len(shape) == 3 and world == 4:
            _compares(A, partition={"view": 2, "z": 2})
            _compares(A.gram(), partition={"view": 2, "z": 2})
        _compares(A.gram(), partition="view")
        _compares(lo.vstack([A, lo.Gradient(A.domain)]))
    if world == 2:
        for partition in ("x", "col"):
            _compares(projector((5, 4), 5), partition=partition)
        for partition in ("view", "row"):
            _compares(compositions.projector(), partition=partition)


@check
def stencils_of_any_reach_on_any_size(rank: int, world: int) -> None:
    rng = np.random.default_rng(0)
    for n, reach, boundary in itertools.product((7, 3, 1), (1, 3), ("zero", "periodic")):
        S = lo.Convolve(line_space(n), rng.standard_normal((2 * reach + 1, 1)), boundary=boundary)
        _compares(S, partition="z")
        _compares(S @ S, partition="z")
    for n in (7, 3, 1):
        G = lo.Gradient(line_space(n))
        _compares(G, partition="z")
        _compares(G.gram(), partition="z")
        _compares(compositions.diffusion(line_space(n), 2), partition="z")


@check
def complex_spaces_and_complex_data(rank: int, world: int) -> None:
    space = lo.Space((7, 4), "complex128", ("z", "y"))
    kernel = np.random.default_rng(1).standard_normal((3, 1)) + 0.5j
    S = lo.Convolve(space, kernel, boundary="periodic")
    _compares(S, partition="z")
    G = lo.Gradient(line_space(5))
    B = plan(G, partition="z").lower()
    x = G.domain.random(1) + 1j * G.domain.random(2)
    assert_close(B @ x, G @ x)
    assert_close(B @ torch.from_numpy(x), G @ x)


@check
def batches_keep_their_axes(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    B = plan(A, partition="view").lower()
    for batch in ((3,), (2, 1), (0,)):
        x = np.random.default_rng(1).standard_normal((*batch, *A.domain.shape))
        y = np.random.default_rng(2).standard_normal((*batch, *A.codomain.shape))
        assert_close(B @ x, A @ x)
        assert_close(B.H @ B.codomain.put(y), A.H @ y)
    value = B.domain.inner(B.domain.put(x), B.domain.put(x))
    assert tuple(value.shape) == (0,)


@check
def bands_and_owner_computed_plans(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    _compares(A, chunks={"view": 2})
    x, y = A.domain.random(1), A.codomain.random(2)
    B = plan(A, deterministic=True).lower()
    assert np.array_equal(lo.arrays.to_numpy(B @ B.domain.put(x)), A @ x)
    assert np.array_equal(lo.arrays.to_numpy(B.H @ B.codomain.put(y)), A.H @ y)


@check
def check_placement_passes(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    dot_test(plan(A).lower())
    if world == 2:
        check_placement(A, plan(A, partition="view"))
        prior = fn.TotalVariation(A.domain)
        check_placement(prior, plan(prior, partition="y"))


@check
def inner_products_count_every_entry_once(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    for partition in ["view", "y", *grids(world)]:
        B = plan(A, partition=partition).lower()
        for space, plain in ((B.domain, A.domain), (B.codomain, A.codomain)):
            a, b = plain.random(1), plain.random(2)
            wanted = np.vdot(a, b)
            got = space.inner(space.put(a), space.put(b))
            assert isinstance(got, float)
            assert abs(got - wanted) < 1e-12
            assert abs(space.norm(a) - np.linalg.norm(a)) < 1e-12
            (first, second) = inners((space, space.put(a), space.put(b)), (space, a, a))
            assert abs(float(first) - wanted) < 1e-12
            assert abs(float(second) - np.vdot(a, a)) < 1e-12
            assert_close(space.random(3), plain.random(3), 0)
            assert space.norm(space.ones()) ** 2 == plain.size or plain.size not in (16, 25)
    product = plan(lo.vstack([A, A]), partition="view").lower().codomain
    pair = product.random(4)
    wanted = sum(np.vdot(part, part) for part in parts_of(pair))
    assert abs(product.norm(pair) ** 2 - wanted) < 1e-10


@check
def cotangents_in_another_state_are_redistributed(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    B = plan(A, partition="view").lower()
    y = A.codomain.random(1)
    whole = B.codomain.put(y).redistribute(placements=[Replicate()])
    assert_close(B.H @ whole, A.H @ y)
    summand = torch.from_numpy(y if rank == 0 else 0 * y)
    partial = DTensor.from_local(summand, whole.device_mesh, [Partial()], run_check=False)
    assert_close(B.H @ partial, A.H @ y)
    x = B.domain.put(A.domain.random(2)).requires_grad_()
    for state in (Replicate(), Shard(1)):
        z = (B @ x).redistribute(placements=[state])
        (g,) = torch.autograd.grad((z * z).sum(), x)
        assert g.placements == x.placements
        assert_close(g, 2 * (A.H @ (A @ A.domain.random(2))))


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
            with counting(world) as sent:
                call()
            total = torch.tensor(sum(sent))
            dist.all_reduce(total)
            wanted = sum(map(program.volume, program.steps))
            assert int(total) == wanted, (operator, partition, int(total), wanted)


@contextlib.contextmanager
def counting(world: int) -> Iterator[list[int]]:
    """The bytes that this rank sends to others, without the agreements of fixed size."""
    sent: list[int] = []
    gather, exchange, post = agreement.gather_rows, dist.all_to_all_single, dist.batch_isend_irecv

    def counted_gather(out: Any, rows: Any, group: Any = None) -> None:
        if group is not None:
            sent.append(rows.nbytes * (world - 1))
        gather(out, rows, group)

    def counted_exchange(
        out: Any, rows: Any, receives: Any = None, sends: Any = None, group: Any = None
    ) -> None:
        own = rows.nbytes // world
        if sends is not None:
            own = sends[dist.get_rank()] * rows.nbytes // max(sum(sends), 1)
        sent.append(rows.nbytes - own)
        exchange(out, rows, receives, sends, group=group)

    def counted_post(operations: list[Any]) -> Any:
        sent.extend(o.tensor.nbytes for o in operations if o.op is dist.isend)
        return post(operations)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "gather_rows", counted_gather)
        patch.setattr(dist, "all_to_all_single", counted_exchange)
        patch.setattr(dist, "batch_isend_irecv", counted_post)
        yield sent


# --- derivatives -------------------------------------------------------------------------


@check
def autograd_through_dtensors(rank: int, world: int) -> None:
    for shape, views, partition in (
        ((5, 4), 5, "view"),
        ((5, 4), 5, "y"),
        ((1, 4), 1, "view"),
        *(((5, 4), 5, grid) for grid in grids(world)),
    ):
        A = projector(shape, views)
        B = plan(A, partition=partition).lower()
        x, v, d = A.domain.random(1), A.domain.random(2), A.codomain.random(3)
        gradient, curved = 2 * (A.H @ (A @ x - d)), 2 * (A.H @ (A @ v))
        X, V, D = B.domain.put(x).requires_grad_(), B.domain.put(v), B.codomain.put(d)
        (g,) = torch.autograd.grad(((B @ X - D) ** 2).sum(), X, create_graph=True)
        assert g.placements == X.placements
        assert_close(g, gradient)
        (h,) = torch.autograd.grad((g * V).sum(), X, retain_graph=True)
        assert_close(h, curved)
        (h,) = torch.autograd.grad(B.domain.inner(g, V), X)
        assert_close(h, curved)
        misfit = B.codomain.norm(B @ X - D)
        (g,) = torch.autograd.grad(misfit, X)
        assert_close(g, gradient / 2 / np.linalg.norm(A @ x - d))
        plain = torch.from_numpy(x).requires_grad_()
        ((B @ plain - torch.from_numpy(d)) ** 2).sum().backward()
        assert_close(plain.grad, gradient)


@check
def autograd_through_members_of_products(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    G = lo.Gradient(A.domain)
    K = lo.vstack([A, G])
    B = plan(K).lower()
    x = A.domain.random(1)
    X = B.domain.put(x).requires_grad_()
    p, q = B @ X
    ((p**2).sum() + (q**2).sum()).backward()
    assert_close(X.grad, 2 * (A.H @ (A @ x)) + 2 * (G.H @ (G @ x)))


@check
def transforms_of_torch_on_local_parts(rank: int, world: int) -> None:
    func = torch.func
    for shape, views, partition in (
        ((5, 4), 5, "view"),
        ((5, 4), 5, "y"),
        ((1, 4), 1, "view"),
        *(((5, 4), 5, grid) for grid in grids(world)),
    ):
        A = projector(shape, views)
        B = plan(A, partition=partition).lower()
        P, Q = B.domain.placement, B.codomain.placement
        L = B.local
        x, v, d = A.domain.random(1), A.domain.random(2), A.codomain.random(3)
        lx, lv, ld = P.put(x).to_local(), P.put(v).to_local(), Q.put(d).to_local()
        lg = P.put(A.H @ (A @ x - d)).to_local()
        lh = P.put(A.H @ (A @ v)).to_local()
        lAv = Q.put(A @ v).to_local()

        def loss(t: Any, L: Any = L, ld: Any = ld, Q: Any = Q) -> Any:
            return ((L @ t - ld) ** 2).sum() / 2 / Q.replicas

        assert L.domain.shape == tuple(lx.shape)
        assert L.codomain.shape == tuple(ld.shape)
        assert_close(L @ lx, Q.put(A @ x).to_local())
        assert_close(L.H @ ld, P.put(A.H @ d).to_local())
        assert_close(func.grad(loss)(lx), lg)
        assert_close(func.jvp(L, (lx,), (lv,))[1], lAv)
        assert_close(func.vjp(L, lx)[1]((L @ lx - ld) / Q.replicas)[0], lg)
        assert_close(func.jvp(func.grad(loss), (lx,), (lv,))[1], lh)
        assert_close(func.grad(lambda t: func.jvp(loss, (t,), (lv,))[1])(lx), lh)
        assert_close(func.grad(lambda t: (func.grad(loss)(t) * lv).sum() / P.replicas)(lx), lh)
        several = torch.stack([lx, lv, -lx])
        assert_close(func.vmap(L)(several)[1], lAv)
        assert_close(func.vmap(L, in_dims=1, out_dims=1)(several.movedim(0, 1))[:, 1], lAv)
        assert_close(func.vmap(func.vmap(L))(several[None])[0, 1], lAv)
        assert_close(func.vmap(func.grad(loss))(several)[0], lg)
        leaf = lx.clone().requires_grad_()
        (g,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
        assert_close(g.detach(), lg)
        (h,) = torch.autograd.grad((g * lv).sum() / P.replicas, leaf)
        assert_close(h, lh)
        assert_close(func.vjp(lambda t: B @ t, torch.from_numpy(x))[1](torch.from_numpy(d))[0],
                     A.H @ d)  # fmt: skip


@check
def dtensors_in_torch_func_are_refused(rank: int, world: int) -> None:
    B = plan(projector((5, 4), 5), partition="view").lower()
    X = B.domain.put(B.plan.operator.domain.random(1))
    raises(PlacementError, "B.local", lambda: torch.func.grad(lambda t: (B @ t).sum())(X))
    raises(PlacementError, "B.local", lambda: torch.func.vmap(lambda t: B @ t)(X[None]))


@check
def losses_of_local_parts_count_copies(rank: int, world: int) -> None:
    """The table of divisors: what `placement.replicas` says, for images and projections."""
    A = projector((3, 3, 4), 5)
    x, y = A.domain.random(1), A.codomain.random(2)
    rows = [("view", (REPLICATED,), (Sharded(0),), 1, world)]
    rows += [("z", (Sharded(0),), (REPLICATED,), world, 1)]
    if world == 4:
        split = {"view": 2, "z": 2}
        rows += [(split, (REPLICATED, Sharded(0)), (Sharded(0), REPLICATED), 2, 2)]
    for partition, image, projections, for_projections, for_images in rows:
        p = plan(A, partition=partition).again(A, entries=[image], exits=[projections])
        B = p.lower()
        P, Q = p.domain_placement, p.codomain_placement
        assert (Q.replicas, P.replicas) == (for_projections, for_images)
        lx = P.put(x).to_local().requires_grad_()
        ((B.local @ lx) ** 2).sum().div(for_projections).backward()
        assert_close(lx.grad, P.put(2 * (A.H @ (A @ x))).to_local())
        ly = Q.put(y).to_local().requires_grad_()
        ((B.local.H @ ly) ** 2).sum().div(for_images).backward()
        assert_close(ly.grad, Q.put(2 * (A @ (A.H @ y))).to_local())
        # DTensor's own to_local takes cotangents of copies as copies, unless told to add them.
        X = P.put(x).requires_grad_()
        ((B @ X).to_local() ** 2).sum().backward()
        assert_close(X.grad, 2 * (A.H @ (A @ x)))
        X = P.put(x).requires_grad_()
        adding = [Partial() if isinstance(s, Replicate) else s for s in Q.sharding]
        ((B @ X).to_local(grad_placements=adding) ** 2).sum().div(for_projections).backward()
        assert_close(X.grad, 2 * (A.H @ (A @ x)))


@check
def a_mean_is_a_sum_over_a_global_count(rank: int, world: int) -> None:
    A = projector((5, 4), 7)
    B = plan(A, partition="view").lower()
    x = A.domain.random(1)
    X = B.domain.put(x).requires_grad_()
    y = B @ X
    value = B.codomain.inner(y, y) / B.codomain.size
    value.backward()
    assert abs(float(value.detach().full_tensor()) - np.mean((A @ x) ** 2)) < 1e-12
    assert_close(X.grad, 2 * (A.H @ (A @ x)) / A.codomain.size)


@check
def weights_that_learn_get_their_whole_gradient(rank: int, world: int) -> None:
    A = projector((5, 4), 3)  # with 4 ranks one has no view
    w = torch.from_numpy(np.random.default_rng(3).random(A.codomain.shape)).requires_grad_()
    x = A.domain.random(1)
    for partition in ("view", "y"):
        B = plan(lo.Diagonal(w, A.codomain) @ A, partition=partition).lower()
        w.grad = None
        ((B @ B.domain.put(x)) ** 2).sum().backward()
        wanted = 2 * w.detach().numpy() * (A @ x) ** 2
        assert_close(w.grad, wanted)
        w.grad = None
        X = B.domain.put(x).requires_grad_()
        ((B @ X) ** 2).sum().backward()
        assert_close(w.grad, wanted)
        assert_close(X.grad, 2 * (A.H @ (w.detach().numpy() ** 2 * (A @ x))))
        w.grad = None
        B.codomain.norm(B @ torch.from_numpy(x)).square().backward()
        assert_close(w.grad, wanted)


# --- functionals and nonlinear operators ---------------------------------------------------


def _functionals() -> dict[str, Any]:
    A = projector((5, 4), 5)
    V, W = A.domain, A.codomain
    misfit = fn.LeastSquares(W).shifted(W.random(9)) @ A
    return {
        "misfit": misfit,
        "total variation": fn.TotalVariation(V),
        "qggmrf": fn.QGGMRF(V),
        "l2": fn.Huber(V, 0.1),
        "misfit and prior": misfit + 0.3 * fn.QGGMRF(V),
    }


@check
def functionals_are_global_with_the_right_derivative(rank: int, world: int) -> None:
    for f in _functionals().values():
        x = f.domain.random(1)
        value, gradient = f(x), f.gradient(x)
        for partition in ("auto", "y"):
            F = plan(f, partition=partition).lower()
            X = F.domain.put(x)
            assert isinstance(F(x), float)
            assert abs(F(x) - value) <= 1e-12 * abs(value)
            assert abs(F(X) - value) <= 1e-12 * abs(value)
            assert_close(F.gradient(X), gradient)
            assert_close(F.gradient(x), gradient)
            X = F.domain.put(x).requires_grad_()
            recorded = F(X)
            assert recorded.placements == (Replicate(),)
            (2 * recorded).backward()
            assert X.grad.placements == X.placements
            assert_close(X.grad, 2 * gradient)
            plain = torch.from_numpy(x).requires_grad_()
            F(plain).backward()
            assert_close(plain.grad, gradient)
            local = F.domain.put(x).to_local()
            got = torch.func.grad(lambda t, F=F: F.local(t) / world)(local)
            assert_close(got, F.domain.put(gradient).to_local())


@check
def total_variation_of_faces_is_exact(rank: int, world: int) -> None:
    space = lo.Space((5, 4), "float64", ("y", "x"))
    step = np.zeros(space.shape)
    step[2:] = 3.0  # one face of 4 cells, jump 3
    prior = fn.L1(lo.Gradient(space).codomain) @ lo.Gradient(space)
    F = plan(prior, partition="y").lower()
    assert abs(F(F.domain.put(step)) - 12.0) < 2e-10
    X = F.domain.put(step).requires_grad_()
    smooth = fn.TotalVariation(space)
    T = plan(smooth, partition="y").lower()
    T(X).backward()
    assert_close(X.grad, smooth.gradient(step), 2e-10)


@check
def jacobians_of_plans(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    N = lo.transmission(A, 2.0)
    x, v, y = A.domain.random(1), A.domain.random(2), A.codomain.random(3)
    for partition in ("view", "auto"):
        B = plan(N, partition=partition).lower()
        X = B.domain.put(x)
        assert_close(B(X), N(x))
        J, wanted = B.jacobian(X), N.jacobian(x)
        assert_close(J @ B.domain.put(v), wanted @ v)
        assert_close(J.H @ B.codomain.put(y), wanted.H @ y)
        X = X.clone().requires_grad_()
        (B(X) * B.codomain.put(y)).sum().backward()
        assert_close(X.grad, wanted.H @ y)


@check
def gauss_newton_steps_agree(rank: int, world: int) -> None:
    A = projector((5, 4), 9)
    N = lo.transmission(A, 2.0)
    x = 0.1 * A.domain.random(1)
    data = N(0.1 * A.domain.random(2))
    B = plan(N, partition="view").lower()
    residual = data - N(x)
    wanted = cgls(N.jacobian(x), residual, iterations=5).solution
    got = cgls(B.jacobian(B.domain.put(x)), B.codomain.put(residual), iterations=5).solution
    assert_close(got, wanted, 1e-9)


# --- solvers ------------------------------------------------------------------------------


@check
def cgls_iterates_agree_after_thirty_steps(rank: int, world: int) -> None:
    A = projector((6, 5), 9)
    y = A @ A.domain.random(1) + 0.01 * A.codomain.random(2)
    # Damped, so that rounding is not magnified by directions that the data do not see.
    reference = cgls(A, y, iterations=30, damp=3.0)
    for partition in ["view", *grids(world)]:
        B = plan(A, partition=partition).lower()
        placed = cgls(B, B.codomain.put(y), iterations=30, damp=3.0)
        assert B.domain.placement.holds(placed.solution)
        assert_close(placed.solution, reference.solution, 1e-9)
        plain = cgls(B, y, iterations=30, damp=3.0)
        assert not isinstance(plain.solution, DTensor)
        assert_close(plain.solution, reference.solution, 1e-9)
        np.testing.assert_allclose(
            placed.residual_history, reference.residual_history, rtol=1e-9, atol=1e-12
        )


@check
def other_solvers(rank: int, world: int) -> None:
    A = projector((6, 5), 9)
    y = A @ np.abs(A.domain.random(1))
    B = plan(A, partition="view").lower()
    for solve in (
        lambda A, y: solvers.sirt(A, y, iterations=4),
        lambda A, y: solvers.tv(A, y, weight=0.1, iterations=3),
    ):
        assert_close(solve(B, B.codomain.put(y)).solution, solve(A, y).solution, 1e-8)


@check
def measurements_that_are_not_finite_are_refused_by_all(rank: int, world: int) -> None:
    A = projector((6, 5), 9)
    y = A @ A.domain.random(1)
    y[-1, 2] = np.nan  # in the share of one rank
    B = plan(A, partition="view").lower()
    for data in (y, B.codomain.put(y)):
        raises(ValueError, "is nan", lambda data=data: cgls(B, data, iterations=2))
    _all_good(rank)


# --- together ------------------------------------------------------------------------------


def _all_good(rank: int) -> None:
    A = projector((5, 4), 5)
    B = plan(A, partition="view").lower()
    assert_close(B @ A.domain.random(1), A @ A.domain.random(1))


@check
def one_bad_rank_and_all_raise(rank: int, world: int) -> None:
    if world == 1:
        return
    A = projector((5, 4), 5)
    B = plan(A, partition="view").lower()
    bad = rank == world - 1
    x = A.domain.random(1)

    def elsewhere(kind: type[Exception]) -> type[Exception]:
        return kind if bad else PlacementError

    wrong = x[:3] if bad else x
    raises(elsewhere(ShapeError), "expects", lambda: B @ wrong)
    _all_good(rank)
    raises(elsewhere(ShapeError), "expects", lambda: B.domain.inner(wrong, x))
    placement = Placement(B.plan.devices, 0, 5, ndim=2)
    raises(PlacementError, "planes", lambda: placement.put(wrong))
    raises(elsewhere(ShapeError), "expects", lambda: B.H @ (x if bad else A.codomain.random(1)))
    local = B.domain.put(x).to_local()
    raises(elsewhere(ShapeError), "expects", lambda: B.local @ (local[:1] if bad else local))
    _all_good(rank)
    raises(PlacementError, "different things", lambda: plan(A, partition="y" if bad else "view"))
    raises(PlacementError, "different things", lambda: plan(A, chunks={"view": 1 if bad else 2}))
    raises(PlacementError, "no leaf has", lambda: plan(A, partition="time"))
    raises(PlacementError, "different things",
           lambda: plan(A.with_precision("float32") if bad else A, partition="view"))  # fmt: skip
    raises(PlacementError, "different things",
           lambda: B @ B.domain.put(x)[None].repeat(2 if bad else 3, 1, 1))  # fmt: skip
    _all_good(rank)


@check
def a_failure_in_the_middle_reaches_every_rank(rank: int, world: int) -> None:
    if world == 1:
        return
    space = lo.Space((world, 3), "float64", ("z", "y"))

    def broken(x: Any) -> Any:
        if rank == 1:
            raise ArithmeticError("no result here")
        return x

    L = lo.from_functions(
        broken, broken, domain=space, codomain=space, rule="z y -> z y", blockwise=True
    )
    S = lo.Convolve(space, np.ones((3, 1)))
    B = plan(S @ L @ S, partition="z").lower()
    started = datetime.datetime.now()
    raises(
        ArithmeticError if rank == 1 else PlacementError, "no result here",
        lambda: B @ space.random(1),
    )  # fmt: skip
    assert datetime.datetime.now() - started < datetime.timedelta(seconds=20)
    _all_good(rank)


@check
def grids_that_do_not_fit_are_refused_by_all(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    raises(PlacementError, "takes 6 devices", lambda: plan(A, None, "torch", {"view": 2, "y": 3}))
    if world > 1:
        raises(PlacementError, "takes 1 devices", lambda: plan(A, partition={"view": 1, "y": 1}))
    if world == 4:
        p = plan(A, partition={"view": None, "y": None})
        assert p.mesh.shape == (2, 2)
        assert ranks_of(p.mesh).at == (rank // 2, rank % 2)
    _all_good(rank)


@check
def ranks_in_another_order_are_refused(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    for devices in (list(range(world))[::-1], [0]):
        if devices != list(range(world)):
            raises(PlacementError, "in their order", lambda: plan(A, devices, "torch"))
    _all_good(rank)


def _latecomer(rank: int, world: int, folder: Path) -> None:
    """A rank that does not come is named once the group's time is up."""
    from sharding.agreement import settle

    dist.destroy_process_group()
    start(rank, world, folder / "late", seconds=3)
    settle("all here")
    if rank == 1:
        time.sleep(8)
    else:
        raises(PlacementError, "[1] did not come", lambda: settle("one is missing"))


def start(rank: int, world: int, file: Path, seconds: float) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=seconds),
    )


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    start(rank, world, folder / "group", seconds=20)
    found: dict[str, str] = {}
    names = sys.argv[4:] or [*CHECKS, *(["a_latecomer_is_named"] if world == 2 else [])]
    if world == 2:
        CHECKS["a_latecomer_is_named"] = lambda rank, world: _latecomer(rank, world, folder)
    for name in names:
        try:
            CHECKS[name](rank, world)
            found[name] = ""
            fine = 1
        except (Exception, pytest.fail.Exception):
            found[name] = traceback.format_exc()
            fine = 0
        if name == "a_latecomer_is_named":
            break
        try:
            # Where all failed alike, the next check can run.
            everybody = torch.tensor([fine, 1 - fine])
            dist.all_reduce(everybody)
            if 0 < int(everybody[0]) < world:
                break
        except RuntimeError:
            break
    (folder / f"{rank}.json").write_text(json.dumps(found))
    sys.stdout.flush()
    # Past the threads of the group: a rank that failed ends at once.
    os._exit(1 if any(found.values()) else 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
