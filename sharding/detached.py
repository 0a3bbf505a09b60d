"""Lowered operators as JAX pytrees: the arrays of their blocks are children, all else is static.

So a lowered operator may be an argument of `jit`, `grad` and `scan`; operators of equal structure
share a program, and derivatives reach the arrays, one entry a device in front. What comes out of a
pytree runs, forward and adjoint. It knows its operator no more: what is made of that (its gram,
columns, derivatives at a point) is made outside, and passed as an operator of its own.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from linops.arrays import Array
from linops.errors import PlacementError
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from sharding.executors.shard_map import ShardMapEngine
from sharding.graph import Graph
from sharding.program import Program

if TYPE_CHECKING:
    from sharding.plans import Plan

__all__ = ["put_together", "taken_apart"]


def taken_apart(
    plan: Plan, engine: ShardMapEngine, programs: tuple[Program, ...]
) -> tuple[tuple[Array, ...], Hashable]:
    """The arrays of a plan's programs, each once, and what is equal where one program serves."""
    bodies, leaves, places = [], {}, []
    for program in programs:
        body, own = engine.compiled_part(program)
        bodies.append(body)
        leaves.update({id(leaf): leaf for leaf in own})
        places.append(tuple(map(id, own)))
    order = {key: k for k, key in enumerate(leaves)}
    where = tuple(tuple(order[key] for key in row) for row in places)
    return tuple(leaves.values()), _DetachedProgram(plan, tuple(bodies), where)


def put_together(
    static: Any, leaves: tuple[Array, ...]
) -> tuple[Plan, ShardMapEngine, Program | None]:
    """Plan, engine and adjoint program with other arrays."""
    return static.plan, static.engine(leaves), static.plan.adjoint


class _DetachedProgram:
    def __init__(self, plan: Plan, bodies: tuple[Any, ...], where: tuple[Any, ...]) -> None:
        forward, *back = (body.program for body in bodies)
        base = plan.operator
        self.bodies, self.where, self.linear = bodies, where, isinstance(base, LinearOperator)
        self.plan = replace(
            plan,
            operator=(_Lost if self.linear else _LostOperator)(base),
            graph=Graph((), (), (), ()),
            forward=forward,
            # Of equal structure they are one body, and two programs still.
            adjoint=replace(back[0]) if back else None,
        )
        self._key = (
            self.linear, bodies, where, plan.domain_placements, plan.codomain_placements,
            base.domain, base.codomain, base.precision, base.tags, plan.deterministic,
        )  # fmt: skip
        self._hash = hash(self._key)

    def engine(self, leaves: tuple[Array, ...]) -> ShardMapEngine:
        own = [tuple(leaves[k] for k in row) for row in self.where]
        parts = list(zip(self.bodies, own, strict=True))
        return ShardMapEngine.of_parts(self.plan, parts, self.linear)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _DetachedProgram) and other._key == self._key

    def __hash__(self) -> int:
        return self._hash


def _refuse(operator: Any, *_: Any) -> Any:
    raise PlacementError(
        f"{operator.name} came through a transformation of JAX as an argument and knows the arrays "
        "of its shares only: make its gram, columns, diagonal or derivative outside and pass that, "
        "or close over the operator"
    )


_refused: Any = _refuse


def _set_up(operator: Any, base: Operator) -> None:
    Operator.__init__(
        operator, base.domain, base.codomain, precision=base.precision, name=base.name,
        tags=base.tags,
    )  # fmt: skip


class _Lost(LinearOperator):
    """A linear operator of which only the lowered form is there."""

    def __init__(self, base: Operator) -> None:
        _set_up(self, base)

    _apply = _apply_adjoint = _columns = _gram_diagonal = _diagonal = _refused
    _make_conjugate = _cost = _refused


class _LostOperator(Operator):
    """A nonlinear one."""

    def __init__(self, base: Operator) -> None:
        _set_up(self, base)

    _apply = _jacobian = _cost = _refused
