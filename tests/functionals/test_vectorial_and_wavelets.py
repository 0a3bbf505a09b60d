"""Vectorial total variation and the wavelet norm: values by hand, the contract, plans, solvers."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.testing import check_functional
from sharding import plan
from solvers import fista, pdhg

IMAGE = lo.Space((4, 5, 3), "float64", axes=("y", "x", "energy"), spacing=(0.5, 2.0, 1.0))


def planned_value(f, x):  # type: ignore[no-untyped-def]
    return [
        plan(f, devices=n, executor=executor, probe=False).lower()(x)
        for n, executor in ((1, "serial"), (3, "threads"))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("space", [IMAGE, lo.Space((3, 6), "complex64")], ids=str)
def test_vectorial_total_variation(norm: str, space: lo.Space) -> None:
    axis = "energy" if space.axes else 0
    f = lo.VectorialTotalVariation(space, axis, norm=norm)
    # No gradient has a component where all axes end.
    kinks = dict.fromkeys(("hessian", "surrogate"), "the last corner has no differences")
    check_functional(f, libraries=("torch",), skip=kinks)
    x = space.random(0)
    channels = np.moveaxis(x, -1, 0) if space.axes else x
    plane = lo.Space(channels.shape[1:], space.dtype, None, (0.5, 2.0) if space.axes else None)
    G = lo.Gradient(plane)
    J = np.stack([G @ np.ascontiguousarray(c) for c in channels])
    J = np.moveaxis(J, (0, 1), (-2, -1))
    wanted = np.linalg.norm(J, "fro" if norm == "frobenius" else "nuc", axis=(-2, -1)).sum()
    assert f(x) == pytest.approx(wanted, rel=1e-6)
    assert planned_value(f, x) == pytest.approx([wanted] * 2, rel=1e-6)
    # Channels that are alike count as the root of their number.
    same = np.broadcast_to(channels[:1], channels.shape)
    tv = lo.GroupL1(G.codomain, 0)(G @ same[0])
    image = np.ascontiguousarray(np.moveaxis(same, 0, -1) if space.axes else same)
    assert f(image) == pytest.approx(np.sqrt(len(channels)) * tv, rel=1e-6)


def test_vectorial_total_variation_flattens_channels_together() -> None:
    space = lo.Space((2, 16), "float64", axes=("energy", "x"))
    step = (np.arange(16) >= 8) * np.array([[1.0], [2.0]])
    tv = lo.VectorialTotalVariation(space)
    data = lo.LeastSquares(space, step + 0.1 * space.random(0))
    x = pdhg(0.4 * tv.outer, data, tv.inner, iterations=2000).solution
    # Steps shrink along the jump's direction (1, 2) / sqrt(5), by the weight over 8 cells a side.
    jump = x[:, 12] - x[:, 3]
    means = (data.target[:, 8:] - data.target[:, :8]).mean(axis=1)
    shrunk = means * (1 - 2 * 0.4 / 8 / np.linalg.norm(means))
    assert np.allclose(x, np.where(np.arange(16) < 8, x[:, 3:4], x[:, 12:13]), atol=1e-3)
    assert np.allclose(jump, shrunk, atol=1e-3)


@pytest.mark.parametrize("means", [True, False])
def test_wavelet_norm(means: bool) -> None:
    pywt = pytest.importorskip("pywt")
    space = lo.Space((8, 8), "float64", axes=("y", "x"))
    f = lo.WaveletL1(space, 0.3, "db2", level=1, means=means)
    check_functional(f, libraries=("torch",))
    x = space.random(1)
    low, details = pywt.dwt2(x, "db2", "periodization")
    wanted = 0.3 * (means * np.abs(low).sum() + sum(np.abs(d).sum() for d in details))
    assert f(x) == pytest.approx(wanted)
    assert planned_value(f, x) == pytest.approx([wanted] * 2)
    bands = [pywt.threshold(d, 0.3 * 0.5) for d in details]
    shrunk = pywt.threshold(low, 0.3 * 0.5) if means else low
    wanted = pywt.idwt2((shrunk, bands), "db2", "periodization")
    assert np.allclose(f.prox(x, 0.5), wanted)
    found = fista(lo.LeastSquares(space, x), 0.5 * f, iterations=50).solution
    assert np.allclose(found, wanted, atol=1e-8)


def test_other_wavelets_have_no_proximal_map() -> None:
    pytest.importorskip("pywt")
    f = lo.WaveletL1(lo.Space((3, 9), "float64"), 1.0, "bior4.4", 1, mode="symmetric", level=1)
    check_functional(f, libraries=("torch",))
    with pytest.raises(NotImplementedError, match="no proximal map in closed form"):
        f.prox(f.domain.zeros(), 1.0)
    with pytest.raises(ValueError, match="'frobenius' or 'nuclear'"):
        lo.VectorialTotalVariation(IMAGE, norm="spectral")
