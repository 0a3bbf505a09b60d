"""What a rank makes of one band travels while it computes the next."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import linops as lo
from linops.errors import PlacementError
from rank_checks.register import assert_close, check, plan, projector, raises
from sharding import agreement, ranks
from sharding.banding import looped
from sharding.executors import torch_ranks
from sharding.states import REPLICATED, Sharded


def _plans(world: int) -> Iterator[Any]:
    """Plans whose loops make what is summed, or read what is gathered, on either axis."""
    A = projector((5, 4, 6), 5)
    ends = [
        ("view", {"y": 2}, REPLICATED, Sharded(0)),  # adjoint: all-reduce
        ("view", {"y": 3}, Sharded(1), Sharded(0)),  # to owners of the tiles, and from them
        ("view", {"y": 2}, Sharded(2), Sharded(0)),  # to owners of another axis
        ("y", {"view": 2}, Sharded(1), REPLICATED),  # forward: all-reduce
        ("y", {"col": 3}, Sharded(1), REPLICATED),
    ]
    cases = [(name, chunks, (a,), (b,)) for name, chunks, a, b in ends]
    if world == 4:
        grid = {"view": 2, "y": 2}
        cases = [
            (grid, {"x": 4}, (REPLICATED, Sharded(1)), (Sharded(0), REPLICATED)),
            (grid, {"y": 1}, (Sharded(2), Sharded(1)), (Sharded(0), REPLICATED)),
        ]
    for partition, chunks, entry, exit_ in cases:
        yield _loop_over(A, partition, chunks, entry, exit_)


def _loop_over(A: Any, partition: Any, chunks: dict[str, int], entry: Any, exit_: Any) -> Any:
    """A plan with given ends whose leaf runs in bands."""
    p = plan(A, partition=partition).again(A, entries=[entry], exits=[exit_])
    return replace(p, forward=looped(p.forward, chunks), adjoint=looped(p.adjoint, chunks))


@check
def tiles_change_no_bit(rank: int, world: int) -> None:
    if world not in (2, 4):
        return
    for p in _plans(world):
        A, B = p.operator, p.lower()
        pairs = [u for g in (p.forward, p.adjoint) for u in torch_ranks.paired(g)]
        assert any(isinstance(unit, torch_ranks.Pair) for unit in pairs), p.explain()
        x, y = A.domain.random(1), A.codomain.random(2)
        X, Y = B.domain.home.put(x), B.codomain.home.put(y)
        forward, back = B @ X, B.H @ Y
        assert_close(forward, A @ x)
        assert_close(back, A.H @ y)
        several = np.stack([x, 2 * x, -x])
        assert_close(B @ B.domain.home.put(several), A @ several)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_ranks, "paired", lambda program: list(program.steps))
            C = p.lower()
            assert torch.equal((C @ X).to_local(), forward.to_local())
            assert torch.equal((C.H @ Y).to_local(), back.to_local())
        R = B.domain.home.put(x).requires_grad_()
        (g,) = torch.autograd.grad(((B @ R) ** 2).sum(), R, create_graph=True)
        assert_close(g.detach(), 2 * (A.H @ (A @ x)))
        (h,) = torch.autograd.grad((g * X).sum(), R)
        assert_close(h, 2 * (A.H @ (A @ x)))
        local = X.to_local()
        assert_close(torch.func.jvp(B.local, (local,), (local,))[1], forward.to_local())
        assert_close(torch.func.vmap(B.local)(torch.stack([local, local]))[1], forward.to_local())


class _ColumnsSummed(lo.LinearOperator):
    """Sums over y, which say when they run; call number `broken` fails."""

    blockwise = True

    def __init__(self, seen: list[str], broken: int) -> None:
        space = lo.Space((4 * dist.get_world_size(), 8), "float64", ("y", "x"))
        super().__init__(space, lo.Space((8,), "float64", ("x",)), rule="y x -> x")
        self._note = functools.partial(_note_run, seen, broken)

    def _apply(self, x: Any) -> Any:
        self._note()
        return x.sum(dim=-2)

    def _apply_adjoint(self, v: Any) -> Any:
        self._note()
        return v[..., None, :].expand(*v.shape[:-1], self.domain.shape[0], v.shape[-1])


def _note_run(seen: list[str], broken: int) -> None:
    if seen.count("computed") == broken:
        raise ArithmeticError("no tile here")
    seen.append("computed")


def _columns_summed(seen: list[str], broken: int = -1) -> lo.LinearOperator:
    return _ColumnsSummed(seen, broken)


@check
def tiles_travel_while_the_next_is_computed(rank: int, world: int) -> None:
    if world == 1:
        return
    seen: list[str] = []
    S = _columns_summed(seen)
    B = _loop_over(S, "y", {"x": 2}, (Sharded(0),), (Sharded(0),)).lower()
    x = np.random.default_rng(1).random(S.domain.shape)
    X = B.domain.home.put(x).requires_grad_()
    with _watched(seen):
        made = B @ X
        forward = list(seen)
        seen.clear()
        v = torch.arange(8.0, dtype=torch.float64)
        made.backward(B.codomain.home.put(v))
    assert_close(made.detach(), x.sum(axis=0))
    assert_close(X.grad, np.broadcast_to(v.numpy(), x.shape))
    for events in (forward, seen):
        assert events.count("computed") == 4, events  # tiles, each with an exchange of its own
        assert events.count("posted") == events.count("waited") == 4, events
    # All but the last are under way when the next is computed, and waited for after that.
    for here, following in itertools.pairwise(i for i, w in enumerate(forward) if w == "computed"):
        before = forward[: following + 1]
        assert before.count("posted") > before.count("waited"), forward
        assert "posted" in forward[here:following]
    # Backwards the next ones are under way while the first is made use of.
    before = seen[: seen.index("computed")]
    assert before.count("posted") > before.count("waited"), seen


@contextlib.contextmanager
def _watched(seen: list[str]) -> Iterator[None]:
    """Exchanges tell when they begin and when they are waited for."""

    class Watched:
        def __init__(self, work: Any) -> None:
            self.work = work

        def wait(self) -> None:
            seen.append("waited")
            self.work.wait()

    exchange, gather = dist.all_to_all_single, agreement.gather_rows

    def posted(*arguments: Any, **options: Any) -> Any:
        seen.append("posted")
        return Watched(exchange(*arguments, **options))

    def gathered(out: Any, rows: Any, group: Any = None, async_op: bool = False) -> Any:
        work = gather(out, rows, group, async_op)
        if not async_op:  # an agreement
            return work
        seen.append("posted")
        return Watched(work)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_to_all_single", posted)
        patch.setattr(agreement, "gather_rows", gathered)
        yield


@check
def a_tile_that_fails_ends_all_ranks(rank: int, world: int) -> None:
    if world == 1:
        return
    seen: list[str] = []
    S = _columns_summed(seen, broken=1 if rank == 1 else -1)
    B = plan(S, partition="y", chunks={"x": 2}).lower()
    x = np.random.default_rng(1).random(S.domain.shape)
    kind = ArithmeticError if rank == 1 else PlacementError
    raises(kind, "no tile here", lambda: B @ x)
    seen += ["computed"] * 4
    assert_close(B @ x, x.sum(axis=0))


@check
def sums_are_taken_in_pieces(rank: int, world: int) -> None:
    """No exchange holds a copy of a volume beside the summand and the sum."""
    if world != 2:
        return
    line = ranks.ranks_of(plan(lo.Identity(lo.Space((64,)))).mesh).lines[0]
    x = torch.ones((64, 64, 64)).movedim(0, 2)  # in the order of a kernel
    exchange, sizes = dist.all_to_all_single, []

    def weighed(out: Any, rows: Any, *rest: Any, **options: Any) -> Any:
        sizes.extend([out.nbytes, rows.nbytes])
        return exchange(out, rows, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_to_all_single", weighed)
        patch.setattr(ranks, "_LEAST", 1 << 16)
        assert bool((line.all_reduce(x) == 2).all())
        share = line.reduce_scatter(x, -3, 64)
    assert share.shape == (32, 64, 64) and bool((share == 2).all())
    assert max(sizes) <= x.nbytes / 16
