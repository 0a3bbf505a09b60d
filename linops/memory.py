"""How much memory a call may still take: of the host, and of an accelerator's allocator."""

from __future__ import annotations

import sys
from typing import Any

from linops import arrays
from linops.arrays import Array

__all__ = ["address_space_left", "free_beside", "free_in_jax", "host_free"]


def host_free() -> float | None:
    """Bytes that are free on this machine or in its control group, the smaller; None: unknown."""
    found = []
    try:
        with open("/proc/meminfo") as lines:
            table = {line.split(":")[0]: line.split()[1] for line in lines}
        found.append(float(table["MemAvailable"]) * 1024)
    except (OSError, KeyError, ValueError):
        pass
    try:
        with open("/sys/fs/cgroup/memory.max") as top, open("/sys/fs/cgroup/memory.current") as now:
            found.append(float(top.read()) - float(now.read()))
    except (OSError, ValueError):
        pass
    return min(found) if found else None


def address_space_left() -> float | None:
    """Bytes that this process may still map, where its address space is limited; None: no limit."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        with open("/proc/self/statm") as pages:
            used = int(pages.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError):
        return None
    return float(max(0, limit - used))


def free_beside(x: Array) -> float | None:
    """Bytes that the device of `x` can still give: free ones and those its allocator caches.

    None where nobody knows. A tracer of JAX stands for the default device.
    """
    if arrays.on_host(x):
        return host_free()
    if arrays.is_torch(x) and x.device.type == "cuda":
        cuda = sys.modules["torch"].cuda
        cached = cuda.memory_reserved(x.device) - cuda.memory_allocated(x.device)
        return float(cuda.mem_get_info(x.device)[0] + cached)
    if arrays.is_jax(x):
        jax = sys.modules["jax"]
        devices = jax.devices() if arrays.is_traced(x) else x.devices()
        known = [free for free in map(free_in_jax, devices) if free is not None]
        return min(known, default=None) if len(known) == len(devices) else None
    return None


def free_in_jax(device: Any) -> float | None:
    """Bytes that the allocator of a JAX device can still give; None where it does not tell."""
    stats = device.memory_stats() or {}
    limit, used = stats.get("bytes_limit"), stats.get("bytes_in_use", 0)
    return None if limit is None else float(limit - used)
