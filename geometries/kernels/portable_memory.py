"""How the array code of rays divides its work so that temporaries fit: tiles and batches.

A batch of R rays in a tile of e cells a side holds, beyond operands and results,

    R (Q (8 (6 + 2 D) + 24) + 1024) bytes,    Q = D e in Siddon's model, 2^(D-1) e in Joseph's,

with all arrays of its set-up and march counted in float64, and where it is differentiated in the
geometry. The grid is one tile where a ray through it takes at most half of
the budget; else tiles shrink, to one cell if need be, and batches to one ray: there is no floor.
Tiles are ranges of the array, which is read and written in place.
"""

from __future__ import annotations

import math

import numpy as np

from linops import memory
from linops.arrays import Array, on_host

__all__ = ["budget", "division", "pieces_of", "ray_bytes", "workspace"]

_LEAST, _MOST = 8 << 20, 256 << 20
_QUICK = 16 << 20  # larger temporaries leave the caches of a CPU, and are slower
_RAY = 1024


def budget(like: Array, asked: int | None) -> int:
    """Bytes for temporaries beside `like`: what was asked for, else by what its device has free.

    On a CPU `max(8 MiB, min(free / 4, 256 MiB))`, on an accelerator a quarter of what its allocator
    can still give, at least 8 MiB; a power of two, so that programs are compiled once.
    """
    if asked is not None:
        return asked
    free = (memory.free_beside(like) or 0) / 4
    if on_host(like):
        free = min(free, _MOST)
    return int(2 ** math.floor(math.log2(max(free, _LEAST))))


def division(
    rays: int, model: str, voxels: tuple[int, ...], like: Array, asked: int | None, slopes: bool
) -> tuple[int, int]:
    """Cells along the sides of a tile, and rays a batch.

    Parameters
    ----------
    rays
        How many there are.
    model
        `"siddon"` or `"joseph"`.
    voxels
        Shape of the array.
    like
        An array of the data.
    asked
        The budget in bytes, or None for what is free.
    slopes
        Whether weights are differentiated in the geometry: such a call takes half the budget.
    """
    allowed = budget(like, asked)
    if asked is None and on_host(like):
        allowed = min(allowed, _QUICK)
    if slopes:
        allowed //= 2
    edge = max(*voxels, 1)
    dims = len(voxels)
    while edge > 1 and ray_bytes(model, edge, dims) > allowed // 2:
        edge = (edge + 1) // 2
    fitting = max(allowed // ray_bytes(model, edge, dims), 1)
    count = max(math.ceil(rays / fitting), 1)
    return edge, max(math.ceil(rays / count), 1)


def workspace(rays: int, model: str, voxels: tuple[int, ...], asked: int | None) -> float:
    """Bytes that a projection on the host holds beyond what comes and goes."""
    edge, batch = division(rays, model, voxels, np.empty(0), asked, slopes=False)
    return float(batch * ray_bytes(model, edge, len(voxels)))


def ray_bytes(model: str, edge: int, dims: int) -> int:
    """What one ray through a tile holds."""
    return pieces_of(model, edge, dims) * (8 * (6 + 2 * dims) + 24) + _RAY


def pieces_of(model: str, edge: int, dims: int) -> int:
    """How many pieces a ray has in a tile of `edge` cells a side."""
    return max(edge, 1) * (dims if model == "siddon" else 2 ** (dims - 1))
