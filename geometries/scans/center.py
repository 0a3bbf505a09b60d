"""The rotation axis of a scan: found from the data, and judged by eye in a sweep.

Two criteria. Over a full turn, opposite views are mirror images: the axis is where they agree;
where no view is exactly opposite, its two neighbors are interpolated. Over half a turn, a wrong
axis spreads edges into streaks that are negative: the axis is where filtered backprojection has
the least negative energy. Mirror images of fans are in `geometries/scans/center_of_fan.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from geometries.analytic.coverage import Coverage
from geometries.analytic.gather import Gather
from geometries.analytic.ramp import RampFilter
from geometries.analytic.reconstruct import fbp
from geometries.analytic.weights import AngularWeights, projection_space
from geometries.beams import Beam, FanBeam, ParallelBeam, as_angles
from geometries.detector import Detector
from geometries.grid import Grid
from geometries.input_warnings import warn_caller
from geometries.scans.center_of_fan import (
    conjugate_mismatch,
    fan_of_orbit,
)
from linops import arrays, numeric
from linops.arrays import Array
from linops.errors import GeometryError, ShapeError

__all__ = ["center_to_offset", "find_center", "offset_to_center", "sweep_centers"]

_IMAGE = 256
_CHARGE = 2e-3  # for lines that no second view sees, against the energy of all


def find_center(
    projections: Array,
    angles: Any,
    *,
    search: tuple[float, float] | None = None,
    row: int | None = None,
    method: str = "auto",
) -> float:
    """The detector column that the rotation axis projects to.

    Parameters
    ----------
    projections
        Line integrals, `(view, col)` or `(view, row, col)`, any namespace. The object should lie
        within the detector, or be seen whole over a full turn.
    angles
        Radians, one a view, of a parallel scan; or the scan: a `ParallelBeam`, a `FanBeam`, or a
        `ConeBeam` on a circle, of which distances, pitch and curvature are used and the offset of
        columns is not.
    search
        First and last column to look between, in columns; by default the middle three fifths.
    row
        Detector row to use; by default the middle one, of a cone scan the one in the plane of the
        orbit.
    method
        `"mirror"` compares lines that are seen from both sides, which a full turn shows, and a
        short scan of a fan for some; `"sharpness"`, of parallel scans, takes the least negative
        energy of filtered backprojection; `"auto"` takes the first where a quarter of the views
        have an opposite one, or two close neighbors of it, and for fans and cones.

    Returns
    -------
    float
        Column, counted from 0 at the center of the first; `center_to_offset` gives the
        detector offset that puts the axis there.

    Raises
    ------
    GeometryError, ShapeError, ValueError
        For data that do not fit the angles, NaN, a constant sinogram, a search outside the
        columns, or another method; for a helix, and for a fan that sees no line twice; where the
        best column is an end of the search, which then holds no axis.

    Warns
    -----
    UserWarning
        Where the views cover less than 150 degrees: what they show of an axis is uncertain.

    Notes
    -----
    Negative energy as a measure of misplaced axes: T. Donath, F. Beckmann, A. Schreyer,
    "Automated determination of the center of rotation in tomography data", JOSA A 23 (2006) 1048.
    """
    t, fan, row = _scan_of(angles, row)
    sinogram = _row_of(projections, row)
    if len(t) != len(sinogram):
        raise ShapeError(f"angles has {len(t)} entries; the projections have {len(sinogram)} views")
    n = sinogram.shape[1]
    if fan is not None and n != fan.detector.shape[-1]:
        raise ShapeError(
            f"the projections have {n} columns, the detector of the scan {fan.detector.shape[-1]}"
        )
    first, last = _searched(search, n)
    if not np.ptp(sinogram) > 0:
        raise GeometryError("the sinogram is constant; it shows no axis")
    if method not in ("auto", "mirror", "sharpness"):
        raise GeometryError(f"method is {method!r}; it is 'auto', 'mirror' or 'sharpness'")
    if fan is not None and method == "sharpness":
        raise GeometryError(
            "method='sharpness' is of parallel scans: a wrong axis of a fan spreads edges evenly; "
            "use 'mirror'"
        )
    mismatch = None
    if method != "sharpness":
        mismatch = _mismatch_of_lines(sinogram, t, fan, demanded=method == "mirror")
    if mismatch is not None:
        found = _by_mirrors(mismatch, first, last)
    else:
        covered = float(Coverage.of(t, (np.pi,)).weights.sum())
        if covered < np.deg2rad(150):
            warn_caller(
                f"the views cover {np.rad2deg(covered):.0f} degrees; the axis that they show is "
                "uncertain, and 150 degrees or more fix it"
            )
        found = _by_sharpness(sinogram, t, first, last)
    if not first < found < last:
        raise GeometryError(
            f"no axis between columns {first:g} and {last:g}: the best of them is the end at "
            f"{found:g}; give a wider search=(first, last), or look at the sinogram"
        )
    return found


def sweep_centers(
    projections: Array,
    angles: Any,
    centers: Iterable[float],
    *,
    grid: Grid | None = None,
    row: int | None = None,
    **options: Any,
) -> list[tuple[float, np.ndarray]]:
    """Reconstructions at several axes, to be judged by eye.

    Parameters
    ----------
    projections, angles, row
        As for `find_center`.
    centers
        Columns to try.
    grid
        Image grid, of a parallel scan in columns; by default as many pixels as columns, of the size
        of a column at the axis.
    options
        For `fbp`.

    Returns
    -------
    list of (value, image)
        In the order of `centers`; each image is `fbp` at that value.
    """
    t, fan, row = _scan_of(angles, row)
    sinogram = _row_of(projections, row).astype(np.float32)
    n = sinogram.shape[1]
    scan = ParallelBeam(t, Detector(n)) if fan is None else fan
    chosen = grid if grid is not None else _grid_of(scan)
    try:
        columns = [numeric.finite("centers", c) for c in centers]
    except (TypeError, ValueError):
        raise GeometryError(
            f"centers is {centers!r}; it is a list of columns, such as range(60, 68)"
        ) from None
    return [(c, np.asarray(_image(sinogram, scan, c, chosen, **options))) for c in columns]


def center_to_offset(center: float, columns: int, pitch: float = 1.0) -> float:
    """Offset of a detector whose axis is at a column: `((columns - 1) / 2 - center) * pitch`."""
    count = numeric.whole("columns", columns, 1, GeometryError)
    axis = numeric.finite("center", center, GeometryError)
    return ((count - 1) / 2 - axis) * numeric.positive("pitch", pitch, GeometryError)


def offset_to_center(offset: float, columns: int, pitch: float = 1.0) -> float:
    """The column of the axis for a detector offset: `(columns - 1) / 2 - offset / pitch`."""
    count = numeric.whole("columns", columns, 1, GeometryError)
    shift = numeric.finite("offset", offset, GeometryError)
    return (count - 1) / 2 - shift / numeric.positive("pitch", pitch, GeometryError)


def _scan_of(angles: Any, row: int | None) -> tuple[np.ndarray, FanBeam | None, int | None]:
    """Angles, the fan of a diverging scan, and the detector row to look at."""
    if not isinstance(angles, Beam):
        return as_angles(angles), None, row
    t = as_angles(angles.host.angles)
    if angles.kind == "parallel":
        return t, None, row
    fan, number = fan_of_orbit(angles, row)
    return t, fan, number if angles.dims == 3 else row


def _row_of(projections: Array, row: int | None) -> np.ndarray:
    host = arrays.to_numpy(arrays.asarray(projections, "find_center", "projections"))
    if host.ndim == 3:
        number = host.shape[1] // 2 if row is None else row
        whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
        if not (whole and -host.shape[1] <= number < host.shape[1]):
            raise GeometryError(f"row is {row!r}; it is one of the {host.shape[1]} detector rows")
        host = host[:, number]
    if host.ndim != 2 or min(host.shape) < 2 or host.dtype.kind not in "biuf":
        raise ShapeError(
            f"projections have shape {host.shape} and dtype {host.dtype}; they are real, "
            "(view, col) or (view, row, col), with two views and two columns or more"
        )
    host = host.astype(np.float64)
    if not np.isfinite(host).all():
        raise ValueError("projections have NaN or infinite values; repair or mask them first")
    return host


def _searched(search: Any, n: int) -> tuple[float, float]:
    if search is None:
        return 0.2 * (n - 1), 0.8 * (n - 1)
    try:
        first, last = (numeric.finite("search", column) for column in search)
    except (TypeError, ValueError):
        raise GeometryError(
            f"search is {search!r}; it is a pair of columns, such as ({0.4 * n:.0f}, {0.6 * n:.0f})"
        ) from None
    if not 0 <= first < last <= n - 1:
        raise GeometryError(f"search is {search!r}; it is a range within columns 0 to {n - 1}")
    return first, last


def _opposite(t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Views, the two neighbors of the angle opposite to each, and the second one's share.

    Neighbors count where they lie closer than two steps of the scan and 10 degrees.
    """
    order = np.argsort(np.mod(t, 2 * np.pi), kind="stable")
    circle = np.mod(t, 2 * np.pi)[order]
    target = np.mod(circle + np.pi, 2 * np.pi)
    after = np.searchsorted(circle, target)
    before = after - 1
    after = after % len(t)
    gap = np.mod(circle[after] - circle[before], 2 * np.pi)
    share = np.mod(target - circle[before], 2 * np.pi) / np.where(gap > 0, gap, 1.0)
    # Rounding puts an exactly opposite view on either side of its target.
    off = np.abs(np.mod(circle[[before, after]] - target + np.pi, 2 * np.pi) - np.pi)
    steps = np.diff(circle)
    steps = steps[steps > 1e-6]
    step = float(np.median(steps)) if steps.size else 0.0
    exact = off.min(axis=0) <= 0.01 * step
    share = np.where(exact, (off[1] < off[0]).astype(float), share)
    near = exact | ((gap <= min(2.05 * step, np.deg2rad(10))) & (gap > 0))
    return order[near], order[before][near], order[after][near], share[near]


def _mismatch_of_lines(
    sinogram: np.ndarray, t: np.ndarray, fan: FanBeam | None, demanded: bool
) -> Callable[[float, float], float] | None:
    """How much lines differ that are seen from both sides, by the column of the axis and a charge
    for what no second view sees; None where too few are."""
    if fan is not None:
        found = conjugate_mismatch(sinogram, fan)
        if found is None:
            raise GeometryError(
                f"the views span {np.rad2deg(np.ptp(t)):.0f} degrees; a fan or cone scan shows its "
                "axis by lines that are seen from both sides: half a turn and the angle of the fan"
            )
        return found
    view, before, after, share = _opposite(t)
    if demanded and len(view) < 2:
        raise GeometryError("method='mirror' needs views half a turn apart; use 'sharpness'")
    if not demanded and len(view) < max(4, len(t) // 4):
        return None
    here = sinogram[view]
    there = sinogram[before] * (1 - share)[:, None] + sinogram[after] * share[:, None]
    return lambda center, charge: _mismatch(here, there, center, charge)


def _by_mirrors(mismatch: Callable[[float, float], float], first: float, last: float) -> float:
    rough = _least(lambda c: mismatch(c, _CHARGE), first, last, coarse=1.0)
    near = max(first, rough - 1.5), min(last, rough + 1.5)
    return _least(lambda c: mismatch(c, 0.0), *near, coarse=0.25)


def _by_sharpness(sinogram: np.ndarray, t: np.ndarray, first: float, last: float) -> float:
    coarse = max(0.5, sinogram.shape[1] / 512)
    best = first
    for sure in (True, False):
        windows = [
            (max(first, guess - width), min(last, guess + width))
            for guess, width in _guesses(sinogram, t, first, last, sure)
        ]
        energy = _sharpness(sinogram, t, min(w[0] for w in windows), max(w[1] for w in windows))
        best, window = min(
            ((_least(energy, *window, coarse=coarse), window) for window in windows),
            key=lambda found: energy(found[0]),
        )
        # At the end of a narrow window the center of mass was no guide, as on a background.
        if window[0] < best < window[1]:
            break
    return best


def _guesses(
    sinogram: np.ndarray, t: np.ndarray, first: float, last: float, sure: bool
) -> list[tuple[float, float]]:
    """The axis to a few columns and how far it may be off, in two ways that fail on other data."""
    n = sinogram.shape[1]
    widest = max(6.0, 0.04 * n)
    # The center of mass moves on a sinusoid about the axis, where nothing is cut off.
    mass = sinogram.sum(axis=1)
    place = sinogram @ np.arange(n) / np.where(mass == 0, 1.0, mass)
    wave = np.stack([np.ones_like(t), np.cos(t), np.sin(t)], 1)
    fit = np.linalg.lstsq(wave, place, rcond=None)[0]
    spread = np.linalg.pinv(wave.T @ wave)[0, 0] * len(t)
    off = float(np.sqrt(np.mean((wave @ fit - place) ** 2) * spread))
    width = float(np.clip(6 * off, 3.0, widest)) if sure else widest
    found = [(float(np.clip(fit[0], first, last)), width)]
    # A mass that changes from view to view is cut off somewhere, and its center is no guide.
    if sure and width < widest and np.ptp(mass) <= 0.05 * abs(float(mass.mean())):
        return found
    found = [(found[0][0], widest)]
    # The views nearest to half a turn apart are nearly mirror images, cut off or not.
    apart = np.abs(np.abs(t[:, None] - t) % (2 * np.pi) - np.pi)
    flat = np.argsort(apart, axis=None, kind="stable")[:6]
    here, there = np.unravel_index(flat, apart.shape)
    if apart[here, there].max() > np.deg2rad(30):
        return found
    mirror = _least(
        lambda c: _mismatch(sinogram[here], sinogram[there], c, _CHARGE), first, last, coarse=1.0
    )
    return found if abs(found[0][0] - mirror) < 2 else [*found, (mirror, widest)]


def _mismatch(here: np.ndarray, there: np.ndarray, center: float, charge: float) -> float:
    n = here.shape[1]
    mirrored = 2 * center - np.arange(n)
    inside = (mirrored >= 0) & (mirrored <= n - 1)
    left = np.minimum(mirrored[inside].astype(int), n - 2)
    share = mirrored[inside] - left
    other = there[:, left] * (1 - share) + there[:, left + 1] * share
    own = here[:, inside]
    shared = float((own**2).sum() + (other**2).sum())
    total = float((here**2).sum() + (there**2).sum())
    # Air agrees with air: an overlap is charged where it leaves nearly all of the object out.
    return (float(((own - other) ** 2).sum()) + charge * total) / max(shared, 1e-12 * total)


def _sharpness(
    sinogram: np.ndarray, t: np.ndarray, first: float, last: float
) -> Callable[[float], float]:
    n = sinogram.shape[1]
    # Half a turn: over a full one a wrong axis blurs evenly, and little turns negative.
    half = (t - t.min()) % (2 * np.pi) < np.pi * (1 - 1e-9)
    if half.sum() >= len(t) // 3:
        sinogram, t = sinogram[half], t[half]
    # The largest disc that every axis of the search sees whole; pixels beside it are not judged.
    radius = max(0.98 * min(first, n - 1 - last), 0.1 * n)
    size = min(_IMAGE, 2 * round(radius))
    pixel = 2 * radius / size
    grid = Grid((size, size), pixel)
    place = (np.arange(size) - (size - 1) / 2) * pixel
    disc = place[:, None] ** 2 + place**2 < radius**2
    # The filter knows nothing of the axis: rows are filtered and weighted once.
    beam = ParallelBeam(t, Detector(n))
    ramp = RampFilter(projection_space(beam.trajectory, "float32"))
    filtered = AngularWeights(beam) @ (ramp @ sinogram.astype(np.float32))

    @cache
    def energy(center: float) -> float:
        detector = Detector(n, 1.0, center_to_offset(center, n))
        gather = Gather(beam.with_detector(detector), grid, precision="float32")
        image = (gather @ filtered)[disc].astype(np.float64)
        square = image**2
        return float(square[image < 0].sum() / max(float(square.sum()), 1e-300))

    return energy


def _grid_of(scan: ParallelBeam | FanBeam) -> Grid:
    n, pitch = scan.detector.shape[-1], scan.detector.pitch[-1]
    if isinstance(scan, FanBeam):
        pitch *= scan.source_to_axis / scan.source_to_detector
    return Grid((n, n), pitch)


def _image(
    data: np.ndarray, scan: ParallelBeam | FanBeam, center: float, grid: Grid, **options: Any
) -> Any:
    n, pitch, curvature = scan.detector.shape[-1], scan.detector.pitch[-1], scan.detector.curvature
    detector = Detector(n, pitch, center_to_offset(center, n, pitch), curvature)
    geometry = scan.with_detector(detector)
    placed = SimpleNamespace(geometry=geometry, grid=grid, precision="float32")
    return fbp(placed, data, **options)


def _least(cost: Callable[[float], float], first: float, last: float, coarse: float) -> float:
    """The column of least cost: a grid of steps, halved about its best, then a parabola."""
    step = min(max(coarse * 4, (last - first) / 96), (last - first) / 4)
    places = np.arange(first, last + step / 2, step)
    best = float(min(places, key=cost))
    while step > coarse / 4:
        step /= 2
        best = float(min((best - step, best, best + step), key=cost))
    low, middle, high = cost(best - step), cost(best), cost(best + step)
    bend = low - 2 * middle + high
    if bend > 0:
        best += step * min(max((low - high) / (2 * bend), -1.0), 1.0)
    return float(min(max(best, first), last))
