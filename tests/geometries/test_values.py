"""Values of projectors that others computed: an independent reference, chords in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector, Trajectory
from linops.testing import dot_test

BACKENDS = ("numba", "portable")
PRECISIONS = ("fast", "float32", "float64")
THREE = np.array([0.231, 0.811, 1.431])
FLAT, SOLID = Grid((3, 4), (1.1, 0.7)), Grid((2, 3, 4), (1.3, 0.9, 0.6))
PLACES = np.array([(0.173, -0.239), (-0.119, 0.281), (0.317, 0.113)])
E_U = np.stack([np.cos(THREE), np.sin(THREE)], 1)
E_R = np.stack([-np.sin(THREE), np.cos(THREE)], 1)
ROWS = Detector((2, 3), (0.67, 0.91), (0.11, -0.17))

# Nonzeros, sum, Frobenius norm of A; |Ax|, <Ax, y>, |A.H y|.
REFERENCE: dict[str, tuple[Callable[[], tuple[Any, Grid]], tuple[float, ...]]] = {
    "parallel with displaced places": (
        lambda: (
            Trajectory("parallel", E_R, PLACES + 3.7 * E_R, E_U, None, Detector(5, 0.91)),
            FLAT,
        ),
        (43, 30.063940854091, 5.035492824521, 3.625747368885, 1.638342768706, 2.222572134516),
    ),
    "fan with displaced places": (
        lambda: (
            Trajectory("fan", PLACES - 7.1 * E_R, PLACES + 5.3 * E_R, E_U, None, Detector(5, 0.91)),
            FLAT,
        ),
        (66, 45.704517558126, 6.171736146705, 4.652282136826, -0.672804398553, 2.465715504784),
    ),
    "parallel": (
        lambda: (ParallelBeam(THREE, Detector(5, 0.91, 0.13)), FLAT),
        (43, 29.875011594915, 5.013900831281, 3.596222143639, 1.421818104152, 2.162270891914),
    ),
    "fan": (
        lambda: (FanBeam(THREE, Detector(5, 0.91, 0.13), 7.1, 12.4), FLAT),
        (66, 45.656238929117, 6.171508071721, 4.732239404035, -0.542096052861, 2.430448243192),
    ),
    "fan, curved": (
        lambda: (FanBeam(THREE, Detector(5, 0.91, curvature=12.4), 7.1, 12.4), FLAT),
        (65, 45.341300112838, 6.114900962521, 4.729814720800, 0.956789405965, 2.238705745590),
    ),
    "cone": (
        lambda: (ConeBeam(THREE, ROWS, 7.1, 12.4), SOLID),
        (84, 48.216806120684, 5.782344791866, 4.644809803905, 4.376734756940, 2.692899735548),
    ),
    "helix": (
        lambda: (ConeBeam((-4.1, 0.7, 3.9), ROWS, 7.1, 12.4, advance=1.7), SOLID),
        (85, 45.933775786372, 5.465412426010, 3.611021343724, 0.811904433001, 3.872045613651),
    ),
    "parallel in space": (
        lambda: (ParallelBeam(THREE, Detector((2, 4), (1.3, 0.71), (0, 0.13))), SOLID),
        (96, 55.061138914883, 6.124338855482, 4.673866872659, -3.002730204010, 6.542078775918),
    ),
}


def wave(n: int, phase: float) -> np.ndarray:
    k = np.arange(n)
    return np.sin(0.713 * k + phase) + 0.2 * np.cos(0.317 * k)


def tolerance(precision: str) -> float:
    return 2e-11 if precision == "float64" else 4e-5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", REFERENCE)
def test_values_of_an_independent_reference(case: str, precision: str, backend: str) -> None:
    make, (nonzeros, total, frobenius, *products) = REFERENCE[case]
    A = Projector(*make(), backend=backend, precision=precision)
    rtol = tolerance(precision)
    dense = A.to_dense().astype(float)
    assert np.count_nonzero(dense) == nonzeros
    assert dense.sum() == pytest.approx(total, rel=rtol)
    assert np.linalg.norm(dense) == pytest.approx(frobenius, rel=rtol)
    x = A.domain.unravel(wave(A.domain.size, 0).astype(A.dtype))
    y = A.codomain.unravel(wave(A.codomain.size, 0.31).astype(A.dtype))
    found = (A.codomain.norm(A @ x), A.codomain.inner(A @ x, y), A.domain.norm(A.H @ y))
    assert found == pytest.approx(products, rel=rtol, abs=rtol)


# --- chords in closed form ----------------------------------------------------------------


def along_axis(kind: str, dims: int, axis: int, sign: int) -> Trajectory:
    """One view whose central ray runs along +- an axis of the world, 5 (x 3) cells of .3."""
    way = np.roll([1.0, 0.0, 0.0], axis) * sign
    u, v = np.roll([0.0, 1.0, 0.0], axis), np.roll([0.0, 0.0, 1.0], axis)
    if dims == 2:
        way, u, v = way[:2], np.array([-way[1], way[0]]), None
    first = way if kind == "parallel" else -9.0 * way
    detector = Detector((3, 5)[3 - dims :], 0.3)
    return Trajectory(kind, [first], [11.0 * way], [u], None if v is None else [v], detector)


SHAPES = [(1, 7), (7, 1), (5, 7), (1, 5, 7), (5, 1, 7), (5, 7, 1), (3, 5, 7)]


@pytest.mark.parametrize("diverging", [False, True])
@pytest.mark.parametrize(
    ("shape", "backend"),
    [*((shape, "numba") for shape in SHAPES), ((5, 7), "portable"), ((5, 1, 7), "portable")],
)
def test_central_rays_along_axes(shape: tuple[int, ...], diverging: bool, backend: str) -> None:
    dims = len(shape)
    kind = ("fan" if dims == 2 else "cone") if diverging else "parallel"
    middle = tuple(n // 2 for n in shape)
    for axis in range(dims):
        along = dims - 1 - axis
        seen = np.zeros(shape)
        seen[tuple(slice(None) if k == along else m for k, m in enumerate(middle))] = 0.7
        for sign in (1, -1):
            frames = along_axis(kind, dims, axis, sign)
            center = tuple(n // 2 for n in frames.detector.shape)
            for precision in ("fast", "float64"):
                close = 3e-5 if precision == "fast" else 2e-11
                A = Projector(frames, Grid(shape, 0.7), backend=backend, precision=precision)
                x = np.full(shape, 1.25, A.dtype)
                wanted = pytest.approx(shape[along] * 0.7 * 1.25, rel=close)
                assert (A @ x)[0][center] == wanted
                name = "zyx"[3 - dims + along]
                cuts = range(0, shape[along], 2)
                parts = [(k, min(k + 2, shape[along])) for k in cuts]
                tiles = [
                    A.block(name, i, j) @ np.take(x, range(i, j), axis=along) for i, j in parts
                ]
                assert sum(tiles)[0][center] == wanted
                y = np.zeros(A.codomain.shape, A.dtype)
                y[0][center] = 1
                np.testing.assert_allclose(A.H @ y, seen, rtol=close, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_oblique_exit_through_two_faces(precision: str, backend: str) -> None:
    t = 0.37123456789123
    e, u = (np.cos(t), np.sin(t)), (-np.sin(t), np.cos(t))
    center = (0.137123456789, -0.239234567891)
    frames = Trajectory("parallel", [e], [center], [u], None, Detector(1))
    A = Projector(frames, Grid((3, 5), (0.73, 0.61)), backend=backend, precision=precision)
    found = (A @ np.ones((3, 5), A.dtype)).item()
    assert found == pytest.approx(3.272952909339534, rel=tolerance(precision))


def slabs(frames: Trajectory, grid: Grid) -> np.ndarray:
    """Lengths of all rays within the box of the grid, from its pairs of parallel sides."""
    ends = frames.points().reshape(frames.views, -1, frames.dims)
    if frames.sources is None:
        first = ends - 1e3 * frames.directions[:, None]
        way = np.broadcast_to(2e3 * frames.directions[:, None], ends.shape)
    else:
        first = np.broadcast_to(frames.sources[:, None], ends.shape)
        way = ends - first
    half, middle = np.array(grid.extent[::-1]) / 2, np.array(grid.center[::-1])
    with np.errstate(divide="ignore"):
        crossings = np.stack([(middle + s * half - first) / way for s in (-1, 1)])
    inside = np.minimum(crossings.max(0).min(-1), 1) - np.maximum(crossings.min(0).max(-1), 0)
    return np.maximum(inside, 0) * np.linalg.norm(way, axis=-1)


T9 = np.linspace(0.11, 6.2, 9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("geometry", "grid"),
    [
        (ParallelBeam(T9, Detector(41, 0.6, 0.2)), Grid((16, 14), (0.9, 1.3), (0.4, -0.3))),
        (FanBeam(T9, Detector(41, 1.1, 0.2), 30, 55), Grid((16, 14), (0.9, 1.3), (0.4, -0.3))),
        (
            ConeBeam(T9, Detector((9, 11), (2.1, 4.1), 0.2), 30, 55, advance=3.0),
            Grid((12, 16, 14), (0.7, 0.9, 1.3), (1.4, 0.4, -0.3)),
        ),
    ],
    ids=["parallel", "fan", "helix"],
)
def test_boxes_of_ones_are_slabs(geometry: Any, grid: Grid, backend: str) -> None:
    chosen = np.random.default_rng(4).permutation(np.prod(geometry.detector.shape) * 9)[:257]
    wanted = slabs(geometry.trajectory, grid).ravel()[chosen]
    assert (wanted > 1).sum() > 100
    for precision in ("fast", "float32"):
        A = Projector(geometry, grid, backend=backend, precision=precision)
        found = np.ravel(A @ np.ones(grid.shape, "float32"))[chosen]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("kind", "precision", "backend"),
    [*((k, p, "numba") for k in ("parallel", "fan", "cone") for p in PRECISIONS),
     ("fan", "float32", "portable")],
)  # fmt: skip
def test_adjoints_at_scale(kind: str, precision: str, backend: str) -> None:
    if kind == "cone":
        views = np.arange(32) * (2 * np.pi / 32)
        geometry: Any = ConeBeam(views, Detector((20, 20), 1.4), 600, 900)
        grid = Grid((16, 16, 16))
    else:
        views, grid = np.arange(45) * (2 * np.pi / 45), Grid((32, 32))
        cells = Detector(48)
        geometry = (
            ParallelBeam(views, cells) if kind == "parallel" else FanBeam(views, cells, 600, 900)
        )
    assert dot_test(Projector(geometry, grid, backend=backend, precision=precision)) <= (
        64 if precision == "fast" else 16
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dims", [2, 3])
def test_nothing_jumps_while_a_source_passes_a_corner(dims: int, backend: str) -> None:
    # 1000 views of one scan: sources on a line across the diagonal, one cell behind the far corner.
    shifts = np.linspace(-1e-5, 1e-5, 1000)[:, None]
    way = np.array([1.0, -1.0, 0.0][:dims])
    first = -9.0 + shifts * way
    u = np.broadcast_to(way / np.sqrt(2), first.shape)
    v = None if dims == 2 else np.broadcast_to(np.array([1, 1, -2]) / np.sqrt(6), first.shape)
    frames = Trajectory(
        "fan" if dims == 2 else "cone", first, np.full_like(first, 9.0), u, v,
        Detector((1,) * (dims - 1)),
    )  # fmt: skip
    shape = (4,) * dims
    x = np.random.default_rng(2).random(shape)
    for precision, noise in (("float64", 6e-8), ("fast", 1e-5)):
        A = Projector(frames, Grid(shape), backend=backend, precision=precision)
        values = np.ravel(A @ x.astype(A.dtype)).astype(float)
        # A step of 2e-8 moves a chord by as little; pieces grow from 0 to 1e-5.
        assert np.abs(np.diff(values)).max() < noise


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("slope", [1e-3, 1e-7, 1e-12])
def test_a_slope_however_small_takes_a_ray_across_a_face(slope: float, backend: str) -> None:
    # Rays along the face x = 0 that cross it in the middle: half of each chord on either side.
    wanted = np.zeros((8, 8))
    wanted[:4, 3] = wanted[4:, 4] = 1
    e, u = (slope, 1.0), (1.0, -slope)
    flat = Trajectory("parallel", [e], [(0, 0)], [u], None, Detector(1))
    fan = Trajectory("fan", [(-9 * slope, -9.0)], [(9 * slope, 9.0)], [u], None, Detector(1))
    for frames in (flat, fan):
        A = Projector(frames, Grid((8, 8)), backend=backend, precision="float64")
        np.testing.assert_allclose(A.to_dense()[0].reshape(8, 8), wanted, rtol=1e-3, atol=1e-3)
    solid = Trajectory(
        "cone", [(-9 * slope, -9.0, 0.1)], [(9 * slope, 9.0, 0.1)], [(*u, 0.0)], [(0, 0, 1.0)],
        Detector((1, 1)),
    )  # fmt: skip
    A = Projector(solid, Grid((1, 8, 8)), backend=backend, precision="float64")
    np.testing.assert_allclose(A.to_dense()[0].reshape(8, 8), wanted, rtol=1e-3, atol=1e-3)
