"""Patches of an array: windows at regular places, read out, added back, or averaged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from linops import arguments, arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.axes import axis_numbers, numbered, resized_one
from linops.elementary.crop_pad import Crop
from linops.elementary.diagonal import Diagonal
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.precision import real_of
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = ["Patches"]


class Patches(LinearOperator):
    """Windows of some axes, one every few planes; the adjoint adds them back where they were.

    Parameters
    ----------
    space
        The domain.
    size
        Planes of a window, one number or one for each of `axes`.
    stride
        Planes from one window to the next, as `size`; 1 by default.
    axes
        By name or number; all of them where they are not given.

    Raises
    ------
    ShapeError
        Where sizes and axes do not fit, or a window is longer than its axis.

    Notes
    -----
    The codomain has, in the place of each axis of n planes, `(n - size) // stride + 1` windows,
    and behind all of them the planes within a window, as `skimage.util.view_as_windows` orders
    them. Planes after the last whole window are in none.

    >>> import numpy as np
    >>> P = Patches(Space(5), 3, 2)
    >>> P @ np.arange(5, dtype="float32")
    array([[0., 1., 2.],
           [2., 3., 4.]], dtype=float32)
    >>> P.average() @ (P @ np.arange(5, dtype="float32"))
    array([0., 1., 2., 3., 4.], dtype=float32)
    """

    batched = True
    blockwise = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True
    domain: Space
    codomain: Space

    @arguments.checked
    def __init__(
        self,
        space: Space,
        size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        axes: str | int | Sequence[str | int] | None = None,
    ) -> None:
        numbers = axis_numbers(space, range(space.ndim) if axes is None else axes, "Patches")
        sizes, strides = (_each(given, len(numbers)) for given in (size, stride))
        extents = [space.shape[i] for i in numbers]
        if min((*sizes, *strides), default=1) < 1 or any(
            m > n for m, n in zip(sizes, extents, strict=True)
        ):
            raise ShapeError(
                f"Patches: sizes {sizes} are 1 to the {extents} planes of the axes, and strides 1 "
                f"or more, got strides {strides}"
            )
        names = list(space.axes or numbered(space.ndim))
        shape, right = list(space.shape), list(names)
        for i, m, s in zip(numbers, sizes, strides, strict=True):
            shape[i] = (shape[i] - m) // s + 1
            right[i] = f"patch_{names[i]}"
        right += [f"in_{names[i]}" for i in numbers]
        left = tuple(Axis(name, splits=i not in numbers) for i, name in enumerate(names))
        inside = len(names)
        rule = Rule((left,), (tuple(Axis(n, splits=i < inside) for i, n in enumerate(right)),))
        codomain = Space((*shape, *sizes), space.dtype, right if space.axes else None)
        super().__init__(space, codomain, rule, tags=("nonnegative",))
        self._numbers, self._sizes, self._strides = numbers, sizes, strides

    def average(self) -> LinearOperator:
        """From patches to the mean, in every plane, of the patches that hold it; 0 where none do.

        `P.average() @ (P @ x)` is x wherever a patch is.
        """
        counts = self._gram_diagonal(None)
        weights = np.where(counts > 0, 1 / np.maximum(counts, 1), 0)
        averages: LinearOperator = Diagonal(weights, self.domain) @ self.H
        return averages

    def _apply(self, x: Array) -> Array:
        xp, d = arrays.namespace(x), self.domain.ndim
        for k, (i, m, s) in enumerate(self._along()):
            axis, count = x.ndim - d - k + i, self.codomain.shape[i]
            # Windows are runs of blocks as long as the stride.
            runs = -(-m // s)
            blocks = _resized(x, axis, (count + runs - 1) * s)
            blocks = xp.reshape(blocks, _split(blocks, axis, (count + runs - 1, s)))
            place = axis - blocks.ndim
            parts = [arrays.narrow(blocks, place, q, q + count) for q in range(runs)]
            x = xp.concat(parts, axis=axis + 1) if runs > 1 else parts[0]
            x = xp.moveaxis(arrays.narrow(x, axis + 1 - x.ndim, 0, m), axis + 1, -1)
        return x + 0

    def _apply_adjoint(self, y: Array) -> Array:
        xp, d = arrays.namespace(y), self.domain.ndim
        for k, (i, m, s) in reversed(list(enumerate(self._along()))):
            axis, count = y.ndim - 1 - d - k + i, self.codomain.shape[i]
            y = xp.moveaxis(y, -1, axis + 1)
            runs, total = -(-m // s), None
            y = _resized(y, axis + 1, runs * s)
            for q in range(runs):
                part = arrays.narrow(y, axis + 1 - y.ndim, q * s, (q + 1) * s)
                part = arrays.widen(part, axis - part.ndim, q, runs - 1 - q)
                total = part if total is None else total + part
            length = (count + runs - 1) * s
            shape = (*total.shape[:axis], length, *total.shape[axis + 2 :])  # type: ignore[union-attr]
            y = _resized(xp.reshape(total, shape), axis, self.domain.shape[i])
        return y + 0

    def _gram_diagonal(self, weights: Array | None) -> Array:
        real = self._with(
            domain=self.domain.with_dtype(real_of(self.domain.dtype)),
            codomain=self.codomain.with_dtype(real_of(self.domain.dtype)),
        )
        return real._apply_adjoint(real.codomain.ones() if weights is None else weights)

    def _known_norm(self) -> float | None:
        return math.sqrt(float(np.max(self._gram_diagonal(None), initial=0.0)))

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Any:
        names = [a.name for a in self.rule.codomain[0]]
        i = names.index(axis)
        if i not in self._numbers:
            return super()._block(axis, start, stop, padded)
        k = self._numbers.index(i)
        lo, count = start * self._strides[k], stop - start
        extent = (count - 1) * self._strides[k] + self._sizes[k]
        if padded or not count:
            return None
        crop = Crop(self.domain, {i: (lo, lo + extent)})
        inner = self._with(domain=crop.codomain, codomain=resized_one(self.codomain, i, count))
        return inner @ crop

    def _cost(self) -> Cost:
        return Cost.streaming(self.domain, self.codomain, 0.0)

    def _along(self) -> list[tuple[int, int, int]]:
        """Axis, size and stride, the last axis first: sizes are put behind in this order."""
        return list(zip(self._numbers, self._sizes, self._strides, strict=True))


def _each(given: int | Sequence[int], count: int) -> tuple[int, ...]:
    several = (given,) * count if isinstance(given, int) else tuple(map(int, given))
    if len(several) != count:
        raise ShapeError(
            f"Patches: one number, or one for each of the {count} axes, got {len(several)}"
        )
    return several


def _resized(x: Array, axis: int, extent: int) -> Array:
    """`x` with as many planes along an axis, cut off or followed by zeros."""
    n, place = int(x.shape[axis]), axis - x.ndim
    if extent <= n:
        return arrays.narrow(x, place, 0, extent)
    return arrays.widen(x, place, 0, extent - n)


def _split(x: Array, axis: int, extents: tuple[int, ...]) -> tuple[int, ...]:
    return (*x.shape[:axis], *extents, *x.shape[axis + 1 :])
