#!/usr/bin/env python3
"""One reconstruction on several processes: every rank owns some views, nobody writes a message.

    torchrun --nproc-per-node 2 examples/torchrun.py

Each process runs this whole script. `plan` finds the process group, cuts the scan by its views and
lowers the projector; solver, prior and loss below are the lines that one process would run. Alone
(`python examples/torchrun.py`) it runs as a group of one. On GPUs replace "gloo" by "nccl".
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

import linops as lo
from geometries import Detector, Grid, ParallelBeam, Projector
from linops import functionals as fn
from sharding import plan
from solvers import cgls


@dataclass(frozen=True)
class Outcome:
    """Relative errors of both images, and the losses of the descent."""

    cgls_error: float
    descent_error: float
    losses: list[float]


def phantom(n: int) -> np.ndarray:
    """A disc with two insets, (n, n)."""
    y, x = (np.indices((n, n)) - (n - 1) / 2) / (n / 2)
    image = 1.0 * (x**2 + y**2 < 0.8**2)
    image += 0.5 * ((x - 0.3) ** 2 + (y - 0.1) ** 2 < 0.2**2)
    return image - 0.7 * ((x + 0.3) ** 2 + (y + 0.2) ** 2 < 0.25**2)


def reconstruct(n: int, views: int, iterations: int, partition: str) -> Outcome:
    """Scan the phantom, and reconstruct it by a solver and by plain gradient descent."""
    truth = phantom(n)
    angles = np.arange(views) * (np.pi / views)
    A = Projector(ParallelBeam(angles, Detector(n)), Grid((n, n)), precision="float64")

    p = plan(A, executor="torch", partition=partition)
    if dist.get_rank() == 0:
        print(p.explain())
    B = p.lower()

    # Every rank passes the same array and keeps its share of it.
    y = B.codomain.home.put(A @ truth)
    solved = cgls(B, y, iterations=iterations).solution

    # A loss is written as in one process: `inner` and functionals are global numbers.
    prior = B.domain.lower(fn.TotalVariation(A.domain))
    image = B.domain.zeros().requires_grad_()
    optimiser = torch.optim.Adam([image], lr=0.05)
    losses = []
    for _ in range(iterations):
        optimiser.zero_grad()
        residual = B @ image - y
        loss = B.codomain.inner(residual, residual) / B.codomain.size + 1e-4 * prior(image)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach().full_tensor()))

    def error(x: torch.Tensor) -> float:
        # Gathered on every rank; a large volume is better saved share by share.
        found = lo.arrays.to_numpy(x)
        return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))

    return Outcome(error(solved), error(image), losses)


def main(arguments: Sequence[str] | None = None) -> Outcome:
    """Join the group, reconstruct, and print what came out on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--views", type=int, default=90)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--partition", default="view")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if dist.is_torchelastic_launched():  # by torchrun, which has set the rest
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        outcome = reconstruct(options.size, options.views, options.iterations, options.partition)
        if dist.get_rank() == 0:
            print(f"{dist.get_world_size()} ranks")
            print(f"CGLS: relative error {outcome.cgls_error:.4f}")
            print(
                f"Adam: relative error {outcome.descent_error:.4f}, loss "
                f"{outcome.losses[0]:.4g} to {outcome.losses[-1]:.4g}"
            )
    finally:
        dist.destroy_process_group()
    return outcome


if __name__ == "__main__":
    main()
