"""A functional seen from a subset of its domain, which is what coordinate descent needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from linops import arrays
from linops.arrays import Array
from linops.elementary.select import Scatter
from linops.elementary.windows import Crop
from linops.operator import LinearOperator, Operator
from linops.rule import Axis, Member, Rule
from linops.space import ProductSpace, Space

if TYPE_CHECKING:
    from linops.functionals.functional import Functional

__all__ = ["Restricted", "RestrictedForm", "RestrictedSum", "RestrictedTerms"]


class Restricted:
    """A functional's gradient and surrogate rows at a subset; neighbours are read from all of x.

    This form takes them from the whole and is right for every functional; priors whose rows
    are cheap override it.

    Parameters
    ----------
    functional
        The functional on the whole domain.
    index
        Flat positions, shape (s,), -1 inert.
    """

    def __init__(self, functional: Functional, index: Any) -> None:
        assert isinstance(functional.domain, Space)
        self.functional = functional
        self.index = index
        self._scatter = Scatter(functional.domain, index)
        self.domain = self._scatter.domain

    def gradient(self, x: Array) -> Array:
        """Rows of the gradient at `x`, shape `(others, s)`; zero at inert positions."""
        return self.terms(x)[0]

    def surrogate(self, x: Array) -> LinearOperator:
        """The surrogate at `x` restricted to the subset, rows and columns."""
        scatter = self._scatter
        restricted: LinearOperator = scatter.H @ self.functional.surrogate(x) @ scatter
        return restricted

    def terms(self, x: Array) -> tuple[Array, Array]:
        """Gradient rows and the surrogate's diagonal at the subset, in one pass where possible."""
        scatter = self._scatter
        curvature = self.functional.surrogate(x).diagonal(limit=None)
        return scatter.H @ self.functional.gradient(x), scatter.H @ arrays.convert(curvature, x)

    def quadratic(self, x: Array, d: Array) -> Array:
        """`<d, S(x) d>` for a direction `d` on the subset, as a 0-d array."""
        return arrays.namespace(d).sum(d * self.form(x, d))

    def form(self, x: Array, d: Array) -> Array:
        """Rows of `S(x) d` for a direction `d` on the subset."""
        scatter = self._scatter
        return scatter.H @ (self.functional.surrogate(x) @ (scatter @ d))


class RestrictedSum(Restricted):
    """A sum of multiples of functionals on one subset.

    Parameters
    ----------
    functional
        The sum on the whole domain.
    index
        Flat positions, shape (s,), -1 inert.
    parts
        Factors, and the restrictions of the terms.
    """

    def __init__(
        self, functional: Functional, index: Any, parts: Sequence[tuple[Any, Restricted]]
    ) -> None:
        super().__init__(functional, index)
        self._parts = tuple(parts)

    def terms(self, x: Array) -> tuple[Array, Array]:
        gradient, curvature = None, None
        for factor, part in self._parts:
            g, c = part.terms(x)
            if factor is not None:
                g, c = factor * g, factor * c
            gradient = g if gradient is None else gradient + g
            curvature = c if curvature is None else curvature + c
        return gradient, curvature

    def quadratic(self, x: Array, d: Array) -> Array:
        total = None
        for factor, part in self._parts:
            value = part.quadratic(x, d)
            if factor is not None:
                value = factor * value
            total = value if total is None else total + value
        return total

    def form(self, x: Array, d: Array) -> Array:
        total = None
        for factor, part in self._parts:
            rows = part.form(x, d)
            if factor is not None:
                rows = factor * rows
            total = rows if total is None else total + rows
        return total


class _Rows(Operator):
    """Rows of a functional at a subset, as an operator with a rule: the plane is read whole, the
    other axes are aligned.

    Parameters
    ----------
    functional
        The functional on the whole domain, an array.
    index
        Flat positions along the plane, shape (s,), -1 inert.
    """

    def __init__(self, functional: Functional, index: Any) -> None:
        assert isinstance(functional.domain, Space)
        self.functional, self.index = functional, index
        self.restricted = functional.restrict(index)
        # Rows of plane i depend on terms within the reach, and these on planes within theirs.
        whole = tuple(
            Axis(a.name, halo=2 * a.halo, splits=a.splits) for a in functional.rule.domain[0]
        )
        outer, plane = whole[: max(len(whole) - 2, 0)], whole[max(len(whole) - 2, 0) :]
        position = "s" if all(a.name != "s" for a in whole) else "s_picked"
        inside = (*outer, *(Axis(a.name, splits=False) for a in plane))
        part = (*outer, Axis(position, splits=False))
        bare = (*(Axis(a.name, splits=a.splits) for a in outer), part[-1])
        small = self.restricted.domain
        assert isinstance(small, Space)
        self._declare(functional.domain, small, inside, part, bare)

    def _declare(
        self, space: Space, small: Space, inside: Member, part: Member, bare: Member
    ) -> None:
        raise NotImplementedError

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        if padded:
            return None
        functional = self.functional
        rows = [one.name for one in functional.rule.domain[0]]
        position = rows.index(axis)
        assert isinstance(functional.domain, Space)
        n, halo = functional.domain.shape[position], functional.rule.halo(axis)
        wide = functional.block(axis, max(start - halo, 0), min(stop + halo, n))
        first = max(start - 2 * halo, 0)
        inner: Operator = type(self)(wide, self.index)  # type: ignore[arg-type]
        cuts = [(m, position) for m in range(len(inner.codomain.members))]
        crop = Crop.along(inner.codomain, cuts, start - first, stop - first, inner.rule.codomain)
        made: Operator = crop @ inner
        return made


class RestrictedTerms(_Rows):
    """`x -> (gradient rows, the surrogate's diagonal)` at a subset: `Restricted.terms`."""

    def _declare(
        self, space: Space, small: Space, inside: Member, part: Member, bare: Member
    ) -> None:
        rule = Rule((inside,), (bare, bare))
        Operator.__init__(self, space, ProductSpace((small, small)), rule)

    def _apply(self, x: Array) -> tuple[Array, Array]:
        return self.restricted.terms(x)


class RestrictedForm(_Rows):
    """`(x, d) -> rows of S(x) d` at a subset: `Restricted.form`."""

    def _declare(
        self, space: Space, small: Space, inside: Member, part: Member, bare: Member
    ) -> None:
        rule = Rule((inside, part), (bare,))
        Operator.__init__(self, ProductSpace((space, small)), small, rule)

    def _apply(self, parts: tuple[Array, Array]) -> Array:
        return self.restricted.form(*parts)
