"""Compiled backprojection by linear interpolation between detector columns, and its adjoint.

A view is a row of ten numbers, so one pair of kernels serves parallel, flat-fan and equiangular
beams. Both directions take place and weights of a line of voxels from `_locate`, so they agree to
the bit. Gather: a call owns lines of the image. Scatter: a call owns views. No atomics.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["EQUIANGULAR", "FLAT", "PARALLEL", "gather_lines", "scatter_views"]

PARALLEL, FLAT, EQUIANGULAR = 0, 1, 2
SLACK = 1e-6


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _locate(
    mode: int, view: Any, line: float, first: int, columns: int, place: Any, one: Any, two: Any
) -> None:
    """Column and two weights for every voxel of a line; voxels that see nothing get `columns`.

    `view`: p0, px, py: numerator `p0 + px i + py line` of the position along u; q0, qx, qy: the
    same along the normal; start and step: column = start + step * ratio; weight; near.
    """
    top = view[0] + view[2] * line
    deep = view[3] + view[5] * line
    last = columns - 1.0
    for i in range(place.shape[0]):
        x = float(first + i)
        u = top + view[1] * x
        weight = view[8]
        ahead = True
        if mode == 0:
            column = view[6] + view[7] * u
        elif mode == 1:
            n = deep + view[4] * x
            ahead = n > view[9]
            scale = 1.0 / (n if ahead else 1.0)
            column = view[6] + view[7] * (u * scale)
            weight *= scale * scale
        else:
            n = deep + view[4] * x
            ahead = n > view[9]
            column = view[6] + view[7] * np.arctan2(u, n)
            weight /= (u * u + n * n) if ahead else 1.0
        # Voxels on the outermost centres are seen in spite of rounding, from both sides alike.
        seen = ahead and column >= -SLACK and column <= last + SLACK
        column = min(max(column, 0.0), last) if seen else 0.0
        left = min(int(column), columns - 2)
        share = column - left
        place[i] = left if seen else columns
        one[i] = weight * (1.0 - share)
        two[i] = weight * share


@njit(nogil=True, cache=True, error_model="numpy")
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
                    left = place[i]
                    line[i] += one[i] * row[left] + two[i] * row[left + 1]
        out[:, j] = total


@njit(nogil=True, cache=True, error_model="numpy")
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
