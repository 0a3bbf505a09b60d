"""Which devices there are: worker threads, JAX devices, ranks, or descriptions of absent ones.

Nothing is started by looking: JAX is asked only where it is already imported or named, and a
process group only where one runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from linops import numeric
from linops.compiled import pool
from linops.errors import PlacementError
from linops.memory import free_in_jax, host_free
from sharding.machine import Machine

__all__ = [
    "Described",
    "Rank",
    "Worker",
    "choose",
    "device_of",
    "family",
    "host_memory",
    "machine_of",
    "more",
    "of_ranks",
    "portable",
    "ranked",
    "returned",
    "world",
]


@dataclass(frozen=True)
class Worker:
    """A thread of this process; all of them share its memory."""

    number: int

    def __str__(self) -> str:
        return f"worker {self.number}"


@dataclass(frozen=True)
class Rank:
    """A process of the default process group of torch."""

    number: int
    kind: str = "cpu"

    def __str__(self) -> str:
        return f"rank {self.number}"


@dataclass(frozen=True)
class Described:
    """A device that is not here: what `plan` needs to price a program for it.

    Attributes
    ----------
    number
        To tell devices apart.
    memory
        Bytes that it holds.
    bandwidth, link
        Bytes a second of its memory, and to another device.
    flops
        Operations a second.
    """

    number: int
    memory: float = 80e9
    bandwidth: float = 2e12
    link: float = 2e11
    flops: float = 2e13

    def __post_init__(self) -> None:
        numeric.whole("number", self.number, 0, PlacementError)
        for name in ("memory", "bandwidth", "link", "flops"):
            numeric.positive(name, getattr(self, name), PlacementError)

    @classmethod
    def several(cls, count: int, **properties: float) -> tuple[Described, ...]:
        """`count` equal devices."""
        return tuple(cls(i, **properties) for i in range(count))

    def __str__(self) -> str:
        return f"described {self.number}"


@dataclass(frozen=True)
class _JaxDevice:
    """What a device of JAX is called."""

    platform: str
    number: int


_MORE_CPUS = (
    "; more CPU devices come from XLA_FLAGS=--xla_force_host_platform_device_count=N, set before "
    "JAX is imported"
)


def family(device: Any) -> str:
    """`"threads"`, `"jax"`, `"torch"` or `"described"`."""
    if isinstance(device, Worker):
        return "threads"
    if isinstance(device, Rank):
        return "torch"
    if isinstance(device, Described):
        return "described"
    return "jax"


def portable(device: Any) -> Any:
    """A device as it is pickled: those of JAX by platform and number."""
    return _JaxDevice(device.platform, int(device.id)) if family(device) == "jax" else device


def returned(device: Any) -> Any:
    """The device of this process that `portable` named.

    Raises
    ------
    PlacementError
        Where it is not there.
    """
    if not isinstance(device, _JaxDevice):
        return device
    for found in _jax_devices(device.platform):
        if int(found.id) == device.number:
            return found
    there = [str(found) for found in _jax_devices(device.platform)]
    raise PlacementError(
        f"a plan for device {device.platform}:{device.number} was unpickled where JAX has {there}: "
        "start this process with as many devices, or plan the operator here" + _MORE_CPUS
    )


def choose(devices: Any, executor: str) -> tuple[tuple[Any, ...], str]:
    """The devices that may be used, and the executor.

    Parameters
    ----------
    devices
        None (all), a number (the first so many), the name of a platform (`"cpu"`, `"gpu"`), or a
        sequence of devices or of their numbers, in the order wanted.
    executor
        `"auto"`, `"serial"`, `"threads"`, `"shard_map"` or `"torch"`.

    Raises
    ------
    PlacementError
        For a device that is repeated, that is not there, or that the executor does not run on;
        the message says what there is.
    """
    known = ("auto", "serial", "threads", "shard_map", "torch")
    if executor not in known:
        raise PlacementError(f"executor is {executor!r}; it is one of {', '.join(known)}")
    listed = _listed(devices)
    if listed and not all(map(_is_count, listed)):
        return _given(listed, executor)
    if executor == "torch" or (executor == "auto" and devices is None and world() > 1):
        return _numbered(devices, listed, _ranks(), "ranks"), "torch"
    if isinstance(devices, str) or executor == "shard_map":
        found = _jax_devices(devices if isinstance(devices, str) else None)
        wanted = None if isinstance(devices, str) else devices
        chosen = _numbered(wanted, listed, found, "JAX devices")
        return chosen, _for_jax(executor, chosen)
    if executor == "auto" and devices is None and _accelerate():
        chosen = _jax_devices(None)
        return chosen, _for_jax(executor, chosen)
    if devices is None:
        workers: Sequence[Any] = [Worker(i) for i in range(pool.workers())]
        return tuple(workers), "threads" if executor == "auto" else executor
    # Threads may outnumber the cores: results do not depend on their number.
    count = max(*listed, 0) + 1 if listed else _count(devices)
    found = tuple(Worker(i) for i in range(count))
    chosen = _numbered(devices, listed, found, "workers")
    return chosen, "threads" if executor == "auto" else executor


def more(devices: Sequence[Any]) -> str:
    """Where more devices of this kind come from, for messages."""
    return _MORE_CPUS if getattr(devices[0], "platform", None) == "cpu" else ""


def of_ranks(devices: Any, executor: str) -> bool:
    """Whether a plan is made by all ranks of a process group together."""
    if world() == 1:
        return False
    listed = devices if isinstance(devices, (list, tuple)) else (devices,)
    if any(isinstance(d, Rank) or hasattr(d, "mesh_dim_names") for d in listed):
        return True
    return executor == "torch" or (executor == "auto" and devices is None)


def machine_of(devices: Sequence[Any], executor: str) -> Machine:
    """The rates of such devices."""
    first = devices[0]
    if isinstance(first, Described):
        return Machine(first.flops, first.bandwidth, first.link, 2e-5, memory=first.memory)
    if executor in ("serial", "threads") and isinstance(first, Worker):
        cores = 1 if executor == "serial" else pool.workers()
        return Machine(2e9, 5e9, 5e9, 2e-5, shared=True, cores=cores, memory=host_memory())
    if isinstance(first, Rank):
        return Machine(2e9, 5e9, 1e9, 2e-4, memory=host_memory(len(devices)))
    if getattr(first, "platform", "cpu") == "cpu":
        cores = os.cpu_count() or 1
        memory = host_memory(len(devices))
        return Machine(2e9, 5e9, 2e9, 1e-4, cores=cores, memory=memory)
    return Machine(2e13, 2e12, 5e10, 2e-5, memory=_device_memory(first))


def _listed(devices: Any) -> tuple[Any, ...]:
    if devices is None or isinstance(devices, str) or _is_count(devices):
        return ()
    if isinstance(devices, (list, tuple)):
        if not devices:
            raise PlacementError("devices is empty; name one or more, or None for all")
        if len(set(devices)) != len(devices):
            raise PlacementError(f"a device stands twice in {list(devices)}; name each once")
        return tuple(devices)
    if hasattr(devices, "platform") or isinstance(devices, (Worker, Rank, Described)):
        return (devices,)
    raise PlacementError(
        f"devices is {devices!r}; it is None, a number, a platform such as 'cpu', a list of "
        "devices or of their numbers, or a mesh of JAX or torch"
    )


def _is_count(devices: Any) -> bool:
    return hasattr(devices, "__index__") and not isinstance(devices, bool)


def _given(devices: tuple[Any, ...], executor: str) -> tuple[tuple[Any, ...], str]:
    families = {family(d) for d in devices}
    if len(families) > 1 or not all(
        hasattr(d, "platform") or isinstance(d, (Worker, Rank, Described)) for d in devices
    ):
        raise PlacementError(
            f"devices {list(devices)} are not of one kind; give JAX devices, workers, ranks, "
            "descriptions, or numbers"
        )
    (kind,) = families
    if kind == "jax":
        if executor in ("serial", "torch"):
            raise PlacementError(f"executor {executor!r} does not run on JAX devices {devices}")
        return devices, _for_jax(executor, devices)
    allowed = {
        "threads": ("auto", "threads", "serial"),
        "torch": ("auto", "torch"),
        "described": ("auto", "shard_map", "torch", "threads", "serial"),
    }[kind]
    if executor not in allowed:
        raise PlacementError(f"executor {executor!r} does not run on {devices[0]}")
    if kind == "described":
        return devices, "shard_map" if executor == "auto" else executor
    return devices, allowed[1] if executor == "auto" else executor


def _for_jax(executor: str, devices: Sequence[Any]) -> str:
    if executor != "auto":
        return executor
    # On a CPU one SPMD program runs slower than one worker a device.
    return "threads" if all(d.platform == "cpu" for d in devices) else "shard_map"


def _numbered(
    devices: Any, listed: tuple[Any, ...], found: Sequence[Any], what: str
) -> tuple[Any, ...]:
    if listed:
        wrong = [i for i in listed if not 0 <= i < len(found)]
        if wrong:
            raise PlacementError(
                f"there is no device {wrong[0]}: there are {len(found)} {what}, "
                f"{[str(d) for d in found]}"
            )
        return tuple(found[i] for i in listed)
    if devices is None:
        return tuple(found)
    count = _count(devices)
    if not 1 <= count <= len(found):
        raise PlacementError(
            f"devices={count}: there are {len(found)} {what}, "
            f"{[str(d) for d in found]}{more(found)}"
        )
    return tuple(found[:count])


def _count(devices: Any) -> int:
    try:
        count = int(devices.__index__())
    except AttributeError:
        raise PlacementError(f"devices is {devices!r}; a number of devices is whole") from None
    if isinstance(devices, bool) or count < 1:
        raise PlacementError(f"devices={devices!r}; name one or more")
    return count


def _jax_devices(platform: str | None) -> tuple[Any, ...]:
    import jax

    try:
        return tuple(jax.devices(platform))
    except RuntimeError as error:
        raise PlacementError(
            f"JAX has no platform {platform!r} here: {error}; it has "
            f"{sorted({d.platform for d in jax.devices()})}"
        ) from error


def _accelerate() -> bool:
    """Whether JAX is in use, with devices that are no CPU."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not getattr(bridge, "_backends", None):
        return False
    return any(d.platform != "cpu" for d in sys.modules["jax"].devices())


def world() -> int:
    """The processes of torch's default group; 1 without one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


def ranked(numbers: Sequence[int]) -> tuple[Rank, ...]:
    """The ranks of these numbers."""
    kind = _ranks()[0].kind
    return tuple(Rank(int(number), kind) for number in numbers)


def _ranks() -> tuple[Rank, ...]:
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise PlacementError(
            "executor 'torch' runs in a process group: call torch.distributed.init_process_group "
            "on every rank first, e.g. under torchrun"
        )
    kind = "cuda" if "nccl" in str(dist.get_backend()) else "cpu"
    return tuple(Rank(i, kind) for i in range(dist.get_world_size()))


def device_of(kind: str) -> Any:
    """The torch device of this rank: of GPUs the one that was chosen, else that of LOCAL_RANK.

    Ranks that have not called `torch.cuda.set_device` would all take the first one.
    """
    import torch

    if kind != "cuda":
        return torch.device(kind)
    if not torch.cuda.is_initialized() and "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", torch.cuda.current_device())


def host_memory(shares: int = 1) -> float | None:
    """Nine tenths of what is free on this machine or in its control group, for each share."""
    free = host_free()
    return None if free is None else 0.9 * free / shares


def _device_memory(device: Any) -> float | None:
    free = free_in_jax(device)
    return None if free is None else 0.9 * free
