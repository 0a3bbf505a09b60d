"""Multiplication by an array, entry by entry."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.plane_windows import PlaneMask
from linops.elementary.planes import cuts_named, resized, window_rule
from linops.errors import DTypeError, ShapeError
from linops.operator import LinearOperator
from linops.precision import complex_of, real_of
from linops.rule import Rule
from linops.space import Space

__all__ = ["Diagonal"]


class Diagonal(LinearOperator):
    """`array * x`.

    Parameters
    ----------
    array
        The diagonal, of the space's shape; a NumPy array is copied.
    domain
        By default the space of the array. A complex array on a real domain maps to complex
        values and is linear over the reals.

    Raises
    ------
    ShapeError
        Where the array has not the shape of the domain.
    """

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, array: Array, domain: Space | None = None) -> None:
        array = arrays.asarray(array, "Diagonal", "array")
        kind = arrays.dtype_of(array).kind
        if kind in "biu" and not arrays.is_traced(array):
            wanted = np.dtype("float32") if domain is None else domain.dtype
            array = arrays.cast(array, wanted)
        elif kind not in "fc":
            raise DTypeError(f"Diagonal takes numbers, got dtype {array.dtype}")
        if domain is None:
            domain = Space(tuple(array.shape), arrays.dtype_of(array))
        if tuple(array.shape) != domain.shape:
            raise ShapeError(
                f"Diagonal on {domain.describe_shape()} takes an array of that shape, got "
                f"{tuple(array.shape)}; broadcast it first"
            )
        complex_ = arrays.dtype_of(array).kind == "c"
        codomain = domain.complexified() if complex_ and not domain.is_complex else domain
        row = window_rule(domain, ()).domain
        super().__init__(domain, codomain, Rule(row, row, row))
        self.array = arrays.owned(array, self._dtype(complex_, domain))

    def _apply(self, x: Array) -> Array:
        return self._weights(x) * x

    def _apply_adjoint(self, y: Array) -> Array:
        weights = self._weights(y)
        xp = arrays.namespace(y)
        if arrays.dtype_of(self.array).kind != "c":
            return weights * y
        product = xp.conj(weights) * y
        return product if self.domain.is_complex else xp.real(product)

    def _make_adjoint(self) -> LinearOperator:
        if "self_adjoint" in self.tags:
            return self
        if self.domain.is_complex:
            return self.conj()
        return super()._make_adjoint()

    def _make_conjugate(self) -> LinearOperator:
        assert isinstance(self.domain, Space)
        return Diagonal(_conjugated(self.array), self.domain)

    def _complexified(self) -> LinearOperator | None:
        assert isinstance(self.domain, Space)
        if "real_linear" in self.tags:
            return None
        return Diagonal(self.array, self.domain.complexified())

    def _derive_tags(self) -> frozenset[str]:
        tags = {"diagonal"}
        array, xp = self.array, arrays.namespace(self.array)
        known = not (arrays.is_traced(array) or arrays.trainable(array))
        if arrays.dtype_of(array).kind == "c":
            tags |= super()._derive_tags()
            # Complex storage of real values, where they are values.
            if "real_linear" in tags or not (known and arrays.is_readable(array)):
                return frozenset(tags)
            if bool(xp.any(xp.imag(array) != 0)):
                return frozenset(tags)
            array = xp.real(array)
        tags.add("self_adjoint")
        if known and bool(xp.all(array >= 0)):
            tags |= {"psd", "nonnegative"}
        return frozenset(tags)

    def _diagonal(self) -> Array:
        return self._weights(self.array)

    def _gram_diagonal(self, weights: Array | None) -> Array:
        square = abs(self._diagonal()) ** 2
        return square if weights is None else square * arrays.convert(weights, square)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator:
        from linops.algebra.product import Product

        assert isinstance(self.domain, Space)
        cuts = cuts_named(self.rule, axis)
        position = cuts[0][1]
        number = position - self.domain.ndim
        n = self.domain.shape[position]
        space = resized(self.domain, cuts, stop - start)
        assert isinstance(space, Space)
        lo, hi = min(max(start, 0), n), max(min(stop, n), 0)
        hi = max(hi, lo)
        part = arrays.narrow(self.array, number, lo, hi)
        if not padded:
            return Diagonal(part, space)
        before = min(max(lo - start, 0), stop - start)
        part = arrays.widen(part, number, before, stop - start - before - (hi - lo))
        # Outputs are masked: they are complex where a complex diagonal meets real values.
        target = resized(self.codomain, cuts, stop - start)
        return Product([PlaneMask(target, cuts, -start, n - start), Diagonal(part, space)])

    def _cost(self) -> Cost:
        size = float(self.domain.size)
        streaming = Cost.streaming(self.domain, self.codomain)
        return Cost(size, streaming.read + size * self.array.dtype.itemsize, streaming.written)

    def _weights(self, like: Array) -> Array:
        cache = self.__dict__.setdefault("_cache_resident", {})
        complex_ = arrays.dtype_of(self.array).kind == "c"
        return arrays.resident(cache, "array", self.array, like, self._dtype(complex_, self.domain))

    @staticmethod
    def _dtype(complex_: bool, domain: Any) -> np.dtype:
        return complex_of(domain.dtype) if complex_ else real_of(domain.dtype)


def _conjugated(array: Array) -> Array:
    return arrays.namespace(array).conj(array) if arrays.dtype_of(array).kind == "c" else array
