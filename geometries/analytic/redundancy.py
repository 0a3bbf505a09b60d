"""Formulas that let each line count once, where a scan sees some lines twice and others once.

They take fan angles and offsets of views as plain numbers; what a scan covers is told by
`geometries/analytic/coverage.py`, and the operators are in `geometries/analytic/weights.py`.
"""

from __future__ import annotations

import math

import numpy as np

from geometries.input_warnings import warn_caller

__all__ = [
    "missing_columns",
    "of_displaced",
    "of_open_scan",
    "warn_of_one_side",
    "warn_of_short_span",
]

_TAPER = math.radians(10)


def of_open_scan(offsets: np.ndarray, arcs: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    """Weights of an open fan scan, `(views, columns)`: the two sights of a line add to 1.

    Parameters
    ----------
    offsets
        Angles of the views relative to the first, `(views,)`.
    arcs
        First and last offset of each part of the scan, `(parts, 2)`.
    gamma
        Fan angles along `e_u`, `(columns,)`.
    """
    if len(arcs) > 1:
        return _of_arcs(offsets, arcs, gamma)
    beta, span = offsets[:, None], float(arcs[0, 1])
    delta = max(float(np.abs(gamma).max()), (span - math.pi) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        rise = np.sin(math.pi / 4 * beta / (delta + gamma)) ** 2
        fall = np.sin(math.pi / 4 * (math.pi + 2 * delta - beta) / (delta - gamma)) ** 2
    weights = np.ones(np.broadcast_shapes(beta.shape, gamma.shape))
    weights = np.where(beta > math.pi + 2 * gamma, fall, weights)
    weights = np.where(beta < 2 * (delta + gamma), rise, weights)
    return np.where(beta > math.pi + 2 * delta, 0.0, weights)


def of_displaced(place: np.ndarray) -> np.ndarray:
    """Weights of a full turn at columns `place`, fan angles or distances from the axis."""
    low, high = float(place.min()), float(place.max())
    overlap = min(-low, high)
    once = max(-low, high) - overlap
    cell = (high - low) / max(len(place) - 1, 1)
    if overlap <= 0:
        return np.full(len(place), 2.0)
    if once <= 2 * cell:
        return np.ones(len(place))
    # An odd power is smooth at the axis, which every view passes: a kink there would add up.
    steepness = min(overlap / (4 * once), overlap / (24 * cell))
    power = 2 * math.floor(steepness) + 1
    x = np.clip(place / overlap, -1.0, 1.0) * (1.0 if high > -low else -1.0)
    return np.asarray(1 + np.sin(math.pi / 2 * x**power))


def missing_columns(place: np.ndarray) -> tuple[int, int]:
    """Columns before the first and after the last that make a detector symmetric.

    Columns at `place` are evenly spaced about the axis. A displaced detector is filled up
    with zeros before the ramp, whose tails reach past the end of its shorter side.
    """
    cell = abs(float(place[-1] - place[0])) / max(len(place) - 1, 1)
    first, last = abs(float(place[0])), abs(float(place[-1]))
    missing = math.ceil(abs(first - last) / cell - 1e-9)
    if place[0] * place[-1] >= 0:
        # The axis is not on the detector: from the nearer end to the axis as well.
        missing = math.ceil((first + last) / cell - 1e-9)
    return (missing, 0) if first < last else (0, missing)


def warn_of_short_span(span: float, gamma: np.ndarray) -> bool:
    """Warn where an open scan spans less than pi plus the full fan angle; tell whether it does."""
    need = math.pi + 2 * float(np.abs(gamma).max())
    if span >= need - 1e-5:
        return False
    warn_caller(
        f"the scan spans {math.degrees(span):.2f} degrees; half a turn and the full fan angle are "
        f"{math.degrees(need):.2f}: some lines are seen by no view, and values will not be those "
        "of the object"
    )
    return True


def warn_of_one_side(span: float, place: np.ndarray) -> None:
    """Warn where a scan that is no full turn has a detector that sees mostly one side."""
    low, high = float(place.min()), float(place.max())
    if span <= math.pi + 1e-5 or min(-low, high) >= max(-low, high) / 2:
        return
    warn_caller(
        f"the detector reaches from {low:g} to {high:g} about the axis in a scan that is no full "
        f"turn ({math.degrees(span):.2f} degrees): some lines count twice, and values will not be "
        "those of the object; scan a full turn, or cut the scan to what is seen once"
    )


def _of_arcs(offsets: np.ndarray, arcs: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    own = _presence(offsets, arcs)[:, None] + 1e-9
    again = _presence(offsets[:, None] + math.pi - 2 * gamma, arcs)
    return np.asarray(own / (own + again))


def _presence(offsets: np.ndarray, arcs: np.ndarray) -> np.ndarray:
    """1 inside the parts of a scan, falling smoothly to 0 at their ends."""
    turned = np.mod(offsets, 2 * math.pi)
    presence = np.zeros(turned.shape)
    for first, last in arcs:
        taper = min(_TAPER, (last - first) / 2)
        depth = np.minimum(turned - first, last - turned)
        if taper > 0:
            presence += np.sin(math.pi / 2 * np.clip(depth / taper, 0.0, 1.0)) ** 2
    return presence
