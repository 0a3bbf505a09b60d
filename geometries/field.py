"""The grid that covers what a scan sees, `Grid.for_geometry`, and whether a scan sees a grid whole.

Widths follow from the field of view at the axis, heights from the detector's rows and the travel of
the scan, with further slices where oblique rays reach beyond.
"""

from __future__ import annotations

import math
import os
import warnings
from typing import Any

import numpy as np

from geometries.grid import Grid, lengths
from geometries.trajectory import Trajectory
from linops.errors import GeometryError
from linops.linear_operator import LinearOperator

__all__ = ["covering_grid", "truncation"]

_ROUND = 1e-9  # of a slice: what rounding may add to a count
_TRUNCATED = 0.02  # of all rows of all views, more than which warns


def covering_grid(geometry: Any, spacing: Any, axial_padding: Any, support: str) -> Grid:
    """See `Grid.for_geometry`."""
    frames = getattr(geometry, "trajectory", None)
    if not isinstance(frames, Trajectory):
        raise GeometryError(
            f"geometry is {geometry!r}; it is a beam such as ParallelBeam, or a Trajectory"
        )
    if support not in ("ellipse", "box"):
        raise GeometryError(f"support is {support!r}; it is 'ellipse' or 'box'")
    low, high = _padding(axial_padding)
    frames = frames.host
    magnification, distance, heights = _seen(frames)
    detector = frames.detector
    count, pitch, shift = detector.shape[-1], detector.pitch[-1], detector.offset[-1]
    if spacing is None:
        spacing = pitch / magnification
    steps = lengths(spacing, frames.dims, "spacing", positive=True)
    field = (count * pitch + 2 * abs(shift)) / magnification
    across = tuple(max(1, round(field / step)) for step in steps[-2:])
    if frames.dims == 2:
        return _warned(Grid(across, steps))
    widths = [n * step for n, step in zip(across, steps[-2:], strict=True)]
    radius = 0.5 * (math.hypot(*widths) if support == "box" else max(widths))
    rows, tall, rise = detector.shape[0], detector.pitch[0], detector.offset[0]
    dz = steps[0]
    height = rows * tall / magnification
    first, last = float(heights.min()), float(heights.max())
    slices = max(1, _ceil((height + last - first) / dz))
    extra = []
    for part, edge in ((low, rows * tall / 2 - rise), (high, rows * tall / 2 + rise)):
        reach = edge * (1 / magnification + radius / distance) - height / 2
        extra.append(_ceil(part * max(0.0, reach) / dz))
    center = (first + last) / 2 + (extra[1] - extra[0]) / 2 * dz
    return _warned(Grid((slices + sum(extra), *across), steps, (center, 0.0, 0.0)))


def _padding(value: Any) -> tuple[float, float]:
    parts = (value, value) if np.ndim(value) == 0 else tuple(value)
    if len(parts) != 2:
        raise GeometryError(
            f"axial_padding is {value!r}; it is one number, or two for the low and the high end"
        )
    numbers = lengths(parts, 2, "axial_padding")
    if min(numbers) < 0:
        raise GeometryError(f"axial_padding is {value!r}; it is at least 0")
    return numbers[0], numbers[1]


def _seen(frames: Trajectory) -> tuple[float, float, np.ndarray]:
    """Magnification at the axis, distance from source to detector, height of each view."""
    middle = frames.centers if frames.sources is None else frames.sources
    heights = middle[:, 2] if frames.dims == 3 else np.zeros(frames.views)
    if frames.sources is None:
        return 1.0, math.inf, heights
    # The axis is that of z, at the height of the source.
    axis = np.zeros_like(frames.sources)
    if frames.dims == 3:
        axis[:, 2] = heights
    normals = frames.normals
    to_detector = np.einsum("ki,ki->k", frames.centers - frames.sources, normals)
    to_axis = np.einsum("ki,ki->k", axis - frames.sources, normals) * np.sign(to_detector)
    bad = ~(to_axis > 0)
    if bad.any():
        raise GeometryError(
            f"view {int(np.argmax(bad))}: the axis does not lie before the source; give the grid "
            "by shape and spacing"
        )
    to_detector = np.abs(to_detector)
    return float(np.mean(to_detector / to_axis)), float(np.mean(to_detector)), heights


def _ceil(number: float) -> int:
    return math.ceil(number - _ROUND)


def truncation(A: Any, region: Any = "ellipse") -> float:
    """The share of the rows of all views in which an object reaches the first or the last column.

    Such rows miss a part of the object, or may; a reconstruction then shows a bright rim and wrong
    values near the edge of the field. Costs one projection.

    Parameters
    ----------
    A
        A `Projector`.
    region
        Where the object is: `"ellipse"`, inscribed in the plane of the grid; None, all of it; or
        a 0/1 mask that broadcasts to the grid's shape, such as `(y, x)`.

    Raises
    ------
    GeometryError
        For another word, or a mask that does not fit.

    Warns
    -----
    UserWarning
        Where the share is above 0.02.

    Examples
    --------
    >>> import numpy as np
    >>> from geometries import Detector, Grid, ParallelBeam, Projector
    >>> angles = np.linspace(0, np.pi, 8, endpoint=False)
    >>> truncation(Projector(ParallelBeam(angles, Detector(12)), Grid((8, 8))))
    0.0
    """
    if not isinstance(A, LinearOperator):
        raise GeometryError(f"truncation takes a Projector, got {A!r}")
    space: Any = A.domain
    shape = tuple(space.shape)
    if isinstance(region, str) and region == "ellipse":
        y, x = (np.linspace(-1, 1, 2 * n + 1)[1::2] for n in shape[-2:])
        region = y[:, None] ** 2 + x**2 <= 1
    try:
        if isinstance(region, str):
            raise ValueError
        mask = np.broadcast_to(np.asarray(True if region is None else region, bool), shape)
    except ValueError:
        raise GeometryError(
            f"region is {region!r}; it is 'ellipse', None, or a mask that broadcasts to {shape}"
        ) from None
    seen = np.asarray(A @ np.ascontiguousarray(mask, A.dtype))
    rows = (seen[..., 0] > 0) | (seen[..., -1] > 0)
    share = float(rows.mean()) if rows.size else 0.0
    if share > _TRUNCATED:
        warnings.warn(
            f"the object reaches the edge columns in {100 * share:.3g} % of the rows of all views: "
            "what lies beyond them is not measured. Take a wider detector (`pad_columns` "
            "continues the data) or a smaller region.",
            UserWarning,
            stacklevel=2,
        )
    return share


def _warned(grid: Grid) -> Grid:
    size = 4 * math.prod(grid.shape)
    memory = _memory()
    if memory is not None and size > memory:
        warnings.warn(
            f"the grid of shape {grid.shape} takes {size} bytes in float32, more than the {memory} "
            "bytes of this machine; give a larger spacing",
            UserWarning,
            stacklevel=4,
        )
    return grid


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return None
