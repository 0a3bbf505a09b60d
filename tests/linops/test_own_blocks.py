"""Blocks of leaves of one's own: the law for maps that are not linear, functions of any extent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import linops as lo
from linops.arrays import namespace
from linops.errors import ShapeError
from linops.testing import check_operator

SPACE = lo.Space((7, 5), "float64", axes=("z", "x"))
RNG = np.random.default_rng(0)


def neighbors(x: Any) -> Any:
    """Differences with both neighbors, unlike on either side; the ends are repeated."""
    xp = namespace(x)
    above = xp.concat([x[1:, ...], x[-1:, ...]], axis=0)
    below = xp.concat([x[:1, ...], x[:-1, ...]], axis=0)
    return 7 * x - above - 3 * below


def neighbors_adjoint(y: Any) -> Any:
    xp = namespace(y)
    none = xp.zeros_like(y)
    above = xp.concat([y[1:, ...], none[:1, ...]], axis=0)
    below = xp.concat([none[:1, ...], y[:-1, ...]], axis=0)
    first = xp.concat([y[:1, ...], none[1:, ...]], axis=0)
    last = xp.concat([none[:-1, ...], y[-1:, ...]], axis=0)
    return 7 * y - below - last - 3 * above - 3 * first


def around(x: Any) -> Any:
    return x + 2 * namespace(x).roll(x, 1, axis=0)


def around_adjoint(y: Any) -> Any:
    return y + 2 * namespace(y).roll(y, -1, axis=0)


class Pointwise(lo.Operator):
    """The logarithm: zero is no argument of it."""

    batched = True

    def __init__(self, space: lo.Space, rule: str = "z x -> z x") -> None:
        super().__init__(space, space, rule=rule)

    def _apply(self, x: Any) -> Any:
        return namespace(x).log(x)

    def _jacobian(self, x: Any) -> lo.LinearOperator:
        return lo.Diagonal(1 / x, domain=self.domain)


class Smoothed(Pointwise):
    """The logarithm of weighted neighbors, by plane; `~1*` around the ring."""

    def __init__(self, space: lo.Space, ring: bool) -> None:
        super().__init__(space, f"z~1{'*' if ring else ''} x -> z x")
        self.linear_part = lo.from_functions(
            *((around, around_adjoint) if ring else (neighbors, neighbors_adjoint)),
            domain=space,
        )

    def _apply(self, x: Any) -> Any:
        return namespace(x).log(self.linear_part(x) + 9)

    def _jacobian(self, x: Any) -> lo.LinearOperator:
        return lo.Diagonal(1 / (self.linear_part(x) + 9), domain=self.domain) @ self.linear_part


class Outer(lo.Operator):
    """Every product of two entries: an axis that each part of the result needs whole."""

    batched = True

    def __init__(self, n: int) -> None:
        super().__init__(lo.Space(n, "float64"), lo.Space((n, n), "float64"), rule="i! -> k l")

    def _apply(self, x: Any) -> Any:
        return x[..., :, None] * x[..., None, :]


@pytest.mark.slow
@pytest.mark.parametrize("ring", [False, True])
def test_functions_of_any_extent_see_their_planes_and_the_halo(ring: bool) -> None:
    seen: list[int] = []

    def watched(function: Any) -> Any:
        def run(x: Any) -> Any:
            seen.append(x.shape[-2])
            return function(x)

        return run

    pair = (around, around_adjoint) if ring else (neighbors, neighbors_adjoint)
    rule = f"z~1{'*' if ring else ''} x -> z x"
    A = lo.from_functions(*map(watched, pair), domain=SPACE, rule=rule, blockwise=True)
    check_operator(A)
    x = RNG.random(SPACE.shape)
    for padded in (False, True):
        block = A.block("z", 2, 4, padded)
        seen.clear()
        np.testing.assert_allclose(block @ x[1:5], (A @ x)[2:4], rtol=1e-13)
        y = RNG.random((2, 5))
        back = np.zeros(SPACE.shape)
        back[2:4] = y
        np.testing.assert_allclose(block.H @ y, (A.H @ back)[1:5], rtol=1e-13)
        assert seen == [4, 7, 4, 7]  # of the block, and of the whole it is held to


@pytest.mark.slow
@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize("linear", [False, True])
def test_derived_operators_have_blocks_of_any_extent(ring: bool, linear: bool, x64: None) -> None:
    base = around if ring else neighbors
    seen: list[int] = []

    def run(x: Any) -> Any:
        seen.append(x.shape[-2])
        return base(x) if linear else base(x) ** 3

    rule = f"z~1{'*' if ring else ''} x -> z x"
    N = lo.from_function(run, domain=SPACE, rule=rule, linear=linear, blockwise=True)
    x, window = RNG.random(SPACE.shape), [1, 2, 3, 4]
    whole, jacobian = N(x), N.jacobian(x)
    for padded in (False, True):
        block = N.block("z", 2, 4, padded)
        seen.clear()
        np.testing.assert_allclose(block(x[window]), whole[2:4], rtol=1e-13)
        assert set(seen) == {4}
        dy, spread = RNG.random((2, 5)), np.zeros(SPACE.shape)
        spread[2:4] = dy
        found = block.jacobian(x[window]).H @ dy
        np.testing.assert_allclose(found, (jacobian.H @ spread)[window], rtol=1e-13)
    # Beside the end, and past it: planes that are not there are never read.
    for start, stop in ((-1, 2), (5, 9)):
        part = np.full((stop - start + 2, 5), np.nan)
        inside = range(max(start, 0) - ring, min(stop, 7) + ring) if ring else range(7)
        for k in inside:
            if start - 1 <= k < stop + 1:
                part[k - start + 1] = x[k % 7]
        got = N.block("z", start, stop, True)(part)
        lo_, hi = max(start, 0), min(stop, 7)
        np.testing.assert_allclose(got[lo_ - start : hi - start], whole[lo_:hi], rtol=1e-13)
        assert not got[: lo_ - start].any() and not got[hi - start :].any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("N", "axis"),
    [
        (Pointwise(SPACE), "z"),
        (Pointwise(SPACE), "x"),
        (Smoothed(SPACE, ring=False), "z"),
        (Smoothed(SPACE, ring=True), "z"),
        (lo.Diagonal(np.arange(1.0, 36.0).reshape(7, 5), SPACE) @ Smoothed(SPACE, False), "z"),
        (2 * Smoothed(SPACE, ring=True) + lo.Identity(SPACE), "z"),
        (Outer(7), "k"),
        (Outer(7), "l"),
        (Outer(7) @ Pointwise(lo.Space(7, "float64"), "i -> i"), "k"),
    ],
)
def test_the_law_of_blocks_for_maps_of_ones_own(N: lo.Operator, axis: str) -> None:
    """In both forms, with the Jacobian, no plane read that is not there."""
    x = 1 + RNG.random(N.domain.shape)
    produced = axis in "kl"
    out = [a.name for a in N.rule.codomain[0]].index(axis)
    halo, ring = N.rule.halo(axis), N.rule.periodic(axis)
    whole, n = N(x), N.codomain.shape[out]

    def cut(y: Any, planes: Any) -> Any:
        return np.take(y, list(planes), axis=out)

    for start, stop in ((0, n), (0, 2), (1, 4), (n - 2, n), (3, 3)):
        planes: Any = range(max(start - halo, 0), min(stop + halo, n))
        if ring and (start, stop) != (0, n):
            planes = [k % n for k in range(start - halo, stop + halo)]
        elif ring:
            planes = [k % n for k in range(-halo, n + halo)]
        part = x if produced else cut(x, planes)
        block = N.block(axis, start, stop)
        with np.errstate(divide="ignore" if start == stop else "warn"):
            got = block(part)
        np.testing.assert_allclose(got, cut(whole, range(start, stop)), rtol=1e-13)
    for start in (-1, 0, n - 3, n - 2):
        stop = start + 3
        part, real = x, range(max(start, 0), min(stop, n))
        if not produced:
            shape = list(x.shape)
            shape[out] = stop - start + 2 * halo
            part = np.full(shape, np.nan)
            for k in range(real[0] - halo, real[-1] + 1 + halo):
                if ring or 0 <= k < n:
                    np.moveaxis(part, out, 0)[k - start + halo] = cut(x, [k % n]).squeeze(out)
        block = N.block(axis, start, stop, padded=True)
        wanted = np.zeros(block.codomain.shape)
        np.moveaxis(wanted, out, 0)[[k - start for k in real]] = np.moveaxis(
            cut(whole, real), out, 0
        )
        np.testing.assert_allclose(block(part), wanted, rtol=1e-13)
    if not isinstance(N, (Pointwise, Smoothed)):
        return
    here = [k % n for k in range(2 - halo, 4 + halo)]
    block, dy = N.block(axis, 2, 4), RNG.random(cut(x, [2, 3]).shape)
    spread = np.zeros(x.shape)
    np.moveaxis(spread, out, 0)[2:4] = np.moveaxis(dy, out, 0)
    found = block.jacobian(cut(x, here)).H @ dy
    np.testing.assert_allclose(found, cut(N.jacobian(x).H @ spread, here), rtol=1e-12)


def test_a_map_has_no_partial_results() -> None:
    class Largest(lo.Operator):
        def __init__(self) -> None:
            super().__init__(SPACE, lo.Space(5, "float64", axes=("x",)), rule="z x -> x")

        def _apply(self, x: Any) -> Any:
            return x.max(axis=0)

    with pytest.raises(ShapeError, match="Largest has no block along 'z'.*write z! in the rule"):
        Largest().block("z", 0, 2)
    x = RNG.random(SPACE.shape)
    np.testing.assert_array_equal(Largest().block("x", 1, 3)(x[:, 1:3]), x.max(axis=0)[1:3])


def test_members_that_reach_unequally_far_share_the_wider_halo() -> None:
    near, far = lo.Space((7, 5), "float64"), lo.Space((7, 5), "float64")

    def shifted(x: Any, planes: int) -> Any:
        xp = namespace(x)
        none = xp.zeros_like(x[: abs(planes), ...])
        return xp.concat([x[planes:, ...], none] if planes > 0 else [none, x[:planes, ...]], axis=0)

    A = lo.from_functions(
        lambda x: shifted(x[0], 1) - shifted(x[1], -2),
        lambda y: (shifted(y, -1), -shifted(y, 2)),
        domain=lo.ProductSpace((near, far)),
        codomain=near,
        rule="z~1 x, z~2 x -> z x",
    )
    assert A.rule.halo("z") == 2
    x = tuple(RNG.standard_normal((7, 5)) for _ in range(2))
    block = A.block("z", 3, 4)
    part = block @ tuple(u[1:6] for u in x)
    assert np.array_equal(part[0], x[0][4] - x[1][1])
    check_operator(A, skip={"pickling": "of functions of a test"})


def test_padding_beyond_a_ring_is_never_read() -> None:
    A = lo.from_functions(around, around_adjoint, domain=SPACE, rule="z~1* x -> z x")
    x = RNG.standard_normal(SPACE.shape)
    block = A.block("z", 5, 12, padded=True)  # of 7 planes: two real ones, five of padding,
    part = np.full((9, 5), np.nan)  # which come around to the real ones again
    part[:4] = x[[4, 5, 6, 0]]  # the real ones, and their neighbors around the ring
    y = block @ part
    np.testing.assert_allclose(y[:2], (A @ x)[5:], rtol=1e-13)
    assert not y[2:].any()
    garbage = np.full((7, 5), np.nan)
    garbage[:2] = x[:2]
    back = block.H @ garbage
    whole = np.zeros(SPACE.shape)
    whole[5:] = x[:2]
    np.testing.assert_allclose(back[:4], (A.H @ whole)[[4, 5, 6, 0]], rtol=1e-13)
    assert not back[4:].any()


def test_a_ring_and_a_line_do_not_split_together() -> None:
    ring = lo.from_functions(around, around_adjoint, domain=SPACE, rule="z~1* x -> z x")
    line = lo.from_functions(neighbors, neighbors_adjoint, domain=SPACE, rule="z~1 x -> z x")
    total = ring + line
    assert str(total.rule) == "z! x -> z! x"
    with pytest.raises(ShapeError, match="must not be split"):
        total.block("z", 0, 3)
    assert str((ring + ring).rule) == "z~1* x -> z x"
