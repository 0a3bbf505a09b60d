"""The home of elements on the devices of a plan: their placement, and the plan, which lowers other
operators to the same devices.

It is what solvers see of a placement, through `space.home`. An element is an array on its devices,
or a plain array of the real shape, which operators put there on entry. Inner products leave padding
out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from linops import arrays
from linops.arrays import Array
from linops.elementary.select import Restriction
from linops.home import Home
from linops.operator import Operator
from linops.space import AnySpace, ProductSpace, Space
from linops.structure import structure
from sharding.array_backends import forbid, refuse
from sharding.placement import Placement
from sharding.plans import Plan, states_of
from sharding.states import Sharded, States

__all__ = ["PlanHome", "placed_space"]


@dataclass(frozen=True)
class PlanHome(Home):
    """Where a `Placement` says; homes are equal where their placements are."""

    placement: Placement = field()
    plan: Plan = field(compare=False, repr=False)

    @property
    def apart(self) -> bool:  # type: ignore[override]
        """Whether the devices have arrays of their own."""
        return self.placement.backend.apart

    @property
    def reduction(self) -> Any:  # type: ignore[override]
        """The devices, and whether sums are to be the same on any number of them."""
        return self.placement.mesh, self.plan.deterministic

    def put(self, x: Array) -> Array:
        """`x`, of the real shape, on the devices; one that is there is returned as it is."""
        return self.placement.put(x)

    def adopt(self, x: Array) -> Array:
        """`put` of an operand of one run, or of an array given away: its memory may be shared."""
        return self.placement.adopt(x)

    def gather(self, x: Array) -> Array:
        """The array of the real shape; a plain one is returned as it is."""
        return self.placement.gather(x)

    def holds(self, x: Array) -> bool:
        """Whether `x` lies on devices that have arrays of their own."""
        return self.apart and self.placement.holds(x)

    def clear_padding(self, x: Array) -> Array:
        """`x` with zeros in its padding."""
        if self.placement.real_shape(tuple(x.shape)) == tuple(x.shape):
            return x
        return arrays.namespace(x).where(self.placement.mask(x.ndim), x, 0)

    def pin(self, x: Array) -> Array:
        """`x`, within a trace held to its placement."""
        if not arrays.is_traced(x):
            return x
        from sharding.array_backends.jax_devices import BACKEND

        return BACKEND.pinned(self.placement, x)

    def full(self, shape: tuple[int, ...], dtype: Any, value: int, like: Any) -> Array:
        """Zeros or ones in the real entries, made on the devices."""
        return self.placement.backend.full(self.placement, shape, dtype, value, like)

    def check(self, x: Any, space: Space, owner: str) -> None:
        """Raise unless `x` is an element, on the devices or plain."""
        held = arrays.is_array(x) and self.placement.holds(x) and self._fits(x, space)
        if held and not arrays.is_traced(x):
            return
        try:
            forbid(self.placement, x)
            if not held:
                super().check(x, space, owner)
        except (TypeError, ValueError) as error:
            self.refuse(error)
            raise

    def refuse(self, error: Exception) -> None:
        """Where this process raises, the others raise too."""
        refuse(self.placement.backend, error)

    def dots(self, terms: Sequence[tuple[Space, Array, Array]], host: bool) -> list[Any]:
        """Inner products over all devices."""
        placed = [(space.home.placement, a, b, space.ndim) for space, a, b in terms]
        return self.placement.backend.dots(placed, host, self.plan.deterministic)

    def lower(self, operator: Operator, space: Any) -> Operator:
        """`operator` on this placement; results that have all axes of arguments lie beside them."""
        from sharding.lowered import is_lowered, lowered_beside

        if is_lowered(operator):
            return operator
        picks = isinstance(operator, Restriction) or len(operator.domain.members) > 1
        if picks and len(space.members) == 1:
            states = states_of(self.placement)
            lowered: Operator = lowered_beside(self.plan, states, operator, structure(operator))
            return lowered
        entries = _states(space)
        return _lowered(self.plan, operator, entries, _alongside(space, operator, entries))

    def lower_between(self, operator: Operator, domain: Any, codomain: Any) -> Operator:
        """`operator` from and to elements as they live there; in shared memory as it is."""
        if not self.apart:
            return operator
        ends = (None if space is None else _states(space) for space in (domain, codomain))
        return _lowered(self.plan, operator, *ends)

    def compile(
        self, function: Callable[..., Any], donated: tuple[str, ...] = ()
    ) -> Callable[..., Any] | None:
        """`function` as one jitted program on these devices, for `shard_map`."""
        if self.plan.executor != "shard_map":
            return None
        from sharding.array_backends.device_locks import compiled
        from sharding.memory import explained

        return explained(self.plan)(compiled(self.placement.devices, function, donated))

    def agrees(self, other: Home) -> bool:
        """Whether elements lie in the same way here and there."""
        return other.placement is None or self.placement.agrees(other.placement)

    def __str__(self) -> str:
        return f"{self.placement}, [{', '.join(map(str, self.placement.devices))}]"

    def _fits(self, x: Array, space: Space) -> bool:
        """Whether the axes that are not cut have their lengths; those that are, `holds` knows."""
        first = x.ndim - space.ndim
        return first >= 0 and all(
            x.shape[first + axis] == n
            for axis, n in enumerate(space.shape)
            if axis not in self.placement.axes
        )


def placed_space(space: AnySpace, placements: Sequence[Placement], plan: Plan) -> AnySpace:
    """The space with the placements of its members."""
    pairs = zip(space.members, placements, strict=True)
    placed = [member.with_home(PlanHome(placement, plan)) for member, placement in pairs]
    return ProductSpace(placed) if isinstance(space, ProductSpace) else placed[0]


def _alongside(space: Any, operator: Operator, entries: list[States]) -> list[States] | None:
    """The states of results that lie beside their arguments: they have their shape, or all of
    their axes. None: results may lie anywhere."""
    if operator.codomain.shape == space.shape:
        return entries
    left, right = operator.rule.domain, operator.rule.codomain
    if len(left) != 1 or len(right) != 1:
        return None
    places = {axis.name: k for k, axis in enumerate(right[0]) if axis.splits}
    if not all(axis.name in places for axis in left[0]):
        return None
    return [
        tuple(
            Sharded(places[left[0][state.axis].name]) if isinstance(state, Sharded) else state
            for state in entries[0]
        )
    ]


def _states(space: Any) -> list[States]:
    return [states_of(member.home.placement) for member in space.members]


def _lowered(
    plan: Plan, operator: Operator, entries: list[States] | None, exits: list[States] | None
) -> Operator:
    from sharding.lowered import lower

    lowered: Operator = lower(plan.again(operator, entries=entries, exits=exits))
    return lowered
