"""The model of Joseph: values by SciPy and ASTRA, one set of weights, the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

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
    perturb,
)
from linops.compiled import pool
from linops.testing import check_operator

FLAT = Grid((5, 6), (1.1, 0.7), (0.3, -0.2))
SOLID = Grid((3, 4, 5), (1.3, 0.9, 0.6), (0.1, 0.2, -0.3))
ANGLES = np.array([0.231, 0.811, 1.431, 4.0])
PRECISIONS = ("fast", "float32", "float64")


def bent(a: Any, b: Any, view: Any, depth: Any) -> Any:
    return np.stack([a + 0.1 * np.sin(a), b * 1.0, depth * np.cos(a + view) + 0.1 * b], axis=-1)


def downwards(detector: Detector) -> Trajectory:
    """A cone whose rows run against z."""
    t = ConeBeam(ANGLES, detector, 7.1, 12.4).trajectory
    return Trajectory("cone", t.sources, t.centers, t.u, -t.v, detector)


def scans() -> dict[str, tuple[Any, Grid]]:
    row = Detector(7, 1.31, 0.13)
    panel = Detector((4, 5), (1.67, 1.91), (0.11, -0.17))
    cone = ConeBeam(ANGLES, panel, 7.1, 12.4, advance=1.7)
    places = np.array([[0.0, 0.0, 0.0], [2.3, 1.0, -0.7], [-1.4, -2.0, 0.3], [0.2, 0.1, 2.0]])
    surface = Detector((4, 5), (0.67, 0.91), 0.1, Surface(bent, [1.3]))
    return {
        "parallel": (ParallelBeam(ANGLES, Detector(7, 0.91, 0.13)), FLAT),
        "axes": (ParallelBeam([0.0, np.pi / 4, np.pi / 2, 4.0], Detector(7, 0.91, 0.13)), FLAT),
        "fan": (FanBeam(ANGLES, row, 7.1, 12.4), FLAT),
        "inside": (FanBeam(ANGLES, Detector(7, 0.61, 0.13), 1.6, 2.7), FLAT),
        "equiangular": (FanBeam(ANGLES, Detector(7, 1.91, curvature=12.4), 7.1, 12.4), FLAT),
        "aligned": (ParallelBeam(ANGLES, Detector((3, 6), (1.3, 0.71), (0.1, 0.13))), SOLID),
        "steep": (MultiAxisParallel(ANGLES, [0.0, 0.4, -1.2, 1.5], panel), SOLID),
        "helix": (cone, SOLID),
        "curved": (ConeBeam(ANGLES, Detector((4, 5), 1.9, curvature=12.4), 7.1, 12.4), SOLID),
        "inner": (ConeBeam(ANGLES, Detector((4, 5), (0.9, 0.7)), 1.2, 2.0), SOLID),
        # Rows many slices apart and driven by z, and many rows a slice.
        "thin": (
            ConeBeam(ANGLES, Detector((9, 5), (4.1, 1.9)), 7.1, 12.4),
            Grid((11, 4, 5), (0.23, 0.9, 0.6)),
        ),
        "coarse": (
            ConeBeam(ANGLES, Detector((4, 5), (6.1, 1.9)), 30.0, 40.0),
            Grid((40, 4, 5), (0.4, 0.9, 0.6)),
        ),
        "dense": (downwards(Detector((21, 5), (0.11, 1.9), (0.3, 0.1))), SOLID),
        "moved": (Translation(places, panel, 7.1, 12.4), SOLID),
        "askew": (perturb(cone, np.random.default_rng(1), 0.1, 0.05, 0.3), SOLID),
        "surface": (ConeBeam(ANGLES, surface, 7.1, 12.4), SOLID),
    }


NAMES = tuple(scans())


def joseph(geometry: Any, grid: Grid, **options: Any) -> Projector:
    return Projector(geometry, grid, model="joseph", **options)


# --- values ---------------------------------------------------------------------------------


def sampled(geometry: Any, grid: Grid, x: np.ndarray) -> np.ndarray:
    """By the definition: clip the ray to each slab, interpolate at the middle of what is left."""
    trajectory = geometry.trajectory
    size, counts = np.array(grid.spacing[::-1]), np.array(grid.shape[::-1])
    ends = trajectory.points() - np.array(grid.center[::-1])
    ends = ends.reshape(*trajectory.points().shape)
    out = np.zeros(ends.shape[:-1])
    parallel = trajectory.sources is None
    for at in np.ndindex(*out.shape):
        end = ends[at]
        if parallel:
            way = np.asarray(trajectory.directions[at[0]])
            begin, low, high = end, -np.inf, np.inf
        else:
            begin = np.asarray(trajectory.sources[at[0]]) - np.array(grid.center[::-1])
            way, low, high = end - begin, 0.0, 1.0
        drive = int(np.argmax(np.abs(way / size)))
        for j in range(counts[drive]):
            faces = (np.array([j, j + 1]) - counts[drive] / 2) * size[drive]
            s = np.sort((faces - begin[drive]) / way[drive]).clip(low, high)
            middle = begin + s.mean() * way
            index = middle / size + (counts - 1) / 2
            index[drive] = j
            value = map_coordinates(x, index[::-1, None], order=1, mode="grid-constant")[0]
            out[at] += (s[1] - s[0]) * np.linalg.norm(way) * value
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_values_are_interpolated_slab_by_slab(name: str) -> None:
    geometry, grid = scans()[name]
    x = np.random.default_rng(0).random(grid.shape)
    wanted = sampled(geometry, grid, x)
    assert np.abs(wanted).max() > 0.5
    for precision, rtol in (("float64", 1e-12), ("float32", 1e-6), ("fast", 1e-6)):
        A = joseph(geometry, grid, precision=precision)
        assert (A.backend, A.model) == ("numba", "joseph")
        np.testing.assert_allclose(A @ x.astype(A.dtype), wanted, rtol, rtol * wanted.max())


def test_sinograms_are_those_of_astra() -> None:
    # Of its CPU projectors one alone interpolates, that of parallel beams.
    astra = pytest.importorskip("astra")
    angles = np.linspace(0.05, 2 * np.pi, 24, endpoint=False)
    # ASTRA treats the border of the image in its own way: it is empty here.
    image = np.zeros((40, 48), "float32")
    image[2:-2, 2:-2] = np.random.default_rng(0).random((36, 44))
    asked = astra.create_proj_geom("parallel", 0.9, 80, angles)
    created = astra.create_projector("linear", asked, astra.create_vol_geom(40, 48))
    identity, wanted = astra.create_sino(image[::-1].copy(), created)
    astra.data2d.delete(identity)
    astra.projector.delete(created)
    found = joseph(ParallelBeam(angles, Detector(80, 0.9)), Grid((40, 48))) @ image
    assert np.abs(found - wanted).max() <= 2e-5 * wanted.max()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_compiled_and_portable_weights_are_one(name: str) -> None:
    geometry, grid = scans()[name]
    A = joseph(geometry, grid, precision="float64")
    B = joseph(geometry, grid, precision="float64", backend="portable")
    dense = A.to_dense()
    np.testing.assert_allclose(dense, B.to_dense(), rtol=1e-12, atol=2e-14)
    np.testing.assert_allclose(A.H.to_dense().T, dense, rtol=4e-15, atol=0)
    w = A.codomain.random(3) ** 2
    for weights, scale in ((None, np.ones(A.codomain.size)), (w, w.ravel())):
        found, wanted = A.gram(weights).diagonal(), (dense**2 * scale[:, None]).sum(0)
        np.testing.assert_allclose(found.ravel(), wanted, rtol=1e-12, atol=1e-12 * wanted.max())


@pytest.mark.slow
@pytest.mark.parametrize("curvature", [None, 90.0])
def test_rows_of_a_column_have_the_values_of_their_rays(curvature: float | None) -> None:
    from geometries.kernels.oblique import joseph as rays
    from geometries.kernels.runner import VolumeRunner

    turns = np.linspace(0, 2 * np.pi, 5, endpoint=False) + 0.01
    beam = ConeBeam(turns, Detector((44, 30), 1.2, (3.0, 0.2), curvature), 60, 90, advance=9.0)
    grid = Grid((37, 24, 20), (0.9, 1.1, 1.0))
    A = joseph(beam, grid, precision="float64")
    x, y = A.domain.random(0), A.codomain.random(1)
    slow = VolumeRunner(A, rays)
    forward, back = slow.forward(x), slow.adjoint(y)
    for precision, bound in (("float64", 1e-13), ("float32", 1e-7), ("fast", 1e-6)):
        B = A.with_precision(precision)
        assert np.abs(B @ x.astype(B.dtype) - forward).max() <= bound * np.abs(forward).max()
        assert np.abs(B.H @ y.astype(B.dtype) - back).max() <= bound * np.abs(back).max()


def test_small_terms_survive_large_ones() -> None:
    for shape, detector in (((3, 1), Detector(1)), ((1, 3, 1), Detector((1, 1)))):
        A = joseph(ParallelBeam([0.0, 0.0], detector), Grid(shape), precision="float64")
        x = np.array([2.0**30, 1.0, -(2.0**30)]).reshape(shape)
        assert np.array_equal(A @ x, np.ones(A.codomain.shape))
        y = np.array([2.0**30, 1.0]).reshape(A.codomain.shape)
        assert np.array_equal(A.H @ y, np.full(shape, 2.0**30 + 1))


# --- one set of weights ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NAMES)
def test_blocks_threads_and_batches_change_no_bit(name: str, precision: str) -> None:
    A = joseph(*scans()[name], precision=precision)
    x, y = A.domain.random(0), A.codomain.random(1)
    forward, back, gram = A @ x, A.H @ y, A.gram().diagonal()
    with pool.limit(3, exceed=True):
        assert np.array_equal(A @ x, forward)
        assert np.array_equal(A.H @ y, back)
        assert np.array_equal(A.gram().diagonal(), gram)
    slices = str(A.rule).endswith("-> view z col")
    for axis in A.codomain.axes:
        n = A.codomain.axes.index(axis)
        for start in range(A.codomain.shape[n]):
            part = x[start : start + 1] if axis == "row" and slices else x
            found = A.block(axis, start, start + 1) @ part
            assert np.array_equal(found, np.take(forward, [start], n))
    for axis in A.domain.axes:
        n = A.domain.axes.index(axis)
        for start in range(A.domain.shape[n]):
            part = y[:, start : start + 1] if axis == "z" and slices else y
            found = A.block(axis, start, start + 1).H @ part
            assert np.array_equal(found, np.take(back, [start], n))
    many, data = np.stack([x, 2 * x, -x]), np.stack([y, 2 * y, -y])
    for member in range(3):
        assert np.array_equal((A @ many)[member], A @ many[member])
        assert np.array_equal((A.H @ data)[member], A.H @ data[member])


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["parallel", "fan", "aligned", "cone", "curved", "steep"])
def test_adjoints_at_scale(kind: str, precision: str) -> None:
    turns = np.linspace(0, 2 * np.pi, 8, endpoint=False) + 0.01
    panel = Detector((24, 40))
    scan: Any = {
        "parallel": lambda: ParallelBeam(turns, Detector(100)),
        "fan": lambda: FanBeam(turns, Detector(100, 1.5), 128, 256),
        "aligned": lambda: ParallelBeam(turns, panel),
        "cone": lambda: ConeBeam(turns, panel, 128, 256),
        "curved": lambda: ConeBeam(turns, Detector((24, 40), curvature=256), 128, 256, 9.0),
        "steep": lambda: MultiAxisParallel(turns, np.linspace(-1.5, 1.5, 8), panel),
    }[kind]()
    grid = Grid((64, 72), (1.0, 1.2)) if kind in ("parallel", "fan") else Grid((24, 20, 22))
    A = joseph(scan, grid, precision=precision)
    rng = np.random.default_rng(0)
    for number in range(6):
        x, y = A.domain.random(number), A.codomain.random(number + 6)
        if number == 1:
            y = A @ x
        if number > 1:
            x, y = 0 * x, 0 * y
            x[tuple(n // 2 for n in x.shape)] = 1
            seen = np.argwhere(A @ x)
            y[tuple(seen[rng.integers(len(seen))])] = 1
        forward, back = A @ x, A.H @ y
        gap = abs(A.codomain.inner(forward, y) - A.domain.inner(x, back))
        size = A.codomain.norm(forward) * A.codomain.norm(y)
        size += A.domain.norm(x) * A.domain.norm(back)
        assert gap <= 16 * np.finfo(A.dtype).eps * size


def test_a_nan_reaches_no_ray_that_it_does_not_meet() -> None:
    for name in ("fan", "helix"):
        A = joseph(*scans()[name], precision="float64")
        dense = A.to_dense()
        for place in (0, A.domain.size // 2, A.domain.size - 1):
            x = np.zeros(A.domain.size)
            x[place] = np.nan
            found = np.isnan(A @ x.reshape(A.domain.shape)).ravel()
            assert np.array_equal(found, dense[:, place] > 0)
        for ray in range(0, A.codomain.size, 5):
            y = np.zeros(A.codomain.size)
            y[ray] = np.nan
            found = np.isnan(A.H @ y.reshape(A.codomain.shape)).ravel()
            assert np.array_equal(found, dense[ray] > 0)


# --- the contract ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [("parallel", "fast"), ("equiangular", "float64"), ("aligned", "float32"), ("helix", "fast"),
     ("surface", "float64")],
)  # fmt: skip
def test_joseph_keeps_the_contract(name: str, precision: str) -> None:
    A = joseph(*scans()[name], precision=precision)
    check_operator(A, libraries=None if name == "helix" else ())
    if name == "aligned":
        check_operator(lo.vstack([A, 0.5 * lo.Gradient(A.domain)]), libraries=())
    if name == "parallel":
        check_operator(A.gram(A.codomain.random(1) ** 2), libraries=())


@pytest.mark.parametrize("name", ["fan", "aligned", "helix", "thin", "steep"])
def test_subsets_are_the_operator_on_them(name: str) -> None:
    A = joseph(*scans()[name], precision="float64")
    index = np.array([7, 0, -1, 19, 7])
    part = A.columns(index)
    x, y = part.domain.random(0), A.codomain.random(1)
    plane = np.zeros((*A.domain.shape[:-2], A.domain.shape[-2] * A.domain.shape[-1]))
    for place in (0, 1, 3, 4):
        plane[..., index[place]] += x[..., place]
    np.testing.assert_allclose(part @ x, A @ plane.reshape(A.domain.shape), atol=1e-13)
    back = (A.H @ y).reshape(plane.shape)
    wanted = np.where(index >= 0, back[..., np.maximum(index, 0)], 0)
    np.testing.assert_allclose(part.H @ y, wanted, atol=1e-13)
