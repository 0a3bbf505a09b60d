"""Every movement alone: seen globally it changes nothing, and so does its adjoint."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

import linops as lo
from sharding.executors.blocks import Blocks
from sharding.executors.interpreter import run
from sharding.mesh import Mesh
from sharding.program import Program
from sharding.states import PARTIAL, REPLICATED, Sharded, State, Windowed, real_range, share_of
from sharding.steps import Value
from sharding.writer import Writer

ENDS = [REPLICATED, Sharded(0), Sharded(1)]


def _window(size: int, n: int, below: int, above: int, periodic: bool) -> Windowed:
    share = share_of(size, n)
    real = [real_range(size, n, i) for i in range(n)]
    return Windowed(
        0,
        tuple((lo_ - below, hi + above) if lo_ < hi else (lo_, lo_) for lo_, hi in real),
        tuple((i * share - below, (i + 1) * share + above) for i in range(n)),
        periodic,
    )


def _execute(program: Program, x: np.ndarray, n: int) -> np.ndarray:
    def in_turn(task: Callable[[int], None], count: int) -> None:
        for i in range(count):
            task(i)

    mesh = Mesh(tuple(range(n)), (n,), ("m",))
    return run(program, [x], Blocks(mesh.shape, mesh.coordinates), in_turn)[0]


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("size", [7, 8, 3, 1])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_any_way_between_two_states_is_the_identity(n: int, size: int, dtype: str) -> None:
    space = lo.Space((size, 5), dtype)
    x, y = space.random(1), space.random(2)
    for source, middle, target in product(ENDS, [*ENDS, PARTIAL], ENDS):
        writer = Writer((n,))
        first = writer.value(Value(space, (source,)))
        last = writer.to(writer.to(first, (middle,)), (target,))
        program = writer.program([first], [last])
        np.testing.assert_array_equal(_execute(program, x, n), x)
        np.testing.assert_array_equal(_execute(program.adjoint(), y, n), y)


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize(("below", "above"), [(1, 1), (0, 2), (3, 0), (4, 4)])
@pytest.mark.parametrize("size", [7, 8, 9, 3, 2])
def test_a_halo_and_its_adjoint_are_transposed(
    size: int, below: int, above: int, periodic: bool
) -> None:
    """`<halo x, y> == <x, halo_add y>`, with windows wider than a share and around a ring."""
    from sharding.executors.interpreter import _Interpreter
    from sharding.steps import Halo, HaloAdd

    space = lo.Space((size, 3), "float64")
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 4, 8):
        window = _window(size, n, below, above, periodic)
        writer = Writer((n,))
        first = writer.value(Value(space, (Sharded(0),)))
        wide = writer.to(first, (window,))
        back = writer.to(wide, (Sharded(0),))
        forward = Program((n,), tuple(writer.values), tuple(writer.steps), (first,), (back,))
        kinds = [step.kind for step in forward.steps]
        assert kinds == ["Halo", "HaloAdd"], kinds
        x = rng.standard_normal((size, 3))
        mesh = Mesh(tuple(range(n)), (n,), ("m",))
        machine = _Interpreter(
            forward, Blocks(mesh.shape, mesh.coordinates), lambda t, c: [t(i) for i in range(c)],
            None, [x],
        )  # fmt: skip
        machine.held[first] = machine._cut(first, x)
        halo, add = forward.steps
        assert isinstance(halo, Halo) and isinstance(add, HaloAdd)
        pieces = machine._recut(halo).pieces
        copies = np.zeros((size, 1))
        for i, piece in enumerate(pieces):
            lo_, hi = window.ranges[i]
            planes = (
                [p % size for p in range(lo_, hi)]
                if periodic
                else list(range(max(lo_, 0), min(hi, size)))
            )
            np.testing.assert_array_equal(piece, x[planes])
            np.add.at(copies, planes, 1.0)
        # The gradient of half the square of what all windows hold.
        machine.held[wide] = machine._recut(halo)
        np.testing.assert_allclose(machine._halo_add(add).whole, copies * x, rtol=1e-14)
        held = machine._recut(halo)
        held.pieces = [rng.standard_normal(piece.shape) for piece in held.pieces]
        left = sum(float((a * b).sum()) for a, b in zip(pieces, held.pieces, strict=True))
        machine.held[wide] = held
        right = float((x * machine._halo_add(add).whole).sum())
        assert abs(left - right) <= 16 * np.finfo(float).eps * (abs(left) + 100)


@pytest.mark.parametrize("mesh", [(2, 3), (3, 2), (2, 2), (1, 4)])
def test_two_mesh_axes(mesh: tuple[int, int]) -> None:
    space = lo.Space((5, 7), "float64")
    x = space.random(1)
    pairs: list[tuple[State, State]] = [
        (a, b) for a in ENDS for b in ENDS if a == REPLICATED or a != b
    ]
    for source, target in product(pairs, pairs):
        writer = Writer(mesh)
        first = writer.value(Value(space, source))
        last = writer.to(writer.to(first, (PARTIAL, source[1])), target)
        program = writer.program([first], [last])
        grid = Mesh(tuple(range(mesh[0] * mesh[1])), mesh, ("a", "b"))
        blocks = Blocks(grid.shape, grid.coordinates)
        for one in (program, program.adjoint()):
            got = run(one, [x], blocks, lambda t, c: [t(i) for i in range(c)])[0]
            np.testing.assert_array_equal(got, x)
