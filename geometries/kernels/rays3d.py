"""Rays through a grid, exactly and in float64: the compiled functions that all 3-D kernels share.

A ray is measured in cells: coordinate a = i on face i of the whole grid, parameter t along a unit
direction, t = 0 at the point nearest to the middle of the grid, so that its crossings are small
numbers however far the ends are. Every crossing is one formula of the ray and the number of a face,
``t(i) = (i - origin) * inverse``, and the piece within a cell is the smallest exit minus the
largest entry; so a forward and an adjoint kernel, whole or of any part, get the same bits.

A ray in a face belongs to the cell above it, pieces of length zero are left out, ends clip the ray
(cone), and a ray that misses has no pieces. Nothing here is fast-math and no sentinel is infinite.
Scatter and gather belong to the kernels.
"""

from __future__ import annotations

import math

from geometries.kernels import ties
from geometries.kernels.compiling import compiled

__all__ = [
    "BIG",
    "columns_of_box",
    "crossing_range",
    "first_cell",
    "inverse",
    "leads",
    "plane_foot",
    "plane_ray",
    "plane_walk",
    "ray",
    "rows_of_box",
    "walk",
]

BIG = 1e300
_ZERO = 1e-20
leads = compiled(ties.leads)


@compiled
def ray(cone, frames, view, along, normal, height, spacing, counts):
    """The ray of one detector cell: (ox, oy, oz, dx, dy, dz, start, stop, length of t = 1)."""
    px, py, pz = _pixel(frames, view, along, normal, height, spacing)
    dx = frames[view, 0] / spacing[0]
    dy = frames[view, 1] / spacing[1]
    dz = frames[view, 2] / spacing[2]
    sx, sy, sz = dx, dy, dz
    if cone:
        dx, dy, dz = px - sx, py - sy, pz - sz
    scale = max(abs(dx), abs(dy), abs(dz))
    if not scale > 0.0:
        return 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    dx, dy, dz = dx / scale, dy / scale, dz / scale
    norm = math.sqrt(dx * dx + dy * dy + dz * dz)
    dx, dy, dz = _flushed(dx / norm), _flushed(dy / norm), _flushed(dz / norm)
    start, stop = -BIG, BIG
    if cone:
        length = scale * norm
        far = max(abs(px), abs(py), abs(pz)) > max(abs(sx), abs(sy), abs(sz))
        if far:
            px, py, pz = sx, sy, sz
            start, stop = 0.0, length
        else:
            start, stop = -length, 0.0
    middle = px * dx + py * dy + pz * dz
    if cone:
        start += middle
        stop += middle
    metre = math.sqrt((spacing[0] * dx) ** 2 + (spacing[1] * dy) ** 2 + (spacing[2] * dz) ** 2)
    return (
        px - middle * dx + 0.5 * counts[0],
        py - middle * dy + 0.5 * counts[1],
        pz - middle * dz + 0.5 * counts[2],
        dx,
        dy,
        dz,
        start,
        stop,
        metre,
    )


@compiled
def plane_ray(cone, frames, view, along, normal, spacing, counts):
    """The ray of a detector column in the (x, y) plane, where v is parallel to z.

    Returns (ox, oy, dx, dy, start, stop, length of t = 1, anchor, rise, fall): along the ray of the
    cell at height b, ``z = z_A + slope (t - anchor)`` in cells from the middle, with
    ``slope = rise + fall b`` and ``z_A`` the source's z where `anchor` is `start`, else the cell's.
    """
    px, py, pz = _pixel(frames, view, along, normal, 0.0, spacing)
    dx, dy = frames[view, 0] / spacing[0], frames[view, 1] / spacing[1]
    sx, sy = dx, dy
    if cone:
        dx, dy = px - sx, py - sy
    scale = max(abs(dx), abs(dy))
    if not scale > 0.0:
        return 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    dx, dy = dx / scale, dy / scale
    norm = math.sqrt(dx * dx + dy * dy)
    dx, dy = _flushed(dx / norm), _flushed(dy / norm)
    length = scale * norm
    start, stop, anchor = -BIG, BIG, 0.0
    rise, fall = frames[view, 2] / spacing[2] / length, 0.0
    if cone:
        rise = (pz - frames[view, 2] / spacing[2]) / length
        fall = frames[view, 14] / spacing[2] / length
        if max(abs(px), abs(py)) > max(abs(sx), abs(sy)):
            px, py = sx, sy
            start, stop = 0.0, length
        else:
            start, stop = -length, 0.0
    ox, oy, middle = _foot(px, py, dx, dy, counts)
    anchor = middle
    if cone:
        start += middle
        stop += middle
    metre = math.sqrt((spacing[0] * dx) ** 2 + (spacing[1] * dy) ** 2)
    return ox, oy, dx, dy, start, stop, metre, anchor, rise, fall


@compiled
def plane_foot(frames, view, along, normal, spacing, counts, dx, dy):
    """(ox, oy, anchor) of `plane_ray` for a parallel beam whose direction (dx, dy) it gave."""
    px, py, _ = _pixel(frames, view, along, normal, 0.0, spacing)
    return _foot(px, py, dx, dy, counts)


@compiled
def walk(line, x0, x1, y0, y1, z0, z1, fx, fy, fz, ly, lx, lz, cells, pieces):
    """List the cells of the box [x0, x1) x [y0, y1) x [z0, z1) that a ray crosses, in its order.

    Writes flat positions in a C-contiguous (ly, lx, lz) array whose first cell is (fx, fy, fz), and
    lengths (physical); returns their number, at most the sum of the three extents.
    """
    ox, oy, oz, dx, dy, dz, start, stop, metre = line
    ix, sx, nx = inverse(dx)
    iy, sy, ny = inverse(dy)
    iz, sz, nz = inverse(dz)
    ax, bx = crossing_range(ox, dx, ix, x0, x1)
    ay, by = crossing_range(oy, dy, iy, y0, y1)
    az, bz = crossing_range(oz, dz, iz, z0, z1)
    here = max(max(start, ax), max(ay, az))
    last = min(min(stop, bx), min(by, bz))
    if not here < last:
        return 0
    x = first_cell(ox, dx, ix, x0, x1, here)
    y = first_cell(oy, dy, iy, y0, y1, here)
    z = first_cell(oz, dz, iz, z0, z1, here)
    ex = (x + nx - ox) * ix if sx != 0 else BIG
    ey = (y + ny - oy) * iy if sy != 0 else BIG
    ez = (z + nz - oz) * iz if sz != 0 else BIG
    cell = ((y - fy) * lx + (x - fx)) * lz + (z - fz)
    step_x, step_y, step_z = sx * lz, sy * lx * lz, sz
    count = 0
    while True:
        there = min(min(ex, ey), min(ez, last))
        if there > here:
            cells[count] = cell
            pieces[count] = (there - here) * metre
            count += 1
            here = there
        if there >= last:
            return count
        if ex <= ey and ex <= ez:
            x += sx
            cell += step_x
            ex = (x + nx - ox) * ix
        elif ey <= ez:
            y += sy
            cell += step_y
            ey = (y + ny - oy) * iy
        else:
            z += sz
            cell += step_z
            ez = (z + nz - oz) * iz


@compiled
def plane_walk(line, x0, x1, y0, y1, fx, fy, lx, cells, starts, stops):
    """List the cells of [x0, x1) x [y0, y1) that a column's ray crosses, with entry and exit.

    Writes flat positions in a C-contiguous (ly, lx) array whose first cell is (fx, fy); returns
    their number, at most the sum of the two extents.
    """
    ox, oy, dx, dy, start, stop = line[0], line[1], line[2], line[3], line[4], line[5]
    ix, sx, nx = inverse(dx)
    iy, sy, ny = inverse(dy)
    ax, bx = crossing_range(ox, dx, ix, x0, x1)
    ay, by = crossing_range(oy, dy, iy, y0, y1)
    here = max(start, max(ax, ay))
    last = min(stop, min(bx, by))
    if not here < last:
        return 0
    x = first_cell(ox, dx, ix, x0, x1, here)
    y = first_cell(oy, dy, iy, y0, y1, here)
    ex = (x + nx - ox) * ix if sx != 0 else BIG
    ey = (y + ny - oy) * iy if sy != 0 else BIG
    cell = (y - fy) * lx + (x - fx)
    step_y = sy * lx
    count = 0
    while True:
        there = min(min(ex, ey), last)
        if there > here:
            cells[count] = cell
            starts[count] = here
            stops[count] = there
            count += 1
            here = there
        if there >= last:
            return count
        if ex <= ey:
            x += sx
            cell += sx
            ex = (x + nx - ox) * ix
        else:
            y += sy
            cell += step_y
            ey = (y + ny - oy) * iy


@compiled
def columns_of_box(cone, frames, view, sampling, curved, keys, cols, spacing, counts, box):
    """Detector columns [j0, j1) that can see a box (x0, x1, y0, y1, z0, z1) of cells; generous."""
    s1, s2, stretch = frames[view, 21], frames[view, 22], frames[view, 23]
    low, high, width = BIG, -BIG, 0.0
    ahead, behind = 0, 0
    if curved and keys.shape[0] == 0:
        return 0, cols
    m1, m2 = 0.0, 0.0
    if curved and cone:
        cx, cy, cz = 0.5 * (box[0] + box[1]), 0.5 * (box[2] + box[3]), 0.5 * (box[4] + box[5])
        m1, m2 = _across(frames, view, cx, cy, cz, spacing, counts)
        m1, m2 = m1 - s1, m2 - s2
    for corner in range(8):
        cx = box[corner & 1]
        cy = box[2 + ((corner >> 1) & 1)]
        cz = box[4 + ((corner >> 2) & 1)]
        p1, p2 = _across(frames, view, cx, cy, cz, spacing, counts)
        if curved and cone:
            p1, p2 = p1 - s1, p2 - s2
            if m1 * p1 + m2 * p2 <= 0.0:
                return 0, cols
            key = math.atan2(m1 * p2 - m2 * p1, m1 * p1 + m2 * p2)
        elif curved:
            key = p1 * s2 - p2 * s1
        elif cone:
            before = (s2 - p2) / s2
            if abs(before) <= 1e-8:
                # At the source, or as near to it as a far detector: no digits are left to tell.
                return 0, cols
            if before < 0.0:
                behind += 1
                continue
            ahead += 1
            shift = p2 * ((p1 - s1) / (p2 - s2))
            key = p1 - shift
            width = max(width, abs(p1) + abs(shift))
        else:
            shift = p2 * (s1 / s2)
            key = p1 - shift
            width = max(width, abs(p1) + abs(shift))
        low = min(low, key)
        high = max(high, key)
    if curved:
        if cone:
            turn = math.atan2(s2 * m1 - s1 * m2, -(s1 * m1 + s2 * m2))
            slack = 1e-9
            if low + turn < -math.pi or high + turn > math.pi:
                return 0, cols
            low += turn
            high += turn
        else:
            slack = 1e-9 * (abs(low) + abs(high))
        return _between(keys, view, cols, low - slack, high + slack)
    if behind > 0:
        return (0, cols) if ahead > 0 else (0, 0)
    u0, du = sampling[0], sampling[1]
    slack = 1e-3 + 1e-13 * width / abs(stretch * du)
    one = (low / stretch - u0) / du + 0.5 * (cols - 1)
    two = (high / stretch - u0) / du + 0.5 * (cols - 1)
    return _range(min(one, two) - slack, max(one, two) + slack, cols)


@compiled
def rows_of_box(cone, frames, view, along, normal, sampling, rows, spacing, counts, box):
    """Detector rows [i0, i1) of one column that can see a box of cells; generous."""
    s1, s2 = frames[view, 21], frames[view, 22]
    q1, q2, qv, sv = 0.0, 0.0, 0.0, 0.0
    for a in range(3):
        q = along * frames[view, 6 + a] + normal * frames[view, 9 + a]
        q1 += q * frames[view, 15 + a]
        q2 += q * frames[view, 18 + a]
        qv += q * frames[view, 12 + a]
        end = frames[view, a] - frames[view, 3 + a] if cone else frames[view, a]
        sv += end * frames[view, 12 + a]
    g1, g2 = s1, s2
    if cone:
        g1, g2 = q1 - s1, q2 - s2
    g = g1 * g1 + g2 * g2
    if not g > 1e-200:
        return 0, rows
    low, high, width = BIG, -BIG, 0.0
    for corner in range(8):
        cx = (box[corner & 1] - 0.5 * counts[0]) * spacing[0] - frames[view, 3]
        cy = (box[2 + ((corner >> 1) & 1)] - 0.5 * counts[1]) * spacing[1] - frames[view, 4]
        cz = (box[4 + ((corner >> 2) & 1)] - 0.5 * counts[2]) * spacing[2] - frames[view, 5]
        p1 = cx * frames[view, 15] + cy * frames[view, 16] + cz * frames[view, 17]
        p2 = cx * frames[view, 18] + cy * frames[view, 19] + cz * frames[view, 20]
        pv = cx * frames[view, 12] + cy * frames[view, 13] + cz * frames[view, 14]
        if cone:
            # how far the corner is from the cell, as a part of the way to the source
            part = ((q1 - p1) * g1 + (q2 - p2) * g2) / g
            if part >= 1.0 - 1e-9:
                return 0, rows
            shift = part * (pv - sv) / (1.0 - part)
        else:
            shift = -((p1 - q1) * g1 + (p2 - q2) * g2) / g * sv
        key = pv + shift - qv
        width = max(width, abs(pv) + abs(shift) + abs(qv))
        low = min(low, key)
        high = max(high, key)
    v0, dv = sampling[2], sampling[3]
    slack = 1e-3 + 1e-13 * width / abs(dv)
    one = (low - v0) / dv + 0.5 * (rows - 1)
    two = (high - v0) / dv + 0.5 * (rows - 1)
    return _range(min(one, two) - slack, max(one, two) + slack, rows)


@compiled
def crossing_range(origin, direction, inverse_direction, first, stop):
    """Parameters where a ray enters and leaves the slab between two faces; reversed: it misses."""
    if direction == 0.0:
        inside = first <= origin and origin < stop
        return (-BIG, BIG) if inside else (BIG, -BIG)
    one = (first - origin) * inverse_direction
    two = (stop - origin) * inverse_direction
    return (one, two) if direction > 0.0 else (two, one)


@compiled
def inverse(direction):
    """(1 / direction, step of the cell's index, 1 where the exit is the upper face); 0 for none."""
    if direction > 0.0:
        return 1.0 / direction, 1, 1
    if direction < 0.0:
        return 1.0 / direction, -1, 0
    return 0.0, 0, 0


@compiled
def first_cell(origin, direction, inverse_direction, first, stop, here):
    """The cell of [first, stop) in which a ray is just after parameter `here`."""
    if direction == 0.0:
        return int(math.floor(origin))
    i = int(min(max(math.floor(origin + here * direction), first), stop - 1))
    if direction > 0.0:
        while i > first and (i - origin) * inverse_direction > here:
            i -= 1
        while i < stop - 1 and (i + 1 - origin) * inverse_direction <= here:
            i += 1
    else:
        while i < stop - 1 and (i + 1 - origin) * inverse_direction > here:
            i += 1
        while i > first and (i - origin) * inverse_direction <= here:
            i -= 1
    return i


@compiled
def _pixel(frames, view, along, normal, height, spacing):
    """A detector cell in cells of the grid, from its middle."""
    f = frames[view]
    return (
        (f[3] + along * f[6] + normal * f[9] + height * f[12]) / spacing[0],
        (f[4] + along * f[7] + normal * f[10] + height * f[13]) / spacing[1],
        (f[5] + along * f[8] + normal * f[11] + height * f[14]) / spacing[2],
    )


@compiled
def _foot(px, py, dx, dy, counts):
    """The point of a line next to the middle of the grid, in cells, and its parameter from p."""
    middle = px * dx + py * dy
    return px - middle * dx + 0.5 * counts[0], py - middle * dy + 0.5 * counts[1], middle


@compiled
def _flushed(direction):
    return direction if abs(direction) > _ZERO else 0.0


@compiled
def _across(frames, view, cx, cy, cz, spacing, counts):
    """A point in cells, seen along v: its coordinates on e1, e2 from the detector center."""
    px = (cx - 0.5 * counts[0]) * spacing[0] - frames[view, 3]
    py = (cy - 0.5 * counts[1]) * spacing[1] - frames[view, 4]
    pz = (cz - 0.5 * counts[2]) * spacing[2] - frames[view, 5]
    one = px * frames[view, 15] + py * frames[view, 16] + pz * frames[view, 17]
    two = px * frames[view, 18] + py * frames[view, 19] + pz * frames[view, 20]
    return one, two


@compiled
def _range(low, high, count):
    """Whole numbers in [low, high] within [0, count), half-open."""
    first = int(math.ceil(min(max(low, 0.0), float(count))))
    last = int(math.floor(min(max(high, -1.0), float(count - 1))))
    return first, max(first, last + 1)


@compiled
def _between(keys, view, cols, low, high):
    """Columns whose key lies in [low, high]; keys rise or fall along the view."""
    falling = keys[view, cols - 1] < keys[view, 0]
    if falling:
        low, high = -high, -low
    return _search(keys, view, cols, low, falling, False), _search(
        keys, view, cols, high, falling, True
    )


@compiled
def _search(keys, view, cols, value, falling, after):
    first, stop = 0, cols
    while first < stop:
        middle = (first + stop) // 2
        key = -keys[view, middle] if falling else keys[view, middle]
        if key < value or (after and key == value):
            first = middle + 1
        else:
            stop = middle
    return first
