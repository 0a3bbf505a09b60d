"""Operators along one more axis of the same array: `Repeat` has one for all of its planes, and
`block_diagonal(..., axis=)` another for each (time, energy, the frames of a film).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from linops import arguments, arrays
from linops.algebra.arithmetic import as_operator
from linops.algebra.blockwise import block_by_rule
from linops.algebra.members import plain_space
from linops.algebra.node import LinearNode
from linops.algebra.norm import known_norm
from linops.arrays import Array
from linops.cost import Cost
from linops.elementary.plane_windows import PlaneMask
from linops.errors import ShapeError
from linops.linear_operator import AsOperator, LinearOperator
from linops.relations import fresh_name
from linops.rule import Axis, Member, Relation, Rule
from linops.space import AnySpace, ProductSpace, Space
from linops.structure import structure

__all__ = ["Frames", "Repeat", "lifted"]


class _Lifted(LinearNode):
    """Operators between spaces that get one more axis in front."""

    _spreading = frozenset({"self_adjoint", "psd", "unitary", "diagonal", "nonnegative"})

    def __init__(self, terms: Sequence[LinearOperator], count: int, axis: str) -> None:
        domain = lifted(terms[0].domain, count, axis)
        super().__init__(domain, lifted(terms[0].codomain, count, axis))
        self.terms, self.axis = tuple(terms), axis

    @property
    def count(self) -> int:
        """Planes of the new axis."""
        return self.domain.members[0].shape[0]

    def _on(self, terms: Sequence[LinearOperator], count: int | None = None) -> LinearOperator:
        """The same of other operators."""
        return type(self)._opened(
            lambda made: _Lifted.__init__(
                made, terms, self.count if count is None else count, self.axis
            )
        )

    def _derive_rule(self) -> Rule:
        rule = self.terms[0].rule
        same = all(_cut_alike(self.terms[0], term) for term in self.terms[1:])
        extra = Axis(fresh_name(self.axis, set(rule.names)))

        def side(members: tuple[Member, ...]) -> tuple[Member, ...]:
            kept = (m if same else tuple(Axis(a.name, splits=False) for a in m) for m in members)
            return tuple((extra, *member) for member in kept)

        return Rule(side(rule.domain), side(rule.codomain))

    def _known_norm(self) -> float | None:
        found = [known_norm(term) for term in self.terms]
        return None if None in found else max(found)  # type: ignore[type-var]

    def _diagonal(self) -> Array | None:
        return self._joined([term._diagonal() for term in self.terms])

    def _joined(self, parts: list[Any]) -> Array | None:
        if not self.count or any(part is None or isinstance(part, tuple) for part in parts):
            return None
        parts *= self.count if len(parts) < self.count else 1
        return arrays.namespace(*parts).stack(parts)

    def _gram_diagonal(self, weights: Array | None) -> Array | None:
        if weights is None or isinstance(weights, tuple):
            return None if weights else self._joined([t._gram_diagonal(None) for t in self.terms])
        terms = self.terms if len(self.terms) == self.count else self.terms * self.count
        return self._joined([t._gram_diagonal(weights[i, ...]) for i, t in enumerate(terms)])

    def _input_range(self, axis: str, start: int, stop: int) -> tuple[int, int]:
        own = self.terms[0].rule.names
        return self.terms[0]._input_range(axis, start, stop) if axis in own else (start, stop)

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Any:
        if axis not in self.terms[0].rule.names:
            return self._frames(axis, start, stop, padded)
        return self._on([term.block(axis, start, stop, padded) for term in self.terms])

    def _frames(self, axis: str, start: int, stop: int, padded: bool) -> Any:
        """Planes of the new axis."""
        return block_by_rule(self, axis, start, stop, padded)


class Repeat(_Lifted):
    """One operator on every plane of a new first axis, such as time or energy.

    Parameters
    ----------
    operator
        What acts on a plane, a linear operator or a matrix.
    count
        Planes of the axis, 0 or more.
    axis
        Its name, where the operator's spaces have names.

    Notes
    -----
    It is the Kronecker product of an identity and the operator, without a copy: planes are batch
    axes. Plans cut the new axis, and every axis that the operator's own rule splits.

    >>> import numpy as np
    >>> from linops.elementary import SumOver
    >>> R = Repeat(SumOver(Space((2, 3), axes=("y", "x")), "x"), 4, axis="time")
    >>> (R @ np.ones((4, 2, 3), "float32")).shape, str(R.rule)
    ((4, 2), 'time y x -> time y')
    """

    @arguments.checked
    def __init__(self, operator: AsOperator, count: int, axis: str = "repeat") -> None:
        if count < 0:
            raise ShapeError(f"Repeat: count is a number of planes, 0 or more, got {count}")
        super().__init__([as_operator(operator)], count, axis)

    @cached_property
    def _aliases(self) -> bool:  # type: ignore[override]
        return bool(self.terms[0]._aliases)

    def _apply(self, x: Any) -> Any:
        return self.terms[0]._forward(x)

    def _apply_adjoint(self, y: Any) -> Any:
        return self.terms[0]._backward(y)

    def _cost(self) -> Cost:
        one: Cost = self.terms[0].cost()
        return one.times(self.count)


class Frames(_Lifted):
    """Another operator on every plane of a new first axis: `block_diagonal(operators, axis=)`."""

    def __init__(self, terms: Sequence[LinearOperator], axis: str) -> None:
        for term in terms:
            for side in ("domain", "codomain"):
                space = plain_space(getattr(term, side), "block_diagonal along an axis")
                first = getattr(terms[0], side)
                if (space.shape, space.dtype) != (first.shape, first.dtype):
                    raise ShapeError(
                        f"block_diagonal along an axis takes operators with one {side}, got "
                        f"{first} and {space}; without axis= they map tuples of arrays"
                    )
        super().__init__(terms, len(terms), axis)

    def _apply(self, x: Array) -> Array:
        return self._stacked(x, self.domain, [term._forward for term in self.terms])

    def _apply_adjoint(self, y: Array) -> Array:
        return self._stacked(y, self.codomain, [term._backward for term in self.terms])

    def _stacked(self, x: Array, source: AnySpace, functions: list[Any]) -> Array:
        rest = (slice(None),) * (len(source.shape) - 1)
        target = self.codomain if source is self.domain else self.domain
        if not self.count:
            batch = x.shape[: x.ndim - len(source.shape)]
            return arrays.zeros((*batch, *target.shape), target.dtype, x)
        parts = [function(x[(..., i, *rest)]) for i, function in enumerate(functions)]
        return arrays.namespace(*parts).stack(parts, axis=-len(target.shape))

    def _frames(self, axis: str, start: int, stop: int, padded: bool) -> Any:
        n = len(self.terms)
        if not padded:
            return self._on(self.terms[start:stop] or self.terms[:1], stop - start)
        if start == stop or len({structure(term) for term in self.terms}) > 1:
            return None
        chosen = [self.terms[min(max(i, 0), n - 1)] for i in range(start, stop)]
        block, members = self._on(chosen, stop - start), self.rule.codomain
        return PlaneMask(block.codomain, [(0, 0)], -start, n - start, members) @ block


def _cut_alike(one: LinearOperator, other: LinearOperator) -> bool:
    return one.rule == other.rule and all(
        one._input_range(name, 0, 1) == other._input_range(name, 0, 1)
        for name in one.rule.names
        if one.rule.relation(name) is Relation.ALIGNED
    )


def lifted(space: AnySpace, count: int, axis: str) -> AnySpace:
    """The space with one more axis in front of each member."""
    if isinstance(space, ProductSpace):
        return ProductSpace([lifted(member, count, axis) for member in space.members])  # type: ignore[misc]
    assert isinstance(space, Space)
    names = space.axes and (fresh_name(axis, set(space.axes)), *space.axes)
    spacing = space.spacing and (1.0, *space.spacing)
    return Space((count, *space.shape), space.dtype, names, spacing)
