"""What `partition=` asks for: names of axes, one for each mesh axis, checked against the leaves.

Names are those of the leaves' rules, inner edges included, or of their spaces. A name binds its
mesh axis wherever a leaf has it; elsewhere the planner is free. A side each binds the elements of
domain and codomain alone, and the planner is free in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from linops.errors import PlacementError
from linops.operator import Operator
from linops.rule import Relation
from sharding.graph import Graph
from sharding.options import Option, options

__all__ = ["SIDES", "Request", "near_square", "request"]

SIDES = ("domain", "codomain")


@dataclass(frozen=True)
class Request:
    """Names of the mesh axes and their devices; empty where everything is free.

    `sides` has for the domain, and the codomain, the axis along which elements are cut: a name or
    a number, None for copies; a side that is left out is free. `shares` asks for shares of all
    elements, along whatever axis.
    """

    names: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    sides: Mapping[str, str | int | None] = field(default_factory=dict)
    shares: bool = False

    @property
    def free(self) -> bool:
        """Whether nothing is asked for."""
        return not (self.names or self.sides or self.shares)

    @property
    def shape(self) -> tuple[int, ...]:
        """Devices along each mesh axis; empty where their number is free."""
        return tuple(self.sizes[name] for name in self.names if name in self.sizes)

    def allows(self, m: int, leaf: Operator, way: Option) -> bool:
        """Whether a leaf may run so along mesh axis `m`."""
        if not self.names:
            return True
        if self.names == ("batch",):
            return way.whole
        mine = _names_in(leaf, self.names[m])
        if mine:
            return way.cut in mine
        others = {
            name for k, other in enumerate(self.names) if k != m for name in _names_in(leaf, other)
        }
        return way.cut not in others

    def ends(self, m: int, graph: Graph, edge: int) -> set[int] | None:
        """The array axes of an input or output of the name of mesh axis `m`: it is cut along one
        of them, and what has no such axis has a copy on every device. None where it is free."""
        if self.shares:
            return {axis for axis, n in enumerate(graph.edges[edge].shape) if n > 1}
        if self.names:
            return _axes_called(self.names[m], graph, edge)
        side = "domain" if edge in graph.inputs else "codomain"
        return _axes_called(self.sides[side], graph, edge) if side in self.sides else None


def request(graph: Graph, partition: Any, devices: int | None) -> Request:
    """The request that `partition=` makes of a graph, for so many devices (None: free).

    Raises
    ------
    PlacementError
        For a name that no leaf has or that must not be split, or sizes whose product is another
        than the number of devices.
    """
    if isinstance(partition, str):
        if partition == "auto":
            return Request()
        _check(graph, partition)
        return Request((partition,), {} if devices is None else {partition: devices})
    if not isinstance(partition, Mapping) or not 1 <= len(partition) <= 2:
        raise PlacementError(
            f"partition is {partition!r}; it is 'auto', the name of an axis, a mapping of one or "
            "two names to numbers of devices, or of 'domain' and 'codomain' to the name of an axis"
        )
    if any(side in partition for side in SIDES):
        return _by_sides(graph, partition)
    names = tuple(partition)
    for name in names:
        _check(graph, name)
    sizes = _sizes(partition, devices)
    if devices is not None and math.prod(sizes.values()) != devices:
        raise PlacementError(
            f"partition {dict(partition)} takes {math.prod(sizes.values())} devices, there are "
            f"{devices}; name sizes whose product is that, or None for a near-square one; axes "
            f"that may be split: {_splittable(graph)}"
        )
    return Request(names, sizes)


def _by_sides(graph: Graph, partition: Mapping[str, Any]) -> Request:
    """The request of a mapping of `"domain"` and `"codomain"` to axes."""
    ends = dict(zip(SIDES, (graph.inputs, graph.outputs), strict=True))
    for side, axis in partition.items():
        if side not in ends:
            raise PlacementError(
                f"partition {dict(partition)} names a side and the axis {side!r}; name sides alone "
                "({'domain': 'z', 'codomain': 'view'}), or axes alone ({'view': 2, 'z': 3})"
            )
        if axis is None or any(_axes_called(axis, graph, edge) for edge in ends[side]):
            continue
        known = {own for edge in ends[side] for _, _, own in _leaf_axes(graph, edge)}
        raise PlacementError(
            f"partition: the {side} has no axis {axis!r} to cut; it has "
            f"{', '.join(sorted(known)) or 'none'}, and None asks for copies"
        )
    return Request(sides=dict(partition))


def near_square(n: int) -> tuple[int, int]:
    """V, S with V S = n, S the largest divisor of n that is at most isqrt(n)."""
    small = max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)
    return n // small, small


def _sizes(partition: Mapping[str, Any], devices: int | None) -> dict[str, int]:
    for name, size in partition.items():
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise PlacementError(f"partition gives {name!r} {size!r} devices; give a count or None")
    free = [name for name, size in partition.items() if size is None]
    if free and devices is None:
        raise PlacementError(
            f"partition {dict(partition)} leaves sizes open; name the devices then"
        )
    given = math.prod(size for size in partition.values() if size is not None)
    sizes = {name: size for name, size in partition.items() if size is not None}
    if not free:
        return sizes
    assert devices is not None
    if devices % given:
        raise PlacementError(
            f"partition {dict(partition)}: {devices} devices are no multiple of {given}"
        )
    rest = devices // given
    shares = near_square(rest) if len(free) == 2 else (rest,)
    return {**sizes, **dict(zip(free, shares, strict=True))}


def _check(graph: Graph, name: str) -> None:
    having = [leaf for leaf in graph.leaves if _named(leaf, name)]
    if not having:
        raise PlacementError(
            f"no leaf has an axis {name!r} ({', '.join(leaf.name for leaf in graph.leaves)}); "
            f"axes that may be split: {_splittable(graph)}"
        )
    for leaf in having:
        if not _names_in(leaf, name):
            raise PlacementError(
                f"{leaf.name} must not be split along {name!r}: its rule is '{leaf.rule}'; axes "
                f"that may be split: {_splittable(graph)}"
            )


def _axes_called(name: Any, graph: Graph, edge: int) -> set[int]:
    """The array axes of an edge of that name, or number; none for None."""
    ndim = graph.edges[edge].ndim
    if isinstance(name, bool):
        return set()
    if hasattr(name, "__index__"):
        return {int(name) % ndim} if -ndim <= int(name) < ndim else set()
    return {axis for leaf, axis, own in _leaf_axes(graph, edge) if own in _named(leaf, name)}


def _leaf_axes(graph: Graph, edge: int) -> Iterator[tuple[Operator, int, str]]:
    """The leaves at an edge, and its axes in their rules, by number and name."""
    alike = _added(graph, edge)
    for node in graph.nodes:
        if node.operator is None:
            continue
        rule = node.operator.rule
        for edges, members in ((node.inputs, rule.domain), (node.outputs, rule.codomain)):
            for k, row in zip(edges, members, strict=True):
                if k in alike:
                    for axis, entry in enumerate(row):
                        yield node.operator, axis, entry.name


def _added(graph: Graph, edge: int) -> set[int]:
    """The edge and those that sums join it with: they have the same axes."""
    found = {edge}
    for node in (*graph.nodes, *reversed(graph.nodes)):
        ends = {*node.inputs, *node.outputs}
        if node.operator is None and ends & found:
            found |= ends
    return found


def _splittable(graph: Graph) -> str:
    found = {way.cut for leaf in graph.leaves for way in options(leaf, 1) if way.cut is not None}
    return ", ".join(sorted(found)) or "none"


def _named(leaf: Operator, name: str) -> set[str]:
    """The names in the leaf's rule of an axis called so there or in one of its spaces."""
    if name in leaf.rule.names:
        return {name}
    found = set()
    for rows, space in ((leaf.rule.domain, leaf.domain), (leaf.rule.codomain, leaf.codomain)):
        for row, member in zip(rows, space.members, strict=True):
            if member.axes and name in member.axes:
                found.add(row[member.axes.index(name)].name)
    return found


def _names_in(leaf: Operator, name: str) -> set[str]:
    legal = {way.cut for way in options(leaf, 1)}
    return {
        own
        for own in _named(leaf, name)
        if leaf.rule.relation(own) is not Relation.WHOLE and own in legal
    }
