"""Which planes of one array axis go from which device to which: static tables, made with NumPy.

A device holds some planes and wants some; both are lists of plane numbers, equally long on all
devices of a ring. Halos of any width, shares of unequal or no extent, windows that wrap around or
stop at the ends of the array are all this one question. Moving the planes is left to
`linops/stencils/sharded_kernel.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["ANY", "Route", "Send", "Windows", "find_route", "shares"]

ANY = -1
"""In a list of wanted planes: a place that may hold anything. In a list of held planes: a place
that holds nothing of use."""


@dataclass(frozen=True)
class Send:
    """Planes that go a fixed way round the ring: `rows[i]` are the places that device i sends."""

    pairs: tuple[tuple[int, int], ...]
    rows: np.ndarray


@dataclass(frozen=True)
class Route:
    """How every device gets what it wants: what is sent, then which place of what it has now.

    `rows[i, k]` is the place of the wanted plane k in the planes that device i held, followed by
    what the `sends` brought it, in their order.
    """

    sends: tuple[Send, ...]
    rows: np.ndarray


@dataclass(frozen=True)
class Windows:
    """The windows of an axis that the devices of a ring are handed.

    Parameters
    ----------
    extent
        Planes of the axis.
    devices
        Devices of the ring.
    low, high
        Planes that are wanted before and after a device's own.
    wraps
        Whether windows wrap around. Else they stay within the array: at its ends a window is
        shifted inwards, so that what runs on it meets the true end.
    """

    extent: int
    devices: int
    low: int
    high: int
    wraps: bool

    @property
    def share(self) -> int:
        """Planes of a device, but for the last ones."""
        return -(-self.extent // self.devices)

    @property
    def length(self) -> int:
        """Planes of a window."""
        wanted = self.share + self.low + self.high
        return wanted if self.wraps else min(wanted, self.extent)

    def start(self, device: int) -> int:
        """The first plane of a window; a device without planes has the window of the last one."""
        last = (self.extent - 1) // self.share
        start = min(device, last) * self.share - self.low
        return start if self.wraps else min(max(start, 0), self.extent - self.length)

    def own(self, device: int) -> range:
        """The planes of a device."""
        start = min(device * self.share, self.extent)
        return range(start, min(start + self.share, self.extent))

    def planes(
        self, longer: int = 0, low: int | None = None, high: int | None = None
    ) -> np.ndarray:
        """The planes of every window, `(devices, length + longer)`.

        Parameters
        ----------
        longer
            How many planes more an array has along this axis (faces between cells: 1).
        low, high
            Planes beyond a device's own that are really needed; others are `ANY`.
        """
        total = self.extent + longer
        table = np.empty((self.devices, self.length + longer), np.int64)
        for device in range(self.devices):
            planes = self.start(device) + np.arange(self.length + longer)
            own = self.own(min(device, (self.extent - 1) // self.share))
            needed = np.ones(len(planes), bool)
            if low is not None:
                needed &= planes >= own.start - low
            if high is not None:
                needed &= planes < own.stop + longer + high
            table[device] = np.where(needed, planes % total, ANY)
        return table


def shares(extent: int, devices: int) -> np.ndarray:
    """The planes that each device holds of an axis cut into equal shares, `ANY` in the padding."""
    share = -(-extent // devices)
    planes = np.arange(devices * share).reshape(devices, share)
    return np.where(planes < extent, planes, ANY)


def find_route(held: np.ndarray, wanted: np.ndarray) -> Route:
    """How planes get from where they are held to where they are wanted.

    Parameters
    ----------
    held, wanted
        Plane numbers, `(devices, places)`.

    Raises
    ------
    ValueError
        Where a wanted plane is held nowhere.
    """
    devices = len(held)
    places = [_first_places(row) for row in held]
    by_distance: dict[int, list[list[int]]] = {}
    for device in range(devices):
        for plane in dict.fromkeys(int(p) for p in wanted[device] if p != ANY):
            if plane in places[device]:
                continue
            distance = _nearest(plane, device, places)
            lists = by_distance.setdefault(distance % devices, [[] for _ in range(devices)])
            lists[device].append(plane)
    pools = [[int(p) for p in row] for row in held]
    sends = []
    for distance in sorted(by_distance, key=lambda d: (min(d, devices - d), d)):
        lists = by_distance[distance]
        width = max(map(len, lists))
        rows: list[list[int] | None] = [None] * devices
        pairs = []
        for device, planes in enumerate(lists):
            source = (device + distance) % devices
            if planes:
                pairs.append((source, device))
                padded = planes + [planes[-1]] * (width - len(planes))
                rows[source] = [places[source][plane] for plane in padded]
            pools[device] += planes + [ANY] * (width - len(planes))
        sends.append(Send(tuple(pairs), _filled(rows)))
    order: list[list[int] | None] = []
    for device in range(devices):
        found = _first_places(pools[device])
        order.append([found.get(int(plane), ANY) for plane in wanted[device]])
    return Route(tuple(sends), _with_any_resolved(np.array(order, np.int64)))


def _first_places(planes: Sequence[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for place, plane in enumerate(planes):
        if plane != ANY:
            found.setdefault(int(plane), place)
    return found


def _nearest(plane: int, device: int, places: list[dict[int, int]]) -> int:
    devices = len(places)
    for step in range(1, devices // 2 + 1):
        for distance in (-step, step):
            if plane in places[(device + distance) % devices]:
                return distance
    raise ValueError(f"plane {plane} is held by no device")


def _filled(rows: list[list[int] | None]) -> np.ndarray:
    """Rows of devices that send nothing are those of another: equal rows make plain slices."""
    known = next(row for row in rows if row is not None)
    return np.array([known if row is None else row for row in rows], np.int64)


def _with_any_resolved(order: np.ndarray) -> np.ndarray:
    """Places that may hold anything follow a row that agrees elsewhere, else their neighbor."""
    whole = [row for row in order if (row != ANY).all()]
    for row in order:
        good = np.flatnonzero(row != ANY)
        if len(good) == len(row):
            continue
        like = next((w for w in whole if (w[good] == row[good]).all()), None)
        if like is not None:
            row[:] = like
        elif len(good):
            nearest = np.abs(np.arange(len(row))[:, None] - good[None, :]).argmin(axis=1)
            row[:] = row[good[nearest]]
        else:
            row[:] = 0
    return order
