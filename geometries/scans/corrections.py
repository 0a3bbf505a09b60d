"""Corrections of line integrals: rings, bad cells, beam hardening, drift of the air.

Each takes line integrals `(view, col)` or `(view, row, col)` of any namespace and gives an array of
the same shape; the geometry stays as it is. Counts are turned into line integrals, and detectors
edited, in `geometries/scans/preprocess.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from geometries.scans.preprocess import real_values
from linops import arrays, numeric
from linops.arrays import Array
from linops.errors import ShapeError

__all__ = ["correct_beam_hardening", "normalize_air", "remove_rings", "repair_cells"]


def remove_rings(data: Array, size: int = 21) -> Array:
    """Remove the stripes of miscalibrated columns, which become rings in the image.

    Parameters
    ----------
    data
        Line integrals, many views of a smooth object.
    size
        Columns of the median, odd; wider than the widest stripe.

    Notes
    -----
    The sorting method of N. T. Vo, R. C. Atwood, M. Drakopoulos, "Superior techniques for
    eliminating ring artifacts in X-ray micro-tomography", Optics Express 26 (2018) 28396, algorithm
    3: the values of each column are sorted, medians taken across neighboring columns, and the
    result is put back in the order of the views.
    """
    host = _projections(data)
    size = numeric.whole("size", size, 1)
    if size % 2 == 0 or size > host.shape[-1]:
        raise ValueError(
            f"size is {size}; it is an odd number of at most the {host.shape[-1]} columns"
        )
    order = np.argsort(host, axis=0, kind="stable")
    ranked = np.take_along_axis(host, order, 0)
    out = np.empty_like(host)
    side = [(0, 0)] * (host.ndim - 2) + [(size // 2, size // 2)]
    for rank, line in enumerate(ranked):
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(line, side, "edge"), size, -1)
        ranked[rank] = np.median(windows, axis=-1)
    np.put_along_axis(out, order, ranked, 0)
    return _back(out, data)


def repair_cells(data: Array, bad: Any) -> Array:
    """Interpolate bad detector cells from the good ones beside them in their row.

    Parameters
    ----------
    data
        Line integrals; values in bad cells are not read, NaN there too.
    bad
        Numbers of bad columns, or a mask `(col,)` or `(row, col)` that is True in bad cells.

    Raises
    ------
    ShapeError, ValueError
        For a mask of another shape, columns outside, and a row without a good cell.
    """
    values = np.asarray(arrays.to_numpy(arrays.asarray(data, "repair_cells", "data")))
    columns = values.shape[-1]
    mask = np.asarray(bad)
    if mask.dtype.kind in "iu" or mask.size == 0:
        index = mask.astype(int).ravel()
        if ((index < 0) | (index >= columns)).any():
            raise ShapeError(f"bad has columns {index.tolist()}; there are {columns}, from 0")
        mask = np.isin(np.arange(columns), index)
    if mask.dtype != bool or mask.shape not in ((columns,), values.shape[1:]):
        raise ShapeError(
            f"bad has shape {mask.shape} and dtype {mask.dtype}; it is column numbers, or a mask "
            f"of shape ({columns},) or {values.shape[1:]}"
        )
    host = _projections(np.where(mask, 0, values))
    lines = np.broadcast_to(mask, host.shape[1:]).reshape(-1, columns)
    flat = host.reshape(len(host), -1, columns)
    for row, line in enumerate(lines):
        good = np.flatnonzero(~line)
        if len(good) == 0:
            raise ValueError(f"row {row} has no good cell; crop the detector to rows that have")
        place = np.interp(np.arange(columns), good, np.arange(len(good)))
        left = place.astype(int)
        right, share = np.minimum(left + 1, len(good) - 1), place - left
        own = flat[:, row, good]
        fresh = own[:, left] * (1 - share) + own[:, right] * share
        flat[:, row, line] = fresh[:, line]
    return _back(host, data)


def correct_beam_hardening(data: Array, coefficients: Any) -> Array:
    """The polynomial `c[0] p + c[1] p^2 + ...` of line integrals p, without a constant.

    Parameters
    ----------
    coefficients
        Of a calibration, lowest power first: (1,) changes nothing.

    Notes
    -----
    G. T. Herman, "Correction for beam hardening in computed tomography", Physics in Medicine and
    Biology 24 (1979) 81.
    """
    host = _projections(data)
    c = numeric.finite_vector("coefficients", coefficients)
    if len(c) == 0:
        raise ShapeError("coefficients is empty; it has one number a power, the first for p")
    return _back(np.polynomial.polynomial.polyval(host, np.append(0.0, c)), data)


def normalize_air(data: Array, left: int, right: int = 0) -> Array:
    """Set the air beside the object to zero, view by view and row by row.

    Parameters
    ----------
    left, right
        Columns at either end that see air in every view. The line through their means is
        subtracted; with one side alone its mean.
    """
    host = _projections(data)
    n = host.shape[-1]
    left, right = (numeric.whole(k, v, 0) for k, v in (("left", left), ("right", right)))
    if not 0 < left + right <= n:
        raise ValueError(
            f"left and right are {left} and {right}; they count air columns, of {n} in all"
        )
    ends = [
        part.mean(-1, keepdims=True)
        for part in (host[..., :left], host[..., n - right :])
        if part.shape[-1]
    ]
    base = ends[0]
    if len(ends) == 2:
        first, last = (left - 1) / 2, n - 1 - (right - 1) / 2
        base = base + (ends[1] - base) * ((np.arange(n) - first) / (last - first))
    return _back(host - base, data)


def _projections(data: Any) -> np.ndarray:
    """A float64 copy, `(view, ..., col)`."""
    host = np.array(real_values(data, "data"), np.float64)
    if host.ndim not in (2, 3):
        raise ShapeError(
            f"data has shape {host.shape}; line integrals are (view, col) or (view, row, col)"
        )
    return host


def _back(host: np.ndarray, like: Any) -> Any:
    dtype = arrays.dtype_of(like) if arrays.is_array(like) else np.asarray(like).dtype
    result = host.astype(dtype if dtype.kind == "f" else np.float32)
    return arrays.convert(np.ascontiguousarray(result), like) if arrays.is_array(like) else result
