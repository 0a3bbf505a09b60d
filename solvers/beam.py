"""What coordinate descent asks of a scan that its operator knows: `A.geometry` and `A.grid`.

Of an operator without them nothing is known, and nothing is asked. Their attributes alone are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linops import arrays
from linops.apply import warn
from linops.linear_operator import LinearOperator
from solvers.regularization import find_support

__all__ = ["damp_means", "rotates", "warn_of_truncation"]

_SHARE = 0.02


def rotates(A: LinearOperator) -> bool:
    """Whether the beam of A goes around an axis through the plane of its slices."""
    geometry = _find_field(A, "geometry")
    return getattr(geometry, "angles", None) is not None


def damp_means(A: LinearOperator) -> np.ndarray | None:
    """For each slice the factor s in (0, 1] of the mean of a subset's change; None for 1.

    Of a diverging beam around an axis, with `t = L |z - source| / (source_to_axis dz)` and L the
    depth of the plane, `s = (t^0.7 / 2 + 100^0.7 / 4) / (t^0.7 + 100^0.7)`, the mean over the
    views' sources of a helix. Shape `(slices, 1)`, `(1,)` of an image. The lowest frequencies
    along the axis are worst conditioned near the plane of the source, and would show as noise of
    the central slices.
    """
    geometry, grid = _find_field(A, "geometry"), _find_field(A, "grid")
    near = getattr(geometry, "source_to_axis", None)
    sources = getattr(geometry, "sources", None)
    if near is None or sources is None or grid is None or not rotates(A):
        return None
    if any(arrays.is_traced(part) for part in (near, sources)):
        return None
    distance = float(np.mean(arrays.to_numpy(near))) if arrays.is_array(near) else float(near)
    if len(grid.shape) == 2:
        return np.array([_factor(np.zeros(1)).mean()])
    depth = grid.shape[1] * grid.spacing[1]
    source = np.asarray(arrays.to_numpy(sources), np.float64)[:, 2]
    z = np.asarray(grid.coordinates("z"), np.float64)
    heights, counts = np.unique(source, return_counts=True)
    t = depth * np.abs(z[:, None] - heights) / (distance * grid.spacing[0])
    return np.asarray((_factor(t) * counts).sum(axis=1, keepdims=True) / counts.sum())


def warn_of_truncation(A: LinearOperator, y: Any) -> None:
    """Warn where the object reaches beyond the detector's columns.

    Warns
    -----
    RuntimeWarning
        Where its support meets the first or last column in more than 2 % of the rows of all views.
    """
    if not rotates(A):
        return
    host = np.asarray(arrays.to_numpy(A.codomain.home.gather(y)))
    above, below = float(host[host > 0].sum()), float(-host[host < 0].sum())
    if not above > 4 * below:  # no line integrals of an object, such as a solver's residual
        return
    # Where no background was found everything counts as object: then its size must tell too.
    inside = find_support(host) & (host >= 0.25 * np.median(host[host > 0]))
    share = float((inside[..., 0] | inside[..., -1]).mean())
    if share > _SHARE:
        warn(
            f"the object reaches the edge columns in {share:.0%} of the rows of {A.name}'s views: "
            "the scan is truncated, and what lies beyond its field of view, or the region, cannot "
            "be told apart; reconstruct a wider grid with roi=None, or give a mask"
        )


def _find_field(A: LinearOperator, name: str) -> Any:
    whole = A._identity()
    return getattr(whole, name, getattr(A, name, None))


def _factor(t: np.ndarray) -> np.ndarray:
    power, middle = t**0.7, 100.0**0.7
    return np.asarray((0.5 * power + 0.25 * middle) / (power + middle))
