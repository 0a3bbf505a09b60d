"""Checkpoints of a solve: bound to the problem they belong to, saved at intervals, kept in number.

Operator, measurements, start, algorithm and settings enter as fingerprints, so that a step is only
continued as what it was. Elements are whole, whatever devices or ranks solve: the layout is a
record, not a condition. How a step lies on a disk is in `solvers/step_files.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linops.errors import CheckpointError
from linops.linear_operator import LinearOperator
from solvers import step_files
from solvers.fingerprint import fingerprint

__all__ = ["Checkpointer", "Saved"]


@dataclass(frozen=True)
class Saved:
    """A step as it was read."""

    path: Path
    iteration: int
    state: dict[str, Any]
    history: list[Any]
    histories: dict[str, list[float]]
    ended: list[Any]
    tolerances: dict[str, float]


class Checkpointer:
    """Saves and loads the steps of one solve.

    Parameters
    ----------
    algorithm
        Its name.
    directory
        Root of the steps; None saves nothing.
    every, keep
        Save each `every` iterations; keep the last `keep` steps of this solve, whichever run
        made them (None: all).
    operator, measurements, start, settings
        What the solve is; they enter as fingerprints.
    writes
        Whether this process writes: where several solve together, one does, and all read.
    """

    def __init__(
        self,
        algorithm: str,
        *,
        directory: Any,
        every: int,
        keep: int | None,
        operator: LinearOperator,
        measurements: Any,
        start: Any,
        settings: Mapping[str, Any],
        writes: bool = True,
    ) -> None:
        self.root = None if directory is None else Path(directory).expanduser()
        self._writes = writes
        self._every, self._keep = every, keep
        self._begun = False
        self._layout = {
            side: [str(m.home.placement) if m.home.placed else None for m in space.members]
            for side, space in (("domain", operator.domain), ("codomain", operator.codomain))
        }
        self._problem: dict[str, Any] = {
            "algorithm": algorithm,
            "domain": str(operator.domain),
            "codomain": str(operator.codomain),
            "precision": str(operator.precision),
            "operator": fingerprint(operator),
            "measurements": fingerprint(measurements),
            "x0": fingerprint(start),
        }
        for name, value in settings.items():
            plain = value is None or isinstance(value, (bool, int, float, str))
            self._problem[f"setting {name}"] = value if plain else fingerprint(value)

    def prepare(self) -> None:
        """Raise a `CheckpointError` where this process cannot write the steps that are its own."""
        if self.root is not None and self._writes:
            step_files.writable(self.root)

    def due(self, iteration: int) -> bool:
        """Whether this iteration is one to save."""
        return self.root is not None and iteration % self._every == 0

    def save(
        self,
        iteration: int,
        state: Mapping[str, Any],
        *,
        history: list[Any],
        histories: Mapping[str, list[float]],
        ended: list[Any],
        tolerances: Mapping[str, float],
    ) -> None:
        """Publish a step.

        Raises
        ------
        CheckpointError
            Where the step exists already; what is there stays as it is.
        """
        if self.root is None or not self._writes:
            return
        if not self._begun:
            step_files.remove_unfinished(self.root)
            self._begun = True
        metadata = {
            "library": _version(),
            "rank": 0,
            "world": 1,
            "problem": self._problem,
            "layout": self._layout,
            "tolerances": dict(tolerances),
            "history": history,
            "histories": dict(histories),
            "ended": ended,
        }
        step_files.write_step(self.root, iteration, state, metadata)
        if self._keep is not None:
            for step in self._ours(self.root)[: -self._keep]:
                step_files.remove_step(step)

    def load(self, path: Any, like: Any) -> Saved:
        """Read and check a step.

        Parameters
        ----------
        path
            The root (its latest complete step), a step, or a rank's folder.
        like
            An array whose namespace and device the state gets.

        Raises
        ------
        CheckpointError
            Where there is none, a file is missing or damaged (named), or the step belongs to
            another solve (what differs is named).
        """
        folder = step_files.found(Path(path).expanduser())
        metadata, source = step_files.read_metadata(folder)
        saved = step_files.check_metadata(metadata, source)
        theirs = metadata["problem"]
        different = [
            name
            for name in sorted({*theirs, *self._problem})
            if _json(theirs.get(name)) != _json(self._problem.get(name))
        ]
        if different:
            raise CheckpointError(
                f"{folder} belongs to another solve: {', '.join(different)} "
                f"{'differs' if len(different) == 1 else 'differ'}"
            )
        state = step_files.read_state(metadata, source, like)
        return Saved(path=folder, state=state, **saved)

    def _ours(self, root: Path) -> list[Path]:
        """The steps of this solve, of runs before this one too; the folder may hold others."""
        ours = []
        for _, step in step_files.steps_in(root):
            try:
                metadata, _ = step_files.read_metadata(step_files.found(step))
            except CheckpointError:
                continue  # not ours to judge, nor to remove
            if _json(metadata.get("problem")) == _json(self._problem):
                ours.append(step)
        return ours


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _version() -> str:
    import linops

    return getattr(linops, "__version__", "unknown")
