#!/usr/bin/env python3
"""Scan, filter back, reconstruct, combine: the operators in one page.

A fan beam looks at a rectangle. `fbp` inverts it at once, `cgls` solves the least squares, and a
stack of the projector with a gradient asks for smoothness as well. Every operator is dot-tested.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import linops as lo
from geometries import Detector, FanBeam, Grid, Projector, fbp
from linops.testing import dot_test
from solvers import cgls


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=96)
    n = parser.parse_args(arguments).size

    image = np.zeros((n, n), "float32")  # attenuation per mm, axes (y, x)
    image[n // 4 : n // 2, n // 3 : 3 * n // 4] = 0.02

    angles = np.arange(2 * n) * (np.pi / n)  # radians
    beam = FanBeam(angles, Detector(2 * n), source_to_axis=5.0 * n, source_to_detector=10.0 * n)
    A = Projector(beam, Grid((n, n), spacing=0.8))
    y = A @ image  # line integrals, axes (view, col)
    y += np.random.default_rng(0).normal(0, 0.01, y.shape).astype("float32")

    G = lo.Gradient(A.domain)
    smooth = lo.vstack([A, 2.0 * G])  # the data, and a wish for small differences
    print(smooth.describe())
    print(f"dot test: {dot_test(smooth):.1f} eps")

    images = {
        "filtered backprojection": fbp(A, y),
        "CGLS": cgls(A, y, iterations=15).solution,
        "CGLS, smooth": cgls(smooth, (y, G.codomain.zeros()), iterations=15).solution,
    }
    errors = {}
    for name, found in images.items():
        errors[name] = float(np.linalg.norm(found - image) / np.linalg.norm(image))
        print(f"{name:24} relative error {errors[name]:.3f}")
    return errors


if __name__ == "__main__":
    main()
