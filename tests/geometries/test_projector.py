"""The projector as an operator: values in closed form, the contract, bad input, namespaces."""

from __future__ import annotations

import math
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linops as lo
from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector
from linops.compiled import pool
from linops.errors import DTypeError, GeometryError, ShapeError

FLAT = Grid((5, 6), (1.1, 0.7), (0.3, -0.2))
SOLID = Grid((3, 4, 5), (1.3, 0.9, 0.6), (0.1, 0.2, -0.3))
ANGLES = np.array([0.231, 0.811, 1.431, 0.0])


def scans() -> dict[str, tuple[object, Grid]]:
    cone = ConeBeam(ANGLES, Detector((3, 5), (1.67, 1.91), (0.11, -0.17)), 7.1, 12.4)
    turn = np.array(
        [[1, 0, 0], [0, math.cos(0.2), -math.sin(0.2)], [0, math.sin(0.2), math.cos(0.2)]]
    )
    return {
        "parallel": (ParallelBeam(ANGLES, Detector(7, 0.91, 0.13)), FLAT),
        "fan": (FanBeam(ANGLES, Detector(7, 1.91, 0.13), 7.1, 12.4), FLAT),
        "equiangular": (FanBeam(ANGLES, Detector(7, 1.91, curvature=12.4), 7.1, 12.4), FLAT),
        "aligned": (ParallelBeam(ANGLES, Detector((3, 6), (1.3, 0.71), (0.1, 0.13))), SOLID),
        "unaligned": (ParallelBeam(ANGLES, Detector((4, 6), (1.1, 0.71), (0.1, 0.13))), SOLID),
        "cone": (cone, SOLID),
        "helix": (
            ConeBeam(4 * ANGLES, cone.detector, 7.1, 12.4, advance=1.7),
            SOLID,
        ),
        "tilted": (cone.transform(rotation=turn), SOLID),
    }


NAMES = tuple(scans())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["fast", "float32", "float64"])
def test_every_projector_keeps_the_contract(name: str, precision: str) -> None:
    from linops.testing import check_operator

    A = Projector(*scans()[name], precision=precision)
    assert (A.backend, A.precision) == ("numba", precision)
    # Other libraries call the same kernels, whatever the precision.
    check_operator(A, libraries=None if precision == "float32" else ())
    check_operator(A.H, libraries=())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fan", "aligned", "cone"])
def test_compositions_keep_the_contract(name: str) -> None:
    from linops.testing import check_operator

    A = Projector(*scans()[name], precision="float32")
    weights = A.codomain.random(1) ** 2
    libraries = None if name == "cone" else ()
    check_operator(A.gram(weights), libraries=libraries)
    check_operator(lo.vstack([A, 0.5 * lo.Gradient(A.domain)]), libraries=libraries)
    check_operator(A.columns([3, -1, 0, 7, 12, 3]), libraries=libraries)


# --- closed forms ------------------------------------------------------------------------


@given(
    angle=st.floats(0, 2 * np.pi),
    spacing=st.sampled_from([(1.0, 1.0), (0.5, 0.5), (2.0, 0.7)]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    offset=st.floats(-2, 2),
    source=st.sampled_from([None, 9.0, 40.0]),
)
def test_box_of_ones_gives_its_chords(angle, spacing, scale, offset, source) -> None:
    # The grid itself is the box: chord = length of the ray between its four sides.
    grid = Grid((6, 5), tuple(scale * s for s in spacing), (scale * 0.3, -0.4 * scale))
    detector = Detector(9, 1.3 * scale, offset * scale)
    if source is None:
        geometry = ParallelBeam([angle], detector)
    else:
        geometry = FanBeam([angle], detector, source * scale, 1.6 * source * scale)
    A = Projector(geometry, grid, precision="float64")
    frames = geometry.trajectory
    pixels = frames.pixels(0)
    half = np.array(grid.extent)[::-1] / 2
    low = np.array(grid.center)[::-1] - half
    wanted = []
    for p in pixels:
        if source is None:
            start, way = p - 1e4 * scale * frames.directions[0], 2e4 * scale * frames.directions[0]
        else:
            start, way = frames.sources[0], p - frames.sources[0]
        way = np.where(np.abs(way) < 1e-12 * scale, 1e-12 * scale, way)
        t = np.sort(np.stack([(low - start) / way, (low + 2 * half - start) / way]), axis=0)
        inside = min(1.0, t[1].min()) - max(0.0, t[0].max())
        wanted.append(max(inside, 0.0) * np.linalg.norm(way))
    # A ray along a side may belong to it or not: leave such bins out.
    clear = np.array([_clear_of_sides(p, frames, low, half, source) for p in pixels])
    found = (A @ np.ones(grid.shape))[0]
    np.testing.assert_allclose(found[clear], np.array(wanted)[clear], atol=1e-7 * scale)


def _clear_of_sides(p, frames, low, half, source) -> bool:
    way = frames.directions[0] if source is None else p - frames.sources[0]
    way = way / np.linalg.norm(way)
    corners = low + 2 * half * np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
    offsets = (corners - p) @ np.array([-way[1], way[0]])
    return bool(np.abs(offsets).min() > 1e-6 * half.min())


@pytest.mark.parametrize(
    ("t", "at_zero", "at_two"),
    [(0, 8, 9.797959), (30, 7.849057, 9.755866), (90, 9.797959, 9.797959),
     (120, 9.919290, 8.499924), (210, 7.849057, 0)],
)  # fmt: skip
def test_disc_values_and_orientation(t: float, at_zero: float, at_two: float) -> None:
    grid = Grid((512, 512), 20 / 512)
    y, x = np.meshgrid(grid.coordinates("y"), grid.coordinates("x"), indexing="ij")
    disc = ((x - 3) ** 2 + (y - 1) ** 2 <= 25).astype("float32")
    A = Projector(ParallelBeam([math.radians(t)], Detector(3, 2.0)), grid)
    found = (A @ disc)[0]
    assert found[1] == pytest.approx(at_zero, abs=0.06)
    assert found[2] == pytest.approx(at_two, abs=0.06)


@pytest.mark.parametrize(
    ("x", "y", "t", "u"),
    [(10, 0, 0, 20), (10, -50, 0, 40), (10, 50, 0, 13.3333), (0, 10, 90, 20), (10, 0, 90, 0)],
)
def test_where_a_pixel_lands_in_a_fan(x: float, y: float, t: float, u: float) -> None:
    grid = Grid((201, 201))
    image = np.zeros(grid.shape, "float32")
    image[100 + y, 100 + x] = 1
    A = Projector(FanBeam([math.radians(t)], Detector(401, 0.25), 100, 200), grid)
    line = (A @ image)[0]
    columns = A.geometry.detector.columns()
    assert (line * columns).sum() / line.sum() == pytest.approx(u, abs=0.05)


def test_worked_indices_of_a_volume() -> None:
    volume = np.zeros((3, 5, 7), "float32")
    volume[1, 2, 6] = 1
    A = Projector(ParallelBeam([0, np.pi / 2], Detector((3, 7))), Grid((3, 5, 7)))
    found = A @ volume
    assert [tuple(map(int, i)) for i in np.argwhere(found > 1e-6)] == [(0, 1, 6), (1, 1, 3)]
    assert found[0, 1, 6] == pytest.approx(1)
    assert found[1, 1, 3] == pytest.approx(1)


def test_ball_chords_of_a_cone() -> None:
    grid = Grid((96, 96, 96), 22 / 96)
    z, y, x = np.meshgrid(*(grid.coordinates(a) for a in "zyx"), indexing="ij")
    ball = (x**2 + y**2 + z**2 <= 100).astype("float32")
    A = Projector(ConeBeam([0.4], Detector((4, 3), (10, 10), (0, 0)), 100, 200), grid)
    found = (A @ ball)[0]
    rows, columns = A.geometry.detector.rows(), A.geometry.detector.columns()
    for i, v in enumerate(rows):
        for j, u in enumerate(columns):
            s = 100 * math.sin(math.atan(math.hypot(u, v) / 200))
            assert found[i, j] == pytest.approx(2 * math.sqrt(max(100 - s * s, 0)), abs=0.25)


def test_lengths_scale_with_the_unit() -> None:
    x = np.random.default_rng(1).random((5, 6)).astype("float32")
    plain = Projector(*scans()["fan"]) @ x
    for scale in (1e-3, 1e3):
        grid = Grid((5, 6), (1.1 * scale, 0.7 * scale), (0.3 * scale, -0.2 * scale))
        fan = FanBeam(ANGLES, Detector(7, 1.91 * scale, 0.13 * scale), 7.1 * scale, 12.4 * scale)
        np.testing.assert_allclose(Projector(fan, grid) @ x, plain * scale, rtol=2e-5)


# --- the operator ------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_threads_change_no_bit(name: str) -> None:
    A = Projector(*scans()[name])
    x, y = A.domain.random(0), A.codomain.random(1)
    results = []
    for count in (1, 2, 3):
        with pool.limit(count):
            results.append((A @ x, A.H @ y))
    for forward, adjoint in results[1:]:
        assert np.array_equal(forward, results[0][0])
        assert np.array_equal(adjoint, results[0][1])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [(2,), (2, 3), (0,), (2, 0)])
def test_batches_equal_the_loop(name: str, batch: tuple[int, ...]) -> None:
    A = Projector(*scans()[name])
    x = np.random.default_rng(0).random((*batch, *A.domain.shape)).astype("float32")
    y = np.random.default_rng(1).random((*batch, *A.codomain.shape)).astype("float32")
    forward, adjoint = A @ x, A.H @ y
    assert forward.shape == (*batch, *A.codomain.shape)
    assert adjoint.shape == (*batch, *A.domain.shape)
    for index in np.ndindex(*batch):
        assert np.array_equal(forward[index], A @ x[index])
        assert np.array_equal(adjoint[index], A.H @ y[index])


@pytest.mark.parametrize("name", ["fan", "cone", "aligned"])
def test_views_in_any_order_give_the_same_rows(name: str) -> None:
    geometry, grid = scans()[name]
    A = Projector(geometry, grid)
    x = A.domain.random(0)
    order = [2, 0, 3]
    assert np.array_equal(Projector(geometry[order], grid) @ x, (A @ x)[order])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_torch_and_jax_give_the_same_bits(name: str) -> None:
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    A = Projector(*scans()[name])
    x, y = A.domain.random(0), A.codomain.random(1)
    for make in (torch.from_numpy, jnp.asarray):
        forward, adjoint = A @ make(x), A.H @ make(y)
        assert type(forward) is type(make(x))
        assert np.array_equal(np.asarray(forward), A @ x)
        assert np.array_equal(np.asarray(adjoint), A.H @ y)


def test_torch_gradients_are_the_adjoint() -> None:
    torch = pytest.importorskip("torch")
    A = Projector(*scans()["fan"], precision="float64")
    x = torch.from_numpy(A.domain.random(0)).requires_grad_()
    w = torch.from_numpy(A.codomain.random(1))
    (w * (A @ x)).sum().backward()
    assert np.array_equal(x.grad.numpy(), A.H @ w.numpy())
    assert torch.autograd.gradcheck(lambda t: A @ t, (x,))
    assert torch.autograd.gradgradcheck(lambda t: (A @ t) ** 2, (x,))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "uint16", "float16", "float32"])
def test_integers_and_halves_are_not_rescaled(dtype: str) -> None:
    A = Projector(ParallelBeam([0.0], Detector(8)), Grid((8, 8)))
    found = A @ np.ones((8, 8), dtype)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, 8, rtol=1e-6)


def test_float64_input_is_cast_with_one_warning() -> None:
    A = Projector(*scans()["fan"])
    x = np.ones(A.domain.shape)
    with pytest.warns(RuntimeWarning, match="float64"):
        assert (A @ x).dtype == np.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        A @ x
    assert (A.with_precision("float64") @ x).dtype == np.float64


def test_float64_sums_keep_small_terms() -> None:
    A = Projector(ParallelBeam([np.pi / 2], Detector(1)), Grid((1, 3)), precision="float64")
    assert (A @ np.array([[2.0**30, 1.0, -(2.0**30)]]))[0, 0] == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_pickles_to_the_same_operator(name: str) -> None:
    A = Projector(*scans()[name])
    x = A.domain.random(0)
    assert np.array_equal(pickle.loads(pickle.dumps(A)) @ x, A @ x)


def test_the_scan_is_a_snapshot() -> None:
    angles = ANGLES.copy()
    A = Projector(ParallelBeam(angles, Detector(7)), FLAT)
    x = A.domain.random(0)
    before = A @ x
    angles[:] = 0
    assert np.array_equal(A @ x, before)


def test_with_geometry_asks_for_a_scan() -> None:
    with pytest.raises(GeometryError, match="beam or a Trajectory"):
        Projector(*scans()["fan"]).with_geometry(None)


def test_selected_options_can_be_read() -> None:
    A = Projector(*scans()["cone"])
    assert (A.backend, A.precision, A.dtype, A.model) == ("numba", "fast", np.float32, "siddon")
    assert str(A.rule) == "z y x -> view row col"
    assert str(Projector(*scans()["aligned"]).rule) == "z y x -> view z col"
    assert str(Projector(*scans()["fan"]).rule) == "y x -> view col"
    assert str(A.gram().rule) == "z y x -> z2 y2 x2"


def test_the_way_through_the_grid_is_shown_and_a_rounding_beside_it_is_right() -> None:
    ways = {"parallel": "planar", "aligned": "aligned rows", "cone": "columns", "tilted": "oblique"}
    for name, way in ways.items():
        A = Projector(*scans()[name])
        assert A.path == way
        assert f"fast, numba, {way}, " in (2 * A).describe()
    assert Projector(*scans()["cone"], backend="portable").path is None
    # Frames turned by 1e-5, far beyond the tolerances of alignment: only slower.
    turn = np.array([[1, 0, 0], [0, math.cos(1e-5), -math.sin(1e-5)], [0, math.sin(1e-5), 1]])
    for name in ("aligned", "cone"):
        geometry, grid = scans()[name]
        slow = Projector(geometry.transform(rotation=turn), grid, precision="float64")
        assert slow.path in ("columns", "oblique")
        x = slow.domain.random(0)
        fast = Projector(geometry, grid, precision="float64")
        np.testing.assert_allclose(slow @ x, fast @ x, atol=3e-4)


def test_aligned_rows_answer_to_both_names() -> None:
    A = Projector(*scans()["aligned"])
    x = A.domain.random(0)
    for name in ("z", "row"):
        assert np.array_equal(A.block(name, 1, 3) @ x[1:3], (A @ x)[:, 1:3])


@pytest.mark.parametrize(
    ("name", "model"),
    [*((name, "siddon") for name in NAMES), ("fan", "joseph"), ("fan", "footprint")],
)
def test_squares_of_a_part_are_those_of_its_matrix(name: str, model: str) -> None:
    A = Projector(*scans()[name], model=model, precision="float64")
    for axis in A.rule.names:
        for padded in (False, True):
            part = A.block(axis, 1, 3, padded)
            w, dense = part.codomain.random(1) ** 2, part.to_dense()
            found = part.gram(w).diagonal().ravel(), part.gram().diagonal().ravel()
            wanted = np.ravel(w) @ dense**2, (dense**2).sum(0)
            np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)


def test_a_copy_in_the_kernels_order_is_not_made() -> None:
    A = Projector(*scans()["cone"])
    back = A.H @ (A @ A.domain.random(0))
    assert np.moveaxis(back, 0, -1).flags.c_contiguous
    forward = A @ back
    assert np.swapaxes(forward, 1, 2).flags.c_contiguous


# --- bad input ---------------------------------------------------------------------------


def test_shapes_are_refused_with_names_and_a_hint() -> None:
    A = Projector(*scans()["cone"])
    with pytest.raises(ShapeError, match=r"z=3, y=4, x=5.*axes y and x look swapped"):
        A @ np.zeros((3, 5, 4), "float32")
    with pytest.raises(ShapeError, match="view=4, row=3, col=5"):
        A.H @ np.zeros((3, 3, 5), "float32")
    with pytest.raises(ShapeError, match="unravel"):
        A @ np.zeros(60, "float32")
    with pytest.raises(DTypeError):
        A @ np.zeros((3, 4, 5), "datetime64[s]")
    with pytest.raises(DTypeError):
        A @ [[0.0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "nearest"}, "model"),
        ({"model": None}, "model"),
        ({"backend": ""}, "backend"),
        ({"backend": None}, "backend"),
        ({"backend": "Numba"}, "backend"),
        ({"backend": 1}, "backend"),
        ({"precision": "fp64"}, "precision"),
        ({"precision": None}, "precision"),
        ({"precision": ""}, "precision"),
        ({"precision": 1}, "precision"),
    ],
)
def test_options_are_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Projector(*scans()["fan"], **options)


def test_scans_that_cannot_be_are_refused() -> None:
    with pytest.raises(GeometryError, match="dimensions"):
        Projector(ParallelBeam([0.0], Detector(5)), SOLID)
    with pytest.raises(GeometryError, match="1e6 voxels"):
        Projector(FanBeam([0.0], Detector(5), 1.5e6, 3e6), FLAT)
    Projector(FanBeam([0.0], Detector(5), 1.5e6, 3e6), FLAT, precision="float64")


@pytest.mark.parametrize("backend", ["numba", "portable"])
@pytest.mark.parametrize("precision", ["fast", "float32", "float64"])
def test_sources_and_detectors_inside_the_volume_clip_the_ray(precision: str, backend: str) -> None:
    grid = Grid((1, 8))
    for source, wanted in ((0, 4), (-1, 5), (2, 2), (-4, 8), (4, 0)):
        frames = FanBeam([np.pi / 2], Detector(1), 1, 2).trajectory
        scan = type(frames)("fan", [[source, 0.0]], [[20.0, 0.0]], [[0.0, 1.0]], None, Detector(1))
        A = Projector(scan, grid, backend=backend, precision=precision)
        assert (A @ np.ones((1, 8), A.dtype))[0, 0] == pytest.approx(wanted, abs=1e-5)


def test_single_views_rows_cells_and_voxels_keep_their_axes() -> None:
    A = Projector(ParallelBeam([0.0], Detector((1, 1))), Grid((1, 1, 1)))
    assert (A @ np.ones((1, 1, 1), "float32")).shape == (1, 1, 1)
    assert (A.H @ np.ones((1, 1, 1), "float32")).shape == (1, 1, 1)
    B = Projector(FanBeam([0.3], Detector(1), 5, 9), Grid((1, 1)))
    assert (B @ np.ones((1, 1), "float32")).shape == (1, 1)
    empty = B.block("view", 1, 1)
    assert (empty @ np.ones((1, 1), "float32")).shape == (0, 1)
    assert not (empty.H @ np.ones((0, 1), "float32")).any()


def test_lengths_and_frames_are_real() -> None:
    with pytest.raises(GeometryError, match="spacing"):
        Grid((4, 4), spacing=np.complex64(1 + 2j))
    frames = scans()["cone"][0].trajectory
    with pytest.raises(DTypeError, match="rotation"):
        frames.transform(rotation=np.eye(3) * 1j)
    with pytest.raises(DTypeError, match="translation"):
        frames.transform(translation="abc")


@pytest.mark.parametrize(
    ("spacing", "bound"),
    [((1.0, 10001.0), "ratio"), ((0.999e-6, 1e-3), "range"), ((1e3, 1.001e6), "range")],
)
def test_a_grid_beyond_float32_names_the_bound(spacing: tuple[float, ...], bound: str) -> None:
    geometry, grid = ParallelBeam([0.0], Detector(5)), Grid((4, 4), spacing)
    with pytest.raises(ValueError, match=bound):
        Projector(geometry, grid, backend="numba")
    with pytest.warns(RuntimeWarning, match=bound) as seen:
        A = Projector(geometry, grid)
    assert len(seen) == 1
    assert A.backend == "portable"
    seen_by = np.abs(geometry.detector.columns()) < 2 * spacing[1]
    found = (A @ np.ones(grid.shape, "float32"))[0]
    np.testing.assert_allclose(found, 4 * spacing[0] * seen_by, rtol=4e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Projector(geometry, grid, backend="portable").backend == "portable"
        assert Projector(geometry, grid, precision="float64").backend == "numba"
        edge = Grid((4, 4), (1.0, 10000.0))
        assert Projector(geometry, edge).backend == "numba"


def test_analytic_reconstruction_asks_for_a_projector() -> None:
    from geometries import fbp

    space = lo.Space((4, 5))
    with pytest.raises(GeometryError, match="Projector"):
        fbp(lo.Identity(space), np.zeros((4, 5), "float32"))
