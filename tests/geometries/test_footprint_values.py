"""Values of the separable footprint: worked weights, mass, the chords of boxes over whole cells."""

from __future__ import annotations

import math

import numpy as np
import pytest

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


def footprint(geometry: object, grid: Grid, **options: object) -> Projector:
    return Projector(geometry, grid, model="footprint", **{"precision": "float64", **options})


# t, (dx, dy), p, du, and cells -2 to 2 of the central one: in closed form, the trapezoid being the
# chord length of a rectangle.
RECTANGLES = [
    (0, (1, 1), 0.25, 1, (0, 0, 0.75, 0.25, 0), (0, 0, 0.75, 0.25, 0)),
    (0.3, (1, 1), 0.2, 1, (0, 0, 0.8140255, 0.1859745, 0), (0, 0, 0.8140255, 0.1859745, 0)),
    (math.pi / 4, (1, 1), 0, 1, (0, 0.0428932, 0.9142136, 0.0428932, 0), (0, 0, 1, 0, 0)),
    (0.5, (1, 1.9), -0.4, 0.8, (0.0131945, 1.1743055, 1.1743055, 0.0131945, 0),
     (0, 1.1875, 1.1875, 0, 0)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("t", "size", "p", "du", "trapezoid", "box"), RECTANGLES)
def test_one_pixel_in_a_parallel_beam(t, size, p, du, trapezoid, box) -> None:
    dx, dy = size
    grid = Grid((1, 1), (dy, dx), (p * math.sin(t), p * math.cos(t)))
    beam = ParallelBeam([float(t)], Detector(9, du))
    for profile, wanted in (("trapezoid", trapezoid), ("box", box)):
        A = footprint(beam, grid, profile=profile)
        np.testing.assert_allclose((A @ np.ones((1, 1)))[0, 2:7], wanted, atol=1e-7)
        assert (A @ np.ones((1, 1))).sum() * du == pytest.approx(dx * dy, rel=1e-14)


@pytest.mark.parametrize(
    ("curvature", "row", "total", "trapezoid", "box"),
    [
        (None, 26, 4.546667157, (0.1709710, 1.0205943, 0.9167676, 0.0276792),
         (0.1626853, 1.0290333, 0.9442935, 0)),
        (512.0, 25, 4.516089171, (0.2127696, 1.0271826, 0.8748896, 0.0115825), None),
    ],
)  # fmt: skip
def test_one_voxel_in_a_cone(curvature, row, total, trapezoid, box) -> None:
    beam = ConeBeam([0.3], Detector((101, 101), curvature=curvature), 256, 512)
    grid = Grid((1, 1, 1), 1.0, (12, -10, 20))
    for profile, wanted in (("trapezoid", trapezoid), ("box", box)):
        found = (footprint(beam, grid, profile=profile) @ np.ones((1, 1, 1)))[0]
        assert found.sum() == pytest.approx(total, abs=2e-9)
        if wanted is not None:
            np.testing.assert_allclose(found[50 + row, 83:87], wanted, atol=1e-7)


def test_a_fan_is_a_cone_without_rows() -> None:
    # A slab of one slice at the height of the source, whose rows it fills.
    for curvature in (None, 40.0):
        flat = footprint(FanBeam([0.4], Detector(31, curvature=curvature), 20, 40), Grid((5, 6)))
        tall = ConeBeam([0.4], Detector((1, 31), (1e-6, 1), curvature=curvature), 20, 40)
        solid = footprint(tall, Grid((1, 5, 6), (1.0, 1.0, 1.0)))
        x = np.random.default_rng(0).random((1, 5, 6))
        np.testing.assert_allclose((solid @ x)[:, 0], flat @ x[0], rtol=1e-9)


# --- against chords, averaged over sub-rays of each cell --------------------------------------


def chords(geometry, grid, cells, rays: int) -> np.ndarray:
    """Mean chords of `grid` as one box in cells (rows, columns) of view 0, over rays^2 sub-rays."""
    detector, frames = geometry.detector, geometry.trajectory
    rows, columns = cells
    within = (np.arange(rays) + 0.5) / rays - 0.5
    a = (columns[:, None] - (detector.shape[-1] - 1) / 2 + within) * detector.pitch[-1]
    b = (rows[:, None] - (detector.shape[0] - 1) / 2 + within) * detector.pitch[0]
    a, b = a.ravel() + detector.offset[-1], b.ravel() + detector.offset[0]
    along, depth = a, np.zeros_like(a)
    if detector.curvature is not None:
        along = detector.curvature * np.sin(a / detector.curvature)
        depth = detector.curvature * (np.cos(a / detector.curvature) - 1)
    line = frames.centers[0] + along[:, None] * frames.u[0] + depth[:, None] * frames.normals[0]
    ends = line[None] + b[:, None, None] * frames.v[0]
    if frames.sources is None:
        start, way = ends, np.broadcast_to(frames.directions[0], ends.shape)
    else:
        start, way = frames.sources[0], ends - frames.sources[0]
    way = np.where(np.abs(way) < 1e-12, 1e-12, way)
    middle, half = np.array(grid.center[::-1]), np.array(grid.extent[::-1]) / 2
    near, far = (middle - half - start) / way, (middle + half - start) / way
    length = np.maximum(np.maximum(near, far).min(-1) - np.minimum(near, far).max(-1), 0)
    length = length * np.linalg.norm(way, axis=-1)
    return length.reshape(len(rows), rays, len(columns), rays).mean((1, 3))


def errors(make, spread, spacing, rays: int, count: int = 24) -> dict[str, tuple[float, float]]:
    """Root mean square and largest relative error of single voxels against their chords."""
    rng = np.random.default_rng(7)
    found: dict[str, list[float]] = {"trapezoid": [], "box": []}
    for _ in range(count):
        beam = make(float(rng.uniform(0, 2 * np.pi)))
        place = rng.uniform(-1, 1, 3) * spread
        grid = Grid((1, 1, 1), spacing, tuple(place))
        views = {p: (footprint(beam, grid, profile=p) @ np.ones((1, 1, 1)))[0] for p in found}
        middle = [round(n.mean()) for n in np.nonzero(views["trapezoid"])]
        window = [np.arange(m - 4, m + 5) for m in middle]
        exact = chords(beam, grid, window, rays)
        for profile, view in views.items():
            gap = np.linalg.norm(view[np.ix_(*window)] - exact) / np.linalg.norm(exact)
            found[profile].append(float(gap))
    return {p: (float(np.sqrt(np.mean(np.square(e)))), max(e)) for p, e in found.items()}


def cone(curvature=None, a: float = 256.0, cells=(161, 261)):
    return lambda t: ConeBeam([t], Detector(cells, curvature=curvature), a, 2 * a)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "spread", "spacing", "bounds", "box"),
    [
        (lambda t: ParallelBeam([t], Detector((81, 161))), (20, 40, 40), 1.0, (0.006, 0.010),
         0.0625),
        (cone(), (20, 40, 40), 1.0, (0.008, 0.02), 0.123),
        (cone(512.0), (20, 40, 40), 1.0, (0.006, 0.01), 0.094),
        (cone(), (20, 40, 40), (2.9, 1.9, 1.0), (0.012, 0.03), 0.138),
        (cone(a=100.0, cells=(421, 421)), (50, 50, 50), 1.0, (0.11, 0.45), 0.145),
    ],
    ids=["parallel", "flat", "curved", "anisotropic", "near"],
)  # fmt: skip
def test_voxels_against_their_chords(make, spread, spacing, bounds, box) -> None:
    # Chords of parallel beams jump at the faces of the voxel: more rays.
    found = errors(make, np.array(spread), spacing, 120 if box == 0.0625 else 40)
    error, worst = found["trapezoid"]
    assert error <= bounds[0]
    assert worst <= bounds[1]
    # The box is worse, and as much as stated.
    assert error < found["box"][0] <= 1.35 * box


@pytest.mark.slow
@pytest.mark.parametrize(("place", "bound"), [((0, 0, 17), 2e-4), ((30, 30, 0), 2e-3)])
def test_the_polar_angle_of_a_ray_is_the_true_one(place, bound: float) -> None:
    # Half angles of 10 degrees and 27, along u and v: a chord 2 % too long would be seen.
    beam = ConeBeam([0.3], Detector((201, 201)), 100, 200)
    for sign in (1, -1):
        grid = Grid((1, 1, 1), 1.0, tuple(sign * p for p in place))
        view = (footprint(beam, grid) @ np.ones((1, 1, 1)))[0]
        rows, columns = np.nonzero(view)
        window = (
            np.arange(rows.min() - 2, rows.max() + 3),
            np.arange(columns.min() - 2, columns.max() + 3),
        )
        assert view.sum() == pytest.approx(chords(beam, grid, window, 96).sum(), rel=bound)


def test_sinograms_are_siddons_averaged_over_cells() -> None:
    rng = np.random.default_rng(3)
    grid, rays = Grid((12, 13), (1.0, 0.8)), 400
    angles = rng.uniform(0, 2 * np.pi, 6)
    x = rng.random((12, 13))
    fine = Projector(ParallelBeam(angles, Detector(17 * rays, 1.1 / rays)), grid,
                     precision="float64")  # fmt: skip
    wanted = (fine @ x).reshape(6, 17, rays).mean(2)
    found = footprint(ParallelBeam(angles, Detector(17, 1.1)), grid) @ x
    assert np.linalg.norm(found - wanted) <= 1e-3 * np.linalg.norm(wanted)


def test_a_disc_is_at_least_as_good_as_siddons() -> None:
    grid = Grid((48, 48))
    y, x = np.meshgrid(grid.coordinates("y"), grid.coordinates("x"), indexing="ij")
    disc = (x**2 + y**2 <= 400).astype(float)
    beam = ParallelBeam(np.linspace(0.05, 3, 9), Detector(60))
    edges = np.arange(61) - 30.0
    inside = np.clip(edges, -20, 20)
    area = inside * np.sqrt(400 - inside**2) + 400 * np.arcsin(inside / 20)
    exact = np.diff(area)
    error = {
        model: np.sqrt(np.mean((Projector(beam, grid, model, precision="float64") @ disc - exact)
                               ** 2))
        for model in ("siddon", "footprint")
    }  # fmt: skip
    assert error["footprint"] <= error["siddon"]


# --- mass, limits, symmetry -----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:view 0. rays rise")
@pytest.mark.parametrize("degrees", [(0, 0), (37, 25), (63, 44), (20, 70), (10, 89)])
@pytest.mark.parametrize("size", [(1.0, 1.0, 1.0), (2.9, 1.9, 1.0)])
@pytest.mark.parametrize("precision", ["float64", "fast"])
def test_mass_is_kept_for_every_azimuth_and_elevation(degrees, size, precision) -> None:
    azimuth, elevation = np.deg2rad(degrees)
    detector = Detector((41, 41), (0.7, 0.9), (0.3, -0.2))
    beam = MultiAxisParallel([float(azimuth)], [float(elevation)], detector)
    A = footprint(beam, Grid((1, 1, 1), size, (1.3, -0.7, 0.4)), precision=precision)
    mass = float((A @ np.ones((1, 1, 1), A.dtype)).sum()) * 0.7 * 0.9
    assert mass == pytest.approx(math.prod(size), rel=1e-6)


@pytest.mark.parametrize("shift", [0.0, 0.137, 0.5])
def test_mass_is_kept_for_every_shift_of_a_parallel_beam(shift: float) -> None:
    x = np.random.default_rng(0).random((9, 8)).astype("float32")
    beam = ParallelBeam(np.linspace(0, 3, 7), Detector(40, 0.6, shift))
    for profile in ("trapezoid", "box"):
        A = footprint(beam, Grid((9, 8), (0.9, 1.2)), precision="fast", profile=profile)
        mass = (A @ x).sum(1) * 0.6
        np.testing.assert_allclose(mass, x.sum() * 0.9 * 1.2, rtol=1e-5)


def test_elevation_0_is_a_parallel_beam_and_signs_mirror_rows() -> None:
    s = np.array([0.2, 1.1, 2.5])
    for spacing in (1.0, (1.0, 1.9, 1.0)):
        grid, detector = Grid((5, 6, 7), spacing), Detector((8, 15))
        x = np.random.default_rng(0).random((5, 6, 7))
        level = footprint(ParallelBeam(s, detector), grid)
        tilted = footprint(MultiAxisParallel(s, np.zeros(3), detector), grid)
        assert np.array_equal(tilted @ x, level @ x)
        up = footprint(MultiAxisParallel(s, np.full(3, 0.4), detector), grid)
        down = footprint(MultiAxisParallel(s, np.full(3, -0.4), detector), grid)
        np.testing.assert_allclose((down @ x[::-1])[:, ::-1], up @ x, atol=1e-12)


def test_far_sources_are_parallel_beams() -> None:
    grid = Grid((4, 5, 6), (1.0, 1.3, 0.8))
    x = np.random.default_rng(0).random(grid.shape)
    far = 1e8
    for curvature in (None, far + 10):
        detector = Detector((6, 14), (0.9, 0.7), curvature=curvature)
        cone_beam = ConeBeam([0.4, 2.0], detector, far, far + 10)
        parallel = ParallelBeam([0.4, 2.0], Detector((6, 14), (0.9, 0.7)))
        np.testing.assert_allclose(footprint(cone_beam, grid) @ x, footprint(parallel, grid) @ x,
                                   atol=2e-6)  # fmt: skip


def test_flat_and_curved_agree_in_the_middle() -> None:
    grid = Grid((1, 3, 3), 0.05)
    for profile in ("trapezoid", "box"):
        flat, curved = (
            footprint(ConeBeam([0.3], Detector((3, 3), curvature=c), 100, 200), grid,
                      profile=profile) @ np.ones(grid.shape)
            for c in (None, 200.0)
        )  # fmt: skip
        np.testing.assert_allclose(curved[0, :, 1], flat[0, :, 1], rtol=1e-6)


def test_a_helix_is_a_cone_at_the_height_of_each_view() -> None:
    angles, advance, grid = np.array([-4.0, 0.5, 7.0]), 3.0, Grid((6, 5, 5))
    detector = Detector((9, 12), 1.2)
    x = np.random.default_rng(1).random(grid.shape)
    helix = footprint(ConeBeam(angles, detector, 30, 50, advance=advance), grid) @ x
    for k, t in enumerate(angles):
        lowered = Grid(grid.shape, 1.0, (-advance * t / (2 * np.pi), 0, 0))
        flat = footprint(ConeBeam([float(t)], detector, 30, 50), lowered) @ x
        np.testing.assert_allclose(helix[k], flat[0], atol=1e-12)


def test_a_volume_raised_with_all_views_changes_no_bit() -> None:
    frames = ConeBeam([0.0, 0.7, 2.0], Detector((9, 12), 1.2), 32, 64).trajectory
    x = np.random.default_rng(1).random((6, 5, 5))
    plain = footprint(frames, Grid(x.shape)) @ x
    raised = frames.transform(translation=[0.0, 0.0, 16.0])
    assert np.array_equal(footprint(raised, Grid(x.shape, 1.0, (16.0, 0, 0))) @ x, plain)


@pytest.mark.parametrize("size", [(1.0, 1.0, 1.0), (1.0, 6.0, 1.0)])
def test_moved_objects_are_moved_grids(size) -> None:
    positions = np.array([[0.0, 0.0, 0.0], [6.3, 1.0, -0.7], [-4.0, -2.0, 0.3]])
    detector = Detector((15, 61), 0.8)
    moved = footprint(Translation(positions, detector, 50, 100), Grid((2, 3, 4), size))
    x = np.random.default_rng(2).random((2, 3, 4))
    for k, place in enumerate(positions):
        rest = ConeBeam([0.0], detector, 50, 100)
        wanted = footprint(rest, Grid((2, 3, 4), size, tuple(place[::-1]))) @ x
        np.testing.assert_allclose((moved @ x)[k], wanted[0], atol=1e-12)
    # Towards +x is towards +u.
    columns = (moved @ x).sum(1) @ detector.columns()
    assert columns[2] < columns[0] < columns[1]


@pytest.mark.parametrize("pitch", [1.0, 0.5, 2.0])
def test_a_ball_has_its_chords_on_interior_rays(pitch: float) -> None:
    grid = Grid((40, 40, 40))
    z, y, x = np.meshgrid(*(grid.coordinates(a) for a in "zyx"), indexing="ij")
    sub = (np.arange(4) + 0.5) / 4 - 0.5
    ball = np.mean(
        [(x + a) ** 2 + (y + b) ** 2 + (z + c) ** 2 <= 256 for a in sub for b in sub for c in sub],
        axis=0,
    )
    detector = Detector((11, 11), 2 * pitch)
    A = footprint(ConeBeam([0.7], detector, 200, 400), grid)
    u, v = np.meshgrid(detector.columns(), detector.rows())
    distance = 200 * np.sin(np.arctan(np.hypot(u, v) / 400))
    inside = distance < 10
    wanted = 2 * np.sqrt(256 - distance[inside] ** 2)
    np.testing.assert_allclose((A @ ball)[0][inside], wanted, rtol=0.01)


def test_lengths_scale() -> None:
    x = np.random.default_rng(0).random((4, 5, 6))
    plain, tenfold = (
        footprint(
            ConeBeam([0.3, 1.9], Detector((5, 9), (1.1 * f, 0.9 * f), 0.2 * f), 30 * f, 45 * f),
            Grid((4, 5, 6), (1.2 * f, 0.9 * f, 1.0 * f), 0.3 * f),
        ) @ x
        for f in (1.0, 10.0)
    )  # fmt: skip
    np.testing.assert_allclose(tenfold, 10 * plain, rtol=1e-12, atol=1e-12)


def test_symmetric_objects_have_symmetric_views() -> None:
    x = np.random.default_rng(0).random((4, 7, 7))
    x = x + x[:, :, ::-1]
    x = x + x[::-1]
    for beam in (
        ParallelBeam([0.0, np.pi / 2], Detector((7, 13), (0.8, 0.9))),
        ConeBeam([0.0], Detector((7, 13), 1.3), 30, 50),
        ConeBeam([0.0], Detector((7, 13), 1.3, curvature=50), 30, 50),
    ):
        view = footprint(beam, Grid((4, 7, 7))) @ x
        np.testing.assert_allclose(view[0], view[0, :, ::-1], atol=1e-13)
        np.testing.assert_allclose(view[0], view[0, ::-1], atol=1e-13)


def test_filtered_backprojection_has_the_amplitude_of_siddons() -> None:
    grid = Grid((64, 64))
    y, x = grid.coordinates("y")[:, None], grid.coordinates("x")
    image = np.exp(-((x - 4) ** 2 + (y + 6) ** 2) / 90)
    beam = ParallelBeam(np.arange(90) * (np.pi / 90), Detector(96))
    middle = image > 0.5
    values = []
    for model in ("siddon", "footprint"):
        A = Projector(beam, grid, model, precision="float64")
        values.append(fbp(A, A @ image)[middle].mean())
    assert values[1] == pytest.approx(values[0], rel=0.01)
    assert values[0] == pytest.approx(image[middle].mean(), rel=0.02)
