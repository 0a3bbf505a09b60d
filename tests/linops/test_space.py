"""Spaces: elements, checks and inner products."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linops as lo
from linops.errors import DTypeError, ShapeError

from .builders import to


def test_attributes_and_equality() -> None:
    S = lo.Space((4, 5, 6), "complex64", axes=("z", "y", "x"), spacing=(1, 2, 0.5))
    assert (S.size, S.ndim, S.dtype) == (120, 3, np.dtype("complex64"))
    assert S == lo.Space([4, 5, 6], np.complex64, ["z", "y", "x"], [1.0, 2.0, 0.5])
    assert hash(S) == hash(lo.Space((4, 5, 6), "c8", ("z", "y", "x"), (1, 2, 0.5)))
    assert lo.Space(3).shape == (3,)
    assert lo.Space((2, 3), spacing=2).spacing == (2.0, 2.0)
    assert lo.Space(()).size == 1
    with pytest.raises(AttributeError):
        S.shape = (1,)


def test_a_torch_dtype_is_a_dtype() -> None:
    import torch

    assert lo.Space(3, torch.float64).dtype == np.dtype("float64")


@pytest.mark.parametrize(
    "arguments, error, told",
    [
        (((-1,),), ShapeError, "non-negative"),
        (((1.5,),), ShapeError, "whole numbers"),
        (((True,),), ShapeError, "whole numbers"),
        ((3, "int32"), DTypeError, "got int32; operators cast"),
        ((3, "nonsense"), DTypeError, "one of float16"),
        (((2, 3), "f4", ("y",)), ShapeError, "2 different names"),
        (((2, 3), "f4", ("y", "y")), ShapeError, "2 different names"),
        (((2, 3), "f4", None, (1.0,)), ShapeError, "one spacing or 2"),
        (((2, 3), "f4", None, -1.0), ShapeError, "positive"),
        (((2, 3), "f4", None, float("nan")), ShapeError, "positive"),
    ],
)
def test_what_is_no_space_raises(arguments: tuple, error: type, told: str) -> None:
    with pytest.raises(error, match=told):
        lo.Space(*arguments)


@pytest.mark.slow
def test_inner_accumulates_in_double() -> None:
    # Sequential float32 sums stop growing at 2 ** 24.
    S = lo.Space((2**25,))
    ones = S.ones()
    assert S.inner(ones, ones) == 33554432
    assert isinstance(S.inner(ones, ones), float)


def test_inner_conjugates_the_first_argument_and_ignores_spacing() -> None:
    S = lo.Space(2, "complex128", spacing=7.0)
    a, b = np.array([1 + 2j, 3j]), np.array([2 - 1j, 1.0])
    assert S.inner(a, b) == (1 - 2j) * (2 - 1j) + (-3j)
    assert S.norm(a) == pytest.approx(np.sqrt(14))


@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax", "strict"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_every_namespace_gives_the_same_inner_product(namespace: str, dtype: str) -> None:
    S = lo.Space((30, 40), dtype)
    a, b = S.random(0), S.random(1)
    found = S.inner(to(a, namespace), to(b, namespace))
    assert isinstance(found, (float, complex))
    assert found == pytest.approx(np.vdot(a.astype("c16"), b.astype("c16")), rel=1e-12)
    (traced,) = lo.inners((S, to(a, namespace), to(b, namespace)))
    assert complex(traced) == pytest.approx(found, rel=1e-6)


@pytest.mark.slow
def test_inner_products_under_a_trace_and_a_gradient() -> None:
    import jax
    import torch

    S = lo.Space(5)
    a = S.random(0)
    gradient = jax.grad(lambda x: S.inner(x, x))(to(a, "jax"))
    np.testing.assert_allclose(np.asarray(gradient), 2 * a, rtol=1e-6)
    x = torch.from_numpy(a.copy()).requires_grad_()
    S.inner(x, x).backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * a, rtol=1e-6)


def test_batches_of_inner_products() -> None:
    S = lo.Space((2, 3))
    batch = np.stack([S.random(i) for i in range(4)])
    found = S.inner(batch, batch)
    assert found.shape == (4,)
    np.testing.assert_allclose(found, (batch.astype("f8") ** 2).sum((1, 2)))


@given(st.permutations(range(3)), st.integers(0, 3))
def test_memory_order_changes_no_bit(order: tuple[int, ...], seed: int) -> None:
    S = lo.Space((3, 4, 5))
    a, b = S.random(seed), S.random(seed + 1)
    back = np.argsort(order)
    moved = np.ascontiguousarray(a.transpose(order)).transpose(back)
    assert S.inner(moved, b) == S.inner(a, b)


def test_random_depends_on_the_seed_alone() -> None:
    S = lo.Space((3, 4), "complex64")
    np.testing.assert_array_equal(S.random(3), np.asarray(S.random(3, like=to(S.zeros(), "jax"))))
    assert not np.array_equal(S.random(3), S.random(4))
    large = lo.Space(10000).random(0)
    assert abs(large.mean()) < 0.05
    assert abs(large.std() - 1) < 0.05


def test_like_takes_arrays_namespaces_and_devices() -> None:
    import array_api_strict
    import torch

    S = lo.Space(3, "float64")
    assert S.zeros(like=torch).dtype == torch.float64
    device = array_api_strict.Device("device1")
    assert S.ones(like=(array_api_strict, device)).device == device
    assert lo.ProductSpace([S, S]).zeros(like=torch)[1].dtype == torch.float64


def test_validation_names_the_fix() -> None:
    S = lo.Space((4, 5), axes=("y", "x"))
    assert S.validate(S.zeros()) is not None
    assert S.validate(np.zeros((7, 4, 5), "f4")).shape == (7, 4, 5)
    for bad, told in [
        (np.zeros((5, 4), "f4"), r"expects \(y=4, x=5\), got \(5, 4\): axes y and x look swapped"),
        (np.zeros(20, "f4"), r"A.domain.unravel\(v\)"),
        (np.zeros(5, "f4"), r"got \(5,\)"),
    ]:
        with pytest.raises(ShapeError, match=told):
            S.validate(bad)
    with pytest.raises(DTypeError, match="float32, got float64"):
        S.validate(np.zeros((4, 5)))
    with pytest.raises(DTypeError, match=r"builtins.list; convert it"):
        S.validate([[0.0] * 5] * 4)


def test_ravel_and_unravel() -> None:
    S = lo.Space((2, 3))
    x = S.random(0)
    assert S.ravel(x).shape == (6,)
    np.testing.assert_array_equal(S.unravel(S.ravel(x)), x)
    batch = np.stack([x, 2 * x])
    np.testing.assert_array_equal(S.unravel(S.ravel(batch)), batch)
    with pytest.raises(ShapeError, match="flat vector of 6"):
        S.unravel(np.zeros(5))
    P = lo.ProductSpace([S, lo.Space(2)])
    pair = P.random(0)
    assert P.ravel(pair).shape == (8,)
    for a, b in zip(P.unravel(P.ravel(pair)), pair, strict=True):
        np.testing.assert_array_equal(a, b)


def test_products() -> None:
    a, b = lo.Space(3), lo.Space((2, 2), "complex64")
    P = lo.ProductSpace([a, b])
    assert (P.size, P.shape, P.dtype) == (7, ((3,), (2, 2)), np.dtype("complex64"))
    x, y = P.random(0), P.random(1)
    assert P.inner(x, y) == pytest.approx(a.inner(x[0], y[0]) + b.inner(x[1], y[1]))
    assert P.norm(x) == pytest.approx(np.sqrt(a.norm(x[0]) ** 2 + b.norm(x[1]) ** 2))
    with pytest.raises(ShapeError, match="do not nest"):
        lo.ProductSpace([P, a])
    with pytest.raises(ShapeError, match="got 3 of them"):
        P.validate((*x, x[0]))
    with pytest.raises(ShapeError, match="equal leading batch axes"):
        P.validate((np.zeros((4, 3), "f4"), np.zeros((2, 2), "c8")))
    with pytest.raises(DTypeError, match="one namespace"):
        P.validate((x[0], to(x[1], "torch")))


def test_a_space_lowers_an_operator_to_itself() -> None:
    S = lo.Space(3)
    A = lo.Identity(S)
    assert S.lower(A) is A


@pytest.mark.parametrize("dtype", ["text", "no dtype", object(), "int32", "bfloat17"])
def test_what_is_no_dtype_of_a_space_is_refused(dtype: object) -> None:
    with pytest.raises(DTypeError, match="a space's dtype is one of"):
        lo.Space(3, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [2.0**-100, 1.0, 2.0**100])
def test_norms_neither_overflow_nor_vanish(scale):
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    space = lo.Space(2)
    host = (np.array([3, 4]) * scale).astype("f4")
    for put in (np.asarray, jax.numpy.asarray, torch.as_tensor):
        x = put(host)
        assert float(space.norm(x)) == pytest.approx(5 * scale, rel=1e-6)
        several = space.norm(put(np.stack([host, 2 * host, 0 * host])))
        assert np.allclose(np.asarray(several) / scale, [5, 10, 0], rtol=1e-6)
    assert float(jax.jit(space.norm)(jax.numpy.asarray(host))) == pytest.approx(5 * scale, rel=1e-6)
    slope = jax.grad(space.norm)(jax.numpy.asarray(host))
    assert np.allclose(slope, [0.6, 0.8], rtol=1e-6)

    wide = lo.Space(2, "float64")
    far = np.array([3, 4]) * scale**6
    assert wide.norm(far) == pytest.approx(5 * scale**6, rel=1e-14)
    assert lo.ProductSpace((wide, wide)).norm((far, far)) == pytest.approx(5 * 2**0.5 * scale**6)
    assert np.allclose(wide.norm(np.stack([far, 0 * far])) / scale**6, [5, 0], rtol=1e-14)
    turned = lo.Space(2, "complex64")
    assert turned.norm(host * np.complex64(1j)) == pytest.approx(5 * scale, rel=1e-6)


def test_norms_of_what_is_no_number_and_of_nothing():
    space = lo.Space(2)
    assert np.isnan(space.norm(np.array([np.nan, 1], "f4")))
    assert space.norm(np.array([np.inf, 1], "f4")) == np.inf
    assert space.norm(np.zeros(2, "f4")) == 0
    assert lo.Space(0).norm(np.zeros(0, "f4")) == 0
