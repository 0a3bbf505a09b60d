"""Functionals of single entries seen from a subset: the same functional on its rows."""

from __future__ import annotations

from typing import Any

from linops import arrays
from linops.arrays import Array
from linops.elementary.select import Restriction
from linops.functionals.entries import Entries
from linops.functionals.restricted import RowMap
from linops.operator import Operator
from linops.space import Space

__all__ = ["EntryForm", "EntryTerms"]


class _EntryRows(RowMap):
    """What both maps share.

    Parameters
    ----------
    functional
        Of single entries, none of which see each other.
    index
        Flat positions along the plane, shape (s,), -1 inert.
    """

    def __init__(self, functional: Entries, index: Any) -> None:
        space = functional.domain
        assert isinstance(space, Space)
        outer = (0,) * max(space.ndim - 2, 0)
        super().__init__(space, index, outer, outer)
        picks = Restriction(space, self.index)
        tables = {
            name: picks._apply(getattr(functional, name))
            for name in functional._tables
            if arrays.is_array(getattr(functional, name))
        }
        rule = functional.rule
        self.small: Entries = functional._with(
            domain=picks.codomain,
            _declared_rule=type(rule)((picks.rule.codomain[0],), ((),)),
            **tables,
        )

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator:
        small, _ = self.small._cut(axis, start, stop, padded)
        return self._rows_cut(axis, start, stop, padded, small=small)

    def _mask_inert(self, rows: Array) -> Array:
        """Zeros at inert positions and in planes that are not of the array."""
        xp = arrays.namespace(rows)
        there = arrays.convert(self.index >= 0, rows)
        return self._blank(xp.where(there, rows, xp.zeros_like(rows)))


class EntryTerms(_EntryRows):
    """`(x, rows) -> (gradient rows, the surrogate's diagonal)`."""

    def _apply(self, parts: tuple[Array, Array]) -> tuple[Array, Array]:
        rows = parts[1]
        curvature = arrays.convert(self.small.surrogate(rows).diagonal(limit=None), rows)
        return self._mask_inert(self.small.gradient(rows)), self._mask_inert(curvature)


class EntryForm(_EntryRows):
    """`(x, rows, d) -> rows of S(x) d`."""

    _inputs, _outputs = 2, 1

    def _apply(self, parts: tuple[Array, Array, Array]) -> Array:
        _, rows, d = parts
        return self._mask_inert(self.small.surrogate(rows) @ d)
