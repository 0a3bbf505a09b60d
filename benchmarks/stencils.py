"""Stencils beside a triad kernel, SciPy and PyLops, interleaved in one run.

Ratios are what counts: a triad `a = b + s c` moves 16 bytes an element, a Laplacian 12.

    python -m benchmarks.stencils [extent]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

import linops as lo
from linops.compiled import pool
from linops.stencils import Gradient, Laplacian, Stencil


@numba.njit(nogil=True, fastmath=True)
def triad(a: Any, b: Any, c: Any, s: Any, first: Any, last: Any) -> None:
    """`a = b + s c` on a range."""
    for k in range(first, last):
        a[k] = b[k] + s * c[k]


def main(n: int = 256, rounds: int = 7) -> None:
    """Print the best time of each kernel and its ratio to the triad's."""
    space = lo.Space((n, n, n))
    x = space.random(0)
    a, b, c = (np.ones(space.size, "float32") for _ in range(3))
    parts = 4 * pool.workers()

    def stream() -> None:
        ends = [space.size * k // parts for k in range(parts + 1)]
        pool.run(lambda k: triad(a, b, c, np.float32(2), ends[k], ends[k + 1]), parts)

    cases: dict[str, Callable[[], Any]] = {"triad": stream}
    for order in (2, 8):
        A = Laplacian(space, order)
        cases[f"Laplacian, order {order}"] = lambda A=A: A @ x
    G = Gradient(space, 2, "even")
    y = G @ x
    cases["Gradient"] = lambda: G @ x
    cases["Gradient.H"] = lambda: G.H @ y
    S = Laplacian(space, 2).with_backend("slices")
    cases["Laplacian, order 2, slices"] = lambda: S @ x
    one = Stencil(space, {(0, 0, 0): 1.0})
    cases["one tap"] = lambda: one @ x
    try:
        from scipy import ndimage

        cases["scipy.ndimage.laplace"] = lambda: ndimage.laplace(x, mode="constant")
    except ImportError:
        pass
    try:
        import pylops

        peer = pylops.Laplacian(
            (n, n, n), axes=(0, 1, 2), weights=(1, 1, 1), sampling=(1, 1, 1), dtype="float32"
        )
        cases["pylops.Laplacian"] = lambda: peer.matvec(x.ravel())
    except ImportError:
        pass
    best = dict.fromkeys(cases, float("inf"))
    for k in range(rounds):
        for name, run in cases.items():
            if k > 2 and best[name] > 10 * best["triad"]:
                continue  # slow peers are run three times
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    print(f"{n}^3 float32, {pool.workers()} threads")
    for name, seconds in best.items():
        share = best["triad"] / seconds
        print(f"  {name:28s} {seconds * 1e3:9.1f} ms   {share:7.1%} of the triad")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
