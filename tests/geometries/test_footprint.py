"""The footprint projector as an operator: adjoint, blocks, subsets, gram, refusals, solvers."""

from __future__ import annotations

import pickle
import warnings
from itertools import product

import numpy as np
import pytest
from footprint_scans import ANGLES, SOLID, scans

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
)
from linops.compiled import pool
from linops.errors import GeometryError

PRECISIONS = ("fast", "float32", "float64")
NAMES = tuple(scans())


def footprint(geometry: object, grid: Grid, **options: object) -> Projector:
    return Projector(geometry, grid, model="footprint", **options)


# --- the contract ---------------------------------------------------------------------------


# float32 is fast without licence to reorder, and other libraries call the same kernels: three scans
# stand for all.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *product(NAMES, ("fast", "float64")),
        *product(("equiangular", "aligned", "helix"), ("float32",)),
    ],
)
def test_every_footprint_keeps_the_contract(name: str, precision: str) -> None:
    from linops.testing import check_operator

    A = footprint(*scans()[name], precision=precision)
    check_operator(A, libraries=None if precision == "float32" else ())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["equiangular", "aligned", "helix", "tilted"])
def test_compositions_and_subsets_keep_the_contract(name: str) -> None:
    from linops.testing import check_operator

    A = footprint(*scans()[name], precision="float32", profile="box")
    check_operator(A.H, libraries=())
    check_operator(A.gram(A.codomain.random(1) ** 2), libraries=())
    check_operator(lo.vstack([A, 0.5 * lo.Gradient(A.domain)]), libraries=())
    check_operator(A.columns([3, -1, 0, 7, 12, 3]), libraries=None if name == "helix" else ())


SCALE = Detector((64, 128))
BIG = Grid((20, 36, 36))
STRETCHED = Grid((20, 36, 36), (2.9, 1.9, 1.0))
TURNS = np.linspace(0, 2 * np.pi, 12, endpoint=False) + 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("geometry", "grid"),
    [
        (ParallelBeam(TURNS, SCALE), BIG),
        (ParallelBeam(TURNS, SCALE), Grid(BIG.shape, (1.0, 1.9, 1.0))),
        (ConeBeam(TURNS, SCALE, 256, 512), BIG),
        (ConeBeam(TURNS, SCALE, 256, 512), STRETCHED),
        (ConeBeam(TURNS, Detector((64, 128), curvature=512), 256, 512), BIG),
        (ConeBeam(2 * TURNS, SCALE, 256, 512, advance=16.0), BIG),
        (Translation(np.random.default_rng(0).uniform(-9, 9, (12, 3)), SCALE, 256, 512), BIG),
        (Translation(np.random.default_rng(0).uniform(-9, 9, (12, 3)), SCALE, 256, 512), STRETCHED),
        (MultiAxisParallel(TURNS, np.full(12, 0.5), SCALE), STRETCHED),
    ],
    ids=["parallel", "parallel 1.9", "cone", "cone 2.9", "curved", "helix", "moved", "moved 2.9",
         "tilted"],
)  # fmt: skip
@pytest.mark.parametrize("precision", PRECISIONS)
def test_adjoints_at_scale(geometry: object, grid: Grid, precision: str) -> None:
    A = footprint(geometry, grid, precision=precision)
    x, y = A.domain.random(5), A.codomain.random(6)
    assert dot_residual(A, x, y) <= 16
    assert dot_residual(A, x, A @ x) <= 16


def dot_residual(A: Projector, x: np.ndarray, y: np.ndarray) -> float:
    """|<A x, y> - <x, A.H y>| over the sizes of both, in units of eps."""
    forward, back = A @ x, A.H @ y
    gap = abs(A.codomain.inner(forward, y) - A.domain.inner(x, back))
    size = A.codomain.norm(forward) * A.codomain.norm(y) + A.domain.norm(x) * A.domain.norm(back)
    return gap / size / np.finfo(A.dtype).eps


@pytest.mark.parametrize("name", NAMES)
def test_precisions_agree(name: str) -> None:
    exact = footprint(*scans()[name], precision="float64")
    x = exact.domain.random(0)
    wanted = exact @ x
    for precision in ("fast", "float32"):
        found = footprint(*scans()[name], precision=precision) @ x.astype("float32")
        assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_fast_stays_close_at_512_columns() -> None:
    # Set-up is float64: no view is a column off, in any order of the views.
    angles = np.deg2rad(np.random.default_rng(0).permutation(180)[:12].astype(float))
    detector = Detector((6, 512))
    for beam in (ParallelBeam(angles, detector), ConeBeam(angles, detector, 1000, 1200)):
        grid = Grid((6, 400, 400) if beam.kind == "parallel" else (4, 200, 200))
        exact = footprint(beam, grid, precision="float64")
        x = exact.domain.random(1) ** 2
        wanted = exact @ x
        found = footprint(beam, grid) @ x.astype("float32")
        assert np.abs(found - wanted).max() <= 2e-6 * wanted.max()


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("backend", ["numba", "portable"])
def test_no_view_of_180_is_a_column_off(backend: str, precision: str) -> None:
    # Rounding of positions in fast code once moved single views by a column.
    angles = np.deg2rad(np.arange(180.0))
    stretch = 1 if backend == "numba" else 15  # every view compiled, 12 of them by array code
    beam, grid = ParallelBeam(angles[::stretch], Detector(300)), Grid((256, 256))
    y, x = np.meshgrid(grid.coordinates("y"), grid.coordinates("x"), indexing="ij")
    image = np.where((x - 40) ** 2 + (y + 20) ** 2 <= 3600, 1 + 0.3 * np.sin(0.4 * x + 0.1 * y), 0)
    A = footprint(beam, grid, backend=backend, precision=precision)
    wanted = footprint(beam, grid, precision="float64") @ image
    found = A @ image.astype(A.dtype)
    error = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert error.max() <= 1e-5
    # And the reference itself: mass stays, and its center moves along one sine.
    at = beam.detector.columns()
    mass = wanted.sum(1)
    np.testing.assert_allclose(mass, image.sum(), rtol=1e-10)
    center = np.cos(beam.angles) * (image * x).sum() + np.sin(beam.angles) * (image * y).sum()
    np.testing.assert_allclose(wanted @ at, center, atol=1e-4 * image.sum())


# --- one set of weights ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("profile", ["trapezoid", "box"])
def test_gram_diagonals_are_those_of_the_matrix(name: str, profile: str) -> None:
    for precision, rtol in (("float64", 1e-12), ("float32", 1e-6)):
        A = footprint(*scans()[name], precision=precision, profile=profile)
        dense = footprint(*scans()[name], precision="float64", profile=profile).to_dense()
        w = A.codomain.random(3) ** 2
        for weights, scale in ((None, np.ones(A.codomain.size)), (w, np.ravel(w))):
            found = np.ravel(A.gram(weights).diagonal())
            wanted = (dense**2 * scale[:, None]).sum(0)
            np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * wanted.max())


@pytest.mark.parametrize("name", NAMES)
def test_subsets_are_the_operator_on_them(name: str) -> None:
    for precision, atol in (("float64", 1e-13), ("fast", 3e-6)):
        A = footprint(*scans()[name], precision=precision)
        index = np.array([7, 0, -1, 19, 7])
        part = A.columns(index)
        x = part.domain.random(0)
        volume = np.zeros((*A.domain.shape[:-2], A.domain.shape[-2] * A.domain.shape[-1]), A.dtype)
        for place in (0, 1, 3, 4):
            volume[..., index[place]] += x[..., place]
        np.testing.assert_allclose(part @ x, A @ volume.reshape(A.domain.shape), atol=atol)
        y = A.codomain.random(1)
        back = (A.H @ y).reshape(volume.shape)
        wanted = np.where(index >= 0, back[..., np.maximum(index, 0)], 0)
        np.testing.assert_allclose(part.H @ y, wanted, atol=10 * atol)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["fast", "float64"])
def test_blocks_change_no_bit_of_what_they_own(name: str, precision: str) -> None:
    A = footprint(*scans()[name], precision=precision)
    x, y = A.domain.random(0), A.codomain.random(1)
    forward, back = A @ x, A.H @ y
    aligned = str(A.rule).endswith("-> view z col")
    for axis, space in (("view", A.codomain), ("row", A.codomain), ("col", A.codomain)):
        if axis not in space.axes or (axis == "row" and aligned):
            continue
        n = space.axes.index(axis)
        for start in range(space.shape[n]):
            found = A.block(axis, start, start + 1) @ x
            assert np.array_equal(found, np.take(forward, [start], n))
    for axis in A.domain.axes:
        if axis == "z" and aligned:
            continue
        n = A.domain.axes.index(axis)
        for start in range(A.domain.shape[n]):
            found = A.block(axis, start, start + 1).H @ y
            assert np.array_equal(found, np.take(back, [start], n))


@pytest.mark.parametrize("name", ["cone", "helix", "tilted", "unaligned"])
def test_parts_of_a_detector_and_of_a_grid_join_without_a_seam(name: str) -> None:
    A = footprint(*scans()[name])
    x, y = A.domain.random(0), A.codomain.random(1)
    rows, slices = A.codomain.shape[1], A.domain.shape[0]
    middle = rows // 2
    parts = [A.block("row", 0, middle + 1), A.block("row", middle, rows)]
    low, high = (part @ x for part in parts)
    # Where they overlap they are one, bit for bit, so a scan in two halves has no step.
    assert np.array_equal(low[:, -1], high[:, 0])
    assert np.array_equal(np.concatenate([low, high[:, 1:]], 1), A @ x)
    back = (
        A.block("row", 0, middle).H @ y[:, :middle] + A.block("row", middle, rows).H @ y[:, middle:]
    )
    assert np.abs(back - A.H @ y).max() <= 1e-6 * np.abs(back).max()
    whole = A.H @ y
    cut = slices // 2
    halves = A.block("z", 0, cut), A.block("z", cut, slices)
    assert np.array_equal(np.concatenate([half.H @ y for half in halves]), whole)
    joined = halves[0] @ x[:cut] + halves[1] @ x[cut:]
    assert np.abs(joined - A @ x).max() <= 1e-6 * np.abs(joined).max()
    # A reconstruction slab by slab is that of the whole.
    scaled = whole / np.maximum(A.H @ np.ones_like(y), 1e-3)
    slabs = [half.H @ y / np.maximum(half.H @ np.ones_like(y), 1e-3) for half in halves]
    assert np.array_equal(np.concatenate(slabs), scaled)


@pytest.mark.parametrize("name", NAMES)
def test_threads_change_no_bit(name: str) -> None:
    A = footprint(*scans()[name])
    x, y = A.domain.random(0), A.codomain.random(1)
    index = [4, 9, 2]
    results = []
    for count in (1, 3):
        with pool.limit(count, exceed=True):
            part = A.columns(index)
            results.append((A @ x, A.H @ y, part @ x.reshape(*x.shape[:-2], -1)[..., index],
                            part.H @ y, A.gram().diagonal()))  # fmt: skip
    for first, second in zip(*results, strict=True):
        assert np.array_equal(first, second)


@pytest.mark.parametrize("name", NAMES)
def test_batches_and_pickles_equal_the_loop(name: str) -> None:
    A = footprint(*scans()[name])
    x = np.random.default_rng(0).random((2, 3, *A.domain.shape)).astype("float32")
    y = np.random.default_rng(1).random((2, 3, *A.codomain.shape)).astype("float32")
    forward, back = A @ x, A.H @ y
    copy = pickle.loads(pickle.dumps(A))
    for index in np.ndindex(2, 3):
        assert np.array_equal(forward[index], copy @ x[index])
        assert np.array_equal(back[index], copy.H @ y[index])
    assert (A @ x[:0]).shape == (0, 3, *A.codomain.shape)


@pytest.mark.slow
def test_torch_and_jax_give_the_same_bits() -> None:
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    jax = pytest.importorskip("jax")
    for name in ("fan", "helix"):
        A = footprint(*scans()[name])
        x, y = A.domain.random(0), A.codomain.random(1)
        for make in (torch.from_numpy, jnp.asarray):
            assert np.array_equal(np.asarray(A @ make(x)), A @ x)
            assert np.array_equal(np.asarray(A.H @ make(y)), A.H @ y)
        assert np.array_equal(np.asarray(jax.jit(lambda v, A=A: A @ v)(jnp.asarray(x))), A @ x)
        gradient = jax.grad(lambda v, A=A, y=y: jnp.vdot(jnp.asarray(y), A @ v))(jnp.asarray(x))
        np.testing.assert_allclose(np.asarray(gradient), A.H @ y, rtol=1e-6)


# --- geometry -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_views_in_any_order_give_the_same_rows(name: str) -> None:
    geometry, grid = scans()[name]
    x = footprint(geometry, grid).domain.random(0)
    order = [2, 0, 3]
    whole = footprint(geometry, grid) @ x
    assert np.array_equal(footprint(geometry[order], grid) @ x, whole[order])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cells", [3.5, -2.0])
def test_offsets_move_the_detector(name: str, cells: float) -> None:
    geometry, grid = scans()[name]
    d = geometry.detector
    x = footprint(geometry, grid, precision="float64").domain.random(0)
    shift = cells * d.pitch[-1]
    offset = (*d.offset[:-1], d.offset[-1] + shift)
    moved = geometry.with_detector(Detector(d.shape, d.pitch, offset, d.curvature))
    # The same cells are the last, or the first, of 20 more columns.
    more = round(2 * abs(cells))
    wide_shape = (*d.shape[:-1], d.shape[-1] + more)
    wide = geometry.with_detector(Detector(wide_shape, d.pitch, d.offset, d.curvature))
    found = footprint(moved, grid, precision="float64") @ x
    whole = footprint(wide, grid, precision="float64") @ x
    part = whole[..., more:] if cells > 0 else whole[..., : d.shape[-1]]
    np.testing.assert_allclose(found, part, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fast", "float64"])
def test_each_view_of_a_mixed_scan_keeps_its_kernel(precision: str) -> None:
    from linops.testing import check_operator

    elevations = np.array([0.0, 0.3, 0.0, -0.4, 0.0])
    scan = MultiAxisParallel(np.arange(5) + 0.2, elevations, Detector((3, 6), (1.3, 0.9)))
    grid = Grid((3, 5, 4), (1.3, 0.9, 0.7))
    A = footprint(scan, grid, precision=precision)
    assert A.path == "3 aligned, 2 rows"
    x = A.domain.random(1)
    y = A @ x
    for views in ([0], [1], [2], [4, 3], [2, 0, 4], [3, 1]):
        part = footprint(scan[views], grid, precision=precision)
        assert np.array_equal(part @ x, y[views])
    check_operator(A, libraries=())


def test_one_changed_view_changes_that_view_only() -> None:
    detector = Detector((5, 9), 1.2)
    distances = np.full(4, 12.0)
    x = np.random.default_rng(0).random(SOLID.shape)
    before = footprint(ConeBeam(ANGLES, detector, distances, 20.0), SOLID, precision="float64") @ x
    distances[2] = 13.0
    after = footprint(ConeBeam(ANGLES, detector, distances, 20.0), SOLID, precision="float64") @ x
    same = [np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
    assert same == [True, True, False, True]


def test_new_angles_compile_nothing() -> None:
    from geometries.kernels import footprint_level, footprint_tiles

    geometry, grid = scans()["helix"]
    A = footprint(geometry, grid)
    x, y = A.domain.random(0), A.codomain.random(1)
    A @ x, A.H @ y
    kernels = [f for m in (footprint_level, footprint_tiles) for f in vars(m).values()
               if hasattr(f, "signatures")]  # fmt: skip
    before = [len(kernel.signatures) for kernel in kernels]
    other = ConeBeam(4 * ANGLES + 0.3, geometry.detector, 13.0, 21.0, advance=0.4)
    B = A.with_geometry(other)
    assert (B.model, B.profile) == ("footprint", "trapezoid")
    B @ x, B.H @ y
    assert [len(kernel.signatures) for kernel in kernels] == before


def test_voxels_beside_the_detector_are_exactly_zero() -> None:
    beam = ConeBeam(ANGLES, Detector((4, 40)), 40, 80)
    # Rows see 2 at the axis; the cone reaches e beyond it at the support's edge.
    grid = Grid((24, 8, 8))
    for precision in PRECISIONS:
        A = footprint(beam, grid, precision=precision)
        seen = (A.H @ np.ones(A.codomain.shape, A.dtype)).sum((1, 2))
        assert seen[12] > 0 and seen[11] > 0
        assert not seen[:6].any() and not seen[18:].any()
        x = np.zeros(grid.shape, A.dtype)
        x[:6] = x[18:] = 1
        assert not (A @ x).any()
    beside = footprint(ParallelBeam([0.0, 1.0], Detector(5, offset=40)), Grid((8, 8)))
    assert not (beside @ np.ones((8, 8), "float32")).any()


def test_aligned_rows_are_detected() -> None:
    assert str(footprint(*scans()["aligned"]).rule) == "z y x -> view z col"
    for name in ("shifted", "unaligned", "cone", "tilted"):
        assert str(footprint(*scans()[name]).rule) == "z y x -> view row col"
    geometry, grid = scans()["aligned"]
    A = footprint(geometry, grid, precision="float64")
    x = A.domain.random(0)
    for k in range(3):
        one = np.zeros(grid.shape)
        one[k] = x[k]
        assert not np.delete(A @ one, k, 1).any()
    # Rows of any other pitch give the same sums.
    fine = ParallelBeam(ANGLES, Detector((12, 6), (1.3 / 4, 0.71), (0.1, 0.13)))
    rows = footprint(fine, grid, precision="float64") @ x
    np.testing.assert_allclose(rows.reshape(4, 3, 4, 6).mean(2), A @ x, atol=1e-12)


# --- refusals -------------------------------------------------------------------------------


def test_frames_that_do_not_permit_the_model_are_refused() -> None:
    cone = scans()["cone"][0]
    c, s = np.cos(0.01), np.sin(0.01)
    forward = np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
    with pytest.raises(GeometryError, match=r"view \d.*0.57.* degrees.*siddon"):
        footprint(cone.transform(rotation=forward), SOLID)
    # The detector turned within its plane: v leans.
    frames = cone.trajectory
    u = c * frames.u + s * frames.v
    v = -s * frames.u + c * frames.v
    turned = type(frames)("cone", frames.sources, frames.centers, u, v, frames.detector)
    with pytest.raises(GeometryError, match=r"view 0.*0.01 rad.*siddon"):
        footprint(turned, SOLID)
    flat = scans()["unaligned"][0].trajectory
    u, v = c * flat.u + s * flat.v, -s * flat.u + c * flat.v
    with pytest.raises(GeometryError, match=r"view 0.*z.*siddon"):
        footprint(type(flat)("parallel", flat.directions, flat.centers, u, v, flat.detector), SOLID)
    for beam in (
        ConeBeam(ANGLES, Detector((3, 5), curvature=18.0), 12, 20),
        ParallelBeam(ANGLES, Detector((3, 5), curvature=18.0)),
    ):
        with pytest.raises(GeometryError, match="siddon"):
            footprint(beam, SOLID)


def test_a_detector_turned_about_its_columns_is_permitted() -> None:
    # Seen from the source, a cell of the turned detector covers cells of the straight one:
    # a fine straight detector, read through the turned cells, gives the same picture.
    frames = ConeBeam([0.0], Detector((1, 41), (60.0, 1.0)), 100, 200).trajectory
    c, s = np.cos(0.2), np.sin(0.2)
    u = np.array([[c, s, 0.0]])
    turned = type(frames)("cone", frames.sources, frames.centers, u, frames.v, frames.detector)
    grid = Grid((1, 6, 6), (1.0, 1.5, 1.5))
    x = np.random.default_rng(0).random(grid.shape)
    fine = ConeBeam([0.0], Detector((1, 6001), (60.0, 0.01)), 100, 200)
    line = (footprint(fine, grid, precision="float64") @ x)[0, 0]
    at = fine.detector.columns()
    edges = frames.detector.columns()[:, None] + np.array([-0.5, 0.5])
    # A point a along u of the turned detector lies in front of this point of the straight one.
    straight = 200 * edges * c / (200 + edges * s)
    total = np.concatenate([[0], np.cumsum(line) * 0.01])
    within = np.interp(straight, np.append(at - 0.005, at[-1] + 0.005), total)
    found = (footprint(turned, grid, precision="float64") @ x)[0, 0]
    wanted = (within[:, 1] - within[:, 0]) / (straight[:, 1] - straight[:, 0])
    np.testing.assert_allclose(found, wanted, atol=0.02 * wanted.max())


def test_voxels_at_the_source_or_behind_the_detector_are_refused() -> None:
    with pytest.raises(GeometryError, match=r"view 1: voxel \(y=\d+, x=\d+\) contains the source"):
        footprint(FanBeam(ANGLES, Detector(5), np.array([9.0, 3.0, 9.0, 9.0]), 20.0), Grid((8, 8)))
    with pytest.raises(GeometryError, match=r"view 2: voxel .* behind the detector"):
        footprint(FanBeam(ANGLES, Detector(5), 9.0, 11.0), Grid((8, 8)))


def test_profiles_are_refused_by_name() -> None:
    geometry, grid = scans()["fan"]
    for profile in ("triangle", "", 1):
        with pytest.raises(ValueError, match="profile"):
            footprint(geometry, grid, profile=profile)
    with pytest.raises(ValueError, match="profile"):
        Projector(geometry, grid, profile="box")


def test_steep_elevations_warn() -> None:
    detector = Detector((9, 9))
    with pytest.warns(UserWarning, match="view 1: rays rise by 57.3 degrees") as caught:
        footprint(MultiAxisParallel(np.array([0.0, 1.0]), np.array([0.2, 1.0]), detector), SOLID)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        footprint(MultiAxisParallel(np.array([0.0, 1.0]), 0.7, detector), SOLID)


# --- solvers --------------------------------------------------------------------------------


def test_vcd_reconstructs_with_it() -> None:
    from solvers import vcd

    grid = Grid((4, 16, 16))
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    A = footprint(ConeBeam(angles, Detector((10, 34)), 60, 100), grid)
    z, y, x = np.meshgrid(*(grid.coordinates(a) for a in "zyx"), indexing="ij")
    truth = (1 + 0.3 * np.sin(0.7 * x) * np.cos(0.5 * y + z)).astype("float32")
    truth *= x**2 + y**2 <= 36
    y = A @ truth
    result = vcd(A, y, iterations=25, partitions=8)
    objective = np.array(result.histories["objective"])
    assert np.all(np.diff(objective) <= 1e-6 * objective[0])
    assert np.linalg.norm(A @ result.solution - y) <= 0.03 * np.linalg.norm(y)
