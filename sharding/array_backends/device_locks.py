"""Programs of several JAX devices, one after the other on each of them.

What is left to JAX, operations of its own and functions that users jit, does not come by here.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from linops import arrays
from linops.compiled import xla

__all__ = ["compiled", "together"]


def together(program: Callable[..., Any], devices: Sequence[Any], *operands: Any) -> Any:
    """`program(*operands)`, one program of several devices, in its turn on them.

    A lock a device: no two programs reach devices in different orders, or each would wait for the
    other in a collective. Host devices share one pool of threads, as many as there are cores or
    devices. A device that is 32 programs behind, with collectives or without, blocks the thread
    that hands it the next one; if the other threads wait for that device in a collective, the whole
    process stands still. So there the program has ended when this returns, and where a kernel has
    failed on one of the devices its error is raised. Under a trace it is a part of the caller's.
    """
    import jax

    if any(map(arrays.is_traced, operands)):
        return program(*operands)
    with contextlib.ExitStack() as held:
        for device in sorted(set(devices), key=lambda device: int(device.id)):
            held.enter_context(_locks.setdefault(device, threading.RLock()))
        if len(devices) == 1 or devices[0].platform != "cpu":
            return program(*operands)
        with xla.attend([d for d in devices if d.process_index == jax.process_index()]):
            return jax.block_until_ready(program(*operands))


_locks: dict[Any, Any] = {}


@functools.lru_cache(maxsize=256)
def compiled(
    devices: tuple[Any, ...], function: Callable[..., Any], donated: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """`function` jitted, run as `together` runs it; it may write into the arguments `donated`."""
    import jax

    program = jax.jit(function, donate_argnames=donated)

    @functools.wraps(function)
    def run(*operands: Any) -> Any:
        return together(program, devices, *operands)

    return run
