"""What needs whole rows or columns: the dense matrix, the diagonal, the norm."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np

from linops import arrays
from linops.algebra.origins import check_tree
from linops.errors import ShapeError
from linops.operator import LinearOperator
from linops.space import ProductSpace, Space

__all__ = ["NormInfo", "diagonal", "norm", "to_dense"]

_BATCH_BYTES = 1 << 26


class NormInfo(NamedTuple):
    """What `A.norm(return_info=True)` found."""

    value: float
    relative_residual: float
    iterations: int
    converged: bool


def to_dense(operator: LinearOperator, limit: int | None) -> np.ndarray:
    """The matrix of `operator`, basis vector by basis vector."""
    rows, count = operator.shape
    if limit is not None and rows * count > limit:
        raise ShapeError(
            f"{operator.name}.to_dense() would hold {rows} x {count} = {rows * count} entries, "
            f"over the limit of {limit}; pass limit=None if that is meant"
        )
    dense = np.empty((rows, count), operator.codomain.dtype)
    step = max(1, _BATCH_BYTES // max(1, 16 * (rows + count)))
    for start in range(0, count, step):
        stop = min(start + step, count)
        basis = np.zeros((stop - start, count), operator.domain.dtype)
        basis[np.arange(stop - start), np.arange(start, stop)] = 1
        columns = operator(_element(operator.domain, basis))
        dense[:, start:stop] = arrays.to_numpy(operator.codomain.ravel(columns)).T
    return dense


def diagonal(operator: LinearOperator, limit: int | None) -> Any:
    """The diagonal of `operator`, shaped like its domain."""
    if operator.domain.shape != operator.codomain.shape:
        raise ShapeError(
            f"only a square operator has a diagonal; {operator.name} maps {operator.domain} to "
            f"{operator.codomain}"
        )
    check_tree(operator)
    own = operator._diagonal()
    if own is not None:
        return own
    count = operator.domain.size
    if limit is not None and count > limit:
        raise ShapeError(
            f"the diagonal of {operator.name} is not known in closed form; probing it takes "
            f"{count} applies, over the limit of {limit}: pass limit=None if that is meant"
        )
    found = np.empty(count, operator.codomain.dtype)
    step = max(1, _BATCH_BYTES // max(1, 32 * count))
    for start in range(0, count, step):
        stop = min(start + step, count)
        basis = np.zeros((stop - start, count), operator.domain.dtype)
        picked = (np.arange(stop - start), np.arange(start, stop))
        basis[picked] = 1
        y = operator.codomain.ravel(operator(_element(operator.domain, basis)))
        found[start:stop] = arrays.to_numpy(y)[picked]
    return operator.codomain.unravel(found)


def norm(
    operator: LinearOperator, iterations: int, rtol: float, seed: int, return_info: bool
) -> float | NormInfo:
    """The largest singular value of `operator` by the power method on `A.H @ A`."""
    known = operator._known_norm()
    if known is not None:
        return NormInfo(known, 0.0, 0, True) if return_info else known
    info = _power_method(operator, iterations, rtol, seed)
    if not info.converged:
        warnings.warn(
            f"{operator.name}.norm() has not converged after {info.iterations} iterations "
            f"(relative residual {info.relative_residual:.1e}); the value is a lower bound",
            RuntimeWarning,
            stacklevel=4,
        )
    return info if return_info else info.value


def _power_method(operator: LinearOperator, iterations: int, rtol: float, seed: int) -> NormInfo:
    domain = operator.domain
    if domain.size == 0 or operator.codomain.size == 0:
        return NormInfo(0.0, 0.0, 0, True)
    x = _scaled(domain, domain.random(seed), 1.0)
    adjoint, value, residual = operator.H, 0.0, math.inf
    for step in range(1, iterations + 1):
        # Two norms in float64 keep 1e-12 * A as accurate as A: nothing is squared.
        y = operator(x)
        size = operator.codomain.norm(y)
        if size == 0:
            return NormInfo(0.0, 0.0, step, True)
        z = adjoint(_scaled(operator.codomain, y, 1.0))
        found = domain.norm(z)
        value = found
        residual = _distance(domain, z, x, found) if found else 0.0
        if residual <= rtol or found == 0:
            return NormInfo(float(max(value, size)), residual, step, True)
        x = _scaled(domain, z, 1.0)
    return NormInfo(float(value), residual, iterations, False)


def _element(space: Any, flat: np.ndarray) -> Any:
    """A batch of flat vectors as one of elements, each member in its own dtype."""
    x = space.unravel(flat)
    if not isinstance(space, ProductSpace):
        return x
    return tuple(
        arrays.cast(part.real if part.dtype.kind == "c" and not member.is_complex else part,
                    member.dtype)
        for part, member in zip(x, space.spaces, strict=True)
    )  # fmt: skip


def _scaled(space: Any, x: Any, target: float) -> Any:
    size = space.norm(x)
    factor = target / size if size else 0.0
    if isinstance(space, ProductSpace):
        return tuple(part * factor for part in x)
    return x * factor


def _distance(space: Space | ProductSpace, z: Any, x: Any, found: float) -> float:
    """How far `z / |z|` is from `x`."""
    parts = zip(
        z if isinstance(z, tuple) else (z,), x if isinstance(x, tuple) else (x,), strict=True
    )
    difference = tuple(part / found - other for part, other in parts)
    return float(space.norm(difference if isinstance(space, ProductSpace) else difference[0]))
