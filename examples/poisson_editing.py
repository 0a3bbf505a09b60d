#!/usr/bin/env python3
"""Poisson image editing: a patch pasted into a picture by its gradients, without a seam.

Inside the patch's place u has the patch's Laplacian, on its rim the picture's values. The patch is
a rectangle, so what is added, u less the patch, is harmonic up to its rim: `PoissonSolve` with
zeros outside, the rim's difference moved to the right side. Needs matplotlib.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import linops as lo
from linops.stencils import Laplacian, PoissonSolve


@dataclass(frozen=True)
class Outcome:
    pasted: np.ndarray  # values copied, with a seam
    edited: np.ndarray
    seams: tuple[float, float]  # the jump of what is added at the rim, root mean square


def edit(picture: np.ndarray, patch: np.ndarray, corner: tuple[int, int]) -> Outcome:
    """`patch`, with a rim of one pixel, blended into `picture` with its first pixel at `corner`."""
    (i, j), (m, n) = corner, patch.shape
    place = (slice(i, i + m), slice(j, j + n))
    added = picture[place] - patch
    added[1:-1, 1:-1] = 0
    space = lo.Space((m - 2, n - 2), "float64")
    # The Laplacian of the rim alone, with zeros within, is what the rim brings to the inside.
    rim = Laplacian(lo.Space((m, n), "float64")) @ added
    added[1:-1, 1:-1] = PoissonSolve(space) @ rim[1:-1, 1:-1]
    pasted, edited = picture.copy(), picture.copy()
    pasted[place][1:-1, 1:-1] = patch[1:-1, 1:-1]
    edited[place] = patch + added
    seams = tuple(
        float(np.sqrt(np.mean(((image[place] - patch)[1] - added[0])[1:-1] ** 2)))
        for image in (pasted, edited)
    )
    return Outcome(pasted, edited, seams)  # type: ignore[arg-type]


def scene(n: int) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """A sky that brightens, and a disc on paper that is darker."""
    y, x = np.mgrid[:n, :n] / n
    picture = 0.4 + 0.4 * y + 0.2 * x**2
    y, x = np.mgrid[: n // 2, : n // 2] / (n / 2) - 0.5
    patch = 0.2 + 0.3 / (1 + np.exp((np.hypot(x, y) - 0.25) * 60))
    return picture, patch, (n // 4, n // 4)


def main(words: list[str] | None = None) -> Outcome:
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--output", type=Path, default=Path("poisson_editing.png"))
    options = parser.parse_args(words)
    outcome = edit(*scene(options.size))
    print("jump at the seam: pasted {:.4f}, edited {:.4f}".format(*outcome.seams))
    figure, axes = plt.subplots(1, 2, figsize=(7, 3.5))
    for axis, name in zip(axes, ("pasted", "edited"), strict=True):
        axis.imshow(getattr(outcome, name), vmin=0, vmax=1, cmap="gray")
        axis.set_title(name)
    figure.savefig(options.output, dpi=120)
    plt.close(figure)
    return outcome


if __name__ == "__main__":
    main()
