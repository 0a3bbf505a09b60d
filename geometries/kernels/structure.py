"""Which 3-D kernel a scan allows: decided once, from the frames of all its views.

`"aligned rows"`: parallel beams whose detector rows are the slices of the grid, one to one, so
that rows and slices split together. `"aligned"`: the same with rows that are other slices, or
some of them. `"columns"`: detector columns parallel to z, so that the rays of one column share
their in-plane path. `"oblique"`: anything else, ray by ray; `"sampled"`: the same for detectors
that are surfaces. A scan one rounding away from alignment, beyond the tolerances below, is right,
only slower. No kernel is imported here.
"""

from __future__ import annotations

import math

import numpy as np

from geometries.kernels.volume_scan import VolumeScan, pack

__all__ = ["aligned_shift", "columns_upright", "kernel_of"]


def kernel_of(scan: VolumeScan) -> str:
    """The name of the fastest kernel that the frames of every view allow."""
    if scan.points is not None:
        return "sampled"
    shift = aligned_shift(scan)
    if shift is not None:
        whole = shift == 0 and scan.shape[0] == scan.grid_shape[0]
        return "aligned rows" if whole else "aligned"
    return "columns" if columns_upright(scan) else "oblique"


def aligned_shift(scan: VolumeScan) -> int | None:
    """The number s with row i in slice i + s for every view, or None if there is none.

    Wanted: a parallel beam; v along +z with the pitch of the slices; every ray within 1e-6 of a
    slice of the middle of its slice, all through the grid (which changes no chord by more than
    rounding); and rows that shift no ray by more than 1e-12 of a cell across.
    """
    if scan.kind != "parallel":
        return None
    dz, dy, dx = scan.spacing
    nz, ny, nx = scan.grid_shape
    rows, cols = scan.shape
    heights = (np.array([0, rows - 1]) - 0.5 * (rows - 1)) * scan.pitch[0] + scan.offset[0]
    sides = (np.array([0, cols - 1]) - 0.5 * (cols - 1)) * scan.pitch[1] + scan.offset[1]
    high = float(np.abs(heights).max())
    if np.abs(scan.v[:, :2]).max() * high > 1e-12 * min(dx, dy):
        return None
    across = np.hypot(scan.directions[:, 0], scan.directions[:, 1])
    if not np.all(across > 0.5):
        return None
    reach = np.linalg.norm(scan.centers - np.asarray(scan.center[::-1]), axis=1)
    reach = reach + np.abs(sides).max() + math.hypot(nx * dx, ny * dy)
    tilt = np.abs(scan.directions[:, 2]) / across * reach
    lean = np.abs(scan.u[:, 2]) * np.abs(sides).max()
    slices = (scan.centers[:, 2:3] + heights * scan.v[:, 2:3] - scan.center[0]) / dz
    slices = slices + 0.5 * (nz - 1) - np.array([0, rows - 1])
    shift = round(float(slices.flat[0])) if np.isfinite(slices).all() else 0
    if np.all(np.abs(slices - shift) + ((tilt + lean) / dz)[:, None] <= 1e-6):
        return shift
    return None


def columns_upright(scan: VolumeScan) -> bool:
    """Whether every detector column is parallel to z and no ray nearly so.

    Wanted: v across z moves no ray by more than 1e-12 of a cell; parallel directions and the way
    from source to pixel have an in-plane part of at least 1e-3 of their length. So rays may be
    steep, u may lean, and v may point down.
    """
    rows = scan.shape[0]
    heights = (np.array([0, rows - 1]) - 0.5 * (rows - 1)) * scan.pitch[0] + scan.offset[0]
    reach = np.abs(scan.v[:, :2]).max() * np.abs(heights).max()
    if reach > 1e-12 * min(scan.spacing[1:]) or not np.all(np.abs(scan.v[:, 2]) > 0.5):
        return False
    if scan.kind == "parallel":
        return bool(np.all(np.hypot(scan.directions[:, 0], scan.directions[:, 1]) >= 1e-3))
    packed = pack(scan)
    u, n = packed.frames[:, 6:9], packed.frames[:, 9:12]
    ways = packed.frames[:, None, 3:6] - packed.frames[:, None, 0:3]
    ways = ways + packed.along[:, None] * u[:, None] + packed.normal[:, None] * n[:, None]
    level = np.hypot(ways[..., 0], ways[..., 1])
    rise = np.abs(ways[..., 2]) + np.abs(packed.heights).max()
    return bool(np.all(level >= 1e-3 * rise) and np.all(level > 0))
