"""Time of the compiled 3-D projection kernels: aligned parallel, cone by columns, any frames.

Run as ``python -m benchmarks.volumes [--size 128] [--precision fast float64] [--repeat 5]``; prints
its configuration and, for each kernel, the median of forward and adjoint and their ratio. With
``--memory`` it prints instead the peak of the resident set of a fresh process beside arguments and
results, at ``--size 256`` for the scan of 256 views.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from geometries.kernels.aligned import kernel as aligned
from geometries.kernels.columns import kernel as columns
from geometries.kernels.oblique import kernel as oblique
from geometries.kernels.volume_scan import VolumeScan
from linops.compiled import pool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--precision", nargs="+", default=["fast"])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--oblique", action="store_true", help="the general kernel too (slow)")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    options = parser.parse_args()
    n = options.size
    if options.memory:
        memory(n)
        return
    print(f"grid {n}^3, {n} views, {pool.workers()} threads, median of {options.repeat}")
    cases = [
        ("aligned parallel", aligned, parallel_scan(n)),
        ("columns, parallel", columns, parallel_scan(n)),
        ("columns, cone", columns, cone_scan(n)),
    ]
    if options.oblique:
        cases.append(("oblique, cone", oblique, cone_scan(n)))
    for precision in options.precision:
        dtype = np.float64 if precision == "float64" else np.float32
        for name, kernel, scan in cases:
            rng = np.random.default_rng(0)
            volume = rng.random((1, n, n, n)).astype(dtype)
            data = rng.random((1, scan.views, scan.shape[1], scan.shape[0])).astype(dtype)
            out, back = np.empty_like(data), np.empty_like(volume)
            once = time.perf_counter()
            kernel.forward(scan, volume[:, :1, :1].copy(), out, precision=precision)
            once = time.perf_counter() - once
            ahead = median(
                lambda: kernel.forward(scan, volume, out, precision=precision), options.repeat
            )
            behind = median(
                lambda: kernel.adjoint(scan, data, back, precision=precision), options.repeat
            )
            print(
                f"{name:18} {precision:8} detector {scan.shape}: forward {ahead:.4f} s, "
                f"adjoint {behind:.4f} s ({behind / ahead:.2f}), first call {once:.2f} s"
            )


_MEASURE = """
import resource
import numpy as np
from benchmarks import volumes
from geometries.kernels.{kernel} import kernel
kind = volumes.{scan}_scan
def arrays(scan):
    cells, rays = scan.grid_shape, (scan.views, scan.shape[1], scan.shape[0])
    return np.ones((1, *cells), np.float32), np.ones((1, *rays), np.float32)
small, scan = kind(8), kind({n})
volume, data = arrays(small)
kernel.forward(small, volume, data)
kernel.adjoint(small, data, volume)
volume, data = arrays(scan)
calls = lambda: kernel.forward(scan, volume, data), lambda: kernel.adjoint(scan, data, volume)
for call in calls:
    with open("/proc/self/statm") as status:
        before = int(status.read().split()[1]) * resource.getpagesize()
    call()
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print((peak - before) / 2**20)
"""


def memory(n: int) -> None:
    """Peak of the resident set over a call, arguments and results in memory before."""
    for kernel, scan in (("aligned", "parallel"), ("columns", "parallel"), ("columns", "cone")):
        code = _MEASURE.format(kernel=kernel, scan=scan, n=n)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        ahead, behind = (float(word) for word in done.stdout.split())
        print(
            f"{kernel}, {scan}: grid {n}^3, {n} views, {pool.workers()} threads: "
            f"forward {ahead:.1f} MiB, adjoint {behind:.1f} MiB",
            flush=True,
        )


def parallel_scan(n: int) -> VolumeScan:
    angles = np.linspace(0, np.pi, n, endpoint=False) + 1e-3
    zero, one = np.zeros(n), np.ones(n)
    u = np.stack([np.cos(angles), np.sin(angles), zero], 1)
    ahead = np.stack([-np.sin(angles), np.cos(angles), zero], 1)
    v = np.stack([zero, zero, one], 1)
    nothing = np.zeros((n, 3))
    return VolumeScan(
        "parallel", nothing, ahead, nothing, u, v, (n, n * 3 // 2), (1.0, 1.0), (0.0, 0.0), None,
        (n, n, n), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0),
    )  # fmt: skip


def cone_scan(n: int) -> VolumeScan:
    """Magnification 1.5, a square detector of 1.5 n cells of 1.3."""
    angles = np.linspace(0, 2 * np.pi, n, endpoint=False) + 1e-3
    zero, one = np.zeros(n), np.ones(n)
    u = np.stack([np.cos(angles), np.sin(angles), zero], 1)
    ahead = np.stack([-np.sin(angles), np.cos(angles), zero], 1)
    v = np.stack([zero, zero, one], 1)
    a, d = 300.0 * n / 128, 450.0 * n / 128
    side = n * 3 // 2
    return VolumeScan(
        "cone", -a * ahead, ahead, (d - a) * ahead, u, v, (side, side), (1.3, 1.3), (0.0, 0.0),
        None, (n, n, n), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0),
    )  # fmt: skip


def median(call: Callable[[], None], repeat: int) -> float:
    call()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


if __name__ == "__main__":
    main()
