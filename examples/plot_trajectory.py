#!/usr/bin/env python3
"""Where sources and detectors stand: a picture of a scan about its grid.

    plot_trajectory.py --scan saddle --output saddle.png

Sources, the outlines of some detectors and the box of the grid, from `trajectory.sources` and
`trajectory.points()`, which serve every geometry alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from geometries import ConeBeam, Detector, Grid, MultiAxisParallel, Trajectory, saddle

TURN = np.arange(48) * (2 * np.pi / 48)
CELLS = Detector((9, 17), pitch=4.0)
SCANS = {
    "circle": lambda: ConeBeam(TURN, CELLS, 60.0, 100.0),
    "helix": lambda: ConeBeam(2 * TURN, CELLS, 60.0, 100.0, advance=30.0),
    "curved": lambda: ConeBeam(TURN, Detector((9, 17), 4.0, curvature=100.0), 60.0, 100.0),
    "saddle": lambda: saddle(TURN, CELLS, 60.0, 100.0, z_amplitude=20.0),
    "tilted": lambda: MultiAxisParallel(TURN, np.deg2rad(30), CELLS),
}


def draw(axes: Any, frames: Trajectory, grid: Grid, every: int = 8) -> None:
    """Sources (or directions), detectors and grid on matplotlib axes in three dimensions."""
    half, middle = np.array(grid.extent[::-1]) / 2, np.array(grid.center[::-1])
    corners = middle + half * np.array(list(product((-1, 1), repeat=3)))
    for i, j in product(range(8), repeat=2):
        if i < j and np.count_nonzero(corners[i] - corners[j]) == 1:
            axes.plot(*corners[[i, j]].T, color="0.4", linewidth=1)
    if frames.sources is not None:
        axes.plot(*frames.sources.T, ".-", color="tab:red", label="source", markersize=3)
    else:
        axes.quiver(
            *(frames.centers - 40 * frames.directions).T, *frames.directions.T,
            length=15, color="tab:red", label="rays",
        )  # fmt: skip
    points = frames.points(slice(None, None, every))
    for k, cells in enumerate(points):
        edge = np.concatenate([cells[0], cells[:, -1], cells[-1, ::-1], cells[::-1, 0]])
        axes.plot(*edge.T, color="tab:blue", linewidth=1, label=None if k else "detector")
        axes.plot(*cells[0, :1].T, "o", color="tab:blue", markersize=3)  # row 0, column 0
    axes.set(xlabel="x", ylabel="y", zlabel="z", aspect="equal")
    axes.legend()


def main(arguments: Sequence[str] | None = None) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scan", choices=list(SCANS), default="helix")
    parser.add_argument("--output", type=Path, default=Path("trajectory.png"))
    options = parser.parse_args(arguments)
    output = options.output.expanduser()
    figure = plt.figure(figsize=(6, 6))
    frames = SCANS[options.scan]().trajectory
    draw(figure.add_subplot(projection="3d"), frames, Grid((20, 40, 30)))
    figure.savefig(output, dpi=120)
    plt.close(figure)
    print(f"{frames} drawn in {output}")
    return output


if __name__ == "__main__":
    main()
