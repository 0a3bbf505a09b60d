"""What needs whole rows or columns: the dense matrix and the diagonal."""

from __future__ import annotations

from typing import Any

import numpy as np

from linops import arrays
from linops.algebra.origins import check_tree
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.space import ProductSpace

__all__ = ["diagonal", "to_dense"]

_BATCH_BYTES = 1 << 26


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
