"""Planar kernels against chords clipped ray by ray and cell by cell in Python, and closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from geometries.kernels import planar, planar_subsets
from geometries.kernels.planar import PlanarScan
from linops.compiled import pool

PRECISIONS = ("fast", "float32", "float64")
F = (0.231, 0.811, 1.431)
TOLERANCE = {"fast": 4e-5, "float32": 4e-5, "float64": 2e-11}


def dtype_of(precision: str) -> np.dtype[Any]:
    return np.dtype("float64" if precision == "float64" else "float32")


def make(
    kind: str,
    angles: Any,
    columns: int,
    pitch: float = 1.0,
    offset: float = 0.0,
    shape: tuple[int, int] = (8, 8),
    spacing: tuple[float, float] = (1.0, 1.0),
    center: tuple[float, float] = (0.0, 0.0),
    a: float = 7.1,
    d: float = 12.4,
    radius: float | None = None,
) -> PlanarScan:
    """A circular scan written out, with a flat or a curved detector."""
    t = np.asarray(angles, np.float64)
    e_u = np.stack([np.cos(t), np.sin(t)], 1)
    e_r = np.stack([-np.sin(t), np.cos(t)], 1)
    none = np.zeros_like(e_u)
    points = None
    if kind == "parallel":
        frames = none, e_r, none, e_u
    else:
        frames = -a * e_r, none, (d - a) * e_r, e_u
    if radius is not None:
        s = (np.arange(columns) - (columns - 1) / 2) * pitch + offset
        along, depth = radius * np.sin(s / radius), radius * (np.cos(s / radius) - 1)
        points = frames[2][:, None] + along[:, None] * e_u[:, None] + depth[:, None] * e_r[:, None]
    return PlanarScan(kind, *frames, columns, pitch, offset, points, shape, spacing, center)


def framed(kind: str) -> PlanarScan:
    """The parallel and the fan scan of the worked values."""
    t = np.array(F)
    e_u = np.stack([np.cos(t), np.sin(t)], 1)
    e_r = np.stack([-np.sin(t), np.cos(t)], 1)
    o = np.array([(0.173, -0.239), (-0.119, 0.281), (0.317, 0.113)])
    none = np.zeros_like(o)
    if kind == "parallel":
        frames = none, e_r, o + 3.7 * e_r, e_u
    else:
        frames = o - 7.1 * e_r, none, o + 5.3 * e_r, e_u
    return PlanarScan(kind, *frames, 5, 0.91, 0.0, None, (3, 4), (1.1, 0.7), (0.0, 0.0))


def clipped(scan: PlanarScan) -> np.ndarray:
    """The cell matrix: every ray clipped against every cell (Liang and Barsky), half-open faces."""
    ny, nx = scan.grid_shape
    dy, dx = scan.spacing
    cy, cx = scan.center
    xs = [cx + (i - nx / 2) * dx for i in range(nx + 1)]
    ys = [cy + (i - ny / 2) * dy for i in range(ny + 1)]
    matrix = np.zeros((len(scan.centers) * scan.columns, ny * nx))
    for v in range(len(scan.centers)):
        for k in range(scan.columns):
            a = (k - (scan.columns - 1) / 2) * scan.pitch + scan.offset
            p = scan.centers[v] + a * scan.u[v]
            if scan.points is not None:
                p = scan.points[v, k]
            if scan.kind == "parallel":
                start, step, low, high = p, scan.directions[v], -math.inf, math.inf
            else:
                start, step, low, high = scan.origins[v], p - scan.origins[v], 0.0, 1.0
            length = math.hypot(*step)
            for j in range(ny):
                for i in range(nx):
                    t0, t1 = low, high
                    for s, e, f0, f1 in (
                        (start[0], step[0], xs[i], xs[i + 1]),
                        (start[1], step[1], ys[j], ys[j + 1]),
                    ):
                        if abs(e) <= 1e-20:
                            if not f0 <= s < f1:
                                t0, t1 = 1.0, 0.0
                        else:
                            near, far = sorted(((f0 - s) / e, (f1 - s) / e))
                            t0, t1 = max(t0, near), min(t1, far)
                    if t1 > t0:
                        matrix[v * scan.columns + k, j * nx + i] = (t1 - t0) * length
    return matrix


def project(scan: PlanarScan, image: np.ndarray, precision: str, **block: Any) -> np.ndarray:
    views = block.pop("count", len(scan.centers))
    columns = block.pop("columns", scan.columns)
    batched = np.ascontiguousarray(image, dtype_of(precision)).reshape((-1, *image.shape[-2:]))
    out = np.full((len(batched), views, columns), 73.0, dtype_of(precision))
    planar.forward(scan, batched, out, precision=precision, **block)
    return out.reshape(image.shape[:-2] + out.shape[1:])


def back(scan: PlanarScan, sinogram: np.ndarray, precision: str, **block: Any) -> np.ndarray:
    shape = block.pop("shape", scan.grid_shape)
    data = np.ascontiguousarray(sinogram, dtype_of(precision))
    data = data.reshape((-1, *sinogram.shape[-2:]))
    out = np.full((len(data), *shape), 73.0, dtype_of(precision))
    planar.adjoint(scan, data, out, precision=precision, **block)
    return out.reshape(sinogram.shape[:-2] + out.shape[1:])


def dense(scan: PlanarScan, precision: str) -> np.ndarray:
    n = math.prod(scan.grid_shape)
    basis = np.eye(n).reshape(n, *scan.grid_shape)
    return project(scan, basis, precision).reshape(n, -1).T.astype(np.float64)


def dense_adjoint(scan: PlanarScan, precision: str) -> np.ndarray:
    n = len(scan.centers) * scan.columns
    basis = np.eye(n).reshape(n, len(scan.centers), scan.columns)
    return back(scan, basis, precision).reshape(n, -1).astype(np.float64)


SCANS = {
    "parallel F": lambda: framed("parallel"),
    "fan F": lambda: framed("fan"),
    "parallel": lambda: make("parallel", F, 5, 0.91, 0.13, (3, 4), (1.1, 0.7)),
    "fan": lambda: make("fan", F, 5, 0.91, 0.13, (3, 4), (1.1, 0.7)),
    "curved": lambda: make("fan", F, 5, 0.91, 0.0, (3, 4), (1.1, 0.7), radius=12.4),
    "moved": lambda: make("fan", (0.3, 2.5, 4.0), 9, 0.7, -0.4, (5, 4), (0.4, 0.9), (0.7, -1.1)),
    "coarse": lambda: make("parallel", (0.2, 1.1, 3.3), 4, 2.3, 0.1, (7, 6)),
    "fine": lambda: make("parallel", (0.2, 1.1, 3.3), 40, 0.17, 0.1, (7, 6)),
    "inside": lambda: make("fan", (0.2, 1.1, 2.2, 3.3, 4.4), 9, 0.8, 0.1, (9, 8), a=1.3, d=3.1),
    "far": lambda: make("fan", (0.2, 1.9, 3.9), 14, 1.1, 0.1, (9, 10), a=300.0, d=450.0),
    "far and magnified": lambda: make("fan", (0.7, 2.3), 24, 0.9, 0.1, (6, 9), a=90.0, d=160.0),
    "one cell": lambda: make("fan", F, 3, 0.2, 0.05, (1, 1)),
    "one row": lambda: make("parallel", (0.0, 0.5), 4, 0.8, 0.1, (1, 6)),
}


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SCANS)
def test_every_entry_equals_the_clipped_chord(name: str, precision: str) -> None:
    scan = SCANS[name]()
    expected = clipped(scan)
    tolerance = TOLERANCE[precision]
    np.testing.assert_allclose(dense(scan, precision), expected, tolerance, tolerance)
    np.testing.assert_allclose(dense_adjoint(scan, precision), expected, tolerance, tolerance)


WORKED = {
    "parallel F": (
        43,
        30.063940854091,
        5.035492824521,
        3.625747368885,
        1.638342768706,
        2.222572134516,
    ),
    "fan F": (66, 45.704517558126, 6.171736146705, 4.652282136826, -0.672804398553, 2.465715504784),
    "parallel": (
        43,
        29.875011594915,
        5.013900831281,
        3.596222143639,
        1.421818104152,
        2.162270891914,
    ),
    "fan": (66, 45.656238929117, 6.171508071721, 4.732239404035, -0.542096052861, 2.430448243192),
    "curved": (65, 45.341300112838, 6.114900962521, 4.729814720800, 0.956789405965, 2.238705745590),
}


def worked(shape: tuple[int, ...], phase: float) -> np.ndarray:
    k = np.arange(math.prod(shape))
    return (np.sin(0.713 * k + phase) + 0.2 * np.cos(0.317 * k)).reshape(shape)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", WORKED)
def test_worked_numbers(name: str, precision: str) -> None:
    scan = SCANS[name]()
    count, total, frobenius, norm, inner, norm_back = WORKED[name]
    matrix = dense(scan, precision)
    x, y = worked(scan.grid_shape, 0.0), worked((3, 5), 0.31)
    if precision == "float64":
        assert np.count_nonzero(matrix) == count
    close = TOLERANCE[precision]
    assert matrix.sum() == pytest.approx(total, rel=close)
    assert np.linalg.norm(matrix) == pytest.approx(frobenius, rel=close)
    projected = project(scan, x, precision)
    assert np.linalg.norm(projected) == pytest.approx(norm, rel=close)
    assert np.vdot(projected, y) == pytest.approx(inner, rel=close, abs=close)
    assert np.linalg.norm(back(scan, y, precision)) == pytest.approx(norm_back, rel=close)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("beside", [0.0, 1e-7, -1e-7, 1e-6, -1e-6])
def test_rays_along_an_axis_and_a_hair_beside(beside: float, precision: str) -> None:
    angles = np.arange(4) * np.pi / 2 + beside
    scan = make("parallel", angles, 8)
    views = project(scan, np.ones((8, 8)), precision)
    np.testing.assert_allclose(views, 8.0, atol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_right_angles_are_row_and_column_sums(precision: str) -> None:
    x = np.random.default_rng(1).random((16, 16)).astype(np.float32)
    views = project(make("parallel", np.arange(4) * np.pi / 2, 16, shape=(16, 16)), x, precision)
    expected = np.stack([x.sum(0), x.sum(1), x.sum(0)[::-1], x.sum(1)[::-1]])
    np.testing.assert_allclose(views, expected, rtol=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rays_beside_the_grid_are_exactly_zero(precision: str) -> None:
    scan = make("parallel", (0.0, np.pi / 2, np.pi), 5, 1.0, 280.0, (64, 64))
    assert np.array_equal(project(scan, np.ones((64, 64)), precision), np.zeros((3, 5)))
    one = np.array([[280.0, 100.0]])
    scan = PlanarScan(
        "fan",
        one,
        0 * one,
        one * (1, -1),
        np.array([[1.0, 0.0]]),
        5,
        1.0,
        0.0,
        None,
        (64, 64),
        (1.0, 1.0),
        (0.0, 0.0),
    )
    assert np.array_equal(project(scan, np.ones((64, 64)), precision), np.zeros((1, 5)))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_ray_in_a_face_belongs_to_the_higher_cell(precision: str) -> None:
    # Directions with exact components: faces along y at -2 .. 2, rays in each of them.
    one = np.array([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0]])
    u = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    scan = PlanarScan(
        "parallel", 0 * one, one, 0 * one, u, 5, 1.0, 0.0, None, (4, 4), (1.0, 1.0), (0.0, 0.0)
    )
    x = np.random.default_rng(2).random((4, 4)).astype(np.float32)
    down, across = np.append(x.sum(0), 0), np.append(x.sum(1), 0)
    views = project(scan, x, precision)
    np.testing.assert_allclose(views, [down, down, across], rtol=1e-6)
    image = back(scan, np.ones((3, 5)), precision)
    np.testing.assert_allclose(image, np.full((4, 4), 3.0), rtol=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("start", "chord"), [(0.0, 4.0), (-1.0, 5.0), (2.0, 2.0), (-4.0, 8.0), (4.0, 0.0)]
)
def test_only_the_segment_counts(start: float, chord: float, precision: str) -> None:
    one = np.array([[20.0, 0.0]])
    scan = PlanarScan(
        "fan",
        np.array([[start, 0.0]]),
        0 * one,
        one,
        np.array([[0.0, 1.0]]),
        1,
        1.0,
        0.0,
        None,
        (1, 8),
        (1.0, 1.0),
        (0.0, 0.0),
    )
    value = project(scan, np.ones((1, 8)), precision)
    assert value[0, 0] == pytest.approx(chord, rel=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_source_and_detector_inside(precision: str) -> None:
    source, center = np.array([[-0.5, 0.0]]), np.array([[0.75, 0.0]])
    scan = PlanarScan(
        "fan",
        source,
        0 * source,
        center,
        np.array([[0.0, 1.0]]),
        1,
        1.0,
        0.0,
        None,
        (3, 5),
        (1.0, 1.0),
        (0.0, 0.0),
    )
    assert project(scan, np.ones((3, 5)), precision)[0, 0] == pytest.approx(1.25, rel=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_oblique_exit(precision: str) -> None:
    t = 0.37123456789123  # the chord is 5 x .61 / cos
    one = np.array([[math.cos(t), math.sin(t)]])
    scan = PlanarScan(
        "parallel",
        0 * one,
        one,
        np.array([[0.137123456789, -0.239234567891]]),
        np.array([[-math.sin(t), math.cos(t)]]),
        1,
        1.0,
        0.0,
        None,
        (3, 5),
        (0.73, 0.61),
        (0.0, 0.0),
    )
    value = project(scan, np.ones((3, 5)), precision)[0, 0]
    assert value == pytest.approx(clipped(scan).sum(), rel=TOLERANCE[precision])


@pytest.mark.parametrize("ends", [(-100, 100), (-1e6, 1e6), (-1e7, 100), (100, -1e15)])
def test_distant_ends(ends: tuple[float, float]) -> None:
    one = np.array([[1.0, 0.0]])
    scan = PlanarScan(
        "fan",
        ends[0] * one,
        0 * one,
        ends[1] * one,
        np.array([[0.0, 1.0]]),
        1,
        1.0,
        0.0,
        None,
        (5, 7),
        (1.5, 2.0),
        (0.0, 0.0),
    )
    for precision in PRECISIONS:
        value = project(scan, np.full((5, 7), 1.25), precision)[0, 0]
        assert value == pytest.approx(1.25 * 14, rel=TOLERANCE[precision])
        image = back(scan, np.ones((1, 1)), precision)
        expected = np.zeros((5, 7))
        expected[2] = 2.0
        np.testing.assert_allclose(image, expected, atol=TOLERANCE[precision])


def test_sums_keep_small_terms() -> None:
    one = np.array([[1.0, 0.0]] * 2)
    u = np.array([[0.0, 1.0]] * 2)
    scan = PlanarScan(
        "parallel", 0 * one, one, 0 * one, u, 1, 1.0, 0.0, None, (1, 3), (1.0, 1.0), (0.0, 0.0)
    )
    row = np.array([[2.0**30, 1.0, -(2.0**30)]])
    assert np.array_equal(project(scan, row, "float64"), [[1.0], [1.0]])


BLOCKS = {
    "parallel": lambda: make(
        "parallel", np.linspace(0.05, 3.0, 6), 21, 0.9, 0.2, (14, 13), (1.0, 0.8), (0.3, -0.2)
    ),
    "fan": lambda: make(
        "fan",
        np.linspace(0.05, 6.0, 6),
        21,
        1.4,
        0.2,
        (14, 13),
        (1.0, 0.8),
        (0.3, -0.2),
        a=15.0,
        d=24.0,
    ),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_change_no_bit(kind: str, precision: str) -> None:
    scan = BLOCKS[kind]()
    rng = np.random.default_rng(3)
    x = rng.standard_normal(scan.grid_shape)
    y = rng.standard_normal((6, 21))
    whole, whole_back = project(scan, x, precision), back(scan, y, precision)
    views = np.array([4, 1, -1])
    part = project(scan, x, precision, views=views, count=3, first_column=-2, columns=9)
    assert np.array_equal(part[:2, 2:], whole[[4, 1], :7])
    assert not part[2].any() and not part[:, :2].any()
    part = project(scan, x, precision, first_column=11, columns=14)
    assert np.array_equal(part[:, :10], whole[:, 11:]) and not part[:, 10:].any()
    for first, shape in (((-2, 3), (9, 6)), ((7, -1), (10, 20)), ((0, 0), (14, 1))):
        block = back(scan, y, precision, first_cell=first, shape=shape)
        expected = np.zeros(shape)
        j, i = np.meshgrid(
            *(np.arange(n) + f for n, f in zip(shape, first, strict=True)), indexing="ij"
        )
        real = (j >= 0) & (j < 14) & (i >= 0) & (i < 13)
        expected[real] = whole_back[j[real], i[real]]
        assert np.array_equal(block, expected)
    # Parts of a contracted axis add up.
    top = project(scan, x[:5], precision) + project(scan, x[5:], precision, first_cell=(5, 0))
    np.testing.assert_allclose(top, whole, atol=20 * np.finfo(whole.dtype).eps)
    left = back(scan, y[:, :8], precision)
    left = left + back(scan, y[:, 8:], precision, first_column=8)
    np.testing.assert_allclose(left, whole_back, atol=20 * np.finfo(whole.dtype).eps)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", BLOCKS)
def test_inert_planes_are_never_read(kind: str, precision: str) -> None:
    scan = BLOCKS[kind]()
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((14, 13)), rng.standard_normal((6, 21))
    padded = np.full((18, 16), np.nan)
    padded[2:9, 1:14] = x[:7]
    got = project(scan, padded, precision, first_cell=(-2, -1), real_cells=((0, 7), (0, 13)))
    cut = np.zeros_like(x)
    cut[:7] = x[:7]
    np.testing.assert_allclose(
        got, project(scan, cut, precision), rtol=0, atol=20 * np.finfo(got.dtype).eps
    )
    data = np.full((8, 26), np.nan)
    data[:5, 2:20] = y[:5, :18]
    views = np.array([0, 1, 2, 3, 4, -1, -1, -1])
    got = back(scan, data, precision, first_column=-2, views=views, real_columns=(0, 18))
    cut = np.zeros_like(y)
    cut[:5, :18] = y[:5, :18]
    np.testing.assert_allclose(
        got, back(scan, cut, precision), rtol=0, atol=20 * np.finfo(got.dtype).eps
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", BLOCKS)
def test_threads_and_batches_change_no_bit(kind: str, precision: str) -> None:
    scan = BLOCKS[kind]()
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((3, 14, 13)), rng.standard_normal((3, 6, 21))
    with pool.limit(1):
        forward = np.stack([project(scan, image, precision) for image in x])
        adjoint = np.stack([back(scan, data, precision) for data in y])
    for threads in (1, 2, 3):
        with pool.limit(threads, exceed=True):
            assert np.array_equal(project(scan, x, precision), forward)
            assert np.array_equal(back(scan, y, precision), adjoint)
    assert project(scan, x[:0].reshape(0, 14, 13), precision).shape == (0, 6, 21)


def residual(left: np.ndarray, x: np.ndarray, right: np.ndarray, y: np.ndarray) -> float:
    """The residual of <A x, y> and <x, A.H y> in units of eps, given Ax = left, A.H y = right."""
    eps = np.finfo(left.dtype).eps
    left, x, right, y = (np.asarray(a, np.float64).ravel() for a in (left, x, right, y))
    scale = np.linalg.norm(left) * np.linalg.norm(y) + np.linalg.norm(x) * np.linalg.norm(right)
    return abs(left @ y - x @ right) / scale / eps if scale else 0.0


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["parallel", "fan"])
def test_dot_at_scale(kind: str, precision: str) -> None:
    n = 512
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False) + 1e-3
    scan = make(
        kind, angles, 736, 1.0 if kind == "parallel" else 1.6, 0.1, (n, n), a=800.0, d=1200.0
    )
    rng = np.random.default_rng(6)
    bound = 64 if precision == "fast" else 16
    dtype = dtype_of(precision)
    x = rng.standard_normal((n, n)).astype(dtype)
    y = rng.standard_normal((40, 736)).astype(dtype)
    forward, adjoint = project(scan, x, precision), back(scan, y, precision)
    assert residual(forward, x, adjoint, y) <= 16
    assert residual(forward, x, back(scan, forward, precision), forward) <= 16
    cells = np.zeros((10, n, n), dtype)
    cells.reshape(10, -1)[np.arange(10), rng.integers(0, n * n, 10)] = 1
    shadows = project(scan, cells, precision)
    images = back(scan, shadows, precision)
    bins = np.zeros((10, 40, 736), dtype)
    bins[np.arange(10), rng.integers(0, 40, 10), rng.integers(150, 590, 10)] = 1
    strips = back(scan, bins, precision)
    views = project(scan, strips, precision)
    for b in range(10):
        assert residual(shadows[b], cells[b], images[b], shadows[b]) <= bound
        assert residual(views[b], strips[b], strips[b], bins[b]) <= bound
        assert residual(shadows[b], cells[b], adjoint, y) <= bound


@pytest.mark.parametrize("kind", BLOCKS)
def test_gram_diagonal(kind: str) -> None:
    scan = BLOCKS[kind]()
    matrix = clipped(scan)
    weights = np.random.default_rng(7).random((6, 21))
    out = np.full(scan.grid_shape, 73.0)
    planar.gram_diagonal(scan, weights, out)
    np.testing.assert_allclose(out.ravel(), weights.ravel() @ matrix**2, rtol=1e-11)
    planar.gram_diagonal(scan, np.ones_like(weights), out)
    np.testing.assert_allclose(out.ravel(), (matrix**2).sum(0), rtol=1e-11)


CURVED = {
    **BLOCKS,
    "curved": lambda: make(
        "fan",
        np.linspace(0.05, 6.0, 6),
        21,
        1.4,
        0.2,
        (14, 13),
        (1.0, 0.8),
        (0.3, -0.2),
        a=15.0,
        d=24.0,
        radius=24.0,
    ),
    "inside": SCANS["inside"],
    "fine": SCANS["fine"],
    "moved": SCANS["moved"],
}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("name", CURVED)
def test_cells_hold_the_weights_of_the_whole(
    name: str, kept: bool, few: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kept:
        monkeypatch.setattr(planar_subsets, "_KEPT", 0)  # as for a scan too large to keep its rays
    scan = CURVED[name]()
    dtype = dtype_of(precision)
    n = math.prod(scan.grid_shape)
    rng = np.random.default_rng(8)
    index = rng.permutation(n)
    if few:
        index = index[:5]  # below and above the size at which a view is tabulated
    matrix = dense(scan, precision).astype(dtype)
    out = np.empty((1, len(scan.centers), scan.columns), dtype)
    for c in index[:20]:
        planar.forward_cells(scan, np.ones((1, 1), dtype), np.array([c]), out)
        assert np.array_equal(out.ravel(), matrix[:, c])
    index = np.append(index, -1)
    values = rng.standard_normal((2, len(index))).astype(dtype)
    values[:, -1] = np.nan
    out = np.full((2, *out.shape[1:]), 73.0, dtype)
    planar.forward_cells(scan, values, index, out)
    expected = values[:, :-1].astype(np.float64) @ matrix[:, index[:-1]].T.astype(np.float64)
    eps = 40 * np.finfo(dtype).eps
    np.testing.assert_allclose(out.reshape(2, -1), expected, atol=eps)
    data = rng.standard_normal((2, *out.shape[1:])).astype(dtype)
    sums = np.full((2, len(index)), 73.0, dtype)
    planar.adjoint_cells(scan, data, index, sums)
    whole = data.reshape(2, -1).astype(np.float64) @ matrix.astype(np.float64)
    np.testing.assert_allclose(sums[:, :-1], whole[:, index[:-1]], atol=eps)
    assert not sums[:, -1].any()
    for threads in (1, 3):
        again, sums_again = np.empty_like(out), np.empty_like(sums)
        with pool.limit(threads, exceed=True):
            planar.forward_cells(scan, values, index, again)
            planar.adjoint_cells(scan, data, index, sums_again)
        assert np.array_equal(again, out) and np.array_equal(sums_again, sums)
