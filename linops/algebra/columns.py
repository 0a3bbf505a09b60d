"""An operator on a subset of its domain, at a cost in proportion where the leaf knows how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from linops import arrays
from linops.algebra.origins import check_tree, derived
from linops.elementary.select import Scatter, indexed_axes
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.space import Space

__all__ = ["columns"]


def columns(
    operator: LinearOperator, index: Any, axes: str | int | Sequence[str | int] | None = None
) -> LinearOperator:
    """`operator.columns(index, axes)`: the leaf's own way, else `operator @ Scatter`."""
    from linops.algebra.arithmetic import compose

    if not isinstance(operator.domain, Space):
        raise ShapeError(
            f"{operator.name}.columns wants a plain domain, not a product; take the columns of a "
            "member operator"
        )
    scatter = Scatter(operator.domain, index, axes)
    check_tree(operator)
    own = operator._columns(scatter.index, indexed_axes(operator.domain, axes))
    if own is not None and arrays.is_array(scatter.index) and not derived(own, [operator]):
        return own
    composed: LinearOperator = compose(operator, scatter)
    return composed
