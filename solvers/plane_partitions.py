"""Partitions of the positions of a plane into subsets, for coordinate descent.

Subsets are disjoint, complete within the region, and differ in size by at most one; they come
padded with -1 to one length, so that all of them have one shape. Everything follows from the
seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from linops import arrays
from linops.arguments import wrong
from linops.space import Space
from solvers.controls import positive_count

__all__ = ["ORDERS", "Partitions", "partition", "plane_of", "region"]

ORDERS = ("random", "blue_noise", "bit_reversed", "grid")
_DEFAULT = (4, 16, 64, 128)
_SMALLEST = 64


@dataclass(frozen=True)
class Partitions:
    """Which subsets each pass visits.

    Parameters
    ----------
    counts
        Numbers of subsets of the first passes; the last one goes on for the rest.
    order
        How positions are dealt out: one of `ORDERS`, or a callable
        `order(positions, plane, count, seed)` that returns `count` index arrays.
    """

    counts: Sequence[int] = _DEFAULT
    order: str | Callable[..., Any] = "blue_noise"
    capped: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        counts = [self.counts] if isinstance(self.counts, int) else list(self.counts)
        if not counts:
            raise ValueError("partitions.counts is empty; it is one or more numbers of subsets")
        object.__setattr__(
            self, "counts", tuple(positive_count("partitions", int_of(n)) for n in counts)
        )
        if not callable(self.order) and self.order not in ORDERS:
            raise ValueError(
                f"order is {self.order!r}; it is one of {', '.join(ORDERS)}, or a callable"
            )

    @classmethod
    def of(cls, value: Any) -> Partitions | list[np.ndarray]:
        """What a caller may give: None, a count, counts, an order, index arrays, or Partitions."""
        if value is None:
            return cls(capped=True)
        if isinstance(value, Partitions):
            return value
        if isinstance(value, str):
            return cls(order=value, capped=True)
        if callable(value):
            return cls(order=value, capped=True)
        if isinstance(value, (int, np.integer)):
            return cls(counts=(int(value),))
        if not isinstance(value, Sequence | np.ndarray):
            raise wrong(
                "vcd",
                "partitions",
                value,
                "a count, counts, index arrays, an order, or Partitions",
            )
        entries = list(value)
        if entries and all(np.ndim(entry) == 0 for entry in entries):
            return cls(counts=tuple(entries))
        return [np.asarray(entry) for entry in entries]

    def count(self, number: int, positions: int) -> int:
        """Number of subsets of pass `number`, counted from 0."""
        count = self.counts[min(number, len(self.counts) - 1)]
        if self.capped:
            count = min(count, max(positions // _SMALLEST, 1))
        return max(min(count, positions), 1)


def int_of(value: Any) -> Any:
    """A NumPy integer as a Python one; others as they are."""
    return int(value) if isinstance(value, np.integer) else value


def plane_of(space: Space) -> tuple[int, int]:
    """Rows and columns of the plane that positions count in; one row in one dimension."""
    return (1, space.shape[0]) if space.ndim == 1 else (space.shape[-2], space.shape[-1])


def region(roi: Any, plane: tuple[int, int]) -> np.ndarray:
    """Flat positions inside a region: None (all), `"ellipse"` (inscribed), or a 0/1 mask."""
    ny, nx = plane
    if roi is None:
        return np.arange(ny * nx)
    if isinstance(roi, str):
        if roi != "ellipse":
            raise ValueError(
                f"roi is {roi!r}; it is 'auto', None, 'ellipse' or a mask of shape {plane}"
            )
        y = (2 * np.arange(ny) - (ny - 1)) / ny
        x = (2 * np.arange(nx) - (nx - 1)) / nx
        mask = y[:, None] ** 2 + x**2 <= 1
    else:
        mask = arrays.to_numpy(arrays.asarray(roi, "vcd", "roi"))
        if mask.shape != plane and not (plane[0] == 1 and mask.shape == (plane[1],)):
            raise ValueError(f"roi has shape {mask.shape}; the plane of the domain is {plane}")
        if not np.isin(mask, (0, 1)).all():
            raise ValueError("roi holds other values than 0 and 1")
    return np.flatnonzero(mask)


def partition(
    positions: np.ndarray,
    plane: tuple[int, int],
    count: int,
    order: str | Callable[..., Any] = "blue_noise",
    seed: int = 0,
) -> list[np.ndarray]:
    """`count` subsets of `positions`, padded with -1 to one length.

    Parameters
    ----------
    positions
        Flat positions in the plane, ascending.
    plane
        Its extents (rows, columns).
    count
        Number of subsets, at most that of the positions.
    order
        One of `ORDERS`, or a callable as for `Partitions`.
    seed
        For the orders that draw; one subset draws nothing.
    """
    if callable(order):
        return pad_subsets(list(order(positions, plane, count, seed)), positions)
    if count == 1:
        return [positions.copy()]
    rng = np.random.default_rng([seed, count])
    y, x = np.divmod(positions, plane[1])
    if order == "random":
        dealt = rng.permutation(positions)
    elif order == "blue_noise":
        # A plane of a lattice with irrational steps (Roberts 2018): a range of its phase is a
        # well-spread set of points, whatever the range.
        phase = (x * 0.7548776662466927 + y * 0.5698402909980532 + rng.random()) % 1.0
        dealt = positions[np.argsort(phase, kind="stable")]
    elif order == "bit_reversed":
        turns = np.argsort(_bit_reversed(count), kind="stable")
        dealt = positions[np.argsort(turns[np.arange(len(positions)) % count], kind="stable")]
    else:
        high = max(d for d in range(1, math.isqrt(count) + 1) if count % d == 0)
        wide = count // high
        dealt = positions[np.argsort((y % high) * wide + x % wide, kind="stable")]
    return pad_subsets(np.array_split(dealt, count), positions)


def pad_subsets(subsets: Sequence[Any], positions: np.ndarray) -> list[np.ndarray]:
    """The subsets padded to one length, if they are disjoint and within the positions."""
    parts = [np.asarray(subset) for subset in subsets]
    if not parts or any(a.ndim != 1 or a.dtype.kind not in "iu" for a in parts):
        raise ValueError("partitions are one-dimensional arrays of whole numbers")
    found = np.concatenate([a[a >= 0] for a in parts]).astype(np.int64)
    if len(found) != len(positions) or not np.array_equal(np.sort(found), np.sort(positions)):
        raise ValueError(
            f"partitions hold {len(found)} positions, {len(np.unique(found))} different ones; "
            f"they are to hold each of the {len(positions)} positions of the region once"
        )
    length = max(len(a) for a in parts)
    return [np.concatenate([a, np.full(length - len(a), -1)]).astype(np.int64) for a in parts]


def _bit_reversed(count: int) -> np.ndarray:
    bits = max(count - 1, 1).bit_length()
    numbers = np.arange(1 << bits)
    reverse = np.zeros_like(numbers)
    for bit in range(bits):
        reverse |= ((numbers >> bit) & 1) << (bits - 1 - bit)
    return reverse[reverse < count]
