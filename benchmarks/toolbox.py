"""Transforms beside PyLops': ratios of times, below 1 where ours is faster.

Run as ``python -m benchmarks.toolbox [--size 512] [--repeats 25]``. Calls alternate in one process
on the same arrays; each ratio is of medians. PyLops' operators take and return flat vectors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

import linops as lo


def ratio(ours: Callable[[], Any], peer: Callable[[], Any], repeats: int) -> float:
    times: list[list[float]] = [[], []]
    ours(), peer()
    for _ in range(repeats):
        for call, found in zip((ours, peer), times, strict=True):
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
    return float(np.median(times[0]) / np.median(times[1]))


def line(name: str, A: lo.LinearOperator, P: Any, repeats: int) -> None:
    x = A.domain.random(0)
    y = A @ x
    flat, flat_y = x.ravel(), P.matvec(x.ravel())
    forward = ratio(lambda: A @ x, lambda: P.matvec(flat), repeats)
    adjoint = ratio(lambda: A.H @ y, lambda: P.rmatvec(flat_y), repeats)
    print(f"{name:28} forward {forward:5.2f}   adjoint {adjoint:5.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args()
    if find_spec("pylops") is None:
        print("skipped: PyLops is not installed")
        return
    import pylops

    n, repeats = options.size, options.repeats
    for dtype in ("float32", "float64"):
        space = lo.Space((n, n), dtype, axes=("y", "x"))
        real = pylops.signalprocessing.FFT2D((n, n), real=True, norm="ortho", dtype=dtype)
        line(f"FFT of real {dtype}", lo.FFT(space), real, repeats)
        windows = lo.Patches(space, 8, 4).H
        counts = windows.domain.shape[:2]
        inner, reach = pylops.Identity(64, dtype=dtype), tuple(8 * count for count in counts)
        peer = pylops.signalprocessing.Patch2D(
            inner, reach, (n, n), (8, 8), (4, 4), (8, 8), tapertype=None
        )
        line(f"Patches added {dtype}", windows, peer, max(repeats // 5, 1))
        if find_spec("pywt") is None:
            print("DWT skipped: PyWavelets is not installed")
            continue
        for name, level in (("haar", 3), ("db4", 4)):
            peer = pylops.signalprocessing.DWTND(
                (n, n), axes=(0, 1), wavelet=name, level=level, dtype=dtype
            )
            line(f"DWT {name} {dtype}", lo.Wavelet(space, name, level=level), peer, repeats)


if __name__ == "__main__":
    main()
