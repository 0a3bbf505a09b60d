"""Sums along axes: `SumOver`, whose adjoint repeats a value along them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.axes import axis_numbers, numbered
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = ["SumOver"]

_CHUNK = 32


class SumOver(LinearOperator):
    """The sum along some axes, which the result no longer has.

    Parameters
    ----------
    space
        The domain.
    axes
        By name or number; all of them where they are not given.

    Raises
    ------
    ShapeError
        Where an axis is not there, or named twice.

    Notes
    -----
    NumPy sums run in float64 and are rounded once; other namespaces sum in blocks, so that the
    error does not grow with the extent.
    """

    batched = True
    blockwise = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True
    domain: Space
    codomain: Space

    def __init__(self, space: Space, axes: str | int | Sequence[str | int] | None = None) -> None:
        if not isinstance(space, Space):
            raise ShapeError("SumOver takes one array: pick a member of the product space first")
        axes = tuple(range(space.ndim)) if axes is None else axes
        numbers = tuple(sorted(axis_numbers(space, axes, "SumOver")))
        kept = [i for i in range(space.ndim) if i not in numbers]
        codomain = Space(
            tuple(space.shape[i] for i in kept),
            space.dtype,
            None if space.axes is None else tuple(space.axes[i] for i in kept),
            None if space.spacing is None else tuple(space.spacing[i] for i in kept),
        )
        names = space.axes or tuple(numbered(space.ndim))
        rule = Rule((tuple(map(Axis, names)),), (tuple(Axis(names[i]) for i in kept),))
        super().__init__(space, codomain, rule, tags=("nonnegative",))
        self._numbers = numbers

    def _apply(self, x: Array) -> Array:
        axes = tuple(i - len(self.domain.shape) for i in self._numbers)
        if not axes:
            return x + 0  # a result of its own
        if type(x) is np.ndarray:
            dtype = np.float64 if x.dtype.kind == "f" else np.complex128
            return np.asarray(np.sum(x, axis=axes, dtype=dtype), x.dtype)
        for axis in axes:
            x = _blocked_sum(x, axis)
        return _squeeze(x, axes)

    def _apply_adjoint(self, y: Array) -> Array:
        return _repeat(y, self.domain.shape, self._numbers)

    def _gram_diagonal(self, weights: Array | None) -> Array:
        return self.domain.ones() if weights is None else self._apply_adjoint(weights)

    def _cost(self) -> Cost:
        streaming = Cost.streaming(self.domain, self.codomain, float(self.domain.size))
        return replace(streaming, adjoint=streaming.read)  # zeros of the full shape


def _blocked_sum(x: Array, axis: int) -> Array:
    """The sum along a negative axis, kept with extent 1, in blocks of blocks."""
    xp = arrays.namespace(x)
    number = x.ndim + axis
    while x.shape[number] > _CHUNK:
        n = x.shape[number]
        x = arrays.widen(x, axis, 0, -n % _CHUNK)
        shape = tuple(x.shape)
        split = (*shape[:number], shape[number] // _CHUNK, _CHUNK, *shape[number + 1 :])
        x = xp.sum(xp.reshape(x, split), axis=number + 1)
    return xp.sum(x, axis=number, keepdims=True)


def _squeeze(x: Array, axes: tuple[int, ...]) -> Array:
    xp = arrays.namespace(x)
    kept = tuple(n for i, n in enumerate(x.shape) if i - x.ndim not in axes)
    return xp.reshape(x, kept)


def _repeat(y: Array, shape: tuple[int, ...], numbers: tuple[int, ...]) -> Array:
    """`y` with axes `numbers` of `shape` put back, its values repeated along them."""
    xp = arrays.namespace(y)
    batch = tuple(y.shape)[: y.ndim - (len(shape) - len(numbers))]
    thin = tuple(1 if i in numbers else n for i, n in enumerate(shape))
    y = xp.reshape(y, (*batch, *thin))
    # Adding zeros of the full shape repeats the values into memory of their own.
    return y + arrays.zeros((*batch, *shape), arrays.dtype_of(y), y)
