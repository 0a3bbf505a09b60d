"""Denoising, and how much noise there is."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
import solvers
from solvers import denoise, estimate_noise


def cube(shape: tuple[int, ...]) -> np.ndarray:
    image = np.zeros(shape)
    image[tuple(slice(n // 4, 3 * n // 4) if n > 1 else slice(None) for n in shape)] = 1
    return image


@pytest.mark.parametrize("sigma", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("shape", [(1, 100, 100), (40, 40, 40)])
def test_the_noise_is_found_within_a_twentieth(shape, sigma):
    noisy = cube(shape) + np.random.default_rng(0).normal(0, sigma, shape)
    assert estimate_noise(noisy) == pytest.approx(sigma, rel=0.05)
    framed = np.pad(noisy, [(0, 0), (100, 100), (100, 100)])  # a field of view in zeros
    assert estimate_noise(framed) == pytest.approx(sigma, rel=0.05)
    assert estimate_noise(np.full(shape, 3.0)) == 0


@pytest.mark.slow
def test_an_image_of_two_values_is_cleaned():
    image = cube((1, 64, 64))
    noisy = (image + np.random.default_rng(1).normal(0, 0.1, image.shape)).astype("float32")
    prior = lo.QGGMRF(lo.Space(image.shape), sigma_x=0.02)
    found = denoise(prior, noisy).solution
    error = np.linalg.norm(found - image) / np.linalg.norm(image)
    assert error < 0.1  # half of that of the noisy image, which is .2
    flat = np.full(image.shape, 2.0, "float32")
    np.testing.assert_array_equal(denoise(prior, flat).solution, flat)


def test_it_minimises_what_it_says():
    """With a quadratic prior the minimiser solves a linear system."""
    space = lo.Space((4, 5), "float64")
    prior = lo.QGGMRF(space, p=2.0, q=2.0, T=1.0, sigma_x=0.3)
    image = np.random.default_rng(2).normal(size=(4, 5))
    zero = np.zeros((4, 5))
    basis = np.eye(20).reshape(20, 4, 5)
    hessian = np.stack([(prior.gradient(b) - prior.gradient(zero)).ravel() for b in basis], 1)
    wanted = np.linalg.solve(np.eye(20) / 0.25 + hessian, image.ravel() / 0.25)
    found = denoise(prior, image, sigma=0.5, iterations=200).solution
    np.testing.assert_allclose(found.ravel(), wanted, atol=1e-8)
    np.testing.assert_allclose(denoise(prior, image, sigma=1e-4).solution, image, atol=1e-5)


@pytest.mark.parametrize("name", ["cgls", "sirt", "tv", "vcd"])
def test_a_traced_solver_names_itself_and_what_can_be_differentiated(name):
    import jax

    A, solver = lo.Matrix(np.eye(3, dtype="float32")), getattr(solvers, name)
    with pytest.raises(
        TypeError, match=rf"{name}: y is traced by JAX.*call {name} outside.*A\.H @"
    ):
        jax.grad(lambda y: solver(A, y, iterations=2).solution.sum())(np.ones(3, "float32"))


def test_what_is_refused():
    with pytest.raises(ValueError, match="sigma"):
        denoise(lo.QGGMRF(lo.Space((3, 3))), np.ones((3, 3), "float32"), sigma=0.0)
    with pytest.raises(ValueError, match="real values"):
        estimate_noise(np.ones(3, "complex64"))
    with pytest.raises(ValueError, match="image"):
        estimate_noise(np.array([1.0, np.nan]))
