"""What the compiler says that a program takes on each device, before any of it is allocated."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from linops.errors import DTypeError, PlacementError
from linops.memory import free_in_jax, host_free
from sharding import memory
from sharding.devices import family
from sharding.memory import Account

if TYPE_CHECKING:
    from sharding.plans import Plan

__all__ = ["account_of", "accounts", "admit"]


def accounts(plan: Plan) -> tuple[Account, ...]:
    """The accounts of a plan's programs, forward and adjoint; none where nothing is compiled.

    What is compiled here is kept: its first run compiles nothing more.
    """
    if plan.executor != "shard_map" or family(plan.devices[0]) != "jax":
        return ()
    from sharding.executors import prepared

    # What cannot run on JAX says so when it is lowered.
    with contextlib.suppress(DTypeError, PlacementError):
        engine = prepared(plan)
        programs = [plan.forward] + ([] if plan.adjoint is None else [plan.adjoint])
        return tuple(engine.account(program, plan.batch) for program in programs)
    return ()


def account_of(compiled: Any, inputs: int) -> Account:
    """The account of a compiled program of JAX of which arguments of `inputs` bytes come in."""
    counted = compiled.memory_analysis()
    return Account(
        inputs,
        max(int(counted.argument_size_in_bytes) - inputs, 0),
        int(counted.output_size_in_bytes),
        int(counted.temp_size_in_bytes),
    )


def admit(devices: Sequence[Any], account: Account) -> None:
    """Refuse a run that these devices have no room for, before any of them has begun.

    A device that fails to allocate inside a collective would leave the others waiting.

    Raises
    ------
    MemoryError
        Naming the device, what the run allocates, and what is free.
    """
    needed = account.results + account.temporaries
    if needed * len(devices) < memory.SMALL:
        return
    here = [d for d in devices if d.process_index == d.client.process_index()]
    found = [memory.shortage(needed, free_in_jax(device), device) for device in here]
    if all(device.platform == "cpu" for device in here):
        host = f"{len(here)} devices of this host"
        found.append(memory.shortage(needed * len(here), host_free(), host))
    for error in found:
        if error is not None:
            raise error
