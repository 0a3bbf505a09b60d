"""Lowered operators on worker threads and in turn: the numbers of the operators themselves."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import compositions
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linops as lo
import solvers
from linops import functionals as fn
from linops.compiled import pool
from linops.errors import PlacementError
from linops.testing import check_operator, dot_test
from linops.testing.strategies import compositions as trees
from sharding import plan
from sharding.graph import flatten
from sharding.options import forbidden, options
from sharding.testing import check_placement


def _parts(x: Any) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, x)) if isinstance(x, tuple) else (np.asarray(x),)


def assert_close(got: Any, wanted: Any, rtol: float = 1e-12) -> None:
    """Members agree to rounding of their largest entry."""
    got, wanted = _parts(got), _parts(wanted)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if b.size:
            np.testing.assert_allclose(a, b, rtol=0, atol=rtol * (np.abs(b).max() + 1e-30))


@pytest.mark.slow
@pytest.mark.parametrize("name", compositions.LINEAR)
@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_every_composition_on_any_number_of_devices(name: str, executor: str) -> None:
    A = compositions.LINEAR[name]()
    x, y = A.domain.random(1), A.codomain.random(2)
    forward, backward = A @ x, A.H @ y
    for n in (1, 2, 3, 5, 8):
        B = plan(A, devices=n, executor=executor).lower()
        assert_close(B @ x, forward)
        assert_close(B.H @ y, backward)


@pytest.mark.parametrize(
    "partition", ["view", "z", "y", "row", {"view": 2, "z": 3}, {"view": 3, "col": 2}]
)
def test_a_projector_by_any_axis(partition: Any) -> None:
    A = compositions.projector()
    x, y = A.domain.random(1), A.codomain.random(2)
    counts = (6,) if isinstance(partition, dict) else (2, 3, 8)
    for n in counts:
        p = plan(A, devices=n, partition=partition)
        B = p.lower()
        assert_close(B @ x, A @ x)
        assert_close(B.H @ y, A.H @ y)
        (compute,) = [s for s in p.forward.steps if s.kind == "Compute"]
        names = tuple(partition) if isinstance(partition, dict) else (partition,)
        assert compute.cuts == names


def test_owner_computed_outputs_are_the_same_bits_on_any_number_of_devices() -> None:
    A = compositions.projector().with_precision("float32")
    x = A.domain.random(1)
    one = A @ x
    for n in (2, 3, 5, 8):
        B = plan(A, devices=n, partition="view").lower()
        np.testing.assert_array_equal(B @ x, one)


def test_deterministic_plans_give_the_same_bits_both_ways() -> None:
    A = compositions.projector().with_precision("float32")
    x, y = A.domain.random(1), A.codomain.random(2)
    for n in (1, 2, 3, 5, 8):
        p = plan(A, devices=n, deterministic=True)
        B = p.lower()
        np.testing.assert_array_equal(B @ x, A @ x)
        np.testing.assert_array_equal(B.H @ y, A.H @ y)
        kinds = {s.kind for program in (p.forward, p.adjoint) for s in program.steps}
        assert not kinds & {"AllReduce", "ReduceScatter"}
    solutions = []
    for n, executor, partition in (
        (1, "serial", "z"),
        (3, "threads", "view"),
        (5, "serial", "auto"),
    ):
        p = plan(A, devices=n, executor=executor, partition=partition, deterministic=True)
        for _ in range(2):
            solutions.append(solvers.cgls(p.lower(), y, iterations=4).solution)
    assert all(np.array_equal(s, solutions[0]) for s in solutions)


def test_batches_and_empty_batches_keep_their_axes() -> None:
    A = compositions.LINEAR["projector over gradient"]()
    B = plan(A, devices=3).lower()
    x = np.random.default_rng(0).standard_normal((2, 3, *A.domain.shape))
    assert_close(B @ x, A @ x)
    assert (B @ x[:0])[0].shape == (0, 3, *A.codomain.shape[0])


@pytest.mark.slow
@settings(max_examples=80)
@given(trees(), st.data())
def test_random_trees_meshes_and_partitions(pair: Any, data: st.DataObject) -> None:
    A, dense = pair
    axes = sorted({w.cut for leaf in flatten(A).leaves for w in options(leaf, 1) if w.cut})
    asked = {"executor": data.draw(st.sampled_from(["serial", "threads"]))}
    kind = data.draw(st.integers(0, 2)) if axes else 0
    if kind == 2 and len(axes) > 1:
        names = data.draw(st.permutations(axes))[:2]
        asked["partition"] = {name: data.draw(st.integers(1, 3)) for name in names}
        asked["devices"] = int(np.prod(list(asked["partition"].values())))
    else:
        asked["devices"] = data.draw(st.integers(1, 5))
        asked["partition"] = data.draw(st.sampled_from(axes)) if kind else "auto"
    names = asked["partition"]
    if any(
        name in forbidden(leaf)
        for leaf in flatten(A).leaves
        for name in ([names] if isinstance(names, str) else names)
    ):
        with pytest.raises(PlacementError, match="must not be split"):
            plan(A, **asked)
        return
    B = plan(A, **asked).lower()
    x, y = A.domain.random(1), A.codomain.random(2)
    # A tree may pass through single precision between double ones, or hold what has it.
    single = A.precision != "float64" or any(
        edge.dtype in ("float32", "complex64") for edge in flatten(A).edges
    )
    assert_close(B @ x, A @ x, 1e-4 if single else 1e-10)
    assert_close(B.H @ y, A.H @ y, 1e-4 if single else 1e-10)
    assert B.shape == dense.shape


@pytest.mark.slow
def test_it_is_an_operator_like_any_other() -> None:
    A = compositions.projector()
    B = plan(A, devices=3, partition="view").lower()
    check_operator(B)
    dot_test(B)
    C = pickle.loads(pickle.dumps(B))
    x = A.domain.random(1)
    np.testing.assert_array_equal(C @ x, B @ x)
    assert_close((B.H @ B) @ x, A.H @ (A @ x))
    assert_close((2 * B + B) @ x, 3 * (A @ x))


def test_gram_columns_and_diagonals_keep_the_placements() -> None:
    A = compositions.projector()
    w = np.random.default_rng(5).random(A.codomain.shape)
    p = plan(A, devices=3, partition="view")
    B = p.lower()
    x = A.domain.random(1)
    G = B.gram(w)
    assert_close(G @ x, A.gram(w) @ x)
    assert_close(G.diagonal(), A.gram(w).diagonal())
    assert G.domain.home.placement == p.domain_placement
    index = np.array([3, 0, -1, 17])
    C = B.columns(index)
    z = C.domain.random(7)
    assert_close(C @ z, A.columns(index) @ z)
    assert C.codomain.home.placement == p.codomain_placement


def _functionals() -> dict[str, Any]:
    A = compositions.projector()
    V, W = A.domain, A.codomain
    misfit = fn.LeastSquares(W).translate(W.random(9)) @ A
    return {
        "misfit": misfit,
        "qggmrf": fn.QGGMRF(V),
        "total variation": fn.TotalVariation(V),
        "l1": fn.L1(V),
        "huber": fn.Huber(V, 0.1),
        "misfit and prior": misfit + 0.3 * fn.QGGMRF(V),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", list(_functionals()))
@pytest.mark.parametrize("partition", ["auto", "z"])
def test_functionals_are_global(name: str, partition: str) -> None:
    f = _functionals()[name]
    x = f.domain.random(5)
    for n in (1, 2, 3, 8):
        B = plan(f, devices=n, partition=partition).lower()
        value = B(x)
        assert isinstance(value, float)
        assert value == pytest.approx(f(x), rel=1e-12)
        for attempt in (lambda g: g.gradient(x), lambda g: g.surrogate(x) @ x):
            try:
                wanted = attempt(f)
            except TypeError:
                continue
            assert_close(attempt(B), wanted)


def test_a_plan_is_linearised_block_by_block() -> None:
    A = compositions.projector()
    N = lo.transmission(A, 2.0)
    x, y = A.domain.random(1), A.codomain.random(2)
    for n in (1, 2, 3, 8):
        B = plan(N, devices=n, partition="view").lower()
        assert_close(B(x), N(x))
        J, wanted = B.jacobian(x), N.jacobian(x)
        assert_close(J @ x, wanted @ x)
        assert_close(J.H @ y, wanted.H @ y)
        assert_close(B.vjp(x, y), N.vjp(x, y))


def test_a_worker_s_error_reaches_the_caller_with_its_device() -> None:
    def broken(x: np.ndarray) -> np.ndarray:
        raise ArithmeticError("no result")

    space = lo.Space((6,), "float64", ("x",))
    A = lo.from_functions(
        broken, broken, domain=space, codomain=space, rule="x -> x", blockwise=True
    )
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(ArithmeticError, match="no result") as caught:
            plan(A, devices=3).lower() @ np.ones(6)
        assert any("device" in note for note in caught.value.__notes__)
    assert threading.active_count() <= before + 8


def test_two_plans_at_once_from_two_threads() -> None:
    A = compositions.projector()
    x = A.domain.random(1)
    plans = [plan(A, devices=n, partition=axis).lower() for n, axis in ((3, "view"), (2, "z"))]
    wanted = A @ x
    faults: list[BaseException] = []

    def work(B: Any) -> None:
        try:
            for _ in range(20):
                assert_close(B @ x, wanted)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(B,)) for B in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not faults


@pytest.mark.parametrize(
    "chunks", [{"view": 3}, {"z": 2}, {"view": 2, "y": 3}, {"row": 4}, {"z": 1}]
)
def test_bands_change_no_result(chunks: dict[str, int]) -> None:
    A = compositions.projector()
    x, y = A.domain.random(1), A.codomain.random(2)
    for n in (1, 3):
        p = plan(A, devices=n, chunks=chunks)
        assert any(step.kind == "Loop" for step in p.forward.steps)
        B = p.lower()
        assert_close(B @ x, A @ x)
        assert_close(B.H @ y, A.H @ y)


def test_bands_that_lie_in_a_padding_read_nothing() -> None:
    space = lo.Space((5, 4), "float64", ("z", "x"))
    x = space.random(0)
    for n in (1, 3):
        B = plan(lo.Pad(space, {"z": (1, 2)}), devices=n, chunks={"z": 1}).lower()
        y = B.codomain.random(1)
        assert_close(B @ x, np.pad(x, ((1, 2), (0, 0))))
        assert_close(B.H @ y, y[1:6])


def test_a_deterministic_plan_that_would_split_a_sum_says_what_to_leave_out() -> None:
    total = lo.SumOver(lo.Space((5, 4), axes=("z", "x")), "z")
    with pytest.raises(PlacementError, match="deterministic=True splits no contracted axis"):
        plan(total, devices=2, partition="z", deterministic=True)
    alone = plan(total, devices=1, partition="z", deterministic=True).lower()
    x = total.domain.random(1)
    np.testing.assert_array_equal(alone @ x, total @ x)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_an_added_axis_around_a_ring_comes_with_both_its_ends(n: int) -> None:
    space = lo.Space((4,), "float64", ("a",))
    ring = lo.Convolve(space, np.array([1.0, 10.0, 100.0]), boundary="periodic")
    A = lo.concat([ring, 3 * ring], axis="a")
    x = np.arange(1.0, 5.0)
    once = np.array([412.0, 123.0, 234.0, 341.0])
    B = plan(A, devices=n, partition="a").lower()
    np.testing.assert_array_equal(B @ x, np.concatenate([once, 3 * once]))


def test_bands_of_a_functional_are_refused() -> None:
    with pytest.raises(PlacementError, match="over an axis 'z'; none loops over any axis"):
        plan(lo.L1(lo.Space((5, 4), axes=("z", "x"))), devices=2, chunks={"z": 1})


def test_bands_of_an_axis_that_nobody_has_are_refused() -> None:
    with pytest.raises(PlacementError, match="no leaf loops over an axis 'time'"):
        plan(compositions.projector(), chunks={"time": 3})
    with pytest.raises(PlacementError, match="give a count"):
        plan(compositions.projector(), chunks={"z": 0})


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_torch_tensors_and_their_gradients(executor: str) -> None:
    torch = pytest.importorskip("torch")
    A = compositions.projector()
    for partition in ("view", "z", {"view": 3, "z": 1}):
        B = plan(A, devices=3, partition=partition, executor=executor).lower()
        x = torch.tensor(A.domain.random(1), requires_grad=True)
        v = torch.tensor(A.domain.random(2))
        (g,) = torch.autograd.grad((B @ x).pow(2).sum(), x, create_graph=True)
        assert_close(g.detach().numpy(), 2 * (A.H @ (A @ x.detach().numpy())))
        (h,) = torch.autograd.grad((g * v).sum(), x)
        wanted = A.H @ (A @ v.numpy())
        assert_close(h.numpy(), 2 * wanted)
        with torch.no_grad():
            assert not (B @ x).requires_grad
        several = torch.stack([x.detach(), v])
        assert_close(torch.func.vmap(lambda t, B=B: B @ t)(several)[1].numpy(), A @ v.numpy())
        got = torch.func.jvp(lambda t, B=B: B.H @ (B @ t), (x.detach(),), (v,))[1]
        assert_close(got.numpy(), wanted)


@pytest.mark.parametrize("name", list(_functionals()))
def test_functionals_of_torch_tensors_and_their_gradients(name: str) -> None:
    torch = pytest.importorskip("torch")
    f = _functionals()[name]
    x = f.domain.random(5)
    for partition in ("auto", "z"):
        B = plan(f, devices=3, partition=partition).lower()
        leaf = torch.tensor(x, requires_grad=True)
        value = B(leaf)
        assert float(value.detach()) == pytest.approx(f(x), rel=1e-12)
        value.backward()
        try:
            wanted = f.gradient(x)
        except TypeError:
            continue
        assert_close(leaf.grad.numpy(), wanted)
        assert_close(torch.func.grad(B)(torch.tensor(x)).numpy(), wanted)
        values = torch.func.vmap(B)(torch.tensor(np.stack([x, 2 * x])))
        assert float(values[1]) == pytest.approx(f(2 * x), rel=1e-12)


def test_weights_of_torch_get_their_gradient() -> None:
    torch = pytest.importorskip("torch")
    A = compositions.projector()
    w = torch.rand(A.codomain.shape, dtype=torch.float64, requires_grad=True)
    for executor in ("serial", "threads"):
        B = plan(lo.Diagonal(w, A.codomain) @ A, devices=3, partition="view", executor=executor)
        B = B.lower()
        x = torch.tensor(A.domain.random(1), requires_grad=True)
        with torch.no_grad():
            B @ x  # blocks made without a graph are not kept
        gw, gx = torch.autograd.grad((B @ x).pow(2).sum(), [w, x])
        weights, y = w.detach().numpy(), A @ x.detach().numpy()
        assert_close(gw.numpy(), 2 * weights * y**2)
        assert_close(gx.numpy(), 2 * (A.H @ (weights**2 * y)))


def test_complex_data_on_a_real_operator() -> None:
    A = compositions.LINEAR["diffusion"]()
    B = plan(A, devices=3).lower()
    x = A.domain.random(1) + 1j * A.domain.random(2)
    assert_close(B @ x, A @ x)


def test_workers_share_the_leading_axis() -> None:
    A = compositions.projector()
    x = np.random.default_rng(0).standard_normal((5, 2, *A.domain.shape))
    for n, executor in ((1, "threads"), (2, "serial"), (3, "threads"), (8, "serial")):
        B = plan(A, devices=n, executor=executor, partition="batch").lower()
        np.testing.assert_array_equal(B @ x, A @ x)
        np.testing.assert_array_equal(B @ x[0, 0], A @ x[0, 0])
        assert (B @ x[:0]).shape == (0, 2, *A.codomain.shape)
        assert_close(B.H @ (A @ x), A.H @ (A @ x))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["projector over gradient", "two rings", "gram with weights"])
def test_check_placement_passes(name: str) -> None:
    A = compositions.LINEAR[name]()
    check_placement(A, plan(A, devices=3))


def test_check_placement_finds_a_wrong_block() -> None:
    class Shifted(lo.LinearOperator):
        """Its blocks forget where they start."""

        def __init__(self, n: int) -> None:
            space = lo.Space((n,), "float64", ("x",))
            super().__init__(space, space, rule="x -> x")
            self.n = n

        def _apply(self, x: np.ndarray) -> np.ndarray:
            return x * np.arange(1, self.n + 1)

        def _apply_adjoint(self, y: np.ndarray) -> np.ndarray:
            return self._apply(y)

        def _block(self, axis: str, start: int, stop: int, padded: bool) -> lo.LinearOperator:
            return Shifted(stop - start)

    A = Shifted(7)
    with pytest.raises(AssertionError, match="the result of the lowered Shifted differs by"):
        check_placement(A, plan(A, devices=3))


def test_out_of_memory_says_what_was_planned() -> None:
    def greedy(x: np.ndarray) -> np.ndarray:
        raise MemoryError("no room")

    space = lo.Space((6,), "float64", ("x",))
    A = lo.from_functions(
        greedy, greedy, domain=space, codomain=space, rule="x -> x", blockwise=True
    )
    with pytest.raises(MemoryError, match=r"needs [0-9,]+ bytes on each of 3 devices.*memory="):
        plan(A, devices=3).lower() @ np.ones(6)


def test_a_trace_stays_in_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")

    def elsewhere(task: Callable[[int], None], n: int) -> None:
        with ThreadPoolExecutor(1) as workers:
            list(workers.map(task, range(n)))

    monkeypatch.setattr(pool, "run", elsewhere)
    space = lo.Space((5, 3), "float32", ("z", "x"))
    G = lo.Gradient(space)
    B = plan(G, devices=2, partition="z").lower()
    x = space.random(1)
    np.testing.assert_allclose(B @ x, G @ x, atol=1e-6)
    found = jax.jit(lambda x: B.H @ (B @ x))(x)
    np.testing.assert_allclose(found, G.H @ (G @ x), atol=1e-5)
