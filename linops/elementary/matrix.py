"""A stored matrix, dense or SciPy sparse, between spaces of any shape."""

from __future__ import annotations

import math
import sys
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.axes import names_beside, numbered, resized_one
from linops.errors import DTypeError, ShapeError
from linops.linear_operator import LinearOperator
from linops.precision import complex_of, real_of
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = ["Matrix"]


class Matrix(LinearOperator):
    """`array @ x`, `x` read in C order.

    Parameters
    ----------
    array
        Shape (rows, columns), dense of any namespace or SciPy sparse; NumPy arrays are copied.
    domain, codomain
        Spaces of `columns` and `rows` entries; by default flat ones in the array's dtype.

    Raises
    ------
    ShapeError
        Where the array is not two-dimensional, or the spaces have other sizes.
    """

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(
        self, array: Any, domain: Space | None = None, codomain: Space | None = None
    ) -> None:
        sparse = is_sparse(array)
        if not sparse:
            array = arrays.asarray(array, "Matrix", "array")
        if array.ndim != 2:
            raise ShapeError(f"Matrix takes a two-dimensional array, got shape {array.shape}")
        dtype = np.dtype(array.dtype) if sparse else arrays.dtype_of(array)
        if dtype.kind in "biu":
            dtype = np.dtype("float32")
        elif dtype.kind not in "fc":
            raise DTypeError(f"Matrix takes numbers, got dtype {dtype}")
        rows, columns = (int(n) for n in array.shape)
        domain = Space(columns, dtype) if domain is None else domain
        target = complex_of(domain.dtype) if dtype.kind == "c" else domain.dtype
        codomain = Space(rows, target) if codomain is None else codomain
        if (codomain.size, domain.size) != (rows, columns):
            raise ShapeError(
                f"a matrix of shape {(rows, columns)} maps {columns} entries to {rows}, got the "
                f"spaces {domain} and {codomain}"
            )
        if codomain.dtype != target:
            raise DTypeError(
                f"a {dtype} matrix on {domain.dtype} gives {target}, got a codomain of "
                f"{codomain.dtype}"
            )
        super().__init__(domain, codomain, _rule(domain, codomain))
        own = (
            complex_of(domain.dtype) if dtype.kind == "c" else np.empty(0, domain.dtype).real.dtype
        )
        if sparse:
            self.array = _merge(array, own)
        else:
            self.array = arrays.own(array, own)

    def _apply(self, x: Array) -> Array:
        return self._multiply(x, self.domain, self.codomain, adjoint=False)

    def _apply_adjoint(self, y: Array) -> Array:
        x = self._multiply(y, self.codomain, self.domain, adjoint=True)
        if not self.domain.is_complex and arrays.dtype_of(x).kind == "c":
            return arrays.namespace(x).real(x)
        return x

    def _derive_tags(self) -> frozenset[str]:
        tags = set(super()._derive_tags())
        values = self.array.data if is_sparse(self.array) else self.array
        if (
            np.dtype(arrays.dtype_of(values)).kind != "c"
            and not (arrays.is_traced(values) or arrays.trainable(values))
            and bool(arrays.namespace(values).all(values >= 0))
        ):
            tags.add("nonnegative")
        return frozenset(tags)

    def _diagonal(self) -> Array | None:
        if self.domain.shape != self.codomain.shape:
            return None
        if is_sparse(self.array):
            return self.domain.unravel(self.array.diagonal())
        return self.domain.unravel(arrays.namespace(self.array).linalg.diagonal(self.array))

    def _gram_diagonal(self, weights: Array | None) -> Array:
        if is_sparse(self.array):
            square = self.array.copy()
            square.data = np.abs(square.data) ** 2
            w = np.ones(self.codomain.size) if weights is None else arrays.to_numpy(weights)
            found = square.T @ w.reshape(-1)
            return self.domain.unravel(np.asarray(found, self.domain.dtype))
        xp = arrays.namespace(self.array)
        square = xp.abs(self.array) ** 2
        if weights is not None:
            square = square * xp.reshape(arrays.convert(weights, square), (-1, 1))
        return arrays.cast(self.domain.unravel(xp.sum(square, axis=0)), self.domain.dtype)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        if padded or self.domain.shape == () or self.codomain.shape == ():
            return None
        assert isinstance(self.domain, Space) and isinstance(self.codomain, Space)
        if self.codomain.ndim == 1 and axis == self.rule.codomain[0][0].name:
            target = resized_one(self.codomain, 0, stop - start)
            return Matrix(self.array[start:stop], self.domain, target)
        if self.domain.ndim == 1 and axis == self.rule.domain[0][0].name:
            source = resized_one(self.domain, 0, stop - start)
            return Matrix(self.array[:, start:stop], source, self.codomain)
        return None

    def _columns(self, index: Array, axes: tuple[int, ...]) -> LinearOperator | None:
        assert isinstance(self.domain, Space) and isinstance(self.codomain, Space)
        if is_sparse(self.array) or self.domain.ndim != 1:
            return None
        columns = arrays.take_last(self.array, index)
        return Matrix(columns, Space(columns.shape[-1], self.domain.dtype, ("s",)), self.codomain)

    def _cost(self) -> Cost:
        entries = float(
            self.array.nnz if is_sparse(self.array) else self.array.shape[0] * self.array.shape[1]
        )
        streaming = Cost.streaming(self.domain, self.codomain, 2 * entries)
        return Cost(2 * entries, streaming.read + entries * self.dtype.itemsize, streaming.written)

    def _multiply(self, x: Array, source: Any, target: Any, adjoint: bool) -> Array:
        matrix = self.array
        if type(x) is type(matrix) is np.ndarray and x.dtype is matrix.dtype and x.ndim == 1:
            if len(target.shape) == len(source.shape) == 1 and x.dtype.kind == "f":
                return np.matmul(x, matrix if adjoint else matrix.T)
        batch = tuple(x.shape)[: x.ndim - source.ndim]
        if is_sparse(self.array) and (arrays.is_jax(x) or not arrays.on_host(x)):
            return self._by_entries(x, source, target, adjoint)
        if is_sparse(self.array):
            host = arrays.to_numpy(x).reshape(math.prod(batch), source.size)
            matrix = self.array.conj().T if adjoint else self.array
            y = np.asarray((matrix @ host.T).T).reshape(*batch, *target.shape)
            return arrays.convert(y, x)
        xp = arrays.namespace(x)
        cache = self.__dict__.setdefault("_cache_resident", {})
        is_complex = arrays.dtype_of(self.array).kind == "c"
        dtype = complex_of(self.domain.dtype) if is_complex else real_of(self.domain.dtype)
        matrix = arrays.resident(cache, "array", self.array, x, dtype)
        if adjoint and arrays.dtype_of(matrix).kind == "c":
            matrix = xp.conj(matrix)
        if arrays.dtype_of(matrix).kind == "c" and arrays.dtype_of(x).kind != "c":
            x = arrays.cast(x, complex_of(source.dtype))
        elif arrays.dtype_of(matrix).kind != "c" and arrays.dtype_of(x).kind == "c":
            matrix = arrays.cast(matrix, arrays.dtype_of(x))
        inner, outer = (*batch, source.size), (*batch, *target.shape)
        return arrays.compiled(_product, x, matrix, inner=inner, outer=outer, turned=not adjoint)

    def _by_entries(self, x: Array, source: Any, target: Any, adjoint: bool) -> Array:
        """A sparse product where SciPy cannot run: in a trace, and on an accelerator."""
        cache = self.__dict__.setdefault("_cache_resident", {})
        if "entries" not in cache:
            found = self.array.tocoo()
            cache["entries"] = found.row.astype("int32"), found.col.astype("int32"), found.data
        rows, columns, values = (
            arrays.resident(cache, name, entry, x)
            for name, entry in zip(("rows", "columns", "values"), cache["entries"], strict=True)
        )
        xp = arrays.namespace(x)
        if adjoint:
            rows, columns = columns, rows
            values = xp.conj(values) if arrays.dtype_of(values).kind == "c" else values
        batch = tuple(x.shape)[: x.ndim - source.ndim]
        flat = xp.reshape(x, (*batch, source.size))
        terms = values * xp.take(flat, columns, axis=len(batch))
        return xp.reshape(arrays.scatter_add(terms, rows, target.size), (*batch, *target.shape))


def _product(x: Array, matrix: Array, inner: Any, outer: Any, turned: bool) -> Array:
    xp = arrays.namespace(x)
    matrix = xp.matrix_transpose(matrix) if turned else matrix
    return xp.reshape(xp.matmul(xp.reshape(x, inner), matrix), outer)


def is_sparse(array: Any) -> bool:
    """Whether `array` is a SciPy sparse array or matrix; SciPy is not imported."""
    module = sys.modules.get("scipy.sparse")
    return module is not None and bool(module.issparse(array))


def _merge(array: Any, dtype: np.dtype) -> Any:
    """In compressed rows of its own, entries that are given twice added up: what squares or counts
    entries sees each once."""
    found = array.tocsr().astype(dtype)
    if found is array or np.may_share_memory(found.data, getattr(array, "data", found.data)):
        found = found.copy()
    found.sum_duplicates()
    return found


def _rule(domain: Space, codomain: Space) -> Rule:
    left = domain.axes or (("col",) if domain.ndim == 1 else tuple(numbered(domain.ndim)))
    right = codomain.axes or (("row",) if codomain.ndim == 1 else tuple(numbered(codomain.ndim)))
    return Rule((tuple(map(Axis, left)),), (tuple(map(Axis, names_beside(left, right))),))
