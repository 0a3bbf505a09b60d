"""The separable footprint beside Siddon: CPU time of one thread, and the ratios.

Run as ``python -m benchmarks.footprint [--size 128] [--repeat 5] [--planar]``. The cases have
`size` views through `size`^3 voxels onto `size` x 1.5 `size` cells. Models take turns, and the
least CPU time of `repeat` turns counts, so that other work on the machine weighs little.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from geometries import ConeBeam, Detector, FanBeam, Grid, ParallelBeam, Projector
from linops.compiled import pool

MODELS: dict[str, dict[str, str]] = {
    "siddon": {"model": "siddon"},
    "trapezoid": {"model": "footprint", "profile": "trapezoid"},
    "box": {"model": "footprint", "profile": "box"},
}


def cases(n: int, planar: bool) -> dict[str, tuple[Any, Grid]]:
    turn = np.linspace(0, 2 * np.pi, n, endpoint=False) + 1e-3
    a, d = 300.0 * n / 128, 450.0 * n / 128
    cells, grid = (n, 3 * n // 2), Grid((n, n, n))
    found: dict[str, tuple[Any, Grid]] = {
        "parallel": (ParallelBeam(turn / 2, Detector(cells)), grid),
        "cone": (ConeBeam(turn, Detector(cells, 1.3), a, d), grid),
        "curved": (ConeBeam(turn, Detector(cells, 1.3, curvature=d), a, d), grid),
        "helix": (ConeBeam(2 * turn, Detector(cells, 1.3), a, d, advance=n / 4), grid),
    }
    if planar:
        image = Grid((4 * n, 4 * n))
        found["parallel 2-D"] = (ParallelBeam(turn / 2, Detector(6 * n)), image)
        found["fan"] = (FanBeam(turn, Detector(6 * n, 1.5), 8 * a, 8 * d), image)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--planar", action="store_true", help="images of (4 size)^2 pixels too")
    options = parser.parse_args()
    print(f"size {options.size}, precision fast, one thread, least of {options.repeat}, "
          f"{os.cpu_count()} cores")  # fmt: skip
    print(f"{'case':13} {'model':10} {'forward':>9} {'adjoint':>9} {'adj/fwd':>8} "
          f"{'fwd/siddon':>11} {'adj/siddon':>11} {'fwd/box':>8}")  # fmt: skip
    with pool.limit(1):
        for name, (geometry, grid) in cases(options.size, options.planar).items():
            measure(name, geometry, grid, options.repeat)


def measure(name: str, geometry: Any, grid: Grid, repeat: int) -> None:
    ahead: dict[str, Callable[[], Any]] = {}
    back: dict[str, Callable[[], Any]] = {}
    for model, options in MODELS.items():
        A = Projector(geometry, grid, **options)
        x = A.H @ A.codomain.random(0)
        y = A @ x
        ahead[model] = lambda A=A, x=x: A @ x
        back[model] = lambda A=A, y=y: A.H @ y
    forward, adjoint = least(ahead, repeat), least(back, repeat)
    for model in MODELS:
        f, b = forward[model], adjoint[model]
        print(f"{name:13} {model:10} {f:8.3f}s {b:8.3f}s {b / f:8.2f} "
              f"{f / forward['siddon']:11.2f} {b / adjoint['siddon']:11.2f} "
              f"{f / forward['box']:8.2f}", flush=True)  # fmt: skip


def least(calls: dict[str, Callable[[], Any]], repeat: int) -> dict[str, float]:
    """The least CPU time of each call, taken in turns."""
    found = dict.fromkeys(calls, np.inf)
    for _ in range(repeat):
        for name, call in calls.items():
            start = time.process_time()
            call()
            found[name] = min(found[name], time.process_time() - start)
    return found


if __name__ == "__main__":
    main()
