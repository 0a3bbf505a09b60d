"""What a solver gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = [
    "BREAKDOWN",
    "CALLBACK_STOPPED",
    "CHANGE_REACHED",
    "LEAST_SQUARES_REACHED",
    "LIMIT_REACHED",
    "RESIDUAL_REACHED",
    "SolverResult",
]

RESIDUAL_REACHED = "residual tolerance reached"
LEAST_SQUARES_REACHED = "least-squares tolerance reached"
CHANGE_REACHED = "relative change reached"
BREAKDOWN = "normal equation breakdown"
CALLBACK_STOPPED = "callback stopped"
LIMIT_REACHED = "iteration limit reached"


@dataclass(frozen=True)
class SolverResult:
    """The outcome of a solve.

    Attributes
    ----------
    solution
        An element of the operator's domain, batch axes of the measurements in front. It shares
        no memory with the inputs and carries no graph, but for `differentiable=True`.
    iterations
        Completed iterations; for a batch those of its slowest member.
    residual_history
        `|y - A x|` at the start and after each iteration: `iterations + 1` floats. For a batch
        one row an iteration with one entry a member (C order of the batch axes).
    converged
        Whether a tolerance was met; for a batch a list with one entry a member.
    reason
        Why it ended; for a batch a list. One of the constants of this module.
    histories
        What a solver records besides, by name: one float an iteration (`vcd`: objective,
        data_rms, change, step; `tv` by PDHG: objective, gap).
    """

    solution: Any
    iterations: int
    residual_history: list[Any]
    converged: bool | list[bool]
    reason: str | list[str]
    histories: Mapping[str, list[float]] = field(default_factory=dict)

    def plot(self, axes: Any = None) -> Any:
        """Residual and histories over iterations, on a logarithmic scale where all are positive.

        Parameters
        ----------
        axes
            Of matplotlib, where to draw; a new figure's by default.

        Returns
        -------
        matplotlib axes
        """
        if axes is None:
            import matplotlib.pyplot as plt

            _, axes = plt.subplots()
        axes.plot(range(len(self.residual_history)), self.residual_history, label="residual")
        for name, values in self.histories.items():
            first = len(self.residual_history) - len(values)
            axes.plot(range(first, first + len(values)), values, label=name)
        lines = [line.get_ydata() for line in axes.get_lines()]
        if all((line > 0).all() for line in map(np.asarray, lines)):
            axes.set_yscale("log")
        axes.set_xlabel("iteration")
        axes.legend()
        return axes
