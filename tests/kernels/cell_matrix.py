"""The dense matrix of exact chord lengths, in plain Python: what projectors are held to."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from geometries import Grid


def cell_matrix(frames: Any, grid: Grid) -> np.ndarray:
    """Exact chord lengths by clipping every ray against every cell."""
    frames = frames.trajectory
    places = frames.points().reshape(frames.views, -1, frames.dims)
    faces = [
        c + (np.arange(n + 1) - n / 2) * s
        for n, s, c in zip(grid.shape, grid.spacing, grid.center, strict=True)
    ]
    rows = []
    for k in range(frames.views):
        for end in places[k]:
            if frames.sources is None:
                origin, way, low, high = end, frames.directions[k], -np.inf, np.inf
            else:
                origin = frames.sources[k]
                way, low, high = end - origin, 0.0, 1.0
            row = np.zeros(grid.shape)
            for cell in product(*map(range, grid.shape)):
                t0, t1 = low, high
                for axis, i in enumerate(cell):
                    x = grid.dims - 1 - axis
                    if way[x] == 0:
                        if not faces[axis][i] <= origin[x] < faces[axis][i + 1]:
                            t1 = t0
                        continue
                    one = (faces[axis][i] - origin[x]) / way[x]
                    two = (faces[axis][i + 1] - origin[x]) / way[x]
                    t0, t1 = max(t0, min(one, two)), min(t1, max(one, two))
                row[cell] = max(t1 - t0, 0) * np.linalg.norm(way)
            rows.append(row.ravel())
    return np.array(rows)
