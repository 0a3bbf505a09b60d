"""Derivatives in the geometry: published values, differences, both modes, both libraries."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from cell_matrix import cell_matrix

from geometries import ConeBeam, Detector, FanBeam, Grid, Projector, Trajectory
from geometries.kernels import portable
from geometries.surfaces import Surface
from linops.compiled import pool
from linops.errors import GeometryError
from linops.testing import check_operator
from sharding import plan

THREE = np.array([0.231, 0.811, 1.431])
FLAT, SOLID = Grid((3, 4), (1.1, 0.7)), Grid((2, 3, 4), (1.3, 0.9, 0.6))
CELLS = Detector((2, 3), (0.67, 0.91), (0.11, -0.17))
OFFSET = np.array([[0.173, -0.239], [-0.119, 0.281], [0.317, 0.113]])
E_U = np.stack([np.cos(THREE), np.sin(THREE)], 1)
E_R = np.stack([-np.sin(THREE), np.cos(THREE)], 1)


def wave(shape: tuple[int, ...], phase: float) -> np.ndarray:
    k = np.arange(np.prod(shape))
    return (np.sin(0.713 * k + phase) + 0.2 * np.cos(0.317 * k)).reshape(shape)


def tilted(kind: str) -> Trajectory:
    """Frames in no special position, one tilt and one place a view."""
    rng = np.random.default_rng(7)
    cone = ConeBeam(THREE, CELLS, 7.1, 12.4).trajectory
    q = np.stack([np.linalg.qr(np.eye(3) + 0.1 * rng.standard_normal((3, 3)))[0] for _ in range(3)])
    q = q * np.sign(np.einsum("kii->ki", q))[:, None, :]
    moved = cone.transform(q, 0.3 * rng.standard_normal((3, 3)))
    if kind == "cone":
        return moved
    return Trajectory("parallel", moved.normals, moved.centers, moved.u, moved.v, CELLS)


SCANS: dict[str, tuple[Any, Grid]] = {
    "parallel F": (
        Trajectory("parallel", E_R, OFFSET + 3.7 * E_R, E_U, None, Detector(5, 0.91)), FLAT,
    ),
    "fan F": (
        Trajectory("fan", OFFSET - 7.1 * E_R, OFFSET + 5.3 * E_R, E_U, None, Detector(5, 0.91)),
        FLAT,
    ),
    "equiangular": (FanBeam(THREE, Detector(5, 0.91, 0.13, 12.4), 7.1, 12.4), FLAT),
    "parallel 3-D": (tilted("parallel"), SOLID),
    "cone": (tilted("cone"), SOLID),
    "inside": (ConeBeam(THREE, Detector((2, 3), 0.41, 0.13), 0.63, 1.3, 1.7), SOLID),
}  # fmt: skip


def frames(projector: Projector) -> tuple[np.ndarray, ...]:
    t = projector.geometry.trajectory
    first = t.directions if t.sources is None else t.sources
    return tuple(np.array(f) for f in (first, t.centers, t.u, t.v) if f is not None)


def normalised(parts: list[np.ndarray], parallel: bool) -> tuple[np.ndarray, ...]:
    free = (1,) if parallel else (0, 1)
    return tuple(
        p if k in free else p / np.linalg.norm(p, axis=1, keepdims=True)
        for k, p in enumerate(parts)
    )


@pytest.mark.parametrize(("case", "value"), [("parallel F", -8.113498009), ("fan F", -0.247236319)])
def test_published_slopes_of_a_centre(case: str, value: float) -> None:
    A = Projector(*SCANS[case], precision="float64")
    x, y = wave(A.domain.shape, 0), wave(A.codomain.shape, 0.31)
    N, at = A.geometry_operator(x), frames(A)
    np.testing.assert_array_equal(N(at), A @ x)
    assert N.vjp(at, y)[1][0, 0] == pytest.approx(value, rel=1e-6)
    move = tuple(np.zeros_like(f) for f in at)
    move[1][0, 0] = 1
    assert (N.jvp(at, move) * y).sum() == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "model", "backend"),
    [
        *((name, "siddon", "numba") for name in SCANS),
        *((name, "siddon", "portable") for name in ("fan F", "parallel 3-D", "inside")),
        ("fan F", "joseph", "numba"),
        ("cone", "joseph", "portable"),
    ],
)
def test_both_modes_are_the_differences_of_the_projection(
    name: str, model: str, backend: str
) -> None:
    A = Projector(*SCANS[name], model, backend, "float64")
    # Tilted cones against the cell matrix itself, which shares no code with a kernel.
    project = by_cells if (name, model) == ("cone", "siddon") else by_projector
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, *A.domain.shape))
    N, at = A.geometry_operator(x), frames(A)
    y = rng.standard_normal(N.codomain.shape)
    J = N.jacobian(at)
    back = J.H(y)
    parallel = A.geometry.kind == "parallel"
    for number, part in enumerate(at):
        for index in np.ndindex(part.shape):
            move = [np.zeros_like(f) for f in at]
            move[number][index] = 1
            slopes = []
            for step in (1e-5, 3e-6):
                ends = [
                    project(A, _scan(A, normalised(
                        [f + s * m for f, m in zip(at, move, strict=True)], parallel)), x)
                    for s in (step, -step)
                ]  # fmt: skip
                slopes.append((ends[0] - ends[1]) / (2 * step))
            forward = J(tuple(move))
            scale = max(np.abs(slopes[1]).max(), 0.1)
            np.testing.assert_allclose(forward, slopes[1], atol=2e-6 * scale)
            assert back[number][index] == pytest.approx((y * forward).sum(), abs=1e-11)


def by_projector(A: Projector, scan: Trajectory, x: np.ndarray) -> np.ndarray:
    return np.asarray(A.with_geometry(scan) @ x)


def by_cells(A: Projector, scan: Trajectory, x: np.ndarray) -> np.ndarray:
    flat = x.reshape(len(x), -1) @ cell_matrix(scan, A.grid).T
    return flat.reshape(len(x), *A.codomain.shape)


def _scan(A: Projector, parts: tuple[np.ndarray, ...]) -> Trajectory:
    t = A.geometry.trajectory
    # Steps of 1e-5 leave axes orthogonal within what a Trajectory asks.
    return Trajectory(t.kind, *parts[:3], parts[3] if len(parts) == 4 else None, t.detector)


@pytest.mark.parametrize("name", ["fan F", "parallel 3-D", "cone"])
def test_the_compiled_derivative_runs_by_itself_and_on_any_threads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = Projector(*SCANS[name])
    B = A.with_precision("float64")
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((2, *A.domain.shape)), rng.standard_normal((2, *A.codomain.shape))
    at = frames(A)
    move = tuple(rng.standard_normal(f.shape) for f in at)
    monkeypatch.setattr(portable, "run", None)  # what array code would call
    exact = B.geometry_operator(x).jacobian(at)
    found = A.geometry_operator(x.astype("float32")).jacobian(at)
    pairs = zip(found.H(y.astype("float32")), exact.H(y), strict=True)
    for one, two in ((found @ move, exact @ move), *pairs):
        assert np.linalg.norm(one - two) <= 1e-4 * np.linalg.norm(two)
    results = []
    for count in (1, 3):
        with pool.limit(count, exceed=True):
            results.append([exact @ move, *exact.H(y)])
    assert all(np.array_equal(one, two) for one, two in zip(*results, strict=True))


@pytest.mark.parametrize("model", ["siddon", "joseph"])
@pytest.mark.parametrize("name", ["parallel F", "cone"])
def test_the_jacobian_keeps_the_contract(name: str, model: str) -> None:
    A = Projector(*SCANS[name], model, "portable", "float64")
    J = A.geometry_operator(wave(A.domain.shape, 0)).jacobian(frames(A))
    check_operator(J, skip={"jax": "float64 without x64", "pickling": "made for one volume"})
    assert J.codomain.shape == A.codomain.shape


@pytest.mark.parametrize("lead", [(0,), (2, 0)])
def test_empty_batches_have_slopes_of_zero(lead: tuple[int, ...]) -> None:
    A = Projector(*SCANS["cone"])
    at = frames(A)
    N = A.geometry_operator(np.ones((*lead, *SOLID.shape), "float32"))
    assert N.jvp(at, at).shape == N(at).shape == (*lead, *A.codomain.shape)
    for part, back in zip(at, N.vjp(at, N(at)), strict=True):
        np.testing.assert_array_equal(back, np.zeros(part.shape))


def test_moving_an_axis_along_itself_changes_nothing() -> None:
    A = Projector(*SCANS["parallel 3-D"], precision="float64")
    N, at = A.geometry_operator(wave(A.domain.shape, 0)), frames(A)
    for number in (0, 2, 3):
        move = tuple(f * (k == number) for k, f in enumerate(at))
        np.testing.assert_allclose(N.jvp(at, move), 0, atol=1e-13)
    back = N.vjp(at, wave(A.codomain.shape, 0.31))
    for number in (0, 2, 3):
        np.testing.assert_allclose((back[number] * at[number]).sum(1), 0, atol=1e-13)


def test_every_update_is_checked() -> None:
    A = Projector(*SCANS["cone"], precision="float64")
    N, at = A.geometry_operator(wave(A.domain.shape, 0)), frames(A)
    for wrong, fault in (
        ((at[0], at[0], *at[2:]), "source stands at the detector's centre"),
        ((*at[:2], 2 * at[2], at[3]), "unit"),
        ((np.full_like(at[0], np.nan), *at[1:]), "finite"),
    ):
        for call in (N, N.jacobian):
            with pytest.raises(GeometryError, match=fault):
                call(wrong)
    np.testing.assert_array_equal(N(at), A @ N.x)


# --- torch and JAX -----------------------------------------------------------------------

# d<Ax, y> of P72 in each angle, in source_to_axis, source_to_detector and the offset.
P72 = (1.915435845, -0.775871732, -28.126875706), 1.035530410, -0.409100394, -7.646423360


def fan(t: Any, a: Any, d: Any, offset: Any) -> FanBeam:
    return FanBeam(t, Detector(5, 0.91, offset), a, d)


def test_torch_differentiates_through_a_fan() -> None:
    torch = pytest.importorskip("torch")
    parts = [torch.tensor(v, dtype=torch.float64) for v in (THREE, 7.1, 12.4, 0.13)]
    x, y = (torch.from_numpy(wave(s, p)) for s, p in ((FLAT.shape, 0), ((3, 5), 0.31)))

    def loss(*parts: Any) -> Any:
        return (y * (Projector(fan(*parts), FLAT, precision="float64") @ x)).sum()

    for part in parts:
        part.requires_grad_()
    for found, wanted in zip(torch.autograd.grad(loss(*parts), parts), P72, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    with pytest.raises(RuntimeError, match="second derivatives with respect to the geometry"):
        first = torch.autograd.grad(loss(*parts) ** 2, parts, create_graph=True)
        torch.autograd.grad(first[1], parts)
    free = [part.detach() for part in parts]
    found = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*free)
    np.testing.assert_allclose(found[0], P72[0], rtol=1e-6)
    for k, wanted in enumerate(P72):
        moves = tuple(torch.ones_like(p) * (i == k) for i, p in enumerate(free))
        pushed = torch.func.jvp(loss, tuple(free), moves)[1]
        assert float(pushed) == pytest.approx(np.sum(wanted), rel=1e-6)


@pytest.mark.usefixtures("quick_xla")
def test_jax_differentiates_through_a_fan_under_jit() -> None:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        parts = [jax.numpy.asarray(v) for v in (THREE, 7.1, 12.4, 0.13)]
        x, y = wave(FLAT.shape, 0), wave((3, 5), 0.31)

        def loss(*parts: Any) -> Any:
            return (y * (Projector(fan(*parts), FLAT, precision="float64") @ x)).sum()

        found = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(*parts)
        for one, wanted in zip(found, P72, strict=True):
            np.testing.assert_allclose(one, wanted, rtol=1e-6)
        moves = tuple(map(jax.numpy.ones_like, parts))
        pushed = jax.jit(lambda p, m: jax.jvp(loss, p, m)[1])(tuple(parts), moves)
        assert float(pushed) == pytest.approx(sum(np.sum(v) for v in P72), rel=1e-6)
        with pytest.raises(RuntimeError, match="second derivatives with respect to the geometry"):
            jax.jit(jax.grad(jax.grad(lambda a: loss(THREE, a, *parts[2:]) ** 2)))(parts[1])


@pytest.mark.parametrize("way", ["forward", "adjoint"])
def test_mixed_derivatives_are_exact_or_refused(way: str) -> None:
    torch = pytest.importorskip("torch")
    t, x = torch.tensor(THREE, requires_grad=True), torch.from_numpy(wave(FLAT.shape, 0))
    y = torch.from_numpy(wave((3, 5), 0.31))
    if way == "forward":
        x.requires_grad_()

        def value(t: Any, x: Any) -> Any:
            return (y * (Projector(fan(t, 7.1, 12.4, 0.13), FLAT, precision="float64") @ x)).sum()

        (slope,) = torch.autograd.grad(value(t, x), x, create_graph=True)
        (mixed,) = torch.autograd.grad(slope.sum(), t)
        (wanted,) = torch.autograd.grad(value(t, torch.ones_like(x)), t)
        np.testing.assert_allclose(mixed, wanted, rtol=1e-9)
    else:
        z = torch.from_numpy(wave(FLAT.shape, 1.1))
        A = Projector(fan(t, 7.1, 12.4, 0.13), FLAT, precision="float64")
        (found,) = torch.autograd.grad((z * (A.H @ y)).sum(), t)
        A = Projector(fan(t, 7.1, 12.4, 0.13), FLAT, precision="float64")
        (wanted,) = torch.autograd.grad((y * (A @ z)).sum(), t)
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


@pytest.mark.parametrize("backend", ["numba", "portable"])
def test_every_transform_of_torch_is_right_or_refused(backend: str) -> None:
    torch = pytest.importorskip("torch")
    t, x = torch.tensor(THREE), torch.from_numpy(wave(FLAT.shape, 0))
    func = torch.func

    def project(t: Any, x: Any) -> Any:
        scan = fan(t, 7.1, 12.4, 0.13)
        return Projector(scan, FLAT, backend=backend, precision="float64") @ x

    def loss(t: Any, x: Any) -> Any:
        return project(t, x).square().sum()

    ends = [project(t + step, x) for step in (1e-6, -1e-6)]
    central = (ends[0] - ends[1]) / 2e-6  # a view's angle moves its own row
    for jacobian in (func.jacrev(project)(t, x), func.jacfwd(project)(t, x)):
        wanted = central[:, :, None] * torch.eye(3)[:, None, :]
        np.testing.assert_allclose(jacobian, wanted, atol=1e-6)
    batch = torch.stack([x, 2 * x])
    np.testing.assert_allclose(func.vmap(lambda x: project(t, x))(batch), project(t, batch))
    slope = func.grad(loss)
    if backend == "portable":  # compiled code sees no frame that is mapped over
        several = func.vmap(slope, (0, None))(torch.stack([t, t + 0.1]), x)
        np.testing.assert_allclose(several[1], slope(t + 0.1, x), rtol=1e-10)
    mixed = func.jacfwd(func.grad(loss, 1))(t, x), func.jacrev(func.grad(loss, 1))(t, x)
    ends = [func.grad(loss, 1)(t + step * torch.eye(3)[0], x) for step in (1e-6, -1e-6)]
    for found in mixed:
        np.testing.assert_allclose(found[..., 0], (ends[0] - ends[1]) / 2e-6, atol=1e-6)
    one = torch.ones_like(t)
    for twice in (
        lambda: func.hessian(loss)(t, x),
        lambda: func.jacrev(func.jacrev(loss))(t, x),
        lambda: func.jvp(lambda t: slope(t, x), (t,), (one,)),
        lambda: func.grad(lambda t: func.jvp(lambda t: loss(t, x), (t,), (one,))[1])(t),
    ):
        with pytest.raises(RuntimeError, match="second derivatives with respect to the geometry"):
            twice()


def test_gradients_save_the_geometry_and_the_input_alone() -> None:
    torch = pytest.importorskip("torch")
    # A leaf in single precision, as a learner may have: its gradient is in it too.
    t = torch.linspace(0.1, 3, 24, requires_grad=True)
    grid = Grid((40, 40))
    x = torch.rand(grid.shape, dtype=torch.float64)
    found, slopes = set(), []
    for backend, memory in (("numba", None), ("portable", None), ("portable", 400_000)):
        scan = FanBeam(t, Detector(60), 50, 100)
        A = Projector(scan, grid, backend=backend, precision="float64", memory=memory)
        saved = 0

        def pack(tensor: Any) -> Any:
            nonlocal saved
            saved += tensor.element_size() * tensor.nelement()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = A @ x
        found.add(saved)
        slopes.append(torch.autograd.grad(y.sum(), t)[0])
        assert slopes[-1].dtype == torch.float32
        np.testing.assert_allclose(slopes[-1], slopes[0], rtol=1e-5, atol=1e-5)
    geometry = 8 * (24 * 6 + 60 * 3 + 1)
    assert len(found) == 1
    assert found.pop() <= 8 * (x.numel() + y.numel()) * 4 + 16 * geometry + 4096


@pytest.mark.parametrize(("name", "model"), [("fan F", "siddon"), ("cone", "joseph")])
def test_slopes_do_not_depend_on_tiles_and_batches(name: str, model: str) -> None:
    scan, grid = SCANS[name]
    rng = np.random.default_rng(2)
    found = []
    for memory in (None, 3500 if name == "fan F" else 9000):
        A = Projector(scan, grid, model, "portable", "float64", memory=memory)
        at = frames(A)
        J = A.geometry_operator(wave(grid.shape, 0)).jacobian(at)
        assert (max(J.setup.tiles) > 1) == (memory is not None)
        rng = np.random.default_rng(2)
        move = tuple(rng.standard_normal(f.shape) for f in at)
        found.append((J @ move, *J.H(wave(A.codomain.shape, 0.31))))
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-10)


def test_a_slope_takes_half_the_budget_however_many_blocks_there_are() -> None:
    budget, peaks = 1 << 20, []
    for views in (4, 12):
        fan = FanBeam(np.linspace(0, 3, views), Detector(48, 1.5), 200, 300)
        A = Projector(fan, Grid((64, 64)), backend="portable", memory=budget)
        J = A.geometry_operator(np.ones((64, 64), "float32")).jacobian(frames(A))
        y = np.ones(A.codomain.shape, "float32")
        for call in (lambda J=J, y=y: J.H(y), lambda J=J, A=A: J(frames(A))):
            tracemalloc.start()
            call()
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert max(peaks) <= 1.3 * budget / 2
    assert peaks[2] - peaks[0] < 0.1 * budget and peaks[3] - peaks[1] < 0.1 * budget


def test_slopes_of_a_sharded_scan_arrive_summed() -> None:
    torch = pytest.importorskip("torch")
    t = torch.tensor(THREE, requires_grad=True)
    A = Projector(ConeBeam(t, CELLS, 7.1, 12.4), SOLID, precision="float64")
    x, y = torch.from_numpy(wave(SOLID.shape, 0)), torch.from_numpy(wave((3, 2, 3), 0.31))
    (wanted,) = torch.autograd.grad(((A @ x) * y).sum(), t, retain_graph=True)
    for axis in ("view", "z"):
        B = plan(A, devices=2, executor="threads", partition=axis).lower()
        (found,) = torch.autograd.grad(((B @ x) * y).sum(), t, retain_graph=True)
        np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_parameters_of_a_surface_are_differentiable() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(wave(SOLID.shape, 0))
    y = torch.from_numpy(wave((3, 2, 3), 0.31))

    def loss(depth: Any) -> Any:
        def sampler(a: Any, b: Any, view: Any, depth: Any) -> Any:
            return torch.stack([a, b, depth * torch.cos(a + b + view)], dim=-1)

        cells = Detector((2, 3), (0.67, 0.91), (0.11, -0.17), Surface(sampler, [depth]))
        cone = ConeBeam(THREE, cells, 7.1, 12.4)
        return (y * (Projector(cone, SOLID, precision="float64") @ x)).sum()

    depth = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(loss(depth), depth)
    with torch.no_grad():
        central = (loss(depth + 1e-5) - loss(depth - 1e-5)) / 2e-5
    assert float(found) == pytest.approx(float(central), rel=1e-6)
    pushed = torch.func.jvp(loss, (depth.detach(),), (torch.ones_like(depth),))[1]
    assert float(pushed) == pytest.approx(float(found), rel=1e-10)


def test_the_geometry_operator_in_jax_and_torch() -> None:
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    A = Projector(*SCANS["cone"], precision="float64")
    x, y, at = wave(A.domain.shape, 0), wave(A.codomain.shape, 0.31), frames(A)
    wanted = A.geometry_operator(x).vjp(at, y)
    N = A.geometry_operator(torch.from_numpy(x))
    leaves = tuple(torch.from_numpy(f).requires_grad_() for f in at)
    (torch.from_numpy(y) * N(leaves)).sum().backward()
    for leaf, gradient in zip(leaves, wanted, strict=True):
        np.testing.assert_allclose(leaf.grad, gradient, rtol=1e-9, atol=1e-12)
    with jax.enable_x64(True):
        N = A.geometry_operator(jax.numpy.asarray(x))
        run = jax.jit(lambda f: (N(f), jax.grad(lambda g: (y * N(g)).sum())(f)))
        _, slopes = run(tuple(map(jax.numpy.asarray, at)))
        for slope, gradient in zip(slopes, wanted, strict=True):
            np.testing.assert_allclose(slope, gradient, rtol=1e-9, atol=1e-12)
        wrong = (at[0], at[1], 2 * at[2], at[3])
        assert np.isnan(run(tuple(map(jax.numpy.asarray, wrong)))[0]).all()


def test_torch_follows_a_scan_through_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.from_numpy(wave(SOLID.shape, 0)), torch.from_numpy(wave((3, 1, 3), 0.31))
    t = torch.tensor(THREE, requires_grad=True)

    def slopes(backend: str) -> list[Any]:
        cone = ConeBeam(t, CELLS, 7.1, 12.4, 1.7)
        A = Projector(cone, SOLID, backend=backend, precision="float64")
        assert A.backend == ("portable" if backend == "portable" else "numba")
        losses = (A.block("row", 1, 2) @ x * y).sum(), (A.block("row", 1, 2).H @ y * x).sum()
        return [torch.autograd.grad(loss, t, retain_graph=True)[0] for loss in losses]

    wanted = slopes("portable")
    monkeypatch.setattr(portable, "run", None)
    for backend in ("auto", "numba"):
        for one, two in zip(slopes(backend), wanted, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-10)
    with pytest.raises(GeometryError, match="model 'siddon'"):
        Projector(ConeBeam(t, CELLS, 7.1, 12.4), SOLID, "joseph", "numba")
    with pytest.raises(GeometryError, match="block"):
        Projector(*SCANS["cone"]).block("view", 0, 2).geometry_operator(x)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_losses_of_the_geometry_pass_torchs_compiler() -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.from_numpy(wave(FLAT.shape, 0)), torch.from_numpy(wave((3, 5), 0.31))
    N = Projector(fan(THREE, 7.1, 12.4, 0.13), FLAT, precision="float64").geometry_operator(x)

    def built(d: Any) -> Any:
        scan = fan(THREE, 7.1, d, 0.13).trajectory.transform(translation=[0.0, 0.1])
        return (y * (Projector(scan, FLAT, precision="float64") @ x)).square().sum()

    def moved(d: Any) -> Any:
        at = frames(N.base)
        return (y * N((torch.from_numpy(at[0]) * d / 12.4, *map(torch.from_numpy, at[1:])))).sum()

    for loss in (built, moved):
        compiled = torch.compile(loss, backend="eager")
        for value in (12.4, 12.9):
            d = torch.tensor(value, dtype=torch.float64, requires_grad=True)
            slopes = [torch.autograd.grad(f(d), d)[0] for f in (loss, compiled)]
            assert abs(slopes[0]) > 1e-3
            assert slopes[0] == slopes[1]
