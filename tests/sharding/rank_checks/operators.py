"""Operators planned on ranks against the operators themselves."""

from __future__ import annotations

import itertools
from typing import Any

import compositions
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import linops as lo
from geometries import Projector
from linops import functionals as fn
from linops import stencils
from rank_checks.register import assert_close, check, grids, line_space, plan, projector, put
from sharding.array_backends.torch_ranks import RankMemory
from sharding.states import real_range
from sharding.testing import check_placement


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
            assert member.home.placement.holds(part), (A, member.home.placement, part)
    assert_close(placed, forward)
    assert_close(back, backward)


@check
def compositions_give_the_numbers_of_the_operator(rank: int, world: int) -> None:
    for number, make in enumerate(compositions.LINEAR.values()):
        if world == 2 or (number + world) % 2 == 0:
            _compares(make())


@check
def any_partition_any_size(rank: int, world: int) -> None:
    for shape, views in (((5, 4), 5), ((3, 3, 4), 5), ((1, 4), 1)):
        A = projector(shape, views)
        for partition in ["view", "y", *grids(world)]:
            _compares(A, partition=partition)
        if len(shape) == 3 and world == 4:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
            for partition in ({"view": "a", "z": "b"}, "view"):
                p = plan(A, mesh, "auto", partition)
                assert p.executor == "torch" and p.mesh.size == 4
                assert_close(p.lower() @ A.domain.ones(), A @ A.domain.ones())
            p = plan(A, mesh, partition={"view": "a", "z": "b"})
            ones = torch.ones(A.domain.shape, dtype=torch.float64)
            mine = distribute_tensor(ones, mesh, [Replicate(), Shard(0)])
            assert_close(p.lower() @ mine, A @ A.domain.ones())
            _compares(A, partition={"view": 2, "z": 2})
            _compares(A.gram(), partition={"view": 2, "z": 2})
        _compares(A.gram(), partition="view")
        sides = {"domain": "y", "codomain": "view"}
        # One device holds all of it, whatever is asked for.
        cut = len(shape) - 2 if world > 1 else None
        assert plan(A, partition=sides).domain_placement.axes == (cut,)
        _compares(A, partition=sides)
        _compares(lo.vstack([A, lo.Gradient(A.domain)]))
    if world == 2:
        for partition in ("x", "col"):
            _compares(projector((5, 4), 5), partition=partition)
        for partition in ("view", "row"):
            _compares(compositions.projector(), partition=partition)


@check
def stencils_of_any_reach_on_any_size(rank: int, world: int) -> None:
    rng = np.random.default_rng(0)
    sizes = {2: (7, 3, 1), 3: (7, 1), 4: (3,)}.get(world, (7,))
    for n, reach, boundary in itertools.product(sizes, (1, 3), ("zero", "periodic")):
        S = lo.Convolve(line_space(n), rng.standard_normal((2 * reach + 1, 1)), boundary=boundary)
        _compares(S, partition="z")
        if reach == 1:
            _compares(S @ S, partition="z")
    for n in (7, 3, 1):
        G = lo.Gradient(line_space(n))
        _compares(G, partition="z")
        _compares(G.gram(), partition="z")
    _compares(compositions.diffusion(line_space(7), 2), partition="z")
    for boundary in ("periodic", "odd") if world == 2 else ("even",):
        _compares(stencils.Laplacian(line_space(7), 8, boundary), partition="z")
        wave = stencils.AcousticWave(line_space(7), 1.0, 0.5, 2, boundary)
        _compares(wave**3, partition="z")


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
        assert_close(B.H @ B.codomain.home.put(y), A.H @ y)
    value = B.domain.inner(B.domain.home.put(x), B.domain.home.put(x))
    assert tuple(value.shape) == (0,)


@check
def ranks_share_the_leading_axis(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    B = plan(A, partition="batch").lower()
    N = plan(lo.transmission(A, 2.0), partition="batch").lower()
    seen: list[int] = []
    L = lo.from_functions(
        lambda x: seen.append(len(x)) or x, lambda y: y, domain=A.domain, codomain=A.domain,
        rule="y x -> y x", batched=True,
    )  # fmt: skip
    plan(L, partition="batch").lower()(np.zeros((5, *A.domain.shape)))
    first, last = real_range(5, world, rank)
    assert seen == ([last - first] if world > 1 else [5])
    for batch in ((5,), (1, 2), (), (0,)):
        x = np.random.default_rng(1).standard_normal((*batch, *A.domain.shape))
        y = np.random.default_rng(2).standard_normal((*batch, *A.codomain.shape))
        assert_close(B @ x, A @ x)
        assert_close(B.H @ B.codomain.home.put(y), A.H @ y)
        X = N.domain.home.put(x).requires_grad_()
        (N(X) * N.codomain.home.put(y)).sum().backward()
        pairs = zip(x.reshape(-1, 5, 4), y.reshape(-1, *A.codomain.shape), strict=True)
        wanted = [N.plan.operator.jacobian(p).H @ q for p, q in pairs]
        assert_close(X.grad, np.array(wanted).reshape(x.shape))


@check
def bands_and_owner_computed_plans(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    _compares(A, chunks={"view": 2})
    x, y = A.domain.random(1), A.codomain.random(2)
    B = plan(A, deterministic=True).lower()
    assert np.array_equal(lo.arrays.to_numpy(B @ B.domain.home.put(x)), A @ x)
    assert np.array_equal(lo.arrays.to_numpy(B.H @ B.codomain.home.put(y)), A.H @ y)


@check
def squares_are_summed_once(rank: int, world: int) -> None:
    A = projector((12, 14, 14), 15)  # too much work to be done on every rank
    w = A.codomain.random(5) ** 2
    for partition in ["view", {"view": 2, "z": 2}] if world == 4 else ["view", "z"]:
        B = plan(A, partition=partition).lower()
        seen: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            made = Projector._gram_diagonal

            def counted(part: Any, w: Any, seen: Any = seen, made: Any = made) -> Any:
                seen.append(w.numel() * part.domain.size)
                return made(part, w)

            patch.setattr(Projector, "_gram_diagonal", counted)
            W = B.codomain.home.put(w)
            found = B.gram(w).diagonal(), B.gram().diagonal(), B._gram_diagonal(W)
        total = torch.tensor(sum(seen))
        dist.all_reduce(total)
        assert int(total) <= 3 * A.codomain.size * A.domain.size  # no ray meets a voxel twice
        for d, weights in zip(found, (w, None, w), strict=True):
            assert B.domain.home.placement.holds(d)
            assert_close(d, A.gram(weights).diagonal())
        # Between diagonal operators too, and no rank sees the whole.
        S, D = (
            lo.Diagonal(space.random(k), space) for k, space in ((6, A.codomain), (7, A.domain))
        )
        C = plan(S @ A @ D, partition=partition).lower()
        W = C.codomain.home.put(w)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RankMemory, "gather", None)
            d = C._gram_diagonal(W)
        assert_close(d, D.diagonal() ** 2 * A.gram(S.diagonal() ** 2 * w).diagonal())


@check
def check_placement_passes(rank: int, world: int) -> None:
    if world != 2:  # adjoints are compared with those of the operator at any number
        return
    A = projector((3, 2), 3)
    check_placement(A, plan(A, partition="view"))
    prior = fn.TotalVariation(A.domain)
    check_placement(prior, plan(prior, partition="y"))


@check
def cotangents_in_another_state_are_redistributed(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    B = plan(A, partition="view").lower()
    y = A.codomain.random(1)
    whole = B.codomain.home.put(y).redistribute(placements=[Replicate()])
    assert_close(B.H @ whole, A.H @ y)
    summand = torch.from_numpy(y if rank == 0 else 0 * y)
    partial = DTensor.from_local(summand, whole.device_mesh, [Partial()], run_check=False)
    assert_close(B.H @ partial, A.H @ y)
    x = B.domain.home.put(A.domain.random(2)).requires_grad_()
    for state in (Replicate(), Shard(1)):
        z = (B @ x).redistribute(placements=[state])
        (g,) = torch.autograd.grad((z * z).sum(), x)
        assert g.placements == x.placements
        assert_close(g, 2 * (A.H @ (A @ A.domain.random(2))))
