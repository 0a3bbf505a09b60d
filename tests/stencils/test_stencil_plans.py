"""Stencils on several devices: the bits of one device, forward and adjoint."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import linops as lo
from linops.stencils import Laplacian, Stencil
from sharding import plan

BOUNDARIES = ["periodic", "zero", "even", ("odd", "edge")]


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_same_bits_on_workers(executor):
    for boundary, devices in itertools.product(BOUNDARIES, (1, 2, 3, 4, 5)):
        pair = boundary if isinstance(boundary, tuple) else (boundary, boundary)
        A = Laplacian(lo.Space((9, 4)), 8, (pair, "odd"))
        x = A.domain.random(0)
        B = plan(A, devices=devices, executor=executor, partition="axis0").lower()
        np.testing.assert_array_equal(B @ x, A @ x)
        np.testing.assert_allclose(B.H @ x, A.H @ x, atol=2e-5)


@pytest.mark.parametrize("devices", [3, 4])
def test_same_bits_on_devices(devices):
    jax = pytest.importorskip("jax")
    for boundary in ("periodic", ("odd", "edge")) if devices == 3 else ("even",):
        pair = boundary if isinstance(boundary, tuple) else (boundary, boundary)
        A = Laplacian(lo.Space((7, 4)), 6, (pair, "odd"))
        x = jax.numpy.asarray(A.domain.random(0))
        mesh = jax.devices()[:devices]
        B = plan(A, devices=mesh, executor="shard_map", partition="axis0").lower()
        one = jax.jit(lambda v, A=A: A @ v)(x)
        np.testing.assert_array_equal(np.asarray(B @ x), np.asarray(one))
        back = jax.jit(lambda v, A=A: A.H @ v)(x)
        np.testing.assert_allclose(np.asarray(B.H @ x), np.asarray(back), atol=3e-5)


def test_faces_and_cells_are_cut_with_what_they_read():
    taps = {(-2, 0): 1.0, (1, 1): 2.0, (0, 0): -1.0}
    for boundary, devices in itertools.product(("even", "odd", "edge"), (2, 3, 4)):
        A = Stencil(lo.Space((9, 4)), taps, boundary, target="face")
        for B in (A, A.H):
            x = B.domain.random(1)
            C = plan(B, devices=devices, executor="threads").lower()
            np.testing.assert_allclose(C @ x, B @ x, atol=1e-6)
