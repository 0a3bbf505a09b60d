"""From counts to line integrals, and edits of a detector that keep data and geometry together.

Zero, negative and dead pixels are repaired and counted, never passed on; NaN is refused by name.
Every editing function returns the data *and* the geometry that belongs to it, so that the axis is
never lost.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np

from geometries.beams import Beam, as_angles
from geometries.detector import Detector
from geometries.trajectory import Trajectory
from linops import arrays, numeric
from linops.arrays import Array
from linops.errors import DTypeError, GeometryError, ShapeError

__all__ = [
    "LineIntegrals",
    "bin_detector",
    "crop_columns",
    "flip_columns",
    "fold_turn",
    "line_integrals",
    "pad_columns",
    "real_values",
]


class LineIntegrals(NamedTuple):
    """What `line_integrals` returns.

    Attributes
    ----------
    data
        `-log((counts - dark) / (flat - dark))`, the shape of the counts.
    repaired
        Values whose transmission lay below the floor and was raised to it, plus those of
        dead cells.
    dead
        Detector cells whose flat field is not above the dark field, summed over the cells of
        one view; their values are interpolated from the neighboring columns.
    """

    data: Array
    repaired: int
    dead: int


def line_integrals(
    counts: Array, flats: Any, darks: Any = 0.0, *, floor: float = 1e-4
) -> LineIntegrals:
    """Flat and dark correction, then the negative logarithm, with guards.

    Parameters
    ----------
    counts
        Measured intensities, `(view, row, col)` or `(view, col)`, any namespace and real dtype.
    flats, darks
        Images without the object and without the beam: a number, one view's shape, or a stack of
        such along axis 0, which is averaged.
    floor
        Smallest transmission that counts as measured. What lies below, zero and negative
        counts too, is raised to it: its line integral is `-log(floor)`, 9.21 by default.

    Returns
    -------
    LineIntegrals
        `(data, repaired, dead)`; float64 for float64 counts, else float32. Repairs are warned of
        once.

    Raises
    ------
    ShapeError
        Where flats or darks do not fit.
    ValueError
        For NaN or infinite counts, flats or darks, by name, and a floor outside (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> result = line_integrals(np.array([8.0, 5.0]), 10.0)
    >>> np.round(result.data, 4), result.repaired
    (array([0.2231, 0.6931]), 0)
    """
    if not 0 < numeric.finite("floor", floor) < 1:
        raise ValueError(f"floor is {floor!r}; it is a transmission between 0 and 1")
    host = real_values(counts, "counts")
    dtype = np.dtype(
        "float64" if host.dtype.itemsize >= 8 and host.dtype.kind == "f" else "float32"
    )
    flat, dark = _field(flats, host, "flats"), _field(darks, host, "darks")
    beam = flat - dark
    shape = host.shape[1:] if beam.ndim < host.ndim else host.shape
    lost = np.broadcast_to(beam <= 0, shape if host.ndim > 1 else host.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        transmission = ((host - dark) / beam).astype(dtype, copy=False)
    dead_values = np.broadcast_to(lost, host.shape)
    low = (transmission < floor) & ~dead_values
    transmission = np.where(low | dead_values, floor, transmission)
    data = -np.log(transmission)
    if lost.any():
        data = _interpolated(data, dead_values)
    repaired = int(low.sum() + dead_values.sum())
    if repaired:
        warnings.warn(
            f"{repaired} repaired of {host.size} values: {int(low.sum())} at or below a "
            f"transmission of {floor:g}, {int(dead_values.sum())} in {int(lost.sum())} dead cells "
            "(flat not above dark)",
            RuntimeWarning,
            stacklevel=2,
        )
    return LineIntegrals(_back(data, counts), repaired, int(lost.sum()))


def bin_detector(data: Array, geometry: Any, columns: int = 1, rows: int = 1) -> tuple[Array, Any]:
    """Means over groups of neighboring cells, and the geometry with the wider pitch.

    Cells at the end that fill no group are dropped; the offset follows. Bin line integrals or
    counts alike; for counts of low statistics bin before the logarithm.

    Returns
    -------
    (data, geometry)
    """
    host, detector = _fitting(data, geometry)
    factors = (columns,) if len(detector.shape) == 1 else (rows, columns)
    if len(detector.shape) == 1 and rows != 1:
        raise GeometryError(f"rows is {rows}; the detector of shape {detector.shape} has no rows")
    shape, pitch, offset = [], [], []
    for axis, factor in enumerate(factors):
        factor = numeric.whole("a binning factor", factor, 1, GeometryError)
        n, kept = detector.shape[axis], detector.shape[axis] // factor * factor
        if kept == 0:
            raise GeometryError(f"{n} cells cannot be binned by {factor}")
        position = host.ndim - len(factors) + axis
        host = np.take(host, np.arange(kept), position)
        host = host.reshape(
            *host.shape[:position], kept // factor, factor, *host.shape[position + 1 :]
        )
        host = host.mean(axis=position + 1, dtype=np.float64).astype(_float(host.dtype))
        shape.append(kept // factor)
        pitch.append(detector.pitch[axis] * factor)
        offset.append(detector.offset[axis] - (n - kept) / 2 * detector.pitch[axis])
    return _back(host, data), _with(geometry, shape, pitch, offset)


def pad_columns(
    data: Array, geometry: Any, before: int = 0, after: int = 0, mode: str = "edge"
) -> tuple[Array, Any]:
    """More columns on either side, and the geometry whose detector has them.

    Parameters
    ----------
    mode
        `"edge"` repeats the outermost values, which damps the bright rim of truncated scans;
        `"constant"` puts zeros. Neither is exact for truncated data.

    Returns
    -------
    (data, geometry)
    """
    host, detector = _fitting(data, geometry)
    before = numeric.whole("before", before, 0, GeometryError)
    after = numeric.whole("after", after, 0, GeometryError)
    if mode not in ("edge", "constant"):
        raise GeometryError(f"mode is {mode!r}; it is 'edge' or 'constant'")
    width: list[tuple[int, int]] = [(0, 0)] * (host.ndim - 1) + [(before, after)]
    padded = np.pad(host, width, mode="edge" if mode == "edge" else "constant")
    return _back(padded, data), geometry.with_detector(detector.with_columns(before, after))


def crop_columns(data: Array, geometry: Any, start: int, stop: int) -> tuple[Array, Any]:
    """Columns `start` to `stop`, and the geometry whose detector has only these.

    Returns
    -------
    (data, geometry)
    """
    host, detector = _fitting(data, geometry)
    n = detector.shape[-1]
    start = numeric.whole("start", start, 0, GeometryError)
    stop = numeric.whole("stop", stop, 0, GeometryError)
    if not 0 <= start < stop <= n:
        raise GeometryError(f"columns {start} to {stop} are no range of the {n} columns")
    part = np.array(host[..., start:stop])
    return _back(part, data), geometry.with_detector(detector.with_columns(-start, stop - n))


def flip_columns(data: Array, geometry: Any) -> tuple[Array, Any]:
    """Columns in reverse order, and the geometry with the axis on the other side.

    For data that were stored mirrored. Frames keep their u, so the image comes out mirrored too:
    this changes the handedness of a scan, it does not rename its columns.

    Returns
    -------
    (data, geometry)
    """
    host, detector = _fitting(data, geometry)
    offset = [*detector.offset[:-1], -detector.offset[-1]]
    flipped = np.array(host[..., ::-1])
    return _back(flipped, data), _with(geometry, detector.shape, detector.pitch, offset)


def fold_turn(data: Array, geometry: Any) -> tuple[Array, Any]:
    """A parallel scan of a full turn as one of half a turn on a wider detector.

    The view at t + pi shows the lines of the view at t mirrored about the axis; where the axis
    stands far off the middle, the two halves together see twice the width. Both are blended
    linearly where they overlap, the mirrored one interpolated, so the axis may fall between
    cells.

    Parameters
    ----------
    data
        `(..., view, col)` or `(..., view, row, col)`.
    geometry
        A `ParallelBeam` of an even number of views with view k + n/2 opposite to view k.

    Returns
    -------
    (data, geometry)
        n/2 views.

    Raises
    ------
    GeometryError
        Where views are not opposite, or the axis lies outside the detector.
    """
    host, detector = _fitting(data, geometry)
    if not isinstance(geometry, Beam) or geometry.kind != "parallel":
        raise GeometryError("fold_turn takes a ParallelBeam; lines of other beams do not fold")
    half = geometry.views // 2
    angles = as_angles(geometry.angles)
    turn = np.remainder(angles[half:] - angles[: geometry.views - half], 2 * np.pi)
    if geometry.views % 2 or np.abs(turn - math.pi).max() > 1e-6:
        raise GeometryError(
            f"the {geometry.views} views are not two opposite halves: view k + n/2 has to stand "
            "half a turn after view k"
        )
    u, pitch = detector.columns(), detector.pitch[-1]
    if not u[0] <= 0 <= u[-1]:
        raise GeometryError(f"the axis lies outside the columns, {u[0]:g} to {u[-1]:g}")
    # The finer grid is the measured one, continued to the longer side.
    reach = max(-u[0], u[-1])
    before = max(0, math.floor((u[0] + reach) / pitch + 1e-9))
    after = max(0, math.floor((reach - u[-1]) / pitch + 1e-9))
    wide = geometry.with_detector(detector.with_columns(before, after))[:half]
    place = wide.detector.columns()
    axis = host.ndim - 1 - len(detector.shape)
    here, there = np.split(host.astype(np.float64), 2, axis=axis)
    own = _share(place, u)
    other = _share(-place, u)
    total = own + other
    left = _resample(here, place, u) * (own / total)
    folded = left + _resample(there, -place, u) * (other / total)
    return _back(folded.astype(_float(host.dtype)), data), wide


def _share(place: np.ndarray, u: np.ndarray) -> np.ndarray:
    # Rises from the detector's end inwards, so that blending leaves no step; 0 outside.
    pitch = u[1] - u[0] if len(u) > 1 else 1.0
    inside = (place >= u[0] - 1e-9 * pitch) & (place <= u[-1] + 1e-9 * pitch)
    depth = np.minimum(place - u[0], u[-1] - place) + pitch
    return np.where(inside, depth, 0.0)


def _resample(rows: np.ndarray, place: np.ndarray, u: np.ndarray) -> np.ndarray:
    pitch = u[1] - u[0] if len(u) > 1 else 1.0
    index = np.clip((place - u[0]) / pitch, 0, len(u) - 1)
    left = np.minimum(index.astype(int), max(len(u) - 2, 0))
    share = index - left
    right = np.minimum(left + 1, len(u) - 1)
    return np.asarray(rows[..., left] * (1 - share) + rows[..., right] * share)


def real_values(values: Any, name: str) -> np.ndarray:
    """Real, finite numbers in NumPy, or an error that names them."""
    host = arrays.to_numpy(arrays.asarray(values, "preprocessing", name))
    if host.dtype.kind not in "biuf":
        raise DTypeError(f"{name} has dtype {host.dtype}; it is an array of real numbers")
    if host.dtype.kind == "f":
        bad = int(host.size - np.isfinite(host).sum())
        if bad:
            raise ValueError(
                f"{name} has {bad} values that are NaN or infinite; repair or mask them before "
                "the correction"
            )
        return host
    return host


def _field(values: Any, counts: np.ndarray, name: str) -> np.ndarray:
    host = real_values(values, name)
    if host.ndim == counts.ndim and counts.ndim > 1:
        if len(host) == 0:
            raise ShapeError(f"{name} is a stack of no images")
        host = host.mean(axis=0, dtype=np.float64)
    try:
        shape = np.broadcast_shapes(
            host.shape, counts.shape[1:] if counts.ndim > 1 else counts.shape
        )
    except ValueError:
        shape = (-1,)
    if shape != (counts.shape[1:] if counts.ndim > 1 else counts.shape):
        raise ShapeError(
            f"{name} has shape {np.shape(values)}; counts of shape {counts.shape} take a number, "
            f"one view {counts.shape[1:]}, or a stack of views"
        )
    return np.asarray(host, np.float64)


def _interpolated(data: np.ndarray, dead: np.ndarray) -> np.ndarray:
    columns = np.arange(data.shape[-1])
    out = data.copy()
    for index in np.ndindex(data.shape[:-1]):
        bad = dead[index]
        if bad.any() and not bad.all():
            out[index][bad] = np.interp(columns[bad], columns[~bad], data[index][~bad])
    return out


def _fitting(data: Array, geometry: Any) -> tuple[np.ndarray, Detector]:
    if not isinstance(geometry, (Beam, Trajectory)):
        raise GeometryError(f"geometry is {geometry!r}; it is a beam or a Trajectory")
    host = real_values(data, "data")
    shape = (geometry.views, *geometry.detector.shape)
    if host.shape[-len(shape) :] != shape:
        raise ShapeError(
            f"data has shape {host.shape}; the geometry's projections have shape {shape}, after "
            "any leading axes"
        )
    return host, geometry.detector


def _with(geometry: Any, shape: Any, pitch: Any, offset: Any) -> Any:
    detector = Detector(tuple(shape), tuple(pitch), tuple(offset), geometry.detector.curvature)
    return geometry.with_detector(detector)


def _float(dtype: np.dtype) -> np.dtype:
    return dtype if dtype.kind == "f" else np.dtype("float32")


def _back(host: np.ndarray, like: Array) -> Array:
    return arrays.convert(np.ascontiguousarray(host), like) if arrays.is_array(like) else host
