"""A functional seen from a subset of its domain, which is what coordinate descent needs.

It is two maps with sharding rules, so that a plan cuts and lowers them: `terms` makes rows of the
gradient and of the surrogate's diagonal, `form` rows of the surrogate applied to a direction. Both
are given the subset's own rows beside the whole: some functionals need neighbors of rows only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.elementary.axes import resized
from linops.elementary.select import Restriction
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.rule import Axis, Rule
from linops.space import ProductSpace, Space, inners

if TYPE_CHECKING:
    from linops.functionals.functional import Functional

__all__ = ["Restricted", "RestrictedForm", "RestrictedTerms", "RowMap"]


class Restricted:
    """A functional's gradient and surrogate rows at a subset; neighbors are read from all of x.

    Parameters
    ----------
    functional
        The functional on the whole domain.
    picks
        x to the subset's rows, `(others, s)`.
    terms
        `(x, rows of x) -> (rows of the gradient, of the surrogate's diagonal)`.
    form
        `(x, rows of x, d) -> rows of S(x) d`.
    """

    def __init__(
        self, functional: Functional, picks: LinearOperator, terms: Operator, form: Operator
    ) -> None:
        self.functional = functional
        self.picks, self.of_terms, self.of_form = picks, terms, form
        self.domain: Any = picks.codomain

    def terms(self, x: Array) -> tuple[Array, Array]:
        """Gradient rows and the surrogate's diagonal at the subset, in one pass where possible."""
        gradient, diagonal = self.of_terms((x, self.picks @ x))
        return gradient, diagonal

    def gradient(self, x: Array) -> Array:
        """Rows of the gradient at `x`, shape `(others, s)`; zero at inert positions."""
        return self.terms(x)[0]

    def form(self, x: Array, d: Array) -> Array:
        """Rows of `S(x) d` for a direction `d` on the subset."""
        return self.of_form((x, self.picks @ x, d))

    def quadratic(self, x: Array, d: Array) -> Array:
        """`<d, S(x) d>` for a direction `d` on the subset, as a 0-d array."""
        return inners((self.domain, d, self.form(x, d)))[0]

    def surrogate(self, x: Array) -> LinearOperator:
        """The surrogate at `x` restricted to the subset, rows and columns."""
        made: LinearOperator = self.picks @ self.functional.surrogate(x) @ self.picks.H
        return made


class RowMap(Operator):
    """A map of x, its rows at positions of the plane, and perhaps more rows, to rows.

    The plane is read whole, the axes before it are aligned.

    Parameters
    ----------
    space
        That of x.
    index
        Flat positions along the plane, shape (s,), -1 inert.
    reach
        For each axis before the plane, how many planes beyond its own are read of x.
    beside
        The same of rows.
    """

    _inputs = 1  # how many members are rows
    _outputs = 2

    def __init__(
        self, space: Space, index: Any, reach: tuple[int, ...], beside: tuple[int, ...]
    ) -> None:
        picks = Restriction(space, index)
        small = picks.codomain
        assert isinstance(small, Space)
        (whole,), (part,) = picks.rule.domain, picks.rule.codomain
        outer, last = part[:-1], replace(part[-1], splits=False)
        plane = tuple(replace(a, splits=False) for a in whole[len(outer) :])
        x_row, row = (
            tuple(Axis(a.name, halo=h) for a, h in zip(outer, halos, strict=True))
            for halos in (reach, beside)
        )
        rule = Rule(
            ((*x_row, *plane), *((*row, last),) * self._inputs),
            ((*outer, last),) * self._outputs,
        )
        super().__init__(
            ProductSpace((space, *(small,) * self._inputs)),
            ProductSpace((small,) * self._outputs) if self._outputs > 1 else small,
            rule,
        )
        self.index = picks.index
        self.real: Array | None = None
        # Planes before and behind its own that rows come with, for each axis before the plane.
        self._margins = ((0, 0),) * len(outer)

    def _jacobian(self, x: Any) -> LinearOperator:
        raise TypeError(f"{self.name} declares no derivative")

    def _member_range(self, member: int, axis: str, start: int, stop: int) -> tuple[int, int]:
        (halo,) = (a.halo for a in self.rule.domain[member] if a.name == axis)
        return start - halo, stop + halo

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator:
        return self._rows_cut(axis, start, stop, padded)

    def _rows_cut(self, axis: str, start: int, stop: int, padded: bool, **fields: Any) -> RowMap:
        """The block; `fields` are what else changes."""
        number = [a.name for a in self.rule.domain[0]].index(axis)
        small = self.codomain.members[0]
        n = small.shape[number]

        def around(halo: int) -> tuple[int, int]:
            lo, hi = start - halo, stop + halo
            return (lo, hi) if padded else (max(lo, 0), min(hi, n))

        def cut(member: Space, planes: int) -> Space:
            made = resized(member, [(0, number)], planes)
            assert isinstance(made, Space)
            return made

        domain = []
        for member, row in zip(self.domain.members, self.rule.domain, strict=True):
            lo, hi = around(row[number].halo)
            domain.append(cut(member, hi - lo))
        lo, hi = around(self.rule.domain[1][number].halo)
        margins = list(self._margins)
        margins[number] = (start - lo, hi - stop)
        made = (cut(small, stop - start),) * self._outputs
        real = self.real
        if padded and real is None:
            real = np.array([(0, extent) for extent in small.shape[:-1]], np.int32)
        if real is not None:
            xp = arrays.namespace(real)
            shift = xp.asarray([[start if a == number else 0] for a in range(small.ndim - 1)])
            real = real - arrays.cast(shift, np.dtype(np.int32))
        return self._with(
            domain=ProductSpace(domain),
            codomain=ProductSpace(made) if self._outputs > 1 else made[0],
            real=real,
            _margins=tuple(margins),
            **fields,
        )

    def _own(self, rows: Array, but: int | None = None) -> Array:
        """Rows without those beyond its own planes, except along the axis `but`."""
        for a, (before, behind) in enumerate(self._margins):
            if a != but and (before or behind):
                axis = a - len(self._margins) - 1
                rows = arrays.narrow(rows, axis, before, rows.shape[axis] - behind)
        return rows

    def _inside(self, axis: int, first: int, count: int, like: Array) -> Array | None:
        """Which of `count` planes from `first` on are of the array; None: all are."""
        if self.real is None:
            return None
        xp = arrays.namespace(self.real)
        plane = xp.arange(first, first + count)
        inside = (plane >= self.real[axis, 0]) & (plane < self.real[axis, 1])
        return arrays.convert(xp.reshape(inside, (-1,) + (1,) * (len(self._margins) - axis)), like)

    def _blank(self, rows: Array) -> Array:
        """Rows with zeros in planes that are not of the array, whatever stands there."""
        for axis in range(len(self._margins)):
            inside = self._inside(axis, 0, rows.shape[axis - len(self._margins) - 1], rows)
            if inside is not None:
                xp = arrays.namespace(rows)
                rows = xp.where(inside, rows, xp.zeros_like(rows))
        return rows


class _Picked(RowMap):
    """Rows picked from what is made for the whole: right for every functional.

    Parameters
    ----------
    functional
        The functional on the whole domain, an array.
    index
        Flat positions along the plane, shape (s,), -1 inert.
    """

    def __init__(self, functional: Functional, index: Any) -> None:
        space = functional.domain
        assert isinstance(space, Space)
        own = [a.halo for a in functional.rule.domain[0]][: max(space.ndim - 2, 0)]
        # Rows of plane i depend on terms within the reach, and these on planes within theirs; a
        # direction is made whole again from rows with the same reach.
        reach = tuple(2 * h for h in own)
        super().__init__(space, index, reach, reach if self._inputs > 1 else (0,) * len(own))
        self.functional = functional
        self._first = (0,) * len(own)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator:
        functional = self.functional
        number = [a.name for a in self.rule.domain[0]].index(axis)
        name = functional.rule.domain[0][number].name
        n, halo = self.codomain.members[0].shape[number], functional.rule.halo(name)
        wide = (
            (start - halo, stop + halo) if padded else (max(start - halo, 0), min(stop + halo, n))
        )
        first = list(self._first)
        first[number] = 2 * halo if padded else start - max(start - 2 * halo, 0)
        return self._rows_cut(
            axis, start, stop, padded,
            functional=functional.block(name, *wide, padded), _first=tuple(first),
        )  # fmt: skip

    def _pick(self, whole: Array) -> Array:
        """The rows at the positions, of its own planes."""
        rows = Restriction(self.domain.members[0], self.index)._apply(whole)
        planes = self.codomain.members[0].shape[:-1]
        for a, (first, n) in enumerate(zip(self._first, planes, strict=True)):
            rows = arrays.narrow(rows, a - len(planes) - 1, first, first + n)
        return self._blank(rows)


class RestrictedTerms(_Picked):
    """`(x, rows) -> (gradient rows, the surrogate's diagonal)` at a subset."""

    def _apply(self, parts: tuple[Array, Array]) -> tuple[Array, Array]:
        x, functional = parts[0], self.functional
        curvature = arrays.convert(functional.surrogate(x).diagonal(limit=None), x)
        return self._pick(functional.gradient(x)), self._pick(curvature)


class RestrictedForm(_Picked):
    """`(x, rows, d) -> rows of S(x) d` at a subset."""

    _inputs, _outputs = 2, 1

    def _apply(self, parts: tuple[Array, Array, Array]) -> Array:
        x, _, d = parts
        picks = Restriction(self.domain.members[0], self.index)
        return self._pick(self.functional.surrogate(x) @ picks._apply_adjoint(d))
