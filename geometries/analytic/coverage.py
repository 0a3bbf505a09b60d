"""How much of the circle a scan covers, and the weights that follow: one classifier for both.

`angular_weights` is the quadrature over views; `parker_weights` shares lines that a short
scan sees twice. Both ask `Coverage`, so they never disagree about what a full scan is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from geometries.beams import as_angles
from linops import arrays
from linops.errors import GeometryError

__all__ = ["Coverage", "angular_weights", "parker_weights"]

_TURN = 2 * math.pi


@dataclass(frozen=True, eq=False)
class Coverage:
    """What the angles of a scan cover.

    Attributes
    ----------
    period
        pi or 2 pi where the scan closes, None where it is open.
    span
        Largest minus smallest angle, after the modulus of scans of more than one turn.
    offsets
        Angles relative to the smallest, `(views,)`, in view order.
    weights
        Quadrature weights in view order; their sum is pi for closed scans, `span` for open ones.
    """

    period: float | None
    span: float
    offsets: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, angles: Any, periods: tuple[float, ...]) -> Coverage:
        """The coverage of `angles`, tried against each period in turn.

        Where pi is among the periods (parallel beams: a line comes back after half a turn) and
        a scan of more than half a turn closes at none, its angles are taken modulo pi.
        """
        t = as_angles(angles)
        if len(t) == 1:
            return cls(None, 0.0, np.zeros(1), np.full(1, math.pi))
        t = t - t[0]
        _, tol = _step(np.sort(t))
        if t.max() - t.min() > _TURN + tol:
            t = np.mod(t, _TURN)
        for period in periods:
            found = _closed(t, period)
            if found is not None:
                return found
        if math.pi in periods and t.max() - t.min() > math.pi:
            folded = _closed(np.mod(t - t.min(), math.pi), math.pi)
            if folded is not None:
                return folded
        order = np.argsort(t, kind="stable")
        return cls(None, float(t.max() - t.min()), t - t.min(), _trapezoid(t, order, 0.0))


def angular_weights(angles: Any, period: float | None = None) -> np.ndarray:
    """Quadrature weights over the views of a scan, float64, `(views,)`.

    Parameters
    ----------
    angles
        Radians in any order, `(views,)`. Differences are taken in float64 relative to the
        first.
    period
        After which angle a line is seen again: 2 pi for fan and cone beams; None tries pi,
        then 2 pi, as for parallel beams.

    Returns
    -------
    ndarray
        Half the gaps to both neighbours. Closed scans close the last gap and sum to pi (over 2 pi
        all weights are halved, since each line is seen twice); open scans are a trapezoid
        rule and sum to their span. A single view weighs pi.
    """
    periods = (math.pi, _TURN) if period is None else (float(period),)
    return Coverage.of(angles, periods).weights


def parker_weights(
    angles: Any, columns: Any, source_to_detector: float, *, equiangular: bool = False
) -> np.ndarray:
    """Weights that let a short fan scan count each line once, float64, `(views, columns)`.

    Parameters
    ----------
    angles
        Radians in any order, `(views,)`.
    columns
        Positions along u from the foot of the source, `(columns,)`; arc lengths if
        `equiangular`.
    source_to_detector
        Distance d: the ray of a column at u has gamma = atan(u / d).
    equiangular
        Columns on a circle about the source: gamma = u / d.

    Returns
    -------
    ndarray
        Ones where the scan is full. Else the weights of a ray (t, gamma) and of its second
        sight (t + pi - 2 gamma, -gamma) add to 1.

    Notes
    -----
    D. L. Parker, "Optimal short scan convolution reconstruction for fan beam CT", Medical
    Physics 9 (1982) 254; widened to spans above pi plus the fan angle.
    """
    u = np.asarray(arrays.to_numpy(columns) if arrays.is_array(columns) else columns, float)
    if u.ndim != 1:
        raise GeometryError(f"columns has shape {u.shape}; it is one-dimensional")
    gamma = u / source_to_detector if equiangular else np.arctan(u / source_to_detector)
    coverage = Coverage.of(angles, (_TURN,))
    if coverage.period is not None:
        return np.ones((len(coverage.offsets), len(gamma)))
    return redundancy(coverage, gamma)


def redundancy(coverage: Coverage, gamma: np.ndarray) -> np.ndarray:
    """The weights of an open scan at fan angles `gamma`, `(views, columns)`."""
    beta = coverage.offsets[:, None]
    delta = max(float(np.abs(gamma).max()), (coverage.span - math.pi) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        rise = np.sin(math.pi / 4 * beta / (delta + gamma)) ** 2
        fall = np.sin(math.pi / 4 * (math.pi + 2 * delta - beta) / (delta - gamma)) ** 2
    weights = np.ones(np.broadcast_shapes(beta.shape, gamma.shape))
    weights = np.where(beta > math.pi + 2 * gamma, fall, weights)
    weights = np.where(beta < 2 * (delta + gamma), rise, weights)
    return np.where(beta > math.pi + 2 * delta, 0.0, weights)


def _closed(t: np.ndarray, period: float) -> Coverage | None:
    order = np.argsort(t, kind="stable")
    step, tol = _step(t[order])
    span = float(t.max() - t.min())
    closure = period - span
    if not -tol <= closure <= 1.5 * step + tol:
        return None
    weights = _trapezoid(t, order, max(closure, 0.0))
    if period == _TURN:
        weights = weights / 2
    return Coverage(period, span, t - t.min(), weights)


def _step(ordered: np.ndarray) -> tuple[float, float]:
    gaps = np.diff(ordered)
    # Views taken twice, as in scans of several turns, say nothing about the step.
    distinct = gaps[gaps > 1e-6]
    step = float(np.median(distinct)) if distinct.size else 0.0
    return step, max(1e-4, 0.05 * step)


def _trapezoid(t: np.ndarray, order: np.ndarray, closure: float) -> np.ndarray:
    gaps = np.concatenate([[closure], np.diff(t[order]), [closure]])
    weights = np.empty_like(t)
    weights[order] = (gaps[:-1] + gaps[1:]) / 2
    return weights
