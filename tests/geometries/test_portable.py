"""The portable back end: the same numbers as the cell matrix, in every namespace."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import volume_reference as reference

from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector, Trajectory
from geometries.kernels import portable, portable_memory, portable_scan
from geometries.kernels.portable_memory import ray_bytes
from geometries.kernels.volume_scan import VolumeScan
from linops.testing import check_operator

FLAT = Grid((5, 6), (1.1, 0.7), (0.3, -0.2))
SOLID = Grid((3, 4, 5), (1.3, 0.9, 0.6), (0.1, 0.2, -0.3))
ANGLES = np.array([0.231, 0.811, 1.431, 0.0])
SCANS = {
    "parallel": (ParallelBeam(ANGLES, Detector(7, 0.91, 0.13)), FLAT),
    "equiangular": (FanBeam(ANGLES, Detector(7, 1.91, curvature=12.4), 7.1, 12.4), FLAT),
    "aligned": (ParallelBeam(ANGLES, Detector((3, 6), (1.3, 0.71), (0.1, 0.13))), SOLID),
    "helix": (
        ConeBeam(4 * ANGLES, Detector((3, 5), (1.67, 1.91), (0.11, -0.17)), 7.1, 12.4, 1.7),
        SOLID,
    ),
}


def projector(scan: VolumeScan, **options: object) -> Projector:
    """A projector on the frames of a scan of the kernels' tests."""
    detector = Detector(scan.shape, scan.pitch, scan.offset, scan.curvature)
    first = scan.directions if scan.kind == "parallel" else scan.origins
    frames = Trajectory(scan.kind, first, scan.centers, scan.u, scan.v, detector)
    return Projector(frames, Grid(scan.grid_shape, scan.spacing, scan.center), **options)


def cells(scan: VolumeScan) -> np.ndarray:
    """The cell matrix in the users' order of rays and voxels."""
    matrix = reference.cell_matrix(scan)
    views, cols, rows, ny, nx, nz = matrix.shape
    return matrix.transpose(0, 2, 1, 5, 3, 4).reshape(views * rows * cols, nz * ny * nx)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fast", "float32", "float64"])
@pytest.mark.parametrize("tilt", [False, True])
@pytest.mark.parametrize("name", reference.random_scans())
def test_both_ways_are_the_cell_matrix(name: str, tilt: bool, precision: str) -> None:
    scan = reference.random_scans()[name]
    scan = reference.tilted(scan) if tilt else scan
    A = projector(scan, backend="portable", precision=precision)
    wanted = cells(scan)
    tolerance = 2e-11 if precision == "float64" else 4e-5
    np.testing.assert_allclose(A.to_dense(), wanted, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(A.H.to_dense(), wanted.T, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        A.gram().diagonal().ravel(), (wanted**2).sum(0), rtol=tolerance, atol=tolerance
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"), [("parallel", "fast"), *((name, "float64") for name in SCANS)]
)
def test_every_portable_projector_keeps_the_contract(name: str, precision: str) -> None:
    A = Projector(*SCANS[name], backend="portable", precision=precision)
    assert (A.backend, A.precision) == ("portable", precision)
    # Traced, every scan is the same array code.
    check_operator(A, libraries=None if name in ("equiangular", "helix") else ())
    if name == "helix":
        check_operator(A.gram(A.codomain.random(1) ** 2), libraries=())


def test_a_larger_scan_has_the_numbers_of_the_compiled_kernels() -> None:
    grid = Grid((60, 64), (0.9, 1.1))
    fan = FanBeam(np.linspace(0, 2 * np.pi, 9, endpoint=False), Detector(90, 1.7), 80, 160)
    A = Projector(fan, grid, precision="float64")
    B = Projector(fan, grid, precision="float64", backend="portable")
    x, y = A.domain.random(0), A.codomain.random(1)
    np.testing.assert_allclose(B @ x, A @ x, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(B.H @ y, A.H @ y, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["siddon", "joseph"])
@pytest.mark.parametrize("name", ["equiangular", "helix"])
def test_tiles_and_batches_change_rounding_alone(name: str, model: str) -> None:
    geometry, grid = SCANS[name]
    whole = Projector(geometry, grid, model, "portable", "float64")
    x, y = whole.domain.random(0), whole.codomain.random(1)
    x, y = np.stack([x, x + 1]), np.stack([y, y - 1])
    for budget in (1, 4000) if len(grid.shape) == 2 else (4000,):
        A = Projector(geometry, grid, model, "portable", "float64", memory=budget)
        setup = portable_scan.setup_of(A, x)
        assert 1 < setup.edge < 5 if budget > 1 else (setup.edge, setup.batch) == (1, 1)
        np.testing.assert_allclose(A @ x, whole @ x, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(A.H @ y, whole.H @ y, rtol=1e-10, atol=1e-10)
    assert A.with_precision("fast").memory == A.block("view", 0, 1).memory == budget


def test_tiles_that_a_batch_misses_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rays along y at x = 0.8, 2.8 and 4.8, 6.8 cells, in pairs, and 4 x 4 tiles of 2 x 2 cells. A
    # tile is met where a ray comes within one cell of it: in 2 and 3 of the 4 columns of tiles.
    visits = 0
    siddon = portable.MODELS["siddon"]

    def counted(*arguments: object) -> object:
        nonlocal visits
        visits += 1
        return siddon(*arguments)

    monkeypatch.setitem(portable.MODELS, "siddon", counted)
    memory = 2 * ray_bytes("siddon", 2, 2)
    A = Projector(
        ParallelBeam([0.0], Detector(4, 2.0, -0.2)), Grid((8, 8)), backend="portable", memory=memory
    )
    setup = portable_scan.setup_of(A, np.ones((8, 8)))
    assert (setup.tiles, setup.batch) == ((4, 4), 2)
    np.testing.assert_array_equal(A @ np.ones((8, 8), "float32"), 8)
    assert visits == (2 + 3) * 4


@pytest.mark.slow
def test_temporaries_keep_to_their_budget() -> None:
    fan = FanBeam(np.linspace(0, 3, 48), Detector(512, 1.5), 500, 1000)
    A = Projector(fan, Grid((512, 512)), backend="portable", memory=8 << 20).block("view", 0, 6)
    x = np.ones(A.domain.shape, "float32")
    y = A.block("view", 0, 1) @ x
    results = {A: A.codomain.size, A.H: A.domain.size}
    for B, operand in ((A, x), (A.H, np.ones(A.codomain.shape, "float32"))):
        tracemalloc.start()
        B @ operand
        peak = tracemalloc.get_traced_memory()[1] - 4 * results[B]
        tracemalloc.stop()
        assert 1 << 20 < peak <= 1.1 * (8 << 20)
    assert y.any()


def test_budgets_follow_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones(3)
    for free, wanted in ((1 << 20, 8), (100 << 20, 16), (1 << 40, 256), (None, 8)):
        monkeypatch.setattr("linops.memory.host_free", lambda free=free: free)
        assert portable_memory.budget(x, None) == wanted << 20
    assert portable_memory.budget(x, 5) == 5
    for wrong in (0, -1, True, "8 MiB"):
        with pytest.raises(ValueError, match="memory"):
            Projector(*SCANS["helix"], backend="portable", memory=wrong)


@pytest.mark.slow
@pytest.mark.parametrize("distance", [1e3, 1e5, 1e6])
def test_float32_alone_keeps_far_sources(distance: float) -> None:
    # JAX without x64 has no float64: frames become numbers near the grid on the host.
    jnp = pytest.importorskip("jax.numpy")
    grid = Grid((16, 16, 16))
    cone = ConeBeam(ANGLES, Detector((6, 8), (1.3, 1.9), (0.1, 0.2)), distance, distance + 30)
    wanted = Projector(cone, grid, backend="portable", precision="float64")
    A = Projector(cone, grid, backend="portable")
    x = A.domain.random(0)
    exact = wanted @ x.astype(float)
    assert np.linalg.norm(A @ jnp.asarray(x) - exact) <= 4e-5 * np.linalg.norm(exact)


def test_sums_keep_small_terms() -> None:
    A = Projector(
        ParallelBeam([np.pi / 2] * 2, Detector(1)), Grid((1, 3)), "siddon", "portable", "float64"
    )
    assert np.all(A @ np.array([[2.0**30, 1.0, -(2.0**30)]]) == 1.0)


def test_halves_near_their_largest_number_give_finite_chords() -> None:
    A = Projector(ParallelBeam([0.0], Detector(1)), Grid((3, 1)), backend="portable")
    found = A @ np.full((3, 1), 65024, "float16")
    assert found.dtype == np.float32
    assert found[0, 0] == pytest.approx(195072)


# --- Joseph's model ----------------------------------------------------------------------


def joseph(*scan: object, **options: object) -> Projector:
    return Projector(*scan, model="joseph", backend="portable", **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["equiangular", "helix"])
def test_joseph_keeps_the_contract(name: str) -> None:
    libraries = None if name == "helix" else ()
    check_operator(joseph(*SCANS[name], precision="float64"), libraries=libraries)


def test_joseph_is_astras_linear_projector() -> None:
    astra = pytest.importorskip("astra")
    angles = np.linspace(0.05, 3, 7)
    A = joseph(ParallelBeam(angles, Detector(48, 0.9)), Grid((32, 32)), precision="float64")
    x = np.random.default_rng(0).random((32, 32))
    geometry = astra.create_proj_geom("parallel", 0.9, 48, angles)
    number = astra.create_projector("linear", geometry, astra.create_vol_geom(32, 32))
    # Rows of ASTRA's images run downwards.
    sinogram, wanted = astra.create_sino(x[::-1].astype("float32"), number)
    astra.data2d.delete(sinogram)
    astra.projector.delete(number)
    np.testing.assert_allclose(A @ x, wanted, rtol=1e-4, atol=1e-3)


def test_joseph_samples_a_plane_exactly() -> None:
    # A field that is linear in x and z, sampled between cell centers, well inside the grid.
    grid = Grid((20, 30, 20), (0.7, 1.1, 0.9))
    z, y, x = np.meshgrid(*(grid.coordinates(a) for a in "zyx"), indexing="ij")
    t = np.array([0.1, -0.15])
    A = joseph(ParallelBeam(t, Detector((3, 4), 0.8)), grid, precision="float64")
    found = A @ (2 + 0.3 * x - 0.2 * z + 0 * y)
    points = A.geometry.trajectory.points()
    e = A.geometry.trajectory.directions
    length = 30 * 1.1 / e[:, 1]
    middle = points - (points[..., 1] / e[:, None, None, 1])[..., None] * e[:, None, None]
    wanted = length[:, None, None] * (2 + 0.3 * middle[..., 0] - 0.2 * middle[..., 2])
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


# --- transforms --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
def test_jax_transforms_use_the_declared_pair() -> None:
    jax = pytest.importorskip("jax")
    A = Projector(*SCANS["helix"], backend="portable")
    x, v = (jax.numpy.asarray(A.domain.random(seed)) for seed in (0, 1))
    y = jax.numpy.asarray(A.codomain.random(2))
    matrix = A.to_dense().astype("float64")

    def near(found: object, wanted: np.ndarray) -> None:
        np.testing.assert_allclose(np.ravel(found), wanted, rtol=0, atol=2e-6 * abs(wanted).max())

    def loss(x: object) -> object:
        return 0.5 * jax.numpy.sum((A @ x - y) ** 2)

    gradient, curved = jax.jit(lambda x, v: jax.jvp(jax.grad(loss), (x,), (v,)))(x, v)
    near(gradient, matrix.T @ (matrix @ np.ravel(x) - np.ravel(y)))
    near(curved, matrix.T @ (matrix @ np.ravel(v)))
    mapped = jax.jit(jax.vmap(lambda x: A @ x))(jax.numpy.stack([x, v]))
    near(mapped[1], matrix @ np.ravel(v))
    passed = jax.jit(lambda A, x: A @ x)(A, x)
    near(passed, matrix @ np.ravel(x))


@pytest.mark.slow
def test_torch_transforms_use_the_declared_pair() -> None:
    torch = pytest.importorskip("torch")
    A = Projector(*SCANS["helix"], backend="portable", precision="float64")
    x = torch.from_numpy(A.domain.random(0)).requires_grad_()
    v, w = torch.from_numpy(A.domain.random(1)), torch.from_numpy(A.codomain.random(2))
    assert torch.autograd.gradcheck(lambda t: A @ t, (x,))
    assert torch.autograd.gradgradcheck(lambda t: (A @ t) ** 2, (x,))
    _, tangent = torch.func.jvp(lambda t: A @ t, (x.detach(),), (v,))
    np.testing.assert_allclose(tangent, A @ v.numpy(), rtol=1e-12)
    both = torch.vmap(lambda t: A @ t)(torch.stack([x.detach(), v]))
    np.testing.assert_allclose(both[1], A @ v.numpy(), rtol=1e-12)
    half = x.detach().to(torch.bfloat16).requires_grad_()
    B = A.with_precision("fast")
    assert B.backend == "portable"
    (w.float() * (B @ half)).sum().backward()
    assert half.grad.dtype == torch.bfloat16


def test_no_compiler_is_loaded() -> None:
    import subprocess
    import sys

    code = (
        "import sys, numpy as np; from geometries import *;"
        "A = Projector(FanBeam([0.1], Detector(5), 9, 14), Grid((4, 4)), backend='portable');"
        "A.H @ (A @ np.ones((4, 4), 'float32')); print('numba' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == "False", run.stderr
