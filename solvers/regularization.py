"""Automatic strength of noise and prior, from the data alone.

The formulas are those usual in model-based CT: the noise from an assumed signal-to-noise ratio,
the scale of the prior from a typical attenuation. They are starting points, not estimates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from linops import arrays
from linops.arguments import checking
from linops.errors import DTypeError
from linops.linear_operator import LinearOperator
from linops.space import Space
from solvers.elements import require_finite
from solvers.measurement_weights import measurement_weights

__all__ = [
    "Regularization",
    "automatic_regularization",
    "automatic_weight",
    "find_support",
]

_VIEWS = 20
_BINS = 400
_FLOOR = 0.01


class Regularization(NamedTuple):
    """Standard deviation of a measurement of weight 1, and scales of two priors."""

    sigma_y: float
    sigma_x: float
    sigma_prox: float


@checking("A")
def automatic_regularization(
    A: LinearOperator,
    y: Any,
    weights: Any = None,
    sharpness: float = 1.0,
    snr_db: float = 30.0,
    *,
    pitch: float | None = None,
    columns: int | None = None,
    plane: tuple[int, int] | None = None,
    spacing: float | None = None,
    magnification: float | None = None,
) -> Regularization:
    """Strengths of noise and prior for `vcd`.

    Parameters
    ----------
    A
        A projector, lowered or not; pitch, columns, plane, spacing and magnification are read
        from its `geometry` and `grid`. Others give them by name (spaces give `columns` and
        `plane`).
    y
        Measurements, first axis views.
    weights
        As for `vcd`.
    sharpness
        One more doubles `sigma_x`.
    snr_db
        Assumed ratio of signal and noise; 20 more divide `sigma_y` by 10.
    pitch, columns
        Of the detector along a row.
    plane, spacing
        Shape (rows, columns) and pixel width of a slice.
    magnification
        At the axis; 1 for a parallel beam.

    Returns
    -------
    Regularization
        `sigma_y`, `sigma_x`, `sigma_prox` as plain floats.

    Raises
    ------
    ValueError
        For data that are not finite, or where a number is neither given nor to be read.
    """
    for name, value in (("sharpness", sharpness), ("snr_db", snr_db)):
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}; it is a finite number")
    whole = A._identity()
    scan = _scan(
        whole if isinstance(whole, LinearOperator) else A,
        pitch,
        columns,
        plane,
        spacing,
        magnification,
    )
    A.codomain.check_shape(y, "y")
    if arrays.dtype_of(y).kind not in "biuf":
        raise DTypeError(f"y has dtype {y.dtype}; it is an array of real numbers")
    # Of placed measurements the real part counts.
    y = A.codomain.home.gather(y)
    if arrays.is_array(weights):
        weights = A.codomain.home.gather(weights)
    chosen = _views(y.shape[0])
    part = arrays.to_numpy(y[chosen[0] : chosen[0] + 1] if y.shape[0] == 1 else _take(y, chosen))
    part = np.asarray(part, np.float64)
    require_finite(part, "y")
    if arrays.is_array(weights):
        weights = _take(weights, chosen)
        weights = np.asarray(arrays.to_numpy(weights), np.float64)
    w = measurement_weights(weights, part, Space(part.shape, "float64"))
    inside = find_support(part)
    cell = scan["pitch"] / scan["magnification"]
    ny, nx = scan["plane"]
    width = scan["spacing"]
    weighted = part**2 if w is None else w * part**2
    signal = math.sqrt(float(weighted[inside].mean()))
    sigma_y = 10 ** (-snr_db / 20) * signal * math.sqrt(width / cell)
    path = min(2 * ny * nx / (ny + nx) * width, scan["columns"] * cell)
    typical = float(np.abs(part[inside]).mean()) / path
    sigma_x = 0.2 * 2.0**sharpness * typical
    return Regularization(sigma_y, sigma_x, sigma_x)


def automatic_weight(
    A: LinearOperator, y: Any, W: Any, spacing: Sequence[float], size: float
) -> float:
    """The weight of total variation for noise as y has it, and entries of x of such a size.

    `2 sigma^2 voxels spacing / (N size)`: what Gaussian noise of deviation sigma and differences of
    neighbors distributed as exp(-|d| / b) say, with b half the size. With weights sigma^2 is
    that of a measurement of mean weight, times that weight. The members of a batch share it.
    """
    host = np.asarray(arrays.to_numpy(A.codomain.home.gather(y)), np.float64)
    if not host.size or not host.any():
        return 0.0
    top = float(np.abs(host).max())
    host = host / top
    signal = math.sqrt(float(np.mean(host[find_support(host)] ** 2)))
    sigma = _FLOOR * signal
    if host.ndim and host.shape[-1] > 2:
        bent = host[..., 2:] - 2 * host[..., 1:-1] + host[..., :-2]
        bent = bent[find_support(host)[..., 1:-1]]
        if bent.size:  # median and deviation of 1, -2, 1 times Gaussian noise
            sigma = max(sigma, float(np.median(np.abs(bent))) / (0.6745 * math.sqrt(6.0)))
    mean = 1.0 if W is None else float(np.mean(arrays.to_numpy(A.codomain.home.gather(W))))
    edge: float = math.exp(float(np.mean(np.log(spacing))))
    voxels = A.domain.size / max(A.codomain.size, 1)
    # The two factors of y apart: their product may not be a number of float64.
    value: float = 2.0 * sigma * top * (sigma * top / size) * mean * voxels * edge
    return value


def _views(count: int) -> np.ndarray:
    """At most 20 views, evenly spread."""
    if count <= _VIEWS:
        return np.arange(count)
    return np.arange(_VIEWS) * count // _VIEWS


def _take(x: Any, chosen: np.ndarray) -> Any:
    xp = arrays.namespace(x)
    if arrays.is_numpy(x):
        return x[chosen]
    return xp.take(x, arrays.convert(chosen, x), axis=0)


def find_support(y: np.ndarray) -> np.ndarray:
    """Which measurements belong to the object: a histogram's background peak set apart."""
    everything = np.ones(y.shape, bool)
    if not (y > 0).any():
        return everything
    counts, edges = np.histogram(y, _BINS)
    # The peak nearest 0: from the bin of 0 uphill.
    peak = int(np.clip(np.searchsorted(edges, 0.0, side="right") - 1, 0, _BINS - 1))
    while True:
        around = range(max(peak - 1, 0), min(peak + 2, _BINS))
        best = max(around, key=lambda i: counts[i])
        if counts[best] <= counts[peak]:
            break
        peak = best
    low = 0.1 * counts[peak]
    right = left = peak
    while right + 1 < _BINS and counts[right] > low:
        right += 1
    while left > 0 and counts[left] > low:
        left -= 1
    threshold = edges[right] + (edges[right] - edges[left])
    above = y[y > threshold]
    if not above.size:
        return everything
    inside: np.ndarray = y >= 0.25 * np.median(above)
    return inside


def _scan(
    A: LinearOperator,
    pitch: float | None,
    columns: int | None,
    plane: tuple[int, int] | None,
    spacing: float | None,
    magnification: float | None,
) -> dict[str, Any]:
    geometry, grid = getattr(A, "geometry", None), getattr(A, "grid", None)
    detector = getattr(geometry, "detector", None)
    if pitch is None and detector is not None:
        pitch = float(np.ravel(detector.pitch)[-1])
    if columns is None and A.codomain.shape:
        columns = int(A.codomain.members[-1].shape[-1])
    if plane is None and isinstance(A.domain, Space) and A.domain.ndim >= 2:
        plane = (A.domain.shape[-2], A.domain.shape[-1])
    if spacing is None:
        known = getattr(grid, "spacing", None)
        if known is None and isinstance(A.domain, Space):
            known = A.domain.spacing
        spacing = None if known is None else float(np.ravel(known)[-1])
    if magnification is None and geometry is not None:
        near = getattr(geometry, "source_to_axis", None)
        far = getattr(geometry, "source_to_detector", None)
        if near is None or far is None:
            magnification = 1.0
        else:
            magnification = float(np.mean(np.asarray(far) / np.asarray(near)))
    found = {
        "pitch": pitch,
        "columns": columns,
        "plane": plane,
        "spacing": spacing,
        "magnification": magnification,
    }
    missing = [name for name, value in found.items() if value is None]
    if missing:
        raise ValueError(
            f"{A.name} tells no {', '.join(missing)}: pass {'it' if len(missing) == 1 else 'them'} "
            "by name"
        )
    return found
