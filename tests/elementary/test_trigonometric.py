"""`DCT`, `DST` and `CumulativeSum`: values of SciPy and NumPy, and the contract, planned too."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft

import linops as lo
from linops.testing import check_operator
from sharding import plan

SPACE = lo.Space((3, 5), "float64", axes=("y", "x"))
KINDS = ["DCT", "DST"]


@pytest.mark.parametrize("type", [1, 2, 3, 4])
@pytest.mark.parametrize("name", KINDS)
def test_values_are_those_of_scipy(name: str, type: int) -> None:
    reference = getattr(scipy.fft, f"{name.lower()}n")
    for n in (2, 3, 8, 31):
        space = lo.Space((2, n), "float64", axes=("y", "x"))
        A, x = getattr(lo, name)(space, type), space.random(n)
        assert np.allclose(A @ x, reference(x, type, norm="ortho"), atol=1e-13)
        assert np.allclose(A.H @ (A @ x), x, atol=1e-13)
        one = getattr(lo, name)(space.with_dtype("complex64"), type, "x")
        z = one.domain.random(n)
        assert np.allclose(one @ z, reference(z, type, axes=(-1,), norm="ortho"), atol=1e-5)
    assert str(one.rule) == "y x! -> y kx!"


@pytest.mark.slow
@pytest.mark.parametrize(
    "A",
    [
        lo.DCT(SPACE.with_dtype("float32"), 2, "x"),
        lo.DST(SPACE, 1, "x"),
        lo.CumulativeSum(SPACE.with_dtype("float32")),
        lo.CumulativeSum(SPACE.with_dtype("complex128"), "x"),
    ],
    ids=repr,
)
def test_contract(A: lo.LinearOperator) -> None:
    check_operator(A)
    check_operator(A.H @ (2 * A), libraries=())
    x, y = A.domain.random(2), A.codomain.random(3)
    B = plan(A, devices=3, executor="threads", probe=False).lower()
    assert np.allclose(B.codomain.home.gather(B @ x), A @ x, rtol=1e-6, atol=1e-6)
    assert np.allclose(B.domain.home.gather(B.H @ y), A.H @ y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_other_libraries_have_the_same_values(name: str) -> None:
    A = getattr(lo, name)(SPACE.with_dtype("float32"), 3)
    x = A.domain.random(0)
    for module in ("jax.numpy", "torch"):
        assert np.allclose(A @ pytest.importorskip(module).asarray(x), A @ x, atol=1e-6)


def test_cumulative_sums() -> None:
    x = SPACE.random(0)
    for axis in (0, "x"):
        A = lo.CumulativeSum(SPACE, axis)
        assert np.allclose(A @ x, np.cumsum(x, axis if isinstance(axis, int) else 1))
        assert A.norm() == pytest.approx(np.linalg.norm(A.to_dense(), 2), rel=1e-12)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="DST: type is 1, 2, 3 or 4, got 5"):
        lo.DST(SPACE, 5)
    with pytest.raises(lo.errors.ShapeError, match="2 planes or more"):
        lo.DCT(lo.Space((1, 4)), 1)
    with pytest.raises(lo.errors.ShapeError, match="no axis 'z'"):
        lo.CumulativeSum(SPACE, "z")
