"""The tree of a composition as text: what will run, with spaces, rules and precision."""

from __future__ import annotations

from linops.algebra.structure import children
from linops.operator import Operator

__all__ = ["describe"]


def describe(operator: Operator) -> str:
    """One line an operator, children indented below their node."""
    return "\n".join(_lines(operator, ""))


def _lines(operator: Operator, indent: str) -> list[str]:
    tags = f"  [{', '.join(sorted(operator.tags))}]" if operator.tags else ""
    scalar = getattr(operator, "scalar", None)
    label = operator.name if scalar is None else f"{operator.name} by {scalar}"
    backend = getattr(operator, "backend", None)
    line = (
        f"{indent}{label}: {operator.domain} -> {operator.codomain}  '{operator.rule}'  "
        f"{operator.precision}{f', {backend}' if backend else ''}{tags}"
    )
    lines = [line]
    for child in children(operator):
        lines += _lines(child, indent + "  ")
    return lines
