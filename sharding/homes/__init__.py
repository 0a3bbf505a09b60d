"""Where arrays live: one file for each kind of devices, behind one small protocol.

Together with `linops/arrays.py` this is the only door through which arrays reach a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sharding.placement import Placement

__all__ = ["DeviceHome", "Term", "forbid", "home_of", "refuse", "taken"]

Term = tuple["Placement", Any, Any, int]
"""One inner product: placement, both elements, and how many axes they have without batch axes."""


class DeviceHome(Protocol):
    """What a kind of devices does with a `Placement`.

    A home whose `put` may share the memory of what it is given has `own(placement, given, put)`
    too, which returns the same in memory of its own.
    """

    @property
    def apart(self) -> bool:
        """Whether its arrays are others than the user's plain ones."""

    def put(self, placement: Placement, x: Any) -> Any:
        """`x`, of the real shape, on its devices with a zero tail."""

    def gather(self, placement: Placement, x: Any) -> Any:
        """The array of the real shape."""

    def holds(self, placement: Placement, x: Any) -> bool:
        """Whether `x` has this placement."""

    def full(
        self, placement: Placement, shape: tuple[int, ...], dtype: Any, value: Any, like: Any
    ) -> Any:
        """`value` in the real entries, zero in the padding, made share by share."""

    def mask(self, placement: Placement, ndim: int) -> Any:
        """True at real entries."""

    def sharding(self, placement: Placement, ndim: int) -> Any:
        """The devices' own word for the placement."""

    def dots(self, terms: Sequence[Term], host: bool, ordered: bool) -> list[Any]:
        """`linops.reductions.dot` of pairs of elements over all devices, padding left out, in one
        reduction where there is one.

        `ordered`: by `linops.reproducible`, so that results are the same bits on any devices.
        """


_FILES = {
    "threads": "shared_memory",
    "described": "described",
    "jax": "jax_devices",
    "torch": "torch_ranks",
}


def home_of(device: Any) -> DeviceHome:
    """The home of devices like this one."""
    from sharding.devices import family

    home: DeviceHome = import_module(f"sharding.homes.{_FILES[family(device)]}").HOME
    return home


def forbid(placement: Placement, x: Any) -> None:
    """Raise where `x` cannot be followed to a placement: it lies in shares of another one, or under
    a transform of `torch.func`."""
    look = getattr(placement.home, "forbid", None)
    if look is not None:
        look(placement, x)


def taken(placement: Placement, x: Any) -> Any:
    """An element that a caller brings, with the placement's own word for where it lies."""
    own = getattr(placement.home, "taken", None)
    return x if own is None else own(placement, x)


def refuse(home: DeviceHome, error: Exception) -> None:
    """Tell the processes that share this home that one of them raises, so that all of them do."""
    tell = getattr(home, "refuse", None)
    if tell is not None:
        tell(error)
