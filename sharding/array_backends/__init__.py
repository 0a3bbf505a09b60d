"""Where arrays live: one file for each kind of devices, behind one small protocol.

Together with `linops/arrays.py` this is the only door through which arrays reach a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sharding.placement import Placement

__all__ = ["ArrayBackend", "Term", "backend_of", "forbid", "refuse", "taken"]

Term = tuple["Placement", Any, Any, int]
"""One inner product: placement, both elements, and how many axes they have without batch axes."""


class ArrayBackend(Protocol):
    """What a kind of devices does with a `Placement`.

    A back end whose `put` may share the memory of what it is given has `own(placement, given, put)`
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


def backend_of(device: Any) -> ArrayBackend:
    """The back end of devices like this one."""
    from sharding.devices import family

    backend: ArrayBackend = import_module(
        f"sharding.array_backends.{_FILES[family(device)]}"
    ).BACKEND
    return backend


def forbid(placement: Placement, x: Any) -> None:
    """Raise where `x` cannot be followed to a placement: it lies in shares of another one, or under
    a transform of `torch.func`."""
    look = getattr(placement.backend, "forbid", None)
    if look is not None:
        look(placement, x)


def taken(placement: Placement, x: Any) -> Any:
    """An element that a caller brings, with the placement's own word for where it lies."""
    own = getattr(placement.backend, "taken", None)
    return x if own is None else own(placement, x)


def refuse(backend: ArrayBackend, error: Exception) -> None:
    """Tell the processes that share this back end that one raises, so that all of them do."""
    tell = getattr(backend, "refuse", None)
    if tell is not None:
        tell(error)
