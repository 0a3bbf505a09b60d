#!/usr/bin/env python3
"""One ball on a flat detector, on a cylinder about the source, and on a shape of one's own.

A cylinder of radius `source_to_detector` is the equiangular detector: equal cells see equal angles.
The same cylinder written as a `Surface` gives the same numbers, and a `Surface` can be anything
else: here one half of the columns stands 10 mm nearer to the source. The numbers are compared with
the chords of the ball.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from geometries import ConeBeam, Detector, Grid, Projector, Surface

AXIS, FAR = 120.0, 200.0  # source to axis, source to detector, mm
RADIUS, CENTER = 8.0, np.array([6.0, -3.0, 2.0])  # of the ball; x, y, z


def cylinder(a: Any, b: Any, view: Any) -> np.ndarray:
    """Offsets along u, v and the normal of a cell at arc length a and height b."""
    return np.stack([FAR * np.sin(a / FAR), b, FAR * (np.cos(a / FAR) - 1)], axis=-1)


def stepped(a: Any, b: Any, view: Any) -> np.ndarray:
    return np.stack([a, b, np.where(a > 0, -10.0, 0.0)], axis=-1)


def chords(beam: ConeBeam) -> np.ndarray:
    """Lengths of the rays within the ball, (view, row, col)."""
    source = beam.sources[:, None, None]
    way = beam.trajectory.points() - source
    way /= np.linalg.norm(way, axis=-1, keepdims=True)
    apart = np.linalg.norm(np.cross(CENTER - source, way), axis=-1)
    return 2 * np.sqrt(np.maximum(RADIUS**2 - apart**2, 0))


def main(arguments: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=64, help="voxels along each axis")
    n = parser.parse_args(arguments).size
    grid = Grid((n, n, n), 40.0 / n)
    z, y, x = np.meshgrid(*(grid.coordinates(axis) for axis in "zyx"), indexing="ij")
    ball = np.linalg.norm(np.stack([x, y, z], -1) - CENTER, axis=-1) <= RADIUS
    angles = np.arange(8) * (np.pi / 4)

    shapes = {
        "flat": None,
        "cylinder": FAR,
        "its surface": Surface(cylinder),
        "step": Surface(stepped),
    }
    found = {}
    for name, curvature in shapes.items():
        detector = Detector((17, 41), pitch=2.0, offset=(2.0, 5.0), curvature=curvature)
        beam = ConeBeam(angles, detector, AXIS, FAR)
        A = Projector(beam, grid)
        found[name] = A @ ball.astype("float32")
        gap = found[name] - chords(beam)
        print(
            f"{name:12} runs as {A.path:8} longest chord {found[name].max():6.2f} mm, "
            f"rms from the ball's {np.sqrt(np.mean(gap**2)):.3f} mm"
        )
    return found


if __name__ == "__main__":
    main()
