"""The kernels of `cuda`: numba.cuda, one thread a ray or a cell. Importing this imports numba.cuda.

Arrays: volumes (batch, z, y, x), projections (batch, view, row, column). The first ten arguments
are what `cuda` stages of a scan: kinds (cone, curved), the arrays of `volume_scan.Packed`, the
number of each view (-1: inert), and `first` (z, y, x, row, column), where local arrays start in the
whole grid and detector; beyond them nothing is read, and zeros are written.
"""

from __future__ import annotations

from numba import cuda

from geometries.kernels.rays3d import (
    BIG,
    columns_of_box,
    crossing_range,
    first_cell,
    inverse,
    ray,
    rows_of_box,
)

__all__ = ["adjoint", "forward", "gram"]


@cuda.jit(device=True)
def chord(line, x, y, z):
    """Length of a ray in one cell: the smallest exit minus the largest entry."""
    ox, oy, oz, dx, dy, dz, start, stop, metre = line
    ix, _, _ = inverse(dx)
    iy, _, _ = inverse(dy)
    iz, _, _ = inverse(dz)
    ax, bx = crossing_range(ox, dx, ix, x, x + 1)
    ay, by = crossing_range(oy, dy, iy, y, y + 1)
    az, bz = crossing_range(oz, dz, iz, z, z + 1)
    here = max(max(start, ax), max(ay, az))
    last = min(min(stop, bx), min(by, bz))
    return (last - here) * metre if here < last else 0.0


@cuda.jit(device=True)
def along_ray(line, volume, b, x0, x1, y0, y1, z0, z1, fx, fy, fz):
    """Sum of cells times lengths, in the order of `rays3d.walk`."""
    ox, oy, oz, dx, dy, dz, start, stop, metre = line
    ix, sx, nx = inverse(dx)
    iy, sy, ny = inverse(dy)
    iz, sz, nz = inverse(dz)
    ax, bx = crossing_range(ox, dx, ix, x0, x1)
    ay, by = crossing_range(oy, dy, iy, y0, y1)
    az, bz = crossing_range(oz, dz, iz, z0, z1)
    here = max(max(start, ax), max(ay, az))
    last = min(min(stop, bx), min(by, bz))
    total = 0.0
    if not here < last:
        return total
    x = first_cell(ox, dx, ix, x0, x1, here)
    y = first_cell(oy, dy, iy, y0, y1, here)
    z = first_cell(oz, dz, iz, z0, z1, here)
    ex = (x + nx - ox) * ix if sx != 0 else BIG
    ey = (y + ny - oy) * iy if sy != 0 else BIG
    ez = (z + nz - oz) * iz if sz != 0 else BIG
    while True:
        there = min(min(ex, ey), min(ez, last))
        if there > here:
            total += (there - here) * metre * volume[b, z - fz, y - fy, x - fx]
            here = there
        if there >= last:
            return total
        if ex <= ey and ex <= ez:
            x += sx
            ex = (x + nx - ox) * ix
        elif ey <= ez:
            y += sy
            ey = (y + ny - oy) * iy
        else:
            z += sz
            ez = (z + nz - oz) * iz


@cuda.jit
def forward(kinds, frames, along, normal, heights, spacing, counts, sampling, keys, numbers,
            first, volume, out):  # fmt: skip
    t = cuda.grid(1)
    if t >= out.size:
        return
    c = t % out.shape[3]
    r = t // out.shape[3] % out.shape[2]
    view = t // (out.shape[3] * out.shape[2]) % out.shape[1]
    b = t // (out.shape[3] * out.shape[2] * out.shape[1])
    number, i, j = numbers[view], r + first[3], c + first[4]
    total = 0.0
    if (0 <= number < frames.shape[0] and 0 <= i < heights.shape[0]
            and 0 <= j < along.shape[0]):  # fmt: skip
        fz, fy, fx = first[0], first[1], first[2]
        x0, x1 = max(fx, 0), min(fx + volume.shape[3], counts[0])
        y0, y1 = max(fy, 0), min(fy + volume.shape[2], counts[1])
        z0, z1 = max(fz, 0), min(fz + volume.shape[1], counts[2])
        if x0 < x1 and y0 < y1 and z0 < z1:
            line = ray(kinds[0] != 0, frames, number, along[j], normal[j], heights[i],
                       spacing, counts)  # fmt: skip
            total = along_ray(line, volume, b, x0, x1, y0, y1, z0, z1, fx, fy, fz)
    out[b, view, r, c] = total


@cuda.jit(device=True)
def gathered(kinds, frames, along, normal, heights, spacing, counts, sampling, keys, numbers,
             first, data, b, x, y, z, squared):  # fmt: skip
    """What one cell gets from all rays."""
    cone = kinds[0] != 0
    cols, rows = along.shape[0], heights.shape[0]
    box = (float(x), float(x + 1), float(y), float(y + 1), float(z), float(z + 1))
    total = 0.0
    for view in range(numbers.shape[0]):
        number = numbers[view]
        if number < 0 or number >= frames.shape[0]:
            continue
        j0, j1 = 0, cols
        if kinds[1] == 0 or keys.shape[1] == cols:
            j0, j1 = columns_of_box(cone, frames, number, sampling, kinds[1] != 0, keys,
                                    cols, spacing, counts, box)  # fmt: skip
        for j in range(max(j0, first[4]), min(j1, first[4] + data.shape[3])):
            i0, i1 = rows_of_box(cone, frames, number, along[j], normal[j], sampling, rows,
                                 spacing, counts, box)  # fmt: skip
            for i in range(max(i0, first[3]), min(i1, first[3] + data.shape[2])):
                line = ray(cone, frames, number, along[j], normal[j], heights[i], spacing,
                           counts)  # fmt: skip
                weight = chord(line, x, y, z)
                if weight > 0.0:
                    value = data[b, view, i - first[3], j - first[4]]
                    total += (weight * weight if squared else weight) * value
    return total


@cuda.jit(device=True)
def back(kinds, frames, along, normal, heights, spacing, counts, sampling, keys, numbers,
         first, data, out, squared):  # fmt: skip
    t = cuda.grid(1)
    if t >= out.size:
        return
    lx, ly, lz = out.shape[3], out.shape[2], out.shape[1]
    x, y, z, b = t % lx, t // lx % ly, t // (lx * ly) % lz, t // (lx * ly * lz)
    gx, gy, gz = x + first[2], y + first[1], z + first[0]
    total = 0.0
    if 0 <= gx < counts[0] and 0 <= gy < counts[1] and 0 <= gz < counts[2]:
        total = gathered(kinds, frames, along, normal, heights, spacing, counts, sampling,
                         keys, numbers, first, data, b, gx, gy, gz, squared)  # fmt: skip
    out[b, z, y, x] = total


@cuda.jit
def adjoint(kinds, frames, along, normal, heights, spacing, counts, sampling, keys, numbers,
            first, data, out):  # fmt: skip
    back(kinds, frames, along, normal, heights, spacing, counts, sampling, keys, numbers,
         first, data, out, False)  # fmt: skip


@cuda.jit
def gram(kinds, frames, along, normal, heights, spacing, counts, sampling, keys, numbers,
         first, data, out):  # fmt: skip
    back(kinds, frames, along, normal, heights, spacing, counts, sampling, keys, numbers,
         first, data, out, True)  # fmt: skip
