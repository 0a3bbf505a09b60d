"""The separable footprint by array code: one implementation for NumPy, JAX, torch, their devices.

The formulas of `footprint_views`, `footprint_profile` and `footprint_rows`, for many voxel columns
at once: no loop over voxels, one over views and batches of columns. Numbers of views and weights
are computed in float64 where the library has it; data, products and sums have the operator's dtype.
Forward scatters and adjoint gathers with the same weights. Everything from frames to values is
array code that JAX and torch can follow, so derivatives in the geometry are theirs; frames that
are followed are not checked for what the model asks of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from geometries.kernels.footprint_views import embedded, table
from geometries.kernels.portable_rays import arange, cross
from geometries.kernels.structure import aligned_shift
from geometries.kernels.volume_scan import VolumeScan
from linops import arrays
from linops.arrays import Array
from linops.errors import GeometryError
from linops.transforms.pytree import decoded

if TYPE_CHECKING:
    from geometries.projector import Projector

__all__ = ["gram_diagonal", "project"]

_BYTES = 16 << 20


def project(projector: Projector, x: Array, adjoint: bool) -> Array:
    """`projector @ x`, or its adjoint; `x` is validated, batch axes in front, none empty."""
    scan, numbers = _scan(projector), _numbers(projector, x)
    if arrays.is_traced(numbers.columns[0]) and arrays.is_numpy(x):
        x = arrays.convert(x, numbers.columns[0])
    xp = arrays.namespace(x)
    source, target = projector.domain.shape, projector.codomain.shape
    if adjoint:
        source, target = target, source
    batch = tuple(x.shape)[: x.ndim - len(source)]
    width = source[-1] if adjoint else source[-1] * source[-2]
    flat = xp.reshape(x, (math.prod(batch), *_solid(source, adjoint), width))
    move = _adjoint if adjoint else _forward
    return xp.reshape(move(scan, numbers, flat, lambda weights: weights), (*batch, *target))


def gram_diagonal(projector: Projector, weights: Array) -> Array:
    """`sum_i w_i a_ij^2` for every voxel."""
    xp = arrays.namespace(weights)
    scan, numbers = _scan(projector), _numbers(projector, weights)
    shape = projector.codomain.shape
    flat = xp.reshape(weights, (1, *_solid(shape, True), shape[-1]))
    found = _adjoint(scan, numbers, flat, lambda part: part * part)
    return xp.reshape(found, projector.domain.shape)


class _Scan(NamedTuple):
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


class _Numbers(NamedTuple):
    """Per view, as in `footprint_views.Table`, without flipped rows; and where the part stands."""

    columns: tuple[Array, ...]  # t0 to t10, (views,) each
    rows: tuple[Array, ...]  # t11 to t15
    real: Array  # (views,)
    first: tuple[Array, ...]  # row, column, slice, line, column of voxels: whole numbers


def _solid(shape: tuple[int, ...], projections: bool) -> tuple[int, ...]:
    """The leading axes of a volume (z), or of projections (view, row)."""
    if projections:
        return (shape[0], shape[1] if len(shape) == 3 else 1)
    return (shape[0] if len(shape) == 3 else 1,)


def _scan(projector: Projector) -> _Scan:
    found: _Scan | None = projector.__dict__.get("_cache_footprint")
    if found is not None:
        return found
    from geometries.selection import followed, frames_of

    geometry, grid = projector.geometry, projector.grid
    flat = grid.dims == 2
    shift: int | None = 0 if flat else None
    reach = tall = None
    box = projector.profile == "box"
    if projector._kernel == "aligned rows":
        shift = 0
    # Where frames are traced, they may be those of another scan than `geometry`.
    if not (followed(geometry.trajectory) or arrays.is_traced(projector.frames)):
        host = geometry.trajectory.host
        parts = geometry.kind, np.asarray(frames_of(host)), host.detector, grid
        whole = embedded(*parts) if flat else VolumeScan.from_frames(*parts)
        if projector._kernel == "aligned":
            shift = aligned_shift(whole) if whole.views else 0
        reach, tall = _reach(whole, box)
    cells, voxels = projector.codomain.shape, projector.domain.shape
    detector = geometry.detector.shape
    found = _Scan(
        geometry.kind != "parallel",
        geometry.detector.curvature is not None,
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


def _numbers(projector: Projector, like: Array) -> _Numbers:
    """The numbers of each view in the namespace of `like`, or of frames that are followed."""
    frames = decoded(projector.frames)
    if arrays.is_traced(frames) and arrays.is_numpy(like):
        like = frames
    wide = np.dtype("float64" if arrays.has_float64(like) else "float32")
    frames = arrays.convert(arrays.cast(frames, wide), like)
    xp = arrays.namespace(frames)
    parts = [frames[:, k, :] for k in range(frames.shape[1])]
    grid, detector = projector.grid, projector.geometry.detector
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
    make = _parallel if projector.geometry.kind == "parallel" else _diverging
    flat = detector.curvature is None
    columns, rows = make(first, centers, u, v, start, spacing, pitch, middles, flat)
    real = (view >= window[0]) & (view < window[1])
    return _Numbers(columns, rows, real, tuple(places))


def _sampling(projector: Projector, like: Array) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Pitch and offset of the detector along rows and columns, (v, u); numbers or 0-d arrays."""
    detector = projector.geometry.detector
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


class _Weights(NamedTuple):
    """Of N voxel columns in one view; positions -1 where there is no weight."""

    columns: Array  # (N, K)
    place: Array  # (N, K): local detector column
    rows: Array | None  # (N, nz, R); None: one row a slice, of weight 1
    row: Array | None  # (N, nz, R): local row, plus N's number times rows


def _forward(scan: _Scan, numbers: _Numbers, x: Array, change: Callable[[Array], Array]) -> Array:
    """`x` (B, nz, ny nx) to (B, views, rows, cols)."""
    xp = arrays.namespace(x)
    views, rows, cols = scan.cells
    count, batches = _batches(scan)
    volume = xp.permute_dims(x, (0, 2, 1))

    def of_view(view: Any) -> Array:
        def add(number: Any, sums: Array) -> Array:
            voxel, inside = _voxels(scan, number, count, numbers)
            weights = _weights(scan, numbers, view, voxel, inside, x, change)
            part = xp.take(volume, voxel, axis=1)  # (B, N, nz)
            if weights.rows is None:
                lines = arrays.take_last(part, _slices(scan, numbers))
            else:
                assert weights.row is not None
                spread = xp.where(weights.row >= 0, part[..., None], 0 * part[..., None])
                spread = spread * weights.rows
                lines = arrays.scatter_add(
                    xp.reshape(spread, (x.shape[0], -1)),
                    xp.reshape(weights.row, (-1,)),
                    count * rows,
                )
                lines = xp.reshape(lines, (x.shape[0], count, rows))
            lines = xp.permute_dims(lines, (0, 2, 1))[..., None] * weights.columns
            flat = xp.reshape(lines, (x.shape[0], rows, -1))
            return sums + arrays.scatter_add(flat, xp.reshape(weights.place, (-1,)), cols)

        start = arrays.zeros((x.shape[0], rows, cols), arrays.dtype_of(x), x)
        return arrays.loop(batches, add, start)

    return xp.permute_dims(arrays.mapped(views, of_view, x), (1, 0, 2, 3))


def _adjoint(scan: _Scan, numbers: _Numbers, y: Array, change: Callable[[Array], Array]) -> Array:
    """`y` (B, views, rows, cols) to (B, nz, ny nx)."""
    xp = arrays.namespace(y)
    slices, lines, across = scan.local
    count, batches = _batches(scan)

    def of_batch(number: Any) -> Array:
        voxel, inside = _voxels(scan, number, count, numbers)

        def add(view: Any, sums: Array) -> Array:
            weights = _weights(scan, numbers, view, voxel, inside, y, change)
            seen = arrays.take_last(y[:, view, ...], xp.reshape(weights.place, (-1,)))
            seen = xp.reshape(seen, (*seen.shape[:2], *weights.place.shape))
            found = xp.sum(seen * weights.columns, axis=-1)  # (B, rows, N)
            found = xp.permute_dims(found, (0, 2, 1))
            if weights.rows is None:
                return sums + arrays.take_last(found, _rows(scan, numbers))
            flat = xp.reshape(found, (y.shape[0], -1))
            held = arrays.take_last(flat, xp.reshape(weights.row, (-1,)))
            held = xp.reshape(held, (y.shape[0], *weights.rows.shape))
            return sums + xp.sum(held * weights.rows, axis=-1)

        start = arrays.zeros((y.shape[0], count, slices), arrays.dtype_of(y), y)
        return arrays.loop(scan.cells[0], add, start)

    parts = xp.permute_dims(arrays.mapped(batches, of_batch, y), (1, 3, 0, 2))
    return xp.reshape(parts, (y.shape[0], slices, -1))[:, :, : lines * across]


def _batches(scan: _Scan) -> tuple[int, int]:
    """Voxel columns a batch, and the number of batches."""
    slices, lines, across = scan.local
    reach = scan.detector[1] if scan.reach is None else scan.reach
    tall = 0
    if scan.shift is None:
        tall = scan.detector[0] if scan.tall is None else scan.tall
    each = 8 * (reach * (10 + 3 * scan.cells[1]) + slices * (2 + 10 * tall))
    batches = -(-lines * across // max(1, _BYTES // each))
    return -(-lines * across // batches), batches


def _voxels(scan: _Scan, number: Any, count: int, numbers: _Numbers) -> tuple[Array, Array]:
    """Local in-plane positions of a batch, and which of them exist in array and grid."""
    xp = arrays.namespace(numbers.real)
    total = scan.local[1] * scan.local[2]
    voxel = arange(count, numbers.real) + number * count
    inside = voxel < total
    voxel = xp.minimum(voxel, 0 * voxel + (total - 1))
    y = voxel // scan.local[2] + numbers.first[3]
    x = voxel % scan.local[2] + numbers.first[4]
    inside = inside & (y >= 0) & (y < scan.grid[1]) & (x >= 0) & (x < scan.grid[2])
    return voxel, inside


def _slices(scan: _Scan, numbers: _Numbers) -> Array:
    """The local slice of each local row, -1 for none, where rows are slices."""
    row = arange(scan.cells[1], numbers.real) + numbers.first[0]
    return _matched(row, row + scan.shift, scan.detector[0], scan.grid[0], numbers.first[2],
                    scan.local[0])  # fmt: skip


def _rows(scan: _Scan, numbers: _Numbers) -> Array:
    """The local row of each local slice."""
    number = arange(scan.local[0], numbers.real) + numbers.first[2]
    return _matched(number, number - scan.shift, scan.grid[0], scan.detector[0], numbers.first[0],
                    scan.cells[1])  # fmt: skip


def _matched(own: Array, other: Array, own_count: int, count: int, first: Array, local: int) -> Any:
    place = other - first
    inside = (own >= 0) & (own < own_count) & (other >= 0) & (other < count)
    inside = inside & (place >= 0) & (place < local)
    xp = arrays.namespace(place)
    return xp.where(inside, place, 0 * place - 1)


def _weights(
    scan: _Scan, numbers: _Numbers, view: Any, voxel: Array, inside: Array, like: Array,
    change: Callable[[Array], Array],
) -> _Weights:  # fmt: skip
    xp = arrays.namespace(voxel)
    t = [part[view] for part in numbers.columns]
    dtype = arrays.dtype_of(numbers.columns[0])
    y = arrays.cast(voxel // scan.local[2] + numbers.first[3], dtype)
    x = arrays.cast(voxel % scan.local[2] + numbers.first[4], dtype)
    vertices, height, factor, level = _profile(scan, t, x, y)
    reach = scan.detector[1] if scan.reach is None else scan.reach
    start = 0.0 * vertices[0]
    if scan.reach is not None:
        start = _within(xp.floor(vertices[0] + 0.5), scan.detector[1] - reach)
    cell = start[:, None] + arrays.cast(arange(reach, voxel), dtype)[None, :]
    area = _area(vertices, cell + 0.5) - _area(vertices, cell - 0.5)
    weight = height[:, None] * area
    local = cell - arrays.cast(numbers.first[1], dtype)
    used = (cell >= 0) & (cell < scan.detector[1]) & (local >= 0) & (local < scan.cells[2])
    used = used & inside[:, None] & numbers.real[view] & (weight > 0)
    columns, place = _kept(weight, local, used, like, change)
    if scan.shift is not None:
        return _Weights(columns, place, None, None)
    r = [part[view] for part in numbers.rows]
    k = arrays.cast(arange(scan.local[0], voxel) + numbers.first[2], dtype)[None, :]
    if scan.diverging:
        step = r[3] * factor[:, None]
        middle, wide = r[0] + step * (k - r[4]), xp.abs(step)
        slope = scan.spacing[0] * (k - r[4]) * level[:, None]
        high = xp.sqrt(1.0 + slope * slope)
    else:
        middle = r[0] + (r[1] * x + r[2] * y)[:, None] + r[3] * k
        wide, high = r[4] + 0.0 * middle, t[6] + 0.0 * middle
    low, top = (middle - 0.5 * wide)[..., None], (middle + 0.5 * wide)[..., None]
    tall = scan.detector[0] if scan.tall is None else scan.tall
    start = 0.0 * low
    if scan.tall is not None:
        start = _within(xp.floor(low + 0.5), scan.detector[0] - tall)
    row = start + arrays.cast(arange(tall, voxel), dtype)
    overlap = xp.minimum(top, row + 0.5) - xp.maximum(low, row - 0.5)
    local = row - arrays.cast(numbers.first[0], dtype)
    used = (row >= 0) & (row < scan.detector[0]) & (local >= 0) & (local < scan.cells[1])
    used = used & ((k >= 0) & (k < scan.grid[0]))[..., None] & (overlap > 0)
    rows, at = _kept(high[..., None] * overlap, local, used, like, change)
    column = arange(voxel.shape[0], voxel)[:, None, None]
    return _Weights(columns, place, rows, xp.where(at >= 0, at + column * scan.cells[1], at))


def _within(first: Array, last: int) -> Array:
    """First cells moved to where all cells that follow are on the detector: it may be narrower
    than a shadow."""
    xp = arrays.namespace(first)
    return xp.minimum(xp.maximum(first, xp.zeros_like(first)), xp.zeros_like(first) + float(last))


def _kept(
    weight: Array, local: Array, used: Array, like: Array, change: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Weights in the dtype of data, 0 where unused, and whole positions, -1 there."""
    xp = arrays.namespace(weight)
    weight = change(xp.where(used, weight, xp.zeros_like(weight)))
    place = arrays.cast(xp.where(used, local, xp.zeros_like(local) - 1.0), np.dtype("int32"))
    return arrays.cast(weight, arrays.dtype_of(like)), place


def _profile(
    scan: _Scan, t: list[Array], x: Array, y: Array
) -> tuple[tuple[Array, ...], Array, Array, Array]:
    """Vertices, height, and for diverging beams the factor of rows and 1 / h, (N,) each."""
    xp = arrays.namespace(x)
    a = t[0] + t[1] * x + t[2] * y
    if not scan.diverging:
        half, flat = (t[5], t[5]) if scan.box else (t[3], t[4])
        height = t[10] / (half + flat) + 0.0 * a
        return (a - half, a - flat, a + flat, a + half), height, a, a
    b = t[3] + t[4] * x + t[5] * y
    level = 1.0 / xp.sqrt(a * a + b * b)
    factor = level if scan.curved else 1.0 / b
    mass = t[10] * level if scan.curved else t[10] / (level * b * b)

    def shadow(a: Array, b: Array) -> Array:
        return t[7] + t[6] * (xp.atan2(a, b) if scan.curved else a / b)

    if scan.box:
        dy, dx = scan.spacing[1:]
        widest = xp.maximum(xp.abs(t[8] + dx * x) * dy, xp.abs(t[9] + dy * y) * dx)
        half = 0.5 * t[6] * widest * factor * factor
        middle = shadow(a, b)
        low, high = middle - half, middle + half
        return (low, low, high, high), mass / (2.0 * half), factor, level
    ax, ay, bx, by = 0.5 * t[1], 0.5 * t[2], 0.5 * t[4], 0.5 * t[5]
    p, q = shadow(a - ax - ay, b - bx - by), shadow(a - ax + ay, b - bx + by)
    r, s = shadow(a + ax - ay, b + bx - by), shadow(a + ax + ay, b + bx + by)
    low, high = xp.minimum(p, q), xp.maximum(p, q)
    left, right = xp.minimum(r, s), xp.maximum(r, s)
    inner, outer = xp.maximum(low, left), xp.minimum(high, right)
    least, most = xp.minimum(low, left), xp.maximum(high, right)
    second, third = xp.minimum(inner, outer), xp.maximum(inner, outer)
    height = 2.0 * mass / (most - least + third - second)
    return (least, second, third, most), height, factor, level


def _area(vertices: tuple[Array, ...], edge: Array) -> Array:
    """The area of each unit trapezoid below `edge` (N, K)."""
    xp = arrays.namespace(edge)
    c0, c1, c2, c3 = (vertex[:, None] for vertex in vertices)

    def part(x: Array, width: Array) -> Array:
        return xp.minimum(xp.maximum(x, xp.zeros_like(x)), width + 0.0 * x)

    def half(width: Array) -> Array:
        some = width > 0
        return xp.where(some, 0.5 / xp.where(some, width, xp.ones_like(width)), 0.0 * width)

    rising, falling = part(edge - c0, c1 - c0), part(edge - c2, c3 - c2)
    flat = part(edge - c1, c2 - c1)
    rising = rising * rising * half(c1 - c0)
    return rising + flat + (falling - falling * falling * half(c3 - c2))


def _dot(a: Array, b: Array) -> Array:
    return arrays.namespace(a).sum(a * b, axis=-1)
