"""Analytic reconstruction of a block of a projector: what of the whole scan's operator it is.

Angles, quadrature, filters and isocenter are those of the whole scan; a block of voxels is a part
of its image, a block of views adds its share to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from geometries.projector import Projector
from geometries.selection import frames_of
from linops.errors import GeometryError
from linops.linear_operator import LinearOperator

__all__ = ["part_of"]


def part_of(whole: LinearOperator, A: Any) -> LinearOperator:
    """The block of `whole`, the reconstruction of a whole scan, that belongs to `A`.

    Parameters
    ----------
    whole
        From the projections to the image of `A.geometry` on `A.grid`.
    A
        A projector or a block of one; anything else is a whole scan.

    Raises
    ------
    GeometryError
        For a block of rows or columns of the detector, whose filtered lines are not whole, and
        for blocks that reach past the scan.
    """
    if not isinstance(A, Projector):
        return whole
    detector, grid = A.geometry.detector, A.grid
    window = np.asarray(A.window).tolist()
    start = 2 + len(detector.axes)
    cells = _cuts(detector.axes, window[2:start], A.codomain.shape[1:], detector.shape)
    voxels = _cuts(grid.axes, window[start:], A.domain.shape, grid.shape)
    result: Any = whole
    for axis, (first, count, extent) in voxels.items():
        if (first, count) == (0, extent):
            continue
        _check_inside(axis, first, count, extent)
        before = result.domain.shape
        result = result.block(axis, first, first + count)
        if result.domain.shape == before:
            continue
        # Rows of the detector are slices, and the block reads its own.
        rows = cells.pop("row")
        if rows[:2] != (first, count):
            raise _unfit("row", *rows)
    for axis, (first, count, extent) in cells.items():
        if (first, count) != (0, extent):
            raise _unfit(axis, first, count, extent)
    views = A.codomain.shape[0]
    if views != A.geometry.views:
        first = _first_view(A, window[0], window[1])
        result = result.block("view", first, first + views)
    return result  # type: ignore[no-any-return]


def _cuts(axes: Any, *values: Any) -> dict[str, tuple[int, int, int]]:
    """First plane, count and extent of the whole, by axis."""
    return dict(zip(axes, zip(*values, strict=True), strict=True))


def _first_view(A: Projector, begin: int, end: int) -> int:
    own = np.asarray(A.frames)
    if (begin, end) != (0, len(own)):
        raise GeometryError("a block of views that reaches past the scan has no reconstruction")
    every = np.asarray(frames_of(A.geometry.trajectory.host))
    starts = np.flatnonzero((every[: len(every) - len(own) + 1] == own[0]).all(axis=(1, 2)))
    for first in starts.tolist():
        if np.array_equal(every[first : first + len(own)], own):
            return int(first)
    raise GeometryError(
        "the views of this block are not in the scan that its geometry holds; build a "
        "Projector of those views"
    )


def _check_inside(axis: str, first: int, count: int, extent: int) -> None:
    if first < 0 or first + count > extent:
        raise GeometryError(
            f"the block takes planes {first} to {first + count} of {axis}, of {extent} that the "
            "grid has; analytic reconstruction takes blocks inside it"
        )


def _unfit(axis: str, first: int, count: int, extent: int) -> GeometryError:
    return GeometryError(
        f"the block has {axis}s {first} to {first + count} of {extent}: a block of the detector is "
        "no scan, because filters and interpolation see whole views. Take blocks along views or "
        "voxels, or a Projector on a smaller Detector"
    )
