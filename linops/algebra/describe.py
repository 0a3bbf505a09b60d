"""The tree of a composition as text and as HTML: what will run, with spaces, rules and figures."""

from __future__ import annotations

import html
from collections.abc import Iterator

from linops.algebra.structure import children
from linops.operator import Operator

__all__ = ["describe", "describe_html"]

_STEPS = ("", "k", "M", "G", "T", "P")


def describe(operator: Operator) -> str:
    """One line an operator, children indented below their node."""
    lines = []
    for depth, node in _tree(operator, 0):
        tags = f"  [{', '.join(sorted(node.tags))}]" if node.tags else ""
        lines.append(
            f"{'  ' * depth}{_label(node)}: {node.domain} -> {node.codomain}  '{node.rule}'  "
            f"{_arithmetic(node)}, {_figures(node)}{tags}"
        )
    return "\n".join(lines)


def describe_html(operator: Operator) -> str:
    """The same as a table, for notebooks."""
    head = ("operator", "domain", "codomain", "rule", "precision", "flops", "bytes", "tags")
    rows = ["".join(f"<th>{title}</th>" for title in head)]
    for depth, node in _tree(operator, 0):
        flops, moved = _figures(node).split(", ")
        cells = (
            _label(node),
            str(node.domain),
            str(node.codomain),
            str(node.rule),
            _arithmetic(node),
            flops,
            moved,
            ", ".join(sorted(node.tags)),
        )
        first, *rest = (html.escape(cell) for cell in cells)
        indent = f' style="padding-left: {1 + 1.5 * depth:g}em; text-align: left"'
        rows.append(f"<td{indent}>{first}</td>" + "".join(f"<td>{cell}</td>" for cell in rest))
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def _tree(operator: Operator, depth: int) -> Iterator[tuple[int, Operator]]:
    yield depth, operator
    for child in children(operator):
        yield from _tree(child, depth + 1)


def _label(operator: Operator) -> str:
    scalar = getattr(operator, "scalar", None)
    return operator.name if scalar is None else f"{operator.name} by {scalar}"


def _arithmetic(operator: Operator) -> str:
    backend = getattr(operator, "backend", None)
    return f"{operator.precision}{f', {backend}' if backend else ''}"


def _figures(operator: Operator) -> str:
    """Operations and bytes of one apply: `1.2 Mflop, 48 kB`."""
    cost = operator.cost()
    return f"{_scaled(cost.flops, 'flop')}, {_scaled(cost.read + cost.written, 'B')}"


def _scaled(value: float, unit: str) -> str:
    step = 0
    while value >= 999.5 and step + 1 < len(_STEPS):
        value, step = value / 1000, step + 1
    return f"{value:.3g} {_STEPS[step]}{unit}"
