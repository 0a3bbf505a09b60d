"""Other libraries' solvers on a projector and on stencils, against ours."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.interop import to_pylops, to_scipy, to_torch_module

geometries = pytest.importorskip("geometries")
solvers = pytest.importorskip("solvers")


@pytest.fixture(scope="module")
def scan() -> tuple[lo.LinearOperator, np.ndarray, np.ndarray]:
    """A parallel scan of a block, 24 views of 20 cells."""
    geometry = geometries.ParallelBeam(
        np.linspace(0, np.pi, 24, endpoint=False), geometries.Detector(20)
    )
    A = geometries.Projector(geometry, geometries.Grid((14, 14)), precision="float64")
    image = np.zeros((14, 14))
    image[3:9, 5:11] = 1.0
    return A, image, A @ image


def test_pylops_cgls_walks_with_ours(scan) -> None:
    basic = pytest.importorskip("pylops.optimization.basic")
    A, image, y = scan
    # Eight steps: beyond, lost orthogonality multiplies rounding tenfold a step in either.
    theirs = basic.cgls(to_pylops(A), y, x0=np.zeros((14, 14)), niter=8, tol=0)[0]
    ours = solvers.cgls(A, y, iterations=8).solution
    assert np.allclose(theirs, ours, atol=1e-8)
    assert np.linalg.norm(theirs - image) < 0.3 * np.linalg.norm(image)


@pytest.mark.slow
def test_pylops_fista_and_splitbregman(scan) -> None:
    sparsity = pytest.importorskip("pylops.optimization.sparsity")
    A, image, y = scan
    P = to_pylops(A)
    found = sparsity.fista(P, y.ravel(), niter=100, eps=1e-3)[0]
    assert np.linalg.norm(found.reshape(14, 14) - image) < 0.2 * np.linalg.norm(image)
    D = lo.Gradient(A.domain)
    D = to_pylops(lo.Reshape(D.codomain, D.codomain.size) @ D)
    found = sparsity.splitbregman(
        P, y.ravel(), [D], niter_outer=10, niter_inner=3, mu=1.0, epsRL1s=[0.05], iter_lim=20
    )[0]
    assert np.linalg.norm(found.reshape(14, 14) - image) < 0.1 * np.linalg.norm(image)


def test_scipy_lsqr_solves_the_damped_problem(scan) -> None:
    linalg = pytest.importorskip("scipy.sparse.linalg")
    A, _, y = scan
    found = linalg.lsqr(to_scipy(A), y.ravel(), damp=0.5, atol=1e-12, btol=1e-12)[0]
    x = found.reshape(14, 14)
    # Its normal equations hold.
    residual = A.H @ (A @ x - y) + 0.25 * x
    assert np.abs(residual).max() < 1e-6 * np.abs(A.H @ y).max()


def test_a_torch_layer_backprojects_the_gradient(scan) -> None:
    torch = pytest.importorskip("torch")
    A, _, y = scan
    layer = to_torch_module(A)
    x = torch.zeros(1, 14, 14, dtype=torch.float64, requires_grad=True)
    ((layer(x) - torch.as_tensor(y)) ** 2).sum().backward()
    assert np.allclose(x.grad.numpy()[0], -2 * (A.H @ y))
