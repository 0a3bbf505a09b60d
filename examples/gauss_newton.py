#!/usr/bin/env python3
"""From photon counts to attenuation without a logarithm: Gauss-Newton on Beer-Lambert's law.

A detector cell behind the object x expects I0 exp(-A x) photons and counts a Poisson number of
them. `gauss_newton` takes the `jacobian` of that map where it stands and solves the damped,
weighted linear least squares for the change by CGLS. The usual way, CGLS on the logarithms of the
counts, stands beside it, plain and weighted by the counts. One number of CGLS iterations serves
all, and iterations regularise, so the table compares the models only roughly.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

import linops as lo
from geometries import Detector, Grid, ParallelBeam, Projector
from linops.elementary.pointwise import transmission
from solvers import cgls, gauss_newton


@dataclass(frozen=True)
class Outcome:
    """Misfit and error at the start and after every step, and those of the logarithms."""

    misfits: list[float]  # root mean square of the whitened residual; 1 is pure noise
    errors: list[float]  # |x - truth| / |truth|
    logarithms: dict[str, tuple[float, float]]  # misfit and error of CGLS on the logarithms
    image: np.ndarray


def discs(n: int, attenuation: float) -> np.ndarray:
    """A disc with a dense and an empty inset, (n, n); a diameter attenuates e^-`attenuation`."""
    y, x = (np.indices((n, n)) - (n - 1) / 2) / (n / 2)
    image = 1.0 * (x**2 + y**2 < 0.7**2)
    image += (x - 0.3) ** 2 + (y - 0.1) ** 2 < 0.15**2
    image -= (x + 0.3) ** 2 + (y + 0.2) ** 2 < 0.2**2
    return (image * attenuation / (0.7 * n)).astype("float32")


def reconstruct(
    n: int, views: int, photons: float, steps: int, iterations: int, seed: int = 0
) -> Outcome:
    """Scan the phantom, and reconstruct it both ways."""
    truth = discs(n, attenuation=4.0)
    angles = np.arange(views) * (np.pi / views)
    A = Projector(ParallelBeam(angles, Detector(n)), Grid((n, n)))
    expected = transmission(A, photons)
    counts = np.random.default_rng(seed).poisson(expected(truth)).astype("float32")
    # Poisson counts have their mean as variance; a cell that saw nothing is given one photon.
    variance = np.maximum(counts, 1)
    W = lo.Diagonal(1 / np.sqrt(variance))

    def misfit(x: np.ndarray) -> float:
        residual = W @ (counts - expected(x))
        return float(np.sqrt(np.mean(residual.astype("float64") ** 2)))

    def error(x: np.ndarray) -> float:
        return float(np.linalg.norm(x - truth) / np.linalg.norm(truth))

    x = A.domain.zeros()
    misfits, errors = [misfit(x)], [error(x)]

    def record(step: int, residual: float, x: np.ndarray) -> None:
        misfits.append(misfit(x))
        errors.append(error(x))

    x = gauss_newton(
        W @ expected, W @ counts, iterations=steps, inner_iterations=iterations, callback=record
    ).solution

    lines = np.log(photons / variance).astype("float32")
    # The variance of a logarithm of counts is about 1 / counts.
    weights = lo.Diagonal(np.sqrt(variance))
    plain = cgls(A, lines, iterations=iterations).solution
    weighted = cgls(weights @ A, weights @ lines, iterations=iterations).solution
    logarithms = {
        name: (misfit(image), error(image))
        for name, image in (("log CGLS", plain), ("log CGLS, weighted", weighted))
    }
    return Outcome(misfits, errors, logarithms, x)


def report(outcome: Outcome) -> str:
    """One line a step, and the logarithms for comparison."""
    lines = [f"{'':<24}{'misfit':>10}{'error':>10}"]
    for step, (misfit, error) in enumerate(zip(outcome.misfits, outcome.errors, strict=True)):
        name = f"Gauss-Newton step {step}" if step else "start"
        lines.append(f"{name:<24}{misfit:>10.3f}{error:>10.4f}")
    for name, (misfit, error) in outcome.logarithms.items():
        lines.append(f"{name:<24}{misfit:>10.3f}{error:>10.4f}")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> Outcome:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--size", type=int, default=64, help="cells along a side")
    parser.add_argument("--views", type=int, default=90)
    parser.add_argument("--photons", type=float, default=1000.0, help="a cell, in the open beam")
    parser.add_argument("--steps", type=int, default=6, help="of Gauss-Newton")
    parser.add_argument("--iterations", type=int, default=6, help="of CGLS, in each step")
    options = parser.parse_args(words)
    outcome = reconstruct(
        options.size, options.views, options.photons, options.steps, options.iterations
    )
    print(report(outcome))
    return outcome


if __name__ == "__main__":
    main()
