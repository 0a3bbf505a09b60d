"""The same numbers for any number of devices: projectors of every kind, random elements, solvers,
orders of views, and the bytes of the layout of views against slabs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import compositions
import numpy as np
import pytest

import geometries as ct
import linops as lo
import solvers
from sharding import Described, plan
from sharding.states import Sharded

TURN = np.linspace(0, 2 * np.pi, 7, endpoint=False)
PANEL = ct.Detector((8, 32))
FAR = {"source_to_axis": 64.0, "source_to_detector": 128.0}

# Seven views do not divide, nor do seven or three slices; helix from -1 to 1, tilts of 8 degrees.
GEOMETRIES: dict[str, Any] = {
    "parallel": ct.ParallelBeam(TURN, PANEL),
    "cone": ct.ConeBeam(TURN, PANEL, **FAR),
    "curved": ct.ConeBeam(TURN, ct.Detector((8, 32), curvature=128.0), **FAR),
    "helix": ct.ConeBeam(TURN * 7 / 6, PANEL, advance=2.0, **FAR),
    "multi-axis": ct.MultiAxisParallel(TURN, np.deg2rad(np.linspace(-8, 8, 7)), PANEL),
    "translation": ct.Translation(
        np.stack([0 * TURN, 0 * TURN, np.linspace(-9, 9, 7)], -1), PANEL, **FAR
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize(("shape", "n"), [((7, 32, 32), 3), ((3, 16, 16), 4), ((3, 16, 16), 8)])
def test_projectors_of_every_kind(name: str, shape: tuple[int, ...], n: int) -> None:
    A = ct.Projector(GEOMETRIES[name], ct.Grid(shape), precision="float32")
    x, y = A.domain.random(1), A.codomain.random(2)
    w = np.random.default_rng(3).random(A.codomain.shape).astype("float32")
    wanted = A @ x, A.H @ y, A.gram(w).diagonal()
    for partition in ("view", "z"):
        B = plan(A, devices=n, partition=partition).lower()
        found = B @ x, B.H @ y, B.gram(w).diagonal()
        for got, right in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, right, rtol=0, atol=1e-5 * np.abs(right).max())


def test_random_elements_are_the_same_on_any_devices() -> None:
    A = compositions.projector()
    wanted = A.domain.random(7), A.codomain.random(8)
    lowered = [
        plan(A, devices=n, partition=partition, executor=executor).lower()
        for executor in ("serial", "threads")
        for n, partition in ((1, "auto"), (2, "view"), (3, "z"), (6, {"view": 3, "z": 2}))
    ]
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        for n, partition in ((1, "auto"), (3, "z"), (6, {"view": 3, "z": 2})):
            devices = jax.devices("cpu")[:n]
            lowered.append(
                plan(A, devices=devices, partition=partition, executor="shard_map").lower()
            )
        for B in lowered:
            for space, numbers in zip((B.domain, B.codomain), wanted, strict=True):
                seed = 7 if space is B.domain else 8
                np.testing.assert_array_equal(space.home.gather(space.random(seed)), numbers)


ITERATED: dict[str, Callable[[Any, Any], Any]] = {
    "cgls": lambda A, y: solvers.cgls(A, y, iterations=10, damp=1.0),
    "sirt": lambda A, y: solvers.sirt(A, y, iterations=5),
    "adam": lambda A, y: solvers.tv(A, y, weight=0.1, iterations=5),
    "pdhg": lambda A, y: solvers.tv(A, y, weight=0.1, iterations=5, method="pdhg"),
    "vcd": lambda A, y: solvers.vcd(A, y, iterations=2, partitions=2, x0="zero"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beam", "filtered"),
    [(ct.ParallelBeam, ct.fbp_operator), (partial(ct.ConeBeam, **FAR), ct.fdk_operator)],
    ids=["parallel", "cone"],
)
def test_the_order_of_views_is_theirs_alone(beam: Any, filtered: Any) -> None:
    order = np.random.default_rng(0).permutation(7)
    A, P = (
        ct.Projector(beam(turns, ct.Detector((5, 12))), ct.Grid((5, 8, 8)), precision="float64")
        for turns in (TURN, TURN[order])
    )
    x = np.abs(A.domain.random(1))
    y = A @ x
    wanted = {name: solve(A, y).solution for name, solve in ITERATED.items()}
    for partition in (None, "view", "z", {"view": 2, "z": 2}):
        B, F = P, filtered(P)
        if partition is not None:
            B = plan(P, devices=4, partition=partition).lower()
            F = plan(F, devices=4, partition="auto" if "z" in partition else partition).lower()
        z = B @ x
        np.testing.assert_allclose(z, y[order], rtol=0, atol=1e-5 * y.max())
        found = {name: solve(B, z).solution for name, solve in ITERATED.items()}
        pairs = [(found[name], wanted[name]) for name in wanted]
        pairs += [(B.H @ z, A.H @ y), (F @ z, filtered(A) @ y)]
        for image, right in pairs:
            np.testing.assert_allclose(image, right, rtol=0, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize(("size", "n"), [(16, 2), (256, 4)])
def test_the_bytes_of_views_against_slabs(size: int, n: int) -> None:
    # Volumes cut in slices, projections in views: 4 m S (n - 1) each way, m columns of S slices;
    # with so many views sums of projections are dearer.
    beam = ct.ConeBeam(np.linspace(0, 6, 2 * size), ct.Detector((size, size)), 640.0, 1280.0)
    A = ct.Projector(beam, ct.Grid((size, size, size)))
    ends: list[Any] = [(Sharded(0),)]
    p = plan(A, devices=Described.several(n)).again(A, entries=ends, exits=ends)
    moved = [sum(program.volume(s) for s in program.steps) for program in (p.forward, p.adjoint)]
    assert moved == [4 * size**2 * size * (n - 1)] * 2
    if size == 256:
        assert sum(moved) == 402_653_184  # of a pass of coordinate descent over all subsets
        assert "a pass of vcd: 402,653,184 bytes moved for columns; " in p.explain()
        resident = 4 * (3 * 2 * size * size**2 + 2 * size**3) // n
        assert f"{resident:,} resident a device" in p.explain()
        assert "201,326,592" in p.explain()


def test_a_grid_takes_the_first_devices_and_may_leave_some_with_padding() -> None:
    A = compositions.projector(views=3)
    p = plan(A, devices=8, partition="view")
    assert [p.codomain_placement.real_range(i) for i in range(4)] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 3),
    ]
    x = A.domain.random(1)
    np.testing.assert_allclose(p.lower() @ x, A @ x, rtol=0, atol=1e-12)
    space = lo.Space((8, 6), axes=("z", "x"))
    jax = pytest.importorskip("jax")
    found = plan(lo.Gradient(space), partition={"z": 2, "x": 2}, executor="shard_map").devices
    assert found == tuple(jax.devices("cpu")[:4])
