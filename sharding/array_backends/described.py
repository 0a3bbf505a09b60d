"""Devices that are not here: they can be planned for, and hold nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from linops.errors import PlacementError

if TYPE_CHECKING:
    from sharding.placement import Placement

__all__ = ["BACKEND", "Nowhere"]


class Nowhere:
    """Described devices."""

    apart = True

    def put(self, *_: Any) -> NoReturn:
        """Raises: nothing lives there."""
        _refuse()

    gather = full = dots = put

    def holds(self, placement: Placement, x: Any) -> bool:
        """Never."""
        return False

    def mask(self, placement: Placement, ndim: int) -> NoReturn:
        """Raises."""
        _refuse()

    def sharding(self, placement: Placement, ndim: int) -> None:
        """None."""


def _refuse() -> NoReturn:
    raise PlacementError(
        "these devices are descriptions: explain() a plan for them, and make a plan for real "
        "devices to run it"
    )


BACKEND = Nowhere()
