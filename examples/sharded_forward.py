#!/usr/bin/env python3
"""One projection on eight devices: planned, explained, lowered, differentiated.

JAX makes eight devices of one CPU (`XLA_FLAGS`), so that a program for several accelerators can be
tried anywhere. The projector says how its axes may be cut, the planner chooses, and what comes back
is an operator again, on arrays that stay where they are.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

import numpy as np

from geometries import ConeBeam, Detector, Grid, Projector
from sharding import plan


def main(arguments: Sequence[str] | None = None) -> float:
    """Returns the largest difference from the operator on one device, relative."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--partition", default="view", help="view, z or auto")
    options = parser.parse_args(arguments)
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    import jax

    n, devices = options.size, jax.devices("cpu")
    beam = ConeBeam(np.arange(n) * (2 * np.pi / n), Detector((n, n), 1.5), 3.0 * n, 4.5 * n)
    A = Projector(beam, Grid((n, n, n)))
    p = plan(A, devices=devices, partition=options.partition)
    print(p.explain())
    B = p.lower()

    x = np.random.default_rng(0).random(A.domain.shape, np.float32)
    placed = p.domain_placement.put(jax.numpy.asarray(x))
    y = B @ placed
    print(f"{len(devices)} devices, projections: {y.sharding}")
    whole = A @ x
    gap = float(np.abs(np.asarray(p.codomain_placement.gather(y)) - whole).max() / whole.max())

    slope = jax.grad(lambda v: 0.5 * jax.numpy.sum((B @ v) ** 2))(placed)
    wanted = A.H @ whole
    back = np.asarray(p.domain_placement.gather(slope))
    gap = max(gap, float(np.abs(back - wanted).max() / wanted.max()))
    print(f"largest difference from one device, projection and gradient: {gap:.1e}")
    return gap


if __name__ == "__main__":
    main()
