"""One exchange for several stencils: leaves that are run as one, with halos that add.

A sum or a chain of stencils has a rule and blocks of its own, so it can stand in the graph as one
leaf: it reads one wider halo and computes the planes between again. Whether that is cheaper than
an exchange for each is left to the prices.
"""

from __future__ import annotations

from collections.abc import Iterator

from linops.algebra.arithmetic import compose
from linops.algebra.composition import Composition
from linops.algebra.sums import Sum
from linops.operator import Operator
from linops.rule import Relation
from sharding.graph import Graph, GraphNode, flatten

__all__ = ["in_strides", "merged", "with_whole_sums"]


def with_whole_sums(operator: Operator, graph: Graph) -> Graph | None:
    """The graph with sums that are stencils kept whole; None where there are none."""
    found = flatten(operator, lambda part: isinstance(part, Sum) and _reaches(part))
    return found if len(found.nodes) < len(graph.nodes) else None


def in_strides(operator: Operator, graph: Graph) -> Iterator[Graph]:
    """The graphs in which several steps of a power of stencils exchange once, few steps first."""
    if not any(map(_reaches, graph.leaves)):
        return
    for stride in (2, 3, 4, 6, 8):
        found = flatten(operator, stride=stride)
        steps = [leaf for leaf in found.leaves if isinstance(leaf, Composition)]
        if not steps or not all(map(_reaches, steps)):
            return
        if len(found.nodes) < len(graph.nodes):
            graph = found
            yield found


def merged(graph: Graph) -> Iterator[Graph]:
    """The graphs in which one stencil and its only reader, a stencil too, are one leaf."""
    for position, node in enumerate(graph.nodes):
        if node.operator is None or len(node.outputs) != 1 or not _reaches(node.operator):
            continue
        (edge,) = node.outputs
        readers = [k for k, other in enumerate(graph.nodes) if edge in other.inputs]
        if len(readers) != 1 or graph.readers(edge) != 1:
            continue
        reader = graph.nodes[readers[0]]
        if reader.operator is None or reader.inputs != (edge,) or not _reaches(reader.operator):
            continue
        one: Operator = compose(reader.operator, node.operator)
        if not _reaches(one):
            continue
        nodes = list(graph.nodes)
        nodes[readers[0]] = GraphNode(one, node.inputs, reader.outputs)
        del nodes[position]
        yield Graph(graph.edges, tuple(nodes), graph.inputs, graph.outputs)


def _reaches(operator: Operator) -> bool:
    """Whether it reads neighboring planes of an axis that both sides share."""
    rule = operator.rule
    return any(rule.relation(name) is Relation.ALIGNED and rule.halo(name) for name in rule.names)
