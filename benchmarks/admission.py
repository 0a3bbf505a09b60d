"""What it costs to check a scan before it is projected: time, points of rays, arrays read.

Admission alone, no kernel. Flat detectors take a few points a view whatever their size, cylinders
the ends of their columns, surfaces all their cells. "reads" counts arrays brought to the host,
building the frames from torch tensors and admitting them. Nothing here is extrapolated: every
line is a run of the size that it names.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from geometries import ConeBeam, Detector, Grid, Surface, Trajectory
from geometries.admission import admit
from linops import arrays

REPEATS = 5


def flat(shape: tuple[int, int], views: int) -> ConeBeam:
    width = 2 * 100 * np.tan(np.deg2rad(75)) / shape[1]
    return ConeBeam(np.linspace(0, 6, views), Detector(shape, width), 50.0, 100.0)


def cylinder(shape: tuple[int, int], views: int) -> ConeBeam:
    detector = Detector(shape, 200.0 / shape[1], 0.0, 100.0)
    return ConeBeam(np.linspace(0, 6, views), detector, 50.0, 100.0)


def surface(shape: tuple[int, int], views: int) -> ConeBeam:
    def bulge(a: Any, b: Any, view: Any) -> Any:
        return np.stack([a, b, np.cos(0.01 * a)], axis=-1)

    detector = Detector(shape, 200.0 / shape[1], 0.0, Surface(bulge))
    return ConeBeam(np.linspace(0, 6, views), detector, 50.0, 100.0)


CASES: list[tuple[Callable[..., ConeBeam], tuple[int, int], int]] = [
    (flat, (768, 1024), 12),
    (flat, (768, 1024), 1200),
    (flat, (29, 43), 1200),
    (cylinder, (768, 1024), 12),
    (cylinder, (768, 1024), 1200),
    (surface, (96, 128), 120),
    (surface, (768, 1024), 12),
]


def main() -> None:
    grid = Grid((256, 256, 256), 0.2)
    print(f"cone beams, half fan of 75 degrees where flat, grid {grid.shape}, precision fast")
    for build, shape, views in CASES:
        beam = build(shape, views)
        best, done = np.inf, None
        for _ in range(REPEATS):
            # A surface keeps the offsets of a scan that is small: a new one is sampled anew.
            fresh = build(shape, views) if build is surface else beam
            start = time.process_time()
            done = admit(fresh, grid, "fast")
            best = min(best, time.process_time() - start)
        assert done is not None
        print(
            f"{build.__name__:9} {shape[0]:4} x {shape[1]:4} cells, {views:5} views: "
            f"{1e3 * best:9.3f} ms, {done.points:9} points ({done.points / views:8.0f} a view), "
            f"{done.largest_block:8} at a time, {reads(beam)} reads"
        )


def reads(beam: ConeBeam) -> str:
    """Arrays that come to the host from torch tensors; "no" without torch."""
    try:
        import torch
    except ImportError:
        return "no"
    plain = beam.trajectory
    frames = [torch.tensor(x) for x in (plain.sources, plain.centers, plain.u, plain.v)]
    count = 0
    whole = arrays.to_numpy

    def counting(x: Any) -> np.ndarray:
        nonlocal count
        count += not isinstance(x, np.ndarray)
        return whole(x)

    arrays.to_numpy = counting
    try:
        admit(Trajectory("cone", *frames, plain.detector), Grid((4, 4, 4)), "fast")
    finally:
        arrays.to_numpy = whole
    return str(count)


if __name__ == "__main__":
    main()
