"""Programs of random steps, forward and reversed, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linops as lo
from sharding.devices import Worker
from sharding.executors.blocks import Blocks
from sharding.executors.interpreter import run
from sharding.machine import Machine
from sharding.mesh import Mesh
from sharding.options import options
from sharding.program import Program
from sharding.states import PARTIAL, REPLICATED, Partial, Sharded, State, Windowed
from sharding.steps import AllReduce, Compute, Value
from sharding.writer import Writer

SPACE = lo.Space((5, 4), "float64", ("z", "y"))


def _leaf(kind: int, seed: int) -> lo.LinearOperator:
    rng = np.random.default_rng(seed)
    if kind == 0:
        return lo.Diagonal(rng.standard_normal(SPACE.shape), SPACE)
    boundary = ("zero", "periodic")[seed % 2]
    kernel = rng.standard_normal((3, 1) if seed % 3 else (1, 3))
    return lo.Convolve(SPACE, kernel, boundary=boundary)


def _execute(program: Program, x: np.ndarray, blocks: Blocks) -> np.ndarray:
    def in_turn(task, n):
        for i in range(n):
            task(i)

    return run(program, [x], blocks, in_turn)[0]


@st.composite
def _programs(draw: st.DrawFn) -> tuple[Program, np.ndarray, Mesh]:
    """A program of up to 8 steps, and the matrix of what it does."""
    shape = draw(st.sampled_from([(1,), (2,), (3,), (4,), (8,), (2, 2), (3, 2)]))
    mesh = Mesh(
        tuple(Worker(i) for i in range(int(np.prod(shape)))), shape, ("a", "b")[: len(shape)]
    )
    writer = Writer(shape)

    def ends() -> tuple[State, ...]:
        free = [REPLICATED, Sharded(0), Sharded(1)]
        states: list[State] = []
        for _ in shape:
            states.append(
                draw(st.sampled_from([s for s in free if s == REPLICATED or s not in states]))
            )
        return tuple(states)

    def between() -> tuple[State, ...]:
        free = [REPLICATED, PARTIAL, Sharded(0), Sharded(1)]
        states: list[State] = []
        for _ in shape:
            legal = [s for s in free if not isinstance(s, Sharded) or s not in states]
            states.append(draw(st.sampled_from(legal)))
        return tuple(states)

    k = writer.value(Value(SPACE, ends()))
    first, dense, number = k, np.eye(SPACE.size), 0
    while len(writer.steps) < 6 and draw(st.booleans()):
        if draw(st.booleans()):
            k = writer.to(k, between())
            continue
        leaf = _leaf(draw(st.integers(0, 1)), draw(st.integers(0, 5)))
        ways, taken = [], set()
        for n in shape:
            legal = [w for w in options(leaf, n) if w.cut not in taken or w.cut is None]
            way = draw(st.sampled_from(legal))
            taken.add(way.cut)
            ways.append(way)
        k = writer.to(k, tuple(way.reads[0] for way in ways))
        out = writer.value(Value(SPACE, tuple(way.makes[0] for way in ways)))
        writer.steps.append(Compute((k,), (out,), leaf, tuple(w.cut for w in ways), number))
        k, number = out, number + 1
        dense = leaf.to_dense() @ dense
    k = writer.to(k, ends())
    return writer.program([first], [k]), dense, mesh


@pytest.mark.slow
@settings(max_examples=200)
@given(_programs())
def test_random_programs_and_their_adjoints_are_matrices(drawn) -> None:
    program, dense, mesh = drawn
    blocks = Blocks(mesh.shape, mesh.coordinates)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, *SPACE.shape))
    got = _execute(program, x, blocks)
    np.testing.assert_allclose(got.ravel(), dense @ x.ravel(), rtol=0, atol=1e-12 * _size(dense))
    back = program.adjoint()
    got = _execute(back, y, blocks)
    np.testing.assert_allclose(got.ravel(), dense.T @ y.ravel(), rtol=0, atol=1e-12 * _size(dense))
    twice = _execute(back.adjoint(), x, blocks)
    np.testing.assert_allclose(twice.ravel(), dense @ x.ravel(), rtol=0, atol=1e-12 * _size(dense))


@pytest.mark.slow
@settings(max_examples=200)
@given(_programs())
def test_no_two_states_cut_one_array_axis(drawn) -> None:
    program, _, _ = drawn
    for value in program.values:
        axes = [s.axis for s in value.states if isinstance(s, (Sharded, Windowed))]
        assert len(set(axes)) == len(axes)
    for k in (*program.inputs, *program.outputs):
        assert not any(isinstance(s, (Partial, Windowed)) for s in program.values[k].states)


def test_neighbors_fuse() -> None:
    writer = Writer((4,))
    k = writer.value(Value(SPACE, (Sharded(0),)))
    k2 = writer.to(writer.to(k, (PARTIAL,)), (REPLICATED,))
    program = writer.program([k], [k2])
    assert [step.kind for step in program.steps] == ["AllGather"]
    writer = Writer((4,))
    k = writer.value(Value(SPACE, (REPLICATED,)))
    k2 = writer.to(writer.to(k, (PARTIAL,)), (REPLICATED,))
    program = writer.program([k], [k2])
    assert program.steps == ()
    assert program.outputs == (k,)


def test_a_replicated_input_ends_the_adjoint_in_one_sum() -> None:
    A = lo.Matrix(np.ones((6, 5)), domain=lo.Space((5,), "float64", ("i",)))
    writer = Writer((3,))
    k = writer.value(Value(A.domain, (REPLICATED,)))
    out = writer.value(Value(A.codomain, (Sharded(0),)))
    cut = A.rule.codomain[0][0].name
    writer.steps.append(Compute((k,), (out,), A, (cut,), 0))
    program = writer.program([k], [out])
    back = program.adjoint()
    assert [step.kind for step in back.steps] == ["Compute", "AllReduce"]
    assert isinstance(back.steps[1], AllReduce)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_volumes_are_those_of_the_table(n: int) -> None:
    space = lo.Space((8, 24), "float32")
    B = 8 * 24 * 4

    def volume(source: State, target: State) -> int:
        writer = Writer((n,))
        k = writer.value(Value(space, (source,)))
        out = writer.to(k, (target,))
        program = writer.program([k], [out])
        return program.volume(program.steps[0])

    padded = -(-8 // n) * n * 24 * 4
    assert volume(REPLICATED, Sharded(0)) == 0
    assert volume(Sharded(1), REPLICATED) == (n - 1) * B
    assert volume(PARTIAL, Sharded(1)) == (n - 1) * B
    assert volume(PARTIAL, REPLICATED) == 2 * (n - 1) * B
    assert volume(Sharded(0), Sharded(1)) == (n - 1) * padded // n


def test_a_machine_works_on_as_many_devices_as_it_has_cores() -> None:
    machine = Machine(1.0, 1.0, 1.0, 0.0, cores=2)
    assert [machine.at_once(n) for n in (1, 2, 5)] == [1, 2, 2]


def _size(dense: np.ndarray) -> float:
    return float(np.abs(dense).sum() + 1)
