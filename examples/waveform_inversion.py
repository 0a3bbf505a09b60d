#!/usr/bin/env python3
"""Acoustic full-waveform inversion of a layered model: the gradient by the adjoint state.

`WaveModel` maps c squared to records; its `vjp` runs the waves backwards. The Taylor rate of the
misfit is 2 where the gradient is right. A few steps of SciPy's L-BFGS-B lower the misfit.
Needs SciPy and matplotlib.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

import linops as lo
from linops.stencils import WaveModel, stable_step


@dataclass(frozen=True)
class Outcome:
    truth: np.ndarray  # c squared
    found: np.ndarray
    gradient: np.ndarray  # at the start
    rates: list[float]
    misfits: list[float]


def invert(n: int, steps: int, iterations: int) -> Outcome:
    """Three layers seen from above, inverted from a medium without them."""
    from scipy.optimize import minimize

    space = lo.Space((n, n), "float64", ("z", "x"))
    start = np.full((n, n), 4.0)
    truth = start.copy()
    truth[n // 3 :] = 5.0
    truth[2 * n // 3 :] = 6.0
    dt = 0.7 * stable_step(space, 2.6, order=4)
    times = np.arange(steps) * dt - 6.0
    wavelet = (1 - times**2 / 2) * np.exp(-(times**2) / 4)
    # One source and a row of receivers under the surface, where the pressure is 0.
    receivers = [[2, x] for x in range(2, n - 2, 2)]
    sides = (("odd", "even"), "even")
    model = WaveModel(space, dt, wavelet, [[2, n / 2]], receivers, order=4, boundary=sides)
    data = model(truth)
    scale = 1 / np.sum((model(start) - data) ** 2)

    def misfit(square: np.ndarray) -> tuple[float, np.ndarray]:
        residual = model(square) - data
        return 0.5 * scale * float(np.sum(residual**2)), model.vjp(square, scale * residual)

    def flat(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = misfit(x.reshape(n, n))
        return value, gradient.ravel()

    value, gradient = misfit(start)
    direction = np.random.default_rng(0).standard_normal((n, n))
    slope = float(np.sum(gradient * direction))
    sizes = [0.02 / 2**i for i in range(4)]
    gaps = [abs(misfit(start + h * direction)[0] - value - h * slope) for h in sizes]
    rates = [float(np.log2(a / b)) for a, b in pairwise(gaps)]

    misfits = [value]
    found = minimize(
        flat,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(3.0, 6.7)] * n**2,
        options={"maxiter": iterations},
        callback=lambda x: misfits.append(misfit(x.reshape(n, n))[0]),
    ).x.reshape(n, n)
    return Outcome(truth, found, gradient, rates, misfits)


def main(words: list[str] | None = None) -> Outcome:
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=40)
    parser.add_argument("--steps", type=int, default=320, help="of time")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--output", type=Path, default=Path("waveform_inversion.png"))
    options = parser.parse_args(words)
    outcome = invert(options.size, options.steps, options.iterations)
    print("Taylor rates", *(f"{rate:.3f}" for rate in outcome.rates))
    print("misfits", *(f"{misfit:.4g}" for misfit in outcome.misfits))
    figure, axes = plt.subplots(1, 3, figsize=(10, 3))
    panels = {"c squared": outcome.truth, "gradient": outcome.gradient, "found": outcome.found}
    for axis, (title, image) in zip(axes, panels.items(), strict=True):
        figure.colorbar(axis.imshow(image), ax=axis)
        axis.set_title(title)
    figure.savefig(options.output, dpi=120)
    plt.close(figure)
    return outcome


if __name__ == "__main__":
    main()
