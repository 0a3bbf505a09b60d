"""The small systems that the solver tests share, and an operator that counts its calls."""

from __future__ import annotations

import numpy as np
import pytest

import linops as lo


def golden_matrix():
    k = np.arange(90).reshape(15, 6)
    M = (k % 11) * 0.013 + 0.025
    M[:6] += np.diag([0.8, 1.1, 0.9, 1.4, 1.2, 1.5])
    return M


def golden_data():
    return golden_matrix() @ np.array([-0.3, 0.7, 1.1, 0.2, -0.15, 0.9])


def golden_operator(shape=6, dtype="float64"):
    return lo.Matrix(golden_matrix().astype(dtype), domain=lo.Space(shape, dtype))


def to(x, namespace):
    """NumPy to a namespace, in the dtype that it offers."""
    if namespace == "torch":
        return pytest.importorskip("torch").tensor(np.asarray(x))
    if namespace == "jax":
        jax = pytest.importorskip("jax")
        return jax.numpy.asarray(x, dtype="float32")
    return np.asarray(x)


class Calls(dict):
    """Counts by name; hashable by identity, as an operator's attributes have to be."""

    __hash__ = object.__hash__


class Counting(lo.LinearOperator):
    """A dense operator that counts applications of itself and of its adjoint."""

    def __init__(self, matrix, tags=("nonnegative",)):
        rows, columns = matrix.shape
        super().__init__(lo.Space(columns, matrix.dtype), lo.Space(rows, matrix.dtype), tags=tags)
        self.matrix = matrix
        self.calls = Calls(forward=0, adjoint=0)

    def _apply(self, x):
        self.calls["forward"] += 1
        return self.matrix @ x

    def _apply_adjoint(self, y):
        self.calls["adjoint"] += 1
        return self.matrix.T @ y
