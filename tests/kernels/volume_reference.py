"""Dense matrices of exact chord lengths, by clipping every ray against every cell; and scans."""

from __future__ import annotations

import dataclasses

import numpy as np

from geometries.kernels.volume_scan import VolumeScan

# section 12 of the requirements
ANGLES = (0.231, 0.811, 1.431)
GRID = {"grid_shape": (2, 3, 4), "spacing": (1.3, 0.9, 0.6), "center": (0.0, 0.0, 0.0)}
PRECISIONS = (("fast", np.float32), ("float32", np.float32), ("float64", np.float64))


def frame(angles):
    t = np.asarray(angles, float)
    zero, one = np.zeros_like(t), np.ones_like(t)
    return (
        np.stack([np.cos(t), np.sin(t), zero], 1),
        np.stack([-np.sin(t), np.cos(t), zero], 1),
        np.stack([zero, zero, one], 1),
    )


def parallel(angles, shape, pitch, offset=(0.0, 0.0), curvature=None, **grid):
    u, direction, v = frame(angles)
    centers = np.zeros_like(u)
    return VolumeScan(
        "parallel", centers, direction, centers, u, v, shape, pitch, offset, curvature,
        **{**GRID, **grid},
    )  # fmt: skip


def cone(angles, shape, pitch, offset=(0.0, 0.0), curvature=None, a=7.1, d=12.4, advance=0.0,
         **grid):  # fmt: skip
    u, ahead, v = frame(angles)
    rise = v * (advance * np.asarray(angles, float) / (2 * np.pi))[:, None]
    return VolumeScan(
        "cone", -a * ahead + rise, ahead, (d - a) * ahead + rise, u, v, shape, pitch, offset,
        curvature, **{**GRID, **grid},
    )  # fmt: skip


def tilted(scan, seed=3, size=0.4):
    """The scan with every view turned by its own rotation about the middle of the grid."""
    rng = np.random.default_rng(seed)
    turned = {name: [] for name in ("origins", "directions", "centers", "u", "v")}
    for view in range(scan.views):
        axis = rng.standard_normal(3)
        axis /= np.linalg.norm(axis)
        k = np.array(
            [[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]], float
        )
        turn = np.eye(3) + np.sin(size) * k + (1 - np.cos(size)) * k @ k
        for name, rows in turned.items():
            rows.append(turn @ getattr(scan, name)[view])
    return dataclasses.replace(scan, **{name: np.array(rows) for name, rows in turned.items()})


def pixels(scan):
    """End points (views, cols, rows, 3) of the rays."""
    rows, cols = scan.shape
    b = (np.arange(rows) - (rows - 1) / 2) * scan.pitch[0] + scan.offset[0]
    a = (np.arange(cols) - (cols - 1) / 2) * scan.pitch[1] + scan.offset[1]
    ahead = np.zeros_like(a)
    if scan.curvature is not None:
        a, ahead = (
            scan.curvature * np.sin(a / scan.curvature),
            scan.curvature * (np.cos(a / scan.curvature) - 1),
        )
    n = np.cross(scan.v, scan.u)
    return (
        scan.centers[:, None, None]
        + a[None, :, None, None] * scan.u[:, None, None]
        + ahead[None, :, None, None] * n[:, None, None]
        + b[None, None, :, None] * scan.v[:, None, None]
    )


def cell_matrix(scan):
    """(views, cols, rows, ny, nx, nz): length of every ray within every cell."""
    ends = pixels(scan)
    shape = scan.grid_shape[::-1]
    faces = [
        scan.center[2 - a] + (np.arange(shape[a] + 1) - shape[a] / 2) * scan.spacing[2 - a]
        for a in range(3)
    ]
    matrix = np.zeros((*ends.shape[:3], shape[1], shape[0], shape[2]))
    for view, col, row in np.ndindex(ends.shape[:3]):
        end = ends[view, col, row]
        if scan.kind == "cone":
            start, along = scan.origins[view], end - scan.origins[view]
            enter, leave = np.zeros((1, 1, 1)), np.ones((1, 1, 1))
        else:
            start, along = end, scan.directions[view]
            enter, leave = np.full((1, 1, 1), -1e200), np.full((1, 1, 1), 1e200)
        for a in range(3):
            low, high = faces[a][:-1], faces[a][1:]
            if along[a] == 0:
                inside = (low <= start[a]) & (start[a] < high)
                first, last = np.where(inside, -1e200, 1e200), np.where(inside, 1e200, -1e200)
            else:
                one, two = (low - start[a]) / along[a], (high - start[a]) / along[a]
                first, last = np.minimum(one, two), np.maximum(one, two)
            # (y, x, z) is the order of the result
            place = {0: (None, slice(None), None), 1: (slice(None), None, None)}.get(
                a, (None, None, slice(None))
            )
            enter, leave = np.maximum(enter, first[place]), np.minimum(leave, last[place])
        matrix[view, col, row] = np.maximum(leave - enter, 0) * np.linalg.norm(along)
    return matrix


def random_scans():
    """Small scans of both kinds with uneven spacing, off center, ends inside the grid too."""
    grid = {"grid_shape": (5, 6, 7), "spacing": (0.5, 2.0, 1.5), "center": (0.3, -0.7, 0.4)}
    angles = (0.3, 1.9, 4.0)
    return {
        "parallel": parallel(angles, (4, 9), (0.7, 1.1), (0.13, -0.2), **grid),
        "cone": cone(angles, (5, 8), (0.9, 2.0), (0.2, 0.3), a=14.0, d=24.0, **grid),
        "helix": cone(angles, (5, 8), (0.9, 2.0), a=14.0, d=24.0, advance=2.0, **grid),
        "curved": cone(angles, (5, 8), (0.9, 2.0), curvature=24.0, a=14.0, d=24.0, **grid),
        "curved parallel": parallel(angles, (4, 9), (0.7, 1.1), curvature=11.0, **grid),
        "inside": cone(angles, (5, 8), (0.5, 1.0), a=2.0, d=5.0, **grid),
        "steep": cone(angles, (5, 8), (3.0, 2.0), a=9.0, d=14.0, **grid),
    }


def run_forward(kernel, scan, volume, **options):
    shape = (volume.shape[0], scan.views, scan.shape[1], scan.shape[0])
    out = np.full(shape, np.nan, volume.dtype)
    kernel.forward(scan, volume, out, **options)
    return out


def run_adjoint(kernel, scan, projections, **options):
    nz, ny, nx = scan.grid_shape
    out = np.full((projections.shape[0], ny, nx, nz), np.nan, projections.dtype)
    kernel.adjoint(scan, projections, out, **options)
    return out


def dense(kernel, scan, dtype, precision):
    """Both matrices (rays, cells) of a kernel, from every basis vector, as batches."""
    nz, ny, nx = scan.grid_shape
    cells, rays = nz * ny * nx, scan.views * scan.shape[0] * scan.shape[1]
    columns = run_forward(
        kernel, scan, np.eye(cells, dtype=dtype).reshape(cells, ny, nx, nz), precision=precision
    )
    rows = run_adjoint(
        kernel,
        scan,
        np.eye(rays, dtype=dtype).reshape(rays, scan.views, scan.shape[1], scan.shape[0]),
        precision=precision,
    )
    return columns.reshape(cells, rays).T, rows.reshape(rays, cells)


def mismatch(x, y, ax, aty, eps):
    """Residual of the dot test in units of eps."""
    x, y, ax, aty = (np.asarray(part, np.float64).ravel() for part in (x, y, ax, aty))
    scale = np.linalg.norm(ax) * np.linalg.norm(y) + np.linalg.norm(x) * np.linalg.norm(aty)
    return 0.0 if scale == 0 else abs(ax @ y - x @ aty) / scale / eps
