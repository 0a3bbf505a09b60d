"""Half-spaces and affine subspaces as constraints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from linops import arrays, numeric
from linops.arrays import Array
from linops.functionals.entries import Entries
from linops.linear_operator import LinearOperator
from linops.space import Space

__all__ = ["AffineSubspace", "HalfSpace"]


class HalfSpace(Entries):
    """`Re <normal, x> <= bound`: 0 there, infinite elsewhere.

    Parameters
    ----------
    space
        The domain, real or complex.
    normal
        An array of the domain's shape, not 0.
    bound
        A number.
    """

    _tables: ClassVar[Mapping[str, float]] = {"normal": 0.0}

    def __init__(self, space: Space, normal: Array, bound: float = 0.0) -> None:
        super().__init__(space, whole=range(space.ndim))
        numeric.require_finite(f"{self.name}: normal", normal)
        self.normal = self._admit_table(normal, "normal", space.dtype)
        host = np.asarray(arrays.to_numpy(normal), np.complex128)
        self.length = float(np.linalg.norm(host))
        if not self.length > 0:
            raise ValueError(f"{self.name}: the normal is 0; it has a direction")
        self.bound = numeric.finite("bound", bound)

    def _value(self, x: Array) -> Any:
        xp, axes = arrays.namespace(x), tuple(range(-self._space.ndim, 0))
        size = xp.sum(xp.abs(x) ** 2, axis=axes, keepdims=True) ** 0.5
        slack = self._tolerance * (size + abs(self.bound) / self.length)
        return self._barrier(self._above(x) * self.length <= slack + 0 * xp.abs(x))

    def _prox(self, x: Array, step: Any) -> Array:
        """The projection along the normal, whatever the step."""
        above = self._above(x)
        xp = arrays.namespace(x)
        return x - xp.where(above > 0, above, 0.0 * above) * self._table("normal", x)

    def _above(self, x: Array) -> Array:
        """How far x lies outside, in lengths of the normal."""
        xp, axes = arrays.namespace(x), tuple(range(-self._space.ndim, 0))
        terms = arrays.real(arrays.conj(self._table("normal", x)) * x)
        return (xp.sum(terms, axis=axes, keepdims=True) - self.bound) / self.length**2


class AffineSubspace(Entries):
    """`A x = b`: 0 there, infinite elsewhere.

    Parameters
    ----------
    A
        A linear operator between plain spaces, of independent rows and 4096 of them at most: the
        matrix `A A.H` is built and inverted once, in double precision.
    b
        An element of its codomain.

    Raises
    ------
    ValueError
        For more rows, or rows that depend on each other.
    """

    def __init__(self, A: LinearOperator, b: Array) -> None:
        space = A.domain
        assert isinstance(space, Space)
        super().__init__(space, whole=range(space.ndim))
        if A.codomain.size > 4096:
            raise ValueError(f"{self.name}: {A.name} has {A.codomain.size} rows; it takes 4096")
        A.codomain.check_shape(b, self.name)
        dense = np.asarray(arrays.to_numpy(A.to_dense()), np.complex128)
        dense = dense.reshape(A.codomain.size, -1)
        gram = dense @ dense.conj().T
        if np.linalg.matrix_rank(gram, hermitian=True) < len(gram):
            raise ValueError(f"{self.name}: rows of {A.name} depend on each other; leave some out")
        real = not (A.domain.is_complex or A.codomain.is_complex)
        rows = dense.real if real else dense
        inverse = np.linalg.inv(gram.real if real else gram)
        flat = np.asarray(arrays.to_numpy(b)).ravel()
        dtype = space.dtype
        self.back = np.ascontiguousarray((rows.conj().T @ inverse).astype(dtype))
        self.rows = np.ascontiguousarray(rows.astype(dtype))
        self.target = flat.astype(dtype)
        self.size = float(np.sqrt(np.linalg.norm(gram, 2)))

    def _value(self, x: Array) -> Any:
        xp = arrays.namespace(x)
        flat, off = self._off(x)
        size = xp.sum(xp.abs(flat) ** 2, axis=-1, keepdims=True) ** 0.5
        slack = self._tolerance * (self.size * size + xp.max(xp.abs(self._near("target", x))))
        bad = xp.max(xp.abs(off), axis=-1, keepdims=True) <= slack
        return self._barrier(xp.reshape(xp.broadcast_to(bad, flat.shape), x.shape))

    def _prox(self, x: Array, step: Any) -> Array:
        """`x - A.H (A A.H)^-1 (A x - b)`, whatever the step."""
        xp = arrays.namespace(x)
        flat, off = self._off(x)
        return xp.reshape(flat - off @ xp.matrix_transpose(self._near("back", x)), x.shape)

    def _off(self, x: Array) -> tuple[Array, Array]:
        xp, ndim = arrays.namespace(x), self._space.ndim
        flat = xp.reshape(x, (*x.shape[: x.ndim - ndim], self._space.size))
        return flat, flat @ xp.matrix_transpose(self._near("rows", x)) - self._near("target", x)

    def _near(self, name: str, like: Array) -> Array:
        cache = self.__dict__.setdefault("_cache_resident", {})
        return arrays.resident(cache, name, getattr(self, name), like, self._space.dtype)
