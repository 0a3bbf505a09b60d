"""Faults of projectors that users of other libraries reported, each as a test of its kind.

Numbers F... are those of the list of faults; what analytic reconstruction, preprocessing, solvers
and sharding owe to it is tested beside them.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from itertools import product
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
    Surface,
    Trajectory,
    Translation,
)
from linops.errors import GeometryError
from linops.testing import dot_test

MODELS = (("siddon", None), ("joseph", None), ("footprint", "trapezoid"), ("footprint", "box"))
NAMES = ("siddon", "joseph", "footprint")
BACKENDS = ("numba", "portable")
PRECISIONS = ("fast", "float32", "float64")
T = np.array([0.231, 0.811, 1.431, 0.0])
QUARTERS = np.arange(4) * np.pi / 2


def wavy(a: Any, b: Any, view: Any) -> Any:
    return np.stack([a, b, 0.3 * np.cos(a + view)], -1)


CELLS = Detector((3, 5), (1.67, 1.91), (0.11, -0.17))
FLAT, SOLID = Grid((5, 6), (1.1, 0.7), (0.3, -0.2)), Grid((3, 4, 5), (1.3, 0.9, 0.6))
GEOMETRIES = {
    "parallel": (ParallelBeam(T, Detector(7, 0.91, 0.13)), FLAT),
    "fan": (FanBeam(T, Detector(7, 1.91, 0.13), 7.1, 12.4), FLAT),
    "equiangular": (FanBeam(T, Detector(7, 1.91, 0.13, 12.4), 7.1, 12.4), FLAT),
    "surface": (FanBeam(T, Detector(7, 1.91, 0.13, Surface(wavy)), 7.1, 12.4), FLAT),
    "aligned": (ParallelBeam(T, Detector((3, 6), (1.3, 0.71), (0.0, 0.13))), SOLID),
    "rows": (ParallelBeam(T, Detector((4, 6), (1.1, 0.71), (0.1, 0.13))), SOLID),
    "tilted": (MultiAxisParallel(T, 0.4 * T - 0.2, Detector((4, 6), (1.1, 0.71))), SOLID),
    "cone": (ConeBeam(T, CELLS, 7.1, 12.4), SOLID),
    "round": (ConeBeam(T, Detector((3, 5), (1.67, 1.91), 0.1, 12.4), 7.1, 12.4), SOLID),
    "helix": (ConeBeam(4 * T, CELLS, 7.1, 12.4, advance=1.7), SOLID),
    "translation": (Translation([(0, 0, 0.1), (0.4, 0, 0)], CELLS, 7.1, 12.4), SOLID),
}


def disc(radius: float, center: tuple[float, float], grid: Grid) -> np.ndarray:
    """Fractions of the pixels that a disc covers, of 16 x 16 samples."""
    fine = Grid(tuple(16 * n for n in grid.shape), tuple(s / 16 for s in grid.spacing), grid.center)
    y, x = fine.coordinates("y")[:, None], fine.coordinates("x")
    inside = (x - center[0]) ** 2 + (y - center[1]) ** 2 <= radius**2
    ny, nx = grid.shape
    return np.asarray(inside.reshape(ny, 16, nx, 16).mean(axis=(1, 3)), np.float32)


# --- adjoints and scales ------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_pair_that_can_be_built_is_a_pair(name: str, backend: str, precision: str) -> None:
    built = 0
    for model, profile in MODELS:
        try:
            A = Projector(*GEOMETRIES[name], model, backend, precision, profile)
        except GeometryError:
            assert model == "footprint" and name == "surface"
            continue
        built += 1
        basis, dense = residuals(A)
        assert basis <= (64 if precision == "fast" else 16), model
        assert dense <= 16, model
    assert built >= 2


def residuals(A: Projector) -> tuple[float, float]:
    """The dot test on all pairs of basis vectors, and on Gaussians, in units of eps."""
    eps, rng = np.finfo(A.dtype).eps, np.random.default_rng(5)
    n, m = A.domain.size, A.codomain.size
    x = np.concatenate([np.eye(n), rng.standard_normal((1, n))]).astype(A.dtype)
    y = np.concatenate([np.eye(m), rng.standard_normal((1, m))]).astype(A.dtype)
    Ax = (A @ x.reshape(-1, *A.domain.shape)).reshape(-1, m).astype(float)
    back = (A.H @ y.reshape(-1, *A.codomain.shape)).reshape(-1, n).astype(float)
    gap = np.abs(Ax[:n] - back[:m].T)
    scale = np.linalg.norm(Ax[:n], axis=1)[:, None] + np.linalg.norm(back[:m], axis=1)
    basis = gap / np.where(scale > 0, scale, 1) / eps
    u, v = x[-1].astype(float), y[-1].astype(float)
    whole = np.linalg.norm(Ax[-1]) * np.linalg.norm(v) + np.linalg.norm(u) * np.linalg.norm(
        back[-1]
    )
    return float(basis.max()), float(abs(Ax[-1] @ v - u @ back[-1]) / whole / eps)


@pytest.mark.parametrize("model", NAMES)
def test_zero_mean_data_show_a_mismatch(model: str) -> None:
    cone = ConeBeam(np.linspace(0, 6, 9), Detector((11, 14), 1.8), 40, 70)
    for precision, limit in (("float32", 16), ("float64", 16), ("fast", 16)):
        A = Projector(cone, Grid((12, 9, 16)), model, precision=precision)
        rng = np.random.default_rng(3)
        x = rng.standard_normal(A.domain.shape).astype(A.dtype)
        y = rng.standard_normal(A.codomain.shape).astype(A.dtype)
        assert dot_test(A, x - x.mean(), y - y.mean()) <= limit


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("name", ["fan", "helix"])
def test_slopes_of_a_misfit_are_the_adjoint(name: str, model: str) -> None:
    A = Projector(*GEOMETRIES[name], model, precision="float64")
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(A.domain.shape), rng.standard_normal(A.codomain.shape)
    slope = A.H @ (A @ x - y)
    for _ in range(5):
        d = rng.standard_normal(A.domain.shape)
        ends = [0.5 * np.sum((A @ (x + s * d) - y) ** 2) for s in (1e-3, -1e-3)]
        assert (ends[0] - ends[1]) / 2e-3 == pytest.approx(np.sum(slope * d), rel=1e-7)


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("spacing", [0.5, 2.0, (0.5, 2.0)])
def test_no_spacing_hides_in_the_inner_product(spacing: Any, model: str) -> None:
    A = Projector(ParallelBeam(T, Detector(9, 0.8)), Grid((6, 5), spacing), model)
    x = np.random.default_rng(1).standard_normal((6, 5)).astype("float32")
    assert np.vdot(A.H @ (A @ x), x) / np.vdot(A @ x, A @ x) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_absolute_values(backend: str) -> None:
    grid = Grid((32, 32), 0.5)
    for model in NAMES:
        A = Projector(ParallelBeam([0.0], Detector(32, 0.5)), grid, model, backend)
        found = (A @ disc(5, (0, 0), grid))[0]
        np.testing.assert_allclose(found[15:17], 9.98331, rtol=1e-3)
    views = ParallelBeam(np.arange(7) * np.pi / 7, Detector(64))
    for h, wanted in ((2.0, 28.0), (0.5, 1.75)):
        A = Projector(views, Grid((8, 8), h), "footprint", backend)
        np.testing.assert_allclose(A.H @ np.ones((7, 64), "float32"), wanted, rtol=1e-5)


def test_a_back_projection_of_ones_counts_lengths() -> None:
    four = ParallelBeam(QUARTERS, Detector(8, 0.5))
    ones = np.ones((4, 8), "float32")
    for model, wanted in (("siddon", 4 * 0.5), ("footprint", 4 * 0.5**2 / 0.5)):
        np.testing.assert_allclose(
            Projector(four, Grid((8, 8), 0.5), model).H @ ones, wanted, rtol=1e-5
        )


# --- special directions -------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", NAMES)
def test_rays_along_an_axis_and_a_hair_beside_are_whole(model: str, backend: str) -> None:
    near = np.ravel(QUARTERS[:, None] + [0, 1e-7, -1e-7, 1e-6, -1e-6])
    for precision in PRECISIONS:
        A = Projector(ParallelBeam(near, Detector(8)), Grid((8, 8)), model, backend, precision)
        np.testing.assert_allclose(A @ np.ones((8, 8), A.dtype), 8, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", NAMES)
def test_rays_beside_the_volume_end_and_are_zero(model: str, backend: str) -> None:
    # A source at x = 280, rays along -y.
    fan = Trajectory("fan", [(280, 100.0)], [(280, -100.0)], [(1.0, 0)], None, Detector(5))
    cone = Trajectory(
        "cone", [(280, 100.0, 0)], [(280, -100.0, 0)], [(1.0, 0, 0)], [(0, 0, 1.0)],
        Detector((2, 5)),
    )  # fmt: skip
    parallel = ParallelBeam((0.0, np.pi / 2, np.pi), Detector(5, offset=280))
    for geometry, shape in ((parallel, (64, 64)), (fan, (64, 64)), (cone, (2, 64, 64))):
        for precision in PRECISIONS:
            A = Projector(geometry, Grid(shape), model, backend, precision)
            A.H @ (A @ np.zeros(shape, A.dtype))  # compiles
            start = time.process_time()
            assert not (A @ np.ones(shape, A.dtype)).any()
            assert not (A.H @ np.ones(A.codomain.shape, A.dtype)).any()
            assert time.process_time() - start < 10  # an endless walk, not a slow machine


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize(
    ("direction", "u", "v", "axis", "shape", "pitch"),
    [
        ((0, 0, 1), (1, 0, 0), (0, 1, 0), 0, (6, 7), (2.0, 1.5)),
        ((0, 1, 0), (1, 0, 0), (0, 0, 1), 1, (5, 7), (0.5, 1.5)),
        ((-1, 0, 0), (0, 1, 0), (0, 0, 1), 2, (5, 6), (0.5, 2.0)),
    ],
)
def test_directions_with_zero_components_are_sums(
    direction: Any, u: Any, v: Any, axis: int, shape: Any, pitch: Any, model: str, backend: str
) -> None:
    spacing = (0.5, 2.0, 1.5)
    frames = Trajectory("parallel", [direction], [(0, 0, 0)], [u], [v], Detector(shape, pitch))
    steep = model == "footprint" and axis == 0
    with pytest.warns(UserWarning, match="rise by 90") if steep else nullcontext():
        A = Projector(frames, Grid((5, 6, 7), spacing), model, backend, "float64")
    x = np.random.default_rng(0).standard_normal((5, 6, 7))
    np.testing.assert_allclose((A @ x)[0], x.sum(axis) * spacing[axis], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("model", NAMES)
def test_right_angles_are_sums_of_rows_and_columns(model: str) -> None:
    x = np.random.default_rng(0).random((16, 16)).astype("float32")
    wanted = np.stack([x.sum(0), x.sum(1), x.sum(0)[::-1], x.sum(1)[::-1]])
    for backend, precision in product(BACKENDS, PRECISIONS):
        A = Projector(
            ParallelBeam(QUARTERS, Detector(16)), Grid((16, 16)), model, backend, precision
        )
        np.testing.assert_allclose(A @ x, wanted, rtol=1e-6)


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("pixel", [4.0, 1.0, 0.25])
def test_pixels_of_any_size_leave_no_holes(pixel: float, model: str) -> None:
    n = round(48 / pixel)
    grid = Grid((n, n), pixel)
    fan = FanBeam(0.1 + np.arange(24) * (2 * np.pi / 24), Detector(64, 2.0), 200, 400)
    A = Projector(fan, grid, model)
    totals = 2 * (A @ disc(20, (0, 0), grid)).sum(axis=1)
    if model == "joseph" and pixel == 4:
        return  # samples every 4 units of a disc of 20
    np.testing.assert_allclose(totals, 2522.76, rtol=5e-3)


def test_a_detector_turned_about_its_central_ray() -> None:
    plain = ConeBeam([0.4, 2.0], Detector((9, 9), 1.7), 20, 31).trajectory

    def turned(degrees: float) -> Trajectory:
        c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
        u, v = c * plain.u + s * plain.v, c * plain.v - s * plain.u
        return Trajectory("cone", plain.sources, plain.centers, u, v, plain.detector)

    grid = Grid((5, 7, 7))
    x = np.random.default_rng(1).standard_normal(grid.shape)
    for backend in BACKENDS:
        straight = Projector(plain, grid, backend=backend, precision="float64") @ x
        quarter = Projector(turned(90), grid, backend=backend, precision="float64") @ x
        np.testing.assert_allclose(quarter, np.rot90(straight, axes=(1, 2)), atol=1e-12)
    slanted = turned(30)
    for precision, limit in (("float32", 16), ("float64", 16), ("fast", 64)):
        assert dot_test(Projector(slanted, grid, precision=precision)) <= limit
    # A ball of radius 3 in voxels of .1, seen along the rays of the turned cells.
    fine = Grid((64, 64, 64), 0.1)
    z, y, x = np.meshgrid(*(fine.coordinates(a) for a in "zyx"), indexing="ij")
    found = Projector(slanted, fine) @ (x**2 + y**2 + z**2 <= 9).astype("float32")
    way = slanted.points() - slanted.sources[:, None, None]
    way = way / np.linalg.norm(way, axis=-1, keepdims=True)
    apart = np.linalg.norm(np.cross(slanted.sources[:, None, None], way), axis=-1)
    np.testing.assert_allclose(found, 2 * np.sqrt(np.maximum(9 - apart**2, 0)), atol=0.35)
    assert np.abs(found - 2 * np.sqrt(np.maximum(9 - apart**2, 0))).mean() < 0.04


@pytest.mark.parametrize("model", NAMES)
def test_nothing_is_negative_and_nothing_jumps_from_view_to_view(model: str) -> None:
    grid = Grid((256, 256), 0.5)
    y, x = grid.coordinates("y")[:, None], grid.coordinates("x")
    image = np.exp(-((x - 30) ** 2 + (y - 20) ** 2) / 72).astype("float32")
    fan = FanBeam(np.arange(720) * (2 * np.pi / 720), Detector(192, 2.0), 256, 512)
    found = Projector(fan, grid, model) @ image
    assert found.min() >= 0
    steps = np.abs(found - np.roll(found, 1, axis=0)).max(axis=1)
    assert steps.max() <= 3 * np.median(steps)
    way = fan.trajectory.points() - fan.sources[:, None]
    from_source = np.array([30.0, 20.0]) - fan.sources[:, None]
    apart = way[..., 0] * from_source[..., 1] - way[..., 1] * from_source[..., 0]
    apart = apart / np.linalg.norm(way, axis=-1)
    wanted = 6 * np.sqrt(2 * np.pi) * np.exp(-(apart**2) / 72)
    assert np.abs(found - wanted).max() <= 0.03 * wanted.max()


@pytest.mark.parametrize("backend", BACKENDS)
def test_angles_are_double_until_after_the_cosine(backend: str) -> None:
    grid = Grid((24, 24))
    off, centered = disc(5, (3, -2), grid), disc(7, (0, 0), grid)
    views = np.arange(720 if backend == "numba" else 60) * (2 * np.pi / 720)
    A = Projector(ParallelBeam(views, Detector(40, 0.9)), grid, "footprint", backend)
    np.testing.assert_allclose((A @ off).sum(axis=1) * 0.9, off.sum(), rtol=1e-5)
    for model in NAMES:
        fan = FanBeam(QUARTERS, Detector(40, 1.3), 40, 70)
        four = Projector(fan, grid, model, backend) @ centered
        np.testing.assert_allclose(four, four[[0] * 4], atol=1e-6 * four.max())
    single = ParallelBeam(np.array([np.pi / 2], "float32"), Detector(3))
    assert (
        single.u[0, 0] == np.cos(float(np.float32(np.pi / 2))) == pytest.approx(-4.37e-8, rel=1e-2)
    )


# --- places -------------------------------------------------------------------------------


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize("n", [64, 65])
def test_the_middle_is_half_of_n_minus_one(n: int, model: str) -> None:
    grid = Grid((n, n))
    A = Projector(ParallelBeam(np.linspace(0.05, 3, 12), Detector(n)), grid, model)
    found = A @ disc(10, (0, 0), grid)
    np.testing.assert_allclose(found, found[:, ::-1], atol=1e-6 * found.max())


def test_an_offset_is_a_length_along_its_own_axis() -> None:
    # The voxel (10, 0, 0) at a magnification of 2, seen through cells of .5 moved by +5 along u.
    volume = np.zeros((3, 3, 23), "float32")
    volume[1, 1, 21] = 1
    cone = ConeBeam([0.0], Detector((5, 201), 0.5, (0, 5)), 100, 200)
    found = (Projector(cone, Grid((3, 3, 23)), precision="float64") @ volume)[0]
    rows, columns = np.arange(5), np.arange(201)
    # The voxel's shadow is four columns wide, its ends lie in cells' faces.
    assert (found.sum(axis=0) * columns).sum() / found.sum() == pytest.approx(130, abs=0.2)
    assert (found.sum(axis=1) * rows).sum() / found.sum() == pytest.approx(2, abs=1e-12)


def test_no_field_of_view_is_cut_out() -> None:
    corner = np.zeros((32, 32))
    corner[:4, :4] = 1
    box = Grid((4, 4), center=(-14, -14))
    views = np.linspace(0.1, 3.7, 11)
    for geometry in (
        ParallelBeam(views, Detector(60)),
        FanBeam(views, Detector(60, 2.0), 100, 200),
        FanBeam(2 * views, Detector(60, 2.0, offset=10), 100, 200),
    ):
        whole = Projector(geometry, Grid((32, 32)), precision="float64") @ corner
        alone = Projector(geometry, box, precision="float64") @ np.ones((4, 4))
        seen = whole > 0
        assert seen.any(axis=1).all()
        np.testing.assert_allclose(whole, alone, atol=1e-12)
        chords = slab(geometry.trajectory, box)
        np.testing.assert_allclose(whole, chords, atol=1e-12)


def slab(frames: Trajectory, grid: Grid) -> np.ndarray:
    """Lengths of rays within the box of the grid."""
    ends = frames.points()
    first = (
        ends - 100 * frames.directions[:, None]
        if frames.sources is None
        else (np.broadcast_to(frames.sources[:, None], ends.shape))
    )
    way = (
        ends - first
        if frames.sources is not None
        else (np.broadcast_to(200 * frames.directions[:, None], ends.shape))
    )
    half, middle = np.array(grid.extent[::-1]) / 2, np.array(grid.center[::-1])
    crossings = np.stack([(middle + s * half - first) / way for s in (-1, 1)])
    inside = np.minimum(crossings.max(0).min(-1), 1) - np.maximum(crossings.min(0).max(-1), 0)
    return np.maximum(inside, 0) * np.linalg.norm(way, axis=-1)


def test_the_order_of_views_does_not_matter() -> None:
    from solvers import cgls, sirt

    golden = (np.arange(60) * np.pi * (3 - 5**0.5)) % (2 * np.pi)
    grid = Grid((16, 16))
    order = np.random.default_rng(1).permutation(60)
    # Steps of CGLS amplify rounding: those of "fast" sums would show.
    for precision, close in (("fast", 0.1), ("float32", 5e-4), ("float64", 1e-9)):
        A = Projector(FanBeam(golden, Detector(30, 1.6), 40, 70), grid, precision=precision)
        B = A.with_geometry(A.geometry[order])
        y = A @ disc(5, (2, -1), grid).astype(A.dtype)
        back = A.H @ y
        np.testing.assert_allclose(B.H @ y[order], back, atol=1e-5 * back.max())
        for solve, steps, limit in ((sirt, 20, 1e-5), (cgls, 10, close)):
            one = solve(A, y, iterations=steps).solution
            two = solve(B, y[order], iterations=steps).solution
            np.testing.assert_allclose(two, one, atol=limit * np.abs(one).max())


# --- arrays -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", NAMES)
def test_integers_and_halves_are_summed_in_floating_point(model: str, backend: str) -> None:
    A = Projector(ParallelBeam([0.0], Detector(1)), Grid((4096, 1)), model, backend)
    assert (A @ np.ones((4096, 1), "float16")).item() == 4096
    B = Projector(ParallelBeam([0.0], Detector(1)), Grid((100, 1)), model, backend)
    assert (B @ np.full((100, 1), 65535, "uint16")).item() == pytest.approx(6553500, rel=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_float64_is_never_quietly_float32(backend: str) -> None:
    jax = pytest.importorskip("jax")
    A = Projector(*GEOMETRIES["fan"], backend=backend, precision="float64")
    x = jax.numpy.ones(A.domain.shape, "float32")
    if jax.config.jax_enable_x64:
        pytest.skip("JAX has float64 here")
    for call in (lambda: A @ x, lambda: jax.jit(lambda t: A @ t)(x)):
        with pytest.raises(lo.errors.DTypeError, match="float64"):
            call()
    beam = FanBeam(jax.numpy.asarray(T), Detector(7), 7.1, 12.4)  # its frames are float32
    with pytest.raises(lo.errors.DTypeError, match="frames in float64"):
        Projector(beam, FLAT, backend=backend, precision="float64")
    assert Projector(beam, FLAT, backend=backend).dtype == "float32"
    with jax.enable_x64(True):
        assert (A @ jax.numpy.ones(A.domain.shape)).dtype == "float64"


@pytest.mark.parametrize("precision", ["fast", "float64"])
def test_results_have_the_dtype_of_the_codomain(precision: str) -> None:
    A = Projector(*GEOMETRIES["fan"], precision=precision)
    G = lo.Gradient(A.domain)
    x, y = A.domain.random(0), A.codomain.random(1)
    for B in (
        A,
        2 * A,
        np.float64(2) * A,
        A + A,
        A / np.float32(3),
        lo.concat([A, A], axis="view"),
    ):
        assert (B @ x).dtype == B.codomain.dtype == A.dtype
        assert (B.H @ B.codomain.random(1)).dtype == A.dtype
    assert (A.gram() @ x).dtype == (A.gram(y**2) @ x).dtype == A.dtype
    assert {part.dtype for part in lo.vstack([A, 0.5 * G]) @ x} == {A.dtype}


def test_axes_of_length_one_are_kept() -> None:
    from geometries import fbp, fdk
    from sharding import plan
    from solvers import cgls, tv

    fan = Projector(FanBeam([0.3], Detector(3), 5, 9), Grid((1, 2)))
    cone = Projector(ConeBeam([0.3], Detector((2, 3)), 5, 9), Grid((1, 1, 1)))
    for A, analytic in ((fan, fbp), (cone, fdk)):
        y = A @ np.ones(A.domain.shape, "float32")
        assert y.shape == A.codomain.shape
        assert analytic(A, y, angular_weights=np.ones(1)).shape == A.domain.shape
        assert cgls(A, y, iterations=2).solution.shape == A.domain.shape
        assert tv(A, y, iterations=2, weight=0.1).solution.shape == A.domain.shape
        B = plan(A, devices=2).lower()
        assert (B @ np.ones(A.domain.shape, "float32")).shape == A.codomain.shape
        assert (B.H @ y).shape == A.domain.shape
