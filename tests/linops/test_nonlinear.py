"""Nonlinear operators: chain rule against differences, blocks against the whole."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.elementary.pointwise import Exp, Log, Power, transmission

SPACE = lo.Space((4, 5), "float64", axes=("y", "x"), spacing=(0.5, 2.0))


def maps() -> list[lo.Operator]:
    gradient = 0.3 * lo.Gradient(SPACE)
    exp = Exp(SPACE)
    return [
        exp,
        Log(SPACE) @ exp,
        Power(SPACE, 3),
        Power(SPACE, 0),
        gradient @ exp,
        transmission(gradient, 50.0),
        transmission(gradient, np.linspace(1, 2, 40).reshape(2, 4, 5)),
        gradient.H @ transmission(gradient),
        2 * exp - lo.Identity(SPACE),
        exp @ Power(SPACE, 2) / 4,
        Power(SPACE, 2) ** 2,
    ]


@pytest.mark.parametrize("number", range(len(maps())))
def test_derivative_matches_central_differences(number: int) -> None:
    operator = maps()[number]
    x, dx = SPACE.random(0), SPACE.random(1)
    step = 1e-5
    differences = (operator(x + step * dx) - operator(x - step * dx)) / (2 * step)
    scale = np.abs(differences).max() + 1
    np.testing.assert_allclose(operator.jvp(x, dx), differences, atol=1e-8 * scale)
    dy = operator.codomain.random(2)
    left = operator.codomain.inner(dy, operator.jvp(x, dx))
    assert left == pytest.approx(SPACE.inner(operator.vjp(x, dy), dx), rel=1e-12)


@pytest.mark.parametrize("number", range(len(maps())))
@pytest.mark.parametrize("axis", ["y", "x"])
def test_jacobian_of_a_block_is_the_block_of_the_jacobian(number: int, axis: str) -> None:
    operator = maps()[number]
    x, position = SPACE.random(3), ("y", "x").index(axis)
    n, h = SPACE.shape[position], operator.rule.halo(axis)
    for start, stop in ((0, 2), (1, 3), (2, n), (2, 2)):
        part = np.take(x, range(max(start - h, 0), min(stop + h, n)), axis=position)
        block = operator.block(axis, start, stop)
        whole = np.take(operator(x), range(start, stop), axis=position - 2)
        np.testing.assert_allclose(block(part), whole, rtol=1e-12)
        dx = np.take(SPACE.random(4), range(max(start - h, 0), min(stop + h, n)), axis=position)
        np.testing.assert_allclose(
            block.jvp(part, dx), operator.jacobian(x).block(axis, start, stop) @ dx, rtol=1e-12
        )


def test_padded_blocks_leave_planes_outside_unread() -> None:
    operator = lo.Gradient(SPACE) @ Exp(SPACE)
    x = SPACE.random(5)
    wide = np.full((8, 5), np.nan)
    wide[2:6] = x
    block = operator.block("y", -1, 5, padded=True)
    out = block(wide)
    np.testing.assert_allclose(out[:, 1:5], operator(x), rtol=1e-12)
    assert not out[:, 0].any() and not out[:, 5].any()


def test_the_jacobian_runs_the_primal_pass_once() -> None:
    calls = []

    class Counting(lo.Operator):
        batched = True

        def __init__(self) -> None:
            super().__init__(SPACE, SPACE, rule="y x -> y x")

        def _apply(self, x: np.ndarray) -> np.ndarray:
            calls.append(1)
            return x**2

        def _jacobian(self, x: np.ndarray) -> lo.LinearOperator:
            return lo.Diagonal(2 * x, SPACE)

    jacobian = (Exp(SPACE) @ Counting()).jacobian(SPACE.random(0))
    assert len(calls) == 1
    for _ in range(3):
        jacobian @ SPACE.random(1)
        jacobian.H @ SPACE.random(1)
    assert len(calls) == 1


def test_misuse_is_explained() -> None:
    exp = Exp(SPACE)
    with pytest.raises(TypeError, match="as a function"):
        exp @ SPACE.random(0)
    with pytest.raises(lo.errors.ShapeError, match="cannot compose"):
        exp @ Exp(lo.Space((5, 4), "float64"))
    with pytest.raises(lo.errors.DTypeError, match="complex"):
        2j * exp
    with pytest.raises(lo.errors.ShapeError, match="expects"):
        exp(np.zeros((5, 4)))


def test_what_passes_its_input_through_shares_no_memory_inside_of_a_composition() -> None:
    class Same(lo.Operator):
        def __init__(self) -> None:
            super().__init__(SPACE, SPACE, rule="y x -> y x")

        def _apply(self, x: np.ndarray) -> np.ndarray:
            return x

    pad = lo.Pad(SPACE, {"y": (0, 0)})
    for operator in (Same(), pad.H @ Same(), pad, pad.H @ pad, pad.gram()):
        x = SPACE.random(0)
        kept = x.copy()
        operator(x)[...] = 7
        np.testing.assert_array_equal(x, kept)
