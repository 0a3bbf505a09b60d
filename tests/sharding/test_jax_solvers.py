"""Solvers on `shard_map` plans: their loops are one program, and their values the serial ones."""

from __future__ import annotations

import gc
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import compositions
import numpy as np
import pytest
from solves import SOLVES, assert_same, problem

import geometries as ct
import linops as lo
import solvers
from linops.errors import CheckpointError, PlacementError
from sharding import plan
from sharding.executors.shard_map import ShardMapEngine
from sharding.states import REPLICATED, Sharded
from solvers.cgls import _several
from solvers.elements import admit, require_finite
from solvers.subsets import Descent, _run_pass

jax = pytest.importorskip("jax")


pytestmark = [
    pytest.mark.usefixtures("x64"),
    # Small scans of images that fill their grid are truncated.
    pytest.mark.filterwarnings("ignore:the object reaches:RuntimeWarning"),
]


def _problem(seed: int = 0) -> tuple[Any, Any, np.ndarray]:
    A = compositions.projector((5, 6, 6), 12)
    y = A @ A.domain.random(seed) + 0.1 * A.codomain.random(seed + 1)
    devices = jax.devices("cpu")[:3]
    return A, plan(A, devices=devices, executor="shard_map", partition="view").lower(), y


_SOLVERS = {
    "cgls": lambda A, y, n, **o: solvers.cgls(A, y, iterations=n, damp=3.0, **o),
    "sirt": lambda A, y, n, **o: solvers.sirt(A, y, iterations=n, **o),
    "adam": lambda A, y, n, **o: solvers.tv(A, y, weight=0.1, iterations=n, **o),
    "pdhg": lambda A, y, n, **o: solvers.tv(A, y, weight=0.1, iterations=n, method="pdhg", **o),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _SOLVERS)
def test_a_solve_is_one_program(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    solve = _SOLVERS[name]
    A, B, y = _problem()
    wanted = solve(A, y, 30)
    placed = B.codomain.home.put(y)
    got = solve(B, placed, 30)
    assert got.iterations == 30 and got.reason == wanted.reason
    assert B.domain.home.placement.holds(got.solution)
    np.testing.assert_allclose(
        B.domain.home.gather(got.solution), wanted.solution, rtol=0,
        atol=1e-9 * np.abs(wanted.solution).max(),
    )  # fmt: skip
    np.testing.assert_allclose(got.residual_history, wanted.residual_history, rtol=1e-8)
    for key, history in wanted.histories.items():
        np.testing.assert_allclose(got.histories[key], history, rtol=1e-7, err_msg=key)

    # Another scan of equal structure compiles nothing, and more iterations cost nothing more of
    # the host: neither programs that it starts nor values that it reads.
    counts = []
    run, read = ShardMapEngine.run, type(placed).__array__
    for n in (10, 40):
        seen = [0, 0]

        def counted(self: Any, *a: Any, seen: Any = seen) -> Any:
            seen[0] += 1
            return run(self, *a)

        def watched(self: Any, *a: Any, seen: Any = seen, **k: Any) -> Any:
            seen[1] += 1
            return read(self, *a, **k)

        _, C, other = _problem(5)
        monkeypatch.setattr(ShardMapEngine, "run", counted)
        monkeypatch.setattr(type(placed), "__array__", watched)
        with jax.log_compiles():
            assert solve(C, C.codomain.home.put(other), n).iterations == n
        monkeypatch.undo()
        counts.append(seen)
    assert counts[0] == counts[1]
    assert "Compiling" not in caplog.text

    # A tolerance that is met half way is met after the same iteration, wherever the start lies.
    start = np.abs(A.domain.random(3))
    goal = 1.001 * solve(A, y, 7, x0=start).residual_history[-1]
    wanted = solve(A, y, 30, x0=start, atol=goal)
    held = []
    for x0 in (start, B.domain.home.put(start)) * 2:
        got = solve(B, placed, 30, x0=x0, atol=goal)
        assert (got.iterations, got.reason) == (wanted.iterations, wanted.reason)
        assert wanted.converged and got.iterations <= 7
        np.testing.assert_allclose(got.residual_history, wanted.residual_history, rtol=1e-8)
        assert B.domain.home.placement.holds(got.solution)
        gc.collect()
        held.append(sum(a.nbytes for a in jax.live_arrays()))
    # Nothing stays of a solve, and nothing that was given is taken.
    assert held[1] == held[3]
    np.testing.assert_array_equal(B.codomain.home.gather(placed), y)
    np.testing.assert_array_equal(B.domain.home.gather(x0), start)
    turned = plan(A, devices=jax.devices("cpu")[2::-1], executor="shard_map", partition="z").lower()
    with pytest.raises(PlacementError, match="lies on"):
        solve(B, placed, 2, x0=turned.domain.home.put(start))
    with pytest.raises(TypeError, match=r"y is traced by JAX.*outside of jit.*A\.H @"):
        jax.jit(lambda y: solve(B, y, 2).solution)(placed)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["shard_map", "threads"])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_every_solver_ends_alike(executor: str, n: int, quick_xla: None) -> None:
    A, y = problem()
    partition = "view" if n in (1, 5) else "z"
    B = plan(A, devices=jax.devices("cpu")[:n], executor=executor, partition=partition).lower()
    # Of the other numbers one solver stands for all: the rest is compilation.
    for solve in SOLVES.values() if n == 5 else [SOLVES["cgls"]]:
        got = solve(B, B.codomain.home.put(y))
        assert B.domain.home.placement.holds(got.solution)
        assert_same(got, solve(A, y), B.domain.home.gather(got.solution))
    wanted = solvers.cgls(A, y, iterations=30, damp=3.0)
    got = solvers.cgls(B, y, iterations=30, damp=3.0)
    near = 1e-8 * np.abs(wanted.solution).max()
    np.testing.assert_allclose(got.solution, wanted.solution, rtol=0, atol=near)
    np.testing.assert_allclose(got.residual_history, wanted.residual_history, rtol=1e-6)


@pytest.mark.slow
def test_an_iteration_holds_the_collectives_of_the_plan_and_two_sums() -> None:
    _, B, y = _problem()
    x, r = B.domain.zeros(), B.codomain.home.put(y)
    active, zero = np.ones((), bool), np.zeros(())
    operands = B, (x, r, x, np.ones(())), 5, active, zero, None, 9.0
    text = jax.jit(_several).lower(*operands).compile().as_text()
    kinds = [
        step.kind for p in (B.plan.forward, B.plan.adjoint) for step in p.steps
        if step.kind in ("AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Halo", "HaloAdd")
    ]  # fmt: skip
    assert kinds == ["AllReduce"]
    found = re.findall(r" (all-\w+|reduce-scatter|collective-permute)(?:-start)?\(", text)
    # The curvature, with |p|^2 for the damping; then |r|^2 with |A.H r|^2.
    assert found == ["all-reduce"] * 3
    assert text.count(" while(") == 1


@pytest.mark.slow
def test_callbacks_see_every_iteration_and_tolerances_end_where_they_are_met() -> None:
    A, B, y = _problem()
    seen: list[int] = []
    solvers.cgls(B, y, iterations=3, callback=lambda k, *_: seen.append(k))
    assert seen == [1, 2, 3]
    for options in ({"rtol": 0.3}, {"normal_rtol": 0.05}):
        wanted = solvers.cgls(A, y, iterations=60, **options)
        got = solvers.cgls(B, y, iterations=60, **options)
        assert (got.iterations, got.reason) == (wanted.iterations, wanted.reason)
        assert 1 < got.iterations < 60
    pair = np.stack([y, 0 * y])
    got = solvers.cgls(B, pair, iterations=5)
    assert got.reason == solvers.cgls(A, pair, iterations=5).reason
    np.testing.assert_allclose(got.solution[1], 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "options"),
    [(solvers.sirt, {}), (solvers.tv, {"weight": 0.1, "method": "pdhg"})],
    ids=["sirt", "pdhg"],
)
def test_a_solve_on_devices_resumes_bit_for_bit(
    solver: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    A = compositions.projector((5, 6, 6), 4)
    y = A @ A.domain.random(0)
    # Five slices on two devices: six planes, one of them padding.
    B = plan(A, devices=jax.devices("cpu")[:2], executor="shard_map", partition="z").lower()
    wanted = solver(B, y, iterations=4, **options)
    solver(B, y, iterations=2, checkpoint_directory=tmp_path, **options)
    for file in tmp_path.glob("*/*/*.npy"):
        assert 6 not in np.load(file).shape[-3:-2], "files hold elements of the real shape"
    # Another process makes its own plan, of the same kind, with other memory free.
    settings = replace(B.plan.settings, machine=replace(B.plan.machine, memory=1e9))
    C = replace(B.plan, settings=settings).lower()
    got = solver(C, y, iterations=4, resume=tmp_path, **options)
    np.testing.assert_array_equal(got.solution, wanted.solution)
    assert got.residual_history == wanted.residual_history


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
def test_a_solve_resumes_on_other_devices_executors_and_without_a_plan(tmp_path: Path) -> None:
    A = compositions.projector((5, 6, 6), 4)
    y = A @ A.domain.random(0)
    devices = jax.devices("cpu")
    B = plan(A, devices=devices[:2], executor="shard_map", partition="z").lower()
    wanted = np.asarray(solvers.sirt(A, y, iterations=4).solution)
    solvers.sirt(B, B.codomain.home.put(y), iterations=2, checkpoint_directory=tmp_path)
    layout = json.loads(next(tmp_path.glob("*/*/metadata.json")).read_text())["layout"]
    assert layout["domain"] == [str(B.domain.home.placement)]
    others = (
        A,
        plan(A, devices=3, executor="threads", partition="view").lower(),
        plan(A, devices=devices[3::-1], executor="shard_map", partition="view").lower(),
    )
    for other in others:
        got = solvers.sirt(other, y, iterations=4, resume=tmp_path)
        np.testing.assert_allclose(got.solution, wanted, rtol=0, atol=1e-12 * wanted.max())
    with pytest.raises(CheckpointError, match="operator"):
        wrong = plan(2 * A, devices=devices[:2], executor="shard_map", partition="z").lower()
        solvers.sirt(wrong, y, iterations=4, resume=tmp_path)


@pytest.mark.slow
def test_a_deterministic_solve_has_its_bits_on_any_devices() -> None:
    space = lo.Space((7, 6), "float64", ("z", "x"))
    y = space.random(0)

    def solved(A: Any, n: int, axis: int) -> np.ndarray:
        cut: list[Any] = [(Sharded(axis),)]
        p = plan(A, devices=jax.devices("cpu")[:n], executor="shard_map", deterministic=True)
        B = p.again(A, entries=cut, exits=cut).lower()
        return np.asarray(B.domain.home.gather(solvers.cgls(B, y, iterations=6).solution))

    # Its adjoint, planned by itself, has the structure of the forward with other numbers in it.
    A = lo.Convolve(space, np.array([[0.25], [0.5], [0.2]]), boundary="zero")
    wanted = solvers.cgls(A, y, iterations=6).solution
    np.testing.assert_allclose(solved(A, 2, 0), wanted, rtol=0, atol=1e-11)
    # Compiled for one shape or another, only elementwise code rounds alike.
    D = lo.Diagonal(1 + np.random.default_rng(1).random(space.shape), space)
    assert np.array_equal(solved(D, 2, 0), solved(D, 3, 1))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize("executor", ["shard_map", "threads"])
def test_coordinate_descent_on_a_volume_in_shares(
    executor: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    beam = ct.ParallelBeam(np.linspace(0, np.pi, 7, endpoint=False), ct.Detector((5, 9)))
    A = ct.Projector(beam, ct.Grid((5, 6, 6)), precision="float64")
    y = A @ A.domain.random(0) + 0.1 * A.codomain.random(1)
    prior = lo.functionals.QGGMRF(A.domain, sigma_x=1.0)
    if executor == "shard_map":
        prior = prior + 0.1 * lo.functionals.Proximity(A.domain.random(4), 0.5, A.domain)
    w = np.random.default_rng(3).random(y.shape)
    # Five slices on three devices: six planes, one of them padding.
    B = plan(A, devices=jax.devices("cpu")[:3], executor=executor, partition="z").lower()
    options: dict[str, Any] = {"weights": w, "iterations": 2, "partitions": 4, "bounds": (0, None)}
    wanted = solvers.vcd(A, y, prior, **options)

    seen: list[int] = []
    passes: list[tuple[Any, ...]] = []
    advance, run = Descent.advance, ShardMapEngine.run

    def watched(descent: Any, *a: Any) -> None:
        passes.append((*a, descent.x, descent.e, descent._problem))
        before = len(seen)
        advance(descent, *a)
        passes[-1] += (len(seen) - before,)

    def noted(function: Any) -> Any:
        return lambda *a, **k: (seen.append(1), function(*a, **k))[1]

    placed = B.codomain.home.put(y)
    kept = B.domain.home.put(np.full(A.domain.shape, 0.1))
    monkeypatch.setattr(Descent, "advance", watched)
    monkeypatch.setattr(ShardMapEngine, "run", noted(run))
    monkeypatch.setattr(type(placed), "__array__", noted(type(placed).__array__))
    got = solvers.vcd(B, placed, prior, **options)
    assert got.solution.shape == (6, 6, 6) and B.domain.home.placement.holds(got.solution)
    found = B.domain.home.gather(got.solution)
    np.testing.assert_allclose(found, wanted.solution, rtol=0, atol=1e-10)
    for name, values in wanted.histories.items():
        np.testing.assert_allclose(got.histories[name], values, rtol=1e-9)
    if executor == "threads":
        return

    # A pass is one program: nothing else is started in it, and nothing read by the host.
    assert passes[1][-1] == 0
    # Other subsets, weights and data compile nothing; what a caller gave stays his.
    del options["weights"]
    options |= {"weights": 0.5 * w, "seed": 7}
    with jax.log_compiles():
        solvers.vcd(B, B.codomain.home.put(2 * y), prior, x0=kept, **options)
    assert "Compiling jit(_passed)" not in caplog.text
    np.testing.assert_array_equal(B.domain.home.gather(kept), 0.1)

    # Every device holds its shares and no more; garbage in the padding changes no bit.
    subsets, visits, x, e, problem, _ = passes[-1]
    program = jax.jit(_run_pass)
    x, e = (
        space.home.put(np.random.default_rng(6).random(space.shape))
        for space in (B.domain, B.codomain)
    )
    text = program.lower(subsets, visits, x, e, problem).compile().as_text()
    largest = max(math.prod(map(int, n.split(","))) for n in re.findall(r"f64\[([\d,]+)\]", text))
    assert largest <= 7 * 2 * 9
    assert "all-to-all" not in text and text.count("f64[5,") == 0
    clean = [np.asarray(part) for part in program(subsets, visits, x, e, problem)]
    dirty = (
        jax.device_put(np.asarray(part), part.sharding)
        for part in (x.at[5:].set(np.nan), e.at[:, 5:].set(1e30))
    )
    found = [np.asarray(part) for part in program(subsets, visits, *dirty, problem)]
    for real, part, again in zip((np.s_[:5], np.s_[:, :5], ..., ...), clean, found, strict=True):
        np.testing.assert_array_equal(part[real], again[real])


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
def test_a_proximal_map_takes_sharded_and_plain_arrays_mixed() -> None:
    A, B, y = _problem()
    v = A.domain.random(8)
    wanted = solvers.prox_map(A, y, v, 0.5, iterations=1, partitions=2).solution
    for data, near in ((y, B.domain.home.put(v)), (B.codomain.home.put(y), v)):
        got = solvers.prox_map(B, data, near, 0.5, iterations=1, partitions=2).solution
        np.testing.assert_allclose(B.domain.home.gather(got), wanted, rtol=0, atol=1e-12)


def test_the_adjoint_of_a_self_adjoint_operator_leads_back_to_its_devices() -> None:
    space = lo.Space((5, 3), "float64")
    p = plan(lo.Identity(space), devices=jax.devices("cpu")[:2], executor="shard_map")
    B = p.again(lo.Identity(space), entries=[(Sharded(0),)], exits=[(REPLICATED,)]).lower()
    x = B.domain.random(1)
    y = B @ x
    assert y.shape == (5, 3) and x.shape == (6, 3)
    assert B.domain.home.placement.holds(B.H @ y)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads", "shard_map"])
def test_a_solution_has_zeros_in_its_padding(executor: str) -> None:
    A = lo.Diagonal(np.linspace(1, 2, 5), lo.Space(5, "float64", ("z",)))
    B = plan(A, devices=jax.devices("cpu")[:3], executor=executor, partition="z").lower()
    y = B.codomain.home.put(np.ones(5))
    found = solvers.sirt(B, y, iterations=2, bounds=(1, 2)).solution
    assert B.domain.home.placement.holds(found) and found.shape == (6,)
    assert np.asarray(found)[5] == 0 and np.asarray(found)[:5].min() >= 1


def _poisoned(placement: Any, x: Any, value: float) -> Any:
    """`x` on its devices, `value` in its padding."""
    placed = placement.put(x)
    mask = np.broadcast_to(np.asarray(placement.mask(placed.ndim)), placed.shape)
    return jax.device_put(np.where(mask, np.asarray(placed), value), placed.sharding)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["shard_map", "threads"])
def test_what_stands_in_the_padding_of_any_input_is_nobodys_data(executor: str) -> None:
    A = compositions.projector((5, 6, 6), 7)
    devices = jax.devices("cpu")[:2]
    B = plan(A, devices=devices, executor=executor, partition="view").lower()
    rows, columns = B.codomain.home.placement, B.domain.home.placement
    assert rows.padded_size > rows.real_size
    y, x0 = A @ A.domain.ones(), 0.5 * A.domain.ones()
    for value in (np.nan, np.inf, -np.inf):
        for space, element in ((B.codomain, y), (B.domain, x0)):
            dirty = admit(_poisoned(space.home.placement, element, value), space, "y")
            require_finite(dirty, "y")
            np.testing.assert_array_equal(np.asarray(dirty), np.asarray(space.home.put(element)))
    if executor == "threads":
        clean, dirty = (
            solvers.sirt(
                B, _poisoned(rows, y, v), iterations=2, x0=_poisoned(columns, x0, v),
                row_sums=_poisoned(rows, y, v), column_sums=_poisoned(columns, x0, v),
            )
            for v in (0.0, np.nan)
        )  # fmt: skip
        np.testing.assert_array_equal(
            B.domain.home.gather(dirty.solution), B.domain.home.gather(clean.solution)
        )
