"""`fbp` and `fdk`: filtered backprojection of parallel, fan and circular cone scans.

The call is a composition of operators, gather @ quadrature @ ramp @ redundancy @ cosine, so it is
linear in the data, exact in its adjoint, and `fbp_operator(A).describe()` shows it. Values are
absolute, in attenuation per length, signed, never clamped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from geometries.analytic import redundancy
from geometries.analytic.coverage import Coverage
from geometries.analytic.coverage import angular_weights as of_angles
from geometries.analytic.frames import elevation_of, find_isocenter, fixed_frames, view_angles
from geometries.analytic.gather import Gather, rows_are_slices
from geometries.analytic.gather_volume import VolumeGather
from geometries.analytic.parts import part_of
from geometries.analytic.ramp import RampFilter
from geometries.analytic.weights import (
    AngularWeights,
    CosineWeights,
    DisplacedWeights,
    ParkerWeights,
    displaced_places,
    fan_angles,
    projection_space,
)
from geometries.input_warnings import warn_caller
from linops import numeric
from linops.elementary.diagonal import Diagonal
from linops.elementary.plane_windows import PlaneWindow
from linops.errors import GeometryError, ShapeError
from linops.linear_operator import LinearOperator
from linops.precision import Precision

__all__ = [
    "data_weights",
    "fbp",
    "fbp_operator",
    "fdk",
    "fdk_operator",
    "frames_of_projector",
    "ramp_of_detector",
]


def fbp(
    A: Any,
    y: Any,
    *,
    window: str = "ram-lak",
    pad: int = 2,
    filter_response: Any = None,
    angles: Any = None,
    angular_weights: Any = None,
    projection_weights: Any = None,
    short_scan: bool | str = "auto",
    displaced: bool | str = "auto",
    isocenter: Any = None,
    precision: str | Precision | None = None,
) -> Any:
    """Filtered backprojection of `y`, an image in attenuation per length.

    Parameters
    ----------
    A
        A `Projector`: its geometry, grid and precision are used, its model is not. Parallel scans
        of images and of volumes, and fan scans on a flat or an equiangular detector. Detector
        rows that coincide with the slices are taken one by one, others are interpolated. Rays may
        have an elevation (laminography): then the views are a full turn, and what lies in the cone
        of frequencies about z that no view sees is missing. Of a block along y, x or z the image is
        that part of the whole one; of a block of views it is what they add to it, with weights of
        the whole scan.
    y
        Line integrals, `(..., view, col)` or `(..., view, row, col)`, any namespace.
    window
        `"ram-lak"`, `"hann"`, `"hamming"`, `"cosine"` or `"shepp-logan"`.
    pad
        Rows are padded with zeros to `pad` times their length, at least 2.
    filter_response
        `pad * columns // 2 + 1` values in place of the ramp's, 1 / pitch included.
    angles
        Radians in view order, in place of the geometry's.
    angular_weights
        One weight a view in place of the quadrature of `geometries.angular_weights`.
    projection_weights
        A further factor on the data, of their shape, before the filter.
    short_scan
        `"auto"`: Parker weights for fan scans that are open and span at least pi plus the full
        fan angle; a shorter span is warned of. True demands them, False never applies them.
    displaced
        `"auto"`: the weights of `geometries.displaced_weights` for full turns whose detector
        stands to one side of the axis by more than two columns. True demands them, False never
        applies them (for data that are weighted or folded already).
    isocenter
        Point `(x, y)` that the views look at, where the frames do not fix one.
    precision
        `"fast"`, `"float32"` or `"float64"`, in place of the projector's.

    Returns
    -------
    array
        `(..., y, x)` or `(..., z, y, x)` on the grid, in the namespace of `y`.

    Raises
    ------
    GeometryError, ShapeError, DTypeError
        Before anything is computed.

    Examples
    --------
    >>> image = fbp(A, y, window="hann")  # doctest: +SKIP
    """
    return fbp_operator(
        A,
        window=window,
        pad=pad,
        filter_response=filter_response,
        angles=angles,
        angular_weights=angular_weights,
        projection_weights=projection_weights,
        short_scan=short_scan,
        displaced=displaced,
        isocenter=isocenter,
        precision=precision,
    )(y)


def fbp_operator(A: Any, **options: Any) -> LinearOperator:
    """Filtered backprojection as a linear operator from projections to images.

    Takes what `fbp` takes; worth keeping where one scan's geometry serves many data.
    """
    frames = frames_of_projector(A, "fbp")
    if frames.kind == "cone":
        raise GeometryError("fbp takes parallel and fan beams; a cone beam takes fdk")
    if frames.detector.curvature is not None and frames.kind == "parallel":
        raise GeometryError("fbp has no formula for a curved detector in a parallel beam")
    if frames.dims == 2 or rows_are_slices(frames, A.grid):
        return _composed(A, Gather, **options)
    return _composed(A, VolumeGather, **options)


def fdk(
    A: Any,
    y: Any,
    *,
    window: str = "ram-lak",
    pad: int = 2,
    filter_response: Any = None,
    angles: Any = None,
    angular_weights: Any = None,
    projection_weights: Any = None,
    short_scan: bool | str = "auto",
    displaced: bool | str = "auto",
    isocenter: Any = None,
    precision: str | Precision | None = None,
) -> Any:
    """The method of Feldkamp, Davis and Kress for circular cone scans.

    The detector is flat, or a cylinder about the source (`curvature` is their distance).
    Exact in the plane of the orbit, approximate off it: the farther from that plane, the lower
    the values. Takes and returns what `fbp` does, with `y` `(..., view, row, col)`, the image
    `(..., z, y, x)` and the isocenter `(x, y, z)`.

    Raises
    ------
    GeometryError
        For other beams, other curvatures, helices and tilted detectors; else as `fbp`.
    """
    return fdk_operator(
        A,
        window=window,
        pad=pad,
        filter_response=filter_response,
        angles=angles,
        angular_weights=angular_weights,
        projection_weights=projection_weights,
        short_scan=short_scan,
        displaced=displaced,
        isocenter=isocenter,
        precision=precision,
    )(y)


def fdk_operator(A: Any, **options: Any) -> LinearOperator:
    """`fdk` as a linear operator from projections to volumes, with its options."""
    frames = frames_of_projector(A, "fdk")
    if frames.kind != "cone":
        raise GeometryError(f"fdk takes cone beams; a {frames.kind} beam takes fbp")
    heights = frames.sources[:, 2]
    unit = float(np.abs(frames.sources - frames.centers).max())
    if np.ptp(heights) > 1e-6 * unit:
        raise GeometryError(
            f"fdk takes an orbit in one plane; the sources stand at z from {heights.min():g} to "
            f"{heights.max():g}. A helix takes helical_fdk"
        )
    if np.abs(np.abs(frames.v) - (0.0, 0.0, 1.0)).max() > 1e-4:
        raise GeometryError("fdk takes detectors whose columns are parallel to the axis z")
    return _composed(A, VolumeGather, **options)


def frames_of_projector(A: Any, name: str) -> Any:
    """The fixed frames of the scan of `A`, which the function `name` was given."""
    if not (hasattr(A, "geometry") and hasattr(A, "grid")):
        raise GeometryError(
            f"{name} reads the scan from its first argument, a Projector, got {type(A).__name__}; "
            "a composition has no geometry of its own: pass the projector it is made of"
        )
    return fixed_frames(A.geometry)


def _composed(
    A: Any,
    gathering: Any,
    *,
    window: str = "ram-lak",
    pad: int = 2,
    filter_response: Any = None,
    angles: Any = None,
    angular_weights: Any = None,
    projection_weights: Any = None,
    short_scan: bool | str = "auto",
    displaced: bool | str = "auto",
    isocenter: Any = None,
    precision: str | Precision | None = None,
) -> LinearOperator:
    geometry, precision = A.geometry, A.precision if precision is None else precision
    frames = fixed_frames(geometry)
    if isocenter is not None:
        find_isocenter(geometry, isocenter)
    if angular_weights is not None:
        numeric.require_finite("angular_weights", angular_weights, GeometryError)
    coverage = Coverage.of(view_angles(geometry, angles), (2 * np.pi,))
    if frames.kind == "parallel" and gathering is VolumeGather:
        displaced, angular_weights = _tilted(
            geometry, frames, coverage, displaced, angles, angular_weights
        )
    before: list[LinearOperator] = []
    wide, gather = geometry, gathering(geometry, A.grid, isocenter, precision)
    dtype = gather.dtype
    if _takes_displaced(geometry, coverage, isocenter, displaced):
        wide, fill = _widen(geometry, isocenter, dtype)
        gather = gathering(wide, A.grid, isocenter, precision)
        before += [fill, DisplacedWeights(geometry, isocenter, dtype, precision)]
    if _takes_parker(geometry, coverage, isocenter, short_scan):
        before.append(ParkerWeights(geometry, angles, isocenter, dtype, precision))
    if frames.kind != "parallel":
        before.append(CosineWeights(geometry, dtype, precision))
    if projection_weights is not None:
        before.append(data_weights(projection_weights, projection_space(frames, dtype)))
    ramp = ramp_of_detector(fixed_frames(wide), dtype, window, pad, filter_response, precision)
    quadrature = AngularWeights(wide, angles, angular_weights, dtype, precision)
    result: LinearOperator = gather @ quadrature @ ramp
    for factor in before:
        result = result @ factor
    return part_of(result, A)


def _tilted(
    geometry: Any,
    frames: Any,
    coverage: Coverage,
    displaced: bool | str,
    angles: Any,
    weights: Any,
) -> tuple[bool | str, Any]:
    """The options `displaced` and `angular_weights` of a parallel scan, which rays with an
    elevation leave no choice: no line comes back after half a turn."""
    elevation = elevation_of(frames)
    if abs(elevation) < 1e-6:
        return displaced, weights
    said = f"rays of elevation {np.rad2deg(elevation):.3g} degrees"
    if not coverage.complete:
        raise GeometryError(
            f"{said} take a full turn of views without gaps; these span "
            f"{np.rad2deg(coverage.span):.2f} degrees"
        )
    if displaced is True:
        raise GeometryError(f"displaced=True with {said}: they see no line twice; leave it out")
    if weights is None:
        weights = of_angles(view_angles(geometry, angles), 2 * np.pi)
    return False, weights


def ramp_of_detector(
    frames: Any,
    dtype: Any,
    window: str,
    pad: int,
    response: Any,
    precision: str | Precision | None,
) -> RampFilter:
    """The ramp along the columns of a flat or an equiangular detector."""
    detector = frames.detector
    step = None if detector.curvature is None else detector.pitch[-1] / detector.curvature
    pitch = detector.pitch[-1] if step is None else step
    space = projection_space(frames, dtype)
    return RampFilter(space, pitch, window, pad, response, fan_step=step, precision=precision)


def _widen(geometry: Any, isocenter: Any, dtype: Any) -> tuple[Any, LinearOperator]:
    """The scan with its detector filled up to both sides, and the operator that fills data up."""
    place = displaced_places(geometry, isocenter)
    detector = geometry.detector.host
    if geometry.kind != "parallel" and detector.curvature is None:
        place = np.tan(place)
    first, last = redundancy.missing_columns(place)
    wide = geometry.with_detector(detector.with_columns(first, last))
    own, filled = (projection_space(fixed_frames(g), dtype) for g in (geometry, wide))
    return wide, PlaneWindow(own, filled, [(0, own.ndim - 1)], -first)


def _takes_parker(
    geometry: Any, coverage: Coverage, isocenter: Any, short_scan: bool | str
) -> bool:
    _check_choice("short_scan", short_scan)
    parallel = geometry.kind == "parallel"
    if short_scan == "auto":
        if parallel or coverage.complete or geometry.views == 1:
            return False
        long_enough = coverage.span >= np.pi
        gamma = (fan_angles if long_enough else _angles_about_axis)(geometry, isocenter)
        return not (gamma is None or redundancy.warn_of_short_span(coverage.span, gamma))
    if short_scan and parallel:
        raise GeometryError(
            "short_scan=True with a parallel beam: it sees no line twice in half a turn; leave "
            "it at 'auto'"
        )
    return bool(short_scan)


def _takes_displaced(
    geometry: Any, coverage: Coverage, isocenter: Any, displaced: bool | str
) -> bool:
    _check_choice("displaced", displaced)
    if displaced != "auto":
        if displaced and not coverage.complete:
            raise GeometryError(
                f"displaced=True with a scan that spans {np.rad2deg(coverage.span):.2f} degrees: "
                "outer lines are seen once in a full turn, without gaps; leave it at 'auto'"
            )
        return bool(displaced)
    if geometry.views < 3:
        return False
    place = _angles_about_axis(geometry, isocenter)
    if place is None:
        return False
    if not coverage.complete:
        redundancy.warn_of_one_side(coverage.span, place)
        return False
    if place.min() >= 0 or place.max() <= 0:
        warn_caller(
            f"the axis lies outside the detector's columns ({place.min():g} to {place.max():g} "
            "about it): lines near the axis are seen by no view"
        )
    return bool((redundancy.of_displaced(place) != 1).any())


def _check_choice(name: str, value: Any) -> None:
    if not (isinstance(value, (bool, np.bool_)) or (isinstance(value, str) and value == "auto")):
        raise GeometryError(f"{name} is {value!r}; it is True, False or 'auto'")


def _angles_about_axis(geometry: Any, isocenter: Any) -> np.ndarray | None:
    """Fan angles or distances of the columns; None where the orbit allows no such weights."""
    try:
        return displaced_places(geometry, isocenter)
    except GeometryError as error:
        if "weights of redundancy need" not in str(error):
            raise
        return None


def data_weights(weights: Any, space: Any) -> LinearOperator:
    """The factor `projection_weights` on the data."""
    shape = tuple(getattr(weights, "shape", np.shape(weights)))
    if shape != space.shape:
        raise ShapeError(
            f"projection_weights has shape {shape}; it has that of the projections, "
            f"{space.describe_shape()}"
        )
    numeric.require_finite("projection_weights", weights, GeometryError)
    return Diagonal(weights, space)
