"""Compiled backprojection by linear interpolation between detector columns, and its adjoint.

A view is a row of ten numbers, so one pair of kernels serves parallel, flat-fan and equiangular
beams. Both directions take place and weights of a line of voxels from `_locate`, so they agree to
the bit. Gather: a call owns lines of the image. Scatter: a call owns views. No atomics.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from geometries.kernels.compiling import compiled
from linops.compiled.caching import kept_njit
from linops.compiled.noalias import add, load

__all__ = ["EQUIANGULAR", "FLAT", "PARALLEL", "arctan", "gather_lines", "scatter_views"]

PARALLEL, FLAT, EQUIANGULAR = 0, 1, 2
SLACK = 1e-6


@compiled
def _locate(
    mode: int, view: Any, line: float, first: int, columns: int, place: Any, one: Any, two: Any
) -> None:
    """Column and two weights for every voxel of a line; voxels that see nothing get `columns`.

    `view`: p0, px, py: numerator `p0 + px i + py line` of the position along u; q0, qx, qy: the
    same along the normal; start and step: column = start + step * ratio; weight; near.
    """
    top, side = view[0] + view[2] * line, view[1]
    deep, slope = view[3] + view[5] * line, view[4]
    start, step, weight, near = view[6], view[7], view[8], view[9]
    last = columns - 1.0
    before = np.int32(columns - 2)
    outside = np.int32(columns)
    if mode == 0:
        for i in range(place.shape[0]):
            column = start + step * (top + side * float(first + i))
            place[i], one[i], two[i] = _split(column, weight, last, before, outside)
    elif mode == 1:
        for i in range(place.shape[0]):
            x = float(first + i)
            n = deep + slope * x
            scale = 1.0 / n
            column = start + step * ((top + side * x) * scale)
            column = column if n > near else -1.0
            place[i], one[i], two[i] = _split(column, weight * scale * scale, last, before, outside)
    else:
        for i in range(place.shape[0]):
            x = float(first + i)
            u, n = top + side * x, deep + slope * x
            column = start + step * arctan(u / n)
            column = column if n > near else -1.0
            share = weight / (u * u + n * n)
            place[i], one[i], two[i] = _split(column, share, last, before, outside)


@kept_njit(nogil=True, error_model="numpy", inline="always")
def _split(column: float, weight: float, last: float, before: int, outside: int) -> Any:
    # Voxels on the outermost centers are seen in spite of rounding, from both sides alike.
    seen = (column >= -SLACK) & (column <= last + SLACK)
    column = column if column > 0.0 else 0.0
    column = column if column < last else last
    left: Any = np.int32(column)
    left = left if left < before else before
    share = column - float(left)
    weight = weight if seen else 0.0
    return left if seen else outside, weight * (1.0 - share), weight * share


@kept_njit(nogil=True, error_model="numpy", inline="always")
def arctan(tangent: float) -> float:
    """The arc tangent to rounding, without a call, so that its loop vectorises.

    Three halvings of the angle bring the tangent below 0.2, where twelve terms suffice.
    """
    t = tangent
    t = t / (1.0 + np.sqrt(1.0 + t * t))
    t = t / (1.0 + np.sqrt(1.0 + t * t))
    t = t / (1.0 + np.sqrt(1.0 + t * t))
    s = t * t
    p = 1 / 21 - s * (1 / 23)
    p = 1 / 19 - s * p
    p = 1 / 17 - s * p
    p = 1 / 15 - s * p
    p = 1 / 13 - s * p
    p = 1 / 11 - s * p
    p = 1 / 9 - s * p
    p = 1 / 7 - s * p
    p = 1 / 5 - s * p
    p = 1 / 3 - s * p
    angle: float = 8.0 * t * (1.0 - s * p)
    return angle


@compiled
def gather_lines(
    mode: int, table: Any, first: Any, begin: int, end: int, rows: Any, out: Any
) -> None:
    """Fill lines `begin:end` of `out` (B, ny, nx) from `rows` (B, views, columns + 2).

    The two columns at the end of a row are zero. `first` (2,): index of the block's first line
    and voxel in the whole image. `table` (views, 10) as in `_locate`.
    """
    columns = rows.shape[2] - 2
    nx = out.shape[2]
    place = np.empty(nx, np.int32)
    one = np.empty(nx, out.dtype)
    two = np.empty(nx, out.dtype)
    total = np.empty((out.shape[0], nx), out.dtype)
    for j in range(begin, end):
        total[:] = 0
        for k in range(table.shape[0]):
            _locate(mode, table[k], float(first[0] + j), first[1], columns, place, one, two)
            for b in range(out.shape[0]):
                row = rows[b, k]
                line = total[b]
                for i in range(nx):
                    left = load(place, i)
                    value = load(one, i) * load(row, left)
                    add(line, i, value + load(two, i) * load(row, left + np.int32(1)))
        out[:, j] = total


@compiled
def scatter_views(
    mode: int, table: Any, first: Any, begin: int, end: int, image: Any, out: Any
) -> None:
    """Fill views `begin:end` of `out` (B, views, columns) from `image` (B, ny, nx)."""
    columns = out.shape[2]
    nx = image.shape[2]
    place = np.empty(nx, np.int32)
    one = np.empty(nx, out.dtype)
    two = np.empty(nx, out.dtype)
    total = np.empty((out.shape[0], columns + 2))
    for k in range(begin, end):
        total[:] = 0.0
        for j in range(image.shape[1]):
            _locate(mode, table[k], float(first[0] + j), first[1], columns, place, one, two)
            for b in range(image.shape[0]):
                line = image[b, j]
                row = total[b]
                for i in range(nx):
                    left = place[i]
                    row[left] += one[i] * line[i]
                    row[left + 1] += two[i] * line[i]
        for b in range(out.shape[0]):
            for c in range(columns):
                out[b, k, c] = total[b, c]
