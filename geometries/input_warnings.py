"""Warnings of arguments that are legal and yet most likely mistaken."""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

import numpy as np

from linops import arrays

__all__ = ["warn_caller", "warn_of_degrees", "warn_of_near_detectors"]

_OWN = ("geometries", "linops")


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, pointing at the line outside the library that led here, however deep this is."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _OWN:
            break
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, category, stacklevel=depth + 1)


def warn_of_degrees(angles: np.ndarray, name: str) -> None:
    """Warn of angles over more than 4 pi, in even steps above 0.2 rad that are not golden."""
    steps = np.diff(np.sort(angles))
    if len(steps) < 2 or angles.max() - angles.min() <= 4 * math.pi:
        return
    step = float(np.median(steps))
    even = float(np.abs(steps - step).max()) <= 1e-3 * step
    if not even or step <= 0.2 or _golden(step):
        return
    warn_caller(
        f"{name} run from {angles.min():g} to {angles.max():g} in even steps of {step:.4g} rad "
        f"({math.degrees(step):.4g} degrees): they look like degrees. Angles are radians; "
        "convert with np.deg2rad."
    )


def warn_of_near_detectors(source_to_axis: Any, source_to_detector: Any) -> None:
    """Warn of a detector between source and axis, where every ray ends before the axis.

    Distances of other libraries than NumPy are not looked at: they may be on a device, or traced.
    """
    pair = (source_to_axis, source_to_detector)
    if any(arrays.is_array(x) and not arrays.is_numpy(x) for x in pair):
        return
    a, d = (np.asarray(x, np.float64) for x in pair)
    before = np.ravel(d < a)
    if before.any():
        k = int(np.argmax(before))
        near, far = (np.ravel(np.broadcast_to(x, np.broadcast(a, d).shape))[k] for x in (d, a))
        warn_caller(
            f"source_to_detector is {near:g} and source_to_axis {far:g} in view {k}: the detector "
            "stands between source and axis, and rays end there. Distances are both measured from "
            "the source; were they exchanged?"
        )


def _golden(step: float) -> bool:
    # Golden angles pi / (phi + k), and twice that, counted up without a modulus.
    phi = (1 + math.sqrt(5)) / 2
    family = [turn / (phi + k) for k in range(12) for turn in (math.pi, 2 * math.pi)]
    return any(abs(step - angle) <= 3e-6 * angle for angle in family)
