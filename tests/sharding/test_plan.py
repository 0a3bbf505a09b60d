"""What plans are asked for, what they refuse, and what they say before anything runs."""

from __future__ import annotations

import re
import time
import tracemalloc
from typing import Any

import compositions
import numpy as np
import pytest

import geometries as ct
import linops as lo
from linops.compiled import pool
from linops.errors import PlacementError, ShapeError
from sharding import Described, Worker, plan
from sharding.graph import flatten
from sharding.machine import Machine, movement_seconds
from sharding.memory import peaks
from sharding.states import PARTIAL, REPLICATED, Sharded, Windowed
from sharding.steps import Value, movement


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "time"}, "no leaf has an axis 'time' .*z"),
        ({"partition": {"view": 2, "time": 2}}, "no leaf has an axis 'time'"),
        ({"partition": {"view": 2, "z": 2}, "devices": 5}, "takes 4 devices, there are 5"),
        ({"partition": {"view": None, "z": None}}, "name the devices"),
        ({"partition": {"view": 0, "z": 2}}, "give a count"),
        ({"partition": {"view": 2, "z": None}, "devices": 5}, "no multiple of 2"),
        ({"partition": 3}, "partition is 3"),
        ({"devices": 0}, "name one or more"),
        ({"devices": []}, "empty"),
        ({"devices": [1, 1]}, "twice"),
        ({"devices": True}, "True"),
        ({"devices": 2.5}, "2.5"),
        ({"devices": [Worker(0), Described(0)]}, "not of one kind"),
        ({"executor": "mpi"}, "threads, shard_map, torch"),
        ({"executor": "torch"}, "init_process_group"),
    ],
)
def test_what_cannot_be_planned_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        plan(compositions.projector(), **options)


def test_an_axis_that_must_not_be_split_names_its_leaf() -> None:
    space = lo.Space((4, 6), "complex128", ("y", "x"))
    with pytest.raises(PlacementError, match="FFT must not be split along 'x'.*may be split: y"):
        plan(lo.FFT(space, axes=("x",)), devices=2, partition="x")


@pytest.mark.parametrize(
    ("options", "word"),
    [({"memory": "8GB"}, "bytes"), ({"memory": -1}, "bytes"), ({"chunks": 3}, "by axis"),
     ({"batch": 3}, "leading"), ({"batch": (-1,)}, "leading")],
)  # fmt: skip
def test_options_of_another_kind_are_told_apart(options: dict[str, Any], word: str) -> None:
    with pytest.raises(PlacementError, match=word):
        plan(lo.Gradient(lo.Space((5, 4))), devices=2, executor="threads", **options)


def test_vectors_with_too_few_axes_are_refused() -> None:
    A = lo.Gradient(lo.Space((5, 4), axes=("y", "x")))
    B = plan(A, devices=2, executor="threads", partition="y").lower()
    with pytest.raises(ShapeError, match="expects"):
        B @ np.zeros((), np.float32)


def test_only_operators_are_planned() -> None:
    with pytest.raises(PlacementError, match="got ndarray"):
        plan(np.eye(3))


@pytest.mark.parametrize("n", [2, 3])
def test_a_name_cuts_inputs_and_outputs_that_have_it(n: int) -> None:
    """However small they are, and where sums join them."""
    space = lo.Space((7, 4), "float32", ("z", "x"))
    G = lo.Gradient(space)
    for A, ins, outs in (
        (G, [0], [1]),
        (lo.hstack([G, 2 * G]), [0, 0], [1]),
        (lo.vstack([G, lo.Identity(space)]), [0], [1, 0]),
        (lo.Identity(space) - G.gram(), [0], [0]),
        (lo.TotalVariation(space, spacing=1e-3), [0], [None]),
        (lo.Gradient(lo.Space((1, 4), axes=("z", "x"))), [0], [1]),
    ):
        p = plan(A, devices=Described.several(n), partition="z")
        assert [q.axis for q in p.domain_placements] == ins, A
        assert [q.axis for q in p.codomain_placements] == outs, A


@pytest.mark.parametrize(("n", "shape"), [(4, (2, 2)), (6, (3, 2)), (8, (4, 2)), (7, (7, 1))])
def test_open_sizes_are_near_square(n: int, shape: tuple[int, int]) -> None:
    p = plan(compositions.projector(), devices=n, partition={"view": None, "z": None})
    assert p.mesh.shape == shape
    assert p.mesh.names == ("view", "z")
    # rank = view_rank * S + z_rank
    assert p.mesh.coordinates[shape[1]] == ((1, 0) if shape[1] < n else (0, 1))


@pytest.mark.parametrize(("views", "slices"), [(3, 2), (2, 3)])
def test_a_grid_splits_views_and_slices_with_copies_of_each(views: int, slices: int) -> None:
    p = plan(compositions.projector(), devices=6, partition={"view": views, "z": slices})
    volumes, projections = p.domain_placement, p.codomain_placement
    assert volumes.axes == (None, 0)
    assert volumes.replicas == views
    assert volumes.padded_size == (None, 6)
    assert projections.axes == (0, None)
    assert projections.replicas == slices
    # rank = view_rank * S + z_rank
    for rank in range(6):
        view, z = divmod(rank, slices)
        assert volumes.ranges(rank) == {0: volumes.real_range(z, 1)}
        assert projections.ranges(rank) == {0: projections.real_range(view, 0)}


def test_an_explicit_choice_of_devices_is_obeyed() -> None:
    A = compositions.projector()
    assert plan(A, devices=8).mesh.size == 8
    assert plan(A, devices=[2, 0]).devices == (Worker(2), Worker(0))
    assert plan(A, devices=[Worker(5)]).devices == (Worker(5),)


def test_tiny_work_stays_on_one_device() -> None:
    space = lo.Space((4,), "float32", ("x",))
    p = plan(lo.Diagonal(np.ones(4, np.float32), space))
    assert p.mesh.size == 1
    assert "next choice" in p.explain() or p.devices == (Worker(0),)


def test_devices_with_nothing_to_do_are_left_out() -> None:
    space = lo.Space((5, 2048, 2048), "float32", ("z", "y", "x"))
    with pool.limit(4, exceed=True):
        p = plan(lo.Gradient(space), partition="z")
    assert p.mesh.size == 3  # shares 2 2 1; four devices would share as 2 2 1 0
    assert "3 of 4 devices" in p.explain()
    assert "next choice" in p.explain()


def test_the_bytes_of_a_halo() -> None:
    # 8 (n - 1) ny nx for a float32 axis with one neighboring plane
    space = lo.Space((64, 256, 256), "float32", ("z", "y", "x"))
    p = plan(lo.Gradient(space), devices=Described.several(4), partition="z")
    (halo,) = [s for s in p.forward.steps if s.kind == "Halo"]
    assert p.forward.volume(halo) == 1_572_864
    assert "1,572,864" in p.explain()


def test_a_plan_that_does_not_fit_is_refused_with_numbers() -> None:
    A = compositions.projector()
    p = plan(A, devices=4)
    assert plan(A, devices=4, memory=p.footprint.total).footprint.total == p.footprint.total
    with pytest.raises(
        PlacementError, match=r"needs [0-9,]+ bytes .* allowed are 100; .*use more"
    ) as e:
        plan(A, devices=4, memory=100)
    # What it says that bands take is enough.
    least = int(re.search(r"takes ([0-9,]+) at least", str(e.value))[1].replace(",", ""))
    assert plan(A, devices=4, memory=least).footprint.total == least < p.footprint.total


def test_a_memory_limit_is_kept_by_other_plans() -> None:
    A = compositions.projector((8, 16, 16), 12)
    p = plan(A, devices=4, partition="auto")
    less = int(p.footprint.total * 0.95)
    q = plan(A, devices=4, memory=less)
    assert q.footprint.total <= less
    x, y = A.domain.random(1), A.codomain.random(2)
    B = q.lower()
    np.testing.assert_allclose(B @ x, A @ x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(B.H @ y, A.H @ y, rtol=0, atol=1e-10)


def test_leaves_that_choose_their_temporaries_keep_to_the_limit() -> None:
    fan = ct.FanBeam(np.linspace(0, 3, 8), ct.Detector(40), 60.0, 90.0)
    A = ct.Projector(fan, ct.Grid((32, 32)), backend="portable", precision="float64")
    composed = 2.0 * (A @ lo.Diagonal(np.linspace(1, 2, 1024).reshape(32, 32)))
    p = plan(composed, devices=1, memory=200_000)
    (leaf,) = [leaf for leaf in p.graph.leaves if isinstance(leaf, ct.Projector)]
    assert leaf.memory == 50_000
    assert p.footprint.total <= 200_000 < plan(composed, devices=1).footprint.total
    x, y = composed.domain.random(1), composed.codomain.random(2)
    B = p.lower()
    np.testing.assert_allclose(B @ x, composed @ x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(B.H @ y, composed.H @ y, rtol=0, atol=1e-10)


def test_absent_devices_are_planned_for_and_refuse_to_run() -> None:
    A = compositions.projector()
    p = plan(A, devices=Described.several(4), partition="view")
    with pytest.raises(PlacementError, match="descriptions"):
        p.domain_placement.put(A.domain.zeros())
    with pytest.raises(PlacementError, match="cannot run"):
        p.lower() @ A.domain.zeros()


@pytest.mark.slow
def test_a_problem_that_fits_no_machine_is_explained_at_once() -> None:
    devices = Described.several(64, memory=80e9)

    def explained(n: int) -> str:
        space = lo.Space((n, n, n), "float32", ("z", "y", "x"))
        return plan(lo.Gradient(space).gram(), devices=devices, partition="z").explain()

    assert "4096" in explained(4096)
    tracemalloc.start()
    explained(4096)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6
    # A tenth of a second, as for a problem that is 32,768 times smaller.
    seconds = dict.fromkeys((128, 4096), float("inf"))
    for _ in range(3):
        for n in seconds:
            start = time.process_time()
            explained(n)
            seconds[n] = min(seconds[n], time.process_time() - start)
    assert seconds[4096] < 5 * seconds[128], seconds


def test_the_table_names_steps_bytes_and_memory() -> None:
    p = plan(compositions.LINEAR["gram with weights"](), devices=4, partition="view")
    text = p.explain()
    for word in ("Compute", "Projector", "Diagonal", "bytes moved", "flops", "memory", "view"):
        assert word in text
    assert str(p) == text


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["auto", "view", "z", {"view": 1, "z": 1}])
@pytest.mark.parametrize("deterministic", [False, True])
def test_one_device_moves_nothing(partition: Any, deterministic: bool) -> None:
    for name, make in compositions.LINEAR.items():
        A = make()
        if not set(["auto", partition] if isinstance(partition, str) else partition) <= _axes(A):
            continue
        p = plan(A, devices=1, partition=partition, deterministic=deterministic)
        for program in (p.forward, p.adjoint):
            assert {step.kind for step in program.steps} <= {"Compute", "Add"}, name


def _axes(A: lo.LinearOperator) -> set[str]:
    """What `partition=` may name."""
    return {"auto", *(name for leaf in flatten(A).leaves for name in leaf.rule.names)}


@pytest.mark.parametrize("n", [2, 4])
def test_a_link_is_priced_by_the_bytes_that_each_device_moves(n: int) -> None:
    """From closed forms: seconds of every movement, and what a slower link adds to a plan."""
    link, latency = 1e6, 1e-4
    machine = Machine(flops=1e12, bandwidth=1e12, link=link, latency=latency)
    space = lo.Space((4 * n, 6), "float64")
    whole = 4 * n * 6 * 8
    window = Windowed(
        0,
        tuple((4 * i - 1, 4 * i + 5) for i in range(n)),
        tuple((4 * i - 1, 4 * i + 5) for i in range(n)),
    )
    moved = {
        (Sharded(0), REPLICATED): (n - 1) * whole,
        (PARTIAL, Sharded(0)): (n - 1) * whole,
        (PARTIAL, REPLICATED): 2 * (n - 1) * whole,
        (Sharded(0), window): 2 * (n - 1) * 6 * 8,
        (window, Sharded(0)): 2 * (n - 1) * 6 * 8,
        (REPLICATED, Sharded(0)): 0,
    }
    for (before, after), volume in moved.items():
        values = [Value(space, (before,)), Value(space, (after,))]
        kind = movement(before, after)
        assert kind is not None
        seconds = movement_seconds(kind((0,), (1,), 0), values, (n,), machine)
        assert seconds == pytest.approx(volume / n / link + latency * (volume > 0), rel=1e-12)
    A = compositions.stencil(lo.Space((8 * n, 8, 8), "float32", ("z", "y", "x")), "zero")

    def seconds_of(link: float) -> tuple[Any, float]:
        p = plan(A, devices=Described.several(n, link=link), partition="z")
        return p, p.seconds

    (fast, quick), (slow, late) = seconds_of(2e6), seconds_of(1e6)
    assert fast.forward.steps == slow.forward.steps
    volume = sum(
        program.volume(step) for program in (fast.forward, fast.adjoint) for step in program.steps
    )
    assert volume > 0
    assert late - quick == pytest.approx(volume / n * (1 / 1e6 - 1 / 2e6), rel=1e-6)


def _exchanges(p: Any) -> int:
    return sum(step.kind == "Halo" for step in p.forward.steps)


def test_stencils_in_a_row_share_one_exchange_where_that_is_cheaper() -> None:
    # On devices with a slow link, small planes: one halo of 3 + 3 planes for three stencils.
    space = lo.Space((64, 8, 8), "float32", ("z", "y", "x"))
    A = compositions.stencil(space, "zero")
    chain = A @ A @ A
    slow = Described.several(4, link=1e3)
    p = plan(chain, devices=slow, partition="z")
    assert _exchanges(p) == 1
    (halo,) = [step for step in p.forward.steps if step.kind == "Halo"]
    # 2 (n - 1) h ny nx planes of float32
    assert p.forward.volume(halo) == 2 * 3 * 3 * 8 * 8 * 4


def test_they_keep_an_exchange_each_where_work_is_dear() -> None:
    space = lo.Space((8, 64, 64), "float32", ("z", "y", "x"))
    A = compositions.stencil(space, "zero")
    weak = Described.several(4, flops=1e3, bandwidth=1e3)
    p = plan(A @ A @ A, devices=weak, partition="z")
    assert _exchanges(p) == 3


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 5])
def test_fused_or_not_the_numbers_are_the_same(n: int) -> None:
    space = lo.Space((7, 5, 4), "float64", ("z", "y", "x"))
    A = compositions.diffusion(space, 3)
    x = space.random(1)
    np.testing.assert_allclose(plan(A, devices=n, partition="z").lower() @ x, A @ x, atol=1e-13)


def _smoothing(space: lo.Space) -> lo.LinearOperator:
    """Means with the next plane: a leaf that allocates its result alone."""

    def forward(x: np.ndarray) -> np.ndarray:
        return np.multiply(x, np.float32(0.5))

    return lo.from_functions(
        forward, forward, domain=space, codomain=space, rule="z y x -> z y x", blockwise=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 4, 7])
@pytest.mark.parametrize("partition", ["z", "y"])
def test_predicted_memory_holds(n: int, partition: str) -> None:
    """What a plan says of its own arrays; leaves that estimate their workspace are as good as
    their estimates."""
    space = lo.Space((64, 64, 64), "float32", ("z", "y", "x"))
    A = lo.Gradient(space).H @ (lo.Gradient(space) @ _smoothing(space)) + _smoothing(space)
    p = plan(A, devices=n, executor="serial", partition=partition)
    B = p.lower()
    for operator, program in ((B, p.forward), (B.H, p.adjoint)):
        x = operator.domain.ones()
        operator @ x  # blocks are made
        tracemalloc.start()
        operator @ x
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        predicted = max(peaks(program, 1, p.machine.at_once(n))) - x.nbytes
        assert 0.8 * predicted <= peak <= 1.05 * predicted, (peak / predicted, program.steps)


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_deterministic_plans_add_nothing_up_over_devices(n: int) -> None:
    for name in ("projector", "projector over gradient", "gram with weights"):
        p = plan(compositions.LINEAR[name](), devices=Described.several(n), deterministic=True)
        for program in (p.forward, p.adjoint):
            kinds = {step.kind for step in program.steps}
            assert not kinds & {"AllReduce", "ReduceScatter", "Extend"}, name


def test_a_free_partition_costs_no_more_than_any_that_is_asked_for() -> None:
    """Views alone sum whole volumes, slices alone read them whole: at some number of devices a mesh
    of two axes moves less than either."""
    beam = ct.ConeBeam(np.linspace(0, 6, 512), ct.Detector((768, 768)), 2048.0, 3072.0)
    A = ct.Projector(beam, ct.Grid((512, 512, 512)))
    shapes = []
    for n in (2, 8, 64):
        devices = Described.several(n)
        p = plan(A, devices=devices)
        shapes.append(len(p.mesh.shape))
        for partition in ("view", "z", {"view": n // 2, "z": 2}, {"view": None, "row": None}):
            assert p.seconds < 1.03 * plan(A, devices=devices, partition=partition).seconds
    assert shapes == [1, 2, 2]


def test_a_grid_pays_for_what_moves_along_both_axes() -> None:
    """With one device along the second axis a grid is a row."""
    A, devices = compositions.projector(), Described.several(4)
    rows = plan(A, devices=devices, partition="view")
    grid = plan(A, devices=devices, partition={"view": 4, "row": 1})
    assert grid.seconds == pytest.approx(rows.seconds, rel=0.02)


def test_an_axis_by_number_is_that_axis_by_name():
    A = lo.Gradient(lo.Space((8, 6), axes=("y", "x")))
    for number, name in ((1, "y"), (-1, "x"), (np.int64(2), "x")):
        by_number = plan(A, devices=2, partition=number)
        assert by_number.explain() == plan(A, devices=2, partition=name).explain()
        parts = plan(A, devices=2, partition={number: 2})
        assert parts.explain() == plan(A, devices=2, partition={name: 2}).explain()


def test_plans_and_lowered_operators_are_shown_in_three_lines() -> None:
    A = lo.Diagonal(np.ones((4, 3), "f4"), lo.Space((4, 3), axes=("z", "x")))
    p = plan(A, devices=2, executor="threads", partition="z", probe=False)
    B = p.lower()
    wanted = [
        "Diagonal: (z=4, x=3) float32 -> (z=4, x=3) float32, float32",
        " executor threads, 2 devices (worker 0, worker 1)",
        " domain cut along z; codomain cut along z>",
    ]
    first, *rest = repr(p).split("\n")
    assert first == "<plan of " + wanted[0] and rest == wanted[1:]
    first, *rest = repr(B).split("\n")
    tags = " [diagonal, nonnegative, psd, self_adjoint]"
    assert first == "<lowered " + wanted[0] + tags and rest == wanted[1:]
    assert B.describe().startswith(repr(B)) and "'z x; z x -> z x'" in B.describe()
    f = plan(lo.L1(A.domain), devices=5, executor="threads", probe=False).lower()
    assert "5 devices (worker 0, worker 1, worker 2, ...)" in repr(f)
