"""The norm of operators: in closed form, and by Lanczos bidiagonalisation, against NumPy's SVD."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import linops as lo
from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector
from sharding import plan

from .builders import array


def largest(A: lo.LinearOperator) -> float:
    dense = A.to_dense()
    wide = dense.astype(np.result_type(dense.dtype, "float64"))
    return float(np.linalg.svd(wide, compute_uv=False)[0])


SMALL = lo.Space((3, 4), "float64")
COMPLEX = lo.Space((3, 4), "complex128")
M = lo.Matrix(array((5, 3), "complex128"))
CLOSED = {
    "identity": lo.Identity(SMALL),
    "zero": lo.Zero(SMALL, lo.Space(2, "float64")),
    "diagonal": lo.Diagonal(array((3, 4), "complex128")),
    "real to complex": lo.Diagonal(array(3, "complex128"), lo.Space(3, "float64")),
    "scaled": (-2.5j) * lo.Diagonal(array(4, "complex128")),
    "unitary": lo.FFT(COMPLEX),
    "backward": lo.FFT(COMPLEX, norm="backward"),
    "half a spectrum": lo.FFT(SMALL, norm="backward"),
    "whole spectrum of real values": lo.FFT(SMALL, 1, norm="forward", real="full"),
    "its adjoint": lo.FFT(SMALL, norm="forward").H,
    "turned": lo.FFT(COMPLEX) @ lo.Diagonal(array((3, 4), "complex128"), COMPLEX),
    "gram": lo.Gradient(SMALL).gram(),
    "kronecker": lo.kron(lo.Diagonal(array(3)), lo.Diagonal(array(2))),
    "blocks": lo.block_diagonal([3.0 * lo.Identity(lo.Space(2)), lo.Diagonal(array(3))]),
    "cast": lo.Cast(SMALL, "float32"),
    "no entries": lo.Matrix(np.zeros((0, 3))),
}


@pytest.mark.parametrize("name", CLOSED)
def test_norms_in_closed_form(name: str) -> None:
    A = CLOSED[name]
    info = A.norm(return_info=True)
    assert info.iterations == 0 and info.converged and info.relative_residual == 0
    wanted = largest(A) if 0 not in A.shape else 0.0
    if "real_linear" in A.tags:  # the matrix over the reals
        dense = A.to_dense()
        wanted = np.linalg.norm(np.vstack([dense.real, dense.imag]), 2)
    assert info.value == pytest.approx(wanted, rel=2e-6)


IMAGE = lo.Space((10, 9), "float32")
ITERATED = {
    "one": lo.Matrix(array((1, 1))),
    "nilpotent": lo.Matrix(np.array([[0.0, 1.0], [0.0, 0.0]])),
    "rank one": lo.Matrix(np.outer(array(6), array(4, seed=1))),
    "complex": lo.Matrix(array((40, 30), "complex64")),
    "a gradient in disguise": lo.Gradient(IMAGE) @ lo.Diagonal(np.ones((10, 9), "float32")),
    "differences both ways": lo.vstack([lo.Gradient(IMAGE), lo.Gradient(IMAGE)]),
    "convolution": lo.Convolve(IMAGE, array((5, 5), "float32")),
    "product space": lo.hstack([
        lo.Matrix(array((7, 4), "float64")),
        lo.Matrix(array((7, 6), "float64", 1)) @ lo.Reshape(lo.Space((2, 3), "float64"), 6),
    ]),
    "complex values of real ones": lo.Matrix(array((6, 4), "complex128"))
    @ lo.Diagonal(array(4, "float64"), lo.Space(4, "float64")),
    "restriction": lo.Restriction(lo.Space(9), [1, 5, 7]),
    "parallel": Projector(ParallelBeam(np.linspace(0, 3, 9), Detector((1, 20))),
                          Grid((1, 16, 16))),
    "fan": Projector(FanBeam(np.linspace(0, 6, 9), Detector(20), source_to_axis=40.0,
                             source_to_detector=60.0), Grid((16, 16))),
    "cone": Projector(ConeBeam(np.linspace(0, 6, 5), Detector((4, 16)), source_to_axis=40.0,
                               source_to_detector=60.0), Grid((3, 9, 9))),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ITERATED)
def test_norms_of_other_operators_converge_at_the_defaults(name: str) -> None:
    A = ITERATED[name]
    wanted = largest(A)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        info = A.norm(return_info=True)
    assert info.converged and info.relative_residual <= 1e-4
    assert info.iterations <= 100
    assert info.value == pytest.approx(wanted, rel=1e-4)
    assert A.H.norm() == pytest.approx(wanted, rel=1e-4)
    if A.codomain.dtype == "float64":  # to all digits, where that is asked for
        assert A.norm(rtol=1e-9, iterations=300) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("n", [32, 64])
def test_a_gradient_of_many_planes_converges(n: int) -> None:
    """Its largest singular values lie close together; cosines diagonalise it."""
    space = lo.Space((n, n), "float32")
    A = lo.Gradient(space) @ lo.Diagonal(np.ones((n, n), "float32"))
    info = A.norm(iterations=4 * n, return_info=True)
    assert info.converged
    assert info.value == pytest.approx(8**0.5 * np.cos(np.pi / (2 * n)), rel=1e-6)


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_a_factor_far_from_one_leaves_the_digits(factor: float) -> None:
    A = lo.Matrix(array((8, 5), "float32"))
    scaled = lo.Matrix((array((8, 5), "float64") * factor).astype("float32"))
    assert scaled.norm() / factor == pytest.approx(A.norm(), rel=1e-5)


@pytest.mark.parametrize("executor", ["serial", "threads", "shard_map"])
def test_a_lowered_operator_has_the_norm_of_the_whole(executor: str) -> None:
    for A in (lo.Gradient(lo.Space((6, 8))), lo.Convolve(lo.Space(6), array(3))):
        lowered = plan(A, devices=2, executor=executor).lower()
        assert lowered.norm() == pytest.approx(largest(A), rel=1e-5)


def test_arrays_of_other_libraries() -> None:
    import jax.numpy as jnp
    import torch

    host = array((6, 4), "float32")
    wanted = np.linalg.norm(host, 2)
    for held in (jnp.asarray(host), torch.tensor(host), torch.tensor(host, requires_grad=True)):
        found = lo.Matrix(held).norm()
        assert isinstance(found, float) and found == pytest.approx(wanted, rel=1e-5)
    assert lo.Diagonal(torch.tensor([1.0, -3.0], requires_grad=True)).norm() == 3
    assert lo.Diagonal(jnp.asarray([1.0, -3.0])).norm() == 3
