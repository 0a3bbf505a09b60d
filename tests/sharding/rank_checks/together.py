"""All ranks raise or none, and the group can be used again."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

import linops as lo
from linops.errors import PlacementError, ShapeError
from rank_checks.register import all_good, check, plan, projector, raises
from sharding import Placement
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
    local = B.domain.put(x).to_local()
    raises(elsewhere(ShapeError), "expects", lambda: B.local @ (local[:1] if bad else local))
    all_good(rank)
    raises(PlacementError, "different things", lambda: plan(A, partition="y" if bad else "view"))
    raises(PlacementError, "different things", lambda: plan(A, chunks={"view": 1 if bad else 2}))
    raises(PlacementError, "no leaf has", lambda: plan(A, partition="time"))
    raises(PlacementError, "different things",
           lambda: plan(A.with_precision("float32") if bad else A, partition="view"))  # fmt: skip
    raises(PlacementError, "different things",
           lambda: B @ B.domain.put(x)[None].repeat(2 if bad else 3, 1, 1))  # fmt: skip
    all_good(rank)


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
    all_good(rank)


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
