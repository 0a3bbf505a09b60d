"""`fbp` and `fdk`: filtered backprojection of parallel, fan and circular cone scans.

The call is a composition of operators, gather @ quadrature @ ramp @ redundancy @ cosine, so it is
linear in the data, exact in its adjoint, and `fbp_operator(A).describe()` shows it. Values are
absolute, in attenuation per length, signed, never clamped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from geometries.analytic.coverage import Coverage
from geometries.analytic.frames import fixed_frames, view_angles
from geometries.analytic.gather import Gather
from geometries.analytic.gather_volume import ConeGather
from geometries.analytic.ramp import RampFilter
from geometries.analytic.weights import (
    AngularWeights,
    CosineWeights,
    ParkerWeights,
    fan_angles,
    projection_space,
)
from linops.elementary.diagonal import Diagonal
from linops.errors import GeometryError, ShapeError
from linops.operator import LinearOperator
from linops.precision import Precision

__all__ = ["fbp", "fbp_operator", "fdk", "fdk_operator"]


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
    isocenter: Any = None,
    precision: str | Precision | None = None,
) -> Any:
    """Filtered backprojection of `y`, an image in attenuation per length.

    Parameters
    ----------
    A
        A `Projector`: its geometry, grid and precision are used, its model is not. Parallel scans
        of images, of volumes whose detector rows coincide with the slices, and fan scans on a
        flat or an equiangular detector.
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
        fan angle. True demands them, False never applies them.
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
        isocenter=isocenter,
        precision=precision,
    )(y)


def fbp_operator(A: Any, **options: Any) -> LinearOperator:
    """Filtered backprojection as a linear operator from projections to images.

    Takes what `fbp` takes; worth keeping where one scan's geometry serves many data.
    """
    frames = _frames_of(A, "fbp")
    if frames.kind == "cone":
        raise GeometryError("fbp takes parallel and fan beams; a cone beam takes fdk")
    if frames.detector.curvature is not None and frames.kind == "parallel":
        raise GeometryError("fbp has no formula for a curved detector in a parallel beam")
    return _composed(A, Gather, **options)


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
    isocenter: Any = None,
    precision: str | Precision | None = None,
) -> Any:
    """The method of Feldkamp, Davis and Kress for circular cone scans on a flat detector.

    Exact in the plane of the orbit, approximate off it: the farther from that plane, the lower
    the values. Takes and returns what `fbp` does, with `y` `(..., view, row, col)`, the image
    `(..., z, y, x)` and the isocentre `(x, y, z)`.

    Raises
    ------
    GeometryError
        For other beams, curved detectors, helices and tilted detectors; else as `fbp`.
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
        isocenter=isocenter,
        precision=precision,
    )(y)


def fdk_operator(A: Any, **options: Any) -> LinearOperator:
    """`fdk` as a linear operator from projections to volumes, with its options."""
    frames = _frames_of(A, "fdk")
    if frames.kind != "cone":
        raise GeometryError(f"fdk takes cone beams; a {frames.kind} beam takes fbp")
    heights = frames.sources[:, 2]
    unit = float(np.abs(frames.sources - frames.centers).max())
    if np.ptp(heights) > 1e-6 * unit:
        raise GeometryError(
            f"fdk takes an orbit in one plane; the sources stand at z from {heights.min():g} to "
            f"{heights.max():g}"
        )
    if np.abs(frames.v - (0.0, 0.0, 1.0)).max() > 1e-4:
        raise GeometryError("fdk takes detectors whose columns are parallel to the axis z")
    return _composed(A, ConeGather, **options)


def _frames_of(A: Any, name: str) -> Any:
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
    isocenter: Any = None,
    precision: str | Precision | None = None,
) -> LinearOperator:
    geometry, precision = A.geometry, A.precision if precision is None else precision
    frames = fixed_frames(geometry)
    detector = frames.detector
    gather = gathering(geometry, A.grid, isocenter, precision)
    dtype = gather.dtype
    space = projection_space(frames, dtype)
    step = None if detector.curvature is None else detector.pitch[-1] / detector.curvature
    pitch = detector.pitch[-1] if step is None else step
    ramp = RampFilter(
        space, pitch, window, pad, filter_response, fan_step=step, precision=precision
    )
    chain: list[LinearOperator] = [
        gather,
        AngularWeights(geometry, angles, angular_weights, dtype, precision),
        ramp,
    ]
    if _takes_parker(geometry, angles, isocenter, short_scan):
        chain.append(ParkerWeights(geometry, angles, isocenter, dtype, precision))
    if frames.kind != "parallel":
        chain.append(CosineWeights(geometry, dtype, precision))
    if projection_weights is not None:
        chain.append(_data_weights(projection_weights, space))
    result = chain[0]
    for factor in chain[1:]:
        result = result @ factor
    return result


def _takes_parker(geometry: Any, angles: Any, isocenter: Any, short_scan: bool | str) -> bool:
    if (isinstance(short_scan, str) and short_scan != "auto") or short_scan not in (
        True,
        False,
        "auto",
    ):
        raise GeometryError(f"short_scan is {short_scan!r}; it is True, False or 'auto'")
    parallel = geometry.kind == "parallel"
    if short_scan == "auto":
        if parallel:
            return False
        coverage = Coverage.of(view_angles(geometry, angles), (2 * np.pi,))
        if coverage.period is not None or geometry.views == 1:
            return False
        if coverage.span < np.pi:
            return False
        gamma = fan_angles(geometry, isocenter)
        return bool(coverage.span >= np.pi + 2 * np.abs(gamma).max() - 1e-5)
    if short_scan and parallel:
        raise GeometryError(
            "short_scan=True with a parallel beam: it sees no line twice in half a turn; leave "
            "it at 'auto'"
        )
    return bool(short_scan)


def _data_weights(weights: Any, space: Any) -> LinearOperator:
    shape = tuple(getattr(weights, "shape", np.shape(weights)))
    if shape != space.shape:
        raise ShapeError(
            f"projection_weights has shape {shape}; it has that of the projections, "
            f"{space.describe_shape()}"
        )
    return Diagonal(weights, space)
