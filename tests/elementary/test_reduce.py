"""SumOver: sums that do not lose digits, and repeats as their adjoint."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.errors import ShapeError
from linops.testing import dot_test


@pytest.mark.parametrize("axes", ["z", ("z", "x"), (1,), None, ()])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64"])
def test_it_is_numpys_sum_and_the_adjoint_repeats(axes, dtype: str) -> None:
    space = lo.Space((3, 4, 5), dtype, ("z", "y", "x"))
    A = lo.SumOver(space, axes)
    numbers = {None: (0, 1, 2), "z": (0,), ("z", "x"): (0, 2), (1,): (1,), (): ()}[axes]
    x = space.random(0)
    wide = x.astype("complex128" if space.is_complex else "float64")
    assert np.allclose(A @ x, wide.sum(axis=numbers), rtol=1e-6, atol=1e-6)
    y = A.codomain.random(1)
    shown = np.expand_dims(y, numbers)
    assert np.array_equal(A.H @ y, np.broadcast_to(shown, (3, 4, 5)))
    assert (A @ x).dtype == (A.H @ y).dtype == dtype


@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("axis", [0, 1])
def test_long_float32_sums_keep_their_digits(namespace: str, axis: int) -> None:
    n = 20_000
    A = lo.SumOver(lo.Space((n, 2) if axis == 0 else (2, n)), axis)
    x = np.random.default_rng(0).uniform(0.5, 1.5, A.domain.shape).astype("float32")
    exact = x.astype("float64").sum(axis=axis)
    if namespace != "numpy":
        library = pytest.importorskip(namespace if namespace == "torch" else "jax.numpy")
        x = library.asarray(x)
    assert np.max(np.abs(np.asarray(A @ x) - exact) / exact) < 4 * np.finfo("float32").eps


def test_the_dot_test_of_long_sums() -> None:
    assert dot_test(lo.SumOver(lo.Space((3, 5000)), 1)) <= 16


def test_the_gram_diagonal_counts_weights() -> None:
    A = lo.SumOver(lo.Space((3, 4), "float64"), 0)
    w = np.array([1.0, 2.0, 3.0, 4.0])
    dense = A.to_dense()
    assert np.allclose(A.gram(w).diagonal().ravel(), (dense**2 * w[:, None]).sum(0))


def test_axes_that_are_not_there_raise() -> None:
    with pytest.raises(ShapeError, match="twice"):
        lo.SumOver(lo.Space((3, 4)), (0, -2))
    with pytest.raises(ShapeError, match="no axis"):
        lo.SumOver(lo.Space((3, 4), axes=("y", "x")), "z")
