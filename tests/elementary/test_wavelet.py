"""`Wavelet`: PyWavelets' values in every mode, exact adjoints, the contract, planned too."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import linops as lo
from linops.testing import check_operator, dot_test
from sharding import plan

pywt = pytest.importorskip("pywt")
MODES = list(pywt.Modes.modes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Level value")  # of PyWavelets, where all is border
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wavelet", ["haar", "db3", "bior4.4"])
def test_values_and_transpose_in_every_mode(mode: str, wavelet: str) -> None:
    for shape, axes, level in [((9, 8), None, 1), ((5, 40), None, 2), ((3, 41), (1,), 3)]:
        space = lo.Space(shape, "float64", axes=("y", "x"))
        W = lo.Wavelet(space, wavelet, axes, level=level, mode=mode)
        x = space.random(0)
        bands = pywt.wavedecn(x, wavelet, mode, level, axes)
        packed = pywt.coeffs_to_array(bands, axes=axes)[0]
        assert np.array_equal(W @ x, packed)
        dense = W.to_dense()
        assert np.allclose(W.H.to_dense(), dense.T, atol=1e-13 * np.abs(dense).max())


@pytest.mark.parametrize("library", ["jax", "torch"])
@pytest.mark.parametrize("mode", MODES)
def test_other_libraries_have_the_same_values(mode: str, library: str) -> None:
    space = lo.Space((2, 9), "float32", axes=("y", "x"))
    W = lo.Wavelet(space, "db2", "x", level=1, mode=mode)
    x, y = space.random(0), W.codomain.random(1)
    xp = pytest.importorskip("jax.numpy" if library == "jax" else "torch")
    assert np.allclose(W @ xp.asarray(x), W @ x, atol=1e-5)
    assert np.allclose(W.H @ xp.asarray(y), W.H @ y, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "dtype"), [("periodization", "float32"), ("smooth", "complex128")]
)
def test_contract(mode: str, dtype: str) -> None:
    space = lo.Space((3, 9), dtype, axes=("y", "x"))
    W = lo.Wavelet(space, "db2", "x", level=1, mode=mode)
    assert str(W.rule) == "y x! -> y wx!"
    check_operator(W)
    check_operator(W.H @ (2 * W), libraries=())
    x, y = space.random(2), W.codomain.random(3)
    B = plan(W, devices=3, executor="threads", probe=False).lower()
    assert np.allclose(B.codomain.home.gather(B @ x), W @ x, rtol=1e-6, atol=1e-6)
    assert np.allclose(B.domain.home.gather(B.H @ y), W.H @ y, rtol=1e-6, atol=1e-6)


def test_unitary_where_nothing_is_lost() -> None:
    space = lo.Space((8, 16), "float64")
    W = lo.Wavelet(space, "sym4", level=3)
    assert "unitary" in W.tags
    dense = W.to_dense()
    assert np.allclose(dense.T @ dense, np.eye(128), atol=1e-10)  # as exact as the taps are
    for other in [
        lo.Wavelet(space, "sym4", level=3, mode="zero"),
        lo.Wavelet(space, "bior2.2", level=1),
        lo.Wavelet(lo.Space((9, 8)), "haar", level=1),
    ]:
        assert "unitary" not in other.tags
    assert lo.Wavelet(space, "haar").codomain.shape == (8, 16)
    assert dot_test(lo.Wavelet(lo.Space((2, 33, 17)), "db8", mode="symmetric")) <= 16


def test_mistakes_and_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    space = lo.Space((4, 3))
    with pytest.raises(ValueError, match="mode is one of .*'smooth'.* got 'reflected'"):
        lo.Wavelet(space, "haar", mode="reflected")
    with pytest.raises(ValueError, match="level is not negative"):
        lo.Wavelet(space, "haar", level=-1)
    with pytest.raises(lo.errors.ShapeError, match="take fewer levels or another mode"):
        lo.Wavelet(space, "haar", level=3, mode="reflect")
    with pytest.raises(lo.errors.ShapeError, match="axes with planes"):
        lo.Wavelet(lo.Space((0, 3)), "haar")
    monkeypatch.setitem(sys.modules, "pywt", None)
    with pytest.raises(ImportError, match=r"linops\[wavelet\]"):
        lo.Wavelet(space, "haar")
