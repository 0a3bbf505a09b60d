"""Reshape and Transpose: permutations of entries, whose axes stay aligned where they pass."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo
from linops.errors import DTypeError, ShapeError


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_reshape_is_numpys_reshape_and_its_adjoint_goes_back(dtype: str) -> None:
    space = lo.Space((2, 3, 4), dtype, ("z", "y", "x"))
    A = lo.Reshape(space, (2, -1))
    x = np.random.default_rng(0).standard_normal((5, 2, 3, 4)).astype(dtype)
    assert np.array_equal(A @ x, x.reshape(5, 2, 12))
    assert np.array_equal(A.H @ (A @ x), x)
    assert (A @ x).dtype == dtype


def test_reshape_of_any_memory_order_reads_in_c_order_and_never_aliases() -> None:
    A = lo.Reshape(lo.Space((3, 4)), 12)
    x = np.asfortranarray(np.arange(12, dtype="float32").reshape(3, 4))
    y = A @ x
    assert np.array_equal(y, np.arange(12))
    plain = np.zeros((3, 4), "float32")
    (A @ plain)[:] = 1
    assert not plain.any()


@pytest.mark.parametrize(
    "source, target, aligned",
    [
        ((2, 3, 4), (2, 12), {"z"}),
        ((2, 3, 4), (6, 4), {"x"}),
        ((2, 3, 4), (2, 3, 2, 2), {"z", "y"}),
        ((1, 3, 4), (3, 4), {"y", "x"}),
        ((2, 3, 4), (24,), set()),
        ((6, 4, 5), (3, 8, 5), {"x"}),
    ],
)
def test_axes_that_pass_unchanged_are_aligned(source, target, aligned) -> None:
    A = lo.Reshape(lo.Space(source, axes=("z", "y", "x")), target)
    found = {n for n in A.rule.names if A.rule.relation(n) == "aligned"}
    assert found == aligned
    for name in aligned:
        block = A.block(name, 0, 1)
        assert type(block) is lo.Reshape


def test_shapes_that_do_not_fit_raise() -> None:
    with pytest.raises(ShapeError, match="24 entries"):
        lo.Reshape(lo.Space((2, 3, 4)), (5, 5))
    with pytest.raises(ShapeError):
        lo.Reshape(lo.Space((2, 3, 4)), (-1, -1))
    with pytest.raises(ShapeError, match="once"):
        lo.Transpose(lo.Space((2, 3)), (0, 0))
    with pytest.raises(ShapeError, match="no axis"):
        lo.Transpose(lo.Space((2, 3), axes=("y", "x")), ("y", "z"))


def test_transpose_moves_axes_with_their_names_and_spacings() -> None:
    space = lo.Space((2, 3, 4), axes=("z", "y", "x"), spacing=(3.0, 2.0, 1.0))
    A = lo.Transpose(space, ("x", "z", "y"))
    assert A.codomain == lo.Space((4, 2, 3), axes=("x", "z", "y"), spacing=(1.0, 3.0, 2.0))
    x = space.random(0)
    assert np.array_equal(A @ x, x.transpose(2, 0, 1))
    assert np.array_equal(A.H @ (A @ x), x)
    assert lo.Transpose(space).codomain.shape == (4, 3, 2)


def test_a_permutation_cancels_against_its_adjoint() -> None:
    A = lo.Transpose(lo.Space((2, 3)))
    B = lo.Reshape(lo.Space((2, 3)), 6)
    assert isinstance(A.H @ A, lo.Identity)
    assert isinstance(B.H @ B, lo.Identity)
    assert isinstance(B @ B.H, lo.Identity)


@pytest.mark.parametrize("padded", [False, True])
def test_blocks_in_a_composition_with_a_flat_operator(padded: bool) -> None:
    space = lo.Space((4, 3, 2), "float64", ("z", "y", "x"))
    W = lo.Diagonal(np.arange(24.0).reshape(4, 6))
    A = lo.Reshape(space, (4, 6))
    B = A.H @ W @ A
    x = space.random(1)
    whole = B @ x
    block = B.block("z", 1, 3, padded)
    assert np.array_equal(block @ x[1:3], whole[1:3])


def test_products_of_flat_and_shaped_operators_have_the_shape_of_their_codomain() -> None:
    shaped = lo.Space((2, 3), "float64")
    flat = lo.Matrix(np.arange(24.0).reshape(4, 6))
    into, back = lo.Reshape(shaped, 6), lo.Reshape(lo.Space(4, "float64"), (2, 2))
    for A in (flat @ into, back @ flat @ into, back @ flat):
        assert (A @ A.domain.random(0)).shape == A.codomain.shape
        assert (A.H @ A.codomain.random(0)).shape == A.domain.shape
        dense = A.to_dense()
        assert np.array_equal(dense, flat.to_dense())


def test_windows_take_one_pair_for_each_axis_too() -> None:
    space = lo.Space((3, 4), "float64", ("y", "x"))
    x = space.random(0)
    np.testing.assert_array_equal(lo.Pad(space, [(1, 0), (2, 3)]) @ x, np.pad(x, [(1, 0), (2, 3)]))
    np.testing.assert_array_equal(lo.Crop(space, ((1, 3), (0, 2))) @ x, x[1:3, :2])


@pytest.mark.parametrize("given", [[(1, 0)], 3, "ab", {"y": 1}, {"y": (1, 2, 3)}])
def test_windows_say_what_they_take(given: object) -> None:
    space = lo.Space((3, 4), "float64", ("y", "x"))
    for window in (lo.Pad, lo.Crop):
        with pytest.raises(ShapeError, match=r"takes \{axis: \(.*\)\}, or one such pair"):
            window(space, given)


def test_a_cast_takes_a_dtype_alone() -> None:
    space = lo.Space((3,), "float32")
    assert lo.Cast(space, "float64").codomain.dtype == "float64"
    with pytest.raises(DTypeError):
        lo.Cast(space, "text")
