"""FFT against the dense matrix of the definition: real and complex input, every norm."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import linops as lo
from linops.errors import DTypeError, ShapeError
from linops.testing import dot_test

SHAPES = [(1,), (4,), (5,), (4, 5), (5, 4), (2, 3, 4), (3, 2, 5)]
NORMS = ["ortho", "backward", "forward"]


def matrix(shape: tuple[int, ...], norm: str, half: bool) -> np.ndarray:
    """`s exp(-2 pi i k n / N)`, axis by axis; the half spectrum keeps k <= n / 2 of the last."""
    factors = []
    for axis, n in enumerate(shape):
        k = np.arange(n // 2 + 1 if half and axis == len(shape) - 1 else n)
        scale = {"ortho": n**-0.5, "backward": 1.0, "forward": 1.0 / n}[norm]
        factors.append(scale * np.exp(-2j * np.pi * np.outer(k, np.arange(n)) / n))
    full = factors[0]
    for factor in factors[1:]:
        full = np.kron(full, factor)
    return full


@pytest.mark.slow
@pytest.mark.parametrize("shape, norm", list(itertools.product(SHAPES, NORMS)))
@pytest.mark.parametrize(
    "dtype, real",
    [("float32", "half"), ("float64", "auto"), ("float64", "full"), ("complex64", "auto"),
     ("complex128", "full")],
)  # fmt: skip
def test_forward_and_adjoint_are_the_matrix(shape, norm, dtype: str, real: str) -> None:
    A = lo.FFT(lo.Space(shape, dtype), norm=norm, real=real)
    real_input = dtype.startswith("float")
    M = matrix(shape, norm, real_input and real != "full")
    tolerance = 20 * np.finfo(dtype).eps * np.abs(M).max() * np.sqrt(M.shape[1])
    x, y = A.domain.random(0), A.codomain.random(1)
    assert np.abs((A @ x).ravel() - M @ x.ravel()).max() <= tolerance * np.linalg.norm(x)
    wanted = M.conj().T @ y.ravel()
    wanted = wanted.real if real_input else wanted
    assert np.abs((A.H @ y).ravel() - wanted).max() <= tolerance * np.linalg.norm(y)
    assert (A @ x).dtype == A.codomain.dtype and (A.H @ y).dtype == dtype
    assert np.abs(A.to_dense() - M).max() <= tolerance
    gram = A.gram()
    wanted = (np.abs(M) ** 2).sum(0)
    assert np.allclose(gram.diagonal().ravel(), wanted, rtol=1e-5)
    # Re(M^H M) where the input is real.
    product = M.conj().T @ M
    product = product.real if real_input else product
    assert np.abs(gram.to_dense() - product).max() <= 20 * tolerance * np.abs(product).max()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_real_input_passes_the_dot_test_untouched(shape, dtype: str) -> None:
    assert dot_test(lo.FFT(lo.Space(shape, dtype))) <= 16


def test_the_inverse_real_transform_is_not_the_adjoint() -> None:
    A = lo.FFT(lo.Space(6, "float64"), norm="ortho")
    y = A.codomain.random(0)
    inverse = np.fft.irfft(y, 6, norm="ortho")
    assert np.abs(A.H @ y - inverse).max() > 0.1
    M = matrix((6,), "ortho", True)
    assert np.allclose(A.H @ y, (M.conj().T @ y).real)


def test_weights_between_transforms_of_real_data_stay_real_and_symmetric() -> None:
    F = lo.FFT(lo.Space((4, 5), "float64"))
    w = np.abs(F.codomain.random(3)).astype("float64")
    A = F.H @ lo.Diagonal(w, F.codomain) @ F
    assert not A.domain.is_complex and not A.codomain.is_complex
    dense = A.to_dense()
    assert np.allclose(dense, dense.T)
    assert dot_test(A) <= 16


def test_unitary_transforms_cancel_and_others_do_not() -> None:
    F = lo.FFT(lo.Space((4, 5), "complex64"))
    assert "unitary" in F.tags
    assert isinstance(F.H @ F, lo.Identity) and isinstance(F @ F.H, lo.Identity)
    for other in (
        lo.FFT(lo.Space(4, "complex64"), norm="backward"),
        lo.FFT(lo.Space(4)),
        lo.FFT(lo.Space(4), real="full"),
    ):
        assert "unitary" not in other.tags
    assert lo.FFT(lo.Space(4)).tags == {"real_linear"}


def test_only_axes_that_are_not_transformed_split() -> None:
    A = lo.FFT(lo.Space((3, 4, 6), "float64", ("z", "y", "x")), axes="x")
    assert str(A.rule) == "z y x! -> z y kx!"
    assert A.codomain.axes == ("z", "y", "kx") and A.codomain.shape == (3, 4, 4)
    x = A.domain.random(0)
    assert np.array_equal(A.block("z", 1, 3) @ x[1:3], (A @ x)[1:3])
    with pytest.raises(ShapeError, match="must not be split"):
        A.block("kx", 0, 2)
    padded = A.block("y", 2, 6, padded=True)
    part = np.full((3, 4, 6), np.nan)
    part[:, :2] = x[:, 2:]
    y = padded @ part
    assert np.array_equal(y[:, :2], (A @ x)[:, 2:]) and not y[:, 2:].any()


def test_the_last_named_axis_is_halved_whatever_the_order() -> None:
    space = lo.Space((4, 6), "float64")
    A = lo.FFT(space, axes=(1, 0))
    x = space.random(0)
    assert A.codomain.shape == (3, 6)
    assert np.allclose(A @ x, np.fft.rfftn(x, axes=(1, 0), norm="ortho"))
    assert dot_test(A) <= 16


def test_complex_values_do_not_enter_a_transform_of_real_data() -> None:
    A = lo.FFT(lo.Space(4))
    with pytest.raises(DTypeError, match="real"):
        A @ np.ones(4, "complex64")
    with pytest.raises(DTypeError):
        lo.FFT(lo.Space(4, "complex64"), real="half")
    with pytest.raises(ShapeError, match="twice"):
        lo.FFT(lo.Space((4, 4)), axes=(0, -2))
    with pytest.raises(ValueError, match="norm"):
        lo.FFT(lo.Space(4), norm="unit")


def test_empty_extents_and_batches() -> None:
    A = lo.FFT(lo.Space((3, 4)))
    assert (A @ np.ones((0, 2, 3, 4), "float32")).shape == (0, 2, 3, 3)
    assert (A.H @ np.ones((0, 3, 3), "complex64")).shape == (0, 3, 4)
    B = lo.FFT(lo.Space((0, 4)), axes=1)
    assert (B @ np.ones((0, 4), "float32")).shape == (0, 3)


def test_the_gram_of_a_weighted_transform_has_its_diagonal() -> None:
    F = lo.FFT(lo.Space((3, 4), "float64"), norm="backward")
    w = np.random.default_rng(0).uniform(1, 2, F.codomain.shape)
    dense = F.to_dense()
    wanted = (np.abs(dense) ** 2 * w.reshape(-1, 1)).sum(0)
    assert np.allclose(F.gram(w).diagonal().ravel(), wanted)
