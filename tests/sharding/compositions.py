"""Compositions that every executor is held to, with small shapes of which some are prime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import geometries as ct
import linops as lo
from linops.linear_operator import LinearOperator

PRECISION = "float64"


def projector(shape: tuple[int, int, int] = (5, 8, 7), views: int = 7) -> ct.Projector:
    """A cone beam projector that no axis divides."""
    angles = np.linspace(0, 2 * np.pi, views, endpoint=False)
    beam = ct.ConeBeam(angles, ct.Detector((6, 9), pitch=2.0), 20.0, 40.0)
    return ct.Projector(beam, ct.Grid(shape), precision=PRECISION)


def aligned() -> ct.Projector:
    """A parallel projector whose rows are the slices."""
    beam = ct.ParallelBeam(np.linspace(0, np.pi, 7, endpoint=False), ct.Detector((5, 9)))
    return ct.Projector(beam, ct.Grid((5, 8, 7)), precision=PRECISION)


def stencil(space: lo.Space, boundary: str) -> LinearOperator:
    """A convolution of reach 1 along the first axis."""
    kernel = np.array([0.5, -1.25, 0.3]).reshape((3,) + (1,) * (space.ndim - 1))
    return lo.Convolve(space, kernel, boundary=boundary)


def diffusion(space: lo.Space, power: int) -> LinearOperator:
    """Explicit steps of diffusion."""
    gradient = lo.Gradient(space)
    return (lo.Identity(space) - 0.1 * (gradient.H @ gradient)) ** power


def _gram() -> LinearOperator:
    A = projector()
    return A.gram(np.random.default_rng(3).random(A.codomain.shape))


def _filtered() -> LinearOperator:
    A = projector()
    transform = lo.FFT(A.codomain, axes=("col",))
    spectrum = transform.codomain
    ramp = np.abs(np.fft.fftfreq(A.codomain.shape[-1]))[: spectrum.shape[-1]]
    middle = lo.Diagonal(np.broadcast_to(ramp, spectrum.shape).astype(spectrum.dtype), spectrum)
    return A.H @ (transform.H @ middle @ transform)


def _deformed() -> LinearOperator:
    A = projector()
    bent = np.random.default_rng(6).uniform(-0.8, 0.8, (3, *A.domain.shape))
    return A @ lo.Interpolate(A.domain, displacement=bent)


def _linearised() -> LinearOperator:
    A = projector()
    return lo.transmission(A, 2.0).jacobian(A.domain.random(8))


def _stack() -> LinearOperator:
    A = projector()
    return lo.vstack([A, 0.5 * lo.Gradient(A.domain)])


def _sum() -> LinearOperator:
    A = aligned()
    weights = np.random.default_rng(4).standard_normal(A.domain.shape)
    return A + 2 * A @ lo.Diagonal(weights, A.domain)


def _space() -> lo.Space:
    return lo.Space((7, 5, 4), "float64", ("z", "y", "x"), spacing=(1.0, 0.5, 2.0))


LINEAR: dict[str, Callable[[], LinearOperator]] = {
    "projector": projector,
    "aligned projector": aligned,
    "ramp filter, then adjoint": _filtered,
    "gram with weights": _gram,
    "projector after a deformation": _deformed,
    "Gauss-Newton Jacobian": _linearised,
    "projector over gradient": _stack,
    "sum of projectors": _sum,
    "side by side": lambda: lo.hstack([projector(), 2 * projector()]),
    "block diagonal": lambda: lo.block_diagonal([aligned(), lo.Gradient(aligned().domain)]),
    "two stencils": lambda: stencil(_space(), "zero") @ stencil(_space(), "zero"),
    "two rings": lambda: stencil(_space(), "periodic") @ stencil(_space(), "periodic"),
    "diffusion": lambda: diffusion(_space(), 3),
    "normal equations of a gradient": lambda: lo.Gradient(_space()).gram(),
}
