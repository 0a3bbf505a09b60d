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
from linops.stencils import AcousticWave, Gradient, Laplacian, Stencil, WaveModel


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
    slowness = np.linspace(0.5, 1, space.size, dtype="float32").reshape(space.shape)
    for order in (2, 8):
        step = AcousticWave(space, slowness, 0.3, order)
        state = (x, x)
        cases[f"acoustic step, order {order}"] = lambda A=step, v=state: A @ v
        cases[f"acoustic step, order {order}, H"] = lambda A=step, v=state: A.H @ v
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
    cases |= _on_jax(space, x) | _gradient(n)
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


def _on_jax(space: lo.Space, x: np.ndarray) -> dict[str, Callable[[], Any]]:
    """The slices that XLA compiles, and the sum of rolls that users write."""
    try:
        import jax
    except ImportError:
        return {}
    xp = jax.numpy
    A = Laplacian(space, 2, "periodic")
    ours = jax.jit(lambda u: A @ u)
    rolls = jax.jit(
        lambda u: sum(xp.roll(u, s, a) for a in range(3) for s in (1, -1)) - xp.float32(6) * u
    )
    u = xp.asarray(x)
    return {
        "XLA, slices": lambda: ours(u).block_until_ready(),
        "XLA, jnp.roll": lambda: rolls(u).block_until_ready(),
    }


def _gradient(n: int, steps: int = 20) -> dict[str, Callable[[], Any]]:
    """A forward run of many steps, and the gradient of its misfit in the medium."""
    space = lo.Space((max(n // 4, 8),) * 3)
    place = [[space.shape[0] / 2] * 3]
    wavelet = np.ones((steps, 1), "float32")
    model = WaveModel(space, 0.3, wavelet, place, place)
    square = np.ones(space.shape, "float32")
    records = model(square)
    return {
        f"{steps} steps at a quarter": lambda: model(square),
        "their gradient": lambda: model.vjp(square, records),
    }


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
