"""Solvers on ranks: the iterates of one process."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import linops as lo
import solvers
from linops import functionals as fn
from linops.errors import CheckpointError, PlacementError
from rank_checks.register import all_good, assert_close, check, grids, plan, projector, raises
from solvers import cgls


@check
def cgls_iterates_agree_after_thirty_steps(rank: int, world: int) -> None:
    A = projector((6, 5), 9)
    y = A @ A.domain.random(1) + 0.01 * A.codomain.random(2)
    # Damped, so that rounding is not magnified by directions that the data do not see.
    reference = cgls(A, y, iterations=30, damp=3.0)
    for partition in grids(world) or ["view"]:
        B = plan(A, partition=partition).lower()
        placed = cgls(B, B.codomain.home.put(y), iterations=30, damp=3.0)
        assert B.domain.home.placement.holds(placed.solution)
        assert_close(placed.solution, reference.solution, 1e-9)
        np.testing.assert_allclose(
            placed.residual_history, reference.residual_history, rtol=1e-9, atol=1e-12
        )
    plain = cgls(B, y, iterations=2, damp=3.0).solution
    assert not isinstance(plain, DTensor)
    assert_close(plain, cgls(A, y, iterations=2, damp=3.0).solution)


@check
def solvers_take_the_steps_of_one_process(rank: int, world: int) -> None:
    if world == 1:
        return
    A = projector((3, 6, 5), 9)
    y = A @ np.abs(A.domain.random(1))
    prior = fn.QGGMRF(A.domain, sigma_x=0.5) + 0.1 * fn.QGGMRF(A.domain, p=2.0, q=2.0)
    runs: dict[str, Callable[[Any, Any], Any]] = {
        "sirt": lambda A, y: solvers.sirt(A, y, iterations=4),
        "adam": lambda A, y: solvers.tv(A, y, weight=0.1, iterations=3),
        "pdhg": lambda A, y: solvers.tv(A, y, weight=0.1, iterations=3, method="pdhg"),
        "vcd": lambda A, y: solvers.vcd(
            A, y, prior, weights="emission", bounds=(0, 0.5), iterations=2, partitions=3
        ),
    }
    if world == 4:
        runs = {name: runs[name] for name in ("pdhg", "vcd")}
    wanted = {name: solve(A, y) for name, solve in runs.items()}
    for partition in grids(world) or (["view", "z"] if world == 2 else ["view"]):
        B = plan(A, partition=partition).lower()
        placed = B.codomain.home.put(y)
        for name, solve in runs.items():
            got = solve(B, placed)
            assert B.domain.home.placement.holds(got.solution), name
            assert_close(got.solution, wanted[name].solution, 1e-11)
            assert got.histories.keys() == wanted[name].histories.keys()
            for key, values in wanted[name].histories.items():
                np.testing.assert_allclose(got.histories[key], values, rtol=1e-9, atol=1e-12)
    plain = solvers.vcd(B, y, iterations=1, partitions=1).solution
    assert isinstance(plain, np.ndarray), type(plain)
    assert_close(plain, solvers.vcd(A, y, iterations=1, partitions=1).solution, 1e-11)


@check
def members_of_a_batch_have_their_own_steps(rank: int, world: int) -> None:
    A = projector((6, 5), 9)
    y = A @ np.abs(A.domain.random(1))
    batch = np.stack([y, 0 * y, 2 * y[::-1]])
    B = plan(A, partition="view").lower()
    for solve in (solvers.cgls, solvers.sirt):
        wanted = solve(A, batch, iterations=4, rtol=0.1)
        for data in (batch, B.codomain.home.put(batch)):
            got = solve(B, data, iterations=4, rtol=0.1)
            assert_close(got.solution, wanted.solution, 1e-9)
            assert got.reason == wanted.reason


@check
def vcd_in_single_precision(rank: int, world: int) -> None:
    if world != 2:
        return
    A = projector((3, 6, 5), 9).with_precision("float32")
    y = A @ np.abs(A.domain.random(1))
    wanted = solvers.vcd(A, y, weights=2.0, iterations=2, partitions=3).solution
    B = plan(A, partition="view").lower()
    got = solvers.vcd(B, B.codomain.home.put(y), weights=2.0, iterations=2, partitions=3).solution
    assert lo.arrays.dtype_of(got) == np.float32
    assert_close(got, wanted, 1e-4)


@check
def measurements_that_are_not_finite_are_refused_by_all(rank: int, world: int) -> None:
    A = projector((6, 5), 9)
    y = A @ A.domain.random(1)
    y[-1, 2] = np.nan  # in the share of one rank
    B = plan(A, partition="view").lower()
    for data in (y, B.codomain.home.put(y)):
        raises(ValueError, "is nan", lambda data=data: cgls(B, data, iterations=2))
    all_good(rank)


@check
def solves_resume_bit_for_bit_and_fail_together(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    y = A @ A.domain.random(2)
    B = plan(A, partition="view").lower()
    told: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(told)
    wanted = solvers.sirt(B, y, iterations=3).solution
    solvers.sirt(B, y, iterations=2, checkpoint_directory=told[0])
    again = plan(A, partition="view").lower()
    assert np.array_equal(solvers.sirt(again, y, iterations=3, resume=told[0]).solution, wanted)
    assert_close(solvers.sirt(A, y, iterations=3, resume=told[0]).solution, wanted, 1e-12)
    raises(
        CheckpointError,
        "never replaced",
        lambda: solvers.sirt(B, y, iterations=2, checkpoint_directory=told[0]),
    )
    assert np.array_equal(solvers.sirt(B, y, iterations=3).solution, wanted)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(told[0])


@check
def ranks_that_ask_a_solver_for_different_things_all_raise(rank: int, world: int) -> None:
    """Nobody waits for the group's time limit, the argument is named, and the group lives on."""
    if world == 1:
        return
    A = projector((5, 4), 5)
    B = plan(A, partition="view").lower()
    y = A @ A.domain.random(2)
    bad = rank == world - 1
    told: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(told)
    root = told[0]
    solvers.cgls(B, y, iterations=2, checkpoint_directory=f"{root}/steps")
    start = A.domain.random(3)
    other = start + 1e-9 if bad else start
    different: list[tuple[str, Any, dict[str, Any]]] = [
        ("x0", solvers.cgls, {"x0": start if bad else None}),
        ("x0", solvers.sirt, {"x0": other}),
        ("x0", solvers.tv, {"x0": start[:3] if bad else start}),
        ("resume", solvers.cgls, {"resume": f"{root}/steps" if bad else None}),
        ("resume", solvers.cgls, {"resume": f"{root}/steps/{rank}"}),
        ("checkpoint_directory", solvers.sirt, {"checkpoint_directory": None if bad else root}),
        ("checkpoint_directory", solvers.cgls, {"checkpoint_directory": f"{root}/{rank}"}),
        ("checkpoint_every", solvers.cgls, {"checkpoint_every": 2 if bad else 1}),
    ]
    for name, solver, options in different:
        raises(
            PlacementError,
            f"the ranks want different things of {name}: rank 0: ",
            lambda solver=solver, options=options: solver(B, y, iterations=3, **options),
        )
        all_good(rank)
    kind = ValueError if bad else PlacementError
    raises(kind, "rtol is -1", lambda: cgls(B, y, iterations=3, rtol=-1 if bad else 0.0))
    # What a solver checks before all meet is told to all too.
    early: list[tuple[Any, dict[str, Any], str]] = [
        (solvers.sirt, {"relaxation": -1.0}, "relaxation is -1"),
        (solvers.cgls, {"damp": -1.0}, "damp is -1"),
        (solvers.tv, {"method": "newton"}, "method is 'newton'"),
        (solvers.landweber, {"bounds": (2, 1)}, "bounds is (2, 1)"),
    ]
    for solver, wrong, said in early:
        given = wrong if bad else {}
        raises(kind, said, lambda s=solver, o=given: s(B, y, iterations=2, **o))
        all_good(rank)
    gone = f"{root}/nowhere" if bad else f"{root}/steps"
    raises(PlacementError, "of resume", lambda: cgls(B, y, iterations=3, resume=gone))
    whole = cgls(B, y, iterations=3, resume=f"{root}/steps", checkpoint_every=1).solution
    assert_close(whole, cgls(A, y, iterations=3).solution, 1e-11)
    dist.barrier()
    if rank == 0:
        shutil.rmtree(root)


@check
def a_callback_of_one_rank_ends_the_solve_of_all(rank: int, world: int) -> None:
    A = projector((5, 4), 5)
    B = plan(A, partition="view").lower()
    y = A @ A.domain.random(2)
    last = rank == world - 1

    def stops(iteration: int, residual: Any, x: Any) -> Any:
        return np.bool_(iteration < 2) if last else None

    def fails(iteration: int, residual: Any, x: Any) -> None:
        if last and iteration == 2:
            raise KeyError("disk full")

    for solver in (cgls, solvers.sirt, solvers.tv, solvers.vcd):
        # Of all ranks, or of one that alone has a callback.
        for callback in (stops, stops if last else None):
            found = solver(B, y, iterations=4, callback=callback)
            assert (found.iterations, found.reason) == (2, "callback stopped"), found.reason
        kind = KeyError if last else PlacementError
        raises(kind, "disk full", lambda solver=solver: solver(B, y, iterations=4, callback=fails))
        all_good(rank)
