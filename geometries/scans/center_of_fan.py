"""The rotation axis of a fan scan, which is that of a cone scan in the plane of its orbit.

A full turn sees every line twice, the second time at the opposite fan angle; half a turn and the
fan's angle sees some of them so. The axis is where both agree. The search over columns is in
`geometries/scans/center.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from geometries.beams import Beam, FanBeam
from geometries.detector import Detector
from linops.errors import GeometryError

__all__ = ["conjugate_mismatch", "fan_of_orbit"]


def fan_of_orbit(beam: Beam, row: int | None) -> tuple[FanBeam, int]:
    """The fan in the plane of a circular orbit, and the detector row that it falls on.

    Raises
    ------
    GeometryError
        For a helix, for distances that vary, and where the plane misses the detector.
    """
    host = beam.host
    frames = host.trajectory
    distances = [
        np.asarray(getattr(host, name)) for name in ("source_to_axis", "source_to_detector")
    ]
    if any(np.ptp(d) > 1e-4 * d.max() for d in distances) or np.any(getattr(host, "advance", 0.0)):
        raise GeometryError(
            "find_center takes circular scans with one distance of source, axis and detector; for "
            "a helix, give it a turn of the scan as a circle"
        )
    detector, number = frames.detector, 0
    if frames.dims == 3:
        rows, pitch, offset = detector.shape[0], detector.pitch[0], detector.offset[0]
        number = round((rows - 1) / 2 - offset / pitch) if row is None else row
        if not 0 <= number < rows:
            raise GeometryError(
                f"the plane of the orbit falls on row {number} of {rows}; there is no row to find "
                "the axis in, give row="
            )
    flat = Detector(detector.shape[-1], detector.pitch[-1], 0.0, detector.curvature)
    return FanBeam(host.angles, flat, *(float(np.mean(d)) for d in distances)), number


def conjugate_mismatch(
    sinogram: np.ndarray, fan: FanBeam
) -> Callable[[float, float], float] | None:
    """How much lines differ that are seen from both sides, by the column of the axis and a charge
    for data without such lines; None where the views span less than half a turn.

    The line at fan angle g of view t is that at -g of view `t + pi - 2 g`, interpolated between
    two views that lie closer than two steps of the scan and 10 degrees.
    """
    t = np.asarray(fan.angles)
    if np.ptp(t) < np.pi:
        return None
    turn = np.mod(t - t.min(), 2 * np.pi)
    order = np.argsort(turn, kind="stable")
    order = order[np.append(np.diff(turn[order]) > 1e-9, True)]
    circle, data = turn[order], sinogram[order]
    gaps = np.diff(circle, append=circle[0] + 2 * np.pi)
    near = gaps <= min(2.05 * float(np.median(gaps)), np.deg2rad(10))
    columns = np.arange(data.shape[1])
    total = 2 * float((data**2).sum())

    def mismatch(center: float, charge: float) -> float:
        mirrored = 2 * center - columns
        inside = (mirrored >= 0) & (mirrored <= columns[-1])
        left = np.minimum(mirrored[inside].astype(int), len(columns) - 2)
        across = mirrored[inside] - left
        gamma = _fan_angles(fan, columns[inside] - center)
        seen_again = np.mod(circle[:, None] + np.pi - 2 * gamma, 2 * np.pi)
        before = np.searchsorted(circle, seen_again, side="right") - 1
        share = np.mod(seen_again - circle[before], 2 * np.pi) / gaps[before]
        there = (1 - share) * _between(data, before, left, across)
        there += share * _between(data, (before + 1) % len(circle), left, across)
        own = np.where(near[before], data[:, inside], 0.0)
        there = np.where(near[before], there, 0.0)
        shared = float((own**2).sum() + (there**2).sum())
        return (float(((own - there) ** 2).sum()) + charge * total) / max(shared, 1e-12 * total)

    return mismatch


def _between(
    data: np.ndarray, view: np.ndarray, left: np.ndarray, across: np.ndarray
) -> np.ndarray:
    found: np.ndarray = data[view, left] * (1 - across) + data[view, left + 1] * across
    return found


def _fan_angles(fan: FanBeam, columns: np.ndarray) -> np.ndarray:
    """Fan angles so many columns from that of the axis."""
    along = columns * fan.detector.pitch[-1]
    radius = fan.detector.curvature
    angles: np.ndarray = (
        np.arctan(along / fan.source_to_detector) if radius is None else along / radius
    )
    return angles
