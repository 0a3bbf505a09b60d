"""`LinearOperator`: the one contract that everything in the library meets.

A leaf declares its spaces and overrides `_apply` and `_apply_adjoint`; where it can do better
than the defaults also `_block`, `_columns`, `_diagonal`, `_gram_diagonal`, `_cost`. Arithmetic,
adjoints, blocks, norms and checks are derived here and in `linops/algebra/`.

    >>> import numpy as np
    >>> import linops as lo
    >>> class Reverse(lo.LinearOperator):
    ...     def __init__(self, n):
    ...         super().__init__(lo.Space(n), lo.Space(n), rule="x! -> x!")
    ...     def _apply(self, x):
    ...         return x[::-1]
    ...     def _apply_adjoint(self, y):
    ...         return y[::-1]
    >>> A = 2 * Reverse(3)
    >>> A @ np.arange(3, dtype="float32")
    array([4., 2., 0.], dtype=float32)
    >>> A.H.H is A
    True
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np

from linops import arguments, arrays, tracing
from linops.arrays import Array
from linops.errors import ShapeError
from linops.operator import Operator, _origins

__all__ = ["AsOperator", "LinearOperator"]

AsOperator = Any
"""A linear operator, or what `as_operator` makes one: a matrix, an operator of SciPy or PyLops."""


class LinearOperator(Operator):
    """A linear map that knows its adjoint.

    Overriding `_apply` and `_apply_adjoint` is enough. `A @ x` applies, `A.H @ y` is the adjoint
    in the Euclidean inner product (conjugated first argument), `A.T @ y` the transpose. An
    operator between a real and a complex space is linear over the reals, and adjoint in the real
    part of the inner product.

    Notes
    -----
    `A @ B` composes and `A @ array` applies; `*` and `/` take scalars alone. Python scalars stay
    weak: a float32 operator times 2.0 stays float32, under `.H` too.
    """

    linear: ClassVar[bool] = True
    _kind: ClassVar[str] = "linear"
    _serves_complex: ClassVar[bool] = False
    # Whether the hooks serve complex spaces as they do real ones, and conjugate entries are those
    # of conjugate arrays: conjugates and complex extensions then follow from the fields.

    @abstractmethod
    def _apply_adjoint(self, y: Any) -> Any:
        """The adjoint map; `y` is validated, cast, and without batch axes unless `batched`."""

    # --- adjoints ----------------------------------------------------------------------

    @property
    def H(self) -> LinearOperator:
        """The adjoint (conjugate transpose); `A.H.H is A`."""
        found = self.__dict__.get("_cache_H")
        return self._linked("_cache_H", self._make_adjoint) if found is None else found

    @property
    def T(self) -> LinearOperator:
        """The transpose, `conj . H . conj`; `A.T.T is A`."""
        if not (self.domain.is_complex or self.codomain.is_complex):
            return self.H
        return self._linked("_cache_T", self.H.conj)

    def conj(self) -> LinearOperator:
        """The operator with conjugated entries; itself where both spaces are real."""
        if not (self.domain.is_complex or self.codomain.is_complex):
            return self
        return self._linked("_cache_conj", self._make_conjugate)

    # --- derived -----------------------------------------------------------------------

    def gram(self, weights: Any = None) -> LinearOperator:
        """`A.H @ W @ A`, with `.diagonal()`.

        Parameters
        ----------
        weights
            None, an array of the codomain's shape (a diagonal W), or an operator on the
            codomain.
        """
        from linops.algebra.gram import gram

        return gram(self, weights)

    def diagonal(self, limit: int | None = 4096) -> Array:
        """The diagonal of a square operator, shaped like its domain.

        Known in closed form for many operators; else it is probed with basis vectors, which
        is refused above `limit` entries (None: no limit).
        """
        from linops.algebra.dense import diagonal

        return diagonal(self, limit)

    def to_dense(self, limit: int | None = 1 << 26) -> np.ndarray:
        """The matrix, shape `A.shape`, from applying A to every basis vector.

        Raises
        ------
        ShapeError
            Above `limit` entries; pass a larger limit, or None.
        """
        from linops.algebra.dense import to_dense

        return to_dense(self, limit)

    def norm(
        self, iterations: int = 100, rtol: float = 1e-4, seed: int = 0, return_info: bool = False
    ) -> Any:
        """The largest singular value: in closed form where it is known, else by Lanczos
        bidiagonalisation (Golub, Kahan 1965).

        Parameters
        ----------
        iterations
            The most to make, one product with A and one with A.H each.
        rtol
            Ends where `|A.H A v - s^2 v| <= rtol s^2` for the value s and its vector v; the
            error of s is far smaller, about `rtol^2` over the relative gap to the next value.
        seed
            Of the start.
        return_info
            Whether to return a `NormInfo` (value, relative residual, iterations, converged)
            instead of the value alone.

        Warns
        -----
        RuntimeWarning
            Without convergence; the value is a lower bound then.
        """
        from linops.algebra.norm import norm

        return norm(self, iterations, rtol, seed, return_info)

    def spy(self, **options: Any) -> Any:
        """A picture of where the matrix is not zero; options of `linops.plotting.spy`."""
        from linops.plotting import spy

        return spy(self, **options)

    @arguments.checked
    def columns(
        self, index: Array, axes: str | int | Sequence[str | int] | None = None
    ) -> LinearOperator:
        """A restricted to part of its domain: `A @ Scatter(domain, index, axes)`.

        Parameters
        ----------
        index
            Flat positions (C order) along `axes`, integers; -1 is inert.
        axes
            Axes of the domain that the positions run over, the last two by default (the only
            one in one dimension); the others stay whole, so the new domain is `(others, s)`.
        """
        from linops.algebra.columns import columns

        return columns(self, index, axes)

    def rows(self, index: Any, axis: str | int = 0) -> LinearOperator:
        """A restricted to part of its codomain: planes `index` of one axis of its results.

        Parameters
        ----------
        index
            Whole numbers, in any order.
        axis
            Name or number of an axis that splits: `A.rows(range(0, 360, 10), "view")`.
        """
        from linops.algebra.rows import rows

        return rows(self, index, axis)

    def matvec(self, v: Array) -> Array:
        """A on a flat vector `(N,)` or `(N, 1)`, for SciPy's and PyLops' solvers."""
        return _flat(self, v)

    def rmatvec(self, v: Array) -> Array:
        """The adjoint on a flat vector `(M,)` or `(M, 1)`."""
        return _flat(self.H, v)

    _matvec = matvec
    _rmatvec = rmatvec

    @property
    def dims(self) -> Any:
        """The domain's shape, by PyLops' name."""
        return self.domain.shape

    @property
    def dimsd(self) -> Any:
        """The codomain's shape, by PyLops' name."""
        return self.codomain.shape

    # --- hooks -------------------------------------------------------------------------

    def _jacobian(self, x: Any) -> LinearOperator:
        return self

    def _columns(self, index: Array, axes: tuple[int, ...]) -> LinearOperator | None:
        """The columns at a cost in proportion to them; None where there is no such way."""
        return None

    def _select_rows(self, axis: str, index: np.ndarray) -> LinearOperator | None:
        """The rows at a cost in proportion to them; None: blocks of adjacent planes, joined."""
        return None

    def _diagonal(self) -> Array | None:
        """The diagonal in closed form, shaped like the domain."""
        return None

    def _gram_diagonal(self, weights: Array | None) -> Array | None:
        """`sum_i w_i |A_ij|^2` for every j, shaped like the domain."""
        return None

    def _known_norm(self) -> float | None:
        """The largest singular value in closed form."""
        return None

    def _approximate_inverse(self) -> LinearOperator | None:
        """An estimate of the inverse in closed form, up to a factor, from the codomain to the
        domain: what solvers start from. None where there is none."""
        return None

    def _fused_gram(self, weights: LinearOperator | None) -> Callable[[np.ndarray], Any] | None:
        """`A.H @ W @ A` of NumPy arrays in one pass; None where there is no such pass."""
        return None

    def _make_adjoint(self) -> LinearOperator:
        # Where a class derives no tags, those declared are all that can say it.
        derives = type(self)._derive_tags is not LinearOperator._derive_tags
        tags = self.tags if derives else self._declared_tags
        if "self_adjoint" in tags:
            return self
        if self._serves_complex and "diagonal" in tags and self.domain.is_complex:
            return self.conj()
        return _adjoints().Adjoint(self)  # type: ignore[no-any-return]

    def _make_conjugate(self) -> LinearOperator:
        if not self._serves_complex:
            return _adjoints().Conjugate(self)  # type: ignore[no-any-return]
        held = self._data_and_static()[0]
        own = {name: array for name, array in held.items() if arrays.is_array(array)}
        moved = {name: arrays.conj(x) for name, x in own.items() if arrays.dtype_of(x).kind == "c"}
        conjugate: LinearOperator = self._with(**moved) if moved else self
        return conjugate

    def _complexified(self) -> LinearOperator | None:
        """The same operator on complex spaces, where the hooks serve both."""
        if not self._serves_complex or "real_linear" in self.tags:
            return None
        spaces = self.domain.complexify(), self.codomain.complexify()
        return self._with(domain=spaces[0], codomain=spaces[1])

    def _derive_tags(self) -> frozenset[str]:
        mixed = self.domain.is_complex != self.codomain.is_complex
        return frozenset({"real_linear"} if mixed else ())

    @cached_property
    def _backward(self) -> Callable[[Any], Any]:
        return self._entered(self._apply_adjoint, self.domain, adjoint=True)

    @tracing.untraced
    def _linked(self, key: str, make: Callable[[], LinearOperator]) -> LinearOperator:
        found = self.__dict__.get(key)
        if found is None:
            if "torch" in sys.modules and tracing.compiling():
                return tracing.outside(type(self)._linked, self, key, make)  # type: ignore[no-any-return]
            found = make()
            held = self.__dict__.get("_cache_tensors", self)  # of torch: see `origins.tensors`
            if held and "torch" in sys.modules and _origins().derived(found, [self]):
                # Of numbers computed from a parameter; these two follow the parameter itself.
                follows = _adjoints().Adjoint if key == "_cache_H" else _adjoints().Conjugate
                found = follows(self if key != "_cache_T" else self.H)
            self.__dict__[key] = found
            found.__dict__.setdefault(key, self)
        return found


def _operator_from(value: Any) -> Any:
    """A matrix of NumPy or SciPy, or an operator of SciPy or PyLops, as an operator; what else
    there is may be meant otherwise."""
    if isinstance(value, Operator) or (arrays.is_array(value) and type(value) is not np.matrix):
        return arguments.REFUSED
    from linops.algebra.arithmetic import as_operator, is_wrapped

    return as_operator(value) if is_wrapped(value) else arguments.REFUSED


def _operator_advice(value: Any) -> str:
    if isinstance(value, Operator):
        return "what it has of linear operators is its derivative, .jacobian(x)"
    if arrays.is_array(value) or isinstance(value, (list, tuple)):
        return "say what the array is: linops.Matrix(array) or linops.Diagonal(array)"
    if callable(value) and not isinstance(value, type):
        return "wrap functions with linops.from_functions(apply, adjoint, domain=...)"
    return ""


arguments.declare(
    "LinearOperator",
    arguments.Kind("a linear operator", (LinearOperator,), _operator_from, _operator_advice),
)


def _anything_as_operator(value: Any) -> Any:
    from linops.algebra.arithmetic import as_operator, is_wrapped

    matrix = arrays.is_array(value) and len(value.shape) == 2
    return as_operator(value) if matrix or is_wrapped(value) else arguments.REFUSED


arguments.declare(
    "AsOperator",
    arguments.Kind(
        "a linear operator or a matrix",
        (LinearOperator,),
        _anything_as_operator,
        _operator_advice,
    ),
)


@cache
def _adjoints() -> Any:
    from linops.algebra import adjoint  # which imports this module

    return adjoint


def _flat(operator: LinearOperator, v: Array) -> Array:
    size = operator.domain.size
    shape = tuple(v.shape)
    if shape not in ((size,), (size, 1)):
        raise ShapeError(
            f"{operator.name}.matvec takes a flat vector of shape ({size},) or ({size}, 1), got "
            f"{shape}"
        )
    y = operator.codomain.ravel(operator(operator.domain.unravel(v.reshape((size,)))))
    return y.reshape((operator.codomain.size, 1)) if len(shape) == 2 else y
