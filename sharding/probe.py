"""Whether copies between devices arrive: tried once a process before the first program.

On some machines a copy from one accelerator to another gives zeros or stale memory in silence
(jax#36308, jax#37150). Every ordered pair is tried, and one replication to all, with 64 MiB and
with 16 bytes. Pairs that fail are taken through the host from then on, and compiled collectives
are refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linops.errors import PlacementError
from sharding.array_backends.jax_devices import distrust, jax_mesh, send
from sharding.mesh import Mesh

__all__ = ["Verdict", "probe", "store", "verdict"]

_SIZES = (1 << 24, 4)  # words of four bytes


@dataclass(frozen=True)
class Verdict:
    """What the probe found.

    Attributes
    ----------
    tried
        Whether anything was copied; host devices share one memory and are not tried.
    wrong
        Pairs of devices `(from, to)` between which copies arrive wrong.
    """

    tried: bool
    wrong: tuple[tuple[Any, Any], ...] = ()

    def __str__(self) -> str:
        if not self.tried:
            return "copies between devices: not tried"
        if not self.wrong:
            return "copies between devices: right"
        pairs = ", ".join(f"{a} to {b}" for a, b in self.wrong)
        return f"copies between devices: wrong from {pairs}; they go through the host"


_known: dict[tuple[Any, ...], Verdict] = {}


def verdict(devices: Sequence[Any]) -> Verdict:
    """What is known about these devices; nothing is tried."""
    return _known.get(_key(devices), Verdict(False))


def store(devices: Sequence[Any], found: Verdict) -> None:
    """Take over a verdict, of an earlier process or by decree; the probe is then not run."""
    _known[_key(devices)] = found
    if found.wrong:
        distrust(found.wrong)
        pairs = ", ".join(f"{a} to {b}" for a, b in found.wrong)
        warnings.warn(
            f"copies from {pairs} arrive wrong on this machine: they go through the host",
            RuntimeWarning,
            stacklevel=2,
        )


def probe(
    devices: Sequence[Any],
    executor: str,
    copy: Callable[[Any, Any], Any] = send,
    sizes: Sequence[int] = _SIZES,
) -> Verdict:
    """The verdict on these devices, tried where nobody knows it.

    Raises
    ------
    PlacementError
        Where copies go wrong and the executor has compiled collectives.
    """
    key = _key(devices)
    if key not in _known:
        there = [device for device in devices if device.platform != "cpu"]
        found = _tried(there, copy, sizes) if len(there) > 1 else Verdict(False)
        store(devices, found)
    found = _known[key]
    if found.wrong and executor == "shard_map":
        raise PlacementError(
            f"{found}: compiled collectives would copy between them; take executor='threads', "
            "whose copies do not"
        )
    return found


def _tried(
    devices: Sequence[Any], copy: Callable[[Any, Any], Any], sizes: Sequence[int]
) -> Verdict:
    wrong = []
    for size in sizes:
        pattern = np.arange(1, size + 1, dtype=np.uint32) * np.uint32(2654435761) | np.uint32(1)
        for a in devices:
            source = send(pattern, a)
            for b in devices:
                if a is b or (a, b) in wrong:
                    continue
                _soil(b, size)
                if not _same(copy(source, b), pattern):
                    wrong.append((a, b))
        wrong += [pair for pair in _replicated(devices, pattern) if pair not in wrong]
    return Verdict(True, tuple(wrong))


def _replicated(devices: Sequence[Any], pattern: np.ndarray) -> list[tuple[Any, Any]]:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax_mesh(Mesh.row(tuple(devices)))
    for device in devices:
        _soil(device, len(pattern))
    copies = jax.device_put(send(pattern, devices[0]), NamedSharding(mesh, PartitionSpec()))
    return [
        (devices[0], shard.device)
        for shard in copies.addressable_shards
        if not _same(shard.data, pattern)
    ]


def _soil(device: Any, size: int) -> None:
    """Memory of the device filled with something else, and freed."""
    send(np.full(size, 0x5A5A5A5A, np.uint32), device).block_until_ready().delete()


def _same(x: Any, pattern: np.ndarray) -> bool:
    return bool(np.array_equal(np.asarray(x), pattern))


def _key(devices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(sorted(devices, key=lambda device: int(device.id)))
