"""The gradient against differences written out, on exact functions."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (1, 4), (2, 1, 1, 3)])
def test_forward_differences_over_the_spacing(shape: tuple[int, ...]) -> None:
    spacing = tuple(0.5 + i for i in range(len(shape)))
    S = lo.Space(shape, "float64", spacing=spacing)
    x = S.random(0)
    found = lo.Gradient(S) @ x
    assert found.shape == (len(shape), *shape)
    for axis, step in enumerate(spacing):
        wanted = np.zeros(shape)
        inside = [slice(None)] * len(shape)
        inside[axis] = slice(0, -1)
        wanted[tuple(inside)] = np.diff(x, axis=axis) / step
        np.testing.assert_allclose(found[axis], wanted, rtol=1e-14)


def test_a_plane_has_its_slope() -> None:
    S = lo.Space((6, 7), "float64", axes=("y", "x"), spacing=(0.5, 0.25))
    y, x = np.meshgrid(0.5 * np.arange(6), 0.25 * np.arange(7), indexing="ij")
    found = lo.Gradient(S) @ (3 * y - 2 * x)
    np.testing.assert_allclose(found[0, :-1], 3)
    np.testing.assert_allclose(found[1, :, :-1], -2)
    assert not found[0, -1].any()
    assert not found[1, :, -1].any()


def test_the_gram_is_the_laplacian_with_free_ends() -> None:
    n = 5
    wanted = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    wanted[0, 0] = wanted[-1, -1] = 1
    np.testing.assert_array_equal(lo.Gradient(lo.Space(n, "float64")).gram().to_dense(), wanted)


def test_the_norm_stays_below_its_bound() -> None:
    S = lo.Space((12, 12), "float64")
    found = lo.Gradient(S).norm(iterations=500)
    # 2 sum_i sin^2(pi (n - 1) / (2 n)) 2: the largest eigenvalue of the path graph's Laplacian
    exact = np.sqrt(2 * (2 - 2 * np.cos(np.pi * 11 / 12)))
    assert found == pytest.approx(exact, rel=1e-3)
    assert found < np.sqrt(8)


def test_it_wants_axes() -> None:
    with pytest.raises(lo.errors.ShapeError, match="one or more axes"):
        lo.Gradient(lo.Space(()))


SHAPES = {
    (7,): (2.0,),
    (5, 4): (1.0, 0.5),
    (3, 4, 5): (1.0, 0.3, 2.0),
    (1, 6, 1): (1.0, 1.0, 3.0),
    (40, 33, 31): (1.0, 1.0, 1.0),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_weighted_gram_in_one_pass(shape: tuple[int, ...], dtype: str) -> None:
    """`D.H W D` has the bits of its factors one by one, however it is written."""
    space = lo.Space(shape, dtype, spacing=SHAPES[shape])
    D = lo.Gradient(space)
    rng = np.random.default_rng(0)
    w = rng.random(D.codomain.shape).astype(dtype)
    W = lo.Diagonal(w, D.codomain)
    x = rng.standard_normal((2, *shape)).astype(dtype)
    for way in (D.gram(w), D.H @ W @ D, D.gram(w).H, (D.H @ W @ D).H):
        np.testing.assert_array_equal(way @ x, D.H @ (W @ (D @ x)))
        np.testing.assert_array_equal(way @ x[1], D.H @ (W @ (D @ x[1])))
    for way in (D.gram(), D.H @ D, (D.H @ D).H):
        np.testing.assert_array_equal(way @ x, D.H @ (D @ x))


@pytest.mark.parametrize("shape", [(7,), (1, 6), (5, 4), (2, 3, 4)])
def test_its_norm_is_known(shape):
    space = lo.Space(shape, "float64", spacing=[0.5 + k for k in range(len(shape))])
    G = lo.Gradient(space)
    wanted = np.linalg.norm(G.to_dense(), 2)
    assert G.norm() == pytest.approx(wanted, rel=1e-12)
    info = lo.Gradient(lo.Space((32, 32))).norm(return_info=True)
    assert info.converged and info.value == pytest.approx(8**0.5 * np.cos(np.pi / 64), rel=1e-12)
