#!/usr/bin/env python3
"""A standing sound wave between walls, and its dispersion: orders 2 to 8 beside theory.

Of the mode `cos(k x)` a step makes exactly `cos(w n dt)`, with
`sin(w dt / 2)^2 = -(c dt / 2)^2 s(k h) / h^2` and the symbol s of the second difference. The error
of the frequency that is measured in the field is drawn over the theory's. Needs matplotlib.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import linops as lo
from linops.stencils import AcousticWave
from linops.stencils.weights import symbol

ORDERS = (2, 4, 6, 8)


@dataclass(frozen=True)
class Outcome:
    angles: np.ndarray  # k h of the modes
    theory: dict[int, np.ndarray]  # w / (c k) of each order
    measured: dict[int, np.ndarray]


def frequencies(order: int, modes: np.ndarray, n: int, dt: float) -> tuple[np.ndarray, np.ndarray]:
    """The frequency of each mode by theory, and as three steps show it."""
    angles = np.pi * modes / n
    theory = 2 / dt * np.arcsin(dt / 2 * np.sqrt(-symbol(order, angles)))
    step = AcousticWave(lo.Space(n, "float64", ("x",)), 1.0, dt, order, "even")
    measured = []
    for angle, w in zip(angles, theory, strict=True):
        mode = np.cos(angle * (np.arange(n) + 0.5))
        p = (mode * np.cos(w * dt), mode)
        after, _ = step @ p
        # p+ + p- = 2 cos(w dt) p
        cosine = np.vdot(p[0], after + p[1]) / (2 * np.vdot(p[0], p[0]))
        measured.append(np.arccos(cosine) / dt)
    return theory, np.array(measured)


def disperse(n: int, dt: float) -> Outcome:
    """Relative phase velocities of the modes of a line of n cells."""
    modes = np.arange(1, n)
    angles = np.pi * modes / n
    found = {order: frequencies(order, modes, n, dt) for order in ORDERS}
    return Outcome(
        angles,
        {order: theory / angles for order, (theory, _) in found.items()},
        {order: measured / angles for order, (_, measured) in found.items()},
    )


def main(words: list[str] | None = None) -> Outcome:
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", type=int, default=48)
    parser.add_argument("--dt", type=float, default=0.3, help="time step; cells and c are 1")
    parser.add_argument("--output", type=Path, default=Path("standing_wave.png"))
    options = parser.parse_args(words)
    outcome = disperse(options.cells, options.dt)
    figure, axes = plt.subplots(figsize=(6, 4))
    for order in ORDERS:
        (line,) = axes.plot(outcome.angles, outcome.theory[order], label=f"order {order}")
        axes.plot(outcome.angles[::3], outcome.measured[order][::3], ".", color=line.get_color())
        gap = np.abs(outcome.measured[order] - outcome.theory[order]).max()
        print(f"order {order}: largest gap to theory {gap:.1e}")
    axes.set(xlabel="k h", ylabel="phase velocity / c")
    axes.legend()
    figure.savefig(options.output, dpi=120)
    plt.close(figure)
    return outcome


if __name__ == "__main__":
    main()
