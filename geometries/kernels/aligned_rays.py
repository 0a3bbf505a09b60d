"""Which rays of parallel views cross a voxel column, and how far: tables of views and a look-up.

For the kernels of `aligned` that own voxels, or take a list of them. Rays of a view are parallel,
so a table holds one direction a view and one origin a detector column, and the rays across a cell
are few neighbors. A piece is the smallest exit minus the largest entry, by the crossings of
`rays3d`, so it has the bits of the piece that `plane_walk` lists.
"""

from __future__ import annotations

import math

import numpy as np

from geometries.kernels.compiling import compiled
from geometries.kernels.rays3d import columns_of_box, inverse, leads, plane_foot, plane_ray
from linops.compiled.noalias import load, store

__all__ = ["VIEWS", "crossing", "empty_rays", "real_views", "set_rays"]

VIEWS = 16  # views of a table; a constant, since sums are rounded where a table ends
_WAYS, _SPANS = 10, 3
_STANDING = 1e280  # 1 / direction across an axis, times any distance finite


@compiled
def real_views(numbers, views):
    """The local views whose numbers are in the scan."""
    found = np.empty(numbers.shape[0], np.int64)
    count = 0
    for view in range(numbers.shape[0]):
        if 0 <= numbers[view] < views:
            found[count] = view
            count += 1
    return found[:count]


@compiled
def empty_rays(views, cols):
    """Tables of rays for `set_rays`, and room for the lines and weights of `crossing`.

    Returns ((ways, spans, x origins, y origins, columns), lines, weights), the weights float64.
    """
    room = views * cols
    rays = np.empty(_WAYS * views), np.empty(_SPANS * views, np.int64), np.empty(room)
    return (*rays, np.empty(room), cols), np.empty(room + 1, np.int64), np.empty(room + 1)


@compiled
def set_rays(table, numbers, views, bounds, first, local, rays):
    """Tabulate the rays of local columns [first, first + local) that can see a box, view by view.

    Ways: 1 / direction in x and y, 1 where its exit is the upper face, length of t = 1, the column,
    counted from the first of the table, before the rays across cell (x, y):
    ``ways[5] + ways[6] x + ways[7] y``, and the direction. Spans: the line of the table's first
    column in projections (views, local), the columns, and how many of them a cell can meet at most.
    Rays along an axis stand in the middle of their cells and are all but infinitely slow across it,
    but not in Joseph's model.
    """
    cone, frames, along, normal, _, spacing, counts, sampling, curved, keys, smooth = table
    ways, spans, xs, ys, cols = rays
    for n in range(views.shape[0]):
        number = numbers[views[n]]
        j0, j1 = columns_of_box(cone, frames, number, sampling, curved, keys, along.shape[0],
                                spacing, counts, bounds)  # fmt: skip
        j0 = max(j0, first)
        size = max(0, min(j1, first + local) - j0)
        span, way, at = _SPANS * n, _WAYS * n, cols * n
        spans[span], spans[span + 1], spans[span + 2] = views[n] * local + j0 - first, size, size
        if size == 0:
            continue
        line = plane_ray(cone, frames, number, along[j0], normal[j0], spacing, counts)
        dx, dy = line[2], line[3]
        ways[way], step_x, ways[way + 2] = inverse(dx)
        ways[way + 1], step_y, ways[way + 3] = inverse(dy)
        ways[way + 4] = line[6]
        ways[way + 5], ways[way + 6], ways[way + 7] = -1.0, 0.0, 0.0
        ways[way + 8], ways[way + 9] = dx, dy
        for c in range(size):
            xs[at + c], ys[at + c], _ = plane_foot(
                frames, number, along[j0 + c], normal[j0 + c], spacing, counts, dx, dy
            )
        if not curved and size > 1:
            # Where rays pass across the direction, in cells: a line in the number of the column.
            begin = xs[at] * dy - ys[at] * dx
            step = (xs[at + size - 1] * dy - ys[at + size - 1] * dx - begin) / (size - 1)
            noise = 1e-15 * (abs(xs[at]) + abs(ys[at]) + abs(line[7]) + counts[0] + counts[1])
            reach = max(abs(dx), abs(dy)) if smooth else 0.5 * (abs(dx) + abs(dy))
            half = (reach + noise) / abs(step) + 1e-3
            if 2.0 * half + 1.0 < size:
                spans[span + 2] = int(2.0 * half) + 1
                ways[way + 5] = (0.5 * (dy - dx) - begin) / step - half
                ways[way + 6], ways[way + 7] = dy / step, -dx / step
        if step_x == 0 and not smooth:
            _stand(ways, way, xs[at : at + size])
        if step_y == 0 and not smooth:
            _stand(ways, way + 1, ys[at : at + size])


@compiled
def _stand(ways, slot, origins):
    ways[slot], ways[slot + 2] = _STANDING, 1.0
    for c in range(origins.shape[0]):
        origins[c] = math.floor(origins[c]) + 0.5


@compiled
def crossing(smooth, x, y, views, rays, lines, weights):
    """List the rays of a table across cell (x, y), in the order of views and columns.

    Writes lines of projections and physical lengths, or for Joseph's model (`smooth`) weights;
    returns their number.
    """
    if smooth:
        return _beside(x, y, views, rays, lines, weights)
    ways, spans, xs, ys, cols = rays
    fx, fy = float(x), float(y)
    count = 0
    for n in range(views):
        span, way, at = _SPANS * n, _WAYS * n, cols * n
        size = load(spans, span + 1)
        ahead = load(ways, way + 5) + load(ways, way + 6) * fx + load(ways, way + 7) * fy
        start = int(math.ceil(min(max(ahead, 0.0), float(size))))
        stop = min(start + load(spans, span + 2), size)
        line, metre = load(spans, span), load(ways, way + 4)
        ix, iy = load(ways, way), load(ways, way + 1)
        ux, uy = fx + load(ways, way + 2), fy + load(ways, way + 3)
        lx, ly = fx + (1.0 - load(ways, way + 2)), fy + (1.0 - load(ways, way + 3))
        for c in range(start, stop):
            ox, oy = load(xs, at + c), load(ys, at + c)
            ax, ay, bx, by = (lx - ox) * ix, (ly - oy) * iy, (ux - ox) * ix, (uy - oy) * iy
            here = ax if ax > ay else ay
            there = bx if bx < by else by
            store(lines, count, line + c)
            store(weights, count, (there - here) * metre)
            count += there > here
    return count


@compiled
def _beside(x, y, views, rays, lines, weights):
    """`crossing` with the weights of `joseph_rays.plane_samples`."""
    ways, spans, xs, ys, cols = rays
    count = 0
    for n in range(views):
        span, way, at = _SPANS * n, _WAYS * n, cols * n
        size = load(spans, span + 1)
        ahead = load(ways, way + 5) + load(ways, way + 6) * x + load(ways, way + 7) * y
        start = int(math.ceil(min(max(ahead, 0.0), float(size))))
        stop = min(start + load(spans, span + 2), size)
        line, metre = load(spans, span), load(ways, way + 4)
        dx, dy = load(ways, way + 8), load(ways, way + 9)
        driven = leads(abs(dx), abs(dy))
        inv, way1 = (load(ways, way), dy) if driven else (load(ways, way + 1), dx)
        drive, across = (float(x), float(y)) if driven else (float(y), float(x))
        for c in range(start, stop):
            ox, oy = load(xs, at + c), load(ys, at + c)
            o, o1 = (ox, oy) if driven else (oy, ox)
            t1, t2 = (drive - o) * inv, (drive + 1.0 - o) * inv
            t1, t2 = min(t1, t2), max(t1, t2)
            p = o1 + 0.5 * (t1 + t2) * way1 - 0.5
            below = math.floor(p)
            share = p - below
            part = 1.0 - share if below == across else (share if below + 1.0 == across else 0.0)
            store(lines, count, line + c)
            store(weights, count, (t2 - t1) * part * metre)
            count += part > 0.0
    return count
