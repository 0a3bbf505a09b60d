"""Projectors of one structure are one compiled program of JAX, whatever their angles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import linops as lo
from geometries import (
    ConeBeam,
    Detector,
    FanBeam,
    Grid,
    MultiAxisParallel,
    ParallelBeam,
    Projector,
    Translation,
    fbp,
)
from linops.errors import GeometryError

jax = pytest.importorskip("jax")
jnp = jax.numpy

_COMPILED = "/jax/core/compile/backend_compile_duration"


def parallel(i: int, **options: Any) -> Projector:
    angles = np.linspace(0, 3, 7) + 0.1 * i
    return Projector(ParallelBeam(angles, Detector(9)), Grid((6, 6)), **options)


def fan(i: int, **options: Any) -> Projector:
    angles = np.linspace(0, 3, 7) + 0.1 * i
    beam = FanBeam(angles, Detector(9, curvature=30.0), 20.0 + 0.01 * i, 30.0)
    return Projector(beam, Grid((6, 6)), **options)


def cone(i: int, **options: Any) -> Projector:
    beam = ConeBeam(np.linspace(0, 6, 5) + 0.1 * i, Detector((3, 7), 1.5), 60.0, 90.0 + i, 0.1 * i)
    return Projector(beam, Grid((4, 6, 6)), **options)


def tilted(i: int, **options: Any) -> Projector:
    beam = MultiAxisParallel(np.linspace(0, 6, 5) + 0.1 * i, 0.2 + 0.01 * i, Detector((3, 7)))
    return Projector(beam, Grid((4, 6, 6)), **options)


def moved(i: int, **options: Any) -> Projector:
    shifts = np.array([[0.0, 0.0], [1.0, 0.1 * i]])
    return Projector(Translation(shifts, Detector(9), 20.0, 30.0), Grid((6, 6)), **options)


def frames(i: int, **options: Any) -> Projector:
    return Projector(cone(i).geometry.trajectory, Grid((4, 6, 6)), **options)


def of_jax(i: int, **options: Any) -> Projector:
    angles = jnp.linspace(0, 3, 7) + 0.1 * i
    return Projector(ParallelBeam(angles, Detector(9)), Grid((6, 6)), **options)


def block(i: int, **options: Any) -> Projector:
    return fan(i, **options).block("view", i % 3, i % 3 + 4)


MAKERS = [parallel, fan, cone, tilted, moved, frames, of_jax, block]


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    seen: list[str] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event == _COMPILED:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS)
def test_new_angles_compile_nothing(make: Any, compilations: list[str]) -> None:
    lo.register_jax()
    traces = []

    @jax.jit
    def run(A: Projector, x: Any, y: Any) -> Any:
        traces.append(A)
        return A @ x, A.H @ y

    first = make(0)
    assert jax.tree.structure(first) == jax.tree.structure(make(0)) == jax.tree.structure(make(1))
    x = jnp.asarray(first.domain.random(0))
    y = jnp.asarray(first.codomain.random(1))
    for i in range(3):
        A = make(i)
        found = *run(A, x, y), A @ x, A.H @ y
        if i == 0:
            compilations.clear()
        # On NumPy arrays the projector has its own frames, and no program of JAX.
        right = make(i) @ np.asarray(x), make(i).H @ np.asarray(y)
        for got, wanted in zip(found, right * 2, strict=True):
            np.testing.assert_array_equal(np.asarray(got), wanted)
    assert len(traces) == 1
    assert not compilations


@pytest.mark.slow
@pytest.mark.parametrize("model", ["siddon", "footprint"])
def test_new_angles_compile_nothing_in_array_code(model: str, compilations: list[str]) -> None:
    for i in range(3):
        A = fan(i, model=model, backend="portable")
        x = jnp.asarray(A.domain.random(0))
        found = A @ x
        if i == 0:
            compilations.clear()
        wanted = fan(i, model=model) @ np.asarray(x)
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-4, atol=1e-4)
    assert not compilations


def test_other_structures_are_told_apart() -> None:
    """Whatever compiled code reads besides the frames is in the structure."""
    t = np.linspace(0, 3, 5)

    def of(detector: Detector, *grid: Any, **options: Any) -> Projector:
        return Projector(FanBeam(t, detector, 20.0, 30.0), Grid((6, 6), *grid), **options)

    several = [
        of(Detector(9)),
        of(Detector(9, 1.1)),
        of(Detector(9, 1.0, 0.1)),
        of(Detector(9, curvature=30.0)),
        of(Detector(9), 0.9),
        of(Detector(9), 1.0, 0.1),
        of(Detector(9), model="joseph"),
        of(Detector(9), precision="float32"),
        Projector(ParallelBeam(t, Detector(9)), Grid((6, 6))),
        Projector(of(Detector(9)).geometry.trajectory, Grid((6, 6))),
    ]
    assert len({jax.tree.structure(A) for A in several}) == len(several)
    x = several[0].domain.random(0)
    for A in several:
        np.testing.assert_array_equal(np.asarray(A @ jnp.asarray(x)), A @ x)


@pytest.mark.slow
def test_nothing_stays_of_projectors_that_are_gone() -> None:
    x = jnp.ones((6, 6), jnp.float32)
    run = jax.jit(lambda A, x: A.H @ (A @ x))

    def cycle(count: int) -> int:
        for i in range(count):
            run(fan(i), x).block_until_ready()
            (parallel(i) @ x).block_until_ready()
        gc.collect()
        return len(gc.get_objects())

    cycle(40)
    before = cycle(10)
    assert cycle(100) - before < 500


@pytest.mark.parametrize("make", MAKERS)
def test_a_projector_comes_out_of_a_transformation_with_its_geometry(make: Any) -> None:
    same = jax.jit(lambda A: A)
    # Frames that JAX made in float32 are normalised in float64 for the kernels.
    tolerance = 3e-7 if make is of_jax else 0
    same(make(0))
    A = make(2)
    for B in (jax.tree.map(lambda leaf: leaf, A), same(A)):
        old, new = A.geometry, B.geometry
        assert type(new) is type(old)
        assert new.detector == old.detector
        for name in ("sources", "directions", "centers", "u", "v", *getattr(old, "_numbers", ())):
            one, two = getattr(old, name), getattr(new, name)
            assert (one is None) == (two is None)
            if one is not None:
                np.testing.assert_allclose(np.asarray(two), np.asarray(one), rtol=tolerance)
        if hasattr(old, "angles"):
            np.testing.assert_array_equal(np.asarray(new.angles), np.asarray(old.angles))
        x = A.domain.random(0)
        np.testing.assert_array_equal(B @ x, A @ x)


def test_angles_are_read_inside_a_jitted_function_as_those_of_its_argument() -> None:
    read = jax.jit(lambda A: (A.geometry.angles, A.geometry.sources, A.geometry.source_to_axis))
    for i in range(2):
        angles, sources, distance = read(fan(i))
        beam = fan(i).geometry
        np.testing.assert_allclose(angles, beam.angles, rtol=1e-6)
        np.testing.assert_allclose(sources, beam.sources, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(distance, 20.0 + 0.01 * i, rtol=1e-6)


def test_analytic_reconstruction_of_a_traced_scan_says_what_to_do() -> None:
    y = jnp.ones((7, 9), jnp.float32)
    with pytest.raises(GeometryError, match=r"traced by JAX.*fbp_operator\(A\) outside"):
        jax.jit(lambda A, y: fbp(A, y))(parallel(0), y)
    A = parallel(0)
    np.testing.assert_allclose(jax.jit(lambda y: fbp(A, y))(y), fbp(A, np.asarray(y)), atol=1e-5)
