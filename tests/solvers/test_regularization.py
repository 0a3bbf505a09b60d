"""Automatic regularisation: golden numbers and how they scale."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from solvers import automatic_regularization

from .system import to

SCAN = dict(pitch=1.0, spacing=1.0, magnification=1.0)


def scan(namespace="numpy"):
    A = lo.Zero(lo.Space((64, 64), "float64"), lo.Space((40, 64), "float64"))
    y = np.zeros((40, 64))
    y[:, 24:40] = 2.0
    return A, to(y, namespace)


@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax"])
def test_golden_numbers(namespace):
    A, y = scan(namespace)
    found = automatic_regularization(A, y, **SCAN)
    assert all(type(value) is float for value in found)
    assert found.sigma_y == pytest.approx(0.0632455532, rel=1e-8)
    assert found.sigma_x == found.sigma_prox == pytest.approx(0.0125, rel=1e-8)


def test_how_they_scale():
    A, y = scan()
    base = automatic_regularization(A, y, **SCAN)
    np.testing.assert_allclose(automatic_regularization(A, 2 * y, **SCAN), 2 * np.array(base))
    sharper = automatic_regularization(A, y, sharpness=2.0, **SCAN)
    assert sharper.sigma_x == pytest.approx(2 * base.sigma_x) and sharper.sigma_y == base.sigma_y
    quiet = automatic_regularization(A, y, snr_db=50.0, **SCAN)
    assert quiet.sigma_y == pytest.approx(base.sigma_y / 10) and quiet.sigma_x == base.sigma_x
    for w in (4.0, np.full(y.shape, 4.0)):
        heavy = automatic_regularization(A, y, w, **SCAN)
        assert heavy.sigma_y == pytest.approx(2 * base.sigma_y)
    kept = y.copy()
    automatic_regularization(A, y, "transmission", **SCAN)
    np.testing.assert_array_equal(y, kept)


def test_background_noise_is_set_apart():
    A, y = scan()
    noisy = y + 0.02 * np.random.default_rng(0).standard_normal(y.shape)
    np.testing.assert_allclose(
        automatic_regularization(A, noisy, **SCAN),
        automatic_regularization(A, y, **SCAN),
        rtol=0.01,
    )
    blank = automatic_regularization(A, 0 * y, **SCAN)
    assert blank == (0, 0, 0)


def test_what_is_missing_is_named():
    A, y = scan()
    with pytest.raises(ValueError, match="pitch, spacing, magnification"):
        automatic_regularization(A, y)
    y[3, 4] = np.nan
    y[:, 4] = np.nan
    with pytest.raises(ValueError, match="nan"):
        automatic_regularization(A, y, **SCAN)


def test_projectors_tell_all():
    geometries = pytest.importorskip("geometries")
    fan = geometries.FanBeam(
        np.linspace(0, 6, 40, endpoint=False), geometries.Detector(64, pitch=2.0), 100.0, 200.0
    )
    A = geometries.Projector(fan, geometries.Grid((64, 64)))
    y = scan()[1].astype("float32")
    found = automatic_regularization(A, y)
    assert found == pytest.approx(automatic_regularization(scan()[0], scan()[1], **SCAN), rel=1e-6)


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_lowered_operators_tell_what_their_originals_do(executor):
    geometries, sharding = pytest.importorskip("geometries"), pytest.importorskip("sharding")
    fan = geometries.FanBeam(
        np.linspace(0, 6, 41, endpoint=False), geometries.Detector(64, pitch=2.0), 100.0, 200.0
    )
    A = geometries.Projector(fan, geometries.Grid((64, 64)), precision="float64")
    y = A @ np.ones((64, 64))
    wanted = automatic_regularization(A, y)
    found = sharding.plan(A, devices=2, executor=executor, partition="view").lower()
    for data in (y, found.codomain.home.put(y)):
        np.testing.assert_allclose(automatic_regularization(found, data), wanted, rtol=1e-12)
