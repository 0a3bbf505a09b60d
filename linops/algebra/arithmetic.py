"""What `@ + - * / **` do: spaces are reconciled, trees flattened, neighbors rewritten.

Spaces that differ only in dtype meet: real and complex by complex extension of the real one, two
precisions by a `Cast`. Spaces that differ in shape raise.
"""

from __future__ import annotations

import operator as python_operator
from typing import Any

import numpy as np

from linops import arguments, arrays
from linops.algebra import placed
from linops.algebra.complexify import complexify
from linops.algebra.composition import Composition, Product, flat_product
from linops.algebra.origins import watch
from linops.algebra.rewrite import PRODUCT_RULES, SCALE_RULES, SUM_RULES, extend
from linops.algebra.scaled import Scaled, ScaledLinear, as_scalar, is_complex, is_scalar
from linops.algebra.sums import Sum
from linops.elementary.identity import Cast, Identity
from linops.elementary.matrix import Matrix, is_sparse
from linops.errors import DTypeError, ShapeError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.space import AnySpace, ProductSpace

__all__ = [
    "add",
    "as_operator",
    "compose",
    "divide",
    "is_wrapped",
    "matmul",
    "multiply",
    "power",
    "rmatmul",
    "scale",
    "subtract",
]


_BOTH = ("domain", "codomain")


def as_operator(value: Any) -> LinearOperator:
    """A `LinearOperator` from one, from a matrix, or from a SciPy or PyLops operator.

    Raises
    ------
    TypeError
        For anything else.
    """
    if isinstance(value, LinearOperator):
        return value
    if is_sparse(value) or (arrays.is_array(value) and value.ndim == 2):
        return Matrix(value)
    if _is_foreign(value):
        from linops.interop.foreign import from_foreign

        foreign: LinearOperator = from_foreign(value)
        return foreign
    raise arguments.wrong(
        "an operator's arithmetic",
        "operand",
        value,
        "a linear operator, a matrix, or a SciPy or PyLops operator",
        "wrap functions with linops.from_functions",
    )


def is_wrapped(value: Any) -> bool:
    """Whether `value` can only mean an operator: a NumPy or sparse matrix, or one of SciPy or
    PyLops. A plain array may be an element too."""
    return isinstance(value, np.matrix) or is_sparse(value) or _is_foreign(value)


def matmul(left: Operator, right: Any) -> Any:
    """`left @ right`: composition with an operator, application to anything else."""
    if isinstance(right, Operator):
        return compose(left, right)
    if is_wrapped(right) or _is_matrix_within(left, right):
        return compose(left, as_operator(right))
    if not left.linear:
        raise TypeError(
            f"{left.name} is not linear: apply it as a function, N(x); '@' composes operators"
        )
    return left(right)


def rmatmul(right: Operator, left: Any) -> Any:
    """`left @ right` for a `left` that is no operator of ours: `array @ A` is `A.T @ array`."""
    if not isinstance(right, LinearOperator):
        return matmul(as_operator(left), right)
    if is_wrapped(left):
        return compose(as_operator(left), right)
    return right.T(left)


def compose(outer: Operator, inner: Operator) -> Any:
    """`outer @ inner`, simplified."""
    if outer.domain.shape != inner.codomain.shape:
        raise ShapeError(
            f"cannot compose {outer.name} @ {inner.name}: {outer.name} takes "
            f"{outer.domain.describe_shape()}, {inner.name} gives "
            f"{inner.codomain.describe_shape()}{_axis_hint(outer.domain, inner.codomain)}\n"
            f"  {outer!r}\n  {inner!r}"
        )
    outer, inner = placed.chained(outer, inner)
    # Over the reals only real scalars commute, so complex ones stay where they are.
    a, left = _unscale(outer, inner)
    b, right = _unscale(inner, outer)
    left, right, casts = _meet(left, right)
    terms, more = list(Composition.terms_in(left)), list(Composition.terms_in(right))
    if left._kind == "functional":
        # What stands inside of it stays one operator, with its adjoint and what it remembers.
        terms, more = terms[:1], [compose(terms[1], right) if terms[1:] else right]
    if casts:
        extend(terms, casts, PRODUCT_RULES)
    extend(terms, more, PRODUCT_RULES)
    product = (
        Product(terms) if left.linear and right.linear and terms[1:] else Composition.of(terms)
    )
    scalar = _scalar_product(a, b)
    return product if scalar is None else scale(scalar, product)


def add(a: Any, b: Any) -> Any:
    """`a + b`."""
    if _is_nought(a):
        return _any_operator(b)
    if _is_nought(b):
        return _any_operator(a)
    left, right = _any_operator(a), _any_operator(b)
    linear = left.linear and right.linear
    for side in _BOTH:
        x, y = getattr(left, side), getattr(right, side)
        if x.shape != y.shape:
            raise ShapeError(
                f"cannot add {left.name} and {right.name}: their {side}s are "
                f"{x.describe_shape()} and {y.describe_shape()}{_axis_hint(x, y)}"
            )
        if not linear and x.dtype != y.dtype:
            raise ShapeError(
                f"cannot add {left.name} and {right.name}: their {side}s are {x} and {y}; build "
                "them on one space"
            )
    sides = _BOTH[:1] if left._kind == right._kind == "functional" else _BOTH
    left, right = placed.meeting([left, right], sides, "add")
    if linear:
        left, right = _same_field(left, right)
    terms = list(Sum.terms_in(left))
    extend(terms, Sum.terms_in(right), SUM_RULES)
    return terms[0] if len(terms) == 1 else Sum.of(terms)


def subtract(a: Any, b: Any) -> Any:
    """`a - b`."""
    if _is_nought(b):
        return _any_operator(a)
    return add(a, scale(-1, _any_operator(b)))


def multiply(scalar: Any, operator: Operator) -> Any:
    """`scalar * operator`; anything that is no scalar raises and names `@`."""
    if not is_scalar(scalar):
        raise TypeError(
            f"'*' takes a scalar, got {type(scalar).__name__}: "
            + Scaled._kinds[operator._kind].advice
        )
    return scale(scalar, operator)


def divide(operator: Operator, scalar: Any) -> Any:
    """`operator / scalar`; anything that is no scalar raises and names the solvers."""
    if not is_scalar(scalar):
        raise TypeError(
            f"'/' takes a scalar, got {type(scalar).__name__}: to solve A x = y call a solver, "
            "such as solvers.cgls(A, y, iterations=...)"
        )
    value = as_scalar(scalar)
    return watch(scale(1 / value, operator), [value])


def scale(scalar: Any, operator: Operator) -> Any:
    """`scalar * operator`, merged with a scalar that is there already."""
    if is_complex(scalar) and isinstance(operator, LinearOperator):
        if "real_linear" in operator.tags and operator.codomain.is_complex:
            outside = ScaledLinear(as_scalar(scalar), Identity(operator.codomain))
            return flat_product([outside, operator])
    kind: type[Scaled] = Scaled._kinds[operator._kind]
    value, operator = kind.admitted(scalar, operator)
    if isinstance(operator, Scaled):
        if not (arrays.trainable(value) or arrays.trainable(operator.scalar)):
            return scale(value * operator.scalar, operator.base)
    for rule in SCALE_RULES:
        found = rule(value, operator)
        if found is not None:
            return found
    return kind(value, operator)


def power(operator: Operator, exponent: Any) -> Any:
    """`operator ** n` for a whole n >= 0; `A ** 0` is the identity."""
    try:
        n = python_operator.index(exponent)
    except TypeError:
        raise TypeError(f"'**' takes a whole number, got {exponent!r}") from None
    if n < 0:
        raise ValueError(f"'**' takes a number >= 0, got {n}: to invert, call a solver")
    if operator.domain.shape != operator.codomain.shape:
        raise ShapeError(
            f"'**' takes a square operator, {operator.name} maps {operator.domain} to "
            f"{operator.codomain}"
        )
    result: Any = Identity(operator.domain)
    for _ in range(n):
        result = matmul(operator, result)
    return result


def _is_nought(value: Any) -> bool:
    return not isinstance(value, Operator) and is_scalar(value) and bool(value == 0)


def _any_operator(value: Any) -> Operator:
    return value if isinstance(value, Operator) else as_operator(value)


def _unscale(operator: Any, beside: Operator) -> tuple[Any, Any]:
    if operator._node is not Scaled:
        return None, operator
    if operator._kind == "functional":
        return operator.scalar, operator.base
    if arrays.trainable(operator.scalar) or not (operator.linear and beside.linear):
        return None, operator
    if not isinstance(operator.scalar, (int, float)):
        if "real_linear" in operator.tags or "real_linear" in beside.tags:
            return None, operator
    return operator.scalar, operator.base


def _scalar_product(a: Any, b: Any) -> Any:
    if a is None:
        return b
    return a if b is None else a * b


def _meet(outer: Any, inner: Any) -> tuple[Any, Any, list[Operator]]:
    """Both in one field, and the cast between them where their precisions differ."""
    linear = outer.linear and inner.linear
    if linear and outer.domain.is_complex != inner.codomain.is_complex:
        if outer.domain.is_complex:
            inner = complexify(inner)
        else:
            outer = complexify(outer)
    pairs = list(zip(outer.domain.members, inner.codomain.members, strict=True))
    if all(a.dtype == b.dtype for a, b in pairs):
        return outer, inner, []
    for number, (a, b) in enumerate(pairs):
        if a.is_complex != b.is_complex:
            raise DTypeError(
                f"cannot compose {outer.name} @ {inner.name}: member {number} is {b.dtype} in what "
                f"{inner.name} gives and {a.dtype} in what {outer.name} takes; "
                + (
                    f"{inner.name} mixes real and complex members, which have no complex extension"
                    if linear
                    else f"build {outer.name} on the space {inner.codomain}"
                )
            )
    neighbors = Composition.terms_in(outer)[-1], Composition.terms_in(inner)[0]
    if outer._kind != "functional" and not (neighbors[0].linear and neighbors[1].linear):
        raise ShapeError(
            f"cannot compose {outer.name} @ {inner.name}: {outer.name} takes {outer.domain}, "
            f"{inner.name} gives {inner.codomain}"
        )
    return outer, inner, [Cast(inner.codomain, _with_dtypes(inner.codomain, outer.domain))]


def _with_dtypes(space: AnySpace, model: AnySpace) -> AnySpace:
    members = [m.with_dtype(o.dtype) for m, o in zip(space.members, model.members, strict=True)]
    return ProductSpace(members) if isinstance(space, ProductSpace) else members[0]


def _same_field(a: LinearOperator, b: LinearOperator) -> tuple[LinearOperator, LinearOperator]:
    """Both between real spaces or both between complex ones, and in one precision."""
    fields = [(term.domain.is_complex, term.codomain.is_complex) for term in (a, b)]
    if fields[0] != fields[1]:
        a, b = complexify(a), complexify(b)
    return _same_precision(a, b)


def _same_precision(a: LinearOperator, b: LinearOperator) -> tuple[LinearOperator, LinearOperator]:
    def fitted(operator: LinearOperator, domain: AnySpace, codomain: AnySpace) -> LinearOperator:
        terms = [operator]
        if operator.codomain.dtype != codomain.dtype:
            terms.insert(0, Cast(operator.codomain, operator.codomain.with_dtype(codomain.dtype)))
        if operator.domain.dtype != domain.dtype:
            terms.append(Cast(operator.domain.with_dtype(domain.dtype), operator.domain))
        return flat_product(terms)

    def wider(x: AnySpace, y: AnySpace) -> AnySpace:
        return x if np.result_type(x.dtype, y.dtype) == x.dtype else y

    if a.domain.dtype == b.domain.dtype and a.codomain.dtype == b.codomain.dtype:
        return a, b
    domain, codomain = wider(a.domain, b.domain), wider(a.codomain, b.codomain)
    return fitted(a, domain, codomain), fitted(b, domain, codomain)


def _is_foreign(value: Any) -> bool:
    return (
        not isinstance(value, Operator)
        and not arrays.is_array(value)
        and hasattr(value, "matvec")
        and hasattr(value, "shape")
        and hasattr(value, "dtype")
    )


def _is_matrix_within(functional: Operator, value: Any) -> bool:
    """Whether an array can only be the matrix of an operator inside of a functional."""
    return (
        functional._kind == "functional"
        and arrays.is_array(value)
        and value.ndim == 2
        and functional.domain.shape == tuple(value.shape[:1])
    )


def _axis_hint(a: AnySpace, b: AnySpace) -> str:
    if len(a.members) != 1 or len(b.members) != 1:
        return ""
    x, y = a.members[0], b.members[0]
    if x.ndim != y.ndim:
        return f": {x.ndim} axes against {y.ndim}"
    names = x.axes or tuple(f"axis {i}" for i in range(x.ndim))
    differ = [names[i] for i in range(x.ndim) if x.shape[i] != y.shape[i]]
    return f": they differ along {', '.join(differ)}" if differ else ""
