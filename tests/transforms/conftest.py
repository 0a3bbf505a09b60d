"""Small operators of every kind, each with its matrix, for the tests of JAX and torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import geometries as ge
import linops as lo


@dataclass(frozen=True)
class Case:
    """An operator and the matrix that it is, between flat arrays."""

    operator: Any
    matrix: np.ndarray

    @property
    def complex_in(self) -> bool:
        return bool(self.operator.domain.is_complex)

    @property
    def complex_out(self) -> bool:
        return bool(self.operator.codomain.is_complex)

    def x(self, seed: int = 0) -> np.ndarray:
        return self._random(self.operator.domain, seed)

    def y(self, seed: int = 1) -> np.ndarray:
        return self._random(self.operator.codomain, seed)

    def forward(self, x: Any) -> np.ndarray:
        """`matrix @ x`, batch axes in front."""
        return self._times(self.matrix, x, self.operator.domain, self.operator.codomain)

    def adjoint(self, y: Any) -> np.ndarray:
        """The adjoint in the real part of the inner product where one space is real."""
        space = self.operator.codomain
        return self._times(self.matrix.conj().T, y, space, self.operator.domain)

    def transpose(self, y: Any) -> np.ndarray:
        """What JAX calls the transpose: the adjoint without conjugations."""
        return np.conj(self.adjoint(np.conj(y)))

    @staticmethod
    def _times(matrix: np.ndarray, x: Any, source: Any, target: Any) -> np.ndarray:
        x = np.asarray(x)
        batch = x.shape[: x.ndim - source.ndim]
        y = x.reshape(*batch, source.size) @ matrix.T
        y = y if target.is_complex else y.real
        return y.reshape(*batch, *target.shape).astype(target.dtype)

    @staticmethod
    def _random(space: Any, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal(space.shape)
        if space.is_complex:
            x = x + 1j * rng.standard_normal(space.shape)
        return x.astype(space.dtype)


def gaussian(seed: int, *shape: int, complex_: bool = False, dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if complex_:
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(np.result_type(dtype, "complex64") if complex_ else dtype)


def difference_matrix(ny: int, nx: int) -> np.ndarray:
    """Forward differences along y, then along x, zero at the last plane."""

    def along(n: int) -> np.ndarray:
        d = np.eye(n, k=1) - np.eye(n)
        d[-1] = 0
        return d

    return np.vstack([np.kron(along(ny), np.eye(nx)), np.kron(np.eye(ny), along(nx))])


def portable() -> Case:
    return Case(lo.Gradient(lo.Space((2, 3))), difference_matrix(2, 3))


def pair(dtype: str = "float32") -> Case:
    # The forward function cannot be transposed by JAX, so only the declared adjoint serves.
    m = gaussian(2, 3, 4, dtype=dtype)

    def forward(x: Any) -> Any:
        return 0.0 * abs(x[:3]) + rows(x, m)

    def adjoint(y: Any) -> Any:
        return rows(y, m.T)

    def rows(x: Any, matrix: np.ndarray) -> Any:
        xp = lo.arrays.namespace(x)
        parts = [sum(float(a) * x[j] for j, a in enumerate(row)) for row in matrix]
        return xp.stack(parts)

    operator = lo.from_functions(
        forward, adjoint, domain=lo.Space(4, dtype), codomain=lo.Space(3, dtype)
    )
    return Case(operator, m)


def compiled(precision: str = "float32") -> Case:
    angles = np.linspace(0.1, np.pi, 3, endpoint=False)
    beam = ge.ParallelBeam(angles, ge.Detector((5,)))
    operator = ge.Projector(beam, ge.Grid((4, 3)), precision=precision)
    columns = [operator @ e.reshape(4, 3) for e in np.eye(12, dtype=operator.dtype)]
    return Case(operator, np.stack([c.reshape(-1) for c in columns], axis=1))


def composition(dtype: str = "float32") -> Case:
    a, b = gaussian(3, 4, 5, dtype=dtype), gaussian(4, 4, 5, dtype=dtype)
    w = gaussian(5, 5, dtype=dtype)
    return Case(2.5 * lo.Matrix(a) @ lo.Diagonal(w) - lo.Matrix(b), 2.5 * a * w - b)


def mixed() -> Case:
    inner = compiled()
    w, v = gaussian(6, 4, 3), gaussian(7, 3, 5)
    operator = lo.Diagonal(v) @ inner.operator @ lo.Diagonal(w)
    return Case(operator, v.reshape(-1, 1) * inner.matrix * w.reshape(-1))


def complex_() -> Case:
    a, w = gaussian(8, 4, 5, complex_=True), gaussian(9, 5, complex_=True)
    return Case((1 - 2j) * lo.Matrix(a) @ lo.Diagonal(w), (1 - 2j) * a * w)


def real_linear() -> Case:
    a, w = gaussian(10, 4, 5, complex_=True), gaussian(11, 5, complex_=True)
    operator = lo.Matrix(a) @ lo.Diagonal(w, lo.Space(5))
    return Case(operator, a * w)


CASES: dict[str, Callable[[], Case]] = {
    "portable": portable,
    "pair": pair,
    "compiled": compiled,
    "composition": composition,
    "mixed": mixed,
    "complex": complex_,
    "real-linear": real_linear,
}


@functools.cache
def made(name: str) -> Case:
    return CASES[name]()


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    """Every small operator in turn, in single precision."""
    return made(request.param)


@pytest.fixture
def named() -> Callable[[str], Case]:
    """A small operator by its name."""
    return made


@pytest.fixture(params=["pair", "compiled", "composition"])
def double(request: pytest.FixtureRequest) -> Case:
    """Operators in double precision."""
    return {"pair": pair, "composition": composition, "compiled": compiled}[request.param](
        "float64"
    )
