#!/usr/bin/env python3
"""Training a small network before a projector that is spread over processes.

    torchrun --nproc-per-node 2 examples/train_across_ranks.py

The network corrects an image of few views so that its projections fit many. Each rank holds the
whole network, under `DistributedDataParallel`, and some views of the scan. Two ways to write the
loss give one gradient, that of one process, on every rank; the mean that DistributedDataParallel
takes of equal gradients changes nothing.

    whole    B @ image is all projections, and the loss one number of all ranks.
    shares   B.local(image) is this rank's views. The derivative of B.local adds those of all ranks,
             so the loss is this rank's part of the sum, divided by the copies that a view has.

Alone (`python examples/train_across_ranks.py`) it runs as a group of one; needs torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from geometries import Detector, Grid, ParallelBeam, Projector, fbp
from sharding import plan


def network() -> torch.nn.Module:
    """An image plus what three layers make of it; every rank starts with the same numbers."""
    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 1, 3, padding=1),
    ]
    return torch.nn.Sequential(*layers).double()


def train(n: int, views: int, steps: int, kind: str) -> tuple[list[float], float]:
    """The losses, and the size of the first gradient."""
    y, x = (np.indices((n, n)) - (n - 1) / 2) / (n / 2)
    truth = 1.0 * (x**2 + y**2 < 0.8**2) + 0.5 * ((x - 0.3) ** 2 + (y - 0.1) ** 2 < 0.2**2)
    angles = np.arange(views) * (np.pi / views)
    A = Projector(ParallelBeam(angles, Detector(n)), Grid((n, n)), precision="float64")
    few = Projector(A.geometry[::4], A.grid, precision="float64")
    start = torch.from_numpy(np.array(fbp(few, few @ truth)))[None, None]

    B = plan(A, executor="torch", partition="view").lower()
    measured = torch.from_numpy(np.array(A @ truth))
    own, copies = B.codomain.home.put(measured).to_local(), B.codomain.home.placement.replicas
    model = torch.nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loss_of(image: Any) -> torch.Tensor:
        if kind == "whole":
            return ((B @ image - measured) ** 2).sum() / B.codomain.size
        return ((B.local(image) - own) ** 2).sum() / copies / B.codomain.size

    losses, size = [], 0.0
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of((start + model(start))[0, 0])
        loss.backward()
        if step == 0:
            size = float(sum((p.grad**2).sum() for p in model.parameters()) ** 0.5)
        optimizer.step()
        value = loss.detach().clone()
        if kind == "shares":
            dist.all_reduce(value)
        losses.append(float(value))
    return losses, size


def main(arguments: Sequence[str] | None = None) -> None:
    """Join the group, train in both ways, and print what came out on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if dist.is_torchelastic_launched():  # by torchrun, which has set the rest
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for kind in ("whole", "shares"):
            losses, size = train(options.size, options.views, options.steps, kind)
            if dist.get_rank() == 0:
                print(
                    f"{kind}, {dist.get_world_size()} ranks: gradient {size:.10g}, "
                    f"loss {losses[0]:.10g} to {losses[-1]:.6g}"
                )
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
