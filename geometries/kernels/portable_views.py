"""What the portable footprint needs of each view, as arrays that JAX and torch can follow.

The numbers of `footprint_views.Table` from frames, pitch and offset, in float64 where the library
has it, and how far a voxel's shadow reaches; weights from them are made by `portable_footprint`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from geometries.kernels.footprint_views import embedded, table
from geometries.kernels.portable_rays import arange, cross
from geometries.kernels.structure import aligned_shift
from geometries.kernels.volume_scan import VolumeScan
from linops import arrays
from linops.arrays import Array
from linops.errors import GeometryError
from linops.transforms.pytree import decode

if TYPE_CHECKING:
    from geometries.projector import Projector

__all__ = ["Numbers", "ViewSizes", "numbers_of", "scan_of"]


class ViewSizes(NamedTuple):
    """What is static: sizes of the part that is computed, and how far a shadow reaches."""

    diverging: bool
    curved: bool
    box: bool
    shift: int | None  # row i is slice i + shift
    grid: tuple[int, ...]  # the whole, z y x
    spacing: tuple[float, ...]
    detector: tuple[int, ...]  # the whole: rows, columns
    local: tuple[int, ...]  # slices, lines, columns of voxels
    cells: tuple[int, ...]  # views, rows, columns
    reach: int | None  # columns a profile; None: all
    tall: int | None  # rows a slice; None: all


class Numbers(NamedTuple):
    """Per view, as in `footprint_views.Table`, without flipped rows; and where the part stands."""

    columns: tuple[Array, ...]  # t0 to t10, (views,) each
    rows: tuple[Array, ...]  # t11 to t15
    real: Array  # (views,)
    first: tuple[Array, ...]  # row, column, slice, line, column of voxels: whole numbers


def scan_of(projector: Projector) -> ViewSizes:
    found: ViewSizes | None = projector.__dict__.get("_cache_footprint")
    if found is not None:
        return found
    from geometries.selection import followed, frames_of

    seen, grid = projector._seen, projector.grid
    flat = grid.dims == 2
    shift: int | None = 0 if flat else None
    reach = tall = None
    box = projector.profile == "box"
    if projector._kernel == "aligned rows":
        shift = 0
    # Where frames are traced, they may be those of another scan than `geometry`.
    if not (arrays.is_traced(projector.frames) or followed(projector.geometry.trajectory)):
        host = projector.geometry.trajectory.host
        parts = seen.kind, np.asarray(frames_of(host)), host.detector, grid
        whole = embedded(*parts) if flat else VolumeScan.from_frames(*parts)
        if projector._kernel == "aligned":
            shift = aligned_shift(whole) if whole.views else 0
        reach, tall = _reach(whole, box)
    cells, voxels = projector.codomain.shape, projector.domain.shape
    detector = seen.detector.shape
    found = ViewSizes(
        seen.kind != "parallel",
        seen.detector.curvature is not None,
        box,
        shift,
        (1, *grid.shape)[-3:],
        (1.0, *grid.spacing)[-3:],
        (1, *detector)[-2:],
        (1, *voxels)[-3:],
        (cells[0], *(1, *cells[1:])[-2:]),
        reach,
        tall,
    )
    projector.__dict__["_cache_footprint"] = found
    return found


def numbers_of(projector: Projector, like: Array) -> Numbers:
    """The numbers of each view in the namespace of `like`, or of frames that are followed."""
    frames = decode(projector.frames)
    if arrays.is_traced(frames) and arrays.is_numpy(like):
        like = frames
    wide = np.dtype("float64" if arrays.has_float64(like) else "float32")
    frames = arrays.convert(arrays.cast(frames, wide), like)
    xp = arrays.namespace(frames)
    parts = [frames[:, k, :] for k in range(frames.shape[1])]
    grid, detector = projector.grid, projector._seen.detector
    pitch, offset = _sampling(projector, frames)
    if grid.dims == 2:
        zero, one = xp.zeros_like(frames[:, 0, :1]), xp.ones_like(frames[:, 0, :1])
        parts = [xp.concat([part, zero], axis=1) for part in parts]
        parts.append(xp.concat([zero, zero, one], axis=1))
    first, centers, u, v = parts
    spacing, counts = (1.0, *grid.spacing)[-3:], (1, *grid.shape)[-3:]
    middle = (0.0, *grid.center)[-3:]
    corner = [m - 0.5 * (n - 1) * s for m, n, s in zip(middle, counts, spacing, strict=True)]
    start = arrays.convert(np.asarray(corner[::-1], wide), frames)[None, :]
    window = arrays.convert(projector.window, frames)
    places = [window[k] for k in range(2, window.shape[0])]
    if grid.dims == 2:
        places = [0 * places[0], places[0], 0 * places[0], *places[1:]]
    view = arange(projector.codomain.shape[0], window)
    middles = [
        0.5 * (n - 1) - o / p
        for n, o, p in zip((1, *detector.shape)[-2:], offset, pitch, strict=True)
    ]
    make = _parallel if projector._seen.kind == "parallel" else _diverging
    flat = detector.curvature is None
    columns, rows = make(first, centers, u, v, start, spacing, pitch, middles, flat)
    real = (view >= window[0]) & (view < window[1])
    return Numbers(columns, rows, real, tuple(places))


def _reach(scan: VolumeScan, box: bool) -> tuple[int, int]:
    """The most columns and rows that the shadow of a voxel meets."""
    t = table(scan, box).numbers
    if scan.views == 0:
        return 1, 1
    if scan.kind == "parallel":
        wide, tall = 2 * max(t[:, 3].max(), t[:, 5].max()), t[:, 15].max()
    else:
        _, ny, nx = scan.grid_shape
        corners = np.array([(x, y) for x in (-0.5, nx - 0.5) for y in (-0.5, ny - 0.5)]).T
        a = t[:, :1] + t[:, 1:3] @ corners
        b = t[:, 3:4] + t[:, 4:6] @ corners
        near = b.min(axis=1)
        # a / b is steepest where b is least; angles move less.
        moves = np.abs(t[:, 1:3]).sum(1) + np.abs(a / b).max(1) * np.abs(t[:, 4:6]).sum(1)
        wide = (t[:, 6] * moves / near).max()
        if box:
            dy, dx = scan.spacing[1:]
            far = np.maximum(np.abs(t[:, 8]) + nx * dx, np.abs(t[:, 9]) + ny * dy)
            wide = max(wide, (t[:, 6] * far * max(dx, dy) / near**2).max())
        tall = (np.abs(t[:, 14]) / near).max()
    return (
        min(int(math.ceil(wide)) + 2, scan.shape[1]),
        min(int(math.ceil(tall)) + 2, scan.shape[0]),
    )


def _sampling(projector: Projector, like: Array) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Pitch and offset of the detector along rows and columns, (v, u); numbers or 0-d arrays."""
    detector = projector._seen.detector
    if projector.offsets is None or not detector.parameters:
        host = detector.host
        return (1.0, *host.pitch)[-2:], (0.0, *host.offset)[-2:]
    rows = detector.shape[:-1]
    if detector.curvature is not None or 1 in detector.shape:
        raise GeometryError(
            "model 'footprint' follows the pitch and offset of flat detectors with at least two "
            f"cells along each axis, got shape {detector.shape}"
            + ("" if detector.curvature is None else " on a cylinder")
        )
    lines = [projector.offsets[0, 0, :, 0]]
    if rows:
        lines.insert(0, projector.heights)
    wide = arrays.dtype_of(like)
    ends = [arrays.convert(arrays.cast(line, wide), like) for line in lines]
    pitch = [(line[-1] - line[0]) / (line.shape[0] - 1) for line in ends]
    offset = [0.5 * (line[0] + line[-1]) for line in ends]
    return (1.0, *pitch)[-2:], (0.0, *offset)[-2:]


def _parallel(
    way: Array, centers: Array, u: Array, v: Array, start: Array, spacing: tuple[float, ...],
    pitch: tuple[float, ...], middles: list[float], flat: bool,
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:  # fmt: skip
    xp = arrays.namespace(u)
    (dz, dy, dx), (dv, du) = spacing, pitch
    side = cross(v, way)
    volume = _dot(u, side)[:, None]
    across, along = side / volume, cross(way, u) / volume
    first = start - centers
    t1, t2 = across[:, 0] * (dx / du), across[:, 1] * (dy / du)
    wide, high = xp.abs(t1), xp.abs(t2)
    reach = xp.maximum(
        xp.abs(along[:, 2]) * dz, xp.maximum(xp.abs(along[:, 0]) * dx, xp.abs(along[:, 1]) * dy)
    )
    none = 0.0 * t1
    columns = (
        _dot(first, across) / du + middles[1], t1, t2, (wide + high) / 2, xp.abs(wide - high) / 2,
        xp.maximum(wide, high) / 2, dz / reach, none, none, none,
        dx * dy / (xp.abs(volume[:, 0]) * du),
    )  # fmt: skip
    rows = (
        _dot(first, along) / dv + middles[0], along[:, 0] * (dx / dv), along[:, 1] * (dy / dv),
        along[:, 2] * (dz / dv), reach / dv,
    )  # fmt: skip
    return columns, rows


def _diverging(
    source: Array, centers: Array, u: Array, v: Array, start: Array, spacing: tuple[float, ...],
    pitch: tuple[float, ...], middles: list[float], flat: bool,
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:  # fmt: skip
    xp = arrays.namespace(u)
    (dz, dy, dx), (dv, du) = spacing, pitch
    normal = cross(v, u)[:, :2]
    normal = normal / xp.sqrt(_dot(normal, normal))[:, None]
    back = centers - source
    distance = _dot(back[:, :2], normal)
    normal = xp.where((distance < 0)[:, None], -normal, normal)
    distance = xp.abs(distance)
    first = start - source
    begin = middles[1] + 0.0 * distance
    if flat:
        begin = begin - _dot(back[:, :2], u[:, :2]) / du
    columns = (
        _dot(first[:, :2], u[:, :2]), u[:, 0] * dx, u[:, 1] * dy,
        _dot(first[:, :2], normal), normal[:, 0] * dx, normal[:, 1] * dy,
        distance / du, begin, first[:, 0], first[:, 1], dx * dy / du * distance,
    )  # fmt: skip
    none = 0.0 * distance
    rows = (
        middles[0] - back[:, 2] * v[:, 2] / dv, none, none, distance * v[:, 2] * (dz / dv),
        -first[:, 2] / dz,
    )  # fmt: skip
    return columns, rows


def _dot(a: Array, b: Array) -> Array:
    return arrays.namespace(a).sum(a * b, axis=-1)
