"""`NUFFT`: direct sums, the values of `FFT`, exact adjoints, the contract, planned too."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import linops as lo
from linops.testing import check_operator
from sharding import plan

pytest.importorskip("finufft")
IMAGE = lo.Space((2, 5, 6), "complex128", axes=("coil", "y", "x"))
POINTS = lo.Space((2, 9), "float64").random(0) / 3


def direct(x: np.ndarray, points: np.ndarray, origin: tuple[float, ...]) -> np.ndarray:
    grids = np.meshgrid(
        *(np.arange(n) - o for n, o in zip(x.shape, origin, strict=True)), indexing="ij"
    )
    phases = sum(np.multiply.outer(k, grid) for k, grid in zip(points, grids, strict=True))
    return (np.exp(-2j * np.pi * phases) * x).reshape(points.shape[1], -1).sum(axis=1)


@pytest.mark.parametrize("shape", [(7,), (5, 6), (4, 3, 5)])
def test_values_are_the_sums(shape: tuple[int, ...]) -> None:
    points = lo.Space((len(shape), 11), "float64").random(1)
    for dtype, error in (("complex128", 1e-10), ("float64", 1e-10), ("complex64", 1e-4)):
        x = lo.Space(shape, dtype).random(2)
        middle = tuple(n // 2 for n in shape)
        for norm, power in (("backward", 0), ("ortho", 0.5), ("forward", 1)):
            for origin in (None, middle):
                A = lo.NUFFT(lo.Space(shape, dtype), points, norm=norm, origin=origin)
                wanted = direct(x, points, origin or (0,) * len(shape)) / x.size**power
                assert np.allclose(A @ x, wanted, atol=error * np.abs(wanted).max())
                assert A.codomain == lo.Space((11,), A.codomain.dtype)


def test_adjoints_are_exact_whatever_the_tolerance() -> None:
    for tolerance in (1e-2, 1e-6, None):
        A = lo.NUFFT(IMAGE, POINTS, tolerance=tolerance)
        dense = A.to_dense()
        assert np.allclose(A.H.to_dense(), dense.conj().T, atol=1e-13)
    assert np.allclose(A.gram().diagonal(), np.sum(np.abs(dense) ** 2, 0).reshape(IMAGE.shape))


def test_regular_points_are_those_of_fft() -> None:
    ky, kx = np.meshgrid(np.fft.fftfreq(6), np.fft.fftfreq(5), indexing="ij")
    A = lo.NUFFT(IMAGE, np.stack([ky.ravel(), kx.ravel()]), axes=("x", "y"))
    wanted = lo.FFT(IMAGE, ("y", "x")) @ IMAGE.random(3)
    assert np.allclose((A @ IMAGE.random(3)).reshape(2, 6, 5), wanted.swapaxes(1, 2))
    assert str(A.rule) == "coil y! x!; coordinate! point -> coil point"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["complex64", "float64"])
def test_contract(dtype: str) -> None:
    A = lo.NUFFT(IMAGE.with_dtype(dtype), POINTS)
    check_operator(A)
    check_operator(A.H @ A, libraries=())
    x, y = A.domain.random(2), A.codomain.random(3)
    for axis, n in (("point", 3), ("coil", 2)):
        B = plan(A, devices=n, executor="threads", partition={axis: n}, probe=False).lower()
        assert np.allclose(B.codomain.home.gather(B @ x), A @ x, atol=1e-5)
        assert np.allclose(B.domain.home.gather(B.H @ y), A.H @ y, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["complex128", "float64"])
def test_derivatives_in_the_points(dtype: str) -> None:
    space, x = IMAGE.with_dtype(dtype), IMAGE.with_dtype(dtype).random(4)
    J = lo.NUFFT(space, POINTS, origin=(2, 3)).points_operator(x)
    check_operator(J, libraries=())
    change, h = lo.Space(POINTS.shape, "float64").random(5), 1e-6
    ends = [lo.NUFFT(space, POINTS + s * h * change, origin=(2, 3)) @ x for s in (1, -1)]
    assert np.allclose(J @ change, (ends[0] - ends[1]) / (2 * h), atol=1e-6)


def test_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(lo.errors.ShapeError, match="one to three"):
        lo.NUFFT(IMAGE, POINTS[0])
    with pytest.raises(lo.errors.ShapeError, match="2 coordinates"):
        lo.NUFFT(IMAGE, POINTS, origin=(1.0,))
    with pytest.raises(ValueError, match="norm is one of"):
        lo.NUFFT(IMAGE, POINTS, norm="none")
    from linops.elementary import nonuniform_fourier

    nonuniform_fourier._finufft.cache_clear()
    monkeypatch.setitem(sys.modules, "finufft", None)
    with pytest.raises(ImportError, match=r"linops\[nufft\]"):
        lo.NUFFT(IMAGE, POINTS)
