"""Spaces whose elements live on devices: real shapes, and inner products that leave padding out.

They are what solvers see of a placement. An element is an array on its devices, or a plain array
of the real shape, which operators put there on entry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from linops import arrays
from linops.arrays import Array
from linops.elementary.select import Restriction
from linops.operator import Operator
from linops.space import AnySpace, ProductSpace, Space
from linops.structure import structure
from sharding.homes import forbid, refuse
from sharding.placement import Placement
from sharding.plans import states_of
from sharding.states import Sharded, States

if TYPE_CHECKING:
    from sharding.plans import Plan

__all__ = ["PlacedProductSpace", "PlacedSpace", "placed_space"]


class PlacedSpace(Space):
    """A `Space` and the placement of its elements."""

    placement: Placement  # type: ignore[misc]
    _placed: ClassVar[bool] = True
    _plan: Plan

    def __init__(self, space: Space, placement: Placement, plan: Plan) -> None:
        super().__init__(space.shape, space.dtype, space.axes, space.spacing)
        object.__setattr__(self, "placement", placement)
        object.__setattr__(self, "_plan", plan)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlacedSpace):
            return NotImplemented
        return bool(self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> Any:
        return self.shape, self.dtype, self.axes, self.spacing, self.placement

    def with_dtype(self, dtype: Any) -> Space:
        """The same placement with entries of another dtype."""
        plain = Space(self.shape, dtype, self.axes, self.spacing)
        return PlacedSpace(plain, self.placement, self._plan)

    def put(self, x: Array) -> Array:
        """`x`, of the real shape, on the devices; one that is there is returned as it is."""
        return self.placement.put(x)

    def adopt(self, x: Array) -> Array:
        """`put` of an operand of one run, or of an array given away: its memory may be shared."""
        return self.placement.adopt(x)

    def lives_apart(self, x: Array) -> bool:
        """Whether `x` lies on devices that have arrays of their own."""
        return self.placement.home.apart and self.placement.holds(x)

    def gather(self, x: Array) -> Array:
        """The array of the real shape; a plain one is returned as it is."""
        return self.placement.gather(x)

    def cleared(self, x: Array) -> Array:
        """`x` with zeros in its padding."""
        if self.placement.real_shape(tuple(x.shape)) == tuple(x.shape):
            return x
        return arrays.namespace(x).where(self.placement.mask(x.ndim), x, 0)

    def zeros(self, like: Any = None) -> Array:
        """Zeros, made on the devices."""
        return self._zeros((), like)

    def ones(self, like: Any = None) -> Array:
        """Ones in the real entries."""
        return self.placement.home.full(self.placement, self.shape, self.dtype, 1, like)

    def random(self, seed: int | np.random.Generator, like: Any = None) -> Array:
        """The numbers of `Space.random`, whatever the number of devices."""
        exemplar = arrays.exemplar(like)
        plain = like if exemplar is None or not self.placement.holds(exemplar) else None
        return self.adopt(super().random(seed, plain))

    def check_shape(self, x: Array, owner: str) -> None:
        """Raise unless `x` is an element, on the devices or plain."""
        held = arrays.is_array(x) and self.placement.holds(x) and self._fits(x)
        if held and not arrays.is_traced(x):
            return
        with _together(self.placement):
            forbid(self.placement, x)
            if not held:
                super().check_shape(x, owner)

    def validate(self, x: Array) -> Array:
        """`x` itself, if it is an element."""
        with _together(self.placement):
            return super().validate(x)

    def lower(self, operator: Operator) -> Operator:
        """`operator` on this placement; results that have all axes of arguments lie beside them."""
        return _beginning_in(self, operator)

    def _lowered_between(self, operator: Operator, domain: Any, codomain: Any) -> Operator:
        """`operator` from and to elements as they live there; in shared memory as it is."""
        if not self.placement.home.apart:
            return operator
        ends = (None if space is None else _states(space) for space in (domain, codomain))
        return _lowered(self._plan, operator, *ends)

    def _product(self, members: Sequence[Space]) -> ProductSpace:
        """Placed, where all members are."""
        return (PlacedProductSpace if all(m._placed for m in members) else ProductSpace)(members)

    def compiled(
        self, function: Callable[..., Any], donated: tuple[str, ...] = ()
    ) -> Callable[..., Any] | None:
        """`function` as one jitted program on these devices, for `shard_map`."""
        if self._plan.executor != "shard_map":
            return None
        from sharding.homes.jax_turns import compiled
        from sharding.memory import explained

        return explained(self._plan)(compiled(self.placement.devices, function, donated))

    def pinned(self, x: Array) -> Array:
        """`x`, within a trace held to its placement."""
        if not arrays.is_traced(x):
            return x
        from sharding.homes.jax_devices import HOME

        return HOME.pinned(self.placement, x)

    def _fits(self, x: Array) -> bool:
        """Whether the axes that are not cut have their lengths; those that are, `holds` knows."""
        first = x.ndim - self.ndim
        return first >= 0 and all(
            x.shape[first + axis] == n
            for axis, n in enumerate(self.shape)
            if axis not in self.placement.axes
        )

    def _zeros(self, batch: tuple[int, ...], like: Any) -> Array:
        shape = (*batch, *self.shape)
        return self.placement.home.full(self.placement, shape, self.dtype, 0, like)

    @property
    def _reduces_with(self) -> Any:  # type: ignore[override]
        return self.placement.mesh, self._plan.deterministic

    def _dots(self, terms: Sequence[tuple[Any, Array, Array]], host: bool) -> list[Any]:
        placed = [(space.placement, a, b, space.ndim) for space, a, b in terms]
        return self.placement.home.dots(placed, host, self._plan.deterministic)


class PlacedProductSpace(ProductSpace):
    """A `ProductSpace` of placed members."""

    _placed: ClassVar[bool] = True

    def check_shape(self, x: Any, owner: str) -> None:
        """Raise unless `x` is a tuple of elements."""
        first = self.spaces[0]
        assert isinstance(first, PlacedSpace)
        with _together(first.placement):
            super().check_shape(x, owner)

    def _check_namespace(self, x: Sequence[Array]) -> None:
        # Plain members are put beside placed ones, of whatever namespace they are.
        if not any(m.lives_apart(part) for m, part in zip(self.members, x, strict=True)):
            super()._check_namespace(x)

    def lower(self, operator: Operator) -> Operator:
        """`operator` on these placements."""
        return _beginning_in(self, operator)

    def _lowered_between(self, operator: Operator, domain: Any, codomain: Any) -> Operator:
        """As for its members."""
        return self.spaces[0]._lowered_between(operator, domain, codomain)

    def with_dtype(self, dtype: Any) -> ProductSpace:
        """The same placements with entries of another dtype."""
        return PlacedProductSpace([space.with_dtype(dtype) for space in self.spaces])


def placed_space(space: AnySpace, placements: Sequence[Placement], plan: Plan) -> AnySpace:
    """The space with the placements of its members."""
    placed = [PlacedSpace(m, p, plan) for m, p in zip(space.members, placements, strict=True)]
    return PlacedProductSpace(placed) if isinstance(space, ProductSpace) else placed[0]


@contextlib.contextmanager
def _together(placement: Placement) -> Iterator[None]:
    """Where this raises, the other processes raise too."""
    try:
        yield
    except (TypeError, ValueError) as error:
        refuse(placement.home, error)
        raise


def _beginning_in(space: Any, operator: Operator) -> Operator:
    from sharding.lowered import is_lowered

    if is_lowered(operator):
        return operator
    picks = isinstance(operator, Restriction) or len(operator.domain.members) > 1
    if picks and len(space.members) == 1:
        from sharding.lowered import lowered_beside

        states = states_of(space.placement)
        return lowered_beside(space._plan, states, operator, structure(operator))  # type: ignore
    entries = _states(space)
    exits = _alongside(space, operator, entries)
    return _lowered(space.members[0]._plan, operator, entries, exits)


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
    return [states_of(member.placement) for member in space.members]


def _lowered(
    plan: Plan, operator: Operator, entries: list[States] | None, exits: list[States] | None
) -> Operator:
    from sharding.lowered import lower

    lowered: Operator = lower(plan.again(operator, entries=entries, exits=exits))
    return lowered
