"""Derivatives in the geometry under torch and JAX: gradients, transforms, compilers, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from slopes import CELLS, FLAT, SCANS, SOLID, THREE, frames, wave

from geometries import ConeBeam, Detector, FanBeam, Grid, Projector
from geometries.kernels import portable
from geometries.surfaces import Surface
from linops.errors import GeometryError
from sharding import plan

# d<Ax, y> of a fan scan in each angle, in source_to_axis, source_to_detector and the offset.
FAN_SLOPES = (1.915435845, -0.775871732, -28.126875706), 1.035530410, -0.409100394, -7.646423360


def fan(t: Any, a: Any, d: Any, offset: Any) -> FanBeam:
    return FanBeam(t, Detector(5, 0.91, offset), a, d)


@pytest.mark.slow
def test_torch_differentiates_through_a_fan() -> None:
    torch = pytest.importorskip("torch")
    parts = [torch.tensor(v, dtype=torch.float64) for v in (THREE, 7.1, 12.4, 0.13)]
    x, y = (torch.from_numpy(wave(s, p)) for s, p in ((FLAT.shape, 0), ((3, 5), 0.31)))

    def loss(*parts: Any) -> Any:
        return (y * (Projector(fan(*parts), FLAT, precision="float64") @ x)).sum()

    for part in parts:
        part.requires_grad_()
    for found, wanted in zip(torch.autograd.grad(loss(*parts), parts), FAN_SLOPES, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    with pytest.raises(RuntimeError, match="second derivatives with respect to the geometry"):
        first = torch.autograd.grad(loss(*parts) ** 2, parts, create_graph=True)
        torch.autograd.grad(first[1], parts)
    free = [part.detach() for part in parts]
    found = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*free)
    np.testing.assert_allclose(found[0], FAN_SLOPES[0], rtol=1e-6)
    for k, wanted in enumerate(FAN_SLOPES):
        moves = tuple(torch.ones_like(p) * (i == k) for i, p in enumerate(free))
        pushed = torch.func.jvp(loss, tuple(free), moves)[1]
        assert float(pushed) == pytest.approx(np.sum(wanted), rel=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
def test_jax_differentiates_through_a_fan_under_jit() -> None:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        parts = [jax.numpy.asarray(v) for v in (THREE, 7.1, 12.4, 0.13)]
        x, y = wave(FLAT.shape, 0), wave((3, 5), 0.31)

        def loss(*parts: Any) -> Any:
            return (y * (Projector(fan(*parts), FLAT, precision="float64") @ x)).sum()

        found = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(*parts)
        for one, wanted in zip(found, FAN_SLOPES, strict=True):
            np.testing.assert_allclose(one, wanted, rtol=1e-6)
        moves = tuple(map(jax.numpy.ones_like, parts))
        pushed = jax.jit(lambda p, m: jax.jvp(loss, p, m)[1])(tuple(parts), moves)
        assert float(pushed) == pytest.approx(sum(np.sum(v) for v in FAN_SLOPES), rel=1e-6)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("quick_xla")
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


@pytest.mark.slow
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
