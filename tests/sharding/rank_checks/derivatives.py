"""Derivatives on ranks: through DTensors, and of local parts under `torch.func`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.tensor import Partial, Replicate

import geometries as ct
import linops as lo
from linops.errors import PlacementError
from rank_checks.register import assert_close, check, plan, projector, raises, scans
from sharding import agreement
from sharding.states import REPLICATED, Sharded
from sharding.steps import AllGather, AllReduce, Movement


@check
def autograd_through_dtensors(rank: int, world: int) -> None:
    for shape, views, partition in scans(world):
        A = projector(shape, views)
        B = plan(A, partition=partition).lower()
        x, v, d = A.domain.random(1), A.domain.random(2), A.codomain.random(3)
        gradient, curved = 2 * (A.H @ (A @ x - d)), 2 * (A.H @ (A @ v))
        home = B.domain.home
        X, V, D = home.put(x).requires_grad_(), home.put(v), B.codomain.home.put(d)
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
    X = B.domain.home.put(x).requires_grad_()
    p, q = B @ X
    ((p**2).sum() + (q**2).sum()).backward()
    assert_close(X.grad, 2 * (A.H @ (A @ x)) + 2 * (G.H @ (G @ x)))


@check
def transforms_of_torch_on_local_parts(rank: int, world: int) -> None:
    func = torch.func
    for shape, views, partition in scans(world):
        A = projector(shape, views)
        B = plan(A, partition=partition).lower()
        P, Q = B.domain.home.placement, B.codomain.home.placement
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
    X = B.domain.home.put(B.plan.operator.domain.random(1))
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
def angles_that_learn_get_their_whole_gradient(rank: int, world: int) -> None:
    """Geometry gradients arrive summed over all ranks."""
    given = np.linspace(0, np.pi, 5, endpoint=False) + 0.1
    x = np.random.default_rng(0).random((5, 4))

    def scanned(angles: Any) -> lo.LinearOperator:
        beam = ct.ParallelBeam(angles, ct.Detector(7, pitch=1.5))
        return ct.Projector(beam, ct.Grid((5, 4)), precision="float64")

    alone = torch.tensor(given, requires_grad=True)
    (scanned(alone)(torch.from_numpy(x)) ** 2).sum().backward()
    angles = torch.tensor(given, requires_grad=True)
    B = plan(scanned(angles), partition="view" if world % 2 else "y").lower()
    X = B.domain.home.put(x).requires_grad_()
    ((B @ X) ** 2).sum().backward()
    assert_close(angles.grad, alone.grad)
    A = scanned(given)
    assert_close(X.grad, 2 * (A.H @ (A @ x)))


@check
def hybrid_ownership_from_end_to_end(rank: int, world: int) -> None:
    """Volumes cut over space ranks, projections over view ranks, also empty shares."""
    if world != 4:
        return
    for shape, views in (((5, 4), 5), ((3, 3, 4), 5), ((1, 4), 1)):
        A = projector(shape, views)
        space = "y" if len(shape) == 2 else "z"
        p = plan(A, partition={"view": 2, space: 2}).again(
            A, entries=[(REPLICATED, Sharded(0))], exits=[(Sharded(0), REPLICATED)]
        )
        moves = [
            [(type(s), s.mesh_axis) for s in program.steps if isinstance(s, Movement)]
            for program in (p.forward, p.adjoint)
        ]
        # No volume is gathered: sums over space ranks, forward, and over view ranks, adjoint. Where
        # rows are slices each space rank has its own, and the rows are joined.
        if views > 1:
            assert moves[0] == [(AllGather if len(shape) == 3 else AllReduce, 1)], moves
            assert not any(kind is AllGather for kind, _ in moves[1]), moves
        assert (AllReduce, 0) in moves[1], moves
        B = p.lower()
        P, Q = p.domain_placement, p.codomain_placement
        assert (P.replicas, Q.replicas) == (2, 2)
        x, y = A.domain.random(1), A.codomain.random(2)
        assert_close(B @ P.put(x), A @ x, 2e-10)
        gather, gathered = agreement.gather_rows, [0]

        def seen(out: Any, rows: Any, group: Any = None, async_op: bool = False) -> Any:
            gathered.append(0 if group is None else out.nbytes)  # None: an agreement
            return gather(out, rows, group, async_op)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(agreement, "gather_rows", seen)
            back = B.H @ Q.put(y)
        assert_close(back, A.H @ y, 2e-10)
        if views > 1:  # a single view may be gathered
            assert max(gathered) <= 8 * A.domain.size // min(shape)  # a face
        part = P.put(x).to_local()
        value, back = torch.func.vjp(B.local, part)
        (g,) = back(Q.put(y).to_local() / Q.replicas)
        assert_close(value, Q.put(A @ x).to_local(), 2e-10)
        assert_close(g, P.put(A.H @ y).to_local(), 2e-10)
        edges = lo.L1(lo.Gradient(A.domain).codomain) @ lo.Gradient(A.domain)
        step = np.zeros(shape)
        step[..., 2:] = 3.0  # faces of jump 3, as many as rows
        faces = B.domain.lower(edges)(P.put(step))
        assert abs(faces - 3.0 * step[..., 0].size) < 2e-10


@check
def a_mean_is_a_sum_over_a_global_count(rank: int, world: int) -> None:
    A = projector((5, 4), 7)
    B = plan(A, partition="view").lower()
    x = A.domain.random(1)
    X = B.domain.home.put(x).requires_grad_()
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
        ((B @ B.domain.home.put(x)) ** 2).sum().backward()
        wanted = 2 * w.detach().numpy() * (A @ x) ** 2
        assert_close(w.grad, wanted)
        w.grad = None
        X = B.domain.home.put(x).requires_grad_()
        ((B @ X) ** 2).sum().backward()
        assert_close(w.grad, wanted)
        assert_close(X.grad, 2 * (A.H @ (w.detach().numpy() ** 2 * (A @ x))))
        w.grad = None
        B.codomain.norm(B @ torch.from_numpy(x)).square().backward()
        assert_close(w.grad, wanted)
