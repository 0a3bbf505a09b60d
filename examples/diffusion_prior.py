#!/usr/bin/env python3
"""CT with a diffusion prior: a projector stacked on a stencil, planned as one operator.

Few noisy views are inverted by CGLS on `vstack([A, s L])`, L a `Diffusion` that smooths within
regions and not across an edge that is known, such as that of a sample's container. The stack is
planned on three workers: the projector is cut by views or rows, the stencil sends its halo.
Needs matplotlib.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import linops as lo
from geometries import Detector, Grid, ParallelBeam, Projector
from linops.stencils import Diffusion
from sharding import plan
from solvers import cgls


@dataclass(frozen=True)
class Outcome:
    truth: np.ndarray
    plain: np.ndarray
    prior: np.ndarray
    errors: tuple[float, float]
    explained: str


def reconstruct(n: int, views: int, strength: float, iterations: int) -> Outcome:
    """A disc with a smooth inside, without and with the prior."""
    y, x = (np.mgrid[:n, :n] - (n - 1) / 2) / (n / 2)
    inside = np.hypot(x, y) < 0.7
    truth = (inside * (1 + 0.3 * np.sin(4 * x) * np.cos(3 * y))).astype("float32")
    angles = np.arange(views) * (np.pi / views)
    A = Projector(ParallelBeam(angles, Detector(n)), Grid((n, n)))
    data = A @ truth
    data = data + 0.03 * float(data.max()) * A.codomain.random(0)
    # Nothing flows between what is inside and what is not: the harmonic mean with almost 0 is 0.
    edge = inside ^ np.roll(inside, 1, 0) | inside ^ np.roll(inside, 1, 1)
    kappa = np.where(edge, 1e-3, 1.0).astype("float32")
    L = Diffusion(A.domain, kappa, boundary="even", mean="harmonic")
    stack = lo.vstack([A, strength * L])
    planned = plan(stack, devices=3, executor="threads", partition="y")
    zeros = np.zeros(L.codomain.shape, "float32")
    plain = cgls(A, data, iterations=iterations).solution
    prior = cgls(planned.lower(), (data, zeros), iterations=iterations).solution
    size = np.linalg.norm(truth)
    errors = tuple(float(np.linalg.norm(x - truth) / size) for x in (plain, prior))
    return Outcome(truth, plain, prior, errors, str(planned.explain()))  # type: ignore[arg-type]


def main(words: list[str] | None = None) -> Outcome:
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--views", type=int, default=24)
    parser.add_argument("--strength", type=float, default=20.0)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path("diffusion_prior.png"))
    options = parser.parse_args(words)
    outcome = reconstruct(options.size, options.views, options.strength, options.iterations)
    print(outcome.explained)
    print("error plain {:.4f}, with the prior {:.4f}".format(*outcome.errors))
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.5))
    for axis, name in zip(axes, ("truth", "plain", "prior"), strict=True):
        axis.imshow(getattr(outcome, name), vmin=0, vmax=1.3, cmap="gray")
        axis.set_title(name)
    figure.savefig(options.output, dpi=120)
    plt.close(figure)
    return outcome


if __name__ == "__main__":
    main()
