"""The norm of an operator: in closed form where one is known, else by Lanczos bidiagonalisation."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np

from linops.algebra.origins import check_tree
from linops.linear_operator import LinearOperator

__all__ = ["NormInfo", "known_norm", "norm"]


class NormInfo(NamedTuple):
    """What `A.norm(return_info=True)` found.

    `value` is never above the norm but for rounding; `relative_residual` is
    `|A.H A v - value^2 v| / value^2` of its right singular vector v.
    """

    value: float
    relative_residual: float
    iterations: int
    converged: bool


def known_norm(operator: LinearOperator) -> float | None:
    """The norm where it is known without applying the operator."""
    if operator.domain.size == 0 or operator.codomain.size == 0:
        return 0.0
    whole = operator._identity()
    found = None
    for form in (operator, whole) if whole is not operator else (operator,):
        if found is None and isinstance(form, LinearOperator):
            found = form._known_norm()
    return 1.0 if found is None and "unitary" in operator.tags else found


def norm(
    operator: LinearOperator, iterations: int, rtol: float, seed: int, return_info: bool
) -> float | NormInfo:
    """The largest singular value of `operator`."""
    check_tree(operator)
    known = known_norm(operator)
    if known is not None:
        return NormInfo(known, 0.0, 0, True) if return_info else known
    info = _bidiagonalize(operator, iterations, rtol, seed)
    if not info.converged:
        warnings.warn(
            f"{operator.name}.norm() has not converged after {info.iterations} iterations "
            f"(relative residual {info.relative_residual:.1e}); the value is a lower bound",
            RuntimeWarning,
            stacklevel=4,
        )
    return info if return_info else info.value


def _bidiagonalize(operator: LinearOperator, iterations: int, rtol: float, seed: int) -> NormInfo:
    """Golub, Kahan 1965: `A V = U B` and `A.H U = V B.T + beta v e.T` with B upper bidiagonal.

    The largest singular value of B climbs to that of A, far faster than powers of `A.H A`. No
    vectors are kept: where rounding makes V lose its orthogonality, values of B come twice, and
    the largest stays what it is (Paige 1971).
    """
    rows, columns, adjoint = operator.codomain, operator.domain, operator.H
    v = columns.random(seed)
    v = _over(v, columns.norm(v))
    u: Any = None
    diagonal: list[float] = []
    above: list[float] = []
    value, residual, beta, looked = 0.0, math.inf, 0.0, 0
    for step in range(1, iterations + 1):
        u = operator(v) if u is None else _less(operator(v), beta, u)
        alpha = float(rows.norm(u))
        diagonal.append(alpha)
        if not math.isfinite(alpha):
            return NormInfo(alpha, math.inf, step, False)
        if alpha:
            u = _over(u, alpha)
            v = _less(adjoint(u), alpha, v)
            beta = float(columns.norm(v))
        else:
            beta = 0.0  # what was found is an invariant subspace
        if step >= looked + 1 + looked // 8 or step == iterations or beta == 0:
            looked = step  # ever more rarely: it costs the cube of the steps
            left, values, _ = np.linalg.svd(np.diag(diagonal) + np.diag(above, 1))
            value = float(values[0])
            residual = beta * abs(float(left[-1, 0])) / value if value else 0.0
            if residual <= rtol:
                return NormInfo(value, residual, step, True)
        above.append(beta)
        v = _over(v, beta)
    return NormInfo(value, residual, iterations, False)


def _over(x: Any, length: float) -> Any:
    """`x / length` for a length that float32 may not hold the inverse of; x where it is 0."""
    if isinstance(x, tuple):
        return tuple(_over(part, length) for part in x)
    return x / length if length else x


def _less(x: Any, factor: float, y: Any) -> Any:
    """`x - factor y`."""
    if isinstance(x, tuple):
        return tuple(_less(a, factor, b) for a, b in zip(x, y, strict=True))
    return x - factor * y
