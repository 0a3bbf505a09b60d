"""The same entries under another shape: `Reshape` keeps their order, `Transpose` turns the axes.

Both are permutations of the entries at most, so they are unitary and their adjoints undo them.
Sums over axes are in `linops/elementary/reduce.py`, ranges of planes in `windows.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from linops import arrays
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.axes import axis_number, numbered
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.rule import Axis, Relation, Rule
from linops.space import Space

__all__ = ["Reshape", "Transpose"]

_Moved = TypeVar("_Moved", "Reshape", "Transpose")


class Reshape(LinearOperator):
    """The entries in C order under another shape.

    Parameters
    ----------
    space
        The domain.
    shape
        Of the codomain; one extent may be -1 and is then inferred.
    axes
        Names of the codomain's axes. By default an axis that passes unchanged keeps its name,
        and the others are numbered.

    Raises
    ------
    ShapeError
        Where the two shapes hold different numbers of entries.

    Notes
    -----
    An axis that passes unchanged (z in `(z, y, x) -> (z, y * x)`) is aligned and splits at no
    cost; axes that merge or come apart are contracted and produced.
    """

    batched = True
    blockwise = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True
    domain: Space
    codomain: Space
    _aliases = True

    def __init__(
        self, space: Space, shape: int | Sequence[int], axes: Sequence[str] | None = None
    ) -> None:
        extents = _infer(space, (shape,) if isinstance(shape, int) else tuple(shape))
        left = space.axes or tuple(numbered(space.ndim))
        passing = _passing(space.shape, extents)
        wanted = [f"axis{j}" for j in range(len(extents))] if axes is None else list(axes)
        right, taken = [], set(left)
        for j, own in enumerate(wanted):
            name = left[passing[j]] if j in passing else own
            while j not in passing and name in taken:
                name += "_out"
            taken.add(name)
            right.append(name)
        # Always named: blocks then call the axes of either side what the rule calls them.
        codomain = Space(extents, space.dtype, right if axes is None else axes)
        rule = Rule((tuple(map(Axis, left)),), (tuple(map(Axis, right)),))
        super().__init__(space, codomain, rule, tags=("unitary", "nonnegative"))

    def _apply(self, x: Array) -> Array:
        return _reshape(x, self.domain, self.codomain)

    def _apply_adjoint(self, y: Array) -> Array:
        return _reshape(y, self.codomain, self.domain)

    def _make_adjoint(self) -> LinearOperator:
        return self._made(self.codomain, self.domain, self.rule.adjoint(), self._declared_tags)

    def _gram_diagonal(self, weights: Array | None) -> Array:
        return self.domain.ones() if weights is None else self._apply_adjoint(weights)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        # Axes that are made of others are not cut with them.
        aligned = self.rule.relation(axis) is Relation.ALIGNED
        return super()._block(axis, start, stop, padded) if aligned else None

    def _cost(self) -> Cost:
        return Cost()


class Transpose(LinearOperator):
    """The axes in another order: axis j of the result is axis `order[j]` of the input.

    Parameters
    ----------
    space
        The domain; names and spacings of its axes move with them.
    order
        Every axis once, by name or number; reversed where it is not given.

    Raises
    ------
    ShapeError
        Where an axis is missing or named twice.

    Notes
    -----
    The matrix transpose of an operator is `A.T`.
    """

    batched = True
    blockwise = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True
    domain: Space
    codomain: Space
    _aliases = True

    def __init__(self, space: Space, order: Sequence[str | int] | None = None) -> None:
        if order is None:
            numbers = tuple(reversed(range(space.ndim)))
        else:
            numbers = tuple(axis_number(space, axis) for axis in order)
        if sorted(numbers) != list(range(space.ndim)):
            raise ShapeError(
                f"Transpose: the order {order!r} does not name each of the {space.ndim} axes of "
                f"{space} once"
            )
        codomain = Space(
            tuple(space.shape[i] for i in numbers),
            space.dtype,
            None if space.axes is None else tuple(space.axes[i] for i in numbers),
            None if space.spacing is None else tuple(space.spacing[i] for i in numbers),
        )
        names = space.axes or tuple(numbered(space.ndim))
        rule = Rule((tuple(map(Axis, names)),), (tuple(Axis(names[i]) for i in numbers),))
        super().__init__(space, codomain, rule, tags=("unitary", "nonnegative"))

    def _apply(self, x: Array) -> Array:
        return _permute(x, self._order())

    def _apply_adjoint(self, y: Array) -> Array:
        order = self._order()
        return _permute(y, [order.index(i) for i in range(len(order))])

    def _make_adjoint(self) -> LinearOperator:
        return self._made(self.codomain, self.domain, self.rule.adjoint(), self._declared_tags)

    def _gram_diagonal(self, weights: Array | None) -> Array:
        return self.domain.ones() if weights is None else self._apply_adjoint(weights)

    def _cost(self) -> Cost:
        return Cost()

    def _order(self) -> list[int]:
        left = [axis.name for axis in self.rule.domain[0]]
        return [left.index(axis.name) for axis in self.rule.codomain[0]]


def _infer(space: Space, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not isinstance(space, Space):
        raise ShapeError("Reshape takes one array: pick a member of the product space first")
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known and space.size % known == 0:
        shape = tuple(space.size // known if n == -1 else n for n in shape)
    if any(n < 0 for n in shape) or math.prod(shape) != space.size:
        raise ShapeError(
            f"Reshape: the shape {shape} does not hold the {space.size} entries of {space}"
        )
    return tuple(int(n) for n in shape)


def _passing(source: tuple[int, ...], target: tuple[int, ...]) -> dict[int, int]:
    """Axes of the target that are axes of the source: equal extents behind equal products."""
    if math.prod(source) == 0:
        return {}
    found: dict[int, int] = {}
    i = j = 0
    while i < len(source) and j < len(target):
        if source[i] == target[j]:
            found[j] = i
            i, j = i + 1, j + 1
        elif source[i] == 1:
            i += 1
        elif target[j] == 1:
            j += 1
        else:
            a, b = source[i], target[j]
            i, j = i + 1, j + 1
            while a != b:
                if a < b:
                    a, i = a * source[i], i + 1
                else:
                    b, j = b * target[j], j + 1
    return found


def _reshape(x: Array, source: Any, target: Any) -> Array:
    batch = tuple(x.shape)[: x.ndim - source.ndim]
    return arrays.namespace(x).reshape(x, (*batch, *target.shape))


def _permute(x: Array, order: Sequence[int]) -> Array:
    lead = x.ndim - len(order)
    axes = (*range(lead), *(lead + i for i in order))
    return arrays.namespace(x).permute_dims(x, axes)
