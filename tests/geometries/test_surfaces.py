"""Detectors of any shape: places by formula, the cell matrix, cylinders again, refusals."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cell_matrix import cell_matrix

from geometries import (
    ConeBeam,
    Detector,
    FanBeam,
    Grid,
    ParallelBeam,
    Projector,
    Surface,
    Trajectory,
    perturb,
)
from geometries.admission import admit
from linops.errors import DTypeError, GeometryError, ShapeError
from linops.testing import check_operator

T = np.array([0.3, -1.1, 2.0])


def wave(a: Any, b: Any, view: Any, depth: Any) -> Any:
    """Uneven columns and depths, another for each view; the middle offset is b itself."""
    return np.stack([a + 0.1 * np.sin(a), b * 1.0, depth * np.cos(a + view) + 0.1 * b], axis=-1)


def round_shape(radius: float) -> Callable[..., Any]:
    def sampler(a: Any, b: Any, view: Any) -> Any:
        return np.stack([radius * np.sin(a / radius), b, radius * (np.cos(a / radius) - 1)], -1)

    return sampler


PLANE, SPACE = Grid((7, 9), (1.1, 0.7)), Grid((5, 7, 8), (1.3, 0.9, 0.6))


def scan(kind: str, surface: Surface, shift: float = 0.05) -> Trajectory:
    flat, rows = Detector(8, 0.91, 0.13, surface), Detector((5, 6), (0.67, 0.91), 0.1, surface)
    beam: Any = {
        "parallel2": lambda: ParallelBeam(T, flat),
        "fan": lambda: FanBeam(T, flat, 7.1, 12.4),
        "parallel3": lambda: ParallelBeam(T, rows),
        "cone": lambda: ConeBeam(T, rows, 7.1, 12.4, 1.7),
    }[kind]()
    # No ray lies in a face by accident.
    return perturb(beam, np.random.default_rng(1), 0.1, shift, 0.02)


@pytest.mark.parametrize("kind", ["parallel2", "fan", "parallel3", "cone"])
def test_projections_are_the_cell_matrix(kind: str) -> None:
    frames = scan(kind, Surface(wave, [1.3]))
    grid = PLANE if frames.dims == 2 else SPACE
    matrix = cell_matrix(frames, grid)
    assert (matrix > 0).sum() > 100
    for precision, tolerance in (("float64", 2e-11), ("float32", 4e-5), ("fast", 4e-5)):
        A = Projector(frames, grid, precision=precision)
        np.testing.assert_allclose(A.to_dense(), matrix, atol=tolerance)
        y = np.random.default_rng(2).standard_normal(A.codomain.shape).astype(A.dtype)
        back = (matrix.T @ y.ravel()).reshape(grid.shape)
        np.testing.assert_allclose(A.H @ y, back, atol=20 * tolerance)
    square = A.gram().diagonal()
    np.testing.assert_allclose(np.ravel(square), (matrix**2).sum(axis=0), atol=4e-5)


@pytest.mark.parametrize("kind", ["fan", "cone"])
def test_the_contract_of_operators_holds(kind: str) -> None:
    frames = scan(kind, Surface(wave, [1.3]))
    grid = Grid((4, 5)) if kind == "fan" else Grid((3, 4, 5))
    check_operator(Projector(frames, grid, precision="float64"))
    check_operator(2.0 * Projector(frames, grid))


@pytest.mark.parametrize("kind", ["parallel2", "fan", "parallel3", "cone"])
def test_a_round_surface_is_a_cylinder_and_a_level_one_is_flat(kind: str) -> None:
    def level(a: Any, b: Any, view: Any) -> Any:
        return np.stack([a, b, 0 * a], -1)

    for sampler, curvature in ((round_shape(9.0), 9.0), (level, None)):
        frames = scan(kind, Surface(sampler))
        shape, pitch = frames.detector.shape, frames.detector.pitch
        plain = frames.with_detector(Detector(shape, pitch, frames.detector.offset, curvature))
        np.testing.assert_allclose(frames.points(), plain.points(), atol=1e-14)
        grid = PLANE if frames.dims == 2 else SPACE
        x = np.random.default_rng(0).standard_normal(grid.shape)
        ours = Projector(frames, grid, precision="float64") @ x
        np.testing.assert_allclose(
            ours, Projector(plain, grid, precision="float64") @ x, atol=1e-10
        )


@pytest.mark.parametrize("kind", ["fan", "cone"])
def test_views_keep_their_shape_in_subsets_and_blocks(kind: str) -> None:
    frames = scan(kind, Surface(wave, [1.3]))
    grid = PLANE if frames.dims == 2 else SPACE
    x = np.random.default_rng(0).standard_normal(grid.shape)
    A = Projector(frames, grid, precision="float64")
    y = A @ x
    np.testing.assert_array_equal(frames[[2, 0]].points(), frames.points()[[2, 0]])
    np.testing.assert_array_equal(frames[[2, 0]][[1]].points(), frames.points()[[0]])
    np.testing.assert_array_equal(
        Projector(frames[[2, 0]], grid, precision="float64") @ x, y[[2, 0]]
    )
    np.testing.assert_array_equal(A.block("view", 1, 3) @ x, y[1:3])
    np.testing.assert_array_equal(A.block("view", 1, 5, padded=True) @ x, [*y[1:3], *(0 * y[:2])])
    again = pickle.loads(pickle.dumps(Surface(wave, [1.3]).of_views(np.array([2, 0]))))
    np.testing.assert_array_equal(
        again.offsets(frames.detector, [1], 2), A.geometry.detector.surface.offsets(
            frames.detector, [0], 3
        )
    )  # fmt: skip


def test_the_sampler_sees_the_whole_detector_in_float64_and_few_views_at_once() -> None:
    seen: list[tuple[Any, ...]] = []

    def sampler(a: Any, b: Any, view: Any) -> Any:
        seen.append((a.shape, a.dtype, a.min(), a.max(), view.dtype, np.unique(view).size))
        return np.stack([a, b, 0 * a], -1).astype(np.float32)

    detector = Detector((256, 512), 0.5, 0.25, Surface(sampler))
    beam = ConeBeam(np.linspace(0, 6, 40), detector, 400.0, 800.0)
    A = Projector(beam, Grid((4, 4, 4)))
    assert A.block("view", 3, 5).block("row", 7, 8).block("col", 2, 9).codomain.shape == (2, 1, 7)
    A.block("view", 3, 5).block("row", 7, 8) @ np.ones((4, 4, 4), "float32")
    for shape, dtype, low, high, kind, views in seen:
        assert shape[1:] == (256, 512) and dtype == np.float64 and kind == np.int64
        assert (low, high) == (-127.5, 128)
        # 8 MiB of offsets at a time, not the 126 MiB of the scan.
        assert views <= 2
    assert sum(entry[-1] for entry in seen) >= 42


def test_offsets_shared_by_all_views_may_leave_the_views_out() -> None:
    def shared(a: Any, b: Any, view: Any) -> Any:
        return round_shape(9.0)(a[:1], b[:1], view)

    def plain(a: Any, b: Any, view: Any) -> Any:
        return shared(a, b, view)[0]

    places = scan("cone", Surface(round_shape(9.0))).points()
    for sampler in (shared, plain):
        np.testing.assert_array_equal(scan("cone", Surface(sampler)).points(), places)


def test_parameters_of_torch_carry_gradients_and_are_copied() -> None:
    torch = pytest.importorskip("torch")
    depth = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)

    def sampler(a: Any, b: Any, view: Any, depth: Any) -> Any:
        return torch.stack([a, b, depth * torch.cos(a + view)], dim=-1)

    frames = scan("cone", Surface(sampler, [depth]))
    assert frames.points().requires_grad and frames.host.points().dtype == np.float64
    A = Projector(frames, SPACE, precision="float64")
    x = np.random.default_rng(0).standard_normal(SPACE.shape)
    plain = scan("cone", Surface(lambda a, b, v, d: np.stack([a, b, d * np.cos(a + v)], -1), [1.3]))
    y = Projector(plain, SPACE, precision="float64") @ x
    np.testing.assert_allclose(A @ x, y, atol=1e-12)
    with torch.no_grad():
        depth += 5
    with pytest.raises(GeometryError, match="written to since"):
        A @ x
    kept = frames.host.points()  # nor is it the new one
    np.testing.assert_allclose(kept, plain.host.points(), rtol=1e-14, atol=1e-14)
    weights = torch.tensor(np.sin(np.arange(270.0)).reshape(3, 5, 6, 3))
    (slope,) = torch.autograd.grad((frames.points() * weights).sum(), depth)
    a = frames.host.detector.columns() + np.arange(3)[:, None]
    n = frames.host.normals[:, None, None]
    expected = (np.cos(a)[:, None, :, None] * n * weights.numpy()).sum()
    assert float(slope) == pytest.approx(expected, rel=1e-12)


def test_parameters_of_jax_are_differentiable_in_both_modes() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    @jax.jit
    def value(depth: Any) -> Any:
        surface = Surface(lambda a, b, v, d: jnp.stack([a, b, d * jnp.cos(a)], -1), [depth])
        return (scan("fan", surface).points() ** 3).sum()

    with jax.enable_x64(True):
        d = jnp.asarray(1.3)
        slope, pushed = jax.grad(value)(d), jax.jvp(value, (d,), (jnp.asarray(2.0),))[1]
        central = (value(d + 1e-5) - value(d - 1e-5)) / 2e-5
        assert float(pushed) == pytest.approx(2 * float(slope), rel=1e-12)
        assert float(slope) == pytest.approx(float(central), rel=1e-7)

    def tilted(depth: Any) -> Any:
        # A middle offset in the plane: known only when it runs.
        surface = Surface(lambda a, b, v, d: jnp.stack([a, b + d, a], -1), [depth])
        return FanBeam(T, Detector(3, 1.0, 0.0, surface), 7.1, 12.4).trajectory.points()

    assert np.isnan(np.asarray(jax.jit(tilted)(0.5))).all()
    assert np.isfinite(np.asarray(jax.jit(tilted)(0.0))).all()


def bad(change: Callable[[np.ndarray], Any]) -> Surface:
    def sampler(a: Any, b: Any, view: Any) -> Any:
        return change(np.stack([a, b, 0 * a], -1))

    return Surface(sampler)


def at_one_pixel(value: Any, where: Any) -> Callable[[np.ndarray], np.ndarray]:
    def change(offsets: np.ndarray) -> np.ndarray:
        offsets[where] = value
        return offsets

    return change


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda s: s[..., :2], ShapeError, "sampler returned shape"),
        (lambda s: s[:, :-1], ShapeError, "sampler returned shape"),
        (lambda s: s[None], ShapeError, "sampler returned shape"),
        (lambda s: np.zeros(s.shape, int), DTypeError, "dtype int64"),
        (lambda s: s.astype(complex), DTypeError, "dtype complex"),
        (lambda s: s.tolist(), DTypeError, "list"),
        (at_one_pixel(np.nan, (1, 3, 0)), GeometryError, "view 1: the surface is not finite"),
        (at_one_pixel(np.inf, (2, 3, 2)), GeometryError, "view 2: the surface is not finite"),
        (at_one_pixel(1e-9, (1, 3, 1)), GeometryError, "view 1: the surface leaves the plane"),
        (at_one_pixel((0, 0, -12.4), (2, 4)), GeometryError, "view 2: a detector cell stands"),
        (at_one_pixel((0, 0, 2e15), (0, 4)), GeometryError, "view 0.*1e15 voxels"),
    ],
)
def test_faulty_surfaces_are_refused_before_anything_runs(
    change: Any, error: type[Exception], message: str
) -> None:
    beam = FanBeam(T, Detector(9, 1.0, 0.0, bad(change)), 7.1, 12.4)
    with pytest.raises(error, match=message):
        Projector(beam, PLANE, precision="fast")


def test_far_cells_of_a_surface_are_found_each_by_itself() -> None:
    for depth, fine in ((9e5, True), (1.1e6, False)):
        surface = bad(at_one_pixel((0, 0, depth), (1, 4)))
        beam = FanBeam(T, Detector(9, 1.0, 0.0, surface), 2e6, 2e6)
        for precision in ("fast", "float64"):
            if fine or precision == "float64":
                admit(beam, Grid((7, 9)), precision)
            else:
                with pytest.raises(GeometryError, match=r"view 1.*1e6 voxels.*float64"):
                    admit(beam, Grid((7, 9)), precision)


def test_what_is_no_surface_is_refused() -> None:
    with pytest.raises(TypeError, match="sampler"):
        Surface(3)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="tuple of arrays"):
        Surface(wave, np.ones(3))  # type: ignore[arg-type]
    surface = Surface(wave, [1.0])
    with pytest.raises(AttributeError, match="immutable"):
        surface.parameters = ()
    # Facing and coincidence of the middle are no fault here: only cells count.
    source = Trajectory(
        "fan", [(0.0, 3.0)], [(0.0, 3.0)], [(1.0, 0.0)], None,
        Detector(4, 1.0, 0.0, bad(at_one_pixel(5.0, (..., 2)))),
    )  # fmt: skip
    admit(source, PLANE, "fast")
