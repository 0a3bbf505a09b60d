"""A helix on a curved detector: forward, adjoint, gradient in the geometry.

Run as ``python -m benchmarks.surfaces [--size 8] [--repeats 2] [--portable-size 24]``. At size 1 it
is the scan of the requirement, 1338 views over two turns of a helix, 64 x 736 cells on a cylinder
about the source, 96 x 512 x 512 cells; a size divides every extent. The same cylinder is also given
as a `Surface`, which is traced ray by ray. Compiled, portable and sharded figures stand in tables
of their own: they are different programs, and only lines of one table may be compared. What was run
is what is printed, with its extents; nothing is scaled up from it.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from geometries import ConeBeam, Detector, Grid, Projector, Surface
from linops.compiled import pool

AXIS, FAR = 600.0, 1000.0


def round_about_the_source(a: Any, b: Any, view: Any) -> np.ndarray:
    return np.stack([FAR * np.sin(a / FAR), b, FAR * (np.cos(a / FAR) - 1)], axis=-1)


def scan(size: int, curvature: Any) -> tuple[ConeBeam, Grid]:
    views, rows, columns = (max(2, n // size) for n in (1338, 64, 736))
    detector = Detector((rows, columns), (1.5 * size, 1.4 * size), curvature=curvature)
    angles = np.linspace(0, 4 * np.pi, views, endpoint=False)
    shape = tuple(max(2, n // size) for n in (96, 512, 512))
    beam = ConeBeam(angles, detector, AXIS, FAR, advance=30.0)
    return beam, Grid(shape, (1.0 * size, 0.9 * size, 0.9 * size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=8, help="divides every extent")
    parser.add_argument("--portable-size", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()

    print("compiled")
    for name, curvature in (("cylinder", FAR), ("surface", Surface(round_about_the_source))):
        beam, grid = scan(options.size, curvature)
        A = Projector(beam, grid)
        if name == "cylinder":
            configuration(A)
        timed(f"{name}, {A.path}", A, options.repeats)

    print("portable")
    for name, curvature in (("cylinder", FAR), ("surface", Surface(round_about_the_source))):
        beam, grid = scan(options.portable_size, curvature)
        A = Projector(beam, grid, backend="portable")
        if name == "cylinder":
            configuration(A)
        timed(name, A, options.repeats)
        N = A.geometry_operator(A.domain.random(0))
        frames = (beam.sources, beam.centers, beam.u, beam.v)
        y = A.codomain.random(1)
        line(f"{name}, gradient in the frames", lambda: N.vjp(frames, y), options.repeats)

    print("sharded")
    try:
        sharded(options.size, options.repeats)
    except ImportError as reason:
        print(f"  skipped: {reason}")


def sharded(size: int, repeats: int) -> None:
    from sharding import plan

    beam, grid = scan(size, FAR)
    A = Projector(beam, grid)
    configuration(A)
    for devices in (1, 2):
        B = plan(A, devices=devices, partition="view").lower()
        timed(f"cylinder, {devices} worker{'s' * (devices > 1)}, by view", B, repeats)


def configuration(A: Projector) -> None:
    geometry = A.geometry
    print(
        f"  {geometry.views} views, {' x '.join(map(str, geometry.detector.shape))} cells, "
        f"{' x '.join(map(str, A.grid.shape))} voxels, {A.precision}, {pool.workers()} threads"
    )


def timed(name: str, A: Any, repeats: int) -> None:
    x, y = A.domain.random(0), A.codomain.random(1)
    line(f"{name}, forward", lambda: A @ x, repeats)
    line(f"{name}, adjoint", lambda: A.H @ y, repeats)


def line(name: str, call: Callable[[], Any], repeats: int) -> None:
    """Best wall and processor time, and what NumPy held at most in a call, after a first one."""
    call()
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    best = np.full(2, np.inf)
    for _ in range(repeats):
        start = time.perf_counter(), time.process_time()
        call()
        best = np.minimum(best, [time.perf_counter() - start[0], time.process_time() - start[1]])
    print(
        f"  {name:44} {1e3 * best[0]:10.1f} ms   {1e3 * best[1]:10.1f} ms of the processor   "
        f"{peak / 2**20:8.1f} MiB at most",
        flush=True,
    )


if __name__ == "__main__":
    main()
