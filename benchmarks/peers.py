"""A peer that only small scans can wait for: diffct's torch path on the CPU (cone beam).

Run as ``python -m benchmarks.peers [--sizes 40 64] [--rounds 2]``. diffct's array code takes
minutes for the scans of `benchmarks/projectors.py`; here the grid has n^3 cells, the detector 1.2 n
squared, and there are 12 views. Both have the same model, exact chords, so their values are
compared too. Both have as many threads; a line has the best wall time, and the ratio of processor
times, which says more on a busy machine. A size is run or left out, never extrapolated. Skipped,
with the reason, where diffct is not installed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from geometries import ConeBeam, Detector, Grid, Projector
from linops.compiled import pool

VIEWS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[40])
    parser.add_argument("--rounds", type=int, default=2, help="best of so many, after one more")
    parser.add_argument("--precision", default="fast", choices=["fast", "float32", "float64"])
    options = parser.parse_args()
    try:
        import diffct
        import torch
    except ImportError as reason:
        print(f"diffct: skipped: not installed ({reason})")
        return
    torch.set_num_threads(pool.workers())
    threads = f"{pool.workers()} threads"
    print(f"cone, {VIEWS} views, {options.precision}, {threads}; diffct on its torch path")
    for n in options.sizes:
        cells = round(1.2 * n)
        axis, far, pitch = 3.0 * n, 4.5 * n, 1.3
        angles = 0.1 + np.arange(VIEWS) * (2 * np.pi / VIEWS)  # no ray in a face of cells
        beam = ConeBeam(angles, Detector((cells, cells), pitch), axis, far)
        A = Projector(beam, Grid((n, n, n)), precision=options.precision)
        frames = [
            torch.from_numpy(np.array(p)) for p in (beam.sources, beam.centers, beam.u, beam.v)
        ]
        theirs = diffct.Projector(
            frames, (n, n, n), (cells, cells), detector_spacing=pitch, backend="torch",
            precision=options.precision,
        )  # fmt: skip
        rng = np.random.default_rng(0)
        x = rng.random(A.domain.shape).astype(A.dtype)
        y = rng.random(A.codomain.shape).astype(A.dtype)
        given = torch.from_numpy(x)
        turned = torch.from_numpy(np.ascontiguousarray(y.swapaxes(1, 2)))  # theirs: (view, u, v)

        def rows_first(projections: Any) -> np.ndarray:
            return np.asarray(projections).swapaxes(1, 2)

        compare(
            f"{n}^3, {cells} x {cells}",
            (lambda: A @ x, lambda: theirs.project(given), rows_first),
            (lambda: A.H @ y, lambda: theirs.backproject(turned), np.asarray),
            options.rounds,
        )


Way = tuple[Callable[[], Any], Callable[[], Any], Callable[[Any], np.ndarray]]


def compare(label: str, forward: Way, adjoint: Way, rounds: int) -> None:
    """Prints times in alternating rounds, their ratio, and how far the values are apart."""
    for name, (ours, theirs, plain) in (("forward", forward), ("adjoint", adjoint)):
        wanted, found = ours(), plain(theirs())
        gap = np.abs(found - wanted).max() / np.abs(wanted).max()
        best = np.full((2, 2), np.inf)  # ours and theirs, by the wall and of the processor
        for _ in range(rounds):
            for k, call in enumerate((ours, theirs)):
                start = time.perf_counter(), time.process_time()
                call()
                taken = time.perf_counter() - start[0], time.process_time() - start[1]
                best[k] = np.minimum(best[k], taken)
        wall, processor = best[1] / best[0]
        print(
            f"  {label:16} {name}: linops {1e3 * best[0, 0]:9.2f} ms, "
            f"diffct {1e3 * best[1, 0]:9.1f} ms, {wall:6.1f} times ({processor:.1f} of the "
            f"processor); values differ by {gap:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
