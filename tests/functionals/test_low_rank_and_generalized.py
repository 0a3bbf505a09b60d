"""The nuclear norm, a user's denoiser, and total generalized variation."""

import numpy as np
import pytest

import linops as lo
from linops.errors import ShapeError
from linops.functionals.generalized_variation import SymmetrizedGradient
from linops.testing import check_functional, check_operator
from sharding import plan
from solvers import admm, fista, pdhg

RNG = np.random.default_rng(7)
AXES = ("z", "y", "x")


def half(x):
    return 0.5 * x


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_nuclear_norm(dtype):
    space = lo.Space((2, 3, 4), dtype, axes=AXES)
    f = lo.NuclearNorm(space, axes=("x", "z"))
    check_functional(f, libraries=None if dtype == "float32" else ("torch",))
    x = space.random(1)
    u, s, v = np.linalg.svd(x.transpose(1, 2, 0), full_matrices=False)
    assert f(x) == pytest.approx(s.sum(), rel=1e-5)
    wanted = (u * np.maximum(s - 0.8, 0)[:, None, :]) @ v
    np.testing.assert_allclose(f.prox(x, 0.8), wanted.transpose(2, 0, 1), atol=1e-5)
    for devices, executor in ((1, "serial"), (3, "threads")):
        lowered = plan(f, devices=devices, executor=executor).lower()
        assert lowered(x) == pytest.approx(f(x), rel=1e-5)
    with pytest.raises(ShapeError, match="name one axis twice"):
        lo.NuclearNorm(space, axes=("x", "x"))


@pytest.mark.slow
def test_denoiser():
    space = lo.Space((4, 5), "float32")
    # Half of x: the RED value is |x|^2 / 4, a homogeneous denoiser with a symmetric Jacobian.
    f = lo.Denoiser(half, space)
    unlike = "a proximal map by declaration"
    check_functional(f, skip={"prox": unlike, "conjugate": unlike})
    x = space.random(0)
    assert f(x) == pytest.approx((x.astype(float) ** 2).sum() / 4, rel=1e-5)
    data = lo.LeastSquares(space, x)
    # u = D(v), v = u - s (u - x): u = (u + s (x - u)) / 2, so u = s x / (1 + s).
    found = fista(data, f, iterations=60, step=0.5).solution
    np.testing.assert_allclose(found, x / 3, atol=1e-5)
    # z = D(u + y), y = u + y - z: at the end u = z, so y = u, and |u - x| = rho y.
    found = admm(data, [(f, lo.Identity(space))], iterations=60, rho=1.0).solution
    np.testing.assert_allclose(found, x / 2, atol=1e-4)
    with pytest.raises(ShapeError, match="its function gives"):
        lo.Denoiser(np.sum, space).prox(x, 1.0)
    with pytest.raises(TypeError, match=r"look swapped: Denoiser\(function, space"):
        lo.Denoiser(space, half)


def test_a_network_denoises():
    torch = pytest.importorskip("torch")
    space = lo.Space((4,), "float32")
    net = torch.nn.Linear(4, 4)
    f = lo.Denoiser(net, space, batched=True)
    x = space.random(3)
    wanted = (net.weight @ torch.from_numpy(x) + net.bias).detach().numpy()
    assert type(f.prox(x, 1.0)) is np.ndarray
    np.testing.assert_allclose(f.prox(x, 1.0), wanted, atol=1e-6)
    f.prox(torch.from_numpy(x), 1.0).sum().backward()  # the network learns
    assert net.bias.grad is not None


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)])
def test_symmetrized_gradient(shape):
    steps = (0.5, 1.0, 2.0)[: len(shape)]
    space = lo.Space(shape, "float64", axes=AXES[-len(shape) :], spacing=steps)
    E = SymmetrizedGradient(space)
    check_operator(E, libraries=("torch",))
    # Of w = M r the symmetrized gradient is the symmetric part of M, inside.
    d = len(shape)
    M = RNG.normal(size=(d, d))
    lines = [np.arange(n) * h for n, h in zip(shape, steps, strict=True)]
    r = np.stack(np.meshgrid(*lines, indexing="ij"))
    inside = (slice(None), *(slice(0, n - 1) for n in shape))
    found = (E @ np.tensordot(M, r, 1))[inside]
    norms = np.linalg.norm((M + M.T) / 2)
    np.testing.assert_allclose(np.linalg.norm(found, axis=0), norms)


def test_generalized_variation():
    space = lo.Space((4, 5), "float64", axes=("y", "x"), spacing=(0.5, 2.0))
    f = lo.TotalGeneralizedVariation(space, 1.5, 2.0)
    kinks = "no vector field to compare at the last plane"
    check_functional(f, libraries=("torch",), skip={"hessian": kinks, "surrogate": kinks})
    y, x = np.meshgrid(np.arange(4) * 0.5, np.arange(5) * 2.0, indexing="ij")
    slopes = np.zeros((2, 4, 5)) + np.array([3.0, -1.0])[:, None, None]
    assert f((3 * y - x, slopes)) == pytest.approx(0, abs=1e-12)  # affine images cost nothing
    u = space.random(0)
    tv = lo.GroupL1(lo.Gradient(space).codomain)(lo.Gradient(space) @ u)
    assert f((u, 0 * slopes)) == pytest.approx(1.5 * tv)
    point = (u, lo.Gradient(space).codomain.random(1))
    for devices, executor in ((1, "serial"), (3, "threads")):
        assert plan(f, devices=devices, executor=executor).lower()(point) == pytest.approx(f(point))


@pytest.mark.slow
def test_generalized_variation_keeps_a_ramp():
    # A noiseless ramp is its own solution, whatever the weight: TV would flatten it.
    space = lo.Space((12,), "float64")
    b = np.arange(12.0)
    tgv = lo.TotalGeneralizedVariation(space, 2.0, 4.0)
    fields = tgv.domain.members[1]
    data = lo.separable([lo.LeastSquares(space, b), 0.0 * lo.LeastSquares(fields)])
    found = pdhg(tgv.outer, data, tgv.inner, iterations=3000).solution
    np.testing.assert_allclose(found[0], b, atol=1e-3)
