#!/usr/bin/env python3
"""Heat deblurring: an elevation field that has diffused is sharpened again with total variation.

The blur is `euler ** steps`, steps of the heat equation between walls; elevations are measured from
their lowest. Without `--field` a field is made. Needs matplotlib.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import linops as lo
import solvers
from linops.stencils import Euler, Laplacian


@dataclass(frozen=True)
class Outcome:
    truth: np.ndarray
    blurred: np.ndarray
    sharpened: np.ndarray
    errors: tuple[float, float]  # of the blurred field and of the sharpened, relative


def made_field(n: int) -> np.ndarray:
    """Hills cut into terraces, in metres."""
    y, x = np.mgrid[:n, :n] * (2 * np.pi / n)
    return 150 + 25 * np.round(2 * np.sin(2 * x + np.cos(y)) + 2 * np.cos(3 * y + np.sin(x)))


def sharpen(field: np.ndarray, steps: int, iterations: int, noise: float = 0.1) -> Outcome:
    """Blur a field by so many steps, add noise (metres), and sharpen it."""
    truth = (field - field.min()).astype("float32")
    space = lo.Space(truth.shape, "float32", ("y", "x"))
    A = Euler(Laplacian(space, boundary="even"), 0.2) ** steps
    blurred = A @ truth + noise * space.random(0)
    sharpened = solvers.tv(
        A, blurred, x0=blurred, weight=0.02, method="pdhg", iterations=iterations
    ).solution
    size = np.linalg.norm(truth)
    errors = tuple(float(np.linalg.norm(x - truth) / size) for x in (blurred, sharpened))
    return Outcome(truth, blurred, sharpened, errors)  # type: ignore[arg-type]


def main(words: list[str] | None = None) -> Outcome:
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--field", type=Path, help="an .npz file with `elevation_m`")
    parser.add_argument("--size", type=int, default=128, help="rows and columns at most")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--output", type=Path, default=Path("heat_deblurring.png"))
    options = parser.parse_args(words)
    n = options.size
    field = np.load(options.field)["elevation_m"][:n, :n] if options.field else made_field(n)
    outcome = sharpen(field, options.steps, options.iterations)
    print("error blurred {:.4f}, sharpened {:.4f}".format(*outcome.errors))
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.5))
    for axis, name in zip(axes, ("truth", "blurred", "sharpened"), strict=True):
        axis.imshow(getattr(outcome, name), vmax=outcome.truth.max(), cmap="terrain")
        axis.set_title(name)
    figure.savefig(options.output, dpi=120)
    plt.close(figure)
    return outcome


if __name__ == "__main__":
    main()
