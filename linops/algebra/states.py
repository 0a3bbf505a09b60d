"""`trajectory_of`: the states that repeated application of one operator passes through.

A concatenation of powers applies the step once for every power; this applies it n times in all,
and its adjoint goes back through them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from linops import arrays
from linops.algebra.arithmetic import as_operator
from linops.algebra.complexify import complexify
from linops.algebra.composition import flat_product
from linops.algebra.frames import lifted
from linops.algebra.members import as_tuple
from linops.algebra.sums import added
from linops.arguments import checked
from linops.cost import Cost
from linops.elementary.plane_windows import PlaneMask
from linops.errors import ShapeError
from linops.linear_operator import AsOperator, LinearOperator
from linops.precision import Precision
from linops.relations import fresh_name, positions
from linops.rule import Axis, Relation, Rule
from linops.space import AnySpace, ProductSpace

__all__ = ["States", "trajectory_of"]


@checked
def trajectory_of(
    step: AsOperator, n: int, keep: Sequence[int] | None = None, *, axis: str = "time"
) -> LinearOperator:
    """`x -> (step^k @ x for k in keep)`, states along a new first axis, in n applications.

    Parameters
    ----------
    step
        An operator from a space to itself; products of spaces keep their members apart.
    n
        How often it is applied.
    keep
        Which states, rising, of 0 (the start) to n; by default 1 to n.
    axis
        Name of the new axis, where the spaces have names.

    Raises
    ------
    ShapeError
        Where step leads to another space, or keep does not rise from 0 to n at most.

    Notes
    -----
    Without a copy of the states in between: the adjoint needs none of them. Plans cut the new
    axis, and axes along which the step has no halo.

    >>> import numpy as np
    >>> from linops.elementary import Diagonal
    >>> trajectory_of(Diagonal(np.array([2.0, 3.0])), 4, [0, 2, 4]) @ np.ones(2)
    array([[ 1.,  1.],
           [ 4.,  9.],
           [16., 81.]])
    """
    operator = as_operator(step)
    kept = tuple(range(1, n + 1)) if keep is None else tuple(int(k) for k in keep)
    if n < 0 or list(kept) != sorted(set(kept)) or not set(kept) <= set(range(n + 1)):
        raise ShapeError(
            f"trajectory_of keeps rising numbers of steps from 0 to n, got {kept} of n = {n}"
        )
    pairs = zip(operator.domain.members, operator.codomain.members, strict=False)
    if operator.domain.shape != operator.codomain.shape or any(
        one.dtype != other.dtype for one, other in pairs
    ):
        raise ShapeError(
            f"trajectory_of takes a step from a space to itself, got {operator.domain} -> "
            f"{operator.codomain}"
        )
    return States(operator, kept, axis)


class States(LinearOperator):
    """What `trajectory_of` makes."""

    batched = True
    _exact: ClassVar[bool] = True

    def __init__(self, step: LinearOperator, keep: tuple[int, ...], axis: str) -> None:
        super().__init__(step.domain, lifted(step.domain, len(keep), axis), name="trajectory")
        self.step, self.keep, self.axis = step, keep, axis

    def _apply(self, x: Any) -> Any:
        states, done = [], 0
        for k in self.keep:
            x = arrays.loop(k - done, partial(_next, self.step._forward), x)
            states.append(x)
            done = k
        return _each_member(self.codomain, states or [x], len(states))

    def _apply_adjoint(self, y: Any) -> Any:
        total: Any = None
        for number, k in reversed(list(enumerate(self.keep))):
            state = _plane(y, self.codomain, number)
            total = state if total is None else added(total, state)
            before = self.keep[number - 1] if number else 0
            total = arrays.loop(k - before, partial(_next, self.step._backward), total)
        if total is None:
            members = as_tuple(y, self.codomain)
            spaces = zip(self.codomain.members, self.domain.members, strict=True)
            parts = tuple(
                arrays.zeros((*part.shape[: part.ndim - big.ndim], *small.shape), small.dtype, part)
                for part, (big, small) in zip(members, spaces, strict=True)
            )
            return parts if isinstance(self.domain, ProductSpace) else parts[0]
        return total

    def _make_conjugate(self) -> LinearOperator:
        return States(self.step.conj(), self.keep, self.axis)

    def _complexified(self) -> LinearOperator | None:
        if "real_linear" in self.tags:
            return None
        return States(complexify(self.step), self.keep, self.axis)

    def _derive_rule(self) -> Rule:
        rule = self.step.rule
        extra = Axis(fresh_name(self.axis, set(rule.names)))

        def whole(axis: Axis) -> Axis:
            aligned = rule.relation(axis.name) is Relation.ALIGNED
            return Axis(axis.name, splits=axis.splits and aligned and not rule.halo(axis.name))

        rows = tuple(tuple(map(whole, member)) for member in rule.domain)
        return Rule(rows, tuple((extra, *row) for row in rows))

    def _derive_tags(self) -> frozenset[str]:
        return self.step.tags & {"nonnegative", "real_linear", "approximate_adjoint"}

    def _derive_precision(self) -> Precision:
        return self.step.precision

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> LinearOperator | None:
        if axis in self.step.rule.names:
            block = self.step.block(axis, start, stop, padded)
            assert isinstance(block, LinearOperator)
            states = States(block, self.keep, self.axis)
            if not padded or 0 not in self.keep:
                return states
            # The start is read as it comes.
            cuts = positions(self.rule.domain, axis)
            m, p = cuts[0]
            n = self.domain.members[m].shape[p]
            mask = PlaneMask(block.domain, cuts, -start, n - start, self.rule.domain)
            return flat_product([states, mask])
        return None if padded else States(self.step, self.keep[start:stop], self.axis)

    def _cost(self) -> Cost:
        one, n = self.step.cost(), float(max(self.keep, default=0))
        cost = Cost(n * one.flops, n * one.read, n * one.written, one.workspace + one.written)
        return cost + Cost.streaming(self.domain, self.codomain, 0.0)


def _next(function: Any, _: Any, x: Any) -> Any:
    return function(x)


def _plane(y: Any, space: AnySpace, number: int) -> Any:
    def of(part: Any, ndim: int) -> Any:
        return part[(..., number, *(slice(None),) * (ndim - 1))]

    if isinstance(space, ProductSpace):
        return tuple(of(part, member.ndim) for part, member in zip(y, space.members, strict=True))
    return of(y, space.members[0].ndim)


def _each_member(space: AnySpace, states: list[Any], count: int) -> Any:
    """States stacked along a new axis, member by member; none of them where the count is 0."""

    def joined(parts: Sequence[Any], ndim: int) -> Any:
        stacked = arrays.namespace(*parts).stack(list(parts), axis=-ndim)
        return arrays.narrow(stacked, -ndim, 0, count)

    if isinstance(space, ProductSpace):
        columns = zip(*states, strict=True)
        return tuple(
            joined(parts, member.ndim) for parts, member in zip(columns, space.members, strict=True)
        )
    return joined(states, space.members[0].ndim)
