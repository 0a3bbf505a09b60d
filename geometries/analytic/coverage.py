"""How much of the circle a scan covers, and the weights that follow: one classifier for all.

`angular_weights` is the quadrature over views; `parker_weights` shares lines that a short scan sees
twice, `displaced_weights` those of a full turn on a detector that stands to one side. The first
two ask `Coverage`, so they never disagree about what a full scan is. The formulas of redundancy
are in `geometries/analytic/redundancy.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from geometries.analytic import redundancy
from geometries.beams import as_angles
from linops import numeric
from linops.errors import GeometryError

__all__ = ["Coverage", "angular_weights", "displaced_weights", "parker_weights"]

_TURN = 2 * math.pi
_SAME = 1e-6


@dataclass(frozen=True, eq=False)
class Coverage:
    """What the angles of a scan cover.

    Attributes
    ----------
    period
        pi or 2 pi where the scan closes, None where it is open.
    span
        From the first to the last angle on the circle, gaps inside included.
    offsets
        Angles relative to the first, `(views,)`, in view order.
    weights
        Quadrature weights in view order; their sum is pi for closed scans, what the arcs cover
        for open ones.
    arcs
        First and last offset of each part of an open scan without a gap, `(parts, 2)`.
    """

    period: float | None
    span: float
    offsets: np.ndarray
    weights: np.ndarray
    arcs: np.ndarray

    @classmethod
    def of(cls, angles: Any, periods: tuple[float, ...]) -> Coverage:
        """The coverage of `angles`, tried against each period in turn.

        Angles count modulo a period. Scans that close at none are folded by the smallest: a
        line of a parallel beam comes back after half a turn.
        """
        t = as_angles(angles)
        t = t - t[0]
        found = []
        for period in sorted(periods):
            coverage, folded = _on_circle(t, period)
            if coverage.period is not None and not folded:
                return coverage
            found.append((coverage, folded))
        closed = [coverage for coverage, _ in found if coverage.period is not None]
        # Of several periods the largest keeps views and weights of a full turn as they are.
        return closed[-1] if closed else found[0][0]

    @property
    def complete(self) -> bool:
        """Whether the scan closes, so that all its lines are seen equally often."""
        return self.period is not None


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
        Half the gaps to both neighbors. Closed scans close the last gap and sum to pi (over 2 pi
        all weights are halved, since each line is seen twice); open scans are a trapezoid
        rule and sum to their span. Views of one angle share its weight. A single view weighs pi.

    Raises
    ------
    GeometryError, DTypeError
        For angles that are no finite numbers, and a period that is not positive.

    Notes
    -----
    A gap above three times the steps of the scan is a missing wedge: it is left out of the sum,
    and the views beside it count nothing on its side, as at the ends of an open scan. (A plain
    trapezoid would give the two views beside a gap of 40 steps 20 times the weight of the others,
    and their streaks with it.) Values then come out low by about the missing share of the half
    turn; F. Natterer, "The Mathematics of Computerized Tomography", section VI.2, and J. Frikel,
    E. T. Quinto, Inverse Problems 29 (2013) 125007, say what cannot be seen. Smaller gaps, such
    as dropped views, are bridged. The steps of a scan are its largest gaps but for a few (one
    below 16 views, then three or half the square root of the views), so that golden-angle and
    random scans, and scans of two densities, have no wedge.
    """
    if period is None:
        return Coverage.of(angles, (math.pi, _TURN)).weights
    return Coverage.of(angles, (numeric.positive("period", period, GeometryError),)).weights


def parker_weights(
    angles: Any, columns: Any, source_to_detector: float, *, equiangular: bool = False
) -> np.ndarray:
    """Weights that let a short fan scan count each line once, float64, `(views, columns)`.

    Parameters
    ----------
    angles
        Radians in any order, `(views,)`.
    columns
        Positions along `e_u = (cos t, sin t)` from the foot of the source, `(columns,)`; arc
        lengths if `equiangular`. Negate them for a detector whose u runs the other way.
    source_to_detector
        Distance d: the ray of a column at u has gamma = atan(u / d).
    equiangular
        Columns on a circle about the source: gamma = u / d.

    Returns
    -------
    ndarray
        Ones where the scan is full. Else the weights of a ray (t, gamma) and of its second
        sight (t + pi - 2 gamma, -gamma) add to 1; where the scan has gaps, see `angular_weights`,
        a ray whose second sight falls into one counts fully.

    Raises
    ------
    GeometryError, DTypeError
        For numbers that are not finite, and a distance that is not positive.

    Warns
    -----
    UserWarning
        Where the span is less than pi plus the full fan angle: some lines are then seen by no
        view, and others get less than their share.

    Notes
    -----
    D. L. Parker, "Optimal short scan convolution reconstruction for fan beam CT", Medical
    Physics 9 (1982) 254; widened to spans above pi plus the fan angle. With gaps: F. Noo,
    M. Defrise, R. Clackdoyle, H. Kudo, "Image reconstruction from fan-beam projections on less
    than a short scan", Physics in Medicine and Biology 47 (2002) 2525.
    """
    gamma = _fan_angles(columns, source_to_detector, equiangular)
    coverage = Coverage.of(angles, (_TURN,))
    if coverage.complete:
        return np.ones((len(coverage.offsets), len(gamma)))
    redundancy.warn_of_short_span(coverage.span, gamma)
    return redundancy.of_open_scan(coverage.offsets, coverage.arcs, gamma)


def displaced_weights(
    columns: Any, source_to_detector: float | None = None, *, equiangular: bool = False
) -> np.ndarray:
    """Weights of a full turn on a detector that stands to one side, float64, `(columns,)`.

    A detector that is displaced so that it sees little more than half of the object sees lines near
    the axis twice in a turn, at mirrored columns, and the outer ones once. Backprojection over
    a turn takes half of each, so outer lines count double and the two sights of an inner line add
    to 2. `fbp` and `fdk` apply these weights themselves.

    Parameters
    ----------
    columns
        Positions along u of the columns from the axis (parallel beams) or from the foot of the
        source, `(columns,)`, ascending or descending; arc lengths if `equiangular`.
    source_to_detector
        Distance of fan and cone beams; None for parallel beams.
    equiangular
        Columns on a circle about the source.

    Returns
    -------
    ndarray
        `1 + sin(pi/2 x^k)` with x the column's place over the end of the shorter side, positive on
        the longer side: 0 at the end of the shorter one, 2 where lines are seen once. Ones for a
        detector in the middle, to two columns. All 2 where the axis is not on the detector.

    Raises
    ------
    GeometryError, DTypeError
        For columns that are no finite numbers, and a distance that is not positive.

    Notes
    -----
    P. S. Cho, R. H. Johnson, T. W. Griffin, "Cone-beam CT for radiotherapy applications", Physics
    in Medicine and Biology 40 (1995) 1863; G. Wang, "X-ray micro-CT with a displaced detector
    array", Medical Physics 29 (2002) 1634, which is k = 1. Any odd k makes both sights add to 2; it
    grows here where little is seen once, up to 24 columns for the rise, so that a detector that
    is hardly displaced loses hardly any data.
    """
    if source_to_detector is None:
        place = numeric.finite_vector("columns", columns, GeometryError)
    else:
        place = _fan_angles(columns, source_to_detector, equiangular)
    return redundancy.of_displaced(place)


def _fan_angles(columns: Any, source_to_detector: Any, equiangular: bool) -> np.ndarray:
    u = numeric.finite_vector("columns", columns, GeometryError)
    d = numeric.positive("source_to_detector", source_to_detector, GeometryError)
    return np.asarray(u / d if equiangular else np.arctan(u / d))


def _on_circle(t: np.ndarray, period: float) -> tuple[Coverage, bool]:
    """The coverage of a circle, and whether angles go round it more than once."""
    span = float(t.max() - t.min())
    group, place = _distinct(np.mod(t - t.min(), period), period)
    if len(place) == 1:
        # All views look one way.
        weights = np.full(len(t), math.pi / len(t))
        return Coverage(None, 0.0, np.zeros(len(t)), weights, np.zeros((1, 2))), False
    gaps = np.diff(np.append(place, place[0] + period))
    step = float(np.median(np.sort(gaps)[:-1]))
    near = 1.5 * step + max(1e-4, 0.05 * step)
    wedge = gaps > _widest(gaps)
    folded = span > period + near - 1.5 * step
    ends = period - span > near
    if not wedge.any() and not ends:
        weights = _cells(gaps, group) / (2 if period == _TURN else 1)
        return Coverage(period, span, place[group], weights, place[None, [0, -1]]), folded
    breaks = wedge.copy()
    # The end of the record is the gap after the last angle.
    breaks[-1] |= ends
    first = (int(np.argmax(np.where(breaks, gaps, 0.0))) + 1) % len(place)
    offset = np.mod(place - place[first], period)
    gaps = np.where(breaks, 0.0, gaps)
    along, stops = np.roll(offset, -first), np.roll(breaks, -first)
    starts = np.append(True, stops[:-1])
    arcs = np.stack([along[starts], along[stops]], axis=1)
    found = Coverage(None, float(along[-1]), offset[group], _cells(gaps, group), arcs)
    return found, folded


def _distinct(angles: np.ndarray, period: float) -> tuple[np.ndarray, np.ndarray]:
    """The number of each view's angle, and the angles that differ, ascending."""
    order = np.argsort(angles, kind="stable")
    ordered = angles[order]
    fresh = np.append(True, np.diff(ordered) > _SAME)
    place = ordered[fresh]
    group = np.empty(len(angles), int)
    group[order] = np.cumsum(fresh) - 1
    if len(place) > 1 and period - ordered[-1] + place[0] <= _SAME:
        group[group == len(place) - 1] = 0
        place = place[:-1]
    return group, place


def _widest(gaps: np.ndarray) -> float:
    """The largest gap that is no missing wedge."""
    few = 1 if len(gaps) < 16 else max(3, math.isqrt(len(gaps)) // 2)
    return 3 * float(np.sort(gaps)[-min(few + 1, len(gaps))])


def _cells(gaps: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Half of the gaps before and after each angle, shared by its views."""
    cells = (gaps + np.roll(gaps, 1)) / 2
    return np.asarray((cells / np.bincount(group))[group])
