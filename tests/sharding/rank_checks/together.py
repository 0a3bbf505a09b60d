"""All ranks raise or none, and the group can be used again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import linops as lo
from linops.errors import PlacementError, ShapeError
from rank_checks.register import all_good, assert_close, check, plan, projector, raises
from sharding import Placement, memory
from sharding.executors import torch_ranks
from sharding.ranks import ranks_of


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
    all_good(rank)
    raises(elsewhere(ShapeError), "expects", lambda: B.domain.inner(wrong, x))
    placement = Placement(B.plan.devices, 0, 5, ndim=2)
    raises(PlacementError, "planes", lambda: placement.put(wrong))
    raises(elsewhere(ShapeError), "expects", lambda: B.H @ (x if bad else A.codomain.random(1)))
    local = B.domain.home.put(x).to_local()
    raises(elsewhere(ShapeError), "expects", lambda: B.local @ (local[:1] if bad else local))
    all_good(rank)
    raises(PlacementError, "different things", lambda: plan(A, partition="y" if bad else "view"))
    raises(PlacementError, "different things", lambda: plan(A, chunks={"view": 1 if bad else 2}))
    raises(PlacementError, "no leaf has", lambda: plan(A, partition="time"))
    raises(PlacementError, "different things",
           lambda: plan(A.with_precision("float32") if bad else A, partition="view"))  # fmt: skip
    turned = projector((5, 4), 5, turn=0.1 if bad else 0.0)  # metadata that differ
    raises(PlacementError, "different things", lambda: plan(turned, partition="view"))
    raises(PlacementError, "different things",
           lambda: B @ B.domain.home.put(x)[None].repeat(2 if bad else 3, 1, 1))  # fmt: skip
    several = torch.stack([local] * (2 if bad else 3))
    raises(PlacementError, "different things", lambda: torch.func.vmap(B.local)(several))
    raises(PlacementError, "different things", lambda: B.local(local.float() if bad else local))
    alone = local.clone().requires_grad_(bad)  # flags: the others would never run backward
    raises(PlacementError, "with a gradient", lambda: B.local(alone))
    X = B.domain.home.put(x).requires_grad_(bad)
    raises(PlacementError, "with a gradient", lambda: B @ X)
    w = torch.ones(A.codomain.shape, dtype=torch.float64).requires_grad_(bad)
    D = lo.Diagonal(w, A.codomain)
    C = plan(D @ A, partition="view").lower()
    raises(PlacementError, "of trained arrays", lambda: C @ B.domain.home.put(x))
    all_good(rank)


@check
def a_failure_in_the_middle_reaches_every_rank(rank: int, world: int) -> None:
    if world == 1:
        return
    space = lo.Space((world, 3), "float64", ("z", "y"))

    kind: type[Exception] = ArithmeticError

    def broken(x: Any) -> Any:
        if rank == 1:
            raise kind("no result here" if kind is ArithmeticError else "out of memory")
        return x

    L = lo.from_functions(
        broken, broken, domain=space, codomain=space, rule="z y -> z y", blockwise=True
    )
    S = lo.Convolve(space, np.ones((3, 1)))
    B = plan(S @ L @ S, partition="z").lower()
    started = time.monotonic()
    x = space.random(1)
    raises(ArithmeticError if rank == 1 else PlacementError, "no result here", lambda: B @ x)
    kind = MemoryError  # one rank's memory is at its end: told with the plan's prediction
    raises(MemoryError, "its plan needs", lambda: B @ x)
    assert time.monotonic() - started < 15
    all_good(rank)


@check
def a_rank_without_memory_stops_all_before_they_exchange(rank: int, world: int) -> None:
    if world == 1:
        return
    A = projector((5, 4), 5)
    B = plan(A, partition="view").lower()
    x = B.domain.home.put(A.domain.random(1))
    free = 10.0 if rank == world - 1 else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "SMALL", 0)
        patch.setattr(torch_ranks, "free_beside", lambda _: free)
        raises(MemoryError, "its plan needs", lambda: B @ x)
    all_good(rank)
    made, whole = B @ x, B @ A.domain.random(1)
    assert_close(made, A @ A.domain.random(1))
    for place, part in B.plan.codomain_placement.shares(made):  # none on a rank without views
        np.testing.assert_array_equal(part, whole[place])


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
    all_good(rank)


@check
def ranks_in_another_order_are_refused(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    for devices in (list(range(world))[::-1], [0]):
        if devices != list(range(world)):
            raises(PlacementError, "in their order", lambda: plan(A, devices, "torch"))
    all_good(rank)


@check
def a_failure_in_a_derivative_reaches_every_rank(rank: int, world: int) -> None:
    if world == 1:
        return
    space = lo.Space((world, 3), "float64", ("z", "y"))
    failing = {"backward": True, "forward": False}

    def pair(way: str) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            if rank == world - 1 and failing[way]:
                raise ArithmeticError("no result here")
            return x

        return run

    L = lo.from_functions(
        pair("forward"), pair("backward"), domain=space, codomain=space, rule="z y -> z y",
        blockwise=True, tags=(),
    )  # fmt: skip
    S = lo.Convolve(space, np.ones((3, 1)))
    B = plan(S @ L @ S, partition="z").lower()
    kind = ArithmeticError if rank == world - 1 else PlacementError
    x = space.random(1)
    wanted = 2 * (S.H @ (S.H @ (S @ (S @ x))))
    local = B.domain.home.put(x).to_local()

    def passes() -> Any:
        X = B.domain.home.put(x).requires_grad_()
        ((B @ X) ** 2).sum().backward()
        return X.grad

    def loss(part: Any) -> Any:
        return (B.local(part) ** 2).sum()

    started = time.monotonic()
    raises(kind, "no result here", passes)
    raises(kind, "no result here", lambda: torch.func.grad(loss)(local))
    failing["backward"] = False
    assert_close(passes(), wanted)
    gradient = torch.func.grad(loss)(local)
    assert_close(gradient, B.domain.home.put(wanted).to_local())
    X = B.domain.home.put(x).requires_grad_()
    (g,) = torch.autograd.grad(((B @ X) ** 2).sum(), X, create_graph=True)
    failing["forward"] = True  # the second derivative runs the map again
    raises(kind, "no result here", lambda: torch.autograd.grad((g * g).sum(), X))
    raises(kind, "no result here", lambda: torch.func.jvp(B.local, (local,), (local,)))
    assert time.monotonic() - started < 15
    all_good(rank)


@check
def dense_jacobians_are_refused(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    B = plan(A, partition="view").lower()
    local = B.domain.home.put(A.domain.random(1)).to_local()
    whole = torch.from_numpy(A.domain.random(1))
    for made in (
        lambda: torch.func.jacrev(B.local)(local),
        lambda: torch.func.jacfwd(B.local)(local),
        lambda: torch.func.hessian(lambda t: (B.local(t) ** 2).sum())(local),
        lambda: torch.autograd.functional.jacobian(B.local, local),
    ):
        raises(PlacementError, "A.to_dense()", made)
    # Plain arrays are the same on every rank: their Jacobian is that of the whole.
    matrix = torch.autograd.functional.jacobian(lambda t: B @ t, whole)
    assert_close(matrix.reshape(A.shape), A.to_dense())
    all_good(rank)
