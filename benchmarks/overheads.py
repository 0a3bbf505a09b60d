"""What small cone scans cost around their kernels: wall time and peak allocation.

Run as ``python -m benchmarks.overheads [--size 32] [--repeats 3]``: n^3 cells, n views, 1.25 n
squared cells of the detector. At such sizes a call is mostly set-up, checks, graphs and copies. A
trajectory that is trained (torch: build the beam, project, go back to the angles), surfaces, CGLS,
SIRT, TV, and FDK whole and in slabs of slices. Compiled, portable and sharded figures stand in
tables of their own and are not to be mixed; every line is a run of the size that is printed.
(`benchmarks/overhead.py` is about the algebra alone.)
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.surfaces import configuration, line
from geometries import ConeBeam, Detector, Grid, Projector, Surface, fdk_operator
from solvers import cgls, sirt, tv


def bulge(a: Any, b: Any, view: Any) -> np.ndarray:
    return np.stack([a, b, np.cos(0.1 * a)], axis=-1)


def scan(n: int, angles: Any = None, curvature: Any = None) -> tuple[ConeBeam, Grid]:
    cells = 5 * n // 4
    detector = Detector((cells, cells), 1.4, curvature=curvature)
    if angles is None:
        angles = np.arange(n) * (2 * np.pi / n)
    return ConeBeam(angles, detector, 3.0 * n, 4.5 * n), Grid((n, n, n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    n, repeats = options.size, options.repeats

    print("compiled")
    A = Projector(*scan(n))
    configuration(A)
    x, y = A.domain.random(0), A.codomain.random(1)
    line("a projector, built and checked", lambda: Projector(*scan(n)), repeats)
    line("forward", lambda: A @ x, repeats)
    line("adjoint", lambda: A.H @ y, repeats)
    curved = Projector(*scan(n, curvature=Surface(bulge)))
    line("surface, forward", lambda: curved @ x, repeats)
    line("surface, adjoint", lambda: curved.H @ y, repeats)
    solved(A, y, repeats)
    F = fdk_operator(A)
    line("FDK", lambda: F @ y, repeats)
    slabs = [F.block("z", k, min(k + 8, n)) for k in range(0, n, 8)]
    line(f"FDK in {len(slabs)} slabs", lambda: [slab @ y for slab in slabs], repeats)

    print("portable")
    configuration(B := Projector(*scan(n), backend="portable"))
    line("forward", lambda: B @ x, repeats)
    line("adjoint", lambda: B.H @ y, repeats)
    try:
        trained(n, x, repeats)
    except ImportError as reason:
        print(f"  trained trajectory: skipped: not installed ({reason})")

    print("sharded")
    from sharding import plan

    configuration(A)
    C = plan(A, devices=2, partition="view").lower()
    line("2 workers by view, forward", lambda: C @ x, repeats)
    line("2 workers by view, adjoint", lambda: C.H @ y, repeats)
    solved(C, y, repeats)


def solved(A: Any, y: Any, repeats: int) -> None:
    line("CGLS, 5 iterations", lambda: cgls(A, y, iterations=5), repeats)
    line("SIRT, 5 iterations", lambda: sirt(A, y, iterations=5), repeats)
    line("TV, 5 iterations", lambda: tv(A, y, weight=0.1, iterations=5), repeats)


def trained(n: int, x: np.ndarray, repeats: int) -> None:
    import torch

    angles = torch.arange(n, dtype=torch.float64) * (2 * np.pi / n)
    angles.requires_grad_()
    image = torch.from_numpy(x)

    def step() -> None:
        loss = (Projector(*scan(n, angles)) @ image).square().sum()
        torch.autograd.grad(loss, angles)

    line("trained trajectory, forward and back", step, repeats)


if __name__ == "__main__":
    main()
