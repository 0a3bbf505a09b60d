#!/usr/bin/env python3
"""How far a detector bulges, learned from one scan of a known object by the gradient of its misfit.

The detector's cells stand at `depth[0] cos(a / 8) + depth[1] sin(a / 5)` in front of a plane, a the
position along it. The two numbers are torch parameters of a `Surface`; the projector hands their
gradients to any optimiser.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from geometries import Detector, FanBeam, Grid, Projector, Surface

TRUTH = (2.5, -1.2)  # mm


def bulge(a: Any, b: Any, view: Any, depth: Any) -> Any:
    """Offsets along u, v (none in a plane) and the normal."""
    forward = depth[0] * torch.cos(a / 8) + depth[1] * torch.sin(a / 5)
    return torch.stack([a, b, -forward], dim=-1)


def main(arguments: Sequence[str] | None = None) -> np.ndarray:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--views", type=int, default=12)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args(arguments)
    grid = Grid((options.size,) * 2, 24.0 / options.size)
    y, x = grid.coordinates("y")[:, None], grid.coordinates("x")
    # Smooth objects: the length of a ray within a cell has kinks where the ray meets a corner.
    image = torch.from_numpy(np.exp(-((x - 3) ** 2 + (y + 2) ** 2) / 20))
    angles = np.arange(options.views) * (2 * np.pi / options.views)

    def project(depth: torch.Tensor) -> torch.Tensor:
        detector = Detector(48, pitch=1.0, curvature=Surface(bulge, (depth,)))
        beam = FanBeam(angles, detector, source_to_axis=40.0, source_to_detector=60.0)
        return Projector(beam, grid, precision="float64") @ image

    with torch.no_grad():
        measured = project(torch.tensor(TRUTH, dtype=torch.float64))
    depth = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([depth], max_iter=options.steps, line_search_fn="strong_wolfe")

    def misfit() -> torch.Tensor:
        optimiser.zero_grad()
        loss = ((project(depth) - measured) ** 2).sum()
        loss.backward()
        print(f"depth {depth[0].item():8.4f} {depth[1].item():8.4f} mm   misfit {loss.item():.3e}")
        return loss

    optimiser.step(misfit)
    print(f"truth {TRUTH[0]:8.4f} {TRUTH[1]:8.4f} mm")
    return depth.detach().numpy()


if __name__ == "__main__":
    main()
