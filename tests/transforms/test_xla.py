"""Compiled leaves inside JAX: NumPy's bits, XLA's own buffers, errors that arrive."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linops as lo
from linops.compiled.hosted import apply_on_host


class Doubled(lo.LinearOperator):
    """Twice x by a host function that notes where its arrays lie."""

    batched = True
    _exact: ClassVar[bool] = True
    _host_out: ClassVar[bool] = True
    seen: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, n: int) -> None:
        super().__init__(lo.Space(n), lo.Space(n))

    def _apply(self, x: Any) -> Any:
        return apply_on_host(self, x)

    def _apply_adjoint(self, y: Any) -> Any:
        return apply_on_host(self, y, adjoint=True)

    def _forward_host(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        if out is not None:
            self.seen.append((x.ctypes.data, out.ctypes.data))
        if np.isnan(x).any():
            raise ValueError("no NaN, please")
        return np.multiply(x, 2, out=out)

    _adjoint_host = _forward_host


def test_no_copies() -> None:
    x = jnp.arange(64, dtype="float32")
    Doubled.seen.clear()
    y = jax.jit(lambda x: Doubled(64) @ x)(x).block_until_ready()
    np.testing.assert_array_equal(y, 2 * np.arange(64))
    assert Doubled.seen == [(x.unsafe_buffer_pointer(), y.unsafe_buffer_pointer())]


def test_an_error_of_the_kernel_arrives() -> None:
    with pytest.raises(Exception, match="no NaN, please"):
        jax.jit(lambda x: Doubled(3) @ x)(jnp.full(3, jnp.nan)).block_until_ready()


def test_bits_are_those_of_numpy(named: Any) -> None:
    case = named("compiled")
    A, x, y = case.operator, case.x(), case.y()
    np.testing.assert_array_equal(A @ jnp.asarray(x), A @ x)
    np.testing.assert_array_equal(jax.jit(lambda A, x: A @ x)(A, x), A @ x)
    np.testing.assert_array_equal(jax.jit(lambda A, y: A.H @ y)(A, y), A.H @ y)
