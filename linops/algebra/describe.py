"""The tree of a composition as text and as HTML: what will run, with spaces, rules and figures."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator

from linops.operator import Operator
from linops.structure import children

__all__ = ["describe", "describe_html"]

_STEPS = ("", "k", "M", "G", "T", "P")


def describe(operator: Operator) -> str:
    """One line an operator, children indented below their node."""
    lines = []
    for depth, node in _tree(operator, 0):
        tags = f"  [{_tags(node)}]" if _tags(node) else ""
        lines.append(
            f"{'  ' * depth}{_label(node)}: {node.domain} -> {node.codomain}  '{_rule(node)}'  "
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
            _rule(node),
            _arithmetic(node),
            flops,
            moved,
            _tags(node),
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
    """Precision, and what else a leaf tells of how it runs: its back end, and the way it takes."""
    chosen = (getattr(operator, name, None) for name in ("backend", "path"))
    parts = [_shown(lambda: str(operator.precision)), *(part for part in chosen if part)]
    return ", ".join(parts)


def _figures(operator: Operator) -> str:
    """Operations and bytes of one apply: `1.2 Mflop, 48 kB`."""

    def figures() -> str:
        cost = operator.cost()
        return f"{_scaled(cost.flops, 'flop')}, {_scaled(cost.read + cost.written, 'B')}"

    return _shown(figures, "?, ?")


def _rule(operator: Operator) -> str:
    return _shown(lambda: str(operator.rule))


def _tags(operator: Operator) -> str:
    return _shown(lambda: ", ".join(sorted(operator.tags)))


def _shown(text: Callable[[], str], unknown: str = "?") -> str:
    """`text()`, or a mark where the arrays that it asks are placeholders of a pytree."""
    try:
        return text()
    except Exception:  # whatever stands in their place: a picture of the tree never fails
        return unknown


def _scaled(value: float, unit: str) -> str:
    step = 0
    while value >= 999.5 and step + 1 < len(_STEPS):
        value, step = value / 1000, step + 1
    return f"{value:.3g} {_STEPS[step]}{unit}"
