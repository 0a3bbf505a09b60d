"""Partitions are true partitions, spread as promised, and follow from the seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from solvers.plane_partitions import ORDERS, Partitions, partition, region


@given(
    plane=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 5),
    data=st.data(),
)
def test_disjoint_complete_and_even(plane, order, seed, data):
    mask = np.random.default_rng(seed).random(plane) > 0.3
    mask.flat[0] = True
    positions = region(mask, plane)
    count = data.draw(st.integers(1, len(positions)))
    subsets = partition(positions, plane, count, order, seed)
    assert len(subsets) == count
    assert len({len(subset) for subset in subsets}) == 1
    sizes = [int((subset >= 0).sum()) for subset in subsets]
    assert max(sizes) - min(sizes) <= 1
    together = np.concatenate(subsets)
    np.testing.assert_array_equal(np.sort(together[together >= 0]), positions)
    again = partition(positions, plane, count, order, seed)
    assert all((a == b).all() for a, b in zip(subsets, again, strict=True))


@pytest.mark.parametrize("count", [4, 7, 16, 64, 128])
@pytest.mark.parametrize("roi", [None, "ellipse"])
def test_blue_noise_is_well_spread(count, roi):
    plane = (96, 128)
    for subset in partition(region(roi, plane), plane, count, "blue_noise", 1):
        points = np.stack(np.divmod(subset[subset >= 0], plane[1]), axis=1)
        nearest = cKDTree(points).query(points, k=2)[0][:, 1]
        assert np.mean(nearest >= 0.5 * np.sqrt(count)) >= 0.95


def test_the_ellipse_touches_the_borders():
    inside = np.zeros(20 * 30)
    inside[region("ellipse", (20, 30))] = 1
    inside = inside.reshape(20, 30)
    assert inside.mean() == pytest.approx(np.pi / 4, abs=0.01)
    assert inside[9, 0] and inside[0, 15] and not inside[0, 0]
    np.testing.assert_array_equal(inside, inside[::-1, ::-1])


def test_schedule():
    default = Partitions.of(None)
    assert [default.count(k, 10**6) for k in range(5)] == [4, 16, 64, 128, 128]
    assert [default.count(k, 1000) for k in range(5)] == [4, 15, 15, 15, 15]
    assert default.count(0, 10) == 1
    chosen = Partitions.of([2, 50])
    assert [chosen.count(k, 100) for k in range(3)] == [2, 50, 50]
    assert chosen.count(1, 20) == 20


def test_a_callable_orders():
    plane = (2, 3)

    def rows(positions, plane, count, seed):
        return [positions[positions // plane[1] == row] for row in range(count)]

    subsets = partition(np.arange(6), plane, 2, rows, 0)
    np.testing.assert_array_equal(subsets, [[0, 1, 2], [3, 4, 5]])
    with pytest.raises(ValueError, match="once"):
        partition(np.arange(6), plane, 2, lambda p, *_: [p[:2], p[:4]], 0)
