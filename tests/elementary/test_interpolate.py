"""Interpolate against SciPy, linear functions, and shifts; its adjoint and its derivatives."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

import linops as lo
from linops.errors import DTypeError, ShapeError
from linops.testing import dot_test


@pytest.mark.parametrize("shape", [(6,), (4, 5), (3, 4, 5), (1, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_values_are_scipys(shape, dtype: str) -> None:
    generator = np.random.default_rng(1)
    points = generator.uniform(-2, max(shape) + 1, (len(shape), 3, 40))
    A = lo.Interpolate(lo.Space(shape, dtype), points)
    x = A.domain.random(0)

    def scipys(values: np.ndarray) -> np.ndarray:
        return map_coordinates(values.astype("float64"), points, order=1, mode="grid-constant")

    wanted = scipys(x.real) + (1j * scipys(x.imag) if A.domain.is_complex else 0)
    assert np.abs(A @ x - wanted).max() < 8 * np.finfo(dtype).eps * np.abs(x).max()
    assert (A @ x).dtype == dtype
    assert dot_test(A) <= 16


def test_linear_functions_are_reproduced_inside_the_grid() -> None:
    generator = np.random.default_rng(0)
    points = generator.uniform(0, 1, (3, 50)) * np.array([[4.0], [5.0], [6.0]])
    A = lo.Interpolate(lo.Space((5, 6, 7), "float64"), points)
    z, y, x = np.meshgrid(np.arange(5.0), np.arange(6.0), np.arange(7.0), indexing="ij")
    assert np.allclose(A @ (2 * z - y + 3 * x + 1), 2 * points[0] - points[1] + 3 * points[2] + 1)


def test_a_whole_displacement_is_a_shift_and_zero_is_the_identity() -> None:
    space = lo.Space((4, 5), "float64", ("y", "x"))
    x = space.random(0)
    still = lo.Interpolate(space, displacement=np.zeros((2, 4, 5)))
    assert np.array_equal(still @ x, x)
    moved = np.zeros((2, 4, 5))
    moved[0], moved[1] = 1, -2
    wanted = np.zeros((4, 5))
    wanted[:3, 2:] = x[1:, :3]
    assert np.array_equal(lo.Interpolate(space, displacement=moved) @ x, wanted)


def test_one_axis_of_three_and_batches() -> None:
    space = lo.Space((3, 4, 5), "float64", ("z", "y", "x"))
    A = lo.Interpolate(space, np.array([[0.5, 1.0]]), axes="z")
    assert str(A.rule) == "z y x; point0 -> y x point0"
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    wanted = np.stack([(x[:, 0] + x[:, 1]) / 2, x[:, 1]], axis=-1)
    assert np.allclose(A @ x, wanted)


def test_points_off_the_grid_or_not_finite_give_zero_and_take_nothing() -> None:
    points = np.array([[np.nan, np.inf, -np.inf, 1e30, -1.0, 3.0, -0.5]])
    A = lo.Interpolate(lo.Space(3, "float64"), points)
    assert np.array_equal(A @ np.array([2.0, 4.0, 6.0]), [0, 0, 0, 0, 0, 0, 1.0])
    assert np.array_equal(A.H @ np.ones(7), [0.5, 0, 0])


def test_blocks_add_up_over_the_grid_and_stand_side_by_side_over_the_points() -> None:
    generator = np.random.default_rng(0)
    A = lo.Interpolate(
        lo.Space((5, 6), "float64", ("y", "x")), generator.uniform(-1, 6, (2, 8)), names=("p",)
    )
    x = A.domain.random(0)
    parts = [A.block("y", s, t) @ x[s:t] for s, t in ((0, 2), (2, 5))]
    assert np.allclose(sum(parts), A @ x)
    sides = [A.block("p", s, t) @ x for s, t in ((0, 3), (3, 8))]
    assert np.array_equal(np.concatenate(sides), A @ x)


def test_the_gram_diagonal() -> None:
    generator = np.random.default_rng(0)
    A = lo.Interpolate(lo.Space((4, 4), "float64"), generator.uniform(-1, 4, (2, 30)))
    w = generator.uniform(1, 2, 30)
    dense = A.to_dense()
    assert np.allclose(A.gram(w).diagonal().ravel(), (dense**2 * w[:, None]).sum(0))


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_derivatives_in_the_points(library: str) -> None:
    generator = np.random.default_rng(0)
    host, x = generator.uniform(0.1, 2.9, (1, 6)), generator.standard_normal(4)
    slopes = np.diff(x)[np.floor(host[0]).astype(int)]
    space = lo.Space(4, "float32")
    x = x.astype("float32")
    if library == "torch":
        torch = pytest.importorskip("torch")
        points = torch.tensor(host, dtype=torch.float32, requires_grad=True)
        (lo.Interpolate(space, points) @ torch.asarray(x)).sum().backward()
        found = points.grad.numpy()[0]
    else:
        jax = pytest.importorskip("jax")
        jnp = jax.numpy
        loss = lambda p: (lo.Interpolate(space, p) @ jnp.asarray(x)).sum()  # noqa: E731
        found = np.asarray(jax.grad(loss)(jnp.asarray(host, "float32")))[0]
    assert np.allclose(found, slopes, atol=1e-5)


def test_what_does_not_fit_raises() -> None:
    space = lo.Space((4, 5))
    with pytest.raises(ShapeError, match="one of the two"):
        lo.Interpolate(space)
    with pytest.raises(ShapeError, match="coordinates"):
        lo.Interpolate(space, np.zeros((2, 3)), axes=1)
    with pytest.raises(ShapeError, match="displacement"):
        lo.Interpolate(space, displacement=np.zeros((2, 4, 4)))
    with pytest.raises(DTypeError):
        lo.Interpolate(space, np.zeros((2, 3), complex))


def test_a_displacement_with_a_reach_is_aligned_with_a_halo() -> None:
    space = lo.Space((2, 4, 5), axes=("z", "y", "x"))
    field = np.random.default_rng(3).uniform(-1, 1, (2, 4, 5))
    free = lo.Interpolate(space, displacement=field)
    A = lo.Interpolate(space, displacement=field, reach=(1, 2))
    assert str(A.rule) == "z y~1 x~2; y x, y x -> z y x"
    np.testing.assert_array_equal(A.to_dense(), free.to_dense())
    # Whatever is aligned behind it stays so.
    assert str((lo.Gradient(space) @ A).rule) == "z~1 y~2 x~3 -> component z y x"
    x = space.random(0)
    part = A.block("y", 1, 3) @ x[:, 0:4]
    np.testing.assert_array_equal(part, (A @ x)[:, 1:3])


def test_a_reach_that_does_not_hold_raises() -> None:
    space = lo.Space(4)
    with pytest.raises(ValueError, match="coordinate 0 reaches 2.5 planes, over its reach of 2"):
        lo.Interpolate(space, displacement=np.array([[0, 2.5, 0, 0]]), reach=2)
    with pytest.raises(ValueError, match="belongs to a displacement"):
        lo.Interpolate(space, np.array([[0.5]]), reach=1)
    with pytest.raises(ValueError, match="or 1 of them"):
        lo.Interpolate(space, displacement=np.zeros((1, 4)), reach=(1, 1))
