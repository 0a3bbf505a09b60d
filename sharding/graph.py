"""A composition as a graph of leaves: what the planner assigns states to.

Products, sums, stacks, grams and functionals of operators are taken apart; whatever else has a
rule is a leaf. Members of product spaces are edges of their own. Nothing here knows a device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from linops.algebra.composition import Composition, flat_product
from linops.algebra.gram import Gram
from linops.algebra.scaled import Scaled
from linops.algebra.stacks import BlockDiagonal, HorizontalStack, VerticalStack
from linops.algebra.sums import Sum
from linops.elementary.identity import Identity
from linops.functionals.functional import Functional
from linops.operator import Operator
from linops.space import AnySpace, Space

__all__ = ["Graph", "GraphNode", "flatten"]


@dataclass(frozen=True)
class GraphNode:
    """A leaf, or where `operator` is None the sum of its inputs."""

    operator: Operator | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """Edges by their spaces, nodes in an order in which they can run."""

    edges: tuple[Space, ...]
    nodes: tuple[GraphNode, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def readers(self, edge: int) -> int:
        """How often an edge is read, by nodes and as an output."""
        return sum(node.inputs.count(edge) for node in self.nodes) + self.outputs.count(edge)

    @property
    def leaves(self) -> tuple[Operator, ...]:
        """The operators of the nodes, in order."""
        return tuple(node.operator for node in self.nodes if node.operator is not None)


def flatten(
    operator: Operator, atomic: Callable[[Operator], bool] | None = None, stride: int = 1
) -> Graph:
    """The graph of an operator or functional; what is `atomic` is not taken apart.

    With a `stride` up to so many steps of a power, which could be taken apart, are one leaf.
    """
    builder = _Builder(atomic or (lambda _: False), stride)
    inputs = [builder.edge(space) for space in operator.domain.members]
    outputs = builder.trace(operator, tuple(inputs))
    return Graph(tuple(builder.edges), tuple(builder.nodes), tuple(inputs), outputs)


class _Builder:
    def __init__(self, atomic: Callable[[Operator], bool], stride: int) -> None:
        self.atomic, self.stride = atomic, stride
        self.edges: list[Space] = []
        self.nodes: list[GraphNode] = []
        self._seen: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}

    def edge(self, space: Space) -> int:
        self.edges.append(space)
        return len(self.edges) - 1

    def trace(self, operator: Any, ins: tuple[int, ...]) -> tuple[int, ...]:
        key = (id(operator), ins)
        if key not in self._seen:
            self._seen[key] = self._traced(operator, ins)
        return self._seen[key]

    def _traced(self, operator: Any, ins: tuple[int, ...]) -> tuple[int, ...]:
        if _is_node(operator) and self.atomic(operator):
            return self._leaf(operator, ins)
        if isinstance(operator, Composition):
            terms = list(operator.terms)
            while terms:
                step = _repeated(terms, self.stride)
                if step:
                    ins = self._leaf(flat_product(step), ins)
                else:
                    ins = self.trace(terms[-1], ins)
                del terms[-(len(step) or 1) :]
            return ins
        if isinstance(operator, Gram):
            return self.trace(operator.product, ins)
        if isinstance(operator, Sum):
            return self._added([self.trace(term, ins) for term in operator.terms])
        if isinstance(operator, VerticalStack):
            return tuple(k for term in operator.terms for k in self.trace(term, ins))
        if isinstance(operator, HorizontalStack):
            return self._added(
                [self.trace(term, part) for term, part in _dealt(operator.terms, ins)]
            )
        if isinstance(operator, BlockDiagonal):
            return tuple(
                k for term, part in _dealt(operator.terms, ins) for k in self.trace(term, part)
            )
        if isinstance(operator, Scaled) and _is_node(operator.base):
            outs = self.trace(operator.base, ins)
            factor = operator.scalar
            return tuple(self._leaf(factor * Identity(self.edges[k]), (k,))[0] for k in outs)
        return self._leaf(operator, ins)

    def _leaf(self, operator: Operator, ins: tuple[int, ...]) -> tuple[int, ...]:
        # Values of functionals are sums: they are added up in float64.
        spaces = (Space((), "float64"),) if isinstance(operator, Functional) else None
        outs = tuple(self.edge(space) for space in spaces or operator.codomain.members)
        self.nodes.append(GraphNode(operator, ins, outs))
        return outs

    def _added(self, parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        if len(parts) == 1:
            return parts[0]
        outs = []
        for column in zip(*parts, strict=True):
            out = self.edge(self.edges[column[0]])
            self.nodes.append(GraphNode(None, tuple(column), (out,)))
            outs.append(out)
        return tuple(outs)


_FACTORS = 4
"""The most factors of a step of which powers are known again."""

_NODES = (
    Composition,
    Gram,
    Sum,
    VerticalStack,
    HorizontalStack,
    BlockDiagonal,
)


def _is_node(operator: Any) -> bool:
    if isinstance(operator, Scaled):
        return _is_node(operator.base)
    return isinstance(operator, _NODES)


def _repeated(terms: Sequence[Operator], most: int) -> list[Operator]:
    """The last factors of a product where they are equal steps, `most` steps of them."""
    for count, size in itertools.product(range(most, 1, -1), range(1, _FACTORS + 1)):
        step, last = list(terms[-size:]), list(terms[-size * count :])
        if last == step * count and any(map(_is_node, step)):
            return last
    return []


def _dealt(
    terms: Sequence[Operator], ins: tuple[int, ...]
) -> list[tuple[Operator, tuple[int, ...]]]:
    dealt, start = [], 0
    for term in terms:
        space: AnySpace = term.domain
        count = len(space.members)
        dealt.append((term, ins[start : start + count]))
        start += count
    return dealt
