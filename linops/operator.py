"""`Operator` and `LinearOperator`: the one contract that everything in the library meets.

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

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from linops import calling
from linops.arrays import Array
from linops.cost import Cost
from linops.errors import ShapeError
from linops.precision import Precision
from linops.rule import Rule
from linops.space import AnySpace

__all__ = ["LinearOperator", "Operator"]


class Operator(ABC):
    """A map between spaces, linear or not.

    Parameters
    ----------
    domain, codomain
        What it maps from and to.
    rule
        The sharding rule, a line in the grammar of `linops.rule`; without one no axis splits.
    precision
        `"fast"`, `"float32"` or `"float64"`; by default that of the coarser space.
    name
        For messages and `describe()`; the class name by default.
    tags
        Known properties, such as `"self_adjoint"`, `"psd"`, `"nonnegative"`.

    Notes
    -----
    Attributes may be set in `__init__`; afterwards the operator is immutable. It hashes by
    identity and pickles.
    """

    linear: ClassVar[bool] = False
    batched: bool = False
    """Whether `_apply` takes leading batch axes itself; else it sees one element at a time."""

    _exact: ClassVar[bool] = False
    # Of library leaves: the hooks return the declared shape and dtype, batches included.
    _aliases: bool = False
    # The result may share memory with the input; `calling` copies it where it leaves.

    def __init__(
        self,
        domain: AnySpace,
        codomain: AnySpace,
        rule: str | Rule | None = None,
        *,
        precision: str | Precision | None = None,
        name: str | None = None,
        tags: Iterable[str] = (),
    ) -> None:
        self.domain = domain
        self.codomain = codomain
        self.name = name or type(self).__name__
        self._precision = None if precision is None else Precision.of(precision)
        self._declared_tags = frozenset(tags)
        self._declared_rule = None if rule is None else Rule.parse(rule)
        if self._declared_rule is not None:
            _match_rule(self._declared_rule, domain, codomain, self.name)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            cls.__init__ = _freezing(cls.__init__)  # type: ignore[method-assign]

    # --- what it is --------------------------------------------------------------------

    @cached_property
    def rule(self) -> Rule:
        """How its axes shard (see `linops.rule`)."""
        if self._declared_rule is not None:
            return self._declared_rule
        derived = self._derive_rule()
        return derived if derived is not None else _rule_without_splits(self)

    @cached_property
    def tags(self) -> frozenset[str]:
        """Properties that are certain: `"self_adjoint"`, `"psd"`, `"unitary"`, `"diagonal"`,
        `"nonnegative"`, `"real_linear"`, `"approximate_adjoint"`."""
        found = self._declared_tags | self._derive_tags()
        if self.domain.is_complex or self.codomain.is_complex:
            return found
        # Between real spaces there is nothing else to be linear over.
        return found - {"real_linear"}

    @property
    def precision(self) -> Precision:
        """Precision of the arithmetic; a composition has that of its coarsest part."""
        return self._derive_precision() if self._precision is None else self._precision

    @property
    def dtype(self) -> np.dtype:
        """The wider dtype of the two spaces, complex if either is."""
        return np.result_type(self.domain.dtype, self.codomain.dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """`(codomain.size, domain.size)`, as SciPy and PyLops want it."""
        return self.codomain.size, self.domain.size

    def describe(self) -> str:
        """The tree that will run, one line an operator, with spaces, rules and precision."""
        from linops.algebra.describe import describe

        return describe(self)

    def cost(self) -> Cost:
        """Flops and bytes of one apply."""
        return self._cost()

    # --- what it does ------------------------------------------------------------------

    def __call__(self, x: Any) -> Any:
        return calling.call(self, x)

    def block(self, axis: str | int, start: int, stop: int, padded: bool = False) -> Operator:
        """The operator on a range of one axis.

        The law, for every axis and split:

            aligned      concatenate_i  A.block(a, i) @ x[i with halo]  ==  A @ x
            produced     concatenate_i  A.block(a, i) @ x               ==  A @ x
            contracted   sum_i          A.block(a, i) @ x[i with halo]  ==  A @ x

        Parameters
        ----------
        axis
            Name in the rule or in a space, or number (of the codomain's axis; of the domain's
            where the codomain is a scalar).
        start, stop
            Planes of the output where the axis is aligned or produced, of the input where it
            is contracted.
        padded
            The form for programs that all devices share: the range may reach past both ends,
            the input always has the halo on both sides, planes outside the array are never
            read and are written as zeros. Blocks of equal length have equal structure.

        Raises
        ------
        ShapeError
            Where no axis has that name, the axis must not be split, or the range is no range.
        """
        from linops.algebra.blocks import block

        return block(self, axis, start, stop, padded)

    @abstractmethod
    def _apply(self, x: Any) -> Any:
        """The map itself; `x` is validated, cast, and without batch axes unless `batched`."""

    # --- hooks -------------------------------------------------------------------------

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        """A better block than "extend by zeros, apply, crop"; None where there is none."""
        return None

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        """Planes of the input that planes `start` to `stop` of an aligned axis need, uncut."""
        halo = self.rule.halo(axis)
        return start - halo, stop + halo

    def _derive_rule(self) -> Rule | None:
        return None

    def _derive_tags(self) -> frozenset[str]:
        return frozenset()

    def _derive_precision(self) -> Precision:
        return Precision.coarsest(
            Precision.of_dtype(space.dtype) for space in (self.domain, self.codomain)
        )

    def _cost(self) -> Cost:
        return Cost.streaming(self.domain, self.codomain)

    @cached_property
    def _forward(self) -> Callable[[Any], Any]:
        if self._exact:
            return self._apply
        return calling.guarded(self._apply, self.domain, self.codomain, self.batched, self.name)

    def _warn_once(self, message: str) -> None:
        if not self.__dict__.get("_cache_warned"):
            self.__dict__["_cache_warned"] = True
            calling.warn(message)

    # --- immutability, pickling, display -------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_frozen"):
            raise AttributeError(
                f"{self.name} is immutable: cannot set {name!r}; build a new operator"
            )
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self.name} is immutable: cannot delete {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        cached = _cached_names(type(self))
        return {
            key: value
            for key, value in self.__dict__.items()
            if key not in cached and not key.startswith("_cache")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        tags = f" [{', '.join(sorted(self.tags))}]" if self.tags else ""
        return f"<{self.name}: {self.domain} -> {self.codomain}, {self.precision}{tags}>"


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
    __array_ufunc__ = None
    __array_priority__ = 1e6

    @abstractmethod
    def _apply_adjoint(self, y: Any) -> Any:
        """The adjoint map; `y` is validated, cast, and without batch axes unless `batched`."""

    # --- adjoints ----------------------------------------------------------------------

    @property
    def H(self) -> LinearOperator:
        """The adjoint (conjugate transpose); `A.H.H is A`."""
        return self._linked("_cache_H", self._make_adjoint)

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
        """The largest singular value, by the power method on `A.H @ A`.

        With `return_info` a `NormInfo` (value, relative residual, iterations, converged);
        without convergence a warning.
        """
        from linops.algebra.dense import norm

        return norm(self, iterations, rtol, seed, return_info)

    def columns(self, index: Any, axes: tuple[str | int, ...] | None = None) -> LinearOperator:
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

    def jvp(self, x: Any, dx: Any) -> Any:
        """The derivative at `x` along `dx`: `A @ dx`."""
        return self(dx)

    def vjp(self, x: Any, dy: Any) -> Any:
        """The adjoint of the derivative at `x`, applied to `dy`: `A.H @ dy`."""
        return self.H(dy)

    def jacobian(self, x: Any) -> LinearOperator:
        """The derivative at `x`: the operator itself."""
        return self

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

    # --- arithmetic ----------------------------------------------------------------------

    def __matmul__(self, other: Any) -> Any:
        from linops.algebra.arithmetic import matmul

        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        from linops.algebra.arithmetic import rmatmul

        return rmatmul(self, other)

    def __add__(self, other: Any) -> Any:
        from linops.algebra.arithmetic import add

        return add(self, other)

    def __radd__(self, other: Any) -> Any:
        from linops.algebra.arithmetic import add

        return add(other, self)

    def __sub__(self, other: Any) -> Any:
        from linops.algebra.arithmetic import subtract

        return subtract(self, other)

    def __rsub__(self, other: Any) -> Any:
        from linops.algebra.arithmetic import subtract

        return subtract(other, self)

    def __mul__(self, other: Any) -> Any:
        from linops.algebra.arithmetic import multiply

        return multiply(other, self)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        from linops.algebra.arithmetic import divide

        return divide(self, other)

    def __neg__(self) -> Any:
        from linops.algebra.arithmetic import scale

        return scale(-1, self)

    def __pos__(self) -> LinearOperator:
        return self

    def __pow__(self, exponent: Any) -> Any:
        from linops.algebra.arithmetic import power

        return power(self, exponent)

    # --- hooks -------------------------------------------------------------------------

    def _columns(self, index: Array, axes: tuple[int, ...]) -> LinearOperator | None:
        """The columns at a cost in proportion to them; None where there is no such way."""
        return None

    def _diagonal(self) -> Array | None:
        """The diagonal in closed form, shaped like the domain."""
        return None

    def _gram_diagonal(self, weights: Array | None) -> Array | None:
        """`sum_i w_i |A_ij|^2` for every j, shaped like the domain."""
        return None

    def _make_adjoint(self) -> LinearOperator:
        from linops.algebra.adjoint import Adjoint

        return self if "self_adjoint" in self.tags else Adjoint(self)

    def _make_conjugate(self) -> LinearOperator:
        from linops.algebra.adjoint import Conjugate

        return Conjugate(self)

    def _complexified(self) -> LinearOperator | None:
        """The same operator on complex spaces, where the hooks serve both."""
        return None

    def _derive_tags(self) -> frozenset[str]:
        mixed = self.domain.is_complex != self.codomain.is_complex
        return frozenset({"real_linear"} if mixed else ())

    @cached_property
    def _backward(self) -> Callable[[Any], Any]:
        if self._exact:
            return self._apply_adjoint
        return calling.guarded(
            self._apply_adjoint, self.codomain, self.domain, self.batched, f"{self.name}.H"
        )

    def _linked(self, key: str, make: Callable[[], LinearOperator]) -> LinearOperator:
        found = self.__dict__.get(key)
        if found is None:
            found = make()
            self.__dict__[key] = found
            found.__dict__.setdefault(key, self)
        return found


def _freezing(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def wrapped(self: Operator, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if type(self).__init__ is wrapped:
            self.__dict__["_frozen"] = True

    return wrapped


@functools.cache
def _cached_names(cls: type) -> frozenset[str]:
    return frozenset(
        name
        for base in cls.__mro__
        for name, value in vars(base).items()
        if isinstance(value, cached_property)
    )


def _match_rule(rule: Rule, domain: AnySpace, codomain: AnySpace, name: str) -> None:
    for members, space, side in ((rule.domain, domain, "left"), (rule.codomain, codomain, "right")):
        counts = [len(member) for member in members]
        wanted = [member.ndim for member in space.members]
        if counts != wanted:
            raise ShapeError(
                f"{name}: rule '{rule}' names {counts} axes on the {side}, the space {space} has "
                f"{wanted}"
            )


def _rule_without_splits(operator: Operator) -> Rule:
    taken: set[str] = set()

    def side(space: AnySpace, letter: str) -> str:
        members = []
        for m, member in enumerate(space.members):
            names = member.axes or tuple(f"{letter}{m}_{i}" for i in range(member.ndim))
            members.append(" ".join(f"{name}!" for name in names))
            taken.update(names)
        return ", ".join(members)

    return Rule.parse(f"{side(operator.domain, 'i')} -> {side(operator.codomain, 'o')}")


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
