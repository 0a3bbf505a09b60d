"""An operator on a subset of its codomain along one axis: the views of an ordered subset, say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from linops.algebra.blocks import axis_name
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.space import Space

__all__ = ["rows"]


def rows(operator: LinearOperator, index: Sequence[int], axis: str | int = 0) -> LinearOperator:
    """`operator.rows(index, axis)`: the leaf's own way, else its blocks, joined in order."""
    from linops.algebra.concatenation import concat

    if not isinstance(operator.codomain, Space):
        raise ShapeError(
            f"{operator.name}.rows wants a plain codomain, not a product; take the rows of a "
            "member operator"
        )
    name = axis_name(operator, axis)
    names = [a.name for a in operator.rule.codomain[0]]
    if name not in names:
        raise ShapeError(f"{operator.name}.rows: {name!r} is no axis of its codomain, {names} are")
    extent = operator.codomain.shape[names.index(name)]
    planes = np.asarray(index)
    if planes.ndim != 1 or planes.dtype.kind not in "iu":
        raise ShapeError(f"{operator.name}.rows takes a list of whole numbers, got {index!r}")
    if planes.size and not (planes.min() >= 0 and planes.max() < extent):
        raise ShapeError(
            f"{operator.name}.rows: axis {name!r} has planes 0 to {extent - 1}, got "
            f"{int(planes.min())} to {int(planes.max())}"
        )
    own = operator._select_rows(name, planes)
    if own is not None:
        return own
    starts = np.flatnonzero(np.diff(planes, prepend=planes[:1] - 2) != 1)
    stops = [*starts[1:], len(planes)]
    blocks: list[Any] = [
        operator.block(name, int(planes[a]), int(planes[b - 1]) + 1)
        for a, b in zip(starts, stops, strict=True)
    ]
    if not blocks:
        return operator.block(name, 0, 0)  # type: ignore[return-value]
    return blocks[0] if len(blocks) == 1 else concat(blocks, names.index(name))
