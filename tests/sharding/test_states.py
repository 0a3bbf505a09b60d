"""Shares, duals, and the table of movements."""

from __future__ import annotations

import pytest

from sharding.states import (
    PARTIAL,
    REPLICATED,
    Sharded,
    Windowed,
    dual,
    overlaps,
    real_range,
    share_of,
)
from sharding.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Extend,
    Halo,
    HaloAdd,
    ReduceScatter,
    Slice,
    movement,
)

WINDOW = Windowed(0, ((-1, 3), (1, 5)), ((-1, 3), (1, 5)))


@pytest.mark.parametrize(
    ("real", "n", "padded", "shares"),
    [
        (7, 2, 8, [4, 3]),
        (7, 3, 9, [3, 3, 1]),
        (7, 4, 8, [2, 2, 2, 1]),
        (5, 4, 8, [2, 2, 1, 0]),
        (3, 4, 4, [1, 1, 1, 0]),
        (1, 8, 8, [1, 0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_equal_shares_of_which_the_last_are_padded(
    real: int, n: int, padded: int, shares: list[int]
) -> None:
    assert share_of(real, n) * n == padded
    ranges = [real_range(real, n, i) for i in range(n)]
    assert [hi - lo for lo, hi in ranges] == shares
    assert [lo for lo, hi in ranges if lo < hi] == [
        i * share_of(real, n) for i, s in enumerate(shares) if s
    ]


def test_the_adjoint_of_a_movement_runs_between_the_dual_states() -> None:
    states = [REPLICATED, PARTIAL, Sharded(0), Sharded(1), WINDOW]
    adjoint_of = {
        Slice: {Extend: True},
        AllGather: {ReduceScatter: True},
        ReduceScatter: {AllGather: True},
        AllReduce: {AllReduce: True},
        AllToAll: {AllToAll: True},
        Halo: {HaloAdd: True},
        HaloAdd: {Halo: True},
        Extend: {Slice: True, Extend: True},
    }
    seen = 0
    for source in states:
        for target in states:
            try:
                step = movement(source, target)
            except ValueError:
                continue
            if step is None:
                continue
            back = movement(dual(target), dual(source))
            assert back is not None
            assert adjoint_of[step].get(back, False), (step, back)
            seen += 1
    assert seen == 18


def test_replicated_and_partial_change_places() -> None:
    assert dual(REPLICATED) == PARTIAL
    assert dual(PARTIAL) == REPLICATED
    assert dual(Sharded(1)) == Sharded(1)
    assert dual(WINDOW) == WINDOW


def test_windows_are_cut_at_the_ends_and_not_around_a_ring() -> None:
    assert WINDOW.planes(0, 4) == (0, 3)
    ring = Windowed(0, WINDOW.ranges, WINDOW.padded, periodic=True)
    assert ring.planes(0, 4) == (-1, 3)


def test_pieces_of_a_window_around_a_ring_cover_each_of_its_planes_once() -> None:
    n = 5
    for lo, hi in [(-2, 3), (3, 9), (-7, 8), (0, 5)]:
        for first, last in [(0, 5), (1, 4), (2, 3)]:
            planes = [
                (at, at + shift)
                for begin, end, shift in overlaps(lo, hi, first, last, n, periodic=True)
                for at in range(begin, end)
            ]
            wanted = [(at, at % n) for at in range(lo, hi) if first <= at % n < last]
            assert sorted(planes) == wanted
    assert overlaps(-2, 3, 0, 5, n, periodic=False) == [(0, 3, 0)]
