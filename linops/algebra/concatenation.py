"""`concat`: the outputs of operators with one domain, joined into one array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from linops import arrays
from linops.algebra.blocks import weakened
from linops.algebra.composition import flat_product
from linops.algebra.members import in_one_dtype, members_of, plain_space
from linops.algebra.node import LinearNode
from linops.algebra.placed import refuse_shares
from linops.algebra.shared import share_last
from linops.algebra.stacks import still_split
from linops.algebra.sums import added
from linops.arguments import checked
from linops.elementary.axes import axis_number, resized
from linops.elementary.crop_pad import Crop
from linops.errors import ShapeError
from linops.linear_operator import AsOperator, LinearOperator
from linops.relations import positions, stack_rule
from linops.rule import Axis, Relation, Rule
from linops.space import Space

__all__ = ["Concatenation", "concat"]


@checked
def concat(operators: Iterable[AsOperator], axis: str | int = 0) -> LinearOperator:
    """The outputs of operators with one domain, joined into one array along `axis`.

    Parameters
    ----------
    operators
        Operators whose codomains agree but for the extent of `axis`.
    axis
        Axis of the codomains, by name or number.
    """
    terms = members_of(operators, "concat", "domain")
    spaces = [plain_space(term.codomain, "concat") for term in terms]
    refuse_shares(terms, "concat")
    number = axis_number(spaces[0], axis)
    for space in spaces[1:]:
        if (
            space.ndim != spaces[0].ndim
            or resized(space, [(0, number)], 0).shape != resized(spaces[0], [(0, number)], 0).shape
        ):
            raise ShapeError(
                f"concat joins outputs that agree but along axis {axis!r}, got {spaces[0]} and "
                f"{space}"
            )

    def join(parts: Sequence[LinearOperator]) -> LinearOperator:
        return Concatenation(parts, number)

    return share_last(join, in_one_dtype(terms, "codomain"))


class Concatenation(LinearNode):
    """`terms` applied to one input, their outputs joined along one axis of one array."""

    def __init__(
        self, terms: Sequence[LinearOperator], axis: int, rule: Rule | None = None
    ) -> None:
        spaces = [plain_space(term.codomain, "concat") for term in terms]
        extents = [space.shape[axis] for space in spaces]
        joined = resized(spaces[0], [(0, axis)], sum(extents))
        super().__init__(terms[0].domain, joined, rule, name="concat")
        self.terms = tuple(terms)
        self._axis = axis - spaces[0].ndim
        self._starts = tuple(int(n) for n in np.cumsum([0, *extents]))

    def _apply(self, x: Any) -> Any:
        parts = [function(x) for function in self._functions]
        return arrays.namespace(*parts).concat(parts, axis=self._axis)

    def _apply_adjoint(self, y: Any) -> Any:
        total: Any = None
        for term, start, stop in zip(self.terms, self._starts[:-1], self._starts[1:], strict=True):
            back = term._backward(arrays.narrow(y, self._axis, start, stop))
            total = back if total is None else added(total, back)
        return total

    def _on(self, terms: Sequence[LinearOperator], rule: Rule | None = None) -> LinearOperator:
        return Concatenation(terms, self._position, rule)

    _make_adjoint = LinearOperator._make_adjoint

    @property
    def _position(self) -> int:
        assert isinstance(self.codomain, Space)
        return self._axis + self.codomain.ndim

    def _derive_rule(self) -> Rule:
        stacked = stack_rule([t.rule for t in self.terms], [t.codomain for t in self.terms])
        first = stacked.codomain[0]
        taken = {a.name for row in stacked.domain for a in row}
        right = []
        for p, axis in enumerate(first):
            column = [row[p].name for row in stacked.codomain]
            if p == self._position:
                name = axis.name
                while name in taken:
                    name += "_joined"
                relations = {t.rule.relation(t.rule.codomain[0][p].name) for t in self.terms}
                right.append(Axis(name, splits=relations <= {Relation.PRODUCED, Relation.ALIGNED}))
            else:
                same = len(set(column)) == 1
                splits = same and all(row[p].splits for row in stacked.codomain)
                right.append(Axis(axis.name, splits=splits))
        return Rule(stacked.domain, (tuple(right),))

    def _gram_diagonal(self, weights: Any) -> Any:
        total: Any = None
        for term, start, stop in zip(self.terms, self._starts[:-1], self._starts[1:], strict=True):
            w = None if weights is None else arrays.narrow(weights, self._axis, start, stop)
            part = term._gram_diagonal(w)
            if part is None:
                return None
            total = part if total is None else total + part
        return total

    def _columns(self, index: Any, axes: tuple[int, ...]) -> LinearOperator:
        return self._on([term.columns(index, axes) for term in self.terms])

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        m, p = positions(self.rule.domain, axis)[0]
        names = [term.rule.domain[m][p].name for term in self.terms]
        ranges = [
            term._input_range(name, start, stop)
            for term, name in zip(self.terms, names, strict=True)
        ]
        halos = [term.rule.halo(name) for term, name in zip(self.terms, names, strict=True)]
        more = self.rule.halo(axis) - max(halos)
        return min(lo for lo, _ in ranges) - more, max(hi for _, hi in ranges) + more

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        if padded or axis != self.rule.codomain[0][self._position].name:
            return None
        pieces = []
        for term, first, last in zip(self.terms, self._starts[:-1], self._starts[1:], strict=True):
            lo, hi = max(start, first), min(stop, last)
            if lo < hi:
                name = term.rule.codomain[0][self._position].name
                relation = Relation.PRODUCED
                piece = weakened(term, name, lo - first, hi - first, False, relation, 0)
                if piece is None:
                    return None
                pieces.append(piece)
        if not pieces:
            cuts = [(0, self._position)]
            crop = Crop.along(self.codomain, cuts, start, stop, self.rule.codomain)
            return flat_product([crop, self])
        # The same names, of one piece too: blocks of another axis follow.
        return self._on(pieces, still_split(self.rule, [piece.rule for piece in pieces]))
