"""Derivatives in the data, snapshots, batches and sums, of projectors by their public names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector, Surface

BACKENDS = ("numba", "portable")
THREE = np.array([0.231, 0.811, 1.431])
FLAT, SOLID = Grid((3, 4), (1.1, 0.7)), Grid((2, 3, 4), (1.3, 0.9, 0.6))
ROWS = Detector((2, 3), (0.67, 0.91), (0.11, -0.17))
SCANS = {
    "parallel": (ParallelBeam(THREE, Detector(5, 0.91, 0.13)), FLAT),
    "fan": (FanBeam(THREE, Detector(5, 0.91, 0.13), 7.1, 12.4), FLAT),
    "equiangular": (FanBeam(THREE, Detector(5, 0.91, curvature=12.4), 7.1, 12.4), FLAT),
    "cone": (ConeBeam(THREE, ROWS, 7.1, 12.4), SOLID),
    "helix": (ConeBeam([-4.1, 0.7, 3.9], ROWS, 7.1, 12.4, advance=1.7), SOLID),
    "aligned": (ParallelBeam(THREE, Detector((2, 4), (1.3, 0.71), (0, 0.13))), SOLID),
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SCANS)
def test_every_transform_of_torch_is_the_matrix(name: str, backend: str) -> None:
    torch = pytest.importorskip("torch")
    A = Projector(*SCANS[name], backend=backend, precision="float64")
    matrix = A.to_dense()
    x, t = (torch.from_numpy(A.domain.random(s)) for s in (0, 1))
    y, w = (torch.from_numpy(A.codomain.random(s)) for s in (2, 3))

    def close(found: Any, wanted: Any) -> None:
        np.testing.assert_allclose(np.ravel(found), np.ravel(wanted), rtol=1e-10, atol=1e-12)

    def forward(x: Any) -> Any:
        return A @ x

    def misfit(x: Any) -> Any:
        return 0.5 * ((A @ x - y) ** 2).sum()

    func = torch.func
    At, back = matrix @ t.numpy().ravel(), matrix.T @ w.numpy().ravel()
    close(func.jvp(forward, (x,), (t,))[1], At)
    close(func.jacrev(forward)(x), matrix)
    close(func.jacfwd(forward)(x), matrix)
    close(func.grad(lambda x: ((A @ x) * w).sum())(x), back)
    close(func.jvp(func.grad(misfit), (x,), (t,))[1], matrix.T @ At)
    close(func.vmap(func.vmap(forward))(torch.stack([x, t])[:, None])[1, 0], At)
    # d/dw of (d<Ax, w>/dx . t)
    close(func.grad(lambda w: (func.grad(lambda x: ((A @ x) * w).sum())(x) * t).sum())(w), At)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["equiangular", "helix"])
def test_every_transform_of_jax_is_the_matrix(name: str) -> None:
    jax = pytest.importorskip("jax")
    A = Projector(*SCANS[name], precision="float64")
    matrix = A.to_dense()
    with jax.enable_x64(True):
        x, t = (jax.numpy.asarray(A.domain.random(s)) for s in (0, 1))
        w = jax.numpy.asarray(A.codomain.random(3))

        def both(x: Any, t: Any, w: Any) -> Any:
            inner = jax.grad(lambda x, w: ((A @ x) * w).sum())
            return (
                jax.jacrev(lambda x: A @ x)(x),
                jax.jacfwd(lambda x: A @ x)(x),
                jax.jvp(jax.grad(lambda x: 0.5 * ((A @ x) ** 2).sum()), (x,), (t,))[1],
                jax.grad(lambda w: (inner(x, w) * t).sum())(w),
            )

        found = jax.jit(both)(x, t, w)
    At = matrix @ np.ravel(t)
    for part, wanted in zip(found, (matrix, matrix, matrix.T @ At, At), strict=True):
        np.testing.assert_allclose(np.ravel(part), wanted.ravel(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_missed_rays_and_zero_tangents_are_exact_zeros(backend: str) -> None:
    torch = pytest.importorskip("torch")
    beam = ParallelBeam(THREE, Detector(3, 1.0, offset=40.0))
    seen = ParallelBeam(THREE, Detector(3))
    x = torch.full((3, 4), 1e308, dtype=torch.float64)
    A = Projector(beam, FLAT, backend=backend, precision="float64")
    assert not (A @ x).any()
    B = Projector(seen, FLAT, backend=backend, precision="float64")
    value, tangent = torch.func.jvp(lambda x: B @ x, (x,), (torch.zeros_like(x),))
    assert torch.isinf(value).any()
    assert not tangent.any()


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("views", [6, 60])
def test_what_is_saved_for_a_data_gradient_is_constant(views: int, backend: str) -> None:
    torch = pytest.importorskip("torch")
    A = Projector(
        FanBeam(np.linspace(0, 6, views), Detector(60), 50, 100), Grid((40, 40)), backend=backend
    )
    x = torch.rand(40, 40, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    ):
        y = A @ x
    assert sum(saved) == 0
    y.sum().backward()
    np.testing.assert_allclose(x.grad, A.H @ np.ones(A.codomain.shape, "float32"), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lead", [(0,), (2, 0)])
def test_empty_batches_keep_their_graph(lead: tuple[int, ...], backend: str) -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    A = Projector(*SCANS["fan"], backend=backend)
    for B in (A, A.H):
        x = torch.zeros((*lead, *B.domain.shape), requires_grad=True)
        y = B @ x
        assert y.shape == (*lead, *B.codomain.shape) and y.requires_grad
        y.sum().backward()
        assert x.grad.shape == x.shape
        slope = jax.grad(lambda x, B=B: (B @ x).sum())(jax.numpy.zeros(x.shape))
        assert slope.shape == x.shape


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_gradients_have_the_dtype_of_their_leaf(dtype: str, backend: str) -> None:
    torch = pytest.importorskip("torch")
    A = Projector(
        *SCANS["fan"], backend=backend, precision="float64" if dtype == "float64" else "fast"
    )
    x = torch.ones(A.domain.shape, dtype=getattr(torch, dtype), requires_grad=True)
    y = A @ x
    assert y.dtype == (torch.float64 if dtype == "float64" else torch.float32)
    y.sum().backward()
    assert x.grad.dtype == x.dtype
    np.testing.assert_allclose(x.grad.double(), A.H @ np.ones(A.codomain.shape, A.dtype), rtol=1e-2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_halves_near_their_largest_number_have_finite_derivatives(backend: str) -> None:
    torch = pytest.importorskip("torch")
    A = Projector(ParallelBeam([0.0], Detector(1)), Grid((3, 1)), backend=backend)
    x = torch.full((3, 1), 65024, dtype=torch.float16, requires_grad=True)
    y = A @ x
    y.sum().backward()
    assert y.item() == pytest.approx(195072)
    np.testing.assert_array_equal(x.grad, 1)
    tangent = torch.func.jvp(lambda x: A @ x, (x.detach(),), (x.detach(),))[1]
    assert tangent.item() == pytest.approx(195072)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", ["siddon", "joseph", "footprint"])
def test_small_terms_survive_along_rays_and_over_views(model: str, backend: str) -> None:
    large, grid = np.array([2.0**30, 1.0, -(2.0**30)]), Grid((1, 3))
    # A sum in float32 is off by 64; weights are exact lengths, or 1 to rounding.
    close = 0 if model == "siddon" else 1e-6
    A = Projector(ParallelBeam([np.pi / 2] * 2, Detector(1)), grid, model, backend, "float64")
    blocks = [A.block("x", i, min(i + 2, 3)) @ large[None, i : i + 2] for i in (0, 2)]
    B = Projector(ParallelBeam([np.pi / 2] * 3, Detector(1)), grid, model, backend, "float64")
    for found in (A @ large[None], sum(blocks), B.H @ large[:, None]):
        np.testing.assert_allclose(found, 1, atol=close, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_that_are_outstanding_keep_their_own_scan(backend: str) -> None:
    torch = pytest.importorskip("torch")
    depth = np.array([0.5])
    where = {"bend": lambda a: np.cos(a)}

    def sampler(a: Any, b: Any, view: Any, depth: Any) -> Any:
        return np.stack([a, b, depth * where["bend"](a)], -1)

    def build(angles: Any) -> Projector:
        cells = Detector(5, 0.91, 0.0, Surface(sampler, [depth]))
        return Projector(
            FanBeam(angles, cells, 7.1, 12.4), FLAT, backend=backend, precision="float64"
        )

    angles = THREE.copy()
    x = torch.from_numpy(np.random.default_rng(0).random((3, 4))).requires_grad_()
    first = build(angles)
    plain = first.to_dense()
    one = first @ x
    angles += 0.4
    depth += 2
    second = build(angles)
    other = second.to_dense()
    two = second @ x
    assert np.abs(other - plain).max() > 0.1
    w = torch.from_numpy(np.random.default_rng(1).random((3, 5)))
    (later,) = torch.autograd.grad((two * w).sum(), x)
    (earlier,) = torch.autograd.grad((one * w).sum(), x)
    for slope, matrix in ((earlier, plain), (later, other)):
        np.testing.assert_allclose(slope.numpy().ravel(), matrix.T @ w.numpy().ravel(), rtol=1e-12)


def test_blocks_batches_and_transforms_go_together() -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    from sharding import plan

    fan = FanBeam(np.linspace(0, 6, 12), Detector(16), 20, 40)
    A = Projector(fan, Grid((8, 10), (0.7, 0.5)), precision="float64")
    B = plan(A, devices=1, chunks={"view": 3, "y": 4, "x": 5}).lower()
    rng = np.random.default_rng(0)
    x, t = rng.random((2, 2, 3, 8, 10))
    at, moved = A @ x, A @ t
    np.testing.assert_allclose(B @ x, at, rtol=1e-12)
    pair = tuple(map(torch.from_numpy, (x, t)))
    for found, wanted in zip(
        torch.func.jvp(lambda x: B @ x, pair[:1], pair[1:]), (at, moved), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    np.testing.assert_allclose(torch.vmap(torch.vmap(lambda x: B @ x))(pair[0]), at, rtol=1e-12)
    with jax.enable_x64(True):
        pair = tuple(map(jax.numpy.asarray, (x, t)))
        value, tangent = jax.jvp(lambda x: A @ x, pair[:1], pair[1:])
        mapped = jax.vmap(jax.vmap(lambda x: A @ x))(pair[0])
    for found, wanted in ((value, at), (tangent, moved), (mapped, at)):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_device_that_the_compiled_code_has_not_is_named() -> None:
    torch = pytest.importorskip("torch")
    A = Projector(*SCANS["fan"], backend="numba")
    with pytest.raises(RuntimeError, match="on meta; move it"):
        A @ torch.zeros(FLAT.shape, device="meta")
