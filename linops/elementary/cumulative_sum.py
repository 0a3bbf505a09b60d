"""Running sums along an axis: `CumulativeSum`, whose adjoint runs from the other end."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.elementary.axes import axis_number, numbered
from linops.linear_operator import LinearOperator
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = ["CumulativeSum"]


class CumulativeSum(LinearOperator):
    """`y[i] = x[0] + ... + x[i]` along one axis.

    Parameters
    ----------
    space
        Domain and codomain.
    axis
        By name or number; the last by default.

    Raises
    ------
    ShapeError
        Where the axis is not there.

    Notes
    -----
    NumPy sums run in float64 and are rounded once.
    """

    batched = True
    blockwise = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True
    domain: Space

    def __init__(self, space: Space, axis: str | int = -1) -> None:
        number = axis_number(space, axis)
        names = space.axes or tuple(numbered(space.ndim))
        row = tuple(Axis(name, splits=i != number) for i, name in enumerate(names))
        super().__init__(space, space, Rule((row,), (row,)), tags=("nonnegative",))
        self._axis = number - space.ndim

    def _apply(self, x: Array) -> Array:
        if type(x) is np.ndarray:
            wide = np.float64 if x.dtype.kind == "f" else np.complex128
            return np.cumsum(x, axis=self._axis, dtype=wide).astype(x.dtype, copy=False)
        return arrays.namespace(x).cumulative_sum(x, axis=self._axis)

    def _apply_adjoint(self, y: Array) -> Array:
        xp = arrays.namespace(y)
        return xp.flip(self._apply(xp.flip(y, axis=self._axis)), axis=self._axis)

    def _known_norm(self) -> float:
        """The largest singular value, `1 / (2 sin(pi / (4 n + 2)))`."""
        n = self.domain.shape[self._axis]
        return float(1 / (2 * np.sin(np.pi / (4 * n + 2)))) if self.domain.size else 0.0
