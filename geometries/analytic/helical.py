"""`helical_fdk`: the method of Feldkamp, Davis and Kress slice by slice on a helix.

Each slice takes the turn of views around it. The weights of views are made here; the gather that
applies them is `geometries/analytic/gather_volume.py`, circular scans are in
`geometries/analytic/reconstruct.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from geometries.analytic.frames import (
    distances,
    find_isocenter,
    fixed_frames,
    outward_normals,
    view_angles,
)
from geometries.analytic.gather_volume import VolumeGather
from geometries.analytic.parts import part_of
from geometries.analytic.reconstruct import (
    data_weights,
    frames_of_projector,
    ramp_of_detector,
)
from geometries.analytic.weights import AxisWeights, CosineWeights, projection_space
from geometries.beams import Beam, as_angles
from geometries.trajectory import Trajectory
from linops import arrays, numeric
from linops.errors import GeometryError, ShapeError
from linops.linear_operator import LinearOperator
from linops.precision import Precision

__all__ = ["HelicalWeights", "helical_fdk", "helical_fdk_operator", "helical_weights"]


def helical_weights(angles: Any, source_z: Any, slice_z: Any) -> np.ndarray:
    """Weights of the views of a helix for each slice, float64, `(slices, views)`.

    Parameters
    ----------
    angles
        Radians, rising or falling along the scan, `(views,)`.
    source_z
        Height of the source in each view, strictly rising or falling, `(views,)`.
    slice_z
        Heights of the slices, `(slices,)`.

    Returns
    -------
    ndarray
        Half of what a view's cell (to the midpoints between neighbors, closed at the ends of the
        scan) shares with the turn `[t - pi, t + pi]`, where t is the angle at which the source
        passes the slice. Each row sums to pi.

    Raises
    ------
    GeometryError, ShapeError
        For heights or angles that do not run one way, numbers that are not finite, other shapes,
        and slices without a full turn around them: the message says which slices have one.
    """
    single = arrays.is_array(angles) and arrays.dtype_of(angles).itemsize < 8
    t = as_angles(angles)
    z = numeric.finite_vector("source_z", source_z, GeometryError)
    slices = numeric.finite_vector("slice_z", slice_z, GeometryError)
    if len(z) != len(t) or len(t) < 2:
        raise ShapeError(
            f"angles has {len(t)} entries and source_z {len(z)}; helical weights take one of both "
            "for each of at least two views"
        )
    # Rounding of the angles as they came: low precision does not relax what counts as covered.
    eps = float(np.finfo(np.float32 if single else float).eps)
    slack = 8 * eps * max(1.0, float(np.ptp(t)), 0.0 if single else float(np.abs(t).max()))
    t = t - t[0]
    for values, what in ((z, "heights of the source"), (t, "angles")):
        steps = np.diff(values)
        if not ((steps > 0).all() or (steps < 0).all()):
            view = int(np.argmax(steps * np.sign(values[-1] - values[0]) <= 0)) + 1
            raise GeometryError(
                f"{what} have to rise or fall throughout a helix; at view {view} they go from "
                f"{values[view - 1]:g} to {values[view]:g}. A circular scan takes fdk"
            )
    order = np.argsort(t)
    along = t[order]
    rising = np.argsort(z)
    middle = np.interp(slices, z[rising], t[rising])
    low, high = middle - np.pi, middle + np.pi
    bad = (low < along[0] - slack) | (high > along[-1] + slack)
    if bad.any():
        raise GeometryError(_uncovered(np.flatnonzero(bad), slices, t, z, slack))
    edges = np.concatenate([along[:1], (along[1:] + along[:-1]) / 2, along[-1:]])
    shared = np.minimum(edges[1:], high[:, None]) - np.maximum(edges[:-1], low[:, None])
    weights = np.empty(shared.shape)
    weights[:, order] = np.maximum(shared, 0.0) / 2
    return weights


class HelicalWeights(AxisWeights):
    """The weights of a helix's views for one slice; `VolumeGather` applies those of all slices.

    Parameters
    ----------
    geometry
        A helical cone scan.
    slice_z
        Height of the slice.
    angles
        Radians in view order; by default those of the geometry.
    weights
        One a view, in place of `helical_weights`; may carry a gradient.
    dtype
        Of the projections.
    """

    def __init__(
        self,
        geometry: Beam | Trajectory,
        slice_z: float,
        angles: Any = None,
        weights: Any = None,
        dtype: Any = "float32",
        precision: str | Precision | None = None,
    ) -> None:
        frames = fixed_frames(geometry)
        if frames.kind != "cone":
            raise GeometryError(f"HelicalWeights takes cone beams, got a {frames.kind} beam")
        assert frames.sources is not None
        if weights is None:
            t = view_angles(geometry, angles)
            weights = helical_weights(t, frames.sources[:, 2], [slice_z])[0]
        space = projection_space(frames, dtype)
        super().__init__(space, (space.axes or ())[:1], weights, precision)


def helical_fdk(
    A: Any,
    y: Any,
    *,
    window: str = "ram-lak",
    pad: int = 2,
    filter_response: Any = None,
    angles: Any = None,
    projection_weights: Any = None,
    view_weights: Any = None,
    isocenter: Any = None,
    precision: str | Precision | None = None,
) -> Any:
    """The method of Feldkamp, Davis and Kress for a helix, slice by slice; approximate.

    Each slice is reconstructed from the full turn of views around it, as a circular scan at its
    height would be. Rays leave the plane of the slice, so values are approximate everywhere: the
    smaller the advance a turn against the source's distance, the better.

    Parameters
    ----------
    A
        A `Projector` of a helical cone scan on a flat or an equiangular detector with columns
        parallel to z, at a constant radius, looking at the axis; either sense of rotation and of
        travel.
    y
        Line integrals, `(..., view, row, col)`, any namespace.
    view_weights
        `(slices, views)` in place of `geometries.helical_weights`; fixed numbers.
    window, pad, filter_response, angles, projection_weights, isocenter, precision
        As `fdk` takes them.

    Returns
    -------
    array
        `(..., z, y, x)` on the grid, attenuation per length.

    Raises
    ------
    GeometryError, ShapeError, DTypeError
        Before anything is computed: for other scans, and for slices that no full turn covers.

    Notes
    -----
    G. Wang, T.-H. Lin, P. Cheng, D. M. Shinozaki, "A general cone-beam reconstruction algorithm",
    IEEE Transactions on Medical Imaging 12 (1993) 486.
    """
    return helical_fdk_operator(
        A,
        window=window,
        pad=pad,
        filter_response=filter_response,
        angles=angles,
        projection_weights=projection_weights,
        view_weights=view_weights,
        isocenter=isocenter,
        precision=precision,
    )(y)


def helical_fdk_operator(
    A: Any,
    *,
    window: str = "ram-lak",
    pad: int = 2,
    filter_response: Any = None,
    angles: Any = None,
    projection_weights: Any = None,
    view_weights: Any = None,
    isocenter: Any = None,
    precision: str | Precision | None = None,
) -> LinearOperator:
    """`helical_fdk` as a linear operator from projections to volumes, with its options."""
    frames = frames_of_projector(A, "helical_fdk")
    geometry, precision = A.geometry, A.precision if precision is None else precision
    if frames.kind != "cone":
        raise GeometryError(f"helical_fdk takes cone beams; a {frames.kind} beam takes fbp")
    _check_helix(frames, find_isocenter(geometry, isocenter))
    slices = A.grid.coordinates("z")
    if view_weights is None:
        t = view_angles(geometry, angles)
        view_weights = helical_weights(t, frames.sources[:, 2], slices)
    gather = VolumeGather(geometry, A.grid, isocenter, precision, slice_weights=view_weights)
    space = projection_space(frames, gather.dtype)
    ramp = ramp_of_detector(frames, gather.dtype, window, pad, filter_response, precision)
    result: LinearOperator = gather @ ramp @ CosineWeights(geometry, gather.dtype, precision)
    if projection_weights is not None:
        result = result @ data_weights(projection_weights, space)
    return part_of(result, A)


def _check_helix(frames: Trajectory, center: np.ndarray) -> None:
    assert frames.sources is not None and frames.v is not None
    distances(frames, center, 0.0)
    n = outward_normals(frames)
    away = (center - frames.sources) * (1.0, 1.0, 0.0)
    radius = np.linalg.norm(away, axis=1)
    aside = np.linalg.norm(away - n * np.einsum("ki,ki->k", away, n)[:, None], axis=1)
    upright = np.abs(np.abs(frames.v) - (0.0, 0.0, 1.0)).max(axis=1)
    for values, what in (
        (np.abs(radius - radius[0]) / radius[0], "one radius about the axis"),
        (aside / radius, "detectors that look at the axis"),
        (upright, "detector columns parallel to z"),
    ):
        if values.max() > 1e-4:
            view = int(np.argmax(values > 1e-4))
            raise GeometryError(f"helical_fdk takes {what}; view {view} is {values[view]:g} off")


def _uncovered(
    bad: np.ndarray, slices: np.ndarray, t: np.ndarray, z: np.ndarray, slack: float
) -> str:
    order = np.argsort(t)
    along = t[order]
    said = f"slices {bad.tolist()[:8]} (z from {slices[bad].min():g} to {slices[bad].max():g})"
    said += " have no full turn of views around them; "
    if along[-1] - along[0] < 2 * np.pi - 2 * slack:
        return said + "no slice has: the scan spans less than a turn"
    ends = np.interp([along[0] + np.pi, along[-1] - np.pi], along, z[order])
    return said + f"covered are z from {ends.min():g} to {ends.max():g}: choose a grid inside"
