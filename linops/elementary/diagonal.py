"""Multiplication by an array, entry by entry."""

from __future__ import annotations

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.elementary.axes import window_rule
from linops.errors import DTypeError, ShapeError
from linops.linear_operator import LinearOperator
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

    batched = blockwise = _exact = _serves_complex = True

    def __init__(self, array: Array, domain: Space | None = None) -> None:
        array, domain, codomain, dtype = _admitted(array, domain)
        row = window_rule(domain, ()).domain
        super().__init__(domain, codomain, Rule(row, row, row))
        self.array = arrays.own(array, dtype)

    def _apply(self, x: Array) -> Array:
        return self._beside("array", x) * x

    def _apply_adjoint(self, y: Array) -> Array:
        x = arrays.conj(self._beside("array", y)) * y
        return arrays.real(x) if "real_linear" in self.tags else x

    def _derive_tags(self) -> frozenset[str]:
        tags = super()._derive_tags() | {"diagonal"}
        if "real_linear" in tags or not arrays.is_real(self.array):
            return tags
        known = {"psd", "nonnegative"} if arrays.is_nonnegative(self.array) else set[str]()
        return tags | known | {"self_adjoint"}

    def _diagonal(self) -> Array:
        return self._beside("array", self.array)

    def _gram_diagonal(self, weights: Array | None) -> Array:
        square = abs(self._diagonal()) ** 2
        return square if weights is None else square * arrays.convert(weights, square)

    def _known_norm(self) -> float | None:
        """The largest modulus."""
        array = self.array
        if arrays.is_traced(array) or not arrays.is_readable(array):
            return None
        return float(np.abs(arrays.to_numpy(arrays.constant(array))).max(initial=0.0))


def _admitted(array: Array, domain: Space | None) -> tuple[Array, Space, Space, np.dtype]:
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
    if arrays.dtype_of(array).kind == "c":
        return array, domain, domain.complexify(), complex_of(domain.dtype)
    return array, domain, domain, real_of(domain.dtype)
