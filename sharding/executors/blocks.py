"""The blocks of a plan's leaves on real ranges of planes, made when first used and kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from linops.algebra.blocks import extent
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from sharding.banding import banded, bands
from sharding.states import real_range
from sharding.steps import Compute, Loop

__all__ = ["Blocks"]


class Blocks:
    """The blocks of a plan's leaves, made when they are first used and kept.

    Parameters
    ----------
    mesh
        Devices along each mesh axis.
    """

    def __init__(self, mesh: tuple[int, ...], coordinates: Sequence[tuple[int, ...]]) -> None:
        self._mesh, self._coordinates = mesh, tuple(coordinates)
        self._made: dict[tuple[int, ...], Operator | None] = {}
        self._parts: dict[tuple[int, int], Sequence[Operator]] = {}
        self._lock = threading.Lock()

    def of(self, step: Compute, device: int) -> Operator | None:
        """The block of a leaf on a device, before `adjoint`; None where its share is empty."""
        return self._kept((step.number, device), lambda: self._make(step, device))

    def tile(self, step: Loop, device: int, first: int, last: int) -> Operator | None:
        """One band of a loop's block on a device: planes `[first, last)` of it."""

        def make() -> Operator | None:
            whole = self._share(step, device)
            return None if whole is None else whole.block(step.bands[0], first, last)

        return self._kept((step.number, device, first, last), make)

    def parts(self, step: Compute, device: int) -> Sequence[Operator]:
        """The block of a leaf on a device, or the bands that it runs in."""
        return self._parts.get((step.number, device), ())

    def fresh(self) -> Blocks:
        """The same leaves, their blocks made anew: for arrays that change or carry a graph."""
        return Blocks(self._mesh, self._coordinates)

    def linearised(self, points: dict[tuple[int, int], Any]) -> Blocks:
        """Blocks of the Jacobians at the local inputs `points`, by leaf and device."""
        made = Blocks(self._mesh, self._coordinates)
        made._parts = self._parts
        for key, block in self._made.items():
            if block is None or isinstance(block, LinearOperator):
                made._made[key] = block
            else:
                made._made[key] = block.jacobian(points[key[0], key[1]])
        return made

    def _kept(self, key: tuple[int, ...], make: Callable[[], Operator | None]) -> Operator | None:
        if key not in self._made:
            with self._lock:
                if key not in self._made:
                    self._made[key] = make()
        return self._made[key]

    def _make(self, step: Compute, device: int) -> Operator | None:
        operator = self._share(step, device)
        if operator is not None:
            self._parts[step.number, device] = (operator,)
        if isinstance(step, Loop) and isinstance(operator, LinearOperator):
            self._parts[step.number, device] = bands(operator, *step.bands)
            return banded(operator, *step.bands)
        return operator

    def _share(self, step: Compute, device: int) -> Operator | None:
        operator, at = step.operator, self._coordinates[device]
        for m, name in enumerate(step.cuts):
            if name is None:
                continue
            lo, hi = real_range(extent(step.operator, name), self._mesh[m], at[m])
            if lo == hi:
                return None
            operator = operator.block(name, lo, hi)
        return operator
