"""Which 3-D kernel each view of a scan allows: decided from its own frames, grid and detector.

`"aligned"`: a parallel beam whose detector rows are slices of the grid, one to one. `"columns"`:
detector columns parallel to z, so that the rays of one column share their in-plane path.
`"oblique"`: anything else, ray by ray; `"sampled"`: the same for detectors that are surfaces. So a
view keeps its kernel, and its bits, in any subset of a scan. Where all rows are all slices in every
view, `"aligned rows"`, rows and slices split together: that alone asks all views at once. A scan
one rounding away from alignment, beyond the tolerances below, is right, only slower. No kernel is
imported here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from geometries.kernels.volume_scan import VolumeScan, pack

__all__ = [
    "Groups",
    "aligned_apart",
    "aligned_shift",
    "columns_upright",
    "groups_of",
    "kernel_of",
    "view_shifts",
]

Groups = list[tuple[str, NDArray[np.intp]]]

NOT_ALIGNED = np.iinfo(np.int64).min


def groups_of(scan: VolumeScan) -> Groups:
    """Kernels and the views of each, in the order in which an adjoint adds them up.

    Aligned views come first, a group for each shift in rising order, then `"columns"`, then
    `"oblique"`. A scan without views has no groups.
    """
    if scan.points is not None:
        return [("sampled", np.arange(scan.views))] if scan.views else []
    upright = columns_upright(scan)
    return aligned_apart(scan, [("columns", upright), ("oblique", ~upright)])


def aligned_apart(scan: VolumeScan, others: Sequence[tuple[str, NDArray[np.bool_]]]) -> Groups:
    """A group of aligned views for each shift, then the others by their names and masks."""
    shifts = view_shifts(scan)
    loose = shifts == NOT_ALIGNED
    parts = [("aligned", shifts == shift) for shift in np.unique(shifts[~loose])]
    parts.extend((name, views & loose) for name, views in others)
    return [(name, np.flatnonzero(views)) for name, views in parts if views.any()]


def kernel_of(scan: VolumeScan, groups_of: Callable[[VolumeScan], Groups] = groups_of) -> str:
    """The kernel of all views, or how many views each kernel has, from their groups.

    For example `"aligned rows"`, `"columns"`, `"4 aligned, 3 columns, 5 oblique"`, or
    `"7 aligned"` where their shifts differ.
    """
    if aligned_shift(scan) == 0 and scan.shape[0] == scan.grid_shape[0]:
        return "aligned rows"
    groups = groups_of(scan)
    if len(groups) == 1:
        return groups[0][0]
    counts: dict[str, int] = {}
    for name, views in groups:
        counts[name] = counts.get(name, 0) + views.size
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def aligned_shift(scan: VolumeScan) -> int | None:
    """The number s with row i in slice i + s for every view, or None if there is none."""
    shifts = view_shifts(scan)
    if scan.points is not None or not shifts.size or np.any(shifts != shifts[0]):
        return None
    return None if shifts[0] == NOT_ALIGNED else int(shifts[0])


def view_shifts(scan: VolumeScan) -> NDArray[np.int64]:
    """The number s of each view with row i in slice i + s, `NOT_ALIGNED` where there is none.

    Wanted: a parallel beam; v along +z with the pitch of the slices; every ray within 1e-6 of a
    slice of the middle of its slice, all through the grid (which changes no chord by more than
    rounding); and rows that shift no ray by more than 1e-12 of a cell across.
    """
    if scan.kind != "parallel":
        return np.full(scan.views, NOT_ALIGNED)
    dz, dy, dx = scan.spacing
    nz, ny, nx = scan.grid_shape
    rows, cols = scan.shape
    heights = (np.array([0, rows - 1]) - 0.5 * (rows - 1)) * scan.pitch[0] + scan.offset[0]
    sides = (np.array([0, cols - 1]) - 0.5 * (cols - 1)) * scan.pitch[1] + scan.offset[1]
    high = float(np.abs(heights).max())
    fits = np.abs(scan.v[:, :2]).max(axis=1) * high <= 1e-12 * min(dx, dy)
    across = np.hypot(scan.directions[:, 0], scan.directions[:, 1])
    fits &= across > 0.5
    reach = np.linalg.norm(scan.centers - np.asarray(scan.center[::-1]), axis=1)
    reach = reach + np.abs(sides).max() + math.hypot(nx * dx, ny * dy)
    tilt = np.abs(scan.directions[:, 2]) / np.where(fits, across, 1.0) * reach
    lean = np.abs(scan.u[:, 2]) * np.abs(sides).max()
    slices = (scan.centers[:, 2:3] + heights * scan.v[:, 2:3] - scan.center[0]) / dz
    slices = slices + 0.5 * (nz - 1) - np.array([0, rows - 1])
    near = np.clip(np.nan_to_num(np.rint(slices[:, 0])), -(2.0**62), 2.0**62)
    away = np.abs(slices - near[:, None]) + ((tilt + lean) / dz)[:, None]
    fits &= np.all(away <= 1e-6, axis=1)
    return np.where(fits, near.astype(np.int64), NOT_ALIGNED)


def columns_upright(scan: VolumeScan) -> NDArray[np.bool_]:
    """Whether the detector columns of a view are parallel to z and no ray nearly so, (views,).

    Wanted: v across z moves no ray by more than 1e-12 of a cell; parallel directions and the way
    from source to pixel have an in-plane part of at least 1e-3 of their length. So rays may be
    steep, u may lean, and v may point down.
    """
    rows = scan.shape[0]
    heights = (np.array([0, rows - 1]) - 0.5 * (rows - 1)) * scan.pitch[0] + scan.offset[0]
    reach = np.abs(scan.v[:, :2]).max(axis=1) * np.abs(heights).max()
    fits: NDArray[np.bool_] = reach <= 1e-12 * min(scan.spacing[1:])
    fits &= np.abs(scan.v[:, 2]) > 0.5
    if scan.kind == "parallel":
        fits &= np.hypot(scan.directions[:, 0], scan.directions[:, 1]) >= 1e-3
        return fits
    packed = pack(scan)
    u, n = packed.frames[:, 6:9], packed.frames[:, 9:12]
    ways = packed.frames[:, None, 3:6] - packed.frames[:, None, 0:3]
    ways = ways + packed.along[:, None] * u[:, None] + packed.normal[:, None] * n[:, None]
    level = np.hypot(ways[..., 0], ways[..., 1])
    rise = np.abs(ways[..., 2]) + np.abs(packed.heights).max()
    fits &= np.all((level >= 1e-3 * rise) & (level > 0), axis=1)
    return fits
