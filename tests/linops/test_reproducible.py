"""Inner products in bits that no order changes, against exactly rounded sums of their products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linops import arrays, reproducible


def _draw(seed: int, shape: tuple[int, ...], dtype: str, spread: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape) * 2.0 ** generator.integers(-spread, spread + 1, shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * generator.standard_normal(shape)
    return x.astype(dtype)


def _exact(a: np.ndarray, b: np.ndarray) -> tuple[complex, float]:
    """The exactly rounded sum of the products' sum, and the sum of their magnitudes."""
    a, b = a.ravel().astype("complex128"), b.ravel().astype("complex128")
    real = [*(a.real * b.real), *(a.imag * b.imag)]
    imaginary = [*(a.real * b.imag), *(-a.imag * b.real)]
    return complex(math.fsum(real), math.fsum(imaginary)), math.fsum(map(abs, real + imaginary))


@pytest.mark.slow
@given(
    seed=st.integers(0, 99),
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "float64", "complex64", "complex128"]),
    spread=st.sampled_from([0, 30]),
    data=st.data(),
)
def test_neither_order_nor_parts_change_a_bit(
    seed: int, shape: tuple[int, ...], dtype: str, spread: int, data: st.DataObject
) -> None:
    a, b = _draw(seed, shape, dtype, spread), _draw(seed + 100, shape, dtype, spread)
    got = reproducible.dot(a, b, len(shape))
    wanted, scale = _exact(a, b)
    assert abs(got - wanted) <= 3e-16 * scale
    order = data.draw(st.permutations(range(a.size)))
    flat = a.ravel()[order], b.ravel()[order]
    assert reproducible.dot(*flat, 1) == got
    first = data.draw(st.integers(0, a.size))
    parts = [
        reproducible.products(*(x[s] for x in flat), 1)
        for s in (slice(first, None), slice(0, first))
    ]
    peak = np.maximum(*map(reproducible.largest, parts))
    sums = sum(reproducible.slices(part, peak, a.size) for part in parts)
    assert reproducible.total(sums, peak) == got


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_other_namespaces_have_the_same_bits(library: str) -> None:
    pytest.importorskip(library)
    a, b = _draw(1, (3, 70, 1000), "float32", 20), _draw(2, (3, 70, 1000), "float32", 20)
    wanted = reproducible.dot(a, b, 2)
    assert wanted.shape == (3,)
    for k in range(3):
        assert reproducible.dot(a[k].T, b[k].T, 2) == wanted[k]
    xp: Any = __import__(library)
    convert = xp.from_numpy if library == "torch" else xp.numpy.asarray
    got = reproducible.dot(convert(a), convert(b), 2)
    np.testing.assert_array_equal(arrays.to_numpy(got), wanted)


def test_what_is_not_finite_or_nothing() -> None:
    one = np.ones(2)
    for bad in (np.nan, np.inf, -np.inf):
        assert math.isnan(reproducible.dot(np.array([1.0, bad]), one, 1))
    assert reproducible.dot(np.zeros(3), np.zeros(3), 1) == 0
    assert reproducible.dot(np.zeros(0), np.zeros(0), 1) == 0
    assert reproducible.dot(np.full(3, 1e153), np.full(3, 1e150), 1) == pytest.approx(3e303)
