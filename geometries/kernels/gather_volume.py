"""Compiled backprojection of cone views by bilinear interpolation, and its adjoint.

As `geometries/kernels/gather.py`, with rows. A view is flat, with zeros behind it, where voxels
that see nothing read. Gather: a call owns slices. Scatter: a call owns views.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from geometries.kernels.compiling import compiled
from geometries.kernels.gather import arctan
from linops.compiled.noalias import add, load

__all__ = ["gather_slices", "scatter_views"]

SLACK = 1e-6


@compiled
def _locate(
    radius: Any,
    view: Any,
    first: Any,
    k: int,
    j: int,
    rows: int,
    columns: int,
    place: Any,
    weight: Any,
    across: Any,
    down: Any,
) -> None:
    """Cell, weight and the two shares for every voxel of a line (slice k, line j).

    `view` (18,): `p . (1, i, j, k)` for the positions along u, along the normal and along v, then
    start and step of columns, start and step of rows, weight, near. Places are ratios to the depth
    along the normal; on a cylinder, of any `radius` but None, the angle about v and the ratio to
    the distance from v.
    """
    y, z = float(first[1] + j), float(first[0] + k)
    u0, ux = view[0] + view[2] * y + view[3] * z, view[1]
    n0, nx = view[4] + view[6] * y + view[7] * z, view[5]
    v0, vx = view[8] + view[10] * y + view[11] * z, view[9]
    start, step, begin, rise = view[12], view[13], view[14], view[15]
    strength, near = view[16], view[17]
    last_column, last_row = columns - 1.0, rows - 1.0
    before_column, before_row = np.int32(columns - 2), np.int32(rows - 2)
    stride, outside = np.int32(columns), np.int32(rows * columns)
    for i in range(place.shape[0]):
        x = float(first[2] + i)
        n = n0 + nx * x
        u = u0 + ux * x
        if radius is None:  # known when this is compiled
            scale = 1.0 / n
            column = start + step * (u * scale)
        else:
            scale = 1.0 / np.sqrt(u * u + n * n)
            column = start + step * arctan(u / n)
        row = begin + rise * ((v0 + vx * x) * scale)
        seen = (n > near) & (column >= -SLACK) & (column <= last_column + SLACK)
        seen = seen & (row >= -SLACK) & (row <= last_row + SLACK)
        column = column if column > 0.0 else 0.0
        column = column if column < last_column else last_column
        row = row if row > 0.0 else 0.0
        row = row if row < last_row else last_row
        left, up = np.int32(column), np.int32(row)
        left = left if left < before_column else before_column
        up = up if up < before_row else before_row
        place[i] = up * stride + left if seen else outside
        weight[i] = strength * scale * scale if seen else 0.0
        across[i] = column - float(left) if seen else 0.0
        down[i] = row - float(up) if seen else 0.0


@compiled
def gather_slices(
    radius: float | None,
    table: Any,
    first: Any,
    begin: int,
    end: int,
    rows: int,
    columns: int,
    views: Any,
    out: Any,
) -> None:
    """Fill slices `begin:end` of `out` (B, nz, ny, nx) from `views` (B, V, rows columns + pad)."""
    nx = out.shape[3]
    place = np.empty(nx, np.int32)
    weight = np.empty(nx, out.dtype)
    across = np.empty(nx, out.dtype)
    down = np.empty(nx, out.dtype)
    total = np.empty((out.shape[0], nx), out.dtype)
    one, stride, next_ = np.int32(1), np.int32(columns), np.int32(columns + 1)
    for k in range(begin, end):
        for j in range(out.shape[2]):
            total[:] = 0
            for w in range(table.shape[0]):
                _locate(radius, table[w], first, k, j, rows, columns, place, weight, across, down)
                for b in range(out.shape[0]):
                    cells = views[b, w]
                    line = total[b]
                    for i in range(nx):
                        c, s, t = load(place, i), load(across, i), load(down, i)
                        a0, a1 = load(cells, c), load(cells, c + one)
                        b0, b1 = load(cells, c + stride), load(cells, c + next_)
                        upper = a0 + s * (a1 - a0)
                        lower = b0 + s * (b1 - b0)
                        add(line, i, load(weight, i) * (upper + t * (lower - upper)))
            out[:, k, j] = total


@compiled
def scatter_views(
    radius: float | None,
    table: Any,
    first: Any,
    begin: int,
    end: int,
    rows: int,
    columns: int,
    volume: Any,
    out: Any,
) -> None:
    """Fill views `begin:end` of `out` (B, V, rows, columns) from `volume` (B, nz, ny, nx)."""
    nx = volume.shape[3]
    place = np.empty(nx, np.int32)
    weight = np.empty(nx, out.dtype)
    across = np.empty(nx, out.dtype)
    down = np.empty(nx, out.dtype)
    total = np.empty((out.shape[0], rows * columns + columns + 2))
    for w in range(begin, end):
        total[:] = 0.0
        for k in range(volume.shape[1]):
            for j in range(volume.shape[2]):
                _locate(radius, table[w], first, k, j, rows, columns, place, weight, across, down)
                for b in range(volume.shape[0]):
                    line, cells = volume[b, k, j], total[b]
                    for i in range(nx):
                        c, value = place[i], float(weight[i]) * float(line[i])
                        s, t = float(across[i]), float(down[i])
                        cells[c] += value * (1.0 - s) * (1.0 - t)
                        cells[c + 1] += value * s * (1.0 - t)
                        cells[c + columns] += value * (1.0 - s) * t
                        cells[c + columns + 1] += value * s * t
        for b in range(out.shape[0]):
            for r in range(rows):
                for c in range(columns):
                    out[b, w, r, c] = total[b, r * columns + c]
