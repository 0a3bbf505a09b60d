"""What one application of an operator costs: the figures that a planner adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from linops.space import AnySpace

__all__ = ["Cost"]


@dataclass(frozen=True)
class Cost:
    """Floating-point operations, and bytes read, written and held as workspace.

    Workspace is what an apply to one NumPy element holds at most beside its input and its result,
    what the operator keeps for later applies included. `adjoint` is that of the adjoint; None
    where it is the same.
    """

    flops: float = 0.0
    read: float = 0.0
    written: float = 0.0
    workspace: float = 0.0
    adjoint: float | None = None

    @classmethod
    def streaming(cls, domain: AnySpace, codomain: AnySpace, flops: float | None = None) -> Cost:
        """The cost of reading the input once and writing the output once."""
        read, written = bytes_of(domain), bytes_of(codomain)
        return cls(float(codomain.size) if flops is None else flops, read, written, 0.0)

    @classmethod
    def chained(cls, costs: Sequence[Cost]) -> Cost:
        """Of operators one after the other, the outermost first: what one hands to the next is
        workspace."""
        total = sum(costs[1:], costs[0])
        workspace = 0.0
        for number, cost in enumerate(costs):
            between = cost.written if number else 0.0
            before = costs[number + 1].written if number + 1 < len(costs) else 0.0
            workspace = max(workspace, cost.workspace + between + before)
        return replace(total, workspace=workspace)

    @classmethod
    def added(cls, costs: Sequence[Cost], result: float) -> Cost:
        """Of operators whose results, of `result` bytes, are added up one by one."""
        total = sum(costs[1:], costs[0])
        if len(costs) < 2:
            return total
        first, *others = (cost.workspace for cost in costs)
        workspace = max(first, result + max(others), 2 * result)
        return replace(total, workspace=workspace)

    @property
    def reversed(self) -> Cost:
        """The cost of the adjoint."""
        back = self.workspace if self.adjoint is None else self.adjoint
        return Cost(self.flops, self.written, self.read, back, self.workspace)

    def times(self, n: float) -> Cost:
        """Of n applications side by side, as batch axes make them."""
        back = None if self.adjoint is None else n * self.adjoint
        return Cost(n * self.flops, n * self.read, n * self.written, n * self.workspace, back)

    def __add__(self, other: Cost) -> Cost:
        """Both, one after the other: work adds, workspace is re-used."""
        return Cost(
            self.flops + other.flops,
            self.read + other.read,
            self.written + other.written,
            max(self.workspace, other.workspace),
        )


def bytes_of(space: AnySpace) -> float:
    """Bytes of one element."""
    return float(sum(member.size * member.dtype.itemsize for member in space.members))
