"""Convolve against its definition and SciPy: both boundaries, both methods, real and complex."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage, signal

import linops as lo
from linops.errors import DTypeError, ShapeError
from linops.testing import dot_test

CASES = [
    ((7,), (3,), None),
    ((7,), (4,), None),
    ((3,), (8,), None),
    ((1,), (3,), None),
    ((5, 6), (3, 2), None),
    ((4, 3, 5), (2, 3), (2, 0)),
]


def definition(
    shape: tuple[int, ...],
    kernel: np.ndarray,
    axes: tuple[int, ...] | None,
    origin: tuple[int, ...],
    periodic: bool,
) -> np.ndarray:
    """The matrix of `y[i] = sum_k h[k] x[i + origin - k]`, entry by entry."""
    axes = tuple(range(len(shape))) if axes is None else axes
    n = int(np.prod(shape))
    dense = np.zeros((n, n), kernel.dtype)
    for i in np.ndindex(*shape):
        for k in np.ndindex(*kernel.shape):
            j = list(i)
            inside = True
            for axis, step, o in zip(axes, k, origin, strict=True):
                j[axis] = i[axis] + o - step
                if periodic:
                    j[axis] %= shape[axis]
                inside &= 0 <= j[axis] < shape[axis]
            if inside:
                dense[np.ravel_multi_index(i, shape), np.ravel_multi_index(j, shape)] += kernel[k]
    return dense


@pytest.mark.slow
@pytest.mark.parametrize("shape, size, axes", CASES)
@pytest.mark.parametrize("boundary", ["zero", "periodic"])
@pytest.mark.parametrize("method", ["direct", "fft"])
@pytest.mark.parametrize(
    "dtype, kind",
    [("float64", "f"), ("float64", "c"), ("complex128", "f"), ("complex128", "c")],
)
@pytest.mark.parametrize("place", ["default", "first", "last"])
def test_matrix_adjoint_and_diagonals(
    shape, size, axes, boundary: str, method: str, dtype: str, kind: str, place: str
) -> None:
    generator = np.random.default_rng(5)
    kernel = generator.standard_normal(size)
    if kind == "c":
        kernel = kernel + 1j * generator.standard_normal(size)
    origin = {
        "default": tuple((m - 1) // 2 for m in size),
        "first": (0,) * len(size),
        "last": tuple(m - 1 for m in size),
    }[place]
    A = lo.Convolve(
        lo.Space(shape, dtype),
        kernel,
        axes,
        boundary=boundary,
        origin=None if place == "default" else origin,
        method=method,
    )
    M = definition(shape, kernel, axes, origin, boundary == "periodic")
    assert np.abs(A.to_dense() - M).max() < 1e-13
    y = A.codomain.random(1)
    wanted = M.conj().T @ y.ravel()
    if dtype == "float64":
        wanted = wanted.real
    assert np.abs((A.H @ y).ravel() - wanted).max() < 1e-12
    assert (A.H @ y).dtype == dtype
    assert np.allclose(A.diagonal().ravel(), np.diagonal(M), atol=1e-14)
    w = generator.uniform(1, 2, A.codomain.shape)
    found = A.gram(w).diagonal().ravel()
    assert np.allclose(found, (np.abs(M) ** 2 * w.reshape(-1, 1)).sum(0), atol=1e-12)


@pytest.mark.parametrize("size", [(3, 5), (4, 2), (12, 9)])
def test_it_is_scipys_same_convolution(size) -> None:
    generator = np.random.default_rng(0)
    x, kernel = generator.standard_normal((11, 14)), generator.standard_normal(size)
    A = lo.Convolve(lo.Space((11, 14), "float64"), kernel)
    full = signal.convolve(x, kernel, mode="full")
    start = [(m - 1) // 2 for m in size]
    assert np.allclose(A @ x, full[start[0] : start[0] + 11, start[1] : start[1] + 14])
    wrapped = lo.Convolve(lo.Space((11, 14), "float64"), kernel, boundary="periodic",
                          origin=tuple(m // 2 for m in size))  # fmt: skip
    if size != (12, 9):
        assert np.allclose(wrapped @ x, ndimage.convolve(x, kernel, mode="wrap"))


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("boundary", ["zero", "periodic"])
@pytest.mark.parametrize("size", [(3, 3), (11, 10)])
def test_single_precision_stays_and_passes_the_dot_test(dtype, boundary, size) -> None:
    kernel = np.random.default_rng(0).standard_normal(size)
    A = lo.Convolve(lo.Space((9, 12), dtype), kernel, boundary=boundary)
    assert (A @ A.domain.random(0)).dtype == (A.H @ A.codomain.random(0)).dtype == dtype
    assert A.kernel.dtype == "float32"
    assert dot_test(A) <= 16


def test_the_adjoint_is_the_convolution_with_the_turned_conjugate() -> None:
    kernel = np.array([1.0 + 2j, 3.0, -1j])
    A = lo.Convolve(lo.Space(6, "complex128"), kernel, origin=0)
    assert isinstance(A.H, lo.Convolve)
    assert np.array_equal(A.H.kernel, kernel[::-1].conj())
    assert A.H.H is A


def test_tags_claim_what_is_certain() -> None:
    space = lo.Space(6, "float64")
    assert lo.Convolve(space, np.array([1.0, 2.0, 1.0])).tags == {"nonnegative", "self_adjoint"}
    assert lo.Convolve(space, np.array([1.0, 2.0, 3.0])).tags == {"nonnegative"}
    assert lo.Convolve(space, np.array([1.0, -2.0, 1.0])).tags == {"self_adjoint"}
    assert lo.Convolve(space, np.array([1.0, 1.0])).tags == {"nonnegative"}
    assert lo.Convolve(space, np.array([1.0, 2.0, 1.0]), method="fft").tags == {"self_adjoint"}


def test_the_halo_is_what_the_kernel_reaches() -> None:
    space = lo.Space((8, 9, 10), "float64", ("z", "y", "x"))
    kernel = np.random.default_rng(0).standard_normal((3, 4))
    assert str(lo.Convolve(space, kernel).rule) == "z y~1 x~2 -> z y x"
    ring = lo.Convolve(space, kernel, ("z", "y"), boundary="periodic")
    assert str(ring.rule) == "z~1* y~2* x -> z y x"
    assert str(lo.Convolve(space, np.ones(1), boundary="periodic").rule) == "z y x -> z y x"


@pytest.mark.parametrize("method", ["direct", "fft"])
def test_blocks_of_a_ring_read_their_neighbors_around_it(method: str) -> None:
    A = lo.Convolve(lo.Space(7, "float64"), np.array([1.0, 2.0, 4.0]), boundary="periodic",
                    method=method)  # fmt: skip
    x = A.domain.random(0)
    around = np.concatenate([x[-1:], x, x[:1]])
    for start, stop in ((0, 3), (3, 7), (0, 7)):
        part = A.block(0, start, stop) @ around[start : stop + 2]
        assert np.allclose(part, (A @ x)[start:stop], atol=1e-14)
    padded = A.block(0, 4, 8, padded=True)
    shard = np.full(6, np.nan)
    shard[:5] = around[4:9]
    y = padded @ shard
    assert np.allclose(y[:3], (A @ x)[4:], atol=1e-14) and y[3] == 0


def test_bad_kernels_raise() -> None:
    space = lo.Space((4, 5), axes=("y", "x"))
    with pytest.raises(ShapeError, match="kernel"):
        lo.Convolve(space, np.ones((2, 2, 2)))
    with pytest.raises(ShapeError, match="at least one entry"):
        lo.Convolve(space, np.ones((0, 2)))
    with pytest.raises(ShapeError, match="axes"):
        lo.Convolve(space, np.ones(3), ("y", "x"))
    with pytest.raises(ShapeError, match="origin"):
        lo.Convolve(space, np.ones(3), "x", origin=3)
    with pytest.raises(DTypeError):
        lo.Convolve(space, np.array(["a"]))
    with pytest.raises(ValueError, match="boundary"):
        lo.Convolve(space, np.ones(3), boundary="mirror")


def test_derivatives_in_the_kernel_reach_it() -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal(9)
    for method in ("direct", "fft"):
        kernel = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
        A = lo.Convolve(lo.Space(9, "float64"), kernel, method=method)
        (A @ torch.asarray(x)).sum().backward()
        columns = [lo.Convolve(lo.Space(9, "float64"), row) @ x for row in np.eye(3)]
        assert np.allclose(kernel.grad.numpy(), [c.sum() for c in columns])
