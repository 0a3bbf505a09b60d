"""Planes in another order: `Flip` turns axes around, `Roll` moves planes around a ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from linops import arguments, arrays
from linops.arrays import Array
from linops.elementary.axes import axis_numbers, numbered
from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.rule import Axis, Rule
from linops.space import Space

__all__ = ["Flip", "Roll"]


class Flip(LinearOperator):
    """The planes of some axes in reverse order; its own inverse and adjoint.

    Parameters
    ----------
    space
        Domain and codomain.
    axes
        By name or number; all of them where they are not given.

    Raises
    ------
    ShapeError
        Where an axis is not there, or named twice.
    """

    batched = True
    blockwise = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True

    def __init__(self, space: Space, axes: str | int | Sequence[str | int] | None = None) -> None:
        chosen = tuple(range(space.ndim)) if axes is None else axes
        numbers = tuple(sorted(axis_numbers(space, chosen, "Flip")))
        tags = ("self_adjoint", "unitary", "nonnegative")
        super().__init__(space, space, _whole_along(space, numbers), tags=tags)
        self._numbers = numbers

    def _apply(self, x: Array) -> Array:
        axes = tuple(i - self.domain.ndim for i in self._numbers)  # type: ignore[union-attr]
        return arrays.namespace(x).flip(x, axis=axes) + 0 if axes else x + 0

    def _apply_adjoint(self, y: Array) -> Array:
        return self._apply(y)

    def _known_norm(self) -> float:
        return 1.0


class Roll(LinearOperator):
    """Planes moved on by some positions, those beyond the end to the beginning.

    Parameters
    ----------
    space
        Domain and codomain.
    shift
        Positions to move by, negative ones back: one for all axes, or one each.
    axes
        By name or number; all of them where they are not given.

    Raises
    ------
    ShapeError
        Where an axis is not there, or named twice, or there are more or fewer shifts than axes.
    """

    batched = True
    blockwise = True
    _serves_complex: ClassVar[bool] = True
    _exact: ClassVar[bool] = True

    @arguments.checked
    def __init__(
        self,
        space: Space,
        shift: int | Sequence[int],
        axes: str | int | Sequence[str | int] | None = None,
    ) -> None:
        chosen = tuple(range(space.ndim)) if axes is None else axes
        numbers = tuple(axis_numbers(space, chosen, "Roll"))
        shifts = (shift,) * len(numbers) if isinstance(shift, int) else tuple(map(int, shift))
        if len(shifts) != len(numbers):
            raise ShapeError(
                f"Roll takes one shift, or one for each of its {len(numbers)} axes, got "
                f"{len(shifts)}"
            )
        super().__init__(
            space, space, _whole_along(space, numbers), tags=("unitary", "nonnegative")
        )
        self._numbers, self._shifts = numbers, shifts

    def _apply(self, x: Array) -> Array:
        return self._rolled(x, 1)

    def _apply_adjoint(self, y: Array) -> Array:
        return self._rolled(y, -1)

    def _known_norm(self) -> float:
        return 1.0

    def _rolled(self, x: Array, sign: int) -> Array:
        axes = tuple(i - self.domain.ndim for i in self._numbers)  # type: ignore[union-attr]
        shifts = tuple(sign * shift for shift in self._shifts)
        return arrays.namespace(x).roll(x, shifts, axis=axes) if axes else x + 0


def _whole_along(space: Space, numbers: Sequence[int]) -> Rule:
    """The rule of a map that needs these axes whole, and is aligned along all others."""
    names = space.axes or tuple(numbered(space.ndim))
    row = tuple(Axis(name, splits=i not in numbers) for i, name in enumerate(names))
    return Rule((row,), (row,))
