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

from geometries.kernels.portable_calls import run
from geometries.kernels.portable_rays import arange
from geometries.kernels.portable_views import Numbers, ViewSizes, numbers_of, scan_of
from linops import arrays
from linops.arrays import Array

if TYPE_CHECKING:
    from geometries.projector import Projector

__all__ = ["gram_diagonal", "project"]

_BYTES = 16 << 20


def project(projector: Projector, x: Array, adjoint: bool) -> Array:
    """`projector @ x`, or its adjoint; `x` is validated, batch axes in front, none empty."""
    scan, numbers = scan_of(projector), numbers_of(projector, x)
    if arrays.is_traced(numbers.columns[0]) and arrays.is_numpy(x):
        x = arrays.convert(x, numbers.columns[0])
    xp = arrays.namespace(x)
    source, target = projector.domain.shape, projector.codomain.shape
    if adjoint:
        source, target = target, source
    batch = tuple(x.shape)[: x.ndim - len(source)]
    width = source[-1] if adjoint else source[-1] * source[-2]
    flat = xp.reshape(x, (math.prod(batch), *_solid(source, adjoint), width))
    found = run(_adjoint if adjoint else _forward, scan, flat, numbers, flat)
    return xp.reshape(found, (*batch, *target))


def gram_diagonal(projector: Projector, weights: Array) -> Array:
    """`sum_i w_i a_ij^2` for every voxel."""
    xp = arrays.namespace(weights)
    scan, numbers = scan_of(projector), numbers_of(projector, weights)
    shape = projector.codomain.shape
    flat = xp.reshape(weights, (1, *_solid(shape, True), shape[-1]))
    found = run(_squares, scan, flat, numbers, flat)
    return xp.reshape(found, projector.domain.shape)


def _solid(shape: tuple[int, ...], projections: bool) -> tuple[int, ...]:
    """The leading axes of a volume (z), or of projections (view, row)."""
    if projections:
        return (shape[0], shape[1] if len(shape) == 3 else 1)
    return (shape[0] if len(shape) == 3 else 1,)


class _Weights(NamedTuple):
    """Of N voxel columns in one view; positions -1 where there is no weight."""

    columns: Array  # (N, K)
    place: Array  # (N, K): local detector column
    rows: Array | None  # (N, nz, R); None: one row a slice, of weight 1
    row: Array | None  # (N, nz, R): local row, plus N's number times rows


def _forward(scan: ViewSizes, numbers: Numbers, x: Array) -> Array:
    """`x` (B, nz, ny nx) to (B, views, rows, cols)."""
    xp = arrays.namespace(x)
    views, rows, cols = scan.cells
    count, batches = _batches(scan)
    volume = xp.permute_dims(x, (0, 2, 1))

    def of_view(view: Any) -> Array:
        def add(number: Any, sums: Array) -> Array:
            voxel, inside = _voxels(scan, number, count, numbers)
            weights = _weights(scan, numbers, view, voxel, inside, x, _same)
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


def _squares(scan: ViewSizes, numbers: Numbers, y: Array) -> Array:
    return _adjoint(scan, numbers, y, _squared)


def _same(weights: Array) -> Array:
    return weights


def _squared(weights: Array) -> Array:
    return weights * weights


def _adjoint(
    scan: ViewSizes, numbers: Numbers, y: Array, change: Callable[[Array], Array] = _same
) -> Array:
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


def _batches(scan: ViewSizes) -> tuple[int, int]:
    """Voxel columns a batch, and the number of batches."""
    slices, lines, across = scan.local
    reach = scan.detector[1] if scan.reach is None else scan.reach
    tall = 0
    if scan.shift is None:
        tall = scan.detector[0] if scan.tall is None else scan.tall
    each = 8 * (reach * (10 + 3 * scan.cells[1]) + slices * (2 + 10 * tall))
    batches = -(-lines * across // max(1, _BYTES // each))
    return -(-lines * across // batches), batches


def _voxels(scan: ViewSizes, number: Any, count: int, numbers: Numbers) -> tuple[Array, Array]:
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


def _slices(scan: ViewSizes, numbers: Numbers) -> Array:
    """The local slice of each local row, -1 for none, where rows are slices."""
    row = arange(scan.cells[1], numbers.real) + numbers.first[0]
    return _matched(row, row + scan.shift, scan.detector[0], scan.grid[0], numbers.first[2],
                    scan.local[0])  # fmt: skip


def _rows(scan: ViewSizes, numbers: Numbers) -> Array:
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
    scan: ViewSizes, numbers: Numbers, view: Any, voxel: Array, inside: Array, like: Array,
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
        # Rounded the other way, as under jit of jax 0.10.1, it misses next to nothing of a shadow.
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
    scan: ViewSizes, t: list[Array], x: Array, y: Array
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
