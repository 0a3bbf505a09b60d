"""One scan by several kernels, each for the views that its frames allow.

A view is projected by one kernel alone, as in a scan of its own; an adjoint adds the kernels up in
the order of their groups. Which view belongs to which kernel is `structure.groups_of`'s to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geometries.kernels.volume_scan import VolumeScan
from geometries.kernels.volume_tiles import view_numbers

__all__ = ["Kernel", "MixedKernel"]

Real = NDArray[np.floating]


class Kernel(Protocol):
    """The calls of a kernel of volumes; `volume_driver.VolumeKernel` says what they take."""

    def forward(self, scan: VolumeScan, volume: Real, out: Real, **options: Any) -> None: ...

    def adjoint(self, scan: VolumeScan, projections: Real, out: Real, **options: Any) -> None: ...

    def gram_diagonal(self, scan: VolumeScan, weights: Real, out: Real, **options: Any) -> None: ...

    def forward_columns(
        self, scan: VolumeScan, values: Real, index: ArrayLike, out: Real, **options: Any
    ) -> None: ...

    def adjoint_columns(
        self, scan: VolumeScan, projections: Real, index: ArrayLike, out: Real, **options: Any
    ) -> None: ...


class MixedKernel:
    """The calls of a kernel for one scan, shared out to others.

    Parameters
    ----------
    scan
        The scan, which the calls take again.
    groups
        Kernels and the views of each; together they have every view once.
    """

    def __init__(self, scan: VolumeScan, groups: Sequence[tuple[Kernel, NDArray[np.intp]]]) -> None:
        self._groups = []
        for kernel, views in groups:
            place = np.full(scan.views, -1)
            place[views] = np.arange(views.size)
            self._groups.append((kernel, scan.of_views(views), place))

    def forward(self, scan: VolumeScan, volume: Real, out: Real, **options: Any) -> None:
        for kernel, part, mine in self._shares(scan, options):
            kernel.forward(part, volume, out, **mine)

    def adjoint(self, scan: VolumeScan, projections: Real, out: Real, **options: Any) -> None:
        for kernel, part, mine in self._shares(scan, options):
            kernel.adjoint(part, projections, out, **mine)

    def gram_diagonal(self, scan: VolumeScan, weights: Real, out: Real, **options: Any) -> None:
        for kernel, part, mine in self._shares(scan, options):
            kernel.gram_diagonal(part, weights, out, **mine)

    def forward_columns(
        self, scan: VolumeScan, values: Real, index: ArrayLike, out: Real, **options: Any
    ) -> None:
        for kernel, part, mine in self._shares(scan, options):
            kernel.forward_columns(part, values, index, out, **mine)

    def adjoint_columns(
        self, scan: VolumeScan, projections: Real, index: ArrayLike, out: Real, **options: Any
    ) -> None:
        for kernel, part, mine in self._shares(scan, options):
            kernel.adjoint_columns(part, projections, index, out, **mine)

    def _shares(
        self, scan: VolumeScan, options: dict[str, Any]
    ) -> Iterator[tuple[Kernel, VolumeScan, dict[str, Any]]]:
        """Kernels, their scans, and the options with the numbers of views in those."""
        numbers = view_numbers(scan, options.get("views"))
        real = (numbers >= 0) & (numbers < scan.views)
        fresh = options.get("fresh", True)
        for kernel, part, place in self._groups:
            views = np.where(real, place[np.where(real, numbers, 0)], -1)
            yield kernel, part, {**options, "views": views, "fresh": fresh}
            fresh = False
