"""Tensors that a scan was made from and that torch may train: noticed when they are written to.

A scan holds its frames as they were when it was made. An optimiser writes into its parameters in
place, and a projector of the old frames would go on with them, its loss standing still. So a scan
remembers the leaves of its graph with their version counters, and who uses it asks whether they
still hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from linops import arrays
from linops.errors import GeometryError

__all__ = ["Watch", "refuse_written", "watched"]

Watch = tuple[tuple[Any, int], ...]


def watched(values: Iterable[Any]) -> Watch:
    """The leaves that torch records a derivative to, and how often each has been written to."""
    nodes: list[Any] = []
    found: dict[int, tuple[Any, int]] = {}

    def keep(leaf: Any) -> None:
        if not leaf.is_inference():
            found[id(leaf)] = leaf, leaf._version

    for value in values:
        if not arrays.is_torch(value) or arrays.is_traced(value) or not value.requires_grad:
            continue
        if value.grad_fn is None:
            keep(value)
        else:
            nodes.append(value.grad_fn)
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            keep(leaf)
        new = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= new
        nodes += new
    return tuple(found.values())


def refuse_written(watch: Watch, owner: str) -> None:
    """Raise where a leaf has been written to since.

    Raises
    ------
    GeometryError
        Naming the ways to go on.
    """
    for leaf, version in watch:
        if leaf._version != version:
            raise GeometryError(
                f"{owner} holds its scan as it was made, and a tensor of shape "
                f"{tuple(leaf.shape)} that the scan came from has been written to since, as an "
                "optimiser does: make the scan anew from it in every step, and with it a fresh "
                "Projector or A.with_geometry(scan)"
            )
